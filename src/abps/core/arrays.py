"""Arrays of model weights: shapes, mixtures, and whether weights that arrive are plausible."""

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


#: How many times farther from the common start than the own model a peer's may be. Among the built-in centers
#: the largest ratio of two honest ones is 3.4, in the first round; a center with forty times the rows takes
#: forty times the steps.
FARTHEST = 30.0


def distances(models: NDArray[np.float32], start: NDArray[np.float32]) -> NDArray[np.float64]:
    """(k,) how far models (k, columns) are from the common start (P,); not finite where a model is none.

    Columns beyond the start's begin at zero.
    """
    known = min(models.shape[1], len(start))
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.zeros(len(models))
        for k, model in enumerate(models):  # row by row: no copy of all models at once
            step = model[:known] - start[:known]
            total[k] = np.dot(step, step) + np.dot(model[known:], model[known:])
        return np.sqrt(total)


def plausible(
    theirs: NDArray[np.float64], own: NDArray[np.float64], farthest: float = FARTHEST
) -> NDArray[np.bool_]:
    """(k,) whether models are finite and not too far out, by their distances and those of the own models."""
    with np.errstate(invalid="ignore"):
        return np.isfinite(theirs) & (theirs <= farthest * own + 1e-12)
