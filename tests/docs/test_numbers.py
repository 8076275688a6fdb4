"""Numbers that README and docs report are those of stored result files.

A table or paragraph after ``<!-- numbers: benchmarks/results/NAME.csv -->`` may only have numbers that the
file has, to the decimals that are shown. Blocks that ``tools/benchmark_docs.py`` fills are compared with the
results as a whole (``tests/lab/test_benchmark_docs.py``). Elsewhere a page has no measured number: no
decimal, percentage or multiple outside of code, except in the pages that are listed as open.
"""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
NUMBER = re.compile(r"(?<![\w.])[-−+]?(?:\d[\d,]*)?\.?\d+(?!\w|\.\d)")
MARK = re.compile(r"<!-- numbers: (\S+) -->\n((?:.*\n)*?)(?=\n\n|\n#|\Z)")
BLOCK = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)
MEASURED = re.compile(r"(?<![\w.,/-])[-−+]?(?:\d[\d,]*)?\.\d+(?![\w.]*\d)|\d[\d.,]* ?%|\d[\d.,]* ?×")

#: Numbers that nothing measured: confidence and error levels, versions of Python, sections of papers.
GIVEN = re.compile(r"95 %|5 %|3\.1[1-3]|4\.1|6\.5|less than \.3 s")

#: Pages whose numbers have commands beside them and are not yet held to a stored file.
OPEN = {"cohorts", "install", "paper", "privacy"}


def marked():
    for page in PAGES:
        for number, found in enumerate(MARK.finditer(page.read_text() + "\n")):
            yield pytest.param(found[1], found[2], id=f"{page.name}-{number}")


def shown(text: str) -> list[tuple[float, int]]:
    """Numbers of a text, each with its decimals."""
    found = []
    for number in NUMBER.findall(text):
        plain = number.replace("−", "-").replace(",", "").replace("+", "")
        found.append((float(plain), len(plain.partition(".")[2])))
    return found


def unchecked(text: str) -> list[str]:
    """Measured numbers of a page outside of code, marked parts and filled blocks."""
    for pattern in (BLOCK, MARK, CODE):
        text = pattern.sub("", text + "\n")
    return MEASURED.findall(GIVEN.sub("", text))


def test_there_are_tables_to_check():
    assert list(marked())


@pytest.mark.parametrize(("file", "part"), list(marked()))
def test_a_marked_part_has_the_numbers_of_its_file(file, part):
    with (ROOT / file).open(newline="") as stream:
        stored = [number for row in csv.reader(stream) for cell in row for number, _ in shown(cell)]
    lines = [line for line in part.splitlines() if not set(line) <= set("|-: ")]
    if lines[0].startswith("|"):  # a table: neither its head nor the first column
        lines = ["|".join(line.split("|")[2:]) for line in lines[1:]]
    numbers = [each for line in lines for each in shown(CODE.sub("", line))]
    assert numbers
    for value, decimals in numbers:
        close = any(abs(round(s, decimals) - value) < 0.51 * 10.0**-decimals * 1e-3 + 1e-12 for s in stored)
        assert close, f"{value} is not in {file}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem not in OPEN], ids=lambda page: page.stem
)
def test_pages_report_no_number_without_a_source(page):
    assert unchecked(page.read_text()) == []


def test_a_number_without_a_source_is_found():
    text = (
        "AUROC `0.1` rises by .012 (95 %)\n<!-- a -->\n.7\n<!-- /a -->\n12 % of\n\n```\n.3\n```\nPython 3.11"
    )
    assert unchecked(text) == [".012", "12 %"]
