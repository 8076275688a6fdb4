"""SCAFFOLD (Karimireddy et al. 2020): control variates take a center's own bias out of its steps.

Every step follows g - c_i + c, where c_i is center i's gradient and c the mean over all centers. Model and
control variate travel both ways, so a round costs two of FedAvg's.

Networks take K local steps, after which c_i is the gradient at the received model x (the paper's option I;
option II reads the displacement as a sum of gradients, which it is with plain gradient steps only).

Convex models are solved, and an exact solution is the limit of ever more steps, for which the paper's bound
on the step size leaves no room: where a center's rows say nothing, c drives it off without end. So the K
steps become one implicit step of their whole length s, which stays bounded:

    y_i = argmin F_i(y) + (c - c_i)'y + |y - x|^2 / (2 s),    c_i <- c_i - c + (x - y_i) / s.

The latter is the paper's option II with s for K times the step size, and equals the gradient at y_i. With
convex losses the distance |x - x*|^2 + s^2 mean |c_i - c_i*|^2 from the optimum of all rows then never grows,
whatever s is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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
    """server_lr: the server's step.  step: the whole length s of a round's steps where models are solved.
    weighting: size or uniform, of both means."""

    server_lr: float = 1.0
    step: float = 10.0
    weighting: Weighting = "size"
    codec: str = "fp32"

    #: The model, and the control variate.
    messages = 2

    limits: ClassVar = {"server_lr": POSITIVE, "step": POSITIVE}

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """The learning rate, or the step of solved models."""
        return {"step": (3.0, 10.0)} if self.training.optimizer == "newton" else super().grid

    def init(self, context: Context) -> State:
        """The common start, all control variates zero."""
        start = context.common_start()
        return State(start, np.zeros_like(start), np.zeros_like(context.learner.start))

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        """Train with the correction, and renew the control variates."""
        if alone:
            return State(context.learner.train(state.models, t, PLAIN), state.own, state.common)
        shift = state.common - state.own
        if self.training.optimizer != "newton" or self.training.clip is not None:
            trained = context.learner.train(state.models, t, Objective(shift=shift))
            renewed = context.learner.gradient(state.models, context.data.train)
            return State(trained, renewed, state.common)
        implicit = Objective(1.0 / self.step, state.models, shift)
        trained = context.learner.train(state.models, t, implicit)
        renewed = (state.models - trained) / np.float32(self.step) - shift
        return State(trained, renewed * (context.data.train.sizes[:, None] > 0), state.common)

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
