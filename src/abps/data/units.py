"""Columns that some centers seem to record in another unit: their values lie apart by a factor."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.data.column_names import WORDS, normalise
from abps.data.federation import Federation

#: Values of a column that a center needs before its unit is judged.
ENOUGH = 20

#: Medians closer than this factor are differences in case mix.
LEAST_FACTOR = 1.7

#: A known conversion factor explains a ratio of medians within this factor of it.
NEAR = 1.35

_TEMPERATURE = re.compile(r"temp")


def unit_warnings(federation: Federation) -> list[str]:
    """One sentence for every numeric column that some centers seem to record in another unit.

    The centers' medians are sorted; the column is suspicious if they fall into two groups that lie apart by
    at least ``LEAST_FACTOR``, and the middle 80 % of the two groups' values do not overlap.
    """
    found = []
    for column in federation.features.get_columns():
        if column.dtype.is_numeric():
            warning = _unit_warning(column, federation.center, federation.centers)
            if warning:
                found.append(warning)
    return found


def _unit_warning(column: pl.Series, center: NDArray[np.int32], centers: tuple[str, ...]) -> str:
    values = column.cast(pl.Float64).to_numpy()
    known = np.isfinite(values)
    if not known.any() or (values[known] < 0).any() or len(np.unique(values[known])) <= 10:
        return ""
    quantiles = _quantiles(values[known], center[known], len(centers))
    usable = np.flatnonzero(np.isfinite(quantiles[1]) & (quantiles[1] > 0))
    if len(usable) < 2:
        return ""
    usable = usable[np.argsort(quantiles[1, usable], kind="stable")]
    low, middle, high = quantiles[:, usable]
    gaps = middle[1:] / middle[:-1]
    cut = int(np.argmax(gaps)) + 1
    if gaps[cut - 1] < LEAST_FACTOR or high[:cut].max() >= low[cut:].min():
        return ""
    rows = np.bincount(center[known], minlength=len(centers))[usable]
    few_low = (cut, rows[:cut].sum()) < (len(usable) - cut, rows[cut:].sum())
    few, most = (slice(0, cut), slice(cut, None)) if few_low else (slice(cut, None), slice(0, cut))
    here, elsewhere = float(np.median(middle[few])), float(np.median(middle[most]))
    names = [repr(centers[i]) for i in usable[few]]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"{column.name!r}: the values of {shown} seem to have another unit (median {here:.3g}, elsewhere "
        f"{elsewhere:.3g}{_factor(column.name, here, elsewhere)}); convert them, or leave the column out"
    )


def _factor(name: str, here: float, elsewhere: float) -> str:
    """The factor between two medians: that of a known conversion where one fits, else their ratio."""
    plain, ratio = normalise(name), max(here, elsewhere) / min(here, elsewhere)
    if _TEMPERATURE.search(plain) and 2.3 < ratio < 3.1:
        return "; °F and °C?"
    way = "multiply by" if here < elsewhere else "divide by"
    fitting = [
        (abs(np.log(ratio / each["factor"])), each["factor"], each["units"])
        for each in WORDS["conversions"]
        if re.search(each["column"], plain) and 1 / NEAR < ratio / each["factor"] < NEAR
    ]
    if fitting:
        _, factor, units = min(fitting)
        return f"; {units}? {way} {factor:g}"
    return f"; a factor of about {float(f'{ratio:.2g}'):g}"


def _quantiles(values: NDArray[np.float64], center: NDArray[np.int32], n: int) -> NDArray[np.float64]:
    """(3, n) the 10 %, 50 % and 90 % quantiles of every center; NaN with fewer than ``ENOUGH`` values."""
    order = np.lexsort((values, center))
    ranked, size = values[order], np.bincount(center, minlength=n)
    start = np.concatenate([[0], np.cumsum(size)[:-1]])
    at = np.array([[0.1], [0.5], [0.9]]) * np.maximum(size - 1, 0)
    place = np.minimum(start + np.rint(at).astype(np.int64), len(ranked) - 1)
    return np.where(size >= ENOUGH, ranked[place], np.nan)
