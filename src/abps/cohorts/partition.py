"""From a tidy table to centers (``center``, perhaps ``group``): by columns, label skew (Dirichlet), or at
random. Cells that are too small to train and test on follow one rule, and are listed with the reason."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError, nearest
from abps.data.federation import LeftOut
from abps.evaluate.performance import share

#: What to do with a small cell: leave its rows out, keep it as it is, or (random partitions) draw again.
SMALL = ("drop", "keep", "redraw")

#: How often a random partition is drawn again before giving up.
ATTEMPTS = 2_000

#: The value that stands for a missing one in a center's name.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class CellRule:
    """A cell becomes a center if it has so many stays, and so many with and without the outcome: three of
    each by default, so that training, validation and test can all have one."""

    min_stays: int = 50
    min_positives: int = 3
    min_negatives: int = 3
    small: str = "drop"

    def __post_init__(self) -> None:
        if self.small not in SMALL:
            raise RequestError(f"small={self.small!r}: choose one of {', '.join(SMALL)}")
        if min(self.min_stays, self.min_positives, self.min_negatives) < 0:
            raise RequestError("the smallest numbers of stays and positives cannot be below 0")

    def reason(self, stays: int, positives: int) -> str:
        for least, found, what in (
            (self.min_stays, stays, "stays"),
            (self.min_positives, positives, "positive stays"),
            (self.min_negatives, stays - positives, "negative stays"),
        ):
            if found < least:
                return f"fewer than {least} {what} ({found})"
        return ""


@dataclass(frozen=True)
class Recipe:
    """How to divide. by: columns, or ``window:2y`` for windows of the time column.

    dirichlet (its alpha) or iid divide further at random into ``centers`` parts; with ``by`` each cell gets
    an equal number of them. only: column -> the values to keep, before anything else.
    """

    by: tuple[str, ...] = ()
    dirichlet: float | None = None
    iid: bool = False
    centers: int | None = None
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()
    seed: int = 11

    @property
    def random(self) -> bool:
        return self.dirichlet is not None or self.iid

    def __post_init__(self) -> None:
        if self.dirichlet is not None and self.iid:
            raise RequestError("dirichlet=ALPHA and iid=N exclude each other; choose one")
        if not self.by and not self.random:
            raise RequestError("say how to divide: by=COLUMNS, dirichlet=ALPHA centers=N, or iid=N")
        if self.dirichlet is not None and not self.dirichlet > 0:
            raise RequestError(
                f"dirichlet={self.dirichlet:g} must be above 0 (small is uneven, 100 nearly even)"
            )
        if self.random and (self.centers is None or self.centers < 1):
            raise RequestError("dirichlet=ALPHA needs centers=N with N at least 1")
        if not self.random and self.centers is not None:
            raise RequestError("centers=N goes with dirichlet=ALPHA; by=COLUMNS alone say how many there are")


@dataclass(frozen=True, eq=False)
class Partition:
    """table: the rows of the kept centers, with center (and group). dropped: the cells left out, by name."""

    table: pl.DataFrame
    recipe: Recipe
    rule: CellRule
    dropped: tuple[LeftOut, ...]
    shared_patients: int

    @property
    def centers(self) -> int:
        return self.table["center"].n_unique()

    def summary(self) -> dict[str, Any]:
        return {
            "schema": "abps.partition/1",
            "recipe": asdict(self.recipe),
            "rule": asdict(self.rule),
            "centers": self.centers,
            "rows": self.table.height,
            "cells_left_out": len(self.dropped),
            "rows_left_out": sum(cell.rows for cell in self.dropped),
            "left_out": [asdict(cell) for cell in self.dropped],
            "patients_in_several_centers": self.shared_patients,
        }


def divide(
    table: pl.DataFrame,
    recipe: Recipe,
    rule: CellRule | None = None,
    label: str = "died",
    patient: str | None = None,
    time: str | None = None,
) -> Partition:
    """Divide a table into centers. With ``patient``, random divisions keep a patient's stays together; a row
    whose patient is not known is drawn on its own."""
    rule = rule or CellRule()
    check_columns(table, [label, patient])
    _check_request(table, recipe, rule, label)
    for column, allowed in recipe.only:
        table = _keep_only(table, column, allowed)
    cells = _cells(table, recipe.by, time)
    names, empty = _draw(table, cells, recipe, rule, table[label], patient) if recipe.random else (cells, ())
    divided = table.with_columns(center=names).drop("group", strict=False)  # of an earlier partition
    if recipe.by and (recipe.random or len(recipe.by) > 1):
        divided = divided.with_columns(group=cells if recipe.random else _cells(table, recipe.by[:1], time))
    sizes = cell_sizes(names, table[label])
    small = [LeftOut(center, n, rule.reason(n, k)) for center, n, k in sizes.iter_rows() if rule.reason(n, k)]
    # a center that drew no row cannot be kept either: it is named whatever the rule
    dropped = empty if rule.small == "keep" else (*empty, *small)
    dropped = tuple(sorted(dropped, key=lambda cell: cell.center))
    kept = divided.filter(~pl.col("center").is_in([cell.center for cell in dropped]))
    if kept.height == 0:
        raise RequestError(_none_large_enough(dropped, sizes, rule))
    shared = 0
    if patient is not None:  # rows without a patient are not one patient
        known = kept.filter(pl.col(patient).is_not_null())
        shared = int((known.group_by(patient).agg(n=pl.col("center").n_unique())["n"] > 1).sum())
    return Partition(kept, recipe, rule, dropped, shared)


def _check_request(table: pl.DataFrame, recipe: Recipe, rule: CellRule, label: str) -> None:
    for name in ("center", "group"):
        if name in table.columns and name in recipe.by:
            raise RequestError(
                f"by={name}: the table already has this column and it would be replaced; rename it"
            )
    if rule.small == "redraw" and not recipe.random:
        raise RequestError(
            "small=redraw goes with dirichlet=ALPHA or iid=N; cells of columns are what they are"
        )
    values = set(table[label].unique().to_list())
    if not values <= {0, 1, None}:
        shown = sorted(map(str, values))[:5]
        raise RequestError(f"the label {label!r} must be 0 or 1 in every row, not {shown}")
    if None in values:
        raise RequestError(f"the label {label!r} is missing in some rows; leave them out first")


def parse_only(text: str) -> tuple[str, tuple[str, ...]]:
    """``careunit=CCU,MICU`` as (column, values)."""
    column, equals, values = text.partition("=")
    allowed = tuple(v.strip() for v in values.split(",") if v.strip())
    if not equals or not column.strip() or not allowed:
        raise RequestError(f"only={text!r} is not COLUMN=VALUE,VALUE")
    return column.strip(), allowed


def check_columns(table: pl.DataFrame, columns: Sequence[str | None]) -> None:
    for column in columns:
        if column and column not in table.columns:
            raise RequestError(
                f"the table has no column {column!r}{nearest(column, table.columns)}; "
                f"it has {', '.join(table.columns)}"
            )


def _keep_only(table: pl.DataFrame, column: str, allowed: tuple[str, ...]) -> pl.DataFrame:
    check_columns(table, [column])
    text = table[column].cast(pl.String)
    present = text.drop_nulls().unique().to_list()
    for value in allowed:
        if value not in present:
            raise RequestError(
                f"only={column}={value}: no row has it{nearest(value, present)}; "
                f"there are {', '.join(sorted(present)[:20])}"
            )
    return table.filter(text.is_in(list(allowed)))


def _cells(table: pl.DataFrame, by: tuple[str, ...], time: str | None) -> pl.Series:
    """(rows,) the name of every row's cell; one cell, with an empty name, if nothing divides."""
    if not by:
        return pl.Series("center", [""] * table.height, dtype=pl.String)
    parts = []
    for key in by:
        window = re.fullmatch(r"window:(\d+)y", key)
        if window:
            parts.append(_window(table, int(window[1]), time))
        elif key.startswith("window"):
            raise RequestError(f"by={key!r}: a window is written window:2y (whole years)")
        else:
            check_columns(table, [key])
            column = table[key]
            if column.dtype.is_float() and column.n_unique() > 100:
                raise RequestError(
                    f"by={key}: {column.n_unique()} different numbers are no groups; for years use window:2y"
                )
            text = column.cast(pl.String).str.strip_chars()
            parts.append(text.replace("", None).fill_null(UNKNOWN))
    frame = pl.DataFrame({str(i): part for i, part in enumerate(parts)})
    return frame.select(pl.concat_str(pl.all(), separator="/")).to_series().alias("center")


