"""BNN: FedAvg with Bayesian networks. Every weight is a Gaussian, and the Gaussians are averaged.

A weight is N(m, s^2) with s = softplus(r). Every batch draws all weights once, w = m + s e, and

    loss = BCE(w) + (kl / rows) * KL(N(m, s^2), prior).

The server averages m, and s^2 (not r): ``moments`` s^2 = sum p_i s_i^2; ``mixture`` adds the centers'
disagreement in m; ``conflation`` is the product of the centers' Gaussians, each to the power p_i.
Both m and r travel, so a round costs two of FedAvg's. Predictions are the mean probability over
``samples`` draws of the weights, the same draws for every center and round.

The prior does the work of weight decay, which would drive s up to softplus(0) = 0.69: it must be off.
The noise does the work of dropout, which is off by default.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from abps.core import ledger as bytes_of
from abps.core import streams
from abps.core.errors import RequestError
from abps.core.ledger import Ledger
from abps.core.matching import Rest
from abps.data.prepare import Rows
from abps.learn.gaussian import Gaussian
from abps.learn.metrics import Segments
from abps.learn.training import Objective, Training
from abps.methods.base import Method, Outcome, Wire, World, center_weights, weighted_mean


@dataclass(frozen=True, eq=False)
class State:
    """models: (n, P) the means.  raw: (n, P) the raw spreads r."""

    models: Tensor
    raw: Tensor

    @property
    def held(self) -> slice:
        """The rows that differ: the first stands for all where all centers hold what the server sent."""
        return slice(0, 1) if self.models.stride(0) == 0 else slice(None)


@dataclass(frozen=True)
class BNN(Method):
    """sigma: the initial spread.  kl: weight of the divergence from the prior.

    prior: zero, N(0, prior_sigma^2), or global, what was received.
    average: moments, mixture or conflation.
    evaluate: sampled, or means (a plain network with the mean weights).  samples: draws of an evaluation.
    """

    training: Training = field(default_factory=lambda: Training(weight_decay=0.0, dropout=0.0))
    codec: str = "fp32"
    weighting: str = "size"
    sigma: float = 0.02
    kl: float = 0.01
    prior: str = "zero"
    prior_sigma: float = 0.1
    average: str = "moments"
    evaluate: str = "sampled"
    samples: int = 10

    def __post_init__(self) -> None:
        Wire(self.codec)
        if self.sigma <= 0 or self.prior_sigma <= 0 or self.kl < 0:
            raise RequestError(
                f"sigma={self.sigma}, prior_sigma={self.prior_sigma}, kl={self.kl}: "
                "choose spreads above 0 and kl from 0"
            )
        if self.samples < 1:
            raise RequestError(f"samples={self.samples}: choose at least 1")
        for name, known in (
            ("prior", ("zero", "global")),
            ("average", ("moments", "mixture", "conflation")),
            ("evaluate", ("sampled", "means")),
        ):
            if getattr(self, name) not in known:
                raise RequestError(f"{name}={getattr(self, name)!r}: choose {', '.join(known)}")

    def init(self, world: World) -> State:
        """The common start as means, one spread for all weights."""
        if self.training.weight_decay:
            raise RequestError(
                f"weight_decay={self.training.weight_decay}: it would widen every weight's spread; "
                "set weight_decay=0 and steer with kl and prior_sigma"
            )
        start = world.common_start()
        return State(start, raw_of(torch.full_like(start, self.sigma)))

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """Train means and spreads, send both up, average, send both down."""
        size = state.models.shape[1]
        both = torch.cat([state.models[state.held], state.raw[state.held]], dim=1).expand(world.n, -1)
        trained = world.learner.train(both, t, self.objective(world, state))
        mean, raw = trained[:, :size].contiguous(), trained[:, size:].contiguous()
        wire = Wire(self.codec)
        traffic = bytes_of.star(world.n, 2 * wire.payload(world))
        if not ledger.affords(traffic):
            return State(mean, raw), Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
        weights = center_weights(world, self.weighting)
        # Two messages each way, each with a number of its own.
        first, second = 2 * t - 1, 2 * t
        arrived = wire.deliver(world, mean, first), F.softplus(wire.deliver(world, raw, second))
        center, spread = pooled(*arrived, weights, self.average)
        mean = wire.deliver(world, center[None], first, server=True).expand(world.n, -1)
        raw = wire.deliver(world, raw_of(spread)[None], second, server=True).expand(world.n, -1)
        return State(mean, raw), Outcome.of_star(world.n, traffic)

    def objective(self, world: World, state: State) -> Objective:
        """Means and raw spreads are trained; the prior, and its say in a center's loss."""
        center, spread = (
            torch.zeros(world.learner.layout.size),
            torch.full_like(state.raw[0], self.prior_sigma),
        )
        if self.prior == "global":
            center = state.models[state.held].expand(world.n, -1)
            spread = F.softplus(state.raw[state.held]).expand(world.n, -1)
        return Objective(gaussian=Gaussian(center, spread, self.kl / world.sizes().clamp_min(1.0)))

    def logits(self, world: World, state: State, rows: Rows) -> Segments:
        """Log-odds of the mean probability over the draws."""
        if self.evaluate == "means":
            return world.learner.logits(state.models, rows)
        rng = streams.generator(world.seed, "sample-weights")
        mean, spread = state.models[state.held], F.softplus(state.raw[state.held])
        total = torch.zeros(len(rows.y), dtype=torch.float64)
        for _ in range(self.samples):
            noise = torch.from_numpy(rng.standard_normal(spread.shape[1], dtype=np.float32))
            answer = world.learner.logits((mean + spread * noise).expand(world.n, -1), rows)
            total += torch.sigmoid(torch.from_numpy(answer.values).double())
        return Segments(torch.logit(total / self.samples, eps=1e-12).float().numpy(), rows.start)


def raw_of(spread: Tensor) -> Tensor:
    """The inverse of softplus, without overflow."""
    return spread + torch.log(-torch.expm1(-spread))


def pooled(mean: Tensor, spread: Tensor, weights: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """(P,) mean and spread of the average of n Gaussians (n, P) with weights (n,)."""
    if how == "conflation":
        precision = weighted_mean(spread**-2, weights)
        return weighted_mean(mean * spread**-2, weights) / precision, precision**-0.5
    center = weighted_mean(mean, weights)
    variance = weighted_mean(spread**2, weights)
    if how == "mixture":
        variance = variance + weighted_mean((mean - center) ** 2, weights)
    return center, variance.sqrt()
