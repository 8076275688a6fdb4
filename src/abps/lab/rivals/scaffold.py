"""SCAFFOLD (Karimireddy et al. 2020): control variates take a center's own bias out of its steps.

Every step follows g - c_i + c, where c_i is center i's gradient and c the mean over all centers. After a
round c_i is renewed with the full gradient of its loss at the received model (the paper's option I; option II
reads the displacement as a sum of gradients, which it is with SGD only). Model and control variate travel
both ways, so a round costs two of FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from abps.core.arrays import Weighting, Weights, lerp, repeated, shares, weighted_mean
from abps.core.errors import POSITIVE
from abps.methods.base import Context, Models
from abps.methods.star import Adding, Server, StarMethod
from abps.models.training import PLAIN, Objective


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  own: (r, P) the control variates c_i.  common: (P,) their mean c."""

    own: Weights
    common: Weights


@dataclass(frozen=True)
class Scaffold(StarMethod):
    """server_lr: the server's step.  weighting: size or uniform, of both means."""

    server_lr: float = 1.0
    weighting: Weighting = "size"
    codec: str = "fp32"

    #: The model, and the control variate.
    messages = 2

    limits: ClassVar = {"server_lr": POSITIVE}

    def init(self, context: Context) -> State:
        """The common start, all control variates zero."""
        start = context.common_start()
        return State(start, np.zeros_like(start), np.zeros_like(context.learner.start))

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        """Train with the correction, and renew the control variates."""
        if alone:
            return State(context.learner.train(state.models, t, PLAIN), state.own, state.common)
        corrected = Objective(shift=state.common - state.own)
        trained = context.learner.train(state.models, t, corrected)
        renewed = context.learner.gradient(state.models, context.data.train)
        return State(trained, renewed, state.common)

    @property
    def adds(self) -> Adding | None:
        """Two means."""
        return self.weighting

    def upload(self, context: Context, state: State, trained: State, t: int) -> tuple[Weights, ...]:
        """Model and control variate."""
        return trained.models, trained.own

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        """A step towards the mean model, and the mean control variate."""
        weights = shares(sizes, self.weighting)
        mean, common = (weighted_mean(each, weights) for each in sent)
        return (lerp(server.last[0] if server.last else start, mean, self.server_lr), common), None

    def receive(
        self, context: Context, state: State, trained: State, down: tuple[Weights, ...], t: int
    ) -> State:
        """All start from the server's model, with its mean control variate."""
        return State(repeated(down[0], context.r), trained.own, down[1])

    def rest(self, context: Context, state: State, trained: State, t: int) -> State:
        """The control variates stay as they are."""
        return State(trained.models, state.own, state.common)
