"""Minimum cell size, in patients: counts of fewer do not leave a center; they are rounded or suppressed. A
published count of rows is a multiple of the fewest rows that certainly belong to that many patients
(:func:`least_rows`). A table of outcome and column with a smaller, non-empty cell is not published at all."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIN_CELL = 10  # the default minimum cell size: whatever leaves a site describes at least so many patients


def least_rows(owner: NDArray[np.integer], patient: Ints | None, n: int, min_cell: int) -> Ints:
    """(n,) how many rows of a center certainly belong to ``min_cell`` patients: one more than the rows of the
    ``min_cell - 1`` patients with the most.  owner, patient: (rows,); no patients: one row per patient.

    >>> least_rows(np.zeros(6, int), np.array([7, 7, 7, 8, 8, 9]), 1, 3)
    array([6])
    """
    if patient is None or min_cell <= 1:
        return np.full(n, max(min_cell, 1), dtype=np.int64)
    found = np.full(n, min_cell, dtype=np.int64)
    for i in range(n):
        sizes = np.unique(patient[owner == i], return_counts=True)[1]
        found[i] = 1 + np.sort(sizes)[::-1][: min_cell - 1].sum()
    return np.maximum(found, min_cell)


def most_patients(rows: NDArray[np.bool_], owner: NDArray[np.integer], patient: Ints | None, n: int) -> int:
    """The most different patients that any one center has among some rows."""
    mine = np.flatnonzero(rows)
    if not len(mine):
        return 0
    if patient is None:
        return int(np.bincount(owner[mine], minlength=n).max())
    pairs = np.unique(np.stack([owner[mine].astype(np.int64), patient[mine]]), axis=1)
    return int(np.bincount(pairs[0], minlength=n).max())


def both_enough(event: NDArray[np.bool_], patient: Ints | None, min_cell: int) -> bool:
    """Whether rows with an event, and rows without one, each belong to at least ``min_cell`` patients: an
    AUROC is a fraction of pairs of the two, and reveals the numbers of fewer.

    >>> both_enough(np.array([True, True, False, False]), np.array([1, 1, 2, 3]), 2)
    False
    """
    owner = np.zeros(len(event), dtype=np.int64)
    return min(most_patients(part, owner, patient, 1) for part in (event, ~event)) >= min_cell


def rounded(counts: Floats, base: Floats | float) -> Floats:
    """Counts as multiples of ``base``, the nearest one; a half goes up.

    >>> rounded(np.array([0.0, 4.0, 5.0, 9.0, 26.0]), 10)
    array([ 0.,  0., 10., 10., 30.])
    """
    return np.asarray(np.floor(counts / base + 0.5) * base)


def without_small(x: Floats, y: Floats, base: float, groups: Ints | None = None) -> Floats:
    """(rows, k) the columns, with zeros in place of a 0/1 column that has a small cell: one of its table with
    the outcome with fewer than ``base`` rows, but not none. Such a column then adds nothing to published
    sums.

    groups: (k,) the category whose level a column is, -1 if it is none. The levels of a category add up to
    all rows, so a single suppressed level would follow from the others; the level with the fewest rows is
    then suppressed, too.
    """
    flags = np.isin(x, (0.0, 1.0)).all(axis=0)
    cells = np.stack([(x[y == v] == w).sum(axis=0) for v in (0, 1) for w in (0, 1)])
    small = np.asarray(flags & ((cells > 0) & (cells < base)).any(axis=0))
    category = np.full(x.shape[1], -1) if groups is None else groups
    for group in np.unique(category[category >= 0]).tolist():
        levels = np.flatnonzero(category == group)
        shown = levels[~small[levels]]
        beside = x[:, shown].sum(axis=1) == 0  # rows of suppressed levels, and of none
        hidden = [int((beside & (y == v)).sum()) for v in (0, 1)]
        unknown = small[levels].sum() + bool((x[:, levels].sum(axis=1) == 0).any())
        if len(shown) and unknown == 1 and any(0 < count < base for count in hidden):
            small[shown[np.argmin(x[:, shown].sum(axis=0))]] = True
    return np.where(small, 0.0, x)
