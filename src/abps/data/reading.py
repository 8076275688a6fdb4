"""Tables as people have them: Parquet, Excel, text of whatever separator and encoding, or data in memory.

The bytes of a text file, not its name, decide on separator (comma, semicolon, tab, bar), encoding (UTF-8,
UTF-16 with a mark, Windows-1252) and gzip. Titles above the header are skipped with a warning; lines with too
many or too few cells stop the reading with their number.
"""

import csv
import gzip
import importlib.util
import io
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from abps.core.errors import RequestError

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}

#: Cells that are empty in every column, whatever it holds.
GAPS = ("", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "?")

#: Bytes from the beginning of a file by which its separator is judged.
SAMPLE = 1 << 16

#: Lines above the header that may be titles.
MOST_TITLES = 20

#: Above this size in bytes, a text is not scanned for ragged lines before it is parsed.
SCANNED = 1 << 28

_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SHOWN = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8 with a mark", "cp1252": "Latin-1 (Windows-1252)"}
_EXCEL = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
#: The first bytes of a workbook: a ZIP archive, or Microsoft's older container.
_EXCEL_MARKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")


@dataclass(frozen=True, eq=False)
class RawTable:
    """A file's cells, its form, what is worth a warning, and the line of the file with the first row."""

    frame: pl.DataFrame
    form: str
    warnings: tuple[str, ...] = ()
    first_line: int = 2


def read_raw(path: Path) -> RawTable:
    """A CSV, TSV, Excel or Parquet file as a frame, with the form it was found in."""
    path = Path(path)
    if not path.exists():
        raise RequestError(f"{path}: no such file; check the name of the table")
    if path.is_dir():
        raise RequestError(f"{path} is a folder; give a CSV, Excel or Parquet file")
    if path.stat().st_size == 0:
        raise RequestError(f"{path} is empty; give a table with a header and rows")
    try:
        with path.open("rb") as stream:
            mark = stream.read(4)
        if path.suffix == ".parquet":
            found = RawTable(pl.read_parquet(path), "Parquet")
        else:
            excel = path.suffix.lower() in _EXCEL or mark in _EXCEL_MARKS
            found = _excel(path) if excel else _text(path)
    except (pl.exceptions.PolarsError, OSError, EOFError, UnicodeError, csv.Error) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RequestError(
            f"{path} cannot be read as a table ({first}); give a CSV file (UTF-8 is best) or a Parquet file"
        ) from error
    if found.frame.height == 0:
        raise RequestError(f"{path} has a header and no rows; give a table with rows")
    return found


def _excel(path: Path) -> RawTable:
    if importlib.util.find_spec("fastexcel") is None:
        raise RequestError(
            f"{path} is an Excel workbook; install its reader with `pip install 'abps[excel]'`, or save the "
            "sheet as CSV"
        )
    import fastexcel

    try:
        book = fastexcel.read_excel(path)
        sheet = book.sheet_names[0]
        top = book.load_sheet(0, header_row=None, n_rows=MOST_TITLES + 1, dtypes="string").to_polars()
        rows = [["" if cell is None else str(cell).strip() for cell in row] for row in top.iter_rows()]
        header = _header_row(rows)
        _refuse_twins(rows[header] if rows else [], path)
        frame = book.load_sheet(0, header_row=header).to_polars()
    except fastexcel.FastExcelError as error:
        first = str(error).strip().splitlines()[0]
        raise RequestError(f"{path} cannot be read as a workbook ({first}); save the sheet as CSV") from error
    frame = frame.select(c for c in frame.get_columns() if not c.name.startswith("__UNNAMED__"))
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null())) if frame.width else frame
    warnings = _title_warning(path, [" ".join(filter(None, row)) for row in rows[:header]])
    if len(book.sheet_names) > 1:
        others = ", ".join(repr(name) for name in book.sheet_names[1:4])
        warnings += (f"{path.name}: only the first sheet {sheet!r} is read, not {others}",)
    return RawTable(frame, f"Excel, sheet {sheet!r}", warnings, header + 2)


