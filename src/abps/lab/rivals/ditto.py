"""Ditto (Li et al. 2021): FedAvg, and beside it a personal model for every center.

The global model is FedAvg's, exactly. A center's personal model v_i is never sent; every round it
minimises F_i(v) + (lam / 2) ||v - w_t||^2 with w_t the global model as received, before the center's own
training of it. Small lam: local training; large lam: the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from abps.core.arrays import Weights
from abps.core.errors import FROM_0
from abps.methods.base import Context, Models
from abps.methods.fedavg import FedAvg, under
from abps.models.training import Objective


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P) personal.  received: (r, P) the global model, one row per center."""

    received: Weights


@dataclass(frozen=True, eq=False)
class TrainedModels:
    """models: (r, P) the global model after local training.  personal: (r, P)."""

    models: Weights
    personal: Weights


@dataclass(frozen=True)
class Ditto(FedAvg):
    """lam: strength of the pull towards the global model."""

    lam: float = 1.0

    limits: ClassVar = {"lam": FROM_0}
    searched: ClassVar = {"lam": (0.1, 1.0)}

    def init(self, context: Context) -> State:
        """Both models at the common start."""
        start = context.common_start()
        return State(start, start)

    def train(self, context: Context, state: State, t: int, alone: bool) -> TrainedModels:
        """The global model as FedAvg does, and the personal one with the global one as anchor."""
        near = Objective(strength=self.lam, anchor=state.received)
        return TrainedModels(
            context.learner.train(state.received, t), context.learner.train(state.models, t, near)
        )

    def receive(
        self, context: Context, state: State, trained: TrainedModels, down: tuple[Weights, ...], t: int
    ) -> State:
        """The new global model."""
        return State(trained.personal, under(down[0], trained.models))

    def rest(self, context: Context, state: State, trained: TrainedModels, t: int) -> State:
        """Without an exchange the last global model stays the anchor."""
        return State(trained.personal, state.received)
