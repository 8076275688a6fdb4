"""Methods that divide centers into clusters: ClusteredFedAvg, IFCA, DFCA and Facade."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import matching, streams
from abps.core.arrays import Weights, lerp, repeated, shares, weighted_mean
from abps.core.errors import FROM_0, FROM_1, RequestError
from abps.lab.rivals.choosing import choose, combine, head_start, regular, shuffled, spread_out, under_head
from abps.methods.base import Context, Floats, Ints, Models, Wire
from abps.methods.fedavg import FedAvg
from abps.methods.peers import PeerMethod, Received, StepResult
from abps.methods.star import Adding, Server, StarMethod
from abps.models.layout import Layout

#: Steps of Lloyd's algorithm.
STEPS = 50


@dataclass(frozen=True, eq=False)
class ClusteredModels(Models):
    """models: (r, P).  cluster: (r,) every center's number, 0 before they are formed."""

    cluster: Floats


@dataclass(frozen=True)
class ClusteredFedAvg(FedAvg):
    """Clustered FedAvg: the simplest control for methods that find out who resembles whom.

    Some rounds of FedAvg; then the server divides the centers by the directions of their displacements from
    the last average (k-means on the sphere, the largest silhouette; where none separates, all stay together);
    then FedAvg inside every cluster. No paper: CFL (Sattler et al. 2021) divides in two again and again.

    warmup: rounds before. most: clusters. separation: the smallest mean silhouette with which centers are
    divided.
    """

    warmup: int = 6
    most: int = 8
    separation: float = 0.1

    #: The cluster's number travels with the model.
    noted = True

    limits: ClassVar = {"warmup": FROM_1, "most": FROM_1}
    searched: ClassVar = {"separation": (0.1, 0.3)}

    @property
    def adds(self) -> Adding | None:
        return None

    def answers(self, layout: Layout, t: int | None = None) -> tuple[int, ...]:
        shared = layout.shared(self.wire.private_layers)
        return (shared, 1) if t in (None, self.warmup) else (shared,)

    def init(self, context: Context) -> ClusteredModels:
        return ClusteredModels(context.common_start(), np.zeros(context.r))

    def note(self, context: Context, trained: ClusteredModels) -> Floats:
        return trained.cluster

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        models, weights, number = sent[0], shares(sizes, self.weighting), np.rint(sent[1])
        if t == self.warmup:
            before = server.last[0] if server.last else start[: models.shape[1]]
            number = clusters_of(models - before, self.most, self.separation).astype(np.float32)
        if t < self.warmup or not number.any():
            mean = weighted_mean(models, weights)
            return ((mean, np.zeros(1, dtype=np.float32)) if t == self.warmup else (mean,)), None
        reply = np.empty_like(models)
        for k in np.unique(number):
            reply[number == k] = weighted_mean(models[number == k], weights[number == k])
        return ((reply, number[:, None]) if t == self.warmup else (reply,)), None

    def receive(
        self, context: Context, state: Any, trained: ClusteredModels, down: tuple[Weights, ...], t: int
    ) -> ClusteredModels:
        private = trained.models[:, down[0].shape[-1] :]
        trunk = np.broadcast_to(down[0], (context.r, down[0].shape[-1]))
        cluster = trained.cluster
        if t == self.warmup:
            cluster = np.broadcast_to(np.rint(down[1]).ravel(), context.r).astype(np.float64)
        return ClusteredModels(np.concatenate([trunk, private], axis=1), cluster)


def clusters_of(moved: NDArray[np.floating], most: int, separation: float) -> Ints:
    """(n,) numbers from 1 of clusters by direction of (n, columns) displacements; all 0: there are none."""
    from sklearn.metrics import silhouette_score

    centred = moved.astype(np.float64) - moved.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1), 1e-30)[:, None]
    best, found = separation, np.zeros(len(unit), dtype=np.int64)
    for k in range(2, min(most, len(unit) - 1) + 1):
        labels = _k_means(unit, k)
        if len(np.unique(labels)) > 1:
            score = float(silhouette_score(unit, labels, metric="cosine"))
            if score > best:
                best, found = score, labels + 1
    return found