def _text(path: Path) -> RawTable:
    content = path.read_bytes()
    packed = content[:2] == b"\x1f\x8b"
    if packed:
        content = gzip.decompress(content)
    encoding = encoding_of(content)
    if encoding != "utf-8":
        content = content.decode(encoding).encode("utf-8")
    if b"\x00" in content[:SAMPLE]:
        raise RequestError(f"{path} is no text (it holds zero bytes); give a CSV, Excel or Parquet file")
    first, _, rest = content.partition(b"\n")
    skipped = 0
    if first.strip().lower() in (b"sep=" + s.encode() for s in SEPARATORS):  # as Excel writes it
        content, skipped = rest, 1
    sample = content[:SAMPLE].decode("utf-8", "ignore")
    separator = separator_of(sample)
    lines = [row for row, _ in zip(csv.reader(io.StringIO(sample), delimiter=separator), range(200))]
    titles = _header_row(lines)
    shown = content.split(b"\n", titles)[:titles]
    content = content.split(b"\n", titles)[titles]
    header = lines[titles] if lines else []
    _refuse_twins(header, path)
    _refuse_ragged(content, separator, len(header), path, skipped + titles)
    frame = pl.read_csv(
        content, separator=separator, infer_schema_length=None, null_values=list(GAPS), try_parse_dates=True
    )
    form = f"text, separated by {SEPARATORS[separator]}, {_SHOWN.get(encoding, encoding.upper())}"
    around = " \t\r" + separator
    warnings = _title_warning(path, [line.decode("utf-8", "replace").strip(around) for line in shown])
    return RawTable(frame, form + ", gzip" * packed, warnings, skipped + titles + 2)


def _header_row(rows: Sequence[Sequence[str]]) -> int:
    """The index of the header: the first row, below titles, with about as many filled cells as most rows."""
    widths = Counter(len(row) for row in rows[1:] if any(cell.strip() for cell in row))
    if not widths:
        return 0
    usual = widths.most_common(1)[0][0]
    for k, row in enumerate(rows[: MOST_TITLES + 1]):
        filled = sum(bool(cell.strip()) for cell in row)
        if len(row) in (usual, usual - 1) and filled > 0.5 * len(row) and (filled > 1 or usual == 1):
            # What holds numbers is data: then the first row is a header that does not fit.
            return 0 if any(_is_number(cell) for cell in row) else k
    return 0


def _is_number(cell: str) -> bool:
    try:
        return float(cell.replace(",", ".")) is not None
    except ValueError:
        return False


def _title_warning(path: Path, titles: Sequence[str]) -> tuple[str, ...]:
    said = [title for title in titles if title]
    if not said:
        return ()
    lines = "line 1" if len(titles) == 1 else f"lines 1 to {len(titles)}"
    return (f"{path.name}: {lines} above the header skipped ({said[0][:40]!r})",)


def _refuse_ragged(content: bytes, separator: str, width: int, path: Path, above: int) -> None:
    """Stop at the first line that has not as many cells as the header; above: lines above this content."""
    if len(content) > SCANNED:
        return
    reader = csv.reader(io.StringIO(content.decode("utf-8", "replace")), delimiter=separator)
    lines = ((reader.line_num, len(row)) for row in reader if row)
    line, cells = next((line for line in lines if line[1] != width), (0, width))
    if cells == width:
        return
    name = SEPARATORS[separator]
    if cells > width:
        what = f"put a text with a {name} in it in quotes, or remove the {name}"
    else:
        what = "add the missing cells, or remove the line; a text with a line break needs quotes"
    raise RequestError(f"{path}: line {line + above} has {cells} cells and the header has {width}; {what}")


def encoding_of(content: bytes) -> str:
    """The encoding of a text: by its mark, UTF-8 if it is that, else Windows-1252."""
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return name
    for name in ("utf-8", "cp1252"):
        try:
            content.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return "latin-1"


def separator_of(sample: str) -> str:
    """The separator that cuts most lines into equally many cells, and into the most.

    >>> separator_of("a;b;c\\n1,5;2;3\\n"), separator_of("a,b\\n1,2\\n"), separator_of("only\\n1\\n")
    (';', ',', ',')
    """
    best, most = ",", (0.0, 0)
    for separator in SEPARATORS:
        rows = csv.reader(io.StringIO(sample), delimiter=separator)
        lines = list(itertools.islice((row for row in rows if row), 50))
        lines = lines[:-1] if len(lines) > 2 else lines  # the last may be cut off
        if not lines:
            continue
        width, count = Counter(map(len, lines)).most_common(1)[0]
        if width > 1 and (count / len(lines), width) > most:
            best, most = separator, (count / len(lines), width)
    return best


