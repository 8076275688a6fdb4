"""Local-only: every center trains alone. The lower bound of any collaboration worth having."""

from __future__ import annotations

from dataclasses import dataclass

from abps.core.ledger import Ledger
from abps.methods.base import Method, Models, Outcome, World


@dataclass(frozen=True)
class Local(Method):
    """No exchange at all."""

    def init(self, world: World) -> Models:
        """The common start."""
        return Models(world.common_start())

    def apply(self, world: World, state: Models, t: int, ledger: Ledger) -> tuple[Models, Outcome]:
        """Train."""
        return Models(world.learner.train(state.models, t)), Outcome.alone(world.n)
