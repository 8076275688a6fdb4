"""Ditto (Li et al. 2021): FedAvg, and beside it a personal model for every center.

The global model is FedAvg's, exactly. A center's personal model v_i is never sent; every round it
minimises F_i(v) + (lam / 2) ||v - w_t||^2 with w_t the global model as received, before the center's own
training of it. Small lam: local training; large lam: the global model.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from abps.core.errors import RequestError
from abps.core.ledger import Ledger
from abps.data.prepare import Rows
from abps.learn.metrics import Segments
from abps.learn.training import Objective
from abps.methods.base import Models, Outcome, World
from abps.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class State:
    """models: (n, P) personal.  received: (n, P) the global model, one row per center."""

    models: Tensor
    received: Tensor


@dataclass(frozen=True)
class Ditto(FedAvg):
    """lam: strength of the pull towards the global model.  evaluate: personal or global."""

    lam: float = 1.0
    evaluate: str = "personal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0:
            raise RequestError(f"lam={self.lam}: the strength of the pull, choose 0 or more")
        if self.evaluate not in ("personal", "global"):
            raise RequestError(f"evaluate={self.evaluate!r}: choose personal or global")

    def init(self, world: World) -> State:  # type: ignore[override]
        """Both models at the common start."""
        start = world.common_start()
        return State(start, start)

    def apply(  # type: ignore[override]
        self, world: World, state: State, t: int, ledger: Ledger
    ) -> tuple[State, Outcome]:
        """FedAvg's round for the global model, then the personal models with the old one as anchor."""
        after, outcome = super().apply(world, Models(state.received), t, ledger)
        near = Objective(strength=self.lam, anchor=state.received)
        # Without an exchange the last global model stays the anchor.
        received = state.received if outcome.overdrawn else after.models
        return State(world.learner.train(state.models, t, near), received), outcome

    def logits(self, world: World, state: State, rows: Rows) -> Segments:
        """The personal models' predictions, or the global one's."""
        return world.learner.logits(state.models if self.evaluate == "personal" else state.received, rows)
