"""Table 1 of a federation: what its patients look like, overall and at every hospital.

Overall figures follow from sums over hospitals (counts, sums, squares, counts in common bins); between sites
from masked totals (:func:`table_program`). A hospital's own column shows a cell only if it and its complement
have at least ``min_cell`` patients, and if no other suppressed cell would follow from it: a line or a
hospital with one suppressed cell has a second one. A suppressed cell says so and is not a zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps import files
from abps.core.errors import RequestError
from abps.statistics.design import BINS
from abps.statistics.families import Floats
from abps.statistics.newton import SumProgram, split_total

#: What a suppressed cell shows.
SUPPRESSED = "<{}"


@dataclass(frozen=True)
class TableLine:
    """A column, or one of its levels, in words.  difference: the largest absolute standardised difference
    between a hospital and the others (NaN: not shown)."""

    column: str
    level: str
    overall: str
    hospitals: tuple[str, ...]
    difference: float


@dataclass(frozen=True)
class TableOne:
    centers: tuple[str, ...]
    rows: tuple[str, ...]
    total: int
    lines: tuple[TableLine, ...]
    notes: tuple[str, ...] = ()

    def write(self, out: Path) -> list[Path]:
        files.write_text(out / "table-one.csv", self.frame().write_csv())
        return [out / "table-one.csv"]

    def frame(self) -> pl.DataFrame:
        rows = []
        for line in self.lines:
            words = {"column": line.column, "level": line.level, "overall": line.overall}
            words |= dict(zip(self.centers, line.hospitals, strict=True))
            difference = None if np.isnan(line.difference) else round(line.difference, 3)
            rows.append({**words, "largest difference": difference})
        return pl.DataFrame(rows)


def table_one(frame: pl.DataFrame, center: str, columns: Sequence[str] = (), min_cell: int = 10) -> TableOne:
    """Counts, means, quantiles and missingness of columns (default: all but the center's), by hospital and
    overall; text columns with more than 30 levels are refused."""
    if center not in frame.columns:
        raise RequestError(f"there is no column {center!r}; name the hospitals' column with --center")
    chosen = [c for c in (columns or frame.columns) if c != center]
    unknown = [c for c in chosen if c not in frame.columns]
    if unknown:
        raise RequestError(f"there is no column {unknown[0]!r}; the table has {', '.join(frame.columns[:8])}")
    frame = frame.filter(pl.col(center).is_not_null()).sort(center, maintain_order=True)
    parts = frame.partition_by(center, maintain_order=True)
    names = tuple(str(part[center][0]) for part in parts)
    lines: list[TableLine] = []
    for column in chosen:
        values = frame[column]
        if values.dtype.is_numeric() and values.n_unique() > 2:
            lines += _numeric(column, [part[column].cast(pl.Float64) for part in parts], min_cell)
        else:
            lines += _categorical(column, [part[column].cast(pl.String) for part in parts], min_cell)
    rows = tuple(f"{p.height:,}" if p.height >= min_cell else SUPPRESSED.format(min_cell) for p in parts)
    return TableOne(names, rows, frame.height, tuple(lines))


def table_program(
    frame: pl.DataFrame,
    levels: Mapping[str, Sequence[str]],
    quantiles: Mapping[str, Sequence[float]],
    min_cell: int,
) -> SumProgram[TableOne]:
    """What one hospital does for the table of all: one total of counts, sums and squares, to which a hospital
    with fewer rows than ``min_cell`` adds nothing.  levels: of every column that has some.  quantiles: of the
    others."""
    if frame.height < min_cell:
        frame = frame.clear()
    sums: list[list[float]] = [[frame.height, float(frame.height > 0)]]
    for column in frame.columns:
        if column in levels:
            text = frame[column].cast(pl.String).drop_nulls().to_list()
            sums.append([len(text), *[text.count(level) for level in levels[column]]])
        else:
            known = frame[column].cast(pl.Float64).drop_nulls().drop_nans().to_numpy()
            sums.append([len(known), known.sum(), known @ known])
    ends = np.cumsum([len(part) for part in sums])[:-1]
    total = yield from split_total(np.concatenate(sums).astype(np.float64))
    (rows, hospitals), *parts = np.split(total.round(6), ends)
    lines: list[TableLine] = []

    def add(column: str, level: str, text: str) -> None:
        lines.append(TableLine(column, level, text, (), float("nan")))

    for column, (known, *values) in zip(frame.columns, parts):
        for level, count in zip(levels.get(column, ()), values):
            add(column, level, _share(count, known, min_cell))
        if column not in levels:
            enough = known >= max(min_cell, 1)
            add(column, "mean (SD)", _moments(known, *values) if enough else SUPPRESSED.format(min_cell))
            if enough and column in quantiles:
                low, middle, high = quantiles[column]
                add(column, "median [IQR]", f"{middle:.4g} [{low:.4g}, {high:.4g}]")
        if rows > known:
            add(column, "missing", _share(rows - known, rows, min_cell))
    return TableOne((), (), round(rows), tuple(lines), (f"{round(hospitals)} hospitals",))


def _numeric(column: str, parts: list[pl.Series], min_cell: int) -> list[TableLine]:
    known = [part.drop_nulls().drop_nans().to_numpy() for part in parts]
    n = np.array([len(values) for values in known], dtype=float)
    if n.sum() < min_cell:
        return [TableLine(column, "mean (SD)", "no values", ("",) * len(parts), float("nan"))]
    total = np.array([values.sum() for values in known])
    squares = np.array([(values**2).sum() for values in known])
    low, high = min(v.min() for v in known if len(v)), max(v.max() for v in known if len(v))
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    counts = np.array([np.histogram(values, edges)[0] for values in known])
    shown = ~_hidden(n[None], (n < min_cell)[None])[0]
    own, spread = (
        tuple(text if shown[i] else SUPPRESSED.format(min_cell) for i, text in enumerate(texts))
        for texts in (
            [_moments(*each) if each[0] else "–" for each in zip(n, total, squares)],
            [_quantiles(each, edges) if each.sum() else "–" for each in counts],
        )
    )
    difference = _largest_difference(n, total, squares, np.flatnonzero(shown))
    found = [
        TableLine(column, "mean (SD)", _moments(n.sum(), total.sum(), squares.sum()), own, difference),
        TableLine(column, "median [IQR]", _quantiles(counts.sum(axis=0), edges), spread, float("nan")),
    ]
    rows = np.array([len(part) for part in parts], dtype=float)
    gaps = rows - n
    hidden = _hidden(gaps[None], _small(gaps, rows, min_cell)[None])[0]
    return [*found, *_missing(column, gaps, rows, hidden, min_cell)]


def _categorical(column: str, parts: list[pl.Series], min_cell: int) -> list[TableLine]:
    levels = sorted({value for part in parts for value in part.drop_nulls().unique()})
    if len(levels) > 30:
        raise RequestError(f"{column!r} has {len(levels)} levels; leave it out with --columns")
    gaps = np.array([part.null_count() for part in parts], dtype=float)
    count = np.array([[int((part == level).sum()) for part in parts] for level in levels], dtype=float)
    count = count.reshape(len(levels), len(parts))
    n = np.array([len(part) for part in parts], dtype=float) - gaps
    hidden = _hidden(
        np.vstack([count, gaps]), np.vstack([_small(count, n, min_cell), _small(gaps, n + gaps, min_cell)])
    )
    found = []
    for k, level in enumerate(levels):
        enough = np.flatnonzero(~hidden[k] & (count[k] > 0) & (n - count[k] >= min_cell))
        largest = _largest_difference(n, count[k], count[k], enough)  # squares of 0 and 1 are their sum
        found.append(_shares(column, level, count[k], n, hidden[k], min_cell, largest))
    return [*found, *_missing(column, gaps, n + gaps, hidden[-1], min_cell)]


def _small(count: Floats, of: Floats, min_cell: int) -> NDArray[np.bool_]:
    """Whether a count or its complement is small but not zero."""
    rest = of - count
    return ((count > 0) & (count < min_cell)) | ((rest > 0) & (rest < min_cell))


def _hidden(count: Floats, small: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(lines, hospitals) which cells are suppressed: small ones, and where one would follow from the others
    of its line or of its hospital, the smallest of these."""
    hidden = small.copy()
    while True:
        before = hidden.copy()
        for cells, values in (*zip(hidden, count), *(zip(hidden.T, count.T) if len(count) > 1 else ())):
            others = np.flatnonzero(~cells & (values > 0))
            if cells.sum() == 1 and len(others):
                cells[others[np.argmin(values[others])]] = True
        if (hidden == before).all():
            return hidden


def _shares(
    column: str,
    level: str,
    count: Floats,
    n: Floats,
    hidden: NDArray[np.bool_],
    min_cell: int,
    difference: float,
) -> TableLine:
    own = tuple(
        SUPPRESSED.format(min_cell) if hide else _share(c, of, min_cell)
        for c, of, hide in zip(count, n, hidden)
    )
    return TableLine(column, level, _share(count.sum(), n.sum(), min_cell), own, difference)


def _missing(
    column: str, gaps: Floats, rows: Floats, hidden: NDArray[np.bool_], min_cell: int
) -> list[TableLine]:
    return [_shares(column, "missing", gaps, rows, hidden, min_cell, float("nan"))] if gaps.sum() else []


def _share(count: float, of: float, min_cell: int) -> str:
    """A count with its percentage; suppressed if it or its complement is small but not zero."""
    if 0 < count < min_cell or 0 < of - count < min_cell:
        return SUPPRESSED.format(min_cell)
    return f"{int(count):,} ({100 * count / of:.1f} %)" if of else "–"


def _moments(n: float, total: float, squares: float) -> str:
    mean = total / n
    return f"{mean:.4g} ({np.sqrt(max(squares / n - mean**2, 0.0) * n / max(n - 1, 1)):.4g})"


def _quantiles(counts: Floats, edges: Floats) -> str:
    share = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
    low, middle, high = np.interp([0.25, 0.5, 0.75], share, edges)
    return f"{middle:.4g} [{low:.4g}, {high:.4g}]"


def _largest_difference(n: Floats, total: Floats, squares: Floats, compared: NDArray[np.intp]) -> float:
    """The largest absolute standardised difference between one of some hospitals and all others."""
    found = []
    for i in (i for i in compared if n.sum() > n[i] > 0):
        rest = np.arange(len(n)) != i
        means = [total[i] / n[i], total[rest].sum() / n[rest].sum()]
        spread = [squares[i] / n[i] - means[0] ** 2, squares[rest].sum() / n[rest].sum() - means[1] ** 2]
        found.append(float(abs(means[0] - means[1]) / np.sqrt(max(sum(spread) / 2.0, 1e-300))))
    return max(found, default=float("nan"))