def _window(table: pl.DataFrame, years: int, time: str | None) -> pl.Series:
    """The first year of each row's window; windows begin at multiples of their width, so that a stay is in
    the same window whatever other stays there are."""
    if years < 1:
        raise RequestError("a window has at least one year: window:1y")
    if time is None or time not in table.columns:
        raise RequestError(
            f"window:{years}y needs the column with the year of admission; "
            f"{'name it with time=COL' if time is None else f'the table has no {time!r}'}"
        )
    if not table[time].dtype.is_numeric():
        raise RequestError(f"time={time} must be a number of years (like 2150.4), not {table[time].dtype}")
    start = (table[time] / years).floor() * years
    return start.cast(pl.Int64).cast(pl.String).fill_null(UNKNOWN)


def _draw(
    table: pl.DataFrame,
    cells: pl.Series,
    recipe: Recipe,
    rule: CellRule,
    label: pl.Series,
    patient: str | None,
) -> tuple[pl.Series, tuple[LeftOut, ...]]:
    """(rows,) center names, and the centers that drew no row. Cells are drawn independently."""
    assert recipe.centers is not None
    order = cells.value_counts().sort(["count", "center"], descending=[True, False])
    names: list[str] = order["center"].to_list()
    if recipe.centers < len(names):
        raise RequestError(f"centers={recipe.centers} is fewer than the {len(names)} cells of the columns")
    share, extra = divmod(recipe.centers, len(names))
    result = np.empty(table.height, dtype=object)
    cell_of, positive = cells.to_numpy(), label.cast(pl.Int8).to_numpy() > 0
    units = None if patient is None else _units(table[patient])
    empty = []
    for i, cell in enumerate(names):
        rows = np.flatnonzero(cell_of == cell)
        parts = share + (i < extra)  # the larger cells get the remainder
        unit = np.arange(len(rows)) if units is None else np.unique(units[rows], return_inverse=True)[1]
        hit = np.zeros(unit.max() + 1, dtype=bool)
        np.logical_or.at(hit, unit, positive[rows])
        for attempt in range(ATTEMPTS if rule.small == "redraw" else 1):
            rng = streams.generator(recipe.seed, "partition", attempt, streams.center_id(cell))
            part = random_parts(hit, parts, recipe.dirichlet, rng)[unit]
            sizes = np.bincount(part, minlength=parts)
            found = np.bincount(part, weights=positive[rows], minlength=parts)
            if rule.small != "redraw" or not any(rule.reason(int(n), int(k)) for n, k in zip(sizes, found)):
                break
        else:
            raise RequestError(
                f"in {ATTEMPTS} draws no division of {cell or 'the table'} into {parts} gave every center "
                f"{rule.min_stays} stays and {rule.min_positives} positive; use a larger dirichlet=ALPHA, "
                "fewer centers=N or small=drop"
            )
        prefix, width = f"{cell}/" if cell else "center-", len(str(parts))
        labels = np.array([f"{prefix}{j + 1:0{width}d}" for j in range(parts)], dtype=object)
        result[rows] = labels[part]
        empty += [LeftOut(str(labels[j]), 0, "no stay was drawn for it") for j in np.flatnonzero(sizes == 0)]
    return pl.Series("center", result.tolist(), dtype=pl.String), tuple(empty)


