"""Table 1 of a federation: what its patients look like, overall and at every hospital.

Overall figures follow from sums over hospitals (counts, sums, squares, counts in common bins). A hospital's
own column shows a cell only if it and its complement have at least ``min_cell`` patients; a suppressed cell
says so and is not a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.statistics.design import BINS

Floats = NDArray[np.float64]

#: What a suppressed cell shows.
SUPPRESSED = "<{}"


@dataclass(frozen=True)
class TableLine:
    """One line of the table: a column, or one of its levels, in words, overall and by hospital.

    difference: the largest absolute standardised difference between a hospital and the others (NaN: not
    shown).
    """

    column: str
    level: str
    overall: str
    hospitals: tuple[str, ...]
    difference: float


@dataclass(frozen=True)
class TableOne:
    """Lines for every column, with the hospitals and their rows (suppressed where they are few)."""

    centers: tuple[str, ...]
    rows: tuple[str, ...]
    total: int
    lines: tuple[TableLine, ...]

    def frame(self) -> pl.DataFrame:
        """One row per line, one column per hospital."""
        return pl.DataFrame(
            [
                {
                    "column": line.column,
                    "level": line.level,
                    "overall": line.overall,
                    **dict(zip(self.centers, line.hospitals, strict=True)),
                    "largest difference": None if np.isnan(line.difference) else round(line.difference, 3),
                }
                for line in self.lines
            ]
        )


def table_one(frame: pl.DataFrame, center: str, columns: Sequence[str] = (), min_cell: int = 10) -> TableOne:
    """Counts, means, quantiles and missingness of columns, by hospital and overall.

    columns: default all but the center's; text columns with more than 30 levels are refused.
    """
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
    rows = tuple(_count(part.height, min_cell) for part in parts)
    return TableOne(names, rows, frame.height, tuple(lines))


def _numeric(column: str, parts: list[pl.Series], min_cell: int) -> list[TableLine]:
    known = [part.drop_nulls().drop_nans().to_numpy() for part in parts]
    gaps = [len(part) - len(values) for part, values in zip(parts, known)]
    n = np.array([len(values) for values in known], dtype=float)
    if n.sum() < min_cell:
        return [TableLine(column, "mean (SD)", "no values", ("",) * len(parts), float("nan"))]
    total = np.array([values.sum() for values in known])
    squares = np.array([(values**2).sum() for values in known])
    low, high = min(v.min() for v in known if len(v)), max(v.max() for v in known if len(v))
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    counts = np.array([np.histogram(values, edges)[0] for values in known])
    shown = n >= min_cell
    own = tuple(
        _moments(n[i], total[i], squares[i]) if shown[i] else SUPPRESSED.format(min_cell)
        for i in range(len(parts))
    )
    hidden = SUPPRESSED.format(min_cell)
    spread = [_quantiles(counts[i], edges) if shown[i] else hidden for i in range(len(n))]
    compared = [i for i in range(len(n)) if shown[i] and n.sum() > n[i]]
    difference = _largest([_numeric_difference(n, total, squares, i) for i in compared])
    found = [
        TableLine(column, "mean (SD)", _moments(n.sum(), total.sum(), squares.sum()), own, difference),
        TableLine(column, "median [IQR]", _quantiles(counts.sum(axis=0), edges), tuple(spread), float("nan")),
    ]
    return [*found, *_missing(column, gaps, [len(part) for part in parts], min_cell)]


def _categorical(column: str, parts: list[pl.Series], min_cell: int) -> list[TableLine]:
    levels = sorted({value for part in parts for value in part.drop_nulls().unique()})
    if len(levels) > 30:
        raise RequestError(f"{column!r} has {len(levels)} levels; leave it out with --columns")
    n = np.array([len(part) - part.null_count() for part in parts], dtype=float)
    found = []
    for level in levels:
        count = np.array([int((part == level).sum()) for part in parts], dtype=float)
        own = tuple(_share(count[i], n[i], min_cell) for i in range(len(parts)))
        enough = (count >= min_cell) & (n - count >= min_cell)
        differences = [_share_difference(count, n, int(i)) for i in np.flatnonzero(enough) if n.sum() > n[i]]
        overall = _share(count.sum(), n.sum(), min_cell)
        found.append(TableLine(column, level, overall, own, _largest(differences)))
    gaps = [part.null_count() for part in parts]
    return [*found, *_missing(column, gaps, [len(part) for part in parts], min_cell)]


def _missing(column: str, gaps: Sequence[int], rows: Sequence[int], min_cell: int) -> list[TableLine]:
    if not sum(gaps):
        return []
    own = tuple(_share(float(gap), float(n), min_cell) for gap, n in zip(gaps, rows))
    return [
        TableLine(column, "missing", _share(float(sum(gaps)), float(sum(rows)), min_cell), own, float("nan"))
    ]


def _count(n: int, min_cell: int) -> str:
    return f"{n:,}" if n >= min_cell or n == 0 else SUPPRESSED.format(min_cell)


def _share(count: float, of: float, min_cell: int) -> str:
    """A count with its percentage; suppressed if it or its complement is small but not zero."""
    for cell in (count, of - count):
        if 0 < cell < min_cell:
            return SUPPRESSED.format(min_cell)
    return f"{int(count):,} ({100 * count / of:.1f} %)" if of else "–"


def _moments(n: float, total: float, squares: float) -> str:
    mean = total / n
    return f"{mean:.4g} ({np.sqrt(max(squares / n - mean**2, 0.0) * n / max(n - 1, 1)):.4g})"


def _quantiles(counts: Floats, edges: Floats) -> str:
    share = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
    low, middle, high = np.interp([0.25, 0.5, 0.75], share, edges)
    return f"{middle:.4g} [{low:.4g}, {high:.4g}]"


def _numeric_difference(n: Floats, total: Floats, squares: Floats, i: int) -> float:
    rest = np.arange(len(n)) != i
    means = [total[i] / n[i], total[rest].sum() / n[rest].sum()]
    spread = [squares[i] / n[i] - means[0] ** 2, squares[rest].sum() / n[rest].sum() - means[1] ** 2]
    pooled = np.sqrt(max((spread[0] + spread[1]) / 2.0, 1e-300))
    return float(abs(means[0] - means[1]) / pooled)


def _share_difference(count: Floats, n: Floats, i: int) -> float:
    rest = np.arange(len(n)) != i
    p, q = count[i] / n[i], count[rest].sum() / n[rest].sum()
    pooled = np.sqrt(max((p * (1 - p) + q * (1 - q)) / 2.0, 1e-300))
    return float(abs(p - q) / pooled)


def _largest(values: Sequence[float]) -> float:
    return max(values, default=float("nan"))
