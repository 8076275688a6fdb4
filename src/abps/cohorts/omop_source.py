"""The tables of an OMOP CDM: a DuckDB database, or a folder of Parquet or CSV files.

Versions 5.3 and 5.4 differ in the names of a few columns; a table is read by the first name that it has.
Times are taken without zone; a time with an offset in a CSV file is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from abps.cohorts.duck import Session, or_refuse, quoted, read_header
from abps.core.errors import RequestError, nearest

#: How times and dates are written in CSV exports. None of them has an offset.
FORMATS = (
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f"),
    *("%Y-%m-%d %H:%M", "%Y-%m-%d"),
)


@dataclass(frozen=True)
class CdmTable:
    """One table: SQL that reads it, its columns in lower case -> as written, and its file."""

    name: str
    sql: str
    columns: dict[str, str]
    path: Path
    text: bool

    def has(self, *names: str) -> bool:
        """Whether it has all of these columns."""
        return all(name in self.columns for name in names)

    def number(self, name: str, kind: str = "BIGINT") -> str:
        """A column as a number; null where the table has none."""
        if name not in self.columns:
            return f"CAST(NULL AS {kind})"
        column = f'"{self.columns[name]}"'
        if not self.text:
            return f"CAST({column} AS {kind})"
        plain = f"nullif(trim({column}), '')"
        tried = f"TRY_CAST({plain} AS DOUBLE)"
        return or_refuse(
            plain,
            f"TRY_CAST({tried} AS BIGINT)" if kind == "BIGINT" else tried,
            kind,
            f"{self.path}, column {name!r}: a value is not a number",
        )

    def word(self, *names: str) -> str:
        """The first of these columns that the table has, as text; null where it has none."""
        found = next((n for n in names if n in self.columns), None)
        if found is None:
            return "CAST(NULL AS VARCHAR)"
        return f"""nullif(trim(CAST("{self.columns[found]}" AS VARCHAR)), '')"""

    def time(self, name: str, date: str) -> str:
        """A moment: the column with the time, or where it is null the one with the day, at midnight."""
        parts = [self._moment(n) for n in (name, date) if n in self.columns]
        return f"coalesce({', '.join(parts)})" if parts else "CAST(NULL AS TIMESTAMP)"

    def _moment(self, name: str) -> str:
        column = f'"{self.columns[name]}"'
        if not self.text:
            return f"CAST({column} AS TIMESTAMP)"
        formats = "[" + ", ".join(quoted(f) for f in FORMATS) + "]"
        plain = f"nullif(trim({column}), '')"
        where = f"{self.path}, column {name!r}: a value is not a time like 2150-01-31 10:00:00 (no offset)"
        return or_refuse(plain, f"try_strptime({plain}, {formats})", "TIMESTAMP", where)


@dataclass(frozen=True)
class Cdm:
    """A place with CDM tables, by lower-case name."""

    place: Path
    tables: dict[str, CdmTable]

    def need(self, name: str, *columns: str) -> CdmTable:
        """A table that must be there, with columns that it must have."""
        table = self.tables.get(name)
        if table is None:
            raise RequestError(
                f"the CDM table {name} is missing in {self.place}{nearest(name, self.tables)}; "
                "it must be there as a table, .parquet, .csv or .csv.gz"
            )
        for column in columns:
            if not table.has(column):
                raise RequestError(
                    f"the CDM table {name} in {self.place} has no column {column!r}"
                    f"{nearest(column, table.columns)}; is it of version 5.3 or 5.4?"
                )
        return table

    def maybe(self, name: str, *columns: str) -> CdmTable | None:
        """The same for a table that may be absent."""
        return self.need(name, *columns) if name in self.tables else None

    @property
    def files(self) -> list[Path]:
        """The files, each once."""
        return sorted({t.path for t in self.tables.values()})


def open_cdm(duck: Session, place: Path, wanted: tuple[str, ...]) -> Cdm:
    """The wanted tables that a database or folder holds."""
    place = Path(place)
    if place.is_dir():
        tables = {name: found for name in wanted if (found := _file(place, name)) is not None}
        if not tables:
            raise RequestError(f"no CDM table (like person.parquet or PERSON.csv) is in {place}")
        return Cdm(place, tables)
    if not place.is_file():
        raise RequestError(f"{place} does not exist; give a DuckDB file or a folder of CDM tables")
    duck.execute(f"ATTACH {quoted(str(place))} AS cdm (READ_ONLY)", "opening the database", (place,))
    listed = duck.frame(
        "SELECT schema_name, table_name, column_name FROM duckdb_columns() WHERE database_name = 'cdm' "
        "ORDER BY table_name, column_index",
        "reading the list of tables",
    )
    tables = {}
    for (schema, table), rows in listed.group_by(["schema_name", "table_name"], maintain_order=True):
        name = str(table).lower()
        if name in wanted:
            columns = {c.lower(): c for c in rows["column_name"]}
            tables[name] = CdmTable(name, f'cdm."{schema}"."{table}"', columns, place, text=False)
    if not tables:
        raise RequestError(f"{place} holds no CDM table (person, visit_occurrence, …)")
    return Cdm(place, tables)


def _file(folder: Path, name: str) -> CdmTable | None:
    """The file of a table: NAME or name with .parquet, .csv.gz or .csv."""
    import polars as pl

    for suffix in (".parquet", ".csv.gz", ".csv"):
        for spelled in (name, name.upper()):
            path = folder / f"{spelled}{suffix}"
            if not path.is_file():
                continue
            if suffix == ".parquet":
                try:
                    columns = list(pl.read_parquet_schema(path))
                except (OSError, pl.exceptions.PolarsError):
                    raise RequestError(f"{path} is not a readable Parquet file; copy it again") from None
                sql = f"read_parquet({quoted(str(path))})"
                return CdmTable(name, sql, {c.lower(): c for c in columns}, path, text=False)
            header = read_header(path)
            declared = ", ".join(f"{quoted(c)}: 'VARCHAR'" for c in header)
            sql = (
                f"read_csv({quoted(str(path))}, header=true, auto_detect=false, delim=',', quote='\"', "
                f"escape='\"', columns={{{declared}}})"
            )
            return CdmTable(name, sql, {c.strip().lower(): c for c in header}, path, text=True)
    return None
