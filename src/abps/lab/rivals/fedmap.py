"""FedMAP (Zhang et al., arXiv 2405.19000): every center's own model is a maximum a posteriori.

A round: a center trains from the common model γ on F_i(θ) + (α/2) ‖θ − γ‖², keeps the result θ_i as its own,
and sends it with its contribution ω_i = exp(mean log-likelihood − prior / rows); γ becomes the mean of θ_i
with weights ω_i. The prior follows the authors' public code, which adds ε (‖θ‖² + ‖γ‖²) to the quadratic
term, and a network that is convex in its inputs (version 2).

Not public where we looked: how that network is trained (the code sends it out as it was initialised), so it
is left out here, as in version 1 of the paper. Weights by ω are nearly equal: a mean log-likelihood hardly
differs between centers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from abps.core.arrays import Weights, weighted_mean
from abps.core.errors import FROM_0
from abps.lab.rivals.choosing import own_losses
from abps.lab.rivals.ditto import State as PersonalState
from abps.methods.base import Context, Floats
from abps.methods.fedavg import FedAvg, under
from abps.methods.star import Adding, Server
from abps.models.training import Objective

#: The authors' ε.
PERTURBATION = 1e-4


@dataclass(frozen=True, eq=False)
class MapTrained:
    """models: (r, P) of every center.  contribution: (r,) its ω."""

    models: Weights
    contribution: Floats


@dataclass(frozen=True)
class FedMAP(FedAvg):
    """alpha: the precision of the prior around the common model, per row of the mean loss."""

    alpha: float = 0.01

    #: The contribution travels with the model.
    noted = True

    limits: ClassVar = {"alpha": FROM_0}
    searched: ClassVar = {"alpha": (0.01, 0.1)}

    @property
    def adds(self) -> Adding | None:
        """Weights of their own: the server needs every model."""
        return None

    def init(self, context: Context) -> PersonalState:
        """The common start, also as the common model."""
        start = context.common_start()
        return PersonalState(start, start)

    def train(self, context: Context, state: PersonalState, t: int, alone: bool) -> MapTrained:
        """The maximum a posteriori, sought from the common model."""
        prior = Objective(strength=self.alpha, anchor=state.received)
        models = context.learner.train(state.models if alone else state.received, t, prior)
        squares = np.square(models.astype(np.float64)).sum(1) + np.square(state.received).sum(1)
        distance = np.square((models - state.received).astype(np.float64)).sum(1)
        rows = np.maximum(context.data.train.sizes, 1)
        log = (
            -own_losses(context, models, "train")
            - (self.alpha / 2 * distance + PERTURBATION * squares) / rows
        )
        return MapTrained(models, np.exp(log))

    def note(self, context: Context, trained: MapTrained) -> Floats:
        """The contributions."""
        return trained.contribution

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        """The mean by contribution."""
        return (weighted_mean(sent[0], np.maximum(sent[1], 1e-30)),), None

    def receive(
        self, context: Context, state: Any, trained: MapTrained, down: tuple[Weights, ...], t: int
    ) -> PersonalState:
        """The own model stays; the common one is new."""
        return PersonalState(trained.models, under(down[0], trained.models))

    def rest(self, context: Context, state: Any, trained: MapTrained, t: int) -> PersonalState:
        """Without an exchange the last common model stays."""
        return PersonalState(trained.models, state.received)
