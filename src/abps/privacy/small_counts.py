"""Counts of few patients do not leave: they are rounded to multiples of a floor, or not told.

A floor is a number of patients. A count of rows that is told is a multiple of the fewest rows in which there
are surely that many patients (:func:`least_rows`): with one row each that is the floor itself. Of a table of
outcome and column in which a cell has fewer, but not none, nothing is told at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Of how many patients something must be told that leaves a site, unless the site says otherwise.
FLOOR = 10

#: Up to so many different values a column of numbers is told as a category would be: by rounded counts.
FEW_VALUES = 12


def least_rows(owner: NDArray[np.integer], patient: Ints | None, n: int, floor: int) -> Ints:
    """(n,) how many rows of a center are surely of ``floor`` patients: one more than the fullest others have.

    owner: (rows,) the center of every row.  patient: (rows,) whose it is; none: every row is another's.

    >>> least_rows(np.zeros(6, int), np.array([7, 7, 7, 8, 8, 9]), 1, 3)
    array([6])
    """
    if patient is None or floor <= 1:
        return np.full(n, max(floor, 1), dtype=np.int64)
    found = np.full(n, floor, dtype=np.int64)
    for i in range(n):
        sizes = np.unique(patient[owner == i], return_counts=True)[1]
        found[i] = 1 + np.sort(sizes)[::-1][: floor - 1].sum()
    return np.maximum(found, floor)


def most_patients(rows: NDArray[np.bool_], owner: NDArray[np.integer], patient: Ints | None, n: int) -> int:
    """The most different patients that any one center has among some rows."""
    mine = np.flatnonzero(rows)
    if not len(mine):
        return 0
    if patient is None:
        return int(np.bincount(owner[mine], minlength=n).max())
    pairs = np.unique(np.stack([owner[mine].astype(np.int64), patient[mine]]), axis=1)
    return int(np.bincount(pairs[0], minlength=n).max())


def both_enough(event: NDArray[np.bool_], patient: Ints | None, floor: int) -> bool:
    """Whether rows with an event, and those without it, are each of at least ``floor`` patients.

    A score of fewer tells how many they are: an AUROC is a fraction of pairs of the two.

    >>> both_enough(np.array([True, True, False, False]), np.array([1, 1, 2, 3]), 2)
    False
    """
    owner = np.zeros(len(event), dtype=np.int64)
    return min(most_patients(part, owner, patient, 1) for part in (event, ~event)) >= floor


def in_round_numbers(values: Floats, base: int) -> Floats:
    """A column of a center as it may be summed up: where it has few different values, how many rows have each
    is a multiple of ``base``, and otherwise as it is.

    Mean and variance of 0, 1 and 2 are how many there are of each. Gaps are NaN, and what is left over is.

    >>> in_round_numbers(np.array([0.0] * 12 + [2.0] * 3), 10)
    array([ 0.,  0.,  0.,  0.,  0.,  0.,  0.,  0.,  0.,  0., nan, nan, nan,
           nan, nan])
    """
    known = values[np.isfinite(values)]
    levels, count = np.unique(known, return_counts=True)
    if not 1 < len(levels) <= FEW_VALUES:
        return values
    told = np.repeat(levels, rounded(count.astype(np.float64), base).astype(np.int64))
    return np.concatenate([told, np.full(max(len(values) - len(told), 0), np.nan)])


def rounded(counts: Floats, base: Floats | float) -> Floats:
    """Counts as multiples of ``base``, the nearest one; a half goes up.

    >>> rounded(np.array([0.0, 4.0, 5.0, 9.0, 26.0]), 10)
    array([ 0.,  0., 10., 10., 30.])
    """
    return np.asarray(np.floor(counts / base + 0.5) * base)


def rounded_differences(x: Floats, y: Floats, base: float) -> Floats:
    """(k,) the difference of every column's mean between the outcomes, in its standard deviations.

    x: (rows, k).  y: (rows,) 0 or 1.  base: the fewest rows that are told of. A 0/1 column as
    :func:`told_difference` has it; another, with ``base`` rows of both outcomes, to one in ``base`` of a
    deviation: no finer than what one patient may bring.
    """
    positive = y > 0
    told = np.zeros(x.shape[1])
    enough = min(positive.sum(), (~positive).sum()) >= base
    for k, column in enumerate(x.T):
        if np.isin(column, (0.0, 1.0)).all():
            counts = [[(column[part] == v).sum() for v in (1, 0)] for part in (positive, ~positive)]
            told[k] = told_difference(np.array(counts, dtype=np.float64), base)
        elif enough and column.std() > 1e-5:
            gap = (column[positive].mean() - column[~positive].mean()) / column.std()
            told[k] = np.rint(gap * base) / base
    return told


def told_difference(cells: Floats, base: float) -> float:
    """The standardised difference of a 0/1 column's means between the outcomes, from its table (outcome,
    value): nothing if a cell is small, and otherwise from cells rounded to multiples of ``base``.

    Rounded, so that a small cell of another level does not follow as what is missing from the sum.
    """
    if ((cells > 0) & (cells < base)).any():
        return 0.0
    cells = rounded(cells, base)
    size = cells.sum(axis=1)
    rate = cells[:, 0].sum() / max(size.sum(), 1.0)
    if (size == 0).any() or not 0 < rate < 1:
        return 0.0
    return float((cells[0, 0] / size[0] - cells[1, 0] / size[1]) / np.sqrt(rate * (1 - rate)))


def without_small(x: Floats, y: Floats, base: float, groups: Ints | None = None) -> Floats:
    """(rows, k) the columns, zero instead of a 0/1 column with a cell of fewer than ``base`` rows, but not
    none, in its table with the outcome.

    For sums over rows that are told: such a column then adds nothing to them.
    groups: (k,) the category whose level a column is, -1 if it is none. Levels of a category add up to all
    rows; so where one thing of them is hidden, and small, it follows from the others. The level with the
    fewest rows is then hidden, too.
    """
    flags = np.isin(x, (0.0, 1.0)).all(axis=0)
    cells = np.stack([(x[y == v] == w).sum(axis=0) for v in (0, 1) for w in (0, 1)])
    small = np.asarray(flags & ((cells > 0) & (cells < base)).any(axis=0))
    kinds = np.full(x.shape[1], -1) if groups is None else groups
    for group in np.unique(kinds[kinds >= 0]).tolist():
        levels = np.flatnonzero(kinds == group)
        told = levels[~small[levels]]
        beside = x[:, told].sum(axis=1) == 0  # rows of hidden levels, and of none
        hidden = [int((beside & (y == v)).sum()) for v in (0, 1)]
        unknown = small[levels].sum() + bool((x[:, levels].sum(axis=1) == 0).any())
        if len(told) and unknown == 1 and any(0 < count < base for count in hidden):
            small[told[np.argmin(x[:, told].sum(axis=0))]] = True
    return np.where(small, 0.0, x)
