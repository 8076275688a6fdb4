"""Designs that all hospitals build alike: a formula, common levels and knots, and the matrix of one hospital.

Terms are columns, ``spline(x, 4)`` (restricted cubic with so many degrees of freedom), ``a:b`` (interaction),
``a*b`` (both and their interaction) and ``offset(x)``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from abps.core.errors import RequestError, nearest
from abps.evaluate.calibration import restricted_cubic
from abps.statistics.families import Floats

#: Bins in which values are counted to find common quantiles.
BINS = 512

#: Quantiles at which a restricted cubic spline of k degrees of freedom has its k + 1 knots (Harrell 2015).
KNOTS = {
    2: (0.1, 0.5, 0.9),
    3: (0.05, 0.35, 0.65, 0.95),
    4: (0.05, 0.275, 0.5, 0.725, 0.95),
    5: (0.05, 0.23, 0.41, 0.59, 0.77, 0.95),
}

_SPLINE = re.compile(r"spline\(\s*([^,()]+?)\s*(?:,\s*(\d+)\s*)?\)$")
_OFFSET = re.compile(r"offset\(\s*([^()]+?)\s*\)$")


@dataclass(frozen=True)
class Factor:
    """A column as it is, or as a spline of ``df`` degrees of freedom."""

    column: str
    df: int = 0


@dataclass(frozen=True)
class Formula:
    """terms: each a product of factors.  offset: a column that is added as it is, or nothing."""

    terms: tuple[tuple[Factor, ...], ...]
    offset: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        named = [factor.column for term in self.terms for factor in term]
        return tuple(dict.fromkeys([*named, *([self.offset] if self.offset else [])]))


def parse_formula(text: str) -> Formula:
    """The right-hand side of a formula.

    >>> [len(term) for term in parse_formula("age + sex + age:sex + spline(bmi, 3)").terms]
    [1, 1, 2, 1]
    """
    terms: list[tuple[Factor, ...]] = []
    offset = ""
    for part in (part.strip() for part in text.split("+")):
        found = _OFFSET.match(part)
        if found:
            offset = found[1]
        elif "*" in part:
            factors = [_factor(one) for one in part.split("*")]
            terms += [(factor,) for factor in factors]
            terms += [(a, b) for k, a in enumerate(factors) for b in factors[k + 1 :]]
        elif part:
            terms.append(tuple(_factor(one) for one in part.split(":")))
    unique = tuple(dict.fromkeys(terms))
    if not unique:
        raise RequestError(f"formula {text!r}: it names no column; write for instance 'age + sex'")
    return Formula(unique, offset)


def _factor(text: str) -> Factor:
    text = text.strip()
    found = _SPLINE.match(text)
    if not found:
        if not text or "(" in text:
            raise RequestError(
                f"term {text!r}: write a column, spline(column, 4), offset(column), a:b or a*b"
            )
        return Factor(text)
    df = int(found[2] or 3)
    if df not in KNOTS:
        raise RequestError(f"term {text!r}: choose 2 to 5 degrees of freedom")
    return Factor(found[1], df)


@dataclass(frozen=True, eq=False)
class Schema:
    """What all hospitals agree on, from sums of counts, before they build their designs.  levels: of each
    category, the reference first.  knots: of each spline's column and degrees of freedom."""

    formula: Formula
    levels: dict[str, tuple[str, ...]]
    knots: dict[tuple[str, int], tuple[float, ...]]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the design's columns, without intercept."""
        return tuple(name for term in self.formula.terms for name in self._names(term))

    def _names(self, term: tuple[Factor, ...]) -> list[str]:
        names = [""]
        for factor in term:
            own = [f"{factor.column} spline {k + 1}" for k in range(factor.df)] or [factor.column]
            if factor.column in self.levels:
                own = [f"{factor.column}[{level}]" for level in self.levels[factor.column][1:]]
            names = [f"{a}:{b}" if a else b for a in names for b in own]
        return names

    def build(self, frame: pl.DataFrame) -> tuple[Floats, Floats]:
        """(rows, columns) the design of one hospital's complete rows, and (rows,) its offset."""
        parts = []
        for first, *others in self.formula.terms:
            made = self._columns(frame, first)
            for other in (self._columns(frame, factor) for factor in others):
                made = (made[:, :, None] * other[:, None, :]).reshape(len(made), -1)
            parts.append(made)
        offset = np.zeros(frame.height)
        if self.formula.offset:
            offset = frame[self.formula.offset].cast(pl.Float64).to_numpy()
        return np.concatenate(parts, axis=1), offset

    def _columns(self, frame: pl.DataFrame, factor: Factor) -> Floats:
        if factor.column in self.levels:
            text = frame[factor.column].cast(pl.String).to_numpy()
            return np.stack([text == level for level in self.levels[factor.column][1:]], axis=1).astype(float)
        values = frame[factor.column].cast(pl.Float64).to_numpy()
        if not factor.df:
            return values[:, None]
        return restricted_cubic(values, self.knots[factor.column, factor.df])


