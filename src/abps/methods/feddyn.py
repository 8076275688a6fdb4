"""FedDyn (Acar et al. 2021): every center's loss is bent until all agree on one optimum.

A center remembers how far it has moved in all rounds so far, d_i = sum of (theta_i - w), and minimises

    F_i(theta) + (alpha_i / 2) ||theta - (w - d_i)||^2,

which is the paper's F_i - <g_i, theta> + (alpha / 2) ||theta - w||^2 with g_i = -alpha_i d_i. The server
keeps h, the mean of all d_i, and sends out the "cloud" model, mean of theta plus h. What is evaluated is
the plain mean of the centers' models, as the authors do; a center can work it out from the clouds it has
received, so it costs no byte.

alpha must hold a round's displacement against Adam's normalised steps: with few steps a round, values
below about 0.3 let h grow like momentum without friction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from abps.core import ledger as bytes_of
from abps.core.errors import RequestError
from abps.core.ledger import Ledger
from abps.core.matching import Rest
from abps.learn.training import PLAIN, Objective
from abps.methods.base import Method, Outcome, Wire, World, center_weights


@dataclass(frozen=True, eq=False)
class State:
    """models: (n, P) evaluated.  cloud: (n, P) where training starts.

    moved: (n, P) each center's d_i.  h: (P,) the server's mean of them.
    """

    models: Tensor
    cloud: Tensor
    moved: Tensor
    h: Tensor


@dataclass(frozen=True)
class FedDyn(Method):
    """alpha: strength of the regulariser.  codec: how weights travel.

    weighting: size gives center i alpha / (N_i / mean N), as the authors' code does; uniform gives alpha
    to all. The server's mean is uniform in both.
    server_h: whether the server adds h to what it sends.  evaluate: mean (of the centers' models) or cloud.
    """

    alpha: float = 1.0
    codec: str = "fp32"
    weighting: str = "size"
    server_h: bool = True
    evaluate: str = "mean"

    def __post_init__(self) -> None:
        Wire(self.codec)
        if self.alpha <= 0:
            raise RequestError(f"alpha={self.alpha}: the strength of the regulariser, choose above 0")
        if self.evaluate not in ("mean", "cloud"):
            raise RequestError(f"evaluate={self.evaluate!r}: choose mean or cloud")

    def init(self, world: World) -> State:
        """The common start; nobody has moved."""
        start = world.common_start()
        return State(start, start, torch.zeros_like(start), torch.zeros_like(world.learner.start))

    def strengths(self, world: World) -> Tensor:
        """(n,) alpha_i."""
        weights = center_weights(world, self.weighting)
        return self.alpha * weights.mean() / weights

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """Train on the bent loss, send up, average, send the cloud down."""
        bent = Objective(self.strengths(world), state.cloud - state.moved)
        trained = world.learner.train(state.cloud, t, PLAIN if ledger.closed else bent)
        wire = Wire(self.codec)
        traffic = bytes_of.star(world.n, wire.payload(world))
        if not ledger.affords(traffic):
            return State(trained, trained, state.moved, state.h), Outcome.alone(
                world.n, Rest.BUDGET, overdrawn=True
            )
        mean = wire.deliver(world, trained, t).mean(0)
        # All centers received the same cloud, so the first row stands for it.
        h = state.h + (mean - state.cloud[0])
        sent = mean + h if self.server_h else mean
        cloud = wire.deliver(world, sent[None], t, server=True).expand(world.n, -1)
        shown = mean.expand(world.n, -1) if self.evaluate == "mean" else cloud
        return State(shown, cloud, state.moved + (trained - state.cloud), h), Outcome.of_star(
            world.n, traffic
        )
