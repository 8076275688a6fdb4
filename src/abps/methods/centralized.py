"""Centralized: one model on everybody's pooled rows. Not federated; the upper reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from abps.core.ledger import Ledger
from abps.data.prepare import Prepared, Rows
from abps.learn.metrics import Segments
from abps.learn.training import Learner
from abps.methods.base import Method, Outcome, World


@dataclass(frozen=True, eq=False)
class State:
    """The one model (1, P) and the learner that sees all rows."""

    models: Tensor
    pooled: Learner


@dataclass(frozen=True)
class Centralized(Method):
    """Pools the rows that each center standardised by itself: the features the federation sees."""

    def init(self, world: World) -> State:
        """One model, the common start."""
        return State(world.learner.start[None].clone(), world.learner.on(pool(world.data)))

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """The local epochs of a round, on all rows at once."""
        return State(state.pooled.train(state.models, t), state.pooled), Outcome.alone(world.n)

    def moved(self, before: World, world: World, state: State, t: int) -> State:
        """The same model on the rows of the window in force."""
        return State(state.models, world.learner.on(pool(world.data)))

    def logits(self, world: World, state: State, rows: Rows) -> Segments:
        """The one model on every center's own rows."""
        return world.learner.logits(state.models.expand(world.n, -1), rows)


def pool(data: Prepared) -> Prepared:
    """A federation of one center that owns all training rows."""
    train = Rows(data.train.x, data.train.y, np.array([0, len(data.train.y)]))
    return replace(data, centers=("pooled",), train=train, groups=None)
