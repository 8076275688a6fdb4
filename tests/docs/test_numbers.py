"""Numbers that README and docs report are those of stored result files.

A table, paragraph or printed block after ``<!-- numbers: benchmarks/results/NAME.csv -->`` may only have
numbers that the file has, to the decimals that are shown; a line of a table whose first cell names lines of
the file, numbers of these lines. Blocks that a tool fills are compared with the results as a whole
(:data:`FILLED`). Elsewhere a page has no measured number: no decimal, percentage, multiple, time or memory
outside of code, and no printed block with decimals.
"""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
NUMBER = re.compile(r"(?<![\w.])([-−+]?(?:\d[\d,]*)?\.?\d+)(?!\w|\.\d)( ?%)?")
MARK = re.compile(r"<!-- numbers: (\S+) -->\n(```(?:.*\n)*?```\n|(?:.+\n)+)")
BLOCK = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)
MEASURED = re.compile(
    r"(?<![\w.,/-])[-−+]?(?:\d[\d,]*)?\.\d+(?![\w.]*\d)"
    r"|(?<![\w.,-])\d[\d.,]* ?(?:%|×|(?:ms|s|min|minutes?|seconds?|kB|MB|GB)\b)"
    r"|\b(?:half a|about an?|two|three) (?:second|minute)s?\b"
)

#: Numbers that nothing measured: levels of confidence and error, versions of Python, sections of papers,
#: divisions of patients, and limits that the program sets.
GIVEN = re.compile(
    r"(?<!\d)(?:95|5) %|3\.1[1-3]|Sec\. \d\.\d|less than \.3 s|\bv\d\.\d|CDM 5\.3 or 5\.4"
    r"|70 % of a center|15 % for (?:validation|test)"
    r"|64 MB|limit of 2 GB|within (?:5|10) s|in 20 seconds|the others get 300 s"
)

#: Blocks that a tool fills, and the test that compares them (sizes of packages: the tool that counts them).
FILLED = {
    "time real generated methods settled sizes anatomy spread claims": "tests/lab/test_benchmark_docs.py",
    "coverage overall chances": "tests/evaluate/test_inference_coverage.py",
    "packages": "tools/architecture.py",
}


def marked():
    for page in PAGES:
        for number, found in enumerate(MARK.finditer(page.read_text() + "\n")):
            yield pytest.param(found[1], found[2], id=f"{page.name}-{number}")


def shown(text: str) -> list[tuple[float, int, bool]]:
    """Numbers of a text, each with its decimals and whether it is per cent."""
    found = []
    for number, percent in NUMBER.findall(text):
        plain = number.replace("−", "-").replace(",", "").replace("+", "")
        found.append((float(plain), len(plain.partition(".")[2]), bool(percent)))
    return found


def plain(cell: str) -> str:
    return cell.replace("`", "").replace("*", "").strip()


def parts(text: str) -> list[tuple[str, str]]:
    """Pieces of a marked part, each with its name: lines of a table by their first cells, or everything."""
    lines = [line for line in text.splitlines() if not set(line) <= set("|-: ")]
    if not lines[0].startswith("|"):
        return [("", text if text.startswith("```") else CODE.sub("", text))]
    rows = [line.split("|") for line in lines[1:]]  # a table: neither its head nor the first column
    return [(plain(row[1]), CODE.sub("", "|".join(row[2:]))) for row in rows]


def stands_in(number: tuple[float, int, bool], stored: list[tuple[float, int, bool]]) -> bool:
    value, decimals, percent = number
    scales = (1.0, 100.0) if percent else (1.0,)
    near = 0.51 * 10.0**-decimals * 1e-3 + 1e-12
    return any(abs(round(s * scale, decimals) - value) < near for s, _, _ in stored for scale in scales)


def unchecked(text: str) -> list[str]:
    """Measured numbers of a page outside of code, marked parts and filled blocks."""
    for pattern in (BLOCK, MARK):
        text = pattern.sub("", text + "\n")
    blocks = [
        block for language, block in FENCE.findall(text) if language in ("", "text") and ">>>" not in block
    ]
    printed = [
        line
        for block in blocks
        for line in block.splitlines()
        if not re.match("abps|python|--", line.strip())
    ]
    found = [line for line in printed if re.search(r"(?<!\S)[-−+]?\d*\.\d+(?!\S)", line)]
    return found + MEASURED.findall(GIVEN.sub("", CODE.sub("", text)))


def test_there_are_tables_to_check():
    assert list(marked())


@pytest.mark.parametrize(("file", "part"), list(marked()))
def test_a_marked_part_has_the_numbers_of_its_file(file, part):
    text = (ROOT / file).read_text()
    lines = list(csv.reader(text.splitlines())) if file.endswith(".csv") else [text.splitlines()]
    checked = 0
    for name, text in parts(part):
        own = [line for line in lines if name and name in map(plain, line)]
        stored = [number for line in own or lines for cell in line for number in shown(cell)]
        for number in shown(text):
            assert stands_in(number, stored), f"{name}: {number[0]} is not in {file}"
            checked += 1
    assert checked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_report_no_number_without_a_source(page):
    assert unchecked(page.read_text()) == []


def test_every_filled_block_has_a_test():
    known = " ".join(FILLED).split()
    assert all((ROOT / file).exists() for file in FILLED.values())
    for page in PAGES:
        assert {found["name"] for found in BLOCK.finditer(page.read_text())} <= set(known), page.name


def test_a_number_without_a_source_is_found():
    text = (
        "AUROC `0.1` rises by .012 (95 %)\n<!-- a -->\n.7\n<!-- /a -->\n12 % of 15 % in 4 s,"
        " half a minute\n\n"
        "```\n.3\n```\n<!-- numbers: a.csv -->\n.5 and\n.6\n\n.8 Python 3.11\n"
    )
    assert unchecked(text) == [".3", ".012", "12 %", "15 %", "4 s", "half a minute", ".8"]
