"""BNN: FedAvg with Bayesian networks. Every weight is a Gaussian N(m, s²), s = softplus(r), and the Gaussians
are averaged.

Every batch draws all weights once; loss = BCE(w) + (kl / rows) * KL(N(m, s²), N(0, prior_sigma²)). The server
averages m, and s² (not r). Both m and r travel, so a round costs two of FedAvg's. Predictions are the mean
probability over ``samples`` draws, the same for every center and round. The prior does the work of weight
decay, which must be off (it would drive s up to softplus(0) = 0.69), and the noise that of dropout.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.special import expit, logit

from abps.core import streams
from abps.core.arrays import Weighting, Weights, repeated, shares, weighted_mean
from abps.core.errors import FROM_0, FROM_1, POSITIVE, RequestError
from abps.data.prepare import Rows
from abps.methods.base import Context, Models
from abps.methods.star import Server, StarMethod
from abps.models.metrics import Segments
from abps.models.training import GaussianWeights, Objective, Training


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P) the means.  raw: (r, P) the raw spreads r."""

    raw: Weights

    @property
    def held(self) -> slice:
        """The rows that differ: the first stands for all where all centers hold what the server sent."""
        return slice(0, 1) if self.models.strides[0] == 0 else slice(None)


@dataclass(frozen=True)
class BNN(StarMethod):
    """sigma: the initial spread.  kl: weight of the divergence from the prior, of spread prior_sigma.
    samples: draws of an evaluation."""

    only_binary: ClassVar[str] = "it averages probabilities of an event; choose another method"

    training: Training = field(default_factory=lambda: Training(weight_decay=0.0, dropout=0.0))
    codec: str = "fp32"
    weighting: Weighting = "size"
    sigma: float = 0.02
    kl: float = 0.01
    prior_sigma: float = 0.1
    samples: int = 10

    #: The means, and the raw spreads.
    messages = 2

    limits: ClassVar = {"sigma": POSITIVE, "prior_sigma": POSITIVE, "kl": FROM_0, "samples": FROM_1}

    def init(self, context: Context) -> State:
        if self.training.weight_decay:
            raise RequestError(
                f"weight_decay={self.training.weight_decay}: it would widen every weight's spread; "
                "set weight_decay=0 and steer with kl and prior_sigma"
            )
        start = context.common_start()
        return State(start, raw_of(np.full_like(start, self.sigma)))

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        size = state.models.shape[1]
        both = repeated(np.concatenate([state.models[state.held], state.raw[state.held]], axis=1), context.r)
        trained = context.learner.train(both, t, self.objective(context, state))
        return State(trained[:, :size], trained[:, size:])

    def upload(self, context: Context, state: State, trained: State, t: int) -> tuple[Weights, ...]:
        return trained.models, trained.raw

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        weights = shares(sizes, self.weighting)
        variance = weighted_mean(softplus(sent[1]) ** 2, weights)
        return (weighted_mean(sent[0], weights), raw_of(np.sqrt(variance))), None

    def receive(
        self, context: Context, state: State, trained: State, down: tuple[Weights, ...], t: int
    ) -> State:
        return State(repeated(down[0], context.r), repeated(down[1], context.r))

    def objective(self, context: Context, state: State) -> Objective:
        center = np.zeros(context.learner.layout.size, dtype=np.float32)
        spread = np.full_like(state.raw[0], self.prior_sigma)
        weight = (self.kl / np.maximum(context.sizes(), np.float32(1.0))).astype(np.float32)
        return Objective(gaussian=GaussianWeights(center, spread, weight))

    def logits(self, context: Context, state: State, rows: Rows) -> Segments:
        rng = streams.generator(context.seed, "sample-weights")
        mean, spread = state.models[state.held], softplus(state.raw[state.held])
        total = np.zeros(len(rows.y))
        for _ in range(self.samples):
            noise = rng.standard_normal(spread.shape[1], dtype=np.float32)
            answer = context.learner.logits(repeated(mean + spread * noise, context.r), rows)
            total += expit(answer.values.astype(np.float64))
        return Segments(
            logit(np.clip(total / self.samples, 1e-12, 1.0 - 1e-12)).astype(np.float32), rows.start
        )


def softplus(raw: Weights) -> Weights:
    return np.logaddexp(raw, 0.0, dtype=np.float64).astype(np.float32)


def raw_of(spread: Weights) -> Weights:
    return spread + np.log(-np.expm1(-spread))
