"""Tables of results in README and docs hold the numbers of stored result files.

A table after ``<!-- numbers: benchmarks/results/NAME.csv -->`` may only have numbers that the file has,
to the decimals that the table shows.
"""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"(?<![\w.])[-−+]?(?:\d[\d,]*)?\.?\d+(?![\w.])")
MARK = re.compile(r"<!-- numbers: (\S+) -->\n((?:.*\n)*?)(?=\n\n|\n#|\Z)")


def marked():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, found in enumerate(MARK.finditer(page.read_text() + "\n")):
            yield pytest.param(found[1], found[2], id=f"{page.name}-{number}")


def shown(cell: str) -> list[tuple[float, int]]:
    """Numbers of a cell, each with its decimals."""
    found = []
    for text in NUMBER.findall(cell):
        plain = text.replace("−", "-").replace(",", "").replace("+", "")
        found.append((float(plain), len(plain.partition(".")[2])))
    return found


def test_there_are_tables_to_check():
    assert list(marked())


@pytest.mark.parametrize(("file", "table"), list(marked()))
def test_a_table_has_the_numbers_of_its_file(file, table):
    with (ROOT / file).open(newline="") as stream:
        stored = []
        for row in csv.reader(stream):
            for cell in row:
                try:
                    stored.append(float(cell))
                except ValueError:
                    continue
    lines = [line for line in table.splitlines() if line.startswith("|") and not set(line) <= set("|-: ")]
    assert len(lines) > 1
    checked = 0
    for line in lines[1:]:
        for value, decimals in (each for cell in line.split("|")[2:] for each in shown(cell)):
            close = any(
                abs(round(s, decimals) - value) < 0.51 * 10.0**-decimals * 1e-3 + 1e-12 for s in stored
            )
            assert close, f"{value} of {line!r} is not in {file}"
            checked += 1
    assert checked
