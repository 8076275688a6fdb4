"""EHRFL's selection (Kim et al. 2026): hospitals work with those whose average patient looks like theirs.

For ``warmup`` rounds partners are drawn at random. Then every center publishes the mean of its hidden layer
over its training rows (of an additive model: what every term adds to the logit), and its partner is a random
one of its ``near`` nearest peers by Euclidean distance of z-scored means. The authors have one host that asks
others; their text promises noise on the means, their code adds none, and neither does this.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from abps.core.arrays import Weights
from abps.core.errors import FROM_1
from abps.lab.rivals.choosing import by_size, combine, drawn, trail_with
from abps.methods.base import Context, Floats, Ints, Models
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  near: (r, k) the places of the nearest members of each center; -1: not known yet."""

    near: Ints


@dataclass(frozen=True)
class EHRFL(PeerMethod):
    """near: how many of the nearest a center works with.  warmup: rounds of random pairs before."""

    near: int = 10
    warmup: int = 5

    limits: ClassVar = {"near": FROM_1, "warmup": FROM_1}
    searched: ClassVar = {"near": (5, 10)}

    kind = "mutual"

    def init(self, context: Context) -> State:
        return State(context.common_start(), np.full((context.r, min(self.near, max(1, context.n - 1))), -1))

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        """The local epochs; once the warm-up is over, first find the nearest by the published means."""
        if t == self.warmup + 1:
            state = replace(state, near=nearest(self.means(context, state.models), self.near))
        return replace(state, models=context.learner.train(state.models, t))

    def means(self, context: Context, models: Weights) -> Floats:
        """(r, units) of the hidden layer over every center's training rows; 0 without rows."""
        rows, found = context.data.train, []
        for i in range(context.r):
            x = rows.x[rows.start[i] : rows.start[i + 1]]
            seen = context.learner.representation(models[i], x).astype(np.float64)
            found.append(seen.sum(0) / max(1, len(x)))
        return np.stack(found)

    def rank_peers(self, context: Context, state: State, trained: Callable[[], Any], t: int) -> Preferences:
        known = np.zeros((context.r, context.n), dtype=bool)
        near = trained().near if t == self.warmup + 1 else state.near
        row, column = np.nonzero(near >= 0)
        known[row, near[row, column]] = True
        known[~known.any(axis=1)] = True
        rankings = drawn(context, np.zeros((context.r, context.n)), t, known)
        entries = self.means(context, state.models).shape[1] if t == self.warmup + 1 else 0
        return Preferences(rankings, trail=trail_with(known.astype(np.float64)), publishing=entries)

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        weight = by_size(context, received.receiver, received.sender)
        models = combine(trained.models, received.arrived, received.receiver, received.sender, weight)
        return StepResult(replace(trained, models=models))


def nearest(means: Floats, k: int) -> Ints:
    """(n, k) the k nearest of n vectors (n, units), in deviations of every unit; NaN is far from all."""
    known = np.asarray(~np.isnan(means).any(axis=1))
    about = means - means[known].mean(axis=0)
    deviation = means[known].std(axis=0)
    z = np.where(known[:, None], about / np.where(deviation > 0, deviation, 1.0), np.inf)
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(((z[:, None] - z[None]) ** 2).sum(axis=2), nan=np.inf)
    np.fill_diagonal(apart, np.nan)  # last of all
    return np.argsort(apart, axis=1, kind="stable")[:, : min(k, len(means) - 1)]
