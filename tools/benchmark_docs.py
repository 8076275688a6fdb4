"""Write the tables and figures of docs/benchmark.md from results: python tools/benchmark_docs.py [FOLDER …].

FOLDER: an --out of ``abps benchmark``; all lines become benchmarks/results. Without one these are read.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import polars as pl

from abps.report.pages import benchmark_page

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, IMAGES = (
    ROOT / "benchmarks" / "results",
    ROOT / "docs" / "benchmark.md",
    ROOT / "docs" / "images",
)

#: A block that results fill: its name, and what stands in it.
BLOCK = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)


def filled(text: str, parts: dict[str, str]) -> str:
    """A page with every block renewed."""
    return BLOCK.sub(lambda found: f"{found[1]}{parts[found['name']]}\n{found[3]}", text)


def main() -> None:
    """Copy results, fill the page, draw."""
    if len(sys.argv) > 1:
        RESULTS.mkdir(parents=True, exist_ok=True)
        given = [benchmark_page.read(Path(folder)) for folder in sys.argv[1:]]
        for name in benchmark_page.FILES:
            found = pl.concat([frames[name] for frames in given if name in frames], how="diagonal_relaxed")
            found.write_csv(RESULTS / f"{name}.csv")
    frames = benchmark_page.read(RESULTS)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), benchmark_page.blocks(frames)), encoding="utf-8")
    for drawing in benchmark_page.drawings(frames):
        (IMAGES / f"benchmark-{drawing.name}.svg").write_text(str(drawing.svg), encoding="utf-8")


if __name__ == "__main__":
    main()
