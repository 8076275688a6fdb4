"""Write the table of packages in docs/architecture.md: modules, lines, and each package's own sentence.

python tools/architecture.py          update the page
python tools/architecture.py --check  say whether it is up to date (exit 1 if not)
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- packages -->", "<!-- /packages -->"

#: From the top: each may import what stands below it.
ORDER = (
    "cli", "app", "report", "lab", "study", "checks", "fitted", "sites", "engine", "methods", "models",
    "cohorts",
    "data", "statistics", "privacy", "wire", "evaluate", "core",
)  # fmt: skip


def table() -> str:
    """The packages as a Markdown table."""
    rows = ["| package | modules | lines | its job |", "|---|---|---|---|"]
    modules = lines = 0
    for name in ORDER:
        folder = ROOT / "src" / "abps" / name
        if not folder.exists():
            continue
        files = sorted(folder.rglob("*.py"))
        count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        own = [path for path in files if path.name != "__init__.py"]
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        job = (ast.get_docstring(tree) or "").split("\n")[0]
        rows.append(f"| `{name}` | {len(own)} | {count:,} | {job} |")
        modules, lines = modules + len(own), lines + count
    top = [path for path in (ROOT / "src" / "abps").glob("*.py") if not path.name.startswith("__")]
    rest = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in top)
    names = ", ".join(f"`{path.stem}`" for path in sorted(top))
    rows.append(f"| (beside them) | {len(top)} | {rest:,} | What all use: {names}. |")
    rows.append(f"| **all** | {modules + len(top)} | {lines + rest:,} | |")
    return "\n".join(rows)


def main() -> int:
    """Update or check the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "--check" in sys.argv:
        return 0 if new == text else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
