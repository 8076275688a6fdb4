"""Gossip learning (Hegedűs et al. 2021): every round each center sends its model to one random peer.

A model has an age, the number of rows it has been trained on. A center that receives models merges them
one after the other in random order, w <- (a w + a' w') / (a + a') and a <- max(a, a'), each as its sender
had it at the time of sending. Messages go one way: n transfers a round, half of FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abps.core import streams
from abps.core.arrays import Weights, lerp
from abps.methods.base import Context, Floats, Ints, Models
from abps.methods.peers import PeerMethod, Received, StepResult


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  age: (r,) rows that each model has seen."""

    age: Floats


@dataclass(frozen=True)
class Gossip(PeerMethod):
    """wire: codec and private layers."""

    #: A model's age travels with it.
    noted = True

    kind = "graph"

    def init(self, context: Context) -> State:
        """The common start, of age zero."""
        return State(context.common_start(), np.zeros(context.r))

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        """The local epochs."""
        age = state.age + self.training.epochs * context.data.train.sizes
        return State(context.learner.train(state.models, t), age)

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        """Every center to its receiver."""
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

    def note(self, context: Context, trained: State, listeners: Ints) -> Floats:
        """A model's age."""
        return trained.age

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        """Merge what arrives."""
        to, by = received.receiver, received.sender
        # Every message has its own place in the receiver's queue, whatever order centers are listed in.
        receivers = context.ids[to]
        place = streams.uniforms(context.seed, "proposal-order", t, receivers, context.ids[by])
        return StepResult(
            State(*merge(trained.models, trained.age, received.arrived, received.notes, by, to, place))
        )


def merge(
    models: Weights, age: Floats, arrived: Weights, ages: Floats, by: Ints, to: Ints, place: Floats
) -> tuple[Weights, Floats]:
    """Models (r, P) and ages (r,) after all messages: from places ``by`` to rows ``to``, in the order of
    ``place``.

    arrived: (n, shared) what members sent, of the ages (n,). The first message of every receiver is merged
    at once, then the second of those that have one, ….
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
