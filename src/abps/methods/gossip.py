"""Gossip learning (Hegedűs et al. 2021): every round each center sends its model to one random peer.

A model has an age, the number of rows it has been trained on. A center that receives models merges them
one after the other in random order, w <- (a w + a' w') / (a + a') and a <- max(a, a'), each as its sender
had it at the time of sending. Messages go one way: n transfers a round, half of FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import streams
from abps.core.ledger import CONTROL_MESSAGE, Ledger, Traffic
from abps.core.matching import Rest
from abps.methods.base import Method, Outcome, Wire, World


@dataclass(frozen=True, eq=False)
class State:
    """models: (n, P).  age: (n,) rows that each model has seen."""

    models: Tensor
    age: NDArray[np.float64]


@dataclass(frozen=True)
class Gossip(Method):
    """wire: codec and private layers."""

    wire: Wire = field(default_factory=Wire)

    def init(self, world: World) -> State:
        """The common start, of age zero."""
        return State(world.common_start(), np.zeros(world.n))

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """Train, send to one peer, merge what arrives."""
        trained = world.learner.train(state.models, t)
        age = state.age + self.training.epochs * world.data.train.sizes
        to = self.receivers(world, t)
        by = np.flatnonzero(to >= 0)
        traffic = self.traffic(world, by, to[by])
        if not ledger.affords(traffic):
            return State(trained, age), Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
        arrived = self.wire.deliver(world, trained[:, : self.wire.shared(world)], t)
        # Every message has its own place in the receiver's queue, whatever order centers are listed in.
        place = streams.uniforms(world.seed, "proposal-order", t, world.ids[to[by]], world.ids[by])
        models, age = merge(trained, age, arrived, by, to[by], place)
        got = np.bincount(to[by], minlength=world.n)
        return State(models, age), Outcome(
            traffic, got, np.where(got > 0, Rest.NOT, Rest.NO_CANDIDATES).astype(np.int8)
        )

    def receivers(self, world: World, t: int) -> NDArray[np.int64]:
        """(n,) the peer that each center sends to, uniformly among the others; -1 without any other."""
        n = world.n
        if n < 2:
            return np.full(n, -1)
        draw = streams.uniforms(world.seed, "graph", t, world.ids[:, None], world.ids[None, :])
        np.fill_diagonal(draw, -1.0)
        chosen: NDArray[np.int64] = np.argmax(draw, axis=1)
        return chosen

    def traffic(self, world: World, by: NDArray[np.int64], to: NDArray[np.int64]) -> Traffic:
        """A payload per pair that was in touch, and one per message; the age travels as control."""
        payload = self.wire.payload(world)
        touching = {(min(a, b), max(a, b)) for a, b in zip(by.tolist(), to.tolist())}
        return Traffic(len(touching) * payload, len(by) * payload, len(by) * CONTROL_MESSAGE)


def merge(
    models: Tensor,
    age: NDArray[np.float64],
    arrived: Tensor,
    by: NDArray[np.int64],
    to: NDArray[np.int64],
    place: NDArray[np.float64],
) -> tuple[Tensor, NDArray[np.float64]]:
    """Models (n, P) and ages after all messages: from ``by`` to ``to``, in the order of ``place``.

    The first message of every receiver is merged at once, then the second of those that have one, ….
    """
    shared = arrived.shape[1]
    merged, now = models.clone(), age.copy()
    order = np.lexsort((place, to))
    by, to = by[order], to[order]
    turn = np.arange(len(to)) - np.searchsorted(to, to, side="left")
    for k in range(int(turn.max(initial=-1)) + 1):
        a, b = to[turn == k], by[turn == k]
        share = age[b] / np.maximum(now[a] + age[b], 1.0)
        rows = torch.from_numpy(a)
        part = torch.from_numpy(share.astype(np.float32))[:, None]
        merged[rows, :shared] = torch.lerp(merged[rows, :shared], arrived[torch.from_numpy(b)], part)
        now[a] = np.maximum(now[a], age[b])
    return merged, now
