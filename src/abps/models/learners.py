"""What a method may ask of the local learning of all centers, and which learner trains a model: compiled code
where there is some, PyTorch for any other ``nn.Module``.

Learners are imported where they are chosen: a site that fits linear models never loads PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights, compact
from abps.core.errors import RequestError
from abps.data.prepare import Prepared, Rows
from abps.models import network
from abps.models.layout import Layout
from abps.models.metrics import Segments
from abps.models.threads import Crew
from abps.models.training import PLAIN, LocalRound, Objective, Training

Ints = NDArray[np.int64]

#: Mixtures that are in memory at a time, where only their answers are asked for; and pieces of them.
MIXED_AT_ONCE, MIXED_PER_CALL = 512, 64


@dataclass(frozen=True, eq=False)
class Mixtures:
    """k models, each a center's own whose shared layers are averaged with what others sent.

    owner: (k,) whose own model, and so whose private layers.  own: (k,) its share of the average.
    other: (parts,) who else is in it, share: (parts,) with what share; model k owns start[k]:start[k+1].
    """

    owner: Ints
    own: NDArray[np.float32]
    other: Ints
    share: NDArray[np.float32]
    start: Ints

    def __len__(self) -> int:
        return len(self.owner)

    def some(self, first: int, last: int) -> Mixtures:
        these, start = slice(first, last), self.start[first : last + 1]
        inside = slice(start[0], start[-1])
        parts = self.other[inside], self.share[inside], start - start[0]
        return Mixtures(self.owner[these], self.own[these], *parts)


def mixtures(owner: Ints, other: Ints, counts: Ints, weights: NDArray[np.float32]) -> Mixtures:
    """Averages of ``owner[k]`` with its ``counts[k]`` others, by weights (n,)."""
    row = np.repeat(np.arange(len(owner)), counts)
    mine = weights[owner].astype(np.float64)
    total = mine + np.bincount(row, weights=weights[other], minlength=len(owner))
    # A model without members is the owner's, untouched.
    own = np.where(counts > 0, mine / total, 1.0)
    share = weights[other] / total[row]
    start = np.concatenate([[0], np.cumsum(counts)])
    return Mixtures(owner, own.astype(np.float32), other, share.astype(np.float32), start)


@dataclass
class Learner(ABC):
    """secret: added to the seed of what hides rows in private training; 0 in a simulation, which repeats.

    noisy_steps: how many private steps were taken in which round.  looked: whether anything was asked about
    training rows beside training.  sharing: how many centers learn one model together, and share its penalty.
    start: (P,) the common start.  ids: (n,) the centers' stream ids.
    """

    data: Prepared
    training: Training
    seed: int
    secret: int = field(default=0, kw_only=True)
    noisy_steps: dict[int, int] = field(init=False, default_factory=dict)
    looked: bool = field(init=False, default=False)
    sharing: int = field(init=False, default=1)
    start: Weights = field(init=False)
    layout: Layout = field(init=False)
    ids: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.ids, self._crew = streams.center_ids(self.data.centers), Crew()
        if self.training.clip is not None and not self.data.outcome.binary:
            raise RequestError(
                f"clip: private training is for binary outcomes, not {self.data.outcome.kind}; leave it out"
            )
        if self.training.optimizer == "newton" and not self.training.linear:
            raise RequestError(
                "optimizer=newton: it solves linear models; choose model=gam or model=linear, or another "
                "optimizer"
            )

    def look(self, rows: Rows) -> None:
        """Note that something was asked about rows; training rows are in ``train`` and in ``own``."""
        own = self.data.__dict__.get("own")  # computed when somebody asks for it
        mine = (self.data.train,) if own is None else (self.data.train, own)
        self.looked |= any(np.may_share_memory(rows.y, part.y) for part in mine)

    def decay(self) -> Weights:
        """(P,) the penalty of every parameter; intercepts of linear models have none."""
        decay = np.full(self.layout.size, self.training.decay, dtype=np.float32)
        if self.training.optimizer == "newton":
            for block in self.layout.blocks:
                if block.name.startswith("intercept."):
                    decay[block.start : block.stop] = 0.0
        return decay

    def take_noisy_steps(self, round: int, epochs: int) -> None:
        """Note the private steps of a round. Its noise is drawn once: twice the same noise hides nothing."""
        if round in self.noisy_steps:
            raise RequestError(
                "clip: this method trains more than once in a round, with one and the same noise; "
                "choose one that trains once"
            )
        self.noisy_steps[round] = self.training.private_steps(epochs)

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Run ``work`` for 0..count-1 on all cores, in any order; it may ask the learner for more."""
        self._crew.each(work, count)

    @cached_property
    def plain(self) -> Learner:
        """The same model in PyTorch, for what has no code of its own."""
        from abps.models.modules import ModuleLearner  # brings PyTorch along

        return ModuleLearner(self.data, self.training, self.seed, secret=self.secret)

    @abstractmethod
    def start_round(self, w: Weights, what: LocalRound) -> Callable[[], Weights]:
        """Let the centers train; the result waits for their models (n, P). ``w`` is left as it was."""

    def train(
        self,
        w: Weights,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Weights:
        """(n, P) the models after every center's local epochs. Only ``columns`` of the parameters move."""
        count = self.training.epochs if epochs is None else epochs
        return self.start_round(w, LocalRound(round, objective, columns, count))()

    def begin(self, w: Weights, round: int) -> Callable[[], Weights]:
        return self.start_round(w, LocalRound(round, PLAIN, slice(None), self.training.epochs))

    @abstractmethod
    def logits(self, w: Weights, rows: Rows, owner: Ints | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""

    def settle(self, own: Weights, others: Weights, parts: Mixtures, rows: Rows) -> tuple[Weights, Segments]:
        """(k, P) every mixture of own models (n, P) and what was sent of the shared columns (n, shared), then
        its logits on the rows of its owner."""
        models = np.empty((len(parts), own.shape[1]), dtype=np.float32)
        mine, sent = compact(own), compact(others)
        plain = parts.owner, parts.own, parts.other, parts.share, parts.start
        pieces = np.array_split(np.arange(len(parts)), max(1, -(-len(parts) // MIXED_PER_CALL)))
        self.each(lambda k: network.mixed_models(mine, sent, plain, pieces[k], models), len(pieces))
        return models, self.logits(models, rows, parts.owner)

    def mixture_logits(self, own: Weights, others: Weights, parts: Mixtures, rows: Rows) -> Segments:
        """Logits of every mixture on the rows of its owner, with a few of the models in memory at a time."""
        found = [
            self.settle(own, others, parts.some(at, at + MIXED_AT_ONCE), rows)[1]
            for at in range(0, max(1, len(parts)), MIXED_AT_ONCE)
        ]
        start = np.concatenate([[0], np.cumsum(rows.sizes[parts.owner])])
        return Segments(np.concatenate([part.values for part in found]), start)

    def gradient(self, w: Weights, rows: Rows) -> Weights:
        """(n, P) gradient of every center's mean loss over all of its rows, no dropout; zero without rows.
        Labels between 0 and 1 are allowed."""
        self.look(rows)
        return self.plain.gradient(w, rows)

    def representation(self, w: Weights, x: Weights) -> Weights:
        """(b, units) the last hidden layer of a model (P,) on rows (b, d), no dropout."""
        return self.plain.representation(w, x)

    def on(self, data: Prepared) -> Learner:
        return replace(self, data=data)


def learner_for(
    data: Prepared,
    training: Training,
    seed: int,
    *,
    secret: int = 0,
    plain: bool = False,
    device: str = "cpu",
) -> Learner:
    """The learner of a model.  secret: added to the seed of private noise.  plain: PyTorch for networks, one
    center at a time: slow, and the oracle of compiled code.  device: where PyTorch computes."""
    if training.optimizer == "newton" and training.linear and training.clip is None:
        from abps.models.newton import LinearLearner

        return LinearLearner(data, training, seed, secret=secret)
    compiled = not plain and device == "cpu" and training.clip is None
    if compiled and training.model == "mlp" and data.outcome.binary:
        from abps.models.network_learner import NetworkLearner

        return NetworkLearner(data, training, seed, secret=secret)
    from abps.models.modules import ModuleLearner

    return ModuleLearner(data, training, seed, secret=secret, device=device)
