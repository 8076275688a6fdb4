"""A cohort: one tidy row per stay, with the flow of exclusions, the meaning of every column, and the source
files it was made from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import polars as pl

from abps import files
from abps.cohorts.duck import Progress, silent
from abps.core.errors import RequestError
from abps.data.roles import PROVENANCE_KEY, Roles


@cache
def shipped(name: str) -> Any:
    """A table of the package: codes, concepts, item numbers and plausible ranges."""
    return json.loads(resources.files("abps.cohorts").joinpath(f"tables/{name}.json").read_text("utf-8"))


@dataclass(frozen=True)
class Variable:
    """One line of the data dictionary. role: label, identifier, context (never a feature) or feature."""

    name: str
    role: str
    unit: str
    meaning: str


def variables(text: str) -> list[Variable]:
    """A data dictionary from lines of ``name | role | unit | meaning``."""
    lines = (line.split("|") for line in text.strip().splitlines())
    return [Variable(*(cell.strip() for cell in line)) for line in lines]


@dataclass(frozen=True)
class Step:
    """One box of the flow diagram: who is in after it, and who was left out by it."""

    label: str
    stays: int
    patients: int | None
    positives: int
    left_out: int = 0


@dataclass(frozen=True, eq=False)
class Flow:
    """A table on its way to a cohort, with one step per exclusion.  label: the column of 0 and 1 to count."""

    table: pl.DataFrame
    label: str
    patient: str | None
    steps: tuple[Step, ...] = ()

    @staticmethod
    def start(table: pl.DataFrame, what: str, label: str = "died", patient: str | None = "patient") -> Flow:
        return Flow(table, label, patient)._after(what, 0)

    def keep(self, condition: pl.Expr, why_out: str, always: bool = True) -> Flow:
        """Keep the rows where the condition is true (null is not). ``always``: a step even if none goes."""
        kept = self.table.filter(condition)
        left_out = self.table.height - kept.height
        if not left_out and not always:
            return self
        return replace(self, table=kept)._after(why_out, left_out)

    def _after(self, label: str, left_out: int) -> Flow:
        patients = self.table[self.patient].n_unique() if self.patient else None
        step = Step(label, self.table.height, patients, int(self.table[self.label].sum()), left_out)
        return replace(self, steps=(*self.steps, step))


@dataclass(frozen=True, eq=False)
class Cohort:
    """A finished cohort.  source: the recipe's name.  recipe: its version, which changes whenever the same
    files would give another table.  files: in the order of reading.  facts: counts worth keeping."""

    source: str
    recipe: str
    table: pl.DataFrame
    roles: Roles
    steps: tuple[Step, ...]
    dictionary: tuple[Variable, ...]
    files: tuple[Any, ...]
    options: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        described = [column.name for column in self.dictionary]
        if described != self.table.columns:  # a column without a meaning must never leave the house
            raise AssertionError(f"dictionary {described} and table {self.table.columns} differ")
        if self.table.height == 0:
            last = "; ".join(f"{s.label}: {s.left_out} out" for s in self.steps[1:])
            raise RequestError(f"no stay is left in the {self.source} cohort ({last}); relax the filters")


def race_group(column: str) -> pl.Expr:
    """Five groups from the text of the source; null where it was not recorded.

    The first that applies: HISPANIC or LATINO or SOUTH AMERICAN; WHITE or CAUCASIAN; BLACK or AFRICAN;
    ASIAN; not recorded (UNKNOWN, UNABLE TO OBTAIN, DECLINED, empty); everything else is OTHER.
    """
    text = pl.col(column).str.to_uppercase()
    group: pl.Expr = pl.lit("OTHER")
    for words, name in (
        ("ASIAN", "ASIAN"),
        ("BLACK|AFRICAN", "BLACK"),
        ("WHITE|CAUCASIAN", "WHITE"),
        ("HISPANIC|LATINO|SOUTH AMERICAN", "HISPANIC"),
        (r"^\s*$|UNKNOWN|UNABLE TO OBTAIN|DECLINED", None),
    ):
        group = pl.when(text.str.contains(words)).then(pl.lit(name)).otherwise(group)
    return pl.when(text.is_not_null()).then(group)


def fractional_year(column: str) -> pl.Expr:
    """A moment as a year with its fraction: 2150-07-02 12:00 is 2150.5."""
    moment = pl.col(column)
    start = pl.datetime(moment.dt.year(), 1, 1)
    following = pl.datetime(moment.dt.year() + 1, 1, 1)
    share = (moment - start).dt.total_seconds() / (following - start).dt.total_seconds()
    return moment.dt.year() + share


def in_order(table: pl.DataFrame, dictionary: Sequence[Variable], by: str = "stay") -> pl.DataFrame:
    """The table with the dictionary's columns in its order, rows by stay."""
    return table.sort(by).select([column.name for column in dictionary])


# --- provenance: what is written beside the table -----------------------------------------------


@dataclass(frozen=True)
class SourceFile:
    name: str
    bytes: int
    sha256: str


def describe_files(paths: Iterable[Path], root: Path, progress: Progress = silent) -> tuple[SourceFile, ...]:
    paths = list(paths)
    sizes = [path.stat().st_size for path in paths]
    described = []
    for k, path in enumerate(paths):
        progress("fingerprinting the source files", sum(sizes[:k]) / (sum(sizes) or 1))
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        described.append(SourceFile(name, sizes[k], digest.hexdigest()))
    return tuple(described)


def versions() -> dict[str, str]:
    return {package: metadata.version(package) for package in ("abps", "polars", "duckdb")}


def of_cohort(cohort: Cohort) -> dict[str, Any]:
    return {
        "schema": "abps.cohort/1",
        "source": cohort.source,
        "recipe": cohort.recipe,
        "options": cohort.options,
        "rows": cohort.table.height,
        "roles": {k: v for k, v in asdict(cohort.roles).items() if v},
        "files": [asdict(f) for f in cohort.files],
        "flow": [asdict(step) for step in cohort.steps],
        "facts": cohort.facts,
        "warnings": list(cohort.warnings),
        "columns": [asdict(column) for column in cohort.dictionary],
        "versions": versions(),
    }


def write_table(table: pl.DataFrame, provenance: dict[str, Any], out: Path) -> None:
    """Write a Parquet file whole, with its provenance inside and, for people, beside it."""
    text = json.dumps(provenance, ensure_ascii=False)
    files.write_with(out, lambda part: table.write_parquet(part, metadata={PROVENANCE_KEY: text}))
    files.write_json(out.with_suffix(".provenance.json"), provenance)


def check_out(out: Path) -> Path:
    """A path that a Parquet table can be written to; asked before the work, not after it."""
    out = Path(out)
    if out.suffix != ".parquet":
        raise RequestError(f"out={out} must end in .parquet (the cohort is one Parquet table)")
    if out.is_dir():
        raise RequestError(f"out={out} is a folder; give a file name that ends in .parquet")
    files.folder(out.parent)
    return out


def positives_word(label: str) -> str:
    """What a positive label is called in tables: deaths, where the label is death."""
    return "deaths" if label == "died" else f"{label} = 1"
