"""The paper's network and linear models with everything compiled: from the learner's objects and back.

The same interface for a chunk of work as the general path of ``stacked``, without its batches over centers:
one center after the other, each whole round in the cache of one core.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from abps.core import streams
from abps.data.prepare import Prepared, Rows
from abps.models import batches, private
from abps.models.common import Common
from abps.models.gaussian import noise_keys
from abps.models.kernels import MLPKernel
from abps.models.mixtures import Mixtures
from abps.models.native import clipped, linear
from abps.models.native import network as compiled
from abps.models.outcomes import rule, shaped
from abps.models.training import Objective, Training

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def held(w: Tensor) -> Floats:
    """Models as compiled code reads them: (n, P), or (1, P) where one model was expanded for all."""
    return (w[:1] if w.stride(0) == 0 else w).contiguous().numpy()


def _rows(value: Tensor | None, size: int) -> Floats:
    """(n, P) as it is, (1, P) for one that all share, (0, P) for none."""
    if value is None:
        return np.empty((0, size), dtype=np.float32)
    return held(value.reshape(-1, value.shape[-1]))


def _terms(objective: Objective, n: int, size: int) -> compiled.Terms:
    """What is added to the gradient, as arrays."""
    given = objective.strength
    each = given.numpy() if isinstance(given, Tensor) else given
    strength = np.full(n, each, dtype=np.float32)
    return compiled.Terms(strength, _rows(objective.anchor, size), _rows(objective.shift, size))


class FusedLinear:
    """Local rounds and predictions of linear models; the same interface as the network's."""

    def __init__(self, data: Prepared, training: Training, steps: Callable[[Objective, int], Floats]) -> None:
        self._data, self._training, self._steps = data, training, steps
        self._mix = data.outcome.mix

    def takes(self, objective: Objective) -> bool:
        """Whether there is compiled code for an objective: for terms in the weights alone."""
        return objective.contrast is None and objective.lesson is None and objective.gaussian is None

    def train(
        self,
        members: Ints,
        before: Floats,
        after: Floats,
        round: int,
        objective: Objective,
        columns: slice,
        epochs: int,
    ) -> None:
        """The round of some centers (m,); writes their rows of ``after`` (n, P)."""
        rows, size = self._data.train, before.shape[1]
        first, last, _ = columns.indices(size)
        work = (
            members,
            before,
            after,
            rows.x,
            rows.y,
            rows.start,
            epochs,
            self._steps(objective, round),
            np.float32(self._training.weight_decay),
            (first, last),
            tuple(_terms(objective, self._data.size, size)),
        )
        if self._data.outcome.binary:
            linear.descend(*work)
        else:
            linear.descend_outputs(*work, rule(self._data.outcome), self._mix)

    def logits(self, models: Floats, rows: Rows, owner: Ints, which: Ints, place: Ints, out: Floats) -> None:
        """Logits of the models ``which`` (k, P), or of one (1, P), on owners' rows, from ``place`` on."""
        linear.answers(models, which, owner, rows.x, rows.start, place, self._mix, shaped(out))

    def settle(
        self,
        own: Floats,
        others: Floats,
        parts: Mixtures,
        rows: Rows,
        which: Ints,
        place: Ints,
        models: Floats,
        out: Floats,
    ) -> None:
        """The mixtures ``which`` themselves, and their logits on their owners' rows, from ``place`` on."""
        linear.settle(
            own, others, parts.plain(), which, rows.x, rows.start, place, self._mix, models, shaped(out)
        )

    def mixture_logits(
        self, own: Floats, others: Floats, parts: Mixtures, rows: Rows, which: Ints, place: Ints, out: Floats
    ) -> None:
        """Logits of the mixtures ``which`` on their owners' rows, each from ``place`` on."""
        linear.mixed_answers(
            own, others, parts.plain(), which, rows.x, rows.start, place, self._mix, shaped(out)
        )


class FusedPrivate:
    """Private rounds of networks and of linear models."""

    def __init__(self, learner: Common) -> None:
        self._learner = learner
        kernel = learner.kernel
        hidden = kernel.hidden if isinstance(kernel, MLPKernel) else ()
        self._widths = np.array([learner.data.width, *hidden, 1])
        self._decay = private.penalty(learner).numpy()
        self._places = streams.places(learner.layout.size)

    def train(
        self,
        members: Ints,
        before: Floats,
        after: Floats,
        round: int,
        objective: Objective,
        columns: slice,
        epochs: int,
    ) -> None:
        """The private round of some centers (m,); writes their rows of ``after`` (n, P)."""
        learner, t = self._learner, self._learner.training
        assert t.clip is not None
        rows, ids, size = learner.data.train, learner.ids[members], before.shape[1]
        steps, seed = t.private_steps(epochs), learner.seed + learner.secret
        used = private.drawn_rows(seed, ids, round, steps, int(rows.sizes[members].max()), t.sampling)
        share = 1.0 / (t.sampling * np.maximum(rows.sizes, 1))
        first, last, _ = columns.indices(size)
        clipped.train(
            members,
            before,
            after,
            rows.x,
            rows.y,
            rows.start,
            self._widths,
            used,
            share.astype(np.float32),
            np.float32(t.clip),
            np.float32(t.noise_multiplier * t.clip),
            (t.optimizer == "adam", private.rates(learner, round), self._decay, first, last),
            tuple(_terms(objective, learner.data.size, size)),
            (private.noise_keys(seed, ids, round, steps), self._places),
        )