def _k_means(unit: Floats, k: int) -> Ints:
    """(n,) Lloyd's algorithm with cosines, begun at points far from each other, so that nothing is random."""
    chosen = [int(np.argmin(unit @ unit.sum(axis=0)))]
    while len(chosen) < k:
        chosen.append(int(np.argmin((unit @ unit[chosen].T).max(axis=1))))
    middle, labels = unit[chosen], np.zeros(len(unit), dtype=np.int64)
    for _ in range(STEPS):
        labels = np.argmax(unit @ middle.T, axis=1)
        sums = np.stack([unit[labels == g].sum(axis=0) for g in range(k)])
        new = sums / np.maximum(np.linalg.norm(sums, axis=1), 1e-30)[:, None]
        if np.allclose(new, middle):
            break
        middle = new
    return labels


@dataclass(frozen=True, eq=False)
class IfcaState(Models):
    """models: (r, P) of the cluster that each center is in.  cluster: (r,) its number."""

    cluster: Ints


@dataclass(frozen=True)
class IFCA(StarMethod):
    """IFCA (Ghosh et al. 2020): a server holds K models, every center trains the one that fits its rows best.

    A round: all K models come down, a center trains the one with the smallest loss on its training rows and
    sends it up with its number; model k becomes the size-weighted mean of its members', and stays where
    nobody chose it. With the authors' K different networks the first to learn that outcomes are rare wins
    everybody: here all train one model for ``warmup`` rounds, and K copies of it with noise ``spread`` go on.
    """

    wire: Wire = field(default_factory=Wire)
    clusters: int = 6
    warmup: int = 5
    spread: float = 0.01

    #: The cluster's number travels with its model.
    noted = True

    limits: ClassVar = {"clusters": FROM_1, "spread": FROM_0, "warmup": FROM_0}
    searched: ClassVar = {"clusters": (3, 6)}

    def sharing(self, context: Context) -> int:
        return max(2, context.n // self.clusters)

    def answers(self, layout: Layout, t: int | None = None) -> tuple[int, ...]:
        shared = layout.shared(self.wire.private_layers)
        return (shared,) if t is not None and t < self.warmup else (shared,) * self.clusters

    def init(self, context: Context) -> IfcaState:
        shared = context.learner.layout.shared(self.wire.private_layers)
        options = self._begin(context.learner.start[:shared], context.seed)
        return self._taken(context, context.common_start(), options)

    def _begin(self, start: Weights, seed: int) -> Weights:
        if self.warmup == 0:
            return spread_out(start, self.clusters, self.spread, seed)
        return np.tile(start, (self.clusters, 1))

    def _taken(self, context: Context, own: Weights, options: Weights) -> IfcaState:
        cluster = choose(context, own, options, "train")
        return IfcaState(under_head(options[cluster], own), cluster)

    def note(self, context: Context, trained: IfcaState) -> Floats:
        return trained.cluster.astype(float)

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
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
        self, context: Context, state: IfcaState, trained: IfcaState, down: tuple[Weights, ...], t: int
    ) -> IfcaState:
        if t < self.warmup:
            own = np.zeros(context.r, dtype=np.int64)
            return IfcaState(under_head(repeated(down[0], context.r), trained.models), own)
        return self._taken(context, trained.models, np.stack(down))

    def rest(self, context: Context, state: IfcaState, trained: IfcaState, t: int) -> IfcaState:
        return replace(trained, cluster=state.cluster)


#: What stays of a copy when another one arrives: of the own cluster's, and of others.
OWN_SAME, OWN_OTHER = 0.5, 0.4


@dataclass(frozen=True, eq=False)
class CopiesState(Models):
    """models: (r, P) of each center's cluster.  copies: (r, K, shared) its copies of all.  cluster: (r,)."""

    copies: Weights
    cluster: Ints


