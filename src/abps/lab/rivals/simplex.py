"""The nearest point of the simplex: shares that are none below zero and sum to one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def nearest(rows: Floats) -> Floats:
    """(k, n) for every row the nearest shares: max(row - c, 0), c such that they sum to one.

    >>> nearest(np.array([[0.2, 0.8], [3.0, 1.0], [0.5, 0.5]])).tolist()
    [[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]]
    """
    falling = -np.sort(-rows, axis=1)
    beyond = np.cumsum(falling, axis=1) - 1.0
    many = np.arange(1, rows.shape[1] + 1)
    # As many of the largest entries stay as can without one of them falling below zero.
    kept = (falling * many > beyond).sum(axis=1)
    cut = np.take_along_axis(beyond, kept[:, None] - 1, axis=1) / kept[:, None]
    return np.asarray(np.maximum(rows - cut, 0.0))
