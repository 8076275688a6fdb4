"""FedAvgM (Hsu et al. 2019): FedAvg with momentum on the server.

v <- beta v + (w - mean of the centers' models);  w <- w - server_lr v. Classical heavy-ball momentum,
without Nesterov's look-ahead and with a full first step. It speeds up; the paper's "EMA momentum"
(``smoothing`` of FedAvg) slows down: the two are different things.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from abps.core.arrays import Weighting, Weights, shares, weighted_mean
from abps.core.errors import POSITIVE
from abps.methods.base import Context, Models, Wire
from abps.methods.fedavg import under
from abps.methods.star import Adding, Server, StarMethod


@dataclass(frozen=True, eq=False)
class Momentum:
    """The server's own model (shared,) and its velocity (shared,)."""

    model: Weights
    velocity: Weights


@dataclass(frozen=True)
class FedAvgM(StarMethod):
    """beta: share of its velocity that the server keeps.  server_lr: its step along the velocity."""

    wire: Wire = field(default_factory=Wire)
    weighting: Weighting = "size"
    beta: float = 0.9
    server_lr: float = 1.0

    #: What the server keeps.
    keeps = Momentum

    limits: ClassVar = {"beta": (0.0, math.nextafter(1.0, 0.0)), "server_lr": POSITIVE}
    searched: ClassVar = {"beta": (0.5, 0.9)}

    @property
    def adds(self) -> Adding | None:
        """A mean."""
        return self.weighting

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], Momentum]:
        """Move with momentum towards the average."""
        mean = weighted_mean(sent[0], shares(sizes, self.weighting))
        before = server.memory or Momentum(start[: len(mean)], np.zeros_like(mean))
        velocity = self.beta * before.velocity + (before.model - mean)
        model = before.model - self.server_lr * velocity
        return (model,), Momentum(model, velocity)

    def receive(
        self, context: Context, state: Any, trained: Models, down: tuple[Weights, ...], t: int
    ) -> Models:
        """The server's model in the place of the shared layers."""
        return Models(under(down[0], trained.models))
