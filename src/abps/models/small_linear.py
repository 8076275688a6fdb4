"""The learning of linear models at a site, in NumPy alone: no PyTorch and no compiler is loaded for it.

The same steps as compiled code takes (:mod:`abps.models.native.linear`), of binary outcomes, for the few
centers that have their rows here; a product with all rows takes nearly all of the time either way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.outcome import Outcome
from abps.data.prepare import Rows
from abps.models.foundation import Foundation
from abps.models.layout import Layout, linear_layout
from abps.models.metrics import Segments
from abps.models.mixtures import Mixtures
from abps.models.training import PLAIN, Objective
from abps.tensors import Tensor, torch

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass
class SmallLinear(Foundation):
    """Linear models of a binary outcome, one center after the other."""

    seed: int

    def __post_init__(self) -> None:
        outcome, training = self.data.outcome, self.training
        if not outcome.binary or training.optimizer != "descent" or training.clip is not None:
            raise RequestError("linear models in NumPy alone: a binary outcome, optimizer=descent, no clip")
        self.start = linear_start(self.data.width, outcome)

    @property
    def layout(self) -> Layout:
        """Where every parameter sits."""
        return linear_layout(self.data.width, self.data.outcome)

    def train(
        self,
        w: Tensor,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Tensor:
        """(n, P) the models after every center's local steps; ``w`` is left as it was."""
        if objective.contrast is not None or objective.lesson is not None or objective.gaussian is not None:
            raise RequestError("linear models in NumPy alone learn from their own rows, and terms in weights")
        after, steps = w.clone(), self.steps(objective, round)
        count = self.training.epochs if epochs is None else epochs
        for i in np.flatnonzero(self.data.train.sizes):
            self._descend(after.numpy()[i], int(i), steps[i], objective, columns, count)
        return after

    def _descend(
        self, w: Floats, i: int, step: np.float32, objective: Objective, columns: slice, epochs: int
    ) -> None:
        """Steps of center i down the gradient of its mean loss, in place; the intercept has no penalty."""
        x, y = self._rows(self.data.train, i)
        anchor, shift = _row(objective.anchor, i), _row(objective.shift, i)
        given = objective.strength
        strength = np.float32(given.numpy()[i] if isinstance(given, Tensor) else given)
        decay = np.full(len(w), self.training.weight_decay, dtype=np.float32)
        decay[-1] = 0.0
        for _ in range(epochs):
            slope = _slope(w, x, y)
            if anchor is not None:
                slope += strength * (w - anchor)
            if shift is not None:
                slope += shift
            w[columns] -= step * (slope + decay * w)[columns]

    def _rows(self, rows: Rows, i: int) -> tuple[Floats, Floats]:
        """Inputs (rows, d) and outcomes (rows,) of center i."""
        mine = slice(int(rows.start[i]), int(rows.start[i + 1]))
        return rows.x[mine], rows.y[mine]

    def logits(self, w: Tensor, rows: Rows, owner: Ints | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        self.look(rows)
        owner = np.arange(len(w)) if owner is None else owner
        answers = [_logits(w.numpy()[k], self._rows(rows, int(i))[0]) for k, i in enumerate(owner)]
        start = np.concatenate([[0], np.cumsum(rows.sizes[owner])])
        return Segments(np.concatenate([np.zeros(0, np.float32), *answers]), start)

    def mixture_logits(self, own: Tensor, others: Tensor, parts: Mixtures, rows: Rows) -> Segments:
        """Logits of every mixture on the rows of its owner."""
        return self.settle(own, others, parts, rows)[1]

    def gradient(self, w: Tensor, rows: Rows, owner: Ints | None = None) -> Tensor:
        """(models, P) gradient of model k's mean loss over all rows of center ``owner[k]``."""
        self.look(rows)
        owner = np.arange(len(w)) if owner is None else owner
        slopes = np.zeros(w.shape, dtype=np.float32)
        for k in np.flatnonzero(rows.sizes[owner]):
            slopes[k] = _slope(w.numpy()[k], *self._rows(rows, int(owner[k])))
        return torch.from_numpy(slopes)

    def representation(self, w: Tensor, x: Tensor) -> Tensor:
        """(m, b, d) what every input adds to the logit, of models (m, P) on rows (m, b, d)."""
        return torch.from_numpy(x.numpy() * w.numpy()[:, None, :-1])


def linear_start(width: int, outcome: Outcome) -> Tensor:
    """(P,) the common start of linear models of a binary outcome."""
    start = np.zeros(width + 1, dtype=np.float32)
    start[width:] = outcome.start
    return torch.from_numpy(start)


def _logits(w: Floats, x: Floats) -> Floats:
    """(rows,) what a model answers."""
    return np.asarray(x @ w[:-1] + w[-1], dtype=np.float32)


def _slope(w: Floats, x: Floats, y: Floats) -> Floats:
    """(P,) the gradient of the mean loss."""
    with np.errstate(over="ignore"):
        chance = np.float32(1.0) / (np.float32(1.0) + np.exp(-_logits(w, x)))
    residual = (chance - y) * np.float32(1.0 / len(y))
    slope = np.empty_like(w)
    slope[:-1], slope[-1] = residual @ x, residual.sum()
    return slope


def _row(value: Tensor | None, i: int) -> Floats | None:
    """(P,) of center i, from one row for all (P,), (1, P) or one for each (n, P)."""
    if value is None:
        return None
    rows = value.numpy().reshape(-1, value.shape[-1])
    found: Floats = rows[min(i, len(rows) - 1)]
    return found
