"""DuckDB as a bounded pipe: CSV of any size in, small typed tables out.

Tables are found by name and read by the names of their columns. A failure of the files becomes one sentence:
the file, line and column, never what a patient's row says. Times are wall-clock times without an offset; a
time with an offset is refused, because releases of DuckDB disagree about what it means.
"""

import csv
import errno
import gzip
import os
import re
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from abps.core.errors import RequestError, nearest
from abps.files import write_with

#: Called with what is being done and the share of it that is done (0 to 1).
Progress = Callable[[str, float], None]

#: What DuckDB may hold in memory; beyond it spills to the temporary folder.
MEMORY_LIMIT = "2GB"
THREADS = 2

#: How a time reads in the clinical releases; anything else (an offset above all) is an error.
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def silent(_what: str, _share: float) -> None:
    """The progress callback that shows nothing."""


@dataclass(frozen=True)
class CsvTable:
    """One source table: its name in the distribution, where it is, and its columns as written there."""

    name: str
    path: Path
    columns: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.strip().lower() for column in self.columns)

    def scan(self, types: Mapping[str, str]) -> str:
        """SQL that reads the columns in ``types`` (name in lower case -> SQL type). A value that is not of
        its type is an error, not a null."""
        declared = ", ".join(
            f"{quoted(column)}: {quoted(types.get(column.strip().lower(), 'VARCHAR'))}"
            for column in self.columns
        )
        wanted = ", ".join(
            f'"{column}" AS "{column.strip().lower()}"'
            for column in self.columns
            if column.strip().lower() in types
        )
        return (
            f"(SELECT {wanted} FROM read_csv({quoted(str(self.path))}, header=true, auto_detect=false, "
            f"delim=',', quote='\"', escape='\"', timestampformat={quoted(TIME_FORMAT)}, "
            f"columns={{{declared}}}))"
        )


#: Stands before what :func:`or_refuse` has to say.
UNFIT = "a value does not fit: "


def or_refuse(value: str, tried: str, kind: str, where: str) -> str:
    """SQL of ``tried``; where it is null although the value is not, the query ends with ``where``."""
    refused = f"CAST(error({quoted(UNFIT + where)}) AS {kind})"
    return f"coalesce({tried}, CASE WHEN {value} IS NOT NULL THEN {refused} END)"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def find_table(root: Path, name: str) -> Path | None:
    """``root/name.csv.gz`` or ``root/name.csv``, the compressed one first; None if neither is there."""
    for suffix in (".csv.gz", ".csv"):
        path = root / f"{name}{suffix}"
        if path.is_file():
            return path
    return None


def folder_of(root: Path, needs: str, what: str) -> Path:
    """``root`` if it holds the table ``needs``; otherwise a sentence, with the folder that does hold it."""
    root = Path(root)
    if not root.exists():
        raise RequestError(f"{root} does not exist; give the folder of {what}")
    if not root.is_dir():
        raise RequestError(f"{root} is a file; give the folder of {what} that contains {needs}.csv.gz")
    if find_table(root, needs) is None:
        inner = [p for suffix in (".csv.gz", ".csv") for p in sorted(root.glob(f"**/{needs}{suffix}"))[:1]]
        if inner:
            better = inner[0]
            for _ in Path(needs).parts:
                better = better.parent
            raise RequestError(f"{needs}.csv.gz is not in {root} but in {better}; give that folder")
    return root


def open_table(root: Path, name: str, columns: tuple[str, ...]) -> CsvTable:
    table = open_optional(root, name, columns)
    if table is None:
        present = sorted(p.name for p in (root / name).parent.glob("*.csv*"))
        close = nearest(Path(name).name + ".csv.gz", present)
        raise RequestError(
            f"the table {name}.csv.gz (or .csv) is missing in {root}{close}; "
            "download it from the same release"
        )
    return table


