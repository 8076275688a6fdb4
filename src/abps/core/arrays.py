"""Models as rows of weights (n, P), and the little arithmetic on rows that methods share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: One model (P,), or one per row (n, P).
Weights = NDArray[np.float32]


def repeated(row: Weights, n: int) -> Weights:
    """(n, P) one model (P,) or (1, P) in n rows, without a copy: a view that must not be written to."""
    return np.broadcast_to(row, (n, row.shape[-1]))


def compact(rows: Weights) -> Weights:
    """The same as compiled code takes it: row by row in memory, and writable."""
    return np.require(rows, np.float32, ["C", "W"])


def weighted_sum(weights: Weights, rows: Weights) -> Weights:
    """(P,) the sum of rows (n, P) times weights (n,), row after row.

    No BLAS: its order of summation, and so the last bit, differs between machines.
    """
    total = np.zeros(rows.shape[1:], dtype=rows.dtype)
    for weight, row in zip(weights.astype(rows.dtype), rows):
        total += weight * row
    return total


def lerp(start: Weights, end: Weights, weight: float | Weights) -> Weights:
    """``start`` moved towards ``end`` by the share ``weight`` of the way, rounded once."""
    share = np.asarray(weight, dtype=np.float32)
    near = np.abs(share) < 0.5  # from the nearer end, so that 0 and 1 give the ends themselves
    way = (end - start).astype(np.float64) * np.where(near, share, share - np.float32(1.0))
    return (np.where(near, start, end) + way).astype(np.float32)
