"""The linear model: one coefficient per input and an intercept. On smooth terms it is an additive model.

It starts at zero and has two layers, the coefficients and the intercept: with one private layer a center
keeps its own level of risk and shares what the columns mean.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from abps.data.outcome import BINARY, Outcome
from abps.jit import compiled

#: Rounds of the power iteration; the tests compare with the singular value.
POWERS = 40


class Intercept(nn.Module):
    """A number that is added, one to each answer."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        """The same, shifted."""
        return x + self.value


class Linear(nn.Module):
    """Logits (rows,) = inputs (rows, width) times coefficients, and an intercept; of an outcome with several
    answers the terms (rows, terms) are mixed to answers (rows, outputs), each with an intercept."""

    def __init__(self, width: int, outcome: Outcome = BINARY) -> None:
        super().__init__()
        self.mix = outcome.mix
        self.terms = nn.Linear(width, len(self.mix), bias=False)
        nn.init.zeros_(self.terms.weight)
        self.intercept = Intercept(torch.from_numpy(outcome.start))

    def representation(self, x: Tensor) -> Tensor:
        """(rows, width) what every input adds to the logit; (rows, terms times width) to several."""
        return (x[:, None] * self.terms.weight).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits, or (rows, outputs) of several."""
        told = self.terms(x)
        if self.mix.shape != (1, 1):
            told = told @ torch.from_numpy(self.mix).to(told)
        return self.intercept(told.squeeze(-1))


@compiled
def curvatures(x, start, found):
    """(n,) the largest curvature of each center's mean logistic loss: a quarter of the largest eigenvalue of
    its second moments, the intercept as an input of ones; 0 for a center without rows."""
    d = x.shape[1]
    for i in range(len(start) - 1):
        mine = x[start[i] : start[i + 1]]
        rows = len(mine)
        if rows == 0:
            found[i] = 0.0
            continue
        way, level = np.full(d, np.float32(1.0 / np.sqrt(d + 1.0))), np.float32(1.0 / np.sqrt(d + 1.0))
        size = 0.0
        for _ in range(POWERS):
            seen = np.dot(mine, way) + level
            way = np.dot(seen, mine)
            level = seen.sum()
            size = np.sqrt(np.float64((way * way).sum()) + np.float64(level) ** 2)
            if size == 0.0:
                break
            way = way / np.float32(size)
            level = np.float32(level / size)
        found[i] = 0.25 * size / rows


def largest_curvature(x: NDArray[np.float32], start: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) the largest curvature of each center's mean logistic loss; center i owns start[i]:start[i+1]."""
    found = np.zeros(len(start) - 1)
    curvatures(np.ascontiguousarray(x), start, found)
    return found
