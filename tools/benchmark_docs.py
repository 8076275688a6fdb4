"""Fill the pages that quote the benchmark from its results: python tools/benchmark_docs.py [FOLDER].

FOLDER: an --out of ``abps benchmark``; its tables become benchmarks/results. Without one these are read.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from abps.lab import benchmark_page

ROOT = Path(__file__).resolve().parents[1]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("benchmark", "federations", "paper", "icu-synthetic"))

#: A block that results fill: its name, and what stands in it.
BLOCK = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)


def filled(text: str, parts: dict[str, str]) -> str:
    """A page with every block renewed."""
    return BLOCK.sub(lambda found: f"{found[1]}{parts[found['name']]}\n{found[3]}", text)


def main() -> None:
    """Copy results, fill the pages, draw."""
    for name in benchmark_page.FILES if len(sys.argv) > 1 else ():
        shutil.copy(Path(sys.argv[1]) / f"{name}.csv", RESULTS / f"{name}.csv")
    frames = benchmark_page.read(RESULTS)
    parts = benchmark_page.blocks(frames)
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    for drawing in benchmark_page.drawings(frames):
        (IMAGES / f"benchmark-{drawing.name}.svg").write_text(str(drawing.svg), encoding="utf-8")


if __name__ == "__main__":
    main()
