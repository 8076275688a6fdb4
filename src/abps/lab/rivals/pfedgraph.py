"""pFedGraph (Ye et al. 2023): a server mixes every center a model of its own, by how alike they moved.

After every round the server works out d_ij = -cos(x_i - θ⁰, x_j - θ⁰), the common start θ⁰ taken out, values
below -0.9 being -1; row i of the graph are the shares g on the simplex that minimise

    alpha |g - p|² + <d_i, g>,   p_j = N_j / sum of N,

which is the nearest point of the simplex to p - d_i / (2 alpha); center i goes on from sum_j g_ij x_j.

With ``lam`` above 0 a center also turns towards a_i = sum_j g_ij x_j / |x_j| while it trains: to its loss is
added -lam <w, a_i> / |w|, by its slope at the round's start. a_i comes down as a second message. (The
authors' code has the other sign, which pushes away; their text and this have the one that pulls.)

``PFedGraphPeers`` is the same without a server: centers publish a random projection of x - θ⁰ every round and
hear the few with the largest shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.lab.rivals import graphs, simplex
from abps.lab.rivals.choosing import Links, trail_with
from abps.methods.base import Context, Floats, Kind, Models, Wire, tried
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult
from abps.methods.star import Server, StarMethod
from abps.models.layout import Layout
from abps.models.training import PLAIN, Objective

#: Models that point this much the same way count as pointing exactly the same way.
SAME = 0.9


def likeness(moved: Weights, centre: bool = False) -> Floats:
    """(n, n) cosines between rows (n, columns), those above 0.9 set to 1; 0 where a row is zero.

    centre: the mean of all rows is taken out first.
    """
    rows = moved.astype(np.float64)
    if centre:
        rows = rows - rows.mean(0)
    length = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(length > 0, length, np.ones_like(length))[:, None]
    cosine: Floats = unit @ unit.T
    return np.where(cosine > SAME, 1.0, cosine)


def collaboration(alike: Floats, sizes: Floats, alpha: float) -> Floats:
    """(r, n) rows of the graph from likenesses (r, n) and training rows (n,)."""
    return simplex.nearest(sizes / sizes.sum() + alike / (2.0 * alpha))


def pull(models: Weights, towards: Weights, lam: float) -> Weights:
    """(r, P) slope of -lam <w, a> / |w| at the models (r, P); towards: (r, shared) a."""
    shared = towards.shape[1]
    w = models[:, :shared]
    length = np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-12)
    along = (w * towards).sum(1, keepdims=True)
    slope = np.zeros_like(models)
    slope[:, :shared] = -lam * (towards / length - along * w / length**3)
    return slope


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  towards: (r, shared) the a_i of the last round, zero before."""

    towards: Weights


@dataclass(frozen=True)
class PFedGraph(StarMethod):
    """wire: codec and private layers.  alpha: how near shares stay to those of size.

    lam: pull towards the aggregate in training; above 0 it comes down as a second message (authors: 0.01).
    centre: take the mean movement out before cosines are taken (not the authors').
    """

    wire: Wire = field(default_factory=Wire)
    alpha: float = 0.8
    lam: float = 0.0
    centre: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.alpha)
        if self.lam < 0:
            raise RequestError(f"lam={self.lam}: the strength of the pull, choose 0 or more")

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """Training, and whether the mean movement is taken out."""
        return tried(self, centre=(False, True))

    @property
    def line(self) -> Wire:
        """The wire."""
        return self.wire

    def answers(self, layout: Layout, t: int | None = None) -> tuple[int, ...]:
        """A model, and what to turn to where training does."""
        return (layout.shared(self.wire.private_layers),) * (1 + (self.lam > 0))

    def init(self, context: Context) -> State:
        """The common start; nothing to turn to."""
        return State(
            context.common_start(), np.zeros((context.r, self.wire.shared(context)), dtype=np.float32)
        )

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        """The local epochs, turned towards the aggregate."""
        objective = PLAIN
        if self.lam > 0 and t > 1 and not alone:
            objective = Objective(shift=pull(state.models, state.towards, self.lam))
        return replace(state, models=context.learner.train(state.models, t, objective))

    def upload(self, context: Context, state: State, trained: State, t: int) -> tuple[Weights, ...]:
        """The shared layers."""
        return (trained.models[:, : self.wire.shared(context)],)

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], Any]:
        """To every center its own mix."""
        models = sent[0]
        alike = likeness(models - start[: models.shape[1]], self.centre)
        share = collaboration(alike, sizes.astype(np.float64), self.alpha).astype(np.float32)
        mixed = share @ models
        if self.lam == 0:
            return (mixed,), None
        return (
            mixed,
            share @ (models / np.maximum(np.linalg.norm(models, axis=1, keepdims=True), 1e-12)),
        ), None

    def receive(
        self, context: Context, state: State, trained: State, down: tuple[Weights, ...], t: int
    ) -> State:
        """The own mix in the place of the shared layers."""
        mine = [np.atleast_2d(message) for message in down]
        models = np.concatenate([mine[0], trained.models[:, mine[0].shape[1] :]], axis=1)
        return State(models, mine[1] if self.lam > 0 else trained.towards)