def _refuse_twins(names: Sequence[str], path: Path) -> None:
    twins = sorted({name for name in names if name and names.count(name) > 1})
    if twins:
        raise RequestError(f"{path}: column {twins[0]!r} occurs {names.count(twins[0])} times; rename one")


# --- tables in memory: pandas, polars, PyArrow, NumPy arrays, or one frame per center ---------------------


def has_parts(data: Mapping[Any, Any]) -> bool:
    """Whether a mapping holds one table per center, and not one column per name."""
    first = next(iter(data.values()), None)
    return _is_frame(first) or getattr(first, "ndim", 1) == 2


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.startswith("pandas.") and getattr(data, "ndim", 0) == 2


def _is_frame(data: Any) -> bool:
    known = isinstance(data, pl.LazyFrame) or hasattr(data, "__arrow_c_stream__")
    return _is_pandas(data) or (known and not isinstance(data, pl.Series) and getattr(data, "ndim", 2) == 2)


def stack(parts: Mapping[Any, Any], feature_names: Sequence[str] | None) -> tuple[pl.DataFrame, str]:
    """One frame of all centers' tables, and the name of the column with the centers."""
    frames = [frame_of(part, feature_names) for part in parts.values()]
    columns = frames[0].columns
    for center, frame in zip(parts, frames):
        odd = sorted({*frame.columns} ^ {*columns})
        if odd:
            raise RequestError(
                f"center {center!r}: the column {odd[0]!r} is not in every center's frame; add it (empty "
                "where unknown) or remove it"
            )
    column = free_name("center", columns)
    whole = pl.concat(
        [frame.select(columns).with_columns(pl.lit(str(c)).alias(column)) for c, frame in zip(parts, frames)],
        how="vertical_relaxed",
    )
    return whole, column


def frame_of(data: Any, feature_names: Sequence[str] | None = None) -> pl.DataFrame:
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, Mapping) or _is_pandas(data):
        return _from_columns([str(name) for name in data], [data[name] for name in data])
    if _is_frame(data):
        return pl.DataFrame(data)
    array = np.asarray(data)
    if array.ndim != 2 or (array.dtype == object and array.size == 0):
        raise RequestError(
            f"data of type {type(data).__name__} and shape {array.shape} is no table; give a frame, or an "
            "array with rows and columns"
        )
    names = [f"x{k + 1}" for k in range(array.shape[1])] if feature_names is None else list(feature_names)
    if len(names) != array.shape[1]:
        raise RequestError(f"feature_names: {len(names)} name(s) for {array.shape[1]} columns; give one each")
    return _from_columns(names, list(array.T))


def _from_columns(names: Sequence[str], columns: Sequence[Any]) -> pl.DataFrame:
    if len(set(names)) < len(names):
        raise RequestError("two columns have the same name; rename one")
    made = [column_of(name, values) for name, values in zip(names, columns)]
    sizes = {len(series) for series in made}
    if len(sizes) > 1:
        raise RequestError(f"columns have different lengths ({min(sizes)} and {max(sizes)}); make them equal")
    return pl.DataFrame(made)


def column_of(name: str, values: Any) -> pl.Series:
    """A column of any library; mixed types become text, and missing values of all kinds become null."""
    if isinstance(values, pl.Series):
        return values.alias(name)
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.ndim != 1:
        raise RequestError(f"the column {name!r} has the shape {array.shape}; give one value per row")
    if array.dtype.kind in "biufM":
        series = pl.Series(name, np.ascontiguousarray(array))
        return series.fill_nan(None) if array.dtype.kind == "f" else series
    cells = [None if _is_missing(value) else value for value in array.tolist()]
    kinds = {type(value) for value in cells if value is not None}
    if len(kinds) < 2 or kinds <= {int, float, bool}:
        try:
            return pl.Series(name, cells, strict=False)
        except (TypeError, ValueError, pl.exceptions.PolarsError):
            pass
    return pl.Series(name, [None if value is None else str(value) for value in cells])


def _is_missing(value: Any) -> bool:
    """None, NaN, pandas' NA and NaT."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and value != value)
    )


def free_name(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