def open_optional(root: Path, name: str, columns: tuple[str, ...]) -> CsvTable | None:
    """A table with the columns that it must have; None where it is absent."""
    path = find_table(root, name)
    if path is None:
        return None
    header = read_header(path)
    known = [column.strip().lower() for column in header]
    for column in columns:
        if column not in known:
            raise RequestError(
                f"{path} has no column {column!r}{nearest(column, known)}; it has {', '.join(known)} "
                "(was it renamed or saved by another program? use the file as distributed)"
            )
    return CsvTable(name, path, header)


def open_inputs(root: Path, tables: Mapping[str, tuple[str, tuple[str, ...]]]) -> dict[str, CsvTable]:
    """The tables that are there, by input.  tables: input -> name, and the columns that it needs."""
    opened = {name: open_optional(root, table, columns) for name, (table, columns) in tables.items()}
    return {name: table for name, table in opened.items() if table is not None}


def read_header(path: Path) -> tuple[str, ...]:
    """The column names in the first line of a CSV file, compressed or not; each has its own."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", newline="")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig", newline="") as lines
        ):
            header = next(csv.reader(lines), [])
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise RequestError(_broken(path)) from None
    except UnicodeDecodeError:
        raise RequestError(f"{path} is not text in UTF-8; use the file as distributed") from None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from None
    if not header:
        raise RequestError(f"{path} is empty; download it again")
    known = [column.strip().lower() for column in header]
    if "" in known or len(set(known)) < len(known):
        what = "without a name" if "" in known else "with the name of another one"
        raise RequestError(
            f"{path} has a column {what} (was it saved by another program?); use the file as distributed"
        )
    return tuple(header)


def _whole(path: Path) -> bool:
    """Whether a gzip file can be unpacked to its end; other files are not looked at."""
    if path.suffix != ".gz":
        return True
    try:
        with gzip.open(path) as stream:
            while stream.read(1 << 22):
                pass
    except (EOFError, zlib.error, OSError):
        return False
    return True


def _broken(path: Path | str) -> str:
    return (
        f"{path} is cut off or damaged (its gzip data end early); download it again "
        "and compare it with SHA256SUMS.txt"
    )


class DuckSession:
    """One DuckDB connection with bounded memory, and its temporary folder. Made by :func:`session`."""

    def __init__(self, temporary: Path, progress: Progress) -> None:
        import duckdb  # which takes a while, and few commands need

        self._duckdb = duckdb
        self._folder = temporary
        self._progress = progress
        self._frames = 0
        self._connection = self._duckdb.connect(":memory:")
        for setting in (
            f"SET memory_limit = '{MEMORY_LIMIT}'",
            f"SET threads = {THREADS}",
            "SET TimeZone = 'UTC'",
            f"SET temp_directory = {quoted(str(temporary / 'spill'))}",
            "SET preserve_insertion_order = false",
            "SET enable_progress_bar = true",  # without it the connection does not measure progress
            "SET enable_progress_bar_print = false",
        ):
            self._connection.execute(setting)

    def close(self) -> None:
        self._connection.close()

    def execute(self, sql: str, what: str, files: tuple[Path, ...] = ()) -> None:
        """Run a statement that may take long; ``files`` are those it reads, for the message if it fails."""
        failure: list[BaseException] = []

        def work() -> None:
            try:
                self._connection.execute(sql)
            except BaseException as error:
                failure.append(error)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        self._progress(what, 0.0)
        measured = getattr(self._connection, "query_progress", None)  # not in every release
        try:
            while worker.is_alive():
                worker.join(0.1)
                done = measured() if measured else -1.0
                if 0 <= done <= 100:
                    self._progress(what, done / 100)
        except KeyboardInterrupt:
            self._connection.interrupt()
            worker.join()
            raise
        if failure:
            raise self._sentence(failure[0], files) from failure[0]
        self._progress(what, 1.0)

    def frame(self, sql: str, what: str, files: tuple[Path, ...] = ()) -> pl.DataFrame:
        """The result of a query as a frame (through a Parquet file: no other library is needed)."""
        self._frames += 1
        path = self._folder / f"frame-{self._frames}.parquet"
        self.execute(f"COPY ({sql}) TO {quoted(str(path))} (FORMAT parquet)", what, files)
        frame = pl.read_parquet(path)
        path.unlink()
        return frame

    def spool(self, sql: str, name: str, what: str, files: tuple[Path, ...] = ()) -> str:
        """The result of a query kept in a temporary file, in bounded memory: SQL that reads it."""
        path = self._folder / f"spool-{name}.parquet"
        self.execute(f"COPY ({sql}) TO {quoted(str(path))} (FORMAT parquet, COMPRESSION zstd)", what, files)
        return f"read_parquet({quoted(str(path))})"

    def table(self, name: str, frame: pl.DataFrame) -> None:
        path = self._folder / f"{name}.parquet"
        write_with(path, frame.write_parquet)
        self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS FROM read_parquet({quoted(str(path))})")
        path.unlink()

    def _sentence(self, error: BaseException, files: tuple[Path, ...]) -> BaseException:
        """The user's sentence for a DuckDB error about the data; other errors as they are."""
        text = " ".join(str(error).split())
        _, unfit, where = text.partition(UNFIT)
        if unfit:
            return RequestError(f"{where}; use the file as distributed")
        some = f" and {len(files) - 3} more" if len(files) > 4 else ""
        names = " and ".join(str(f) for f in (files[:3] if some else files)) + some or "the source"
        if "GZIP" in text.upper() or "gzip" in text:
            hit = next((f for f in files if str(f) in text), None)
            return RequestError(_broken(hit or names))
        full = os.strerror(errno.ENOSPC) in text or os.strerror(errno.EFBIG) in text
        if full or isinstance(error, self._duckdb.OutOfMemoryException):
            return RequestError(
                f"the working set does not fit in {MEMORY_LIMIT} and {self._folder} is full or not writable; "
                "set TMPDIR to a folder with more room"
            )
        expected = (
            self._duckdb.InvalidInputException,
            self._duckdb.ConversionException,
            self._duckdb.IOException,
        )
        cut = next((f for f in files if isinstance(error, expected) and not _whole(f)), None)
        if cut:  # older releases of DuckDB see a short last line and no more
            return RequestError(_broken(cut))
        # what DuckDB has no word of its own for: damage within a Parquet file
        if isinstance(error, expected) or type(error) is self._duckdb.Error:
            return RequestError(
                f"{names} cannot be read: {_what_is_wrong(text)}; use the file as distributed"
            )
        return error


