"""Gossip: DeceFL and D-PSGD on a fixed graph, and gossip learning with random peers."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from abps.core import matching, streams
from abps.core.arrays import Weights, lerp
from abps.lab.rivals.choosing import Graph, combine, complete, ring, shuffled
from abps.methods.base import Context, Floats, Ints, Models
from abps.methods.peers import PeerMethod, Received, StepResult


@dataclass(frozen=True)
class DeceFL(PeerMethod):
    """DeceFL (Yuan et al. 2024) and D-PSGD (Lian et al. 2017): gossip on a fixed graph.

    Every center averages its neighbours' models of the *start* of the round with its own and adds its own
    local displacement: x_i <- sum_j M_ij x_j + (T_i(x_i) - x_i), M = I - L / (largest degree + 1). M is
    symmetric and its rows and columns sum to one, hence the mean of all models moves by the mean of all
    displacements. D-PSGD is the same with a shorter local training. ``order=adapt-then-combine`` averages the
    trained models instead. The ring runs through the centers in shuffled order: by name it would put similar
    centers side by side.

    graph: ring, changing-ring (a fresh one every round) or complete.
    """

    graph: Graph = "ring"
    order: Literal["displacement", "adapt-then-combine"] = "displacement"

    kind = "graph"

    def edges(self, context: Context, t: int) -> Ints:
        """(e, 2) this round's graph."""
        if self.graph == "complete":
            return complete(context.n)
        return ring(shuffled(context, t if self.graph == "changing-ring" else 0))

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        return matching.both_ways(self.edges(context, t))

    def sent(self, state: Models, trained: Models) -> Weights:
        return trained.models if self.order == "adapt-then-combine" else state.models

    def learn(
        self, context: Context, state: Models, trained: Models, received: Received, t: int
    ) -> StepResult:
        degree = np.bincount(self.edges(context, t).ravel(), minlength=context.n)
        weight = np.full(len(received.receiver), 1.0 / (degree.max(initial=0) + 1))
        mixed = combine(
            self.sent(state, trained), received.arrived, received.receiver, received.sender, weight
        )
        if self.order == "displacement":
            mixed = mixed + (trained.models - state.models)
        return StepResult(Models(mixed))


@dataclass(frozen=True, eq=False)
class AgedModels(Models):
    """models: (r, P).  age: (r,) rows that each model has seen."""

    age: Floats


@dataclass(frozen=True)
class Gossip(PeerMethod):
    """Gossip learning (Hegedűs et al. 2021): every round each center sends its model to one random peer.

    A model's age is the number of rows it has been trained on. Received models are merged one after the other
    in random order, w <- (a w + a' w') / (a + a') and a <- max(a, a'), each as it was sent. Messages go one
    way: n transfers a round, half of FedAvg's.
    """

    #: A model's age travels with it.
    noted = True

    kind = "graph"

    def init(self, context: Context) -> AgedModels:
        return AgedModels(context.common_start(), np.zeros(context.r))

    def train(self, context: Context, state: AgedModels, t: int, alone: bool) -> AgedModels:
        age = state.age + self.training.epochs * context.data.train.sizes
        return AgedModels(context.learner.train(state.models, t), age)

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        to = self.receivers(context, t)
        by = np.flatnonzero(to >= 0)
        return to[by], by

    def receivers(self, context: Context, t: int) -> Ints:
        """(n,) the peer that each center sends to, uniformly among the others; -1 without any other."""
        n = context.n
        if n < 2:
            return np.full(n, -1)
        draw = streams.uniforms(context.seed, "graph", t, context.ids[:, None], context.ids[None, :])
        np.fill_diagonal(draw, -1.0)
        chosen: Ints = np.argmax(draw, axis=1)
        return chosen

    def note(self, context: Context, trained: AgedModels, listeners: Ints) -> Floats:
        return trained.age

    def learn(
        self, context: Context, state: AgedModels, trained: AgedModels, received: Received, t: int
    ) -> StepResult:
        to, by = received.receiver, received.sender
        # Every message has its own place in the receiver's queue, whatever order centers are listed in.
        receivers = context.ids[to]
        place = streams.uniforms(context.seed, "proposal-order", t, receivers, context.ids[by])
        return StepResult(
            AgedModels(*merge(trained.models, trained.age, received.arrived, received.notes, by, to, place))
        )


def merge(
    models: Weights, age: Floats, arrived: Weights, ages: Floats, by: Ints, to: Ints, place: Floats
) -> tuple[Weights, Floats]:
    """Models (r, P) and ages (r,) after all messages: from places ``by`` to rows ``to``, in the order of
    ``place``.

    arrived: (n, shared) of the ages (n,). The first message of every receiver is merged at once, then the
    second, ….
    """
    shared = arrived.shape[1]
    merged, now = models.copy(), age.copy()
    order = np.lexsort((place, to))
    by, to = by[order], to[order]
    turn = np.arange(len(to)) - np.searchsorted(to, to, side="left")
    for k in range(int(turn.max(initial=-1)) + 1):
        a, b = to[turn == k], by[turn == k]
        share = ages[b] / np.maximum(now[a] + ages[b], 1.0)
        part = share.astype(np.float32)[:, None]
        merged[a, :shared] = lerp(merged[a, :shared], arrived[b], part)
        now[a] = np.maximum(now[a], ages[b])
    return merged, now
