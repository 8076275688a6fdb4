"""FedDyn (Acar et al. 2021): every center's loss is bent until all agree on one optimum.

A center remembers how far it has moved in all rounds so far, d_i = sum of (theta_i - w), and minimises

    F_i(theta) + (alpha_i / 2) ||theta - (w - d_i)||^2,

which is the paper's F_i - <g_i, theta> + (alpha / 2) ||theta - w||^2 with g_i = -alpha_i d_i. The server
keeps h, the mean of all d_i, and sends out the "cloud" model, mean of theta plus h. What is evaluated is
the plain mean of the centers' models, as the authors do; a center works it out from the clouds it has
received, so it costs no byte.

alpha must hold a round's displacement against Adam's normalised steps: with few steps a round, values
below about 0.3 let h grow like momentum without friction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from abps.core.arrays import Weighting, Weights, repeated, shares
from abps.core.errors import POSITIVE
from abps.methods.base import Context, Models, tried
from abps.methods.star import Adding, Server, StarMethod
from abps.models.training import PLAIN, Objective


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P) evaluated.  cloud: (r, P) where training starts.  moved: (r, P) each center's d_i.

    h: (P,) the mean of all d_i, which follows from the cloud models.
    """

    cloud: Weights
    moved: Weights
    h: Weights


@dataclass(frozen=True, eq=False)
class DriftTerm:
    """The server's h (P,)."""

    h: Weights


@dataclass(frozen=True)
class FedDyn(StarMethod):
    """alpha: strength of the regulariser; none: 1 for networks, 0.1 for linear models, which are solved and
    not followed for a few steps.  codec: how weights travel.

    weighting: size gives center i alpha / (N_i / mean N), as the authors' code does; uniform gives alpha
    to all. The server's mean is uniform in both.
    """

    alpha: float | None = None
    codec: str = "fp32"
    weighting: Weighting = "size"

    #: What the server keeps.
    keeps = DriftTerm

    limits: ClassVar = {"alpha": POSITIVE}

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """The learning rate and alpha."""
        return tried(self, alpha=(0.02, 0.1) if self.training.optimizer == "newton" else (0.1, 1.0))

    def init(self, context: Context) -> State:
        """The common start; nobody has moved."""
        start = context.common_start()
        return State(start, start, np.zeros_like(start), np.zeros_like(context.learner.start))

    def strengths(self, context: Context) -> Weights:
        """(r,) alpha_i."""
        weights = shares(context.sizes(), self.weighting)
        usual = 0.1 if self.training.optimizer == "newton" else 1.0
        alpha = usual if self.alpha is None else self.alpha
        return alpha * weights.mean() / weights

    def train(self, context: Context, state: State, t: int, alone: bool) -> Models:
        """Train on the bent loss."""
        bent = PLAIN if alone else Objective(self.strengths(context), state.cloud - state.moved)
        return Models(context.learner.train(state.cloud, t, bent))

    @property
    def adds(self) -> Adding | None:
        """A mean."""
        return "uniform"

    def upload(self, context: Context, state: State, trained: Models, t: int) -> tuple[Weights, ...]:
        """The trained models."""
        return (trained.models,)

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], DriftTerm]:
        """The cloud: the mean and h."""
        mean = sent[0].mean(0)
        before = server.memory.h if server.memory else np.zeros_like(mean)
        h = before + (mean - (server.last[0] if server.last else start))
        return (mean + h,), DriftTerm(h)

    def receive(
        self, context: Context, state: State, trained: Models, down: tuple[Weights, ...], t: int
    ) -> State:
        """Start from the cloud; the mean follows from it and the one before."""
        cloud, before = down[0], state.cloud[0]
        mean = (cloud + before - state.h) / 2
        moved = state.moved + (trained.models - state.cloud)
        return State(repeated(mean, context.r), repeated(cloud, context.r), moved, state.h + (mean - before))

    def rest(self, context: Context, state: State, trained: Models, t: int) -> State:
        """Every center goes on from its own model."""
        return State(trained.models, trained.models, state.moved, state.h)
