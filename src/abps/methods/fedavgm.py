"""FedAvgM (Hsu et al. 2019): FedAvg with momentum on the server.

v <- beta v + (w - mean of the centers' models);  w <- w - server_lr v. Classical heavy-ball momentum,
without Nesterov's look-ahead and with a full first step. It speeds up; the paper's "EMA momentum"
(``smoothing`` of FedAvg) slows down: the two are different things.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from abps.core import ledger as bytes_of
from abps.core.errors import RequestError
from abps.core.ledger import Ledger
from abps.core.matching import Rest
from abps.methods.base import Method, Outcome, Wire, World
from abps.methods.fedavg import server_mean


@dataclass(frozen=True, eq=False)
class State:
    """Models (n, P), the server's shared columns (shared,) and its velocity (shared,)."""

    models: Tensor
    server: Tensor
    velocity: Tensor


@dataclass(frozen=True)
class FedAvgM(Method):
    """beta: share of its velocity that the server keeps.  server_lr: its step along the velocity."""

    wire: Wire = field(default_factory=Wire)
    weighting: str = "size"
    beta: float = 0.9
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise RequestError(f"beta={self.beta}: a share, choose 0 to below 1")
        if self.server_lr <= 0:
            raise RequestError(f"server_lr={self.server_lr}: a step size, choose above 0")

    def init(self, world: World) -> State:
        """The common start at rest."""
        server = world.learner.start[: self.wire.shared(world)].clone()
        return State(world.common_start(), server, torch.zeros_like(server))

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """Train, send up, average, move the server with momentum, send down."""
        trained = world.learner.train(state.models, t)
        traffic = bytes_of.star(world.n, self.wire.payload(world))
        if not ledger.affords(traffic):
            return State(trained, state.server, state.velocity), Outcome.alone(
                world.n, Rest.BUDGET, overdrawn=True
            )
        shared = self.wire.shared(world)
        mean = server_mean(world, self.wire, trained[:, :shared], self.weighting, t)
        velocity = self.beta * state.velocity + (state.server - mean)
        server = state.server - self.server_lr * velocity
        trained[:, :shared] = self.wire.deliver(world, server[None], t, server=True)
        return State(trained, server, velocity), Outcome.of_star(world.n, traffic)
