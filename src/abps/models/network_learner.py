"""Local training of the paper's network, compiled: one center's whole round in the cache of one core."""

from __future__ import annotations

import threading
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.data.prepare import Rows
from abps.models import draws
from abps.models.mixtures import Mixtures
from abps.models.models import initial_weights, layout_of
from abps.models.native import network
from abps.models.native_learners import Ints, LocalRound, NativeLearner, each_row, terms_of
from abps.models.training import Objective


class NetworkLearner(NativeLearner):
    """The paper's network for binary outcomes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        factory = self.training.factory
        self.layout = layout_of(factory(self.data.width))
        self.start = initial_weights(factory, self.data.width, self.seed)
        blocks = -(-self.training.batch // 16)
        self._places = streams.places(8 * blocks * max(self.training.hidden, default=1))
        self._rooms = threading.local()

    @cached_property
    def widths(self) -> Ints:
        """Inputs, hidden units, and the one output."""
        return np.array([self.data.width, *self.training.hidden, 1])

    def _takes(self, objective: Objective) -> bool:
        return True

    def _memory(self) -> network.Room:
        """This thread's memory."""
        if not hasattr(self._rooms, "room"):
            rows = max(self.training.batch, network.ANSWERED_AT_ONCE)
            self._rooms.room = network.room(self.widths, rows)
        room: network.Room = self._rooms.room
        return room

    def _train(self, members: Ints, before: Weights, after: Weights, what: LocalRound) -> None:
        t, rows, ids = self.training, self.data.train, self.ids[members]
        sizes = rows.sizes[members]
        orders = draws.row_orders(self.seed, ids, what.number, sizes, what.epochs)
        moves = network.Rule(
            t.optimizer == "adam", np.float32(t.lr), np.float32(t.decay), *what.moving(before.shape[1])
        )
        steps = what.epochs * -(-int(sizes.max()) // t.batch)
        network.train(
            members,
            before,
            after,
            rows.x,
            rows.y,
            rows.start,
            orders,
            what.epochs,
            t.batch,
            self.widths,
            tuple(moves),
            tuple(terms_of(what.objective, self.data.size, self.layout.size)),
            tuple(self._frozen(what.objective)),
            tuple(self._prior(what.objective, ids, what.number, steps)),
            tuple(self._drop(ids, what.number, steps)),
            tuple(self._memory()),
        )

    def _drop(self, ids: NDArray[np.uint64], round: int, steps: int) -> network.Drop:
        """Dropout: keys for every (center, step, layer)."""
        rate = self.training.dropout
        index = np.arange(steps, dtype=np.uint64)[:, None] << np.uint64(8)
        index = index | np.arange(len(self.widths) - 2, dtype=np.uint64)
        keys = streams.bits(self.seed, "dropout", round, ids[:, None, None], index)
        limit = draws.drop_limit(rate) if rate > 0 else 0.0
        return network.Drop(np.float32(rate), np.float32(limit), keys, self._places)

    def _frozen(self, objective: Objective) -> network.Frozen:
        """The models that representations are compared with."""
        given, size = objective.contrast, self.layout.size
        if given is None:
            return network.Frozen(
                np.float32(0.0), np.float32(1.0), each_row(None, size), each_row(None, size)
            )
        return network.Frozen(
            np.float32(given.strength),
            np.float32(given.temperature),
            each_row(given.near, size),
            each_row(given.far, size),
        )

    def _prior(self, objective: Objective, ids: NDArray[np.uint64], round: int, steps: int) -> network.Prior:
        """The prior of Gaussian weights, and the keys of their noise."""
        given, size = objective.gaussian, self.layout.size
        places = streams.places(size)
        if given is None:
            none, keys = each_row(None, size), np.empty((0, 0), dtype=np.uint64)
            return network.Prior(np.empty(0, dtype=np.float32), none, none, keys, places)
        keys = draws.weight_keys(self.seed, ids, round, np.arange(steps, dtype=np.uint64))
        center, spread = each_row(given.center, size), each_row(given.spread, size)
        return network.Prior(given.say.astype(np.float32), center, spread, keys, places)

    def _answer(
        self, models: Weights, rows: Rows, owner: Ints, which: Ints, place: Ints, out: Weights
    ) -> None:
        room = self._memory()
        network.answers(
            models, which, owner, rows.x, rows.start, place, self.widths, room.x, room.hidden, out
        )

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
        room = self._memory()
        where, memory = (rows.x, rows.start, place), (room.model, room.x, room.hidden)
        network.mixed_answers(own, others, parts.plain(), which, where, self.widths, memory, out)

    def gradient(self, w: Weights, rows: Rows, owner: Ints | None = None) -> Weights:
        """(models, P) gradient of model k's mean loss over all rows of center ``owner[k]``, no dropout."""
        self.look(rows)
        return self.plain.gradient(w, rows, owner)

    def representation(self, w: Weights, x: Weights) -> Weights:
        """(m, b, units) the last hidden layer of models (m, P) on rows (m, b, d), no dropout."""
        return self.plain.representation(w, x)