def agree(formula: Formula, frames: Sequence[pl.DataFrame], min_cell: int) -> Schema:
    """The common schema of hospitals' complete rows; a level needs ``min_cell`` rows in all."""
    kinds = frames[0].select(formula.columns).schema
    text = [c for c, kind in kinds.items() if not kind.is_numeric() and kind != pl.Boolean]
    levels = {column: _levels(column, frames, min_cell) for column in text}
    knots: dict[tuple[str, int], tuple[float, ...]] = {}
    for factor in {f for term in formula.terms for f in term if f.df}:
        if factor.column in levels:
            raise RequestError(f"spline({factor.column}): it holds categories; write {factor.column}")
        knots[factor.column, factor.df] = _knots(factor, frames)
    return Schema(formula, levels, knots)


def _levels(column: str, frames: Sequence[pl.DataFrame], min_cell: int) -> tuple[str, ...]:
    counts = pl.concat([frame[column].cast(pl.String) for frame in frames]).value_counts()
    rows = {str(name): int(count) for name, count in counts.iter_rows()}
    small = sorted(name for name, count in rows.items() if count < min_cell)
    if small:
        raise RequestError(
            f"{column!r}: level {small[0]!r} has {rows[small[0]]} row(s) in all hospitals together, fewer "
            f"than the minimum cell of {min_cell}; merge levels or leave the column out"
        )
    if len(rows) < 2:
        raise RequestError(f"{column!r} has one level only ({next(iter(rows), 'none')}); leave it out")
    return tuple(sorted(rows))


def _knots(factor: Factor, frames: Sequence[pl.DataFrame]) -> tuple[float, ...]:
    """Quantiles from counts in common bins, summed over hospitals; within a bin values are spread evenly."""
    values = [frame[factor.column].cast(pl.Float64).to_numpy() for frame in frames]
    low, high = min(v.min() for v in values if len(v)), max(v.max() for v in values if len(v))
    edges = np.linspace(low, high, BINS + 1)
    counts = sum(np.histogram(v, edges)[0] for v in values)
    share = np.concatenate([[0.0], np.cumsum(counts) / np.sum(counts)])
    knots = np.unique(np.interp(KNOTS[factor.df], share, edges))
    if len(knots) < factor.df + 1:
        raise RequestError(
            f"spline({factor.column}, {factor.df}): too few different values for its knots; choose fewer "
            "degrees of freedom or the column as it is"
        )
    return tuple(float(knot) for knot in knots)


def complete_rows(frame: pl.DataFrame, columns: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """The rows in which all of these columns are known, and how many others there are."""
    for column in columns:
        if column not in frame.columns:
            there = f"the table has {', '.join(frame.columns[:8])}{' …' if frame.width > 8 else ''}"
            raise RequestError(f"there is no column {column!r}{nearest(column, frame.columns)}; {there}")
    known = frame.select(list(dict.fromkeys(columns))).drop_nulls().drop_nans()
    return known, frame.height - known.height
