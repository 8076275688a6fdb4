"""FedAvg (McMahan et al. 2017) and its variants: +P, +P+Q, X.

Every center trains the server's model and sends it back; the server averages. Layers may stay private
(+P, FedPer), the wire may be coarser (+Q), and the server may smooth its trunk over rounds (X).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from abps.core import ledger as bytes_of
from abps.core.errors import RequestError
from abps.core.ledger import Ledger
from abps.core.matching import Rest
from abps.learn.training import PLAIN, Objective
from abps.methods.base import Method, Models, Outcome, Wire, World, center_weights, weighted_mean


@dataclass(frozen=True)
class FedAvg(Method):
    """wire: codec and private layers.  weighting: size or uniform.

    smoothing: share of its previous trunk that the server keeps (the paper's EMA momentum); 0 is none.
    """

    wire: Wire = field(default_factory=Wire)
    weighting: str = "size"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise RequestError(f"smoothing={self.smoothing}: a share, choose 0 to below 1")

    def init(self, world: World) -> Models:
        """The common start."""
        return Models(world.common_start())

    def objective(self, state: Models) -> Objective:
        """What a center adds to its own loss: nothing here; FedAvg's relatives differ in it."""
        return PLAIN

    def apply(self, world: World, state: Models, t: int, ledger: Ledger) -> tuple[Models, Outcome]:
        """Train, send up, average, send down."""
        trained = world.learner.train(state.models, t, PLAIN if ledger.closed else self.objective(state))
        return self.exchange(world, state, trained, t, ledger)

    def exchange(
        self, world: World, state: Models, trained: Tensor, t: int, ledger: Ledger
    ) -> tuple[Models, Outcome]:
        """Send the trained models (n, P) up, average, send down; ``trained`` is overwritten."""
        traffic = bytes_of.star(world.n, self.wire.payload(world))
        if not ledger.affords(traffic):
            return Models(trained), Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
        shared = self.wire.shared(world)
        trunk = server_mean(world, self.wire, trained[:, :shared], self.weighting, t)
        if self.smoothing:
            trunk = torch.lerp(trunk, state.models[0, :shared], self.smoothing)
        trained[:, :shared] = self.wire.deliver(world, trunk[None], t, server=True)
        return Models(trained), Outcome.of_star(world.n, traffic)


def server_mean(world: World, wire: Wire, sent: Tensor, weighting: str, t: int) -> Tensor:
    """(shared,) the average of what arrives at the server."""
    return weighted_mean(wire.deliver(world, sent, t), center_weights(world, weighting))