class FusedNetwork:
    """Local rounds and predictions of the paper's network."""

    def __init__(
        self, kernel: MLPKernel, data: Prepared, training: Training, seed: int, ids: NDArray[np.uint64]
    ) -> None:
        self._data, self._training, self._seed, self._ids = data, training, seed, ids
        self._sites, self._size = kernel.sites, kernel.layout.size
        self._widths = np.array([data.width, *kernel.hidden, 1])
        blocks = -(-training.batch // 16)
        self._places = streams.places(8 * blocks * max(kernel.hidden))
        self._rooms = threading.local()

    def takes(self, objective: Objective) -> bool:
        """Whether there is compiled code for an objective: for all of them."""
        return True

    def _room(self) -> compiled.Room:
        """This thread's memory."""
        if not hasattr(self._rooms, "room"):
            rows = max(self._training.batch, compiled.ANSWERED_AT_ONCE)
            self._rooms.room = compiled.room(self._widths, rows)
        return self._rooms.room

    def train(
        self,
        members: Ints,
        before: Floats,
        after: Floats,
        round: int,
        objective: Objective,
        columns: slice,
        epochs: int,
    ) -> None:
        """The round of some centers (m,); writes their rows of ``after`` (n, P).

        before: (n, P), or (1, P) for all.
        """
        t, rows, ids = self._training, self._data.train, self._ids[members]
        sizes = rows.sizes[members]
        orders = batches.row_orders(self._seed, ids, round, sizes, epochs)
        first, last, _ = columns.indices(before.shape[1])
        rule = compiled.Rule(t.optimizer == "adam", np.float32(t.lr), np.float32(t.weight_decay), first, last)
        steps = epochs * -(-int(sizes.max()) // t.batch)
        drop = self._drop(ids, round, steps)
        terms = self._terms(objective)
        compiled.train(
            members,
            before,
            after,
            rows.x,
            rows.y,
            rows.start,
            orders,
            epochs,
            t.batch,
            self._widths,
            tuple(rule),
            tuple(terms),
            tuple(self._frozen(objective)),
            tuple(self._taught(objective)),
            tuple(self._prior(objective, ids, round, steps)),
            tuple(drop),
            tuple(self._room()),
        )

    def _drop(self, ids: NDArray[np.uint64], round: int, steps: int) -> compiled.Drop:
        """Dropout: keys for every (center, step, layer)."""
        rate, limit = (self._sites[0].rate, self._sites[0].limit) if self._sites else (0.0, 0.0)
        index = np.arange(steps, dtype=np.uint64)[:, None] << np.uint64(8)
        index = index | np.arange(len(self._widths) - 2, dtype=np.uint64)
        keys = streams.bits(self._seed, "dropout", round, ids[:, None, None], index)
        return compiled.Drop(np.float32(rate), np.float32(limit), keys, self._places)

    def _terms(self, objective: Objective) -> compiled.Terms:
        """What is added to the gradient, as arrays."""
        return _terms(objective, self._data.size, self._size)

    def _frozen(self, objective: Objective) -> compiled.Frozen:
        """The models that representations are compared with."""
        given = objective.contrast
        if given is None:
            none = self._rows(None)
            return compiled.Frozen(np.float32(0.0), np.float32(1.0), none, none)
        return compiled.Frozen(
            np.float32(given.strength),
            np.float32(given.temperature),
            self._rows(given.near),
            self._rows(given.far),
        )

    def _taught(self, objective: Objective) -> compiled.Taught:
        """Rows that centers learn from besides their own."""
        given, own = objective.lesson, self._data.train
        if given is None:
            return compiled.Taught(np.empty(0, dtype=np.float32), own.x, own.y, own.start)
        rows = given.rows
        return compiled.Taught(given.share.float().numpy(), rows.x, rows.y, rows.start)

    def _prior(self, objective: Objective, ids: NDArray[np.uint64], round: int, steps: int) -> compiled.Prior:
        """The prior of Gaussian weights, and the keys of their noise."""
        given, places = objective.gaussian, streams.places(self._size)
        if given is None:
            none = self._rows(None)
            keys = np.empty((0, 0), dtype=np.uint64)
            return compiled.Prior(np.empty(0, dtype=np.float32), none, none, keys, places)
        keys = noise_keys(self._seed, ids, round, np.arange(steps, dtype=np.uint64))
        center, spread = self._rows(given.center), self._rows(given.spread)
        return compiled.Prior(given.say.float().numpy(), center, spread, keys, places)

    def _rows(self, value: Tensor | None) -> Floats:
        """(n, P) as it is, (1, P) for one that all share, (0, P) for none."""
        return _rows(value, self._size)

    def logits(self, models: Floats, rows: Rows, owner: Ints, which: Ints, place: Ints, out: Floats) -> None:
        """Logits of the models ``which`` (k, P), or of one (1, P), on owners' rows, from ``place`` on."""
        room = self._room()
        compiled.answers(
            models, which, owner, rows.x, rows.start, place, self._widths, room.x, room.hidden, out
        )

    def settle(
        self,
        own: Floats,
        others: Floats,
        parts: Mixtures,
        rows: Rows,
        which: Ints,
        place: Ints,
        models: Floats,
        out: Floats,
    ) -> None:
        """The mixtures ``which`` themselves, and their logits on their owners' rows, from ``place`` on."""
        room = self._room()
        where = rows.x, rows.start, place
        memory = room.x, room.hidden
        compiled.settle(own, others, parts.plain(), which, where, self._widths, memory, models, out)

    def mixture_logits(
        self, own: Floats, others: Floats, parts: Mixtures, rows: Rows, which: Ints, place: Ints, out: Floats
    ) -> None:
        """Logits of the mixtures ``which`` on their owners' rows, each from ``place`` on.

        others: (n, shared), at least the first layer.
        """
        room = self._room()
        where = rows.x, rows.start, place
        memory = room.model, room.x, room.hidden
        compiled.mixed_answers(own, others, parts.plain(), which, where, self._widths, memory, out)
