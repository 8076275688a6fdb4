"""Files as people have them: Parquet, or text with its separator and its encoding recognised.

A text file may separate its cells by comma, semicolon, tab or bar, be written as UTF-8 (with or without
a byte order mark), UTF-16 or Latin-1 (as Windows writes it), and be compressed with gzip. Which of them
it is follows from its bytes, not from its name.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from abps.core.errors import RequestError

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}

#: Cells that are empty in every column, whatever it holds.
GAPS = ("", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "?")

#: Bytes from the beginning of a file by which separator and encoding without a mark are judged.
SAMPLE = 1 << 16

_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SHOWN = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8 with a mark", "cp1252": "Latin-1 (Windows-1252)"}


@dataclass(frozen=True, eq=False)
class RawTable:
    """A file's cells, and how they were found in it."""

    frame: pl.DataFrame
    form: str


def read_raw(path: Path) -> RawTable:
    """A CSV, TSV or Parquet file as a frame, with the form it was found in."""
    path = Path(path)
    if not path.exists():
        raise RequestError(f"{path}: no such file; check the name of the table")
    if path.is_dir():
        raise RequestError(f"{path} is a folder; give a CSV or Parquet file")
    if path.stat().st_size == 0:
        raise RequestError(f"{path} is empty; give a table with a header and rows")
    try:
        found = _parquet(path) if path.suffix == ".parquet" else _text(path)
    except RequestError:
        raise
    except (pl.exceptions.PolarsError, OSError, EOFError, UnicodeError, csv.Error) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RequestError(
            f"{path} cannot be read as a table ({first}); give a CSV file (UTF-8 is best) or a Parquet file"
        ) from error
    if found.frame.height == 0:
        raise RequestError(f"{path} has a header and no rows; give a table with rows")
    return found


def _parquet(path: Path) -> RawTable:
    return RawTable(pl.read_parquet(path), "Parquet")


def _text(path: Path) -> RawTable:
    content = path.read_bytes()
    packed = content[:2] == b"\x1f\x8b"
    if packed:
        content = gzip.decompress(content)
    encoding = encoding_of(content)
    if encoding != "utf-8":
        content = content.decode(encoding).encode("utf-8")
    if b"\x00" in content[:SAMPLE]:
        raise RequestError(f"{path} is no text (it holds zero bytes); give a CSV or Parquet file")
    first, _, rest = content.partition(b"\n")
    if first.strip().lower() in (b"sep=" + s.encode() for s in SEPARATORS):  # as Excel writes it
        content = rest
    separator = separator_of(content[:SAMPLE].decode("utf-8", "ignore"))
    header = pl.read_csv(content, separator=separator, has_header=False, n_rows=1, infer_schema=False)
    _no_twins([str(v) for v in header.row(0)], path)
    frame = pl.read_csv(
        content,
        separator=separator,
        infer_schema_length=None,
        null_values=list(GAPS),
        try_parse_dates=True,
    )
    shown = _SHOWN.get(encoding, encoding.upper())
    return RawTable(frame, f"text, separated by {SEPARATORS[separator]}, {shown}{', gzip' * packed}")


def encoding_of(content: bytes) -> str:
    """The encoding of a text: by its mark, by its zero bytes, UTF-8 if it is that, else Windows' Latin-1."""
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return name
    sample = content[:SAMPLE]
    for name, zeros in (("utf-16-le", sample[1::2]), ("utf-16-be", sample[0::2])):
        if len(zeros) and zeros.count(0) > 0.4 * len(zeros):
            return name
    return next((name for name in ("utf-8", "cp1252") if _is(content, name)), "latin-1")


def _is(content: bytes, encoding: str) -> bool:
    """Whether bytes are a text in an encoding; looked at piece by piece, since a table may be large."""
    decoder = codecs.getincrementaldecoder(encoding)()
    step = 1 << 22
    try:
        for at in range(0, len(content), step):
            decoder.decode(content[at : at + step], final=at + step >= len(content))
    except UnicodeDecodeError:
        return False
    return True


def separator_of(sample: str) -> str:
    """The separator that cuts the first lines into the most cells, equally many in each.

    >>> separator_of("a;b;c\\n1,5;2;3\\n"), separator_of("a,b\\n1,2\\n"), separator_of("only\\n1\\n")
    (';', ',', ',')
    """
    best, most = ",", (0.0, 0)
    for separator in SEPARATORS:
        lines = [row for row in csv.reader(io.StringIO(sample), delimiter=separator) if row][:50]
        if len(lines) > 2:
            lines = lines[:-1]  # the last may be cut off
        if not lines or len(lines[0]) < 2:
            continue
        width = len(lines[0])
        even = sum(len(row) == width for row in lines) / len(lines)
        if (even, width) > most:
            best, most = separator, (even, width)
    return best


def _no_twins(names: list[str], path: Path) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise RequestError(
            f"{path}: the column name {twins[0]!r} occurs {names.count(twins[0])} times; rename one"
        )