def _units(patient: pl.Series) -> NDArray[np.int64]:
    """(rows,) a number for every patient; a row without a patient is a unit of its own."""
    number = patient.rank("dense").cast(pl.Int64).fill_null(0).to_numpy().copy()
    unknown = np.flatnonzero(number == 0)
    number[unknown] = number.max(initial=0) + 1 + np.arange(len(unknown))
    return number


def random_parts(
    positive: NDArray[np.bool_], parts: int, alpha: float | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(units,) the part of every unit; alpha None: equal parts at random, else label skew: for each class the
    parts' shares are drawn from a symmetric Dirichlet distribution."""
    part = np.empty(len(positive), dtype=np.int64)
    if alpha is None:
        part[rng.permutation(len(positive))] = np.arange(len(positive)) % parts
        return part
    for value in (False, True):
        members = rng.permutation(np.flatnonzero(positive == value))
        shares = rng.dirichlet(np.full(parts, alpha))
        bounds = np.floor(np.cumsum(shares)[:-1] * len(members) + 0.5).astype(np.int64)
        part[members] = np.searchsorted(bounds, np.arange(len(members)), side="right")
    return part


def cell_sizes(names: pl.Series, label: pl.Series) -> pl.DataFrame:
    """(center, stays, positives) of every cell, by name."""
    return (
        pl.DataFrame({"center": names, "label": label.cast(pl.Int64)})
        .group_by("center")
        .agg(stays=pl.len(), positives=pl.col("label").sum())
        .sort("center")
    )


def _none_large_enough(cells: Sequence[LeftOut], sizes: pl.DataFrame, rule: CellRule) -> str:
    """Why no cell became a center, with the largest that two cells would pass."""
    largest = max(cells, key=lambda cell: cell.rows)
    low, high = rule.min_positives, pl.col("stays") - rule.min_negatives
    able = sizes.filter((pl.col("positives") >= low) & (pl.col("positives") <= high))["stays"].sort()
    passing = f"min_stays={able[-2]} keeps two or more; " if len(able) > 1 else ""
    return (
        f"none of {len(cells)} cells is large enough (the largest, {largest.center}: {largest.reason}); "
        f"{passing}or divide more coarsely with by=COLUMNS"
    )


# --- centers and columns of a tidy table ----------------------------------------------------------------


@dataclass(frozen=True)
class CenterLine:
    """One center: its size, outcome rate with a 95 % interval, and share of missing feature values."""

    center: str
    stays: int
    positives: int
    rate: float
    low: float
    high: float
    missing: float


def center_lines(table: pl.DataFrame, label: str, center: str, features: list[str]) -> list[CenterLine]:
    gaps = pl.mean_horizontal(pl.col(features).is_null().cast(pl.Float64)) if features else pl.lit(0.0)
    grouped = table.group_by(pl.col(center).cast(pl.String).fill_null(UNKNOWN).alias("center")).agg(
        stays=pl.len(), positives=pl.col(label).cast(pl.Int64).sum(), missing=gaps.mean()
    )
    rates = [(*row, share(row[2], row[1])) for row in grouped.sort("center").iter_rows()]
    return [CenterLine(name, n, k, r.value, r.low, r.high, missing) for name, n, k, missing, r in rates]


@dataclass(frozen=True)
class FeatureLine:
    """One feature over all rows: how much is missing, and its distribution in words of its kind."""

    name: str
    kind: str
    missing: float
    summary: str
    mean: float | None
    sd: float | None


def feature_lines(table: pl.DataFrame, features: list[str]) -> list[FeatureLine]:
    """One line per feature: mean (SD) of numbers, share of ones, or the most frequent levels."""
    lines = []
    for name in features:
        column = table[name]
        known = column.drop_nulls()
        missing = column.null_count() / max(1, column.len())
        mean = sd = None
        if known.len() == 0:
            kind, summary = "empty", "no value"
        elif column.dtype == pl.String:
            counts = known.alias("value").value_counts().sort(["count", "value"], descending=[True, False])
            top = [f"{level} {count / known.len():.0%}" for level, count in counts.head(4).iter_rows()]
            more = counts.height - len(top)
            kind, summary = "category", ", ".join(top) + (f", {more} more" if more > 0 else "")
        else:
            numbers = known.cast(pl.Float64).to_numpy()
            mean, kind, summary = float(numbers.mean()), "yes/no", f"{numbers.mean():.1%}"
            if not set(known.unique().to_list()) <= {0, 1}:
                sd = float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
                span = f"{numbers.min():.4g} to {numbers.max():.4g}"
                kind, summary = "number", f"{mean:.4g} ({sd:.3g}), {span}"
        lines.append(FeatureLine(name, kind, missing, summary, mean, sd))
    return lines
