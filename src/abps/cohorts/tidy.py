"""A cohort: one tidy row per stay, with how it came to be.

The table alone is not a cohort. With it go the flow of exclusions (who was left out, why, how many),
the meaning of every column, and the source files it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from abps.cohorts import charlson, vitals
from abps.core.errors import RequestError
from abps.data.synthetic.builtin import Roles


@dataclass(frozen=True)
class Variable:
    """One line of the data dictionary. role: label, identifier, context (never a feature) or feature."""

    name: str
    role: str
    unit: str
    meaning: str


#: The former name of :class:`Variable`, for recipes of your own, until the next release.
Column = Variable


@dataclass(frozen=True)
class Step:
    """One box of the flow diagram: who is in after it, and who was left out by it.

    positives: rows with label 1; None where the label is not yes or no.
    """

    label: str
    stays: int
    patients: int | None
    positives: int | None
    left_out: int = 0


@dataclass(frozen=True, eq=False)
class Flow:
    """A table on its way to a cohort, and the steps so far. Every step is one exclusion, with counts.

    label: the column of 0 and 1 to count; empty where the label is not yes or no.
    """

    table: pl.DataFrame
    label: str
    patient: str | None
    steps: tuple[Step, ...] = ()

    @staticmethod
    def start(table: pl.DataFrame, what: str, label: str = "died", patient: str | None = "patient") -> Flow:
        """Everything that the source holds."""
        flow = Flow(table, label, patient)
        return Flow(table, label, patient, (flow._count(what, 0),))

    def keep(self, condition: pl.Expr, why_out: str, always: bool = True) -> Flow:
        """Keep the rows where the condition is true (null is not). ``always``: a step even if none goes."""
        kept = self.table.filter(condition)
        left_out = self.table.height - kept.height
        if not left_out and not always:
            return self
        after = Flow(kept, self.label, self.patient)
        return Flow(kept, self.label, self.patient, (*self.steps, after._count(why_out, left_out)))

    def _count(self, label: str, left_out: int) -> Step:
        patients = self.table[self.patient].n_unique() if self.patient else None
        positives = int(self.table[self.label].sum()) if self.label else None
        return Step(label, self.table.height, patients, positives, left_out)


def keep_ages(flow: Flow, low: float | None, high: float | None) -> Flow:
    """The age filter, if any; a missing age cannot pass one."""
    if low is not None and high is not None and low > high:
        raise RequestError(f"min_age={low:g} is above max_age={high:g}; swap them")
    if low is None and high is None:
        return flow
    condition = pl.col("age").is_between(low if low is not None else -1e9, high if high is not None else 1e9)
    flow = flow.keep(pl.col("age").is_not_null(), "age unknown", always=False)
    text = (
        f"{low:g}–{high:g}"
        if low is not None and high is not None
        else f"≥ {low:g}"
        if low
        else f"≤ {high:g}"
    )
    return flow.keep(condition, f"age outside {text} years")


def keep_first(flow: Flow, by: Sequence[str]) -> Flow:
    """Only the first stay of every patient, in the order of some columns; one without a patient is kept."""
    assert flow.patient is not None
    first = flow.table.sort(by).unique(flow.patient, keep="first", maintain_order=True)["stay"]
    unknown = pl.col(flow.patient).is_null()
    return flow.keep(pl.col("stay").is_in(first.implode()) | unknown, "not the patient's first ICU stay")


@dataclass(frozen=True, eq=False)
class Cohort:
    """A finished cohort.

    source: the recipe's name. recipe: its version; it changes whenever the same files would give another
    table. files: what was read, in the order of reading. facts: counts worth keeping (values left out, …).
    outcome: what the label is: binary, classes or continuous.
    """

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
    outcome: str = "binary"

    def __post_init__(self) -> None:
        described = [column.name for column in self.dictionary]
        if described != self.table.columns:  # a column without a meaning must never leave the house
            raise AssertionError(f"dictionary {described} and table {self.table.columns} differ")
        if self.table.height == 0:
            last = "; ".join(f"{s.label}: {s.left_out} out" for s in self.steps[1:])
            raise RequestError(f"no stay is left in the {self.source} cohort ({last}); relax the filters")


# --- the columns that all sources share -------------------------------------------------------------

RACES = ("WHITE", "BLACK", "HISPANIC", "ASIAN", "OTHER")


def race_group(column: str) -> pl.Expr:
    """Five groups from the text of the source; null where it was not recorded.

    The first that applies: HISPANIC or LATINO or SOUTH AMERICAN; WHITE or CAUCASIAN; BLACK or AFRICAN;
    ASIAN; not recorded (UNKNOWN, UNABLE TO OBTAIN, DECLINED, empty); everything else is OTHER.
    """
    text = pl.col(column).str.to_uppercase()
    return (
        pl.when(text.is_null() | text.str.contains(r"^\s*$|UNKNOWN|UNABLE TO OBTAIN|DECLINED"))
        .then(None)
        .when(text.str.contains("HISPANIC|LATINO|SOUTH AMERICAN"))
        .then(pl.lit("HISPANIC"))
        .when(text.str.contains("WHITE|CAUCASIAN"))
        .then(pl.lit("WHITE"))
        .when(text.str.contains("BLACK|AFRICAN"))
        .then(pl.lit("BLACK"))
        .when(text.str.contains("ASIAN"))
        .then(pl.lit("ASIAN"))
        .otherwise(pl.lit("OTHER"))
    )


def fractional_year(column: str) -> pl.Expr:
    """A moment as a year with its fraction: 2150-07-02 12:00 is 2150.5."""
    moment = pl.col(column)
    start = pl.datetime(moment.dt.year(), 1, 1)
    following = pl.datetime(moment.dt.year() + 1, 1, 1)
    share = (moment - start).dt.total_seconds() / (following - start).dt.total_seconds()
    return moment.dt.year() + share


def comorbidity_columns(choice: str, origin: str) -> list[Variable]:
    """Dictionary lines of the Charlson columns."""
    return [
        Variable(name, "feature", "0/1", f"{' or '.join(p.replace('_', ' ') for p in parts)}; {origin}")
        for name, parts in charlson.table().columns(choice).items()
    ]


def vital_columns(window: str) -> list[Variable]:
    """Dictionary lines of the 21 vitals."""
    when = vitals.window_words(window)
    words = {"mean": "mean", "min": "lowest", "max": "highest"}
    return [
        Variable(f"{v}_{s}", "feature", vitals.UNITS[v], f"{words[s]} {vitals.LABELS[v]}, {when}")
        for v in vitals.VITALS
        for s in vitals.SUMMARIES
    ]


def in_order(table: pl.DataFrame, dictionary: Sequence[Variable], by: str = "stay") -> pl.DataFrame:
    """The table with the dictionary's columns in its order, rows by stay."""
    return table.sort(by).select([column.name for column in dictionary])