@dataclass(frozen=True)
class DFCA(PeerMethod):
    """DFCA (Kirsch et al. 2025): IFCA without a server: every center keeps K models, and they are gossiped.

    A center trains the model with the smallest loss on its training rows and sends it to ``fewest`` to
    ``most`` random peers, who blend it, one after the other in random order, into their own copy of that
    cluster: half of the copy stays at a receiver of the same cluster, 0.4 of it at others. spread: how far
    models start apart.
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

    def init(self, context: Context) -> CopiesState:
        start, shared = context.common_start(), self.wire.shared(context)
        copies = spread_out(context.learner.start[:shared], self.clusters, self.spread, context.seed)
        return self._taken(context, start, np.tile(copies, (context.r, 1, 1)))

    def _taken(self, context: Context, own: Weights, copies: Weights) -> CopiesState:
        cluster = choose(context, own, copies, "train")
        mine = copies[np.arange(context.r), cluster]
        return CopiesState(under_head(mine, own), copies, cluster)

    def train(self, context: Context, state: CopiesState, t: int, alone: bool) -> CopiesState:
        models = context.learner.train(state.models, t)
        copies = state.copies.copy()
        mine = np.arange(context.r), state.cluster
        copies[mine] = models[:, : self.wire.shared(context)]
        return replace(state, models=models, copies=copies)

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        n = context.n
        luck = streams.uniforms(context.seed, "graph", t, context.ids)
        many = np.minimum(self.fewest + (luck * (self.most - self.fewest + 1)).astype(np.int64), n - 1)
        draw = streams.uniforms(context.seed, "graph", t, context.ids[:, None], context.ids[None, :])
        np.fill_diagonal(draw, 2.0)
        order = np.argsort(draw, axis=1, kind="stable")
        by = np.repeat(np.arange(n), many)
        to = order[by, np.arange(len(by)) - np.repeat(np.cumsum(many) - many, many)]
        return to, by

    def note(self, context: Context, trained: CopiesState, listeners: Ints) -> Floats:
        return trained.cluster.astype(np.float64)

    def learn(
        self, context: Context, state: CopiesState, trained: CopiesState, received: Received, t: int
    ) -> StepResult:
        number = np.rint(received.notes).astype(np.int64).clip(0, self.clusters - 1)
        ids = context.ids[received.receiver], context.ids[received.sender]
        place = streams.uniforms(context.seed, "proposal-order", t, *ids)
        copies = trained.copies.copy()
        for k in np.lexsort((place, received.receiver)).tolist():
            i, j = int(received.receiver[k]), int(received.sender[k])
            stays = OWN_SAME if number[j] == trained.cluster[i] else OWN_OTHER
            copies[i, number[j]] = lerp(received.arrived[j], copies[i, number[j]], stays)
        return StepResult(self._taken(context, trained.models, copies))


@dataclass(frozen=True, eq=False)
class HeadsState(Models):
    """models: (r, P) every trunk under its chosen head.  heads: (r, K, H).  cluster: (r,) the chosen one."""

    heads: Weights
    cluster: Ints


@dataclass(frozen=True)
class Facade(PeerMethod):
    """Facade (Biswas et al. 2025): one trunk and K heads at every center, random neighbours, heads chosen by
    loss.

    A round: a center trains its trunk with the head of the smallest loss on its training rows, and sends both
    with the head's number over a random regular graph. Its trunk becomes the plain mean of its own and all
    that arrive; head k the mean of its own and the arrived heads k. Heads start as copies with noise
    ``spread``. All training rows judge them (in the authors' code another minibatch each); their all-reduce
    at the end is left out.

    degree: neighbours in a round. head_layers: layers of a head; all of the model where it has no more.
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
        return self.degree

    def trunk(self, context: Context) -> int:
        return head_start(context.learner.layout, self.head_layers)

    def init(self, context: Context) -> HeadsState:
        start = context.common_start()
        heads = spread_out(
            context.learner.start[self.trunk(context) :], self.clusters, self.spread, context.seed
        )
        return self._taken(context, start, np.tile(heads, (context.r, 1, 1)))

    def _taken(self, context: Context, models: Weights, heads: Weights) -> HeadsState:
        """Every center with the head that suits it; models: (r, P), of which the trunk counts."""
        trunk = models[:, : self.trunk(context)]
        whole = np.concatenate([np.repeat(trunk[:, None], self.clusters, axis=1), heads], axis=2)
        cluster = choose(context, models, whole, "train")
        return HeadsState(whole[np.arange(context.r), cluster], heads, cluster)

    def train(self, context: Context, state: HeadsState, t: int, alone: bool) -> HeadsState:
        models = context.learner.train(state.models, t)
        heads = state.heads.copy()
        heads[np.arange(context.r), state.cluster] = models[:, self.trunk(context) :]
        return replace(state, models=models, heads=heads)

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        return matching.both_ways(regular(shuffled(context, t), self.degree))

    def note(self, context: Context, trained: HeadsState, listeners: Ints) -> Floats:
        return trained.cluster.astype(np.float64)

    def learn(
        self, context: Context, state: HeadsState, trained: HeadsState, received: Received, t: int
    ) -> StepResult:
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
