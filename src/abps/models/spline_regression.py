"""An additive model's columns: each number as a broken line, bent at quantiles and straight at both ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Where a line may bend: quantiles of the column.
BENDS = (0.1, 0.3, 0.5, 0.7, 0.9)

#: The deviation of a bend's column, where that of a plain column is 1: a bend is believed less readily.
BEND_SCALE = 0.5


@dataclass(frozen=True, eq=False)
class Basis:
    """Which column bends where, and how the columns that come of it are scaled.

    source: (k,) the column of every bend.  at: (k,) where it bends.
    mean, scale: (columns + k,) of the rows that it was fitted on.
    """

    source: NDArray[np.int64]
    at: Floats
    mean: Floats
    scale: Floats

    def of(self, x: Floats) -> Floats:
        """(rows, columns + k) the columns as they are, and for every bend how far beyond it a value lies."""
        return (_expanded(x, self.source, self.at) - self.mean) * self.scale


def _expanded(x: Floats, source: NDArray[np.int64], at: Floats) -> Floats:
    return np.concatenate([x, np.maximum(x[:, source] - at, 0.0)], axis=1)


def spline_basis(x: Floats, bends: tuple[float, ...] = BENDS) -> Basis:
    """The basis of a table (rows, columns): all columns with more than a few values may bend."""
    source: list[int] = []
    at: list[float] = []
    for column in range(x.shape[1]):
        values = x[:, column]
        if bends and len(np.unique(values)) > len(bends) + 1:
            knots = np.unique(np.quantile(values, bends))
            knots = knots[(knots > values.min()) & (knots < values.max())]
            source += [column] * len(knots)
            at += knots.tolist()
    made = _expanded(x, np.array(source, dtype=np.int64), np.array(at))
    spread = made.std(axis=0)
    scale = np.where(spread > 1e-9, 1.0 / np.where(spread > 1e-9, spread, 1.0), 0.0)
    scale[x.shape[1] :] *= BEND_SCALE
    return Basis(np.array(source, dtype=np.int64), np.array(at), made.mean(axis=0), scale)
