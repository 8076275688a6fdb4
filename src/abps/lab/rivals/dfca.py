"""DFCA (Kirsch et al. 2025): IFCA without a server: every center keeps K models, and they are gossiped.

A center trains the model of its cluster, the one with the smallest loss on its training rows, and sends it
to some random peers, between ``fewest`` and ``most`` of them. Whoever receives it blends it, one after the
other in random order, into its own copy of that cluster: half of the copy stays if the receiver is of the
cluster itself, 0.4 of it if not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from abps.core import streams
from abps.core.arrays import Weights, lerp
from abps.core.errors import FROM_0, FROM_1, RequestError
from abps.lab.rivals.choosing import choose, spread_out, under_head
from abps.methods.base import Context, Floats, Ints, Models
from abps.methods.peers import PeerMethod, Received, StepResult

#: What stays of a copy when another one arrives: of the own cluster's, and of others.
OWN_SAME, OWN_OTHER = 0.5, 0.4


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P) of the cluster that each center is in.  copies: (r, K, shared) its copies of all.

    cluster: (r,) its number.
    """

    copies: Weights
    cluster: Ints


@dataclass(frozen=True)
class DFCA(PeerMethod):
    """clusters: how many models.  fewest, most: peers that a center sends to.  spread: how far the models
    start from each other.
    """

    clusters: int = 6
    fewest: int = 1
    most: int = 15
    spread: float = 0.01

    #: The cluster's number travels with its model.
    noted = True

    limits: ClassVar = {"clusters": FROM_1, "spread": FROM_0, "fewest": FROM_1}
    searched: ClassVar = {"clusters": (3, 6)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fewest > self.most:
            raise RequestError(f"fewest={self.fewest}, most={self.most}: choose most not below fewest")

    kind = "graph"

    def init(self, context: Context) -> State:
        """K copies of the common start, apart; each center takes one."""
        start, shared = context.common_start(), self.wire.shared(context)
        copies = spread_out(context.learner.start[:shared], self.clusters, self.spread, context.seed)
        return self._taken(context, start, np.tile(copies, (context.r, 1, 1)))

    def _taken(self, context: Context, own: Weights, copies: Weights) -> State:
        """Every center with the copy that suits it."""
        cluster = choose(context, own, copies, "train")
        mine = copies[np.arange(context.r), cluster]
        return State(under_head(mine, own), copies, cluster)

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        """The local epochs of a center's cluster."""
        models = context.learner.train(state.models, t)
        copies = state.copies.copy()
        mine = np.arange(context.r), state.cluster
        copies[mine] = models[:, : self.wire.shared(context)]
        return replace(state, models=models, copies=copies)

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        """Every center to some others: how many, and which, at random."""
        n = context.n
        luck = streams.uniforms(context.seed, "graph", t, context.ids)
        many = np.minimum(self.fewest + (luck * (self.most - self.fewest + 1)).astype(np.int64), n - 1)
        draw = streams.uniforms(context.seed, "graph", t, context.ids[:, None], context.ids[None, :])
        np.fill_diagonal(draw, 2.0)
        order = np.argsort(draw, axis=1, kind="stable")
        by = np.repeat(np.arange(n), many)
        to = order[by, np.arange(len(by)) - np.repeat(np.cumsum(many) - many, many)]
        return to, by

    def note(self, context: Context, trained: State, listeners: Ints) -> Floats:
        """The cluster's number."""
        return trained.cluster.astype(np.float64)

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        """Blend what arrives into the copies, then choose again."""
        number = np.rint(received.notes).astype(np.int64).clip(0, self.clusters - 1)
        ids = context.ids[received.receiver], context.ids[received.sender]
        place = streams.uniforms(context.seed, "proposal-order", t, *ids)
        copies = trained.copies.copy()
        for k in np.lexsort((place, received.receiver)).tolist():
            i, j = int(received.receiver[k]), int(received.sender[k])
            stays = OWN_SAME if number[j] == trained.cluster[i] else OWN_OTHER
            copies[i, number[j]] = lerp(received.arrived[j], copies[i, number[j]], stays)
        return StepResult(self._taken(context, trained.models, copies))
