"""The optimisers of many centers at once, as one pass over memory that is used again.

The same update as ``torch.optim.Adam`` and ``torch.optim.SGD`` with coupled weight decay (the tests
compare), without their bookkeeping at every step. A center's optimiser starts afresh every round.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from abps.models.workspace import Workspace


class Optimizer(Protocol):
    """Moves weights along their gradient."""

    def step(self, gradient: Tensor) -> None:
        """One step of all centers; ``gradient`` has the weights' shape."""


class Adam:
    """Adam with its usual constants, on weights (m, P) that change in place."""

    def __init__(self, w: Tensor, lr: float, weight_decay: float, space: Workspace) -> None:
        self._w, self._lr, self._decay = w, lr, weight_decay
        self._mean = space.take("adam mean", *w.shape).zero_()
        self._square = space.take("adam square", *w.shape).zero_()
        self._steps = torch.zeros((), device=w.device)

    def step(self, gradient: Tensor) -> None:
        """One step of all centers."""
        self._steps += 1
        torch._fused_adam_(
            [self._w],
            [gradient],
            [self._mean],
            [self._square],
            [],
            [self._steps],
            lr=self._lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=self._decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


class Descent:
    """Gradient descent with a step (m, 1) of every center's own, and a penalty (P,) of every parameter's."""

    def __init__(self, w: Tensor, steps: Tensor, decay: Tensor) -> None:
        self._w, self._steps, self._decay = w, steps, decay

    def step(self, gradient: Tensor) -> None:
        """One step of all centers."""
        self._w.sub_((gradient + self._decay * self._w) * self._steps)


class SGD:
    """Plain gradient descent, on weights (m, P) that change in place."""

    def __init__(self, w: Tensor, lr: float, weight_decay: float) -> None:
        self._w, self._lr, self._decay = w, lr, weight_decay

    def step(self, gradient: Tensor) -> None:
        """One step of all centers."""
        self._w.sub_(torch.add(gradient, self._w, alpha=self._decay), alpha=self._lr)