@contextmanager
def session(progress: Progress = silent) -> Iterator[DuckSession]:
    with tempfile.TemporaryDirectory(prefix="abps-cohort-") as temporary:
        opened = DuckSession(Path(temporary), progress)
        try:
            yield opened
        finally:
            opened.close()


def _what_is_wrong(text: str) -> str:
    """DuckDB's complaint without the row that it quotes: a patient's values belong in no terminal or log.

    >>> _what_is_wrong('CSV Error on Line: 7 Original Line: 1,x Error when converting column "dod". Could '
    ...                "not convert string \\"x\\" to 'DATE'")
    "line 7, column 'dod': the value is not of the type DATE"
    """
    line = re.search(r"on Line:\s*(\d+)", text)
    column = re.search(r'converting column "([^"]+)"', text)
    wanted = re.search(r"to '([A-Z ]+)'", text)
    where = f"line {line[1]}" if line else "some line"
    if column:
        kind = wanted[1] if wanted else "expected"
        hint = " (a time reads like 2150-01-31 10:00:00, without an offset)" if "TIME" in kind else ""
        return f"{where}, column {column[1]!r}: the value is not of the type {kind}{hint}"
    count = re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", text)
    if count:
        return f"{where} has {count[2]} columns instead of {count[1]}"
    known = ("quote", "unterminated", "utf-8", "unicode", "maximum line size")
    hit = next((word for word in known if word in text.lower()), None)
    if line:
        return f"{where} is not a line of the table" + (f" ({hit})" if hit else "")
    return f"it is not the table that it should be ({text.split(':')[0]})"


def as_list(values: tuple[Any, ...]) -> str:
    return "[" + ", ".join(quoted(v) if isinstance(v, str) else str(v) for v in values) + "]"


def numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
