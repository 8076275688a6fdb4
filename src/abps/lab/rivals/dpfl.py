"""DPFL (Kharrat et al. 2025): every center looks for the set of models whose average suits it best.

Every ``period`` rounds a center hears its candidates and builds a set S, itself in it and of at most
``most``, by a randomised double greedy search on the reward (10 - validation loss of the size-weighted
average of S) / 10: from X = {itself} and Y = all, it goes through the candidates in random order; with a
what j adds to X and b what its absence adds to Y (negative ones are 0), j joins X with probability a / (a +
b), and without any signal (a = b = 0), or else leaves Y. It goes on from the average of X. In the first
search all members are candidates, later those that it found then. Between searches it trains alone.

A bound from above, not a rival in bytes: the first search hears n - 1 models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.errors import FROM_1
from abps.lab.rivals.choosing import by_size, combine, drawn, losses_of, trail_with
from abps.methods.base import Context, Floats, Models
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  kept: (r, n) 1 for the members that each center found in its first search.

    searches: how many there were.
    """

    kept: Floats
    searches: int


@dataclass(frozen=True)
class DPFL(PeerMethod):
    """most: members of a set, itself included.  period: rounds from one search to the next."""

    most: int = 10
    period: int = 2

    limits: ClassVar = {"most": (2, math.inf), "period": FROM_1}
    searched: ClassVar = {"most": (5, 10)}

    kind = "pull"

    @property
    def capacity(self) -> int:
        """As many as there are: the search says who is heard."""
        return 1 << 30

    def exchanges(self, t: int) -> bool:
        """Whether there is a search in round t."""
        return (t - 1) % self.period == 0

    def init(self, context: Context) -> State:
        """The common start; nobody was found."""
        return State(context.common_start(), np.zeros((context.r, context.n)), 0)

    def rank_peers(self, context: Context, state: State, trained: Callable[[], Any], t: int) -> Preferences:
        """The candidates in random order."""
        known = (state.kept > 0) | (state.searches == 0)
        rankings = drawn(context, np.zeros_like(state.kept), t, known)
        return Preferences(rankings, trail=trail_with(state.kept))

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        """Search, and go on from the average of what was found."""
        found = self.search(context, trained.models, received, t)
        to, by = np.nonzero(found)
        models = combine(trained.models, received.arrived, to, by, by_size(context, to, by))
        kept = found.astype(np.float64) if state.searches == 0 else state.kept
        return StepResult(State(models, kept, state.searches + 1))

    def search(self, context: Context, own: Weights, received: Received, t: int) -> NDArray[np.bool_]:
        """(r, n) whom the double greedy search takes into each center's set."""
        size = context.sizes().astype(np.float64)
        shared = received.arrived.shape[1]
        chosen = np.zeros((context.r, context.n), dtype=bool)
        partners = [received.sender[received.receiver == i] for i in range(context.r)]
        # Sums of weighted models: those taken, and those not yet refused.
        taken = own[:, :shared].astype(np.float64) * size[:, None]
        weight = size.copy()
        open_, open_weight = taken.copy(), weight.copy()
        for i, mine in enumerate(partners):
            open_[i] += size[mine] @ received.arrived[mine].astype(np.float64)
            open_weight[i] += size[mine].sum()

        def reward(total: Floats, weights: Floats) -> Floats:
            average = (total / weights[:, None]).astype(np.float32)
            return (10.0 - losses_of(context, own, average, "validation")) / 10.0

        luck = streams.uniforms(context.seed, "accept", t, context.ids[:, None], context.ids[None, :])
        for step in range(max((len(mine) for mine in partners), default=0)):
            active = np.array([step < len(mine) for mine in partners]) & (chosen.sum(1) + 1 < self.most)
            if not active.any():
                break
            j = np.array([mine[step] if on else 0 for mine, on in zip(partners, active)])
            part = received.arrived[j].astype(np.float64) * size[j][:, None]
            # Rounding must not turn an empty sum into a weight below zero.
            less = np.maximum(open_weight - size[j], size)
            gain = np.maximum(0.0, reward(taken + part, weight + size[j]) - reward(taken, weight))
            loss = np.maximum(0.0, reward(open_ - part, less) - reward(open_, open_weight))
            chance = np.where(gain + loss > 0, gain / np.where(gain + loss > 0, gain + loss, 1.0), 1.0)
            joins = active & (luck[np.arange(context.r), j] < chance)
            leaves = active & ~joins
            chosen[np.flatnonzero(joins), j[joins]] = True
            taken[joins] += part[joins]
            weight[joins] += size[j[joins]]
            open_[leaves] -= part[leaves]
            open_weight[leaves] -= size[j[leaves]]
        return chosen