@dataclass(frozen=True)
class PFedGraphPeers(PeerMethod):
    """peers: those with the largest shares that a center hears.  links: one way, or both.

    alpha: how near shares stay to those of size.  entries: length of the projection that is published.
    """

    alpha: float = 0.8
    peers: int = 1
    links: Links = "mutual"
    entries: int = 64
    centre: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.alpha)
        if self.peers < 1 or self.entries < 1:
            raise RequestError(f"peers={self.peers}, entries={self.entries}: choose at least 1 each")

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """Training, and whether the mean movement is taken out."""
        return tried(self, centre=(False, True))

    @property
    def kind(self) -> Kind:
        """By mutual proposals, or one way."""
        return self.links

    @property
    def capacity(self) -> int:
        """The number of links, or of pulls."""
        return self.peers

    def between_sites(self) -> str:
        """Projections are published in every round."""
        return "its centers publish a projection of their model in every round, which no site sends"

    def rank_peers(self, context: Context, state: Models, trained: Callable[[], Any], t: int) -> Preferences:
        """Peers by their shares; ties at random."""
        share = self.shares(context, trained().models)
        tie = streams.bits(
            context.seed, "tie-break", t, context.ids[context.local_index][:, None], context.ids[None, :]
        )
        order = np.lexsort((tie, np.where(context.self_mask, np.inf, -share)), axis=-1)
        return Graph(order[:, :-1].tolist(), publishing=self.entries, trail=trail_with(share), share=share)

    def shares(self, context: Context, models: Weights) -> Floats:
        """(r, n) rows of the graph, from the projections."""
        alike = likeness(self.projected(context, models), self.centre)
        return collaboration(alike, context.sizes().astype(np.float64), self.alpha)

    def projected(self, context: Context, models: Weights) -> Weights:
        """(r, entries) what centers publish of their models."""
        moved = (models - context.learner.start)[:, : self.wire.shared(context)]
        rng = streams.generator(context.seed, "sketch", 1)
        shape = (moved.shape[1], self.entries)
        return np.asarray(moved @ rng.standard_normal(shape, dtype=np.float32), dtype=np.float32)

    def learn(
        self, context: Context, state: Models, trained: Models, received: Received, t: int
    ) -> StepResult:
        """The own model and those heard, by their shares."""
        share = received.preferences.share
        own = share[np.arange(context.r), context.local_index]
        given = share[received.receiver, received.sender]
        total = own + np.bincount(received.receiver, weights=given, minlength=context.r)
        weight = np.where(
            total[received.receiver] > 0, given / np.maximum(total[received.receiver], 1e-300), 0.0
        )
        return StepResult(
            Models(
                graphs.combine(trained.models, received.arrived, received.receiver, received.sender, weight)
            )
        )


@dataclass(frozen=True, eq=False)
class Graph(Preferences):
    """Preferences, and the shares (r, n) that they follow from."""

    share: Floats = field(default_factory=lambda: np.zeros((0, 0)))


def positive(alpha: float) -> None:
    """Refuse an alpha that is none."""
    if alpha <= 0:
        raise RequestError(f"alpha={alpha}: how near shares stay to those of size, choose above 0")
