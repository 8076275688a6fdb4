"""Without federation: every center alone (the lower bound), and one model on all rows pooled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from abps.core.arrays import repeated
from abps.data.prepare import Prepared, Rows
from abps.methods.base import Context, Method, Models
from abps.models.metrics import Segments

if TYPE_CHECKING:
    from abps.models.learners import Learner


@dataclass(frozen=True)
class Local(Method):
    """Every center trains alone: a method's default behaviour."""


@dataclass(frozen=True)
class Centralized(Method):
    """Pools the rows that each center standardised by itself: the features the federation sees."""

    def init(self, context: Context) -> Models:
        """One model (1, P), the common start."""
        return Models(context.learner.start[None].copy())

    def derived(self, context: Context) -> Learner:
        """The learner that sees all rows."""
        return context.learner.on(pool(context.data))

    def train(self, context: Context, state: Models, t: int, alone: bool) -> Models:
        """The local epochs of a round, on all rows at once."""
        return Models(context.derived.train(state.models, t))

    def logits(self, context: Context, state: Models, rows: Rows) -> Segments:
        """The one model on every center's own rows."""
        return context.learner.logits(repeated(state.models, context.n), rows)


def pool(data: Prepared) -> Prepared:
    """A federation of one center that owns all training rows."""
    train = replace(data.train, start=np.array([0, len(data.train.y)]), patient=None)
    return replace(data, centers=("pooled",), train=train, groups=None)
