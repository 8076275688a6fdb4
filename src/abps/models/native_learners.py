"""What compiled local training needs around its kernels.

Every center's model is a row of one matrix. One center's whole round runs in one compiled function, in the
cache of one core; a thread per core takes center after center, each with single-threaded kernels: so the
numbers do not depend on how many cores there are. Nothing here loads PyTorch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights, compact
from abps.data.prepare import Rows
from abps.models import draws
from abps.models.base import BaseLearner
from abps.models.metrics import Segments
from abps.models.mixtures import Mixtures
from abps.models.native.network import Terms
from abps.models.threads import Crew
from abps.models.training import PLAIN, Learner, Objective

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LocalRound:
    """A local round: its number, what is added to the loss, which parameters move, and how long it lasts."""

    number: int
    objective: Objective
    columns: slice
    epochs: int

    def moving(self, size: int) -> tuple[int, int]:
        """The first parameter of ``size`` that moves, and the one after the last."""
        first, last, _ = self.columns.indices(size)
        return first, last


@dataclass
class NativeLearner(BaseLearner):
    """All centers' models in one matrix, trained by compiled code on all cores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._idle = np.flatnonzero(self.data.train.sizes == 0)
        self._crew = Crew()
        self._shares = draws.shares(self.data.train.sizes, self._crew.cores)

    @abstractmethod
    def _takes(self, objective: Objective) -> bool:
        """Whether there is compiled code for an objective."""

    @abstractmethod
    def _train(self, members: Ints, before: Weights, after: Weights, what: LocalRound) -> None:
        """The round of some centers (m,); writes their rows of ``after`` (n, P). before: (n, P) or (1, P)."""

    @abstractmethod
    def _answer(
        self, models: Weights, rows: Rows, owner: Ints, which: Ints, place: Ints, out: Weights
    ) -> None:
        """Logits of the models ``which`` (k, P), or of one (1, P), on owners' rows, from ``place`` on."""

    @abstractmethod
    def _answer_mixed(
        self,
        own: Weights,
        others: Weights,
        parts: Mixtures,
        rows: Rows,
        which: Ints,
        place: Ints,
        out: Weights,
    ) -> None:
        """Logits of the mixtures ``which`` on their owners' rows, each from ``place`` on."""

    @cached_property
    def plain(self) -> Learner:
        """The same model in PyTorch, for what is not compiled."""
        from abps.models.modules import ModuleLearner  # brings PyTorch along

        return ModuleLearner(self.data, self.training, self.seed, secret=self.secret)

    def each(self, work: Callable[[int], None], count: int) -> None:
        """Run ``work`` for 0..count-1 on all cores."""
        self._crew.each(work, count)

    def train(
        self,
        w: Weights,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Weights:
        """(n, P) the models after every center's local epochs; ``w`` is left as it was."""
        return self.begin(w, round, objective, columns, epochs)()

    def begin(
        self,
        w: Weights,
        round: int,
        objective: Objective = PLAIN,
        columns: slice = slice(None),
        epochs: int | None = None,
    ) -> Callable[[], Weights]:
        """Let the centers train while the caller does something else; the result waits for their models."""
        what = LocalRound(round, objective, columns, self.training.epochs if epochs is None else epochs)
        if not self._takes(objective):
            return lambda: self.plain.train(w, round, objective, columns, epochs)
        before, after = held(w), np.empty(w.shape, dtype=np.float32)
        after[self._idle] = w[self._idle]
        wait = self._crew.begin(
            lambda k: self._train(self._shares[k], before, after, what), len(self._shares)
        )

        def finish() -> Weights:
            wait()
            return after

        return finish

    def logits(self, w: Weights, rows: Rows, owner: Ints | None = None) -> Segments:
        """Logits of model k of ``w`` (models, P) on the rows of center ``owner[k]`` (default: k)."""
        self.look(rows)
        who = np.arange(len(w)) if owner is None else owner
        models, (values, start, pieces) = held(w), self._room(rows, who)
        self.each(lambda k: self._answer(models, rows, who, pieces[k], start, values), len(pieces))
        return Segments(values, start)

    def mixture_logits(self, own: Weights, others: Weights, parts: Mixtures, rows: Rows) -> Segments:
        """Logits of every mixture on the rows of its owner."""
        self.look(rows)
        values, start, pieces = self._room(rows, parts.owner)
        mine, sent = compact(own), compact(others)
        self.each(
            lambda k: self._answer_mixed(mine, sent, parts, rows, pieces[k], start, values), len(pieces)
        )
        return Segments(values, start)

    def _room(self, rows: Rows, owner: Ints) -> tuple[Weights, Ints, list[Ints]]:
        """Room for answers to the owners' rows, where each model's begin, and the models in pieces that keep
        calls cheap and let all cores end at about the same time."""
        start = np.concatenate([[0], np.cumsum(rows.sizes[owner])])
        outputs, count = self.data.outcome.outputs, len(owner)
        shape = (int(start[-1]),) if outputs == 1 else (int(start[-1]), outputs)
        pieces = max(1, min(count, 16 * self._crew.cores), -(-count // 256))
        return np.empty(shape, np.float32), start, np.array_split(np.arange(count), pieces)


def held(w: Weights) -> Weights:
    """Models as compiled code reads them: (n, P), or (1, P) where one model stands for all."""
    return compact(w[:1] if w.strides[0] == 0 else w)


def each_row(value: Weights | None, size: int) -> Weights:
    """(n, P) as it is, (1, P) for one that all share, (0, P) for none."""
    if value is None:
        return np.empty((0, size), dtype=np.float32)
    return held(value[None] if value.ndim == 1 else value)


def terms_of(objective: Objective, n: int, size: int) -> Terms:
    """What an objective adds to the gradient, as compiled code reads it."""
    strength = np.full(n, objective.strength, dtype=np.float32)
    return Terms(strength, each_row(objective.anchor, size), each_row(objective.shift, size))
