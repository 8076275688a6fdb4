"""Facade (Biswas et al. 2025): one trunk and K heads at every center, random neighbours, heads chosen by
loss.

A round: a center trains its trunk with the head that has the smallest loss on its training rows, and sends
both with the head's number to its neighbours of a random regular graph, new in every round. Its trunk
becomes the plain mean of its own and all that arrive; head k the mean of its own and of the arrived heads
with number k. It chooses heads, not partners.

Heads start as copies with noise ``spread``. All of a center's training rows judge them (in the authors'
code each head is judged on another minibatch); their all-reduce at the end is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from abps.core import matching
from abps.core.arrays import Weights
from abps.core.errors import FROM_0, FROM_1, RequestError
from abps.lab.rivals.choosing import choose, combine, head_start, regular, shuffled, spread_out
from abps.methods.base import Context, Floats, Ints, Models
from abps.methods.peers import PeerMethod, Received, StepResult


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P) every trunk under its chosen head.  heads: (r, K, H).  cluster: (r,) the chosen one."""

    heads: Weights
    cluster: Ints


@dataclass(frozen=True)
class Facade(PeerMethod):
    """clusters: how many heads.  degree: neighbours in a round.  head_layers: layers of a head; as many as
    the model has, or more: all of it is the head.  spread: how far heads start from each other.
    """

    clusters: int = 6
    degree: int = 4
    head_layers: int = 1
    spread: float = 0.01

    #: The head's number travels with it.
    noted = True

    limits: ClassVar = {"clusters": FROM_1, "spread": FROM_0, "degree": FROM_1, "head_layers": FROM_1}
    searched: ClassVar = {"head_layers": (1, 2)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wire.private_layers:
            raise RequestError("private_layers: its heads are those of clusters, and shared; choose 0")

    kind = "graph"

    @property
    def capacity(self) -> int:
        """The number of neighbours."""
        return self.degree

    def trunk(self, context: Context) -> int:
        """How many columns the trunk has."""
        return head_start(context.learner.layout, self.head_layers)

    def init(self, context: Context) -> State:
        """The common trunk under K heads, and each center takes one."""
        start = context.common_start()
        heads = spread_out(
            context.learner.start[self.trunk(context) :], self.clusters, self.spread, context.seed
        )
        return self._taken(context, start, np.tile(heads, (context.r, 1, 1)))

    def _taken(self, context: Context, models: Weights, heads: Weights) -> State:
        """Every center with the head that suits it; models: (r, P), of which the trunk counts."""
        trunk = models[:, : self.trunk(context)]
        whole = np.concatenate([np.repeat(trunk[:, None], self.clusters, axis=1), heads], axis=2)
        cluster = choose(context, models, whole, "train")
        return State(whole[np.arange(context.r), cluster], heads, cluster)

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        """The local epochs, of the trunk and the chosen head."""
        models = context.learner.train(state.models, t)
        heads = state.heads.copy()
        heads[np.arange(context.r), state.cluster] = models[:, self.trunk(context) :]
        return replace(state, models=models, heads=heads)

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        """Both ways over every edge of the round's graph."""
        return matching.both_ways(regular(shuffled(context, t), self.degree))

    def note(self, context: Context, trained: State, listeners: Ints) -> Floats:
        """The head's number."""
        return trained.cluster.astype(np.float64)

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        """The mean trunk, and the mean of every head with those of its number."""
        to, by, at = received.receiver, received.sender, self.trunk(context)
        weight = evenly(to, context.r)
        trunk = combine(trained.models[:, :at], received.arrived[:, :at], to, by, weight)
        number = np.rint(received.notes[by]).astype(np.int64).clip(0, self.clusters - 1)
        # A center's K heads are K rows of their own.
        rows = to * self.clusters + number
        share = evenly(rows, context.r * self.clusters)
        own = trained.heads.reshape(context.r * self.clusters, -1)
        heads = combine(own, received.arrived[:, at:], rows, by, share).reshape(trained.heads.shape)
        return StepResult(
            self._taken(context, np.concatenate([trunk, trained.models[:, at:]], axis=1), heads)
        )


def evenly(to: Ints, count: int) -> Floats:
    """(transfers,) the weight of each arrival in a plain mean with the own one; count: of receivers."""
    return np.asarray(1.0 / (1.0 + np.bincount(to, minlength=count)[to]), dtype=np.float64)
