"""What a method is: a frozen configuration with ``init`` and ``apply``.

A method sees all centers' models as one matrix (n, P) and asks a learner to train and to predict; it
never knows how (stacked, or one center at a time). A run is ``state = init(world)`` and then, for every
round, ``state, outcome = apply(world, state, t, ledger)``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import streams
from abps.core.errors import RequestError
from abps.core.ledger import Ledger, Traffic
from abps.core.matching import Rest
from abps.data.prepare import Prepared, Rows
from abps.learn.metrics import Segments
from abps.learn.training import Learner, Training
from abps.wire.codecs import NOTHING, codec
from abps.wire.frames import frame_size

#: Words in an array, or none in their place.
Words = NDArray[np.object_]

#: The stream number of a star's server.
SERVER = streams.center_id("the server")


@dataclass(frozen=True)
class Wire:
    """What is sent, and how it is written: the codec, and how many last layers stay private.

    reference: none (weights as they are) or start (differences from the common start, which all know).
    """

    codec: str = "fp32"
    private_layers: int = 0
    reference: str = "none"

    def __post_init__(self) -> None:
        codec(self.codec)
        if self.reference not in ("none", "start"):
            raise RequestError(f"reference={self.reference!r}: choose none or start")

    def shared(self, world: World) -> int:
        """How many leading columns of a model are shared."""
        return world.learner.layout.shared(self.private_layers)

    def payload(self, world: World) -> int:
        """Bytes of the frame that carries one center's shared weights."""
        return frame_size(codec(self.codec), self.shared(world))

    def base(self, start: Tensor, count: int) -> Tensor:
        """(count,) what is subtracted before encoding and added again on arrival."""
        return start[:count] if self.reference == "start" else torch.zeros(count)

    def deliver(self, world: World, weights: Tensor, t: int, server: bool = False) -> Tensor:
        """(senders, shared) of round t as the receivers see them.

        The senders are all centers in their order, or the server alone.
        """
        senders = np.array([SERVER], dtype=np.uint64) if server else world.ids
        keys = streams.bits(world.seed, "codec", t, senders)
        common = NOTHING
        if self.reference != "none":
            common = self.base(world.learner.start, weights.shape[1]).numpy()
        arrived = torch.empty(weights.shape)
        sent, seen = weights.numpy(), arrived.numpy()
        blocks = np.array_split(np.arange(len(weights)), -(-len(weights) // 32))

        def work(k: int) -> None:
            some = slice(int(blocks[k][0]), int(blocks[k][-1]) + 1)
            codec(self.codec).arrive(sent[some], keys[some], common, seen[some])

        world.learner.each(work, len(blocks))
        return arrived


@dataclass(frozen=True)
class Stopping:
    """When a run ends: after ``rounds``, or after ``patience`` rounds without a better validation AUROC.

    grace: rounds at the start that are not held against a run. A fresh network first learns that outcomes are
    rare, and its AUROC falls before it rises; patience counted from round 1 would end there.
    restore_best: report the models of the best validation round instead of the last.
    """

    rounds: int = 50
    patience: int | None = None
    grace: int = 0
    min_delta: float = 0.0
    restore_best: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise RequestError(f"rounds={self.rounds}: a run needs at least 1 round")
        if self.patience is not None and self.patience < 1:
            raise RequestError(f"patience={self.patience}: choose at least 1, or none")

    def better(self, value: float, best: float) -> bool:
        """Whether a round's mean validation AUROC beats the best so far (NaN: there is none)."""
        return value > best + self.min_delta or math.isnan(best)

    def over(self, t: int, best: int) -> bool:
        """Whether to stop after round t when the best was round ``best``."""
        return self.patience is not None and t - max(best, self.grace) >= self.patience


@dataclass(frozen=True, eq=False)
class World:
    """What a method works with: the learner of all centers, their data, and the seed."""

    learner: Learner
    data: Prepared
    ids: NDArray[np.uint64]
    seed: int
    horizon: int

    @property
    def n(self) -> int:
        """The number of centers."""
        return self.data.size

    def sizes(self) -> Tensor:
        """(n,) training rows per center."""
        return torch.from_numpy(self.data.train.sizes.astype(np.float32))

    def common_start(self) -> Tensor:
        """(n, P) the same initial model for every center."""
        return self.learner.start.expand(self.n, -1).clone()


@dataclass(frozen=True, eq=False)
class Decisions:
    """One round's audit trail in columns; ``peer`` is -1 where a decision concerns nobody in particular."""

    center: NDArray[np.int64]
    peer: NDArray[np.int64]
    decision: Words
    score: NDArray[np.float64]
    mean: NDArray[np.float64]
    count: NDArray[np.float64]
    reason: Words

    def after(self, first: Decisions) -> Decisions:
        """Both trails, the other one first."""
        return Decisions(
            np.concatenate([first.center, self.center]),
            np.concatenate([first.peer, self.peer]),
            np.concatenate([first.decision, self.decision]),
            np.concatenate([first.score, self.score]),
            np.concatenate([first.mean, self.mean]),
            np.concatenate([first.count, self.count]),
            np.concatenate([first.reason, self.reason]),
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round did besides changing models.

    partners: (n,) how many peers' models each center received.  rest: (n,) a :class:`Rest` each.
    overdrawn: the budget did not allow the exchange, so communication is over.
    answers: every center's predictions for its own validation and test rows by its new model, where the round
    has made them anyway.
    """

    traffic: Traffic
    partners: NDArray[np.int64]
    rest: NDArray[np.int8]
    decisions: Decisions | None = None
    overdrawn: bool = False
    answers: tuple[Segments, Segments] | None = None

    @staticmethod
    def alone(n: int, rest: Rest = Rest.NOT, overdrawn: bool = False) -> Outcome:
        """A round without any exchange."""
        return Outcome(
            Traffic(), np.zeros(n, dtype=np.int64), np.full(n, rest, dtype=np.int8), None, overdrawn
        )

    @staticmethod
    def of_star(n: int, traffic: Traffic) -> Outcome:
        """A round in which every center exchanged with the server."""
        return Outcome(traffic, np.full(n, n - 1, dtype=np.int64), np.zeros(n, dtype=np.int8))


@dataclass(frozen=True, eq=False)
class Models:
    """The plainest state: one model per center, (n, P)."""

    models: Tensor


@dataclass(frozen=True)
class Method(ABC):
    """A method's configuration. Fields are settings; ``--set name=value`` reaches each by its name.

    budget: edge bytes after which communication ends, or none.
    """

    training: Training = field(default_factory=Training)
    stop: Stopping = field(default_factory=Stopping)
    budget: float | None = None

    @abstractmethod
    def init(self, world: World) -> Any:
        """The state before the first round."""

    @abstractmethod
    def apply(self, world: World, state: Any, t: int, ledger: Ledger) -> tuple[Any, Outcome]:
        """One round t = 1, 2, …"""

    def moved(self, before: World, world: World, state: Any, t: int) -> Any:
        """The state when, before round t, new data took the place of old: nothing to do for most methods."""
        return state

    def logits(self, world: World, state: Any, rows: Rows) -> Segments:
        """Every center's predictions for its own rows."""
        return world.learner.logits(state.models, rows)

    def beliefs(self, state: Any) -> Any:
        """What the centers believe of each other, for methods that keep beliefs."""
        return getattr(state, "beliefs", None)


def weighted_mean(models: Tensor, weights: Tensor) -> Tensor:
    """(P,) mean of (n, P) rows with the given (n,) weights."""
    return (weights / weights.sum()).to(models.dtype) @ models


def center_weights(world: World, weighting: str) -> Tensor:
    """(n,) a center's say in an average: its training rows, or the same for all."""
    if weighting == "size":
        return world.sizes()
    if weighting == "uniform":
        return torch.ones(world.n)
    raise RequestError(f"weighting={weighting!r}: choose size or uniform")
