"""Does the table change over time, and do its centers differ? The paper's Appendix A for any table.

Vitals between two eras (Welch's t-test as in the paper, and with errors clustered by center, which is what
counts), the outcome between and within groups of centers (Jensen-Shannon divergence), and whether the windows
that define centers follow the eras at all (Cramér's V, purity).
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats.contingency import crosstab

from abps.cohorts import partition, vitals
from abps.core.errors import RequestError, nearest
from abps.evaluate.performance import share
from abps.evaluate.verdicts import holm
from abps.files import finite
from abps.lab import drift_statistics as statistics

#: Columns that hold the true era, where a source publishes one; the first that a table has is used.
ERA_COLUMNS = ("era", "anchor_year_group")

#: So many columns are tested if none are named.
MOST_COLUMNS = 12


@dataclass(frozen=True)
class Question:
    """era: the column with eras; None: windows of ``window_years`` of the time column.  between: the two eras
    (None: the first and the last in order).  deviations: the outlier rule, per era."""

    label: str
    center: str | None = None
    group: str | None = None
    time: str | None = None
    era: str | None = None
    between: tuple[str, str] | None = None
    columns: tuple[str, ...] = ()
    window_years: int = 2
    deviations: float = 3.0

    def __post_init__(self) -> None:
        if self.window_years < 1:
            raise RequestError(f"window={self.window_years} must be at least 1 year")
        if not self.deviations > 0:
            raise RequestError(f"deviations={self.deviations:g} must be above 0")


@dataclass(frozen=True, eq=False)
class Shift:
    """One column between two eras.  removed: values beyond the outlier rule, per era.

    test, spread_test: Welch's t-test of the values, and of their distances from their era's median. mean,
    spread: the same with errors clustered by center, where there is one. Holm's adjustment is over all
    columns.
    """

    column: str
    test: statistics.Welch
    spread_test: statistics.Welch
    mean: statistics.ClusteredDifference | None
    spread: statistics.ClusteredDifference | None
    p_holm: float
    spread_p_holm: float
    removed: tuple[int, int]
    edges: NDArray[np.float64]
    counts: tuple[NDArray[np.int64], NDArray[np.int64]]
    histogram_js: float

    @property
    def p(self) -> float:
        """The p-value of the means that counts: clustered where it can be."""
        return self.test.p if self.mean is None else self.mean.p

    @property
    def spread_p(self) -> float:
        return self.spread_test.p if self.spread is None else self.spread.p

    @property
    def sd_ratio(self) -> float:
        """Standard deviation of the first era over that of the second."""
        return self.test.sd[0] / self.test.sd[1] if self.test.sd[1] > 0 else math.nan


@dataclass(frozen=True)
class EraLine:
    name: str
    stays: int
    positives: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Drift:
    """Everything that was asked, and what was found. skipped: column -> why it could not be compared."""

    question: Question
    era_source: str
    between: tuple[str, str]
    eras: tuple[EraLine, ...]
    windows: tuple[EraLine, ...]
    shifts: tuple[Shift, ...]
    outcome: statistics.OutcomeDivergence | None
    centers: tuple[tuple[str, str, partition.CenterLine], ...]
    association: statistics.Association | None
    skipped: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        content = {
            "schema": "abps.drift/2",
            "question": asdict(self.question),
            "era": self.era_source,
            "between": list(self.between),
            "eras": [asdict(line) for line in self.eras],
            "windows": [asdict(line) for line in self.windows],
            "shifts": [
                {
                    "column": s.column,
                    **asdict(s.test),
                    "effect": s.test.effect,
                    "clustered": None if s.mean is None else asdict(s.mean),
                    "p_holm": s.p_holm,
                    "sd_ratio": s.sd_ratio,
                    "spread": asdict(s.spread_test),
                    "spread_clustered": None if s.spread is None else asdict(s.spread),
                    "spread_p_holm": s.spread_p_holm,
                    "removed": list(s.removed),
                    "histogram_js_nats": s.histogram_js,
                }
                for s in self.shifts
            ],
            "skipped": [{"column": column, "reason": reason} for column, reason in self.skipped],
            "outcome_js_nats": None if self.outcome is None else asdict(self.outcome),
            "window_era": None if self.association is None else asdict(self.association),
        }
        return dict(finite(content))


def analyse(table: pl.DataFrame, question: Question) -> Drift:
    roles = (question.label, question.center, question.group, question.time, question.era)
    partition.check_columns(table, (*roles, *question.columns))
    label = table[question.label].cast(pl.Int64)
    if table[question.label].null_count() or not set(label.unique().to_list()) <= {0, 1}:
        raise RequestError(f"the label {question.label!r} must be 0 or 1 in every row")
    era, source = _eras(table, question)
    names = era.drop_nulls().unique().sort().to_list()
    between = _pair(names, question.between, source)
    columns = question.columns or _default_columns(table, question)
    cluster = None if question.center is None else table[question.center].cast(pl.String).fill_null("unknown")
    compared, skipped = [], []
    for column in columns:
        reason = _incomparable(table[column], era, between)
        if reason:
            skipped.append((column, reason))
        else:
            compared.append(_shift(table[column], era, between, question.deviations, cluster))
    if not compared:
        raise RequestError(
            f"nothing to compare between {between[0]} and {between[1]}: "
            + "; ".join(f"{column}: {reason}" for column, reason in skipped[:3])
        )
    adjusted, spread = holm([s.p for s in compared]), holm([s.spread_p for s in compared])
    shifts = [replace(s, p_holm=p, spread_p_holm=q) for s, p, q in zip(compared, adjusted, spread)]
    window = None if question.time is None else _windows(table, question)
    association = None
    if window is not None and source != "window":
        both = pl.DataFrame({"window": window, "era": era}).drop_nulls()
        association = statistics.association(crosstab(both["window"], both["era"]).count)
    outcome, centers = _outcome(table, question)
    windows = () if window is None else _lines(window, label)
    found = (tuple(shifts), outcome, centers, association, tuple(skipped))
    return Drift(question, source, between, _lines(era, label), windows, *found)


def _eras(table: pl.DataFrame, question: Question) -> tuple[pl.Series, str]:
    """(rows,) the era of every row, and where it comes from (a column's name, or "window")."""
    column = question.era or next((c for c in ERA_COLUMNS if c in table.columns), None)
    if column is not None:
        if table[column].n_unique() > 200:
            raise RequestError(
                f"era={column} has {table[column].n_unique()} different values; an era groups many stays "
                "(for a time column use time=COL)"
            )
        return table[column].cast(pl.String), column
    if question.time is None:
        raise RequestError(
            "nothing says which rows are early and which late; name a column, era=COL (like era in MIMIC-IV) "
            "or time=COL (a year)"
        )
    return _windows(table, question), "window"


def _windows(table: pl.DataFrame, question: Question) -> pl.Series:
    """(rows,) the first year of every row's window, as text; windows begin at multiples of their width."""
    assert question.time is not None
    column = table[question.time]
    if column.dtype.is_temporal():
        column = column.dt.year().cast(pl.Float64)
    if not column.dtype.is_numeric():
        raise RequestError(f"time={question.time} must hold years or dates, not {column.dtype}")
    width = question.window_years
    return ((column / width).floor() * width).cast(pl.Int64).cast(pl.String)


def _pair(names: list[str], wanted: tuple[str, str] | None, source: str) -> tuple[str, str]:
    if wanted is not None:
        for name in wanted:
            if name not in names:
                raise RequestError(
                    f"between={name!r}: this is an era that no row has in {source}{nearest(name, names)}; "
                    f"there are {', '.join(names[:20])}"
                )
        if wanted[0] == wanted[1]:
            raise RequestError("between=A,B needs two different eras")
        return wanted
    if len(names) < 2:
        raise RequestError(
            f"all rows are of one era ({', '.join(names) or 'none'} in {source}); two are needed"
        )
    return names[0], names[-1]


def _default_columns(table: pl.DataFrame, question: Question) -> tuple[str, ...]:
    means = tuple(f"{v}_mean" for v in vitals.VITALS if f"{v}_mean" in table.columns)
    if means:
        return means
    roles = {question.label, question.center, question.group, question.time, question.era}
    numbers = [
        c
        for c in table.columns
        if c not in roles and table[c].dtype.is_numeric() and table[c].n_unique() > 10
    ]
    if not numbers:
        raise RequestError("no column of numbers to compare; name some (columns=A,B)")
    return tuple(numbers[:MOST_COLUMNS])


def _incomparable(column: pl.Series, era: pl.Series, between: tuple[str, str]) -> str | None:
    """Why a column cannot be compared between two eras; None if it can."""
    if not column.dtype.is_numeric():
        raise RequestError(
            f"the column {column.name!r} holds {column.dtype}, not numbers; leave it out of the columns"
        )
    numbers = [_known(column, era, name)[0] for name in between]
    for name, values in zip(between, numbers):
        if len(values) < 2:
            return f"{len(values)} values in {name}, at least 2 are needed"
    if all(np.ptp(values) == 0 for values in numbers):
        return "one and the same value throughout each era"
    return None


def _known(column: pl.Series, era: pl.Series, name: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The (n,) values of one era that are numbers, and the (rows,) mask of where they are."""
    number = column.cast(pl.Float64)
    mask = ((era == name) & number.is_finite()).fill_null(False).to_numpy()
    return number.to_numpy()[mask], mask


def _shift(
    column: pl.Series, era: pl.Series, between: tuple[str, str], deviations: float, cluster: pl.Series | None
) -> Shift:
    kept, removed, labels = [], [], []
    for name in between:
        values, mask = _known(column, era, name)
        inside = statistics.within_deviations(values, deviations)
        kept.append(values[inside])
        removed.append(int((~inside).sum()))
        if cluster is not None:
            labels.append(cluster.to_numpy()[mask][inside])
    away = [statistics.deviations(values) for values in kept]
    mean = spread = None
    if labels:
        mean, spread = (statistics.clustered_difference(*values, *labels) for values in (kept, away))
        if mean.clusters < 2:  # one center: there is nothing to cluster by
            mean = spread = None
    test, spread_test = statistics.welch(*kept), statistics.welch(*away)
    edges = np.histogram_bin_edges(np.concatenate(kept), 40)
    first, second = (np.histogram(values, edges)[0].astype(np.int64) for values in kept)
    js = math.nan
    if first.sum() and second.sum():
        js = float(statistics.jensen_shannon(first / first.sum(), second / second.sum()))
    tests = (test, spread_test, mean, spread, math.nan, math.nan)
    return Shift(column.name, *tests, (removed[0], removed[1]), edges, (first, second), js)


def _outcome(
    table: pl.DataFrame, question: Question
) -> tuple[statistics.OutcomeDivergence | None, tuple[tuple[str, str, partition.CenterLine], ...]]:
    """Divergence of the centers' outcome rates, and the centers with their group."""
    if question.center is None:
        return None, ()
    lines = partition.center_lines(table, question.label, question.center, [])
    groups = {line.center: line.center for line in lines}  # without groups every pair is a pair between
    if question.group is not None and question.group != question.center:
        pairs = table.select(
            pl.col(question.center).cast(pl.String).fill_null("unknown").alias("center"),
            pl.col(question.group).cast(pl.String).fill_null("unknown").alias("group"),
        ).unique()
        several = pairs.group_by("center").len().filter(pl.col("len") > 1)
        if several.height:
            raise RequestError(
                f"the center {several['center'][0]!r} lies in several groups of {question.group!r}; "
                "a center must lie in one"
            )
        groups = dict(pairs.iter_rows())
    each = [(line.rate, line.stays, groups[line.center]) for line in lines]
    found = statistics.outcome_divergence(*zip(*each))
    return found, tuple((line.center, groups[line.center], line) for line in lines)


def _lines(era: pl.Series, label: pl.Series) -> tuple[EraLine, ...]:
    counted = (
        pl.DataFrame({"era": era, "label": label})
        .drop_nulls("era")
        .group_by("era")
        .agg(stays=pl.len(), positives=pl.col("label").sum())
        .sort("era")
    )
    rates = [(name, n, events, share(events, n)) for name, n, events in counted.iter_rows()]
    return tuple(EraLine(name, n, events, r.value, r.low, r.high) for name, n, events, r in rates)
