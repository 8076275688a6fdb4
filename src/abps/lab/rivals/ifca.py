"""IFCA (Ghosh et al. 2020): a server holds K models, every center trains the one that fits its rows best.

A round: all K models come down, a center takes the one with the smallest loss on its training rows, trains
it, sends it up with its number; model k becomes the size-weighted mean of what came from its members, and
stays where nobody chose it. (The authors' synthetic code divides by all centers, not by a cluster's.)

The authors start from K different networks. The first to learn that outcomes are rare then wins everybody,
so here all train one model for ``warmup`` rounds, and K copies of it with noise ``spread`` go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from abps.core.arrays import Weights, repeated, weighted_mean
from abps.core.errors import FROM_0, FROM_1
from abps.lab.rivals.choosing import choose, spread_out, under_head
from abps.methods.base import Context, Floats, Ints, Models, Wire
from abps.methods.star import Server, StarMethod
from abps.models.layout import Layout


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P) of the cluster that each center is in.  cluster: (r,) its number."""

    cluster: Ints


@dataclass(frozen=True)
class IFCA(StarMethod):
    """wire: codec and private layers.  clusters: how many models.  warmup, spread: how they begin."""

    wire: Wire = field(default_factory=Wire)
    clusters: int = 6
    warmup: int = 5
    spread: float = 0.01

    #: The cluster's number travels with its model.
    noted = True

    limits: ClassVar = {"clusters": FROM_1, "spread": FROM_0, "warmup": FROM_0}
    searched: ClassVar = {"clusters": (3, 6)}

    def sharing(self, context: Context) -> int:
        """A cluster."""
        return max(2, context.n // self.clusters)

    def answers(self, layout: Layout, t: int | None = None) -> tuple[int, ...]:
        """K models; one while all train the same."""
        shared = layout.shared(self.wire.private_layers)
        return (shared,) if t is not None and t < self.warmup else (shared,) * self.clusters

    def init(self, context: Context) -> State:
        """The common start; or K of them, and each center takes one."""
        shared = context.learner.layout.shared(self.wire.private_layers)
        options = self._begin(context.learner.start[:shared], context.seed)
        return self._taken(context, context.common_start(), options)

    def _begin(self, start: Weights, seed: int) -> Weights:
        """(K, shared) the clusters before the first round."""
        if self.warmup == 0:
            return spread_out(start, self.clusters, self.spread, seed)
        return np.tile(start, (self.clusters, 1))

    def _taken(self, context: Context, own: Weights, options: Weights) -> State:
        """Every center with the option (K, shared) that suits it."""
        cluster = choose(context, own, options, "train")
        return State(under_head(options[cluster], own), cluster)

    def note(self, context: Context, trained: State) -> Floats:
        """The cluster's number."""
        return trained.cluster.astype(float)

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        """The mean of every cluster's members."""
        models, numbers = sent
        if t <= self.warmup:
            common = weighted_mean(models, sizes)
            if t < self.warmup:
                return (common,), None
            return tuple(spread_out(common, self.clusters, self.spread, server.seed)), None
        last = server.last or tuple(self._begin(start[: models.shape[1]], server.seed))
        options = np.stack(last)
        for k in range(self.clusters):
            members = numbers.round() == k
            if members.any():
                options[k] = weighted_mean(models[members], sizes[members])
        return tuple(options), None

    def receive(
        self, context: Context, state: State, trained: State, down: tuple[Weights, ...], t: int
    ) -> State:
        """Every center takes the cluster that suits it; before there are any, the common model."""
        if t < self.warmup:
            own = np.zeros(context.r, dtype=np.int64)
            return State(under_head(repeated(down[0], context.r), trained.models), own)
        return self._taken(context, trained.models, np.stack(down))

    def rest(self, context: Context, state: State, trained: State, t: int) -> State:
        """Every center goes on with its own."""
        return replace(trained, cluster=state.cluster)
