"""IFCA (Ghosh et al. 2020): a server holds K models, every center trains the one that fits its rows best.

A round: all K models come down, a center takes the one with the smallest loss on its training rows, trains
it, sends it up with its number; model k becomes the size-weighted mean of what came from its members, and
stays where nobody chose it. (The authors' synthetic code divides by all centers, not by a cluster's.)

The authors start from K different networks. The first to learn that outcomes are rare then wins everybody,
so here all train one model for ``warmup`` rounds, and K copies of it with noise ``spread`` go on.

``shared_trunk``: one trunk for all and K heads, as in the authors' run on FEMNIST; only heads come K times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from abps.core.arrays import Weights, repeated
from abps.core.errors import RequestError
from abps.lab.rivals.choosing import Judge
from abps.lab.rivals.several_models import choose, head_start, positive, spread_out, under_head
from abps.methods.averaging import weighted_mean
from abps.methods.base import Context, Floats, Ints, Models, Wire, tried
from abps.methods.star import Server, StarMethod
from abps.models.layout import Layout


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P) of the cluster that each center is in.  cluster: (r,) its number."""

    cluster: Ints


@dataclass(frozen=True)
class IFCA(StarMethod):
    """wire: codec and private layers.  clusters: how many models.  warmup, spread: how they begin.

    shared_trunk: all layers but the last ``head_layers`` are common to all clusters.
    judge: the rows on which a center compares them.
    """

    wire: Wire = field(default_factory=Wire)
    clusters: int = 6
    warmup: int = 5
    spread: float = 0.01
    shared_trunk: bool = False
    head_layers: int = 1
    judge: Judge = "train"

    #: The cluster's number travels with its model.
    noted = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.clusters, self.spread)
        if self.warmup < 0 or self.head_layers < 1:
            raise RequestError(
                f"warmup={self.warmup}, head_layers={self.head_layers}: choose rounds from 0, layers from 1"
            )
        if self.shared_trunk and (self.wire.private_layers or self.wire.reference != "none"):
            raise RequestError(
                "shared_trunk=true: heads are shared and sent as they are; choose the plain wire"
            )

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """The learning rate and clusters."""
        return tried(self, clusters=(3, 6))

    @property
    def line(self) -> Wire:
        """The wire."""
        return self.wire

    @property
    def remembers(self) -> bool:
        """A cluster that nobody chose stays as it was."""
        return True

    def _common(self, layout: Layout) -> int:
        """How many columns all clusters have in common."""
        return head_start(layout, self.head_layers) if self.shared_trunk else 0

    def answers(self, layout: Layout, t: int | None = None) -> tuple[int, ...]:
        """K models, or a trunk and K heads in one message; one model while all train the same."""
        shared, common = layout.shared(self.wire.private_layers), self._common(layout)
        if t is not None and t < self.warmup:
            return (shared,)
        if not self.shared_trunk:
            return (shared,) * self.clusters
        return (common + self.clusters * (shared - common),)

    def init(self, context: Context) -> State:
        """The common start; or K of them, and each center takes one."""
        start = context.common_start()
        options = self._begin(context.learner.start, context.seed, context.learner.layout)
        return self._taken(context, start, options)

    def _begin(self, start: Weights, seed: int, layout: Layout) -> Weights:
        """(K, shared) the clusters before the first round."""
        shared = layout.shared(self.wire.private_layers)
        return self._apart(start[:shared], seed, layout, self.warmup == 0)

    def _apart(self, model: Weights, seed: int, layout: Layout, apart: bool) -> Weights:
        """(K, shared) copies of a model, moved apart or not."""
        copies = np.tile(model, (self.clusters, 1))
        if apart:
            common = self._common(layout)
            copies[:, common:] = spread_out(model[common:], self.clusters, self.spread, seed)
        return copies

    def _taken(self, context: Context, own: Weights, options: Weights) -> State:
        """Every center with the option (K, shared) that suits it."""
        cluster = choose(context, own, options, self.judge)
        return State(under_head(options[cluster], own), cluster)

    def upload(self, context: Context, state: State, trained: State, t: int) -> tuple[Weights, ...]:
        """The shared layers."""
        return (trained.models[:, : self.wire.shared(context)],)

    def note(self, context: Context, trained: State) -> Floats:
        """The cluster's number."""
        return trained.cluster.astype(float)

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        """The mean of every cluster's members."""
        models, numbers = sent
        layout = server.layout
        assert layout is not None
        if t <= self.warmup:
            common_model = weighted_mean(models, sizes)
            if t < self.warmup:
                return (common_model,), None
            return self._packed(self._apart(common_model, server.seed, layout, True), layout), None
        last = self._unpacked(server.last, layout) if server.last else self._begin(start, server.seed, layout)
        options, common = last.copy(), self._common(layout)
        for k in range(self.clusters):
            members = numbers.round() == k
            if members.any():
                options[k] = weighted_mean(models[members], sizes[members])
        options[:, :common] = weighted_mean(models[:, :common], sizes)
        return self._packed(options, layout), None

    def _packed(self, options: Weights, layout: Layout) -> tuple[Weights, ...]:
        """Clusters (K, shared) as messages."""
        if not self.shared_trunk:
            return tuple(options)
        common = self._common(layout)
        return (np.concatenate([options[0, :common], options[:, common:].reshape(-1)]),)

    def _unpacked(self, messages: tuple[Weights, ...], layout: Layout) -> Weights:
        """(K, shared) clusters from messages."""
        if not self.shared_trunk:
            return np.stack(messages)
        common = self._common(layout)
        heads = messages[0][common:].reshape(self.clusters, -1)
        return np.concatenate([repeated(messages[0][:common], self.clusters), heads], axis=1)

    def receive(
        self, context: Context, state: State, trained: State, down: tuple[Weights, ...], t: int
    ) -> State:
        """Every center takes the cluster that suits it; before there are any, the common model."""
        if t < self.warmup:
            own = np.zeros(context.r, dtype=np.int64)
            return State(under_head(repeated(down[0], context.r), trained.models), own)
        return self._taken(context, trained.models, self._unpacked(down, context.learner.layout))

    def rest(self, context: Context, state: State, trained: State, t: int) -> State:
        """Every center goes on with its own."""
        return replace(trained, cluster=state.cluster)
