"""The same as a few compiled functions, in NumPy: for processes that do without a compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def areas(score: Floats, label: Floats, start: Ints) -> NDArray[np.float64]:
    """(groups,) of every pair of a positive and a negative row of a group: the share in which the positive
    one stands higher, ties as half."""
    area = np.full(len(start) - 1, np.nan)
    for g in range(len(area)):
        mine, y = score[start[g] : start[g + 1]], label[start[g] : start[g + 1]]
        high, low = mine[y > 0], np.sort(mine[~(y > 0)])
        if len(high) and len(low):
            below = np.searchsorted(low, high, "left").sum() + np.searchsorted(low, high, "right").sum()
            area[g] = below / (2.0 * len(high) * len(low))
    return area


def mixed_models(
    own: Floats, others: Floats, parts: tuple[NDArray[Any], ...], which: Ints, out: Floats
) -> None:
    """The models ``which`` themselves, to rows of ``out`` (k, P): see ``mixtures.Mixtures`` for the parts."""
    owner, keep, other, share, part = parts
    shared = others.shape[1]
    for k in which:
        mixed = own[owner[k]].copy()
        if part[k + 1] > part[k]:
            mixed[:shared] *= keep[k]
            for q in range(part[k], part[k + 1]):
                mixed[:shared] += share[q] * others[other[q], :shared]
        out[k] = mixed
