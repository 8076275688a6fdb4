"""Local training of the paper's network, compiled.

One center's whole round runs in one compiled function, in the cache of one core; a thread per core takes
center after center, each with single-threaded kernels: the numbers do not depend on how many cores there are.
"""

import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights, compact
from abps.data.prepare import Rows
from abps.models import draws, network
from abps.models.learners import Learner
from abps.models.metrics import Segments
from abps.models.models import initial_weights, layout_of
from abps.models.training import LocalRound, Objective

Ints = NDArray[np.int64]


class NetworkLearner(Learner):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._idle = np.flatnonzero(self.data.train.sizes == 0)
        self._shares = draws.shares(self.data.train.sizes, self._crew.cores)
        factory = self.training.factory
        self.layout = layout_of(factory(self.data.width))
        self.start = initial_weights(factory, self.data.width, self.seed)
        blocks = -(-self.training.batch // 16)
        self._places = streams.places(8 * blocks * max(self.training.hidden, default=1))
        self._rooms = threading.local()

    @cached_property
    def widths(self) -> Ints:
        return np.array([self.data.width, *self.training.hidden, 1])

    def start_round(self, w: Weights, what: LocalRound) -> Callable[[], Weights]:
        """Training while the caller does something else; losses not in the weights alone are PyTorch's."""
        if not what.objective.simple:
            return self.plain.start_round(w, what)
        before, after = held(w), np.empty(w.shape, dtype=np.float32)
        after[self._idle] = w[self._idle]
        wait = self._crew.begin(
            lambda k: self._train(self._shares[k], before, after, what), len(self._shares)
        )

        def finish() -> Weights:
            wait()
            return after

        return finish

    def _memory(self) -> network.Room:
        if not hasattr(self._rooms, "room"):
            rows = max(self.training.batch, network.ANSWERED_AT_ONCE)
            self._rooms.room = network.room(self.widths, rows)
        room: network.Room = self._rooms.room
        return room

    def _train(self, members: Ints, before: Weights, after: Weights, what: LocalRound) -> None:
        """The round of some centers (m,); writes their rows of ``after`` (n, P). before: (n, P) or (1, P)."""
        t, rows, ids = self.training, self.data.train, self.ids[members]
        sizes = rows.sizes[members]
        orders = draws.row_orders(self.seed, ids, what.number, sizes, what.epochs)
        moving = what.columns.indices(before.shape[1])[:2]
        moves = network.Rule(t.optimizer == "adam", np.float32(t.lr), np.float32(t.decay), *moving)
        steps = what.epochs * -(-int(sizes.max()) // t.batch)
        terms = terms_of(what.objective, self.data.size, self.layout.size)
        drop = self._drop(ids, what.number, steps)
        held, pace = (rows.x, rows.y, rows.start), (orders, what.epochs, t.batch)
        plain = (tuple(part) for part in (moves, terms, drop, self._memory()))
        network.train(members, before, after, held, pace, self.widths, *plain)

    def _drop(self, ids: NDArray[np.uint64], round: int, steps: int) -> network.Drop:
        """Dropout: keys for every (center, step, layer)."""
        rate = self.training.dropout
        index = np.arange(steps, dtype=np.uint64)[:, None] << np.uint64(8)
        index = index | np.arange(len(self.widths) - 2, dtype=np.uint64)
        keys = streams.bits(self.seed, "dropout", round, ids[:, None, None], index)
        limit = draws.drop_limit(rate) if rate > 0 else 0.0
        return network.Drop(np.float32(rate), np.float32(limit), keys, self._places)

    def logits(self, w: Weights, rows: Rows, owner: Ints | None = None) -> Segments:
        self.look(rows)
        who = np.arange(len(w)) if owner is None else owner
        start = np.concatenate([[0], np.cumsum(rows.sizes[who])])
        models, values = held(w), np.empty(int(start[-1]), np.float32)
        # Pieces that keep calls cheap and let all cores end at about the same time.
        count = max(1, min(len(who), 16 * self._crew.cores), -(-len(who) // 256))
        pieces = np.array_split(np.arange(len(who)), count)

        def work(k: int) -> None:
            room = self._memory()
            where = (rows.x, rows.start, start)
            network.answers(models, pieces[k], who, *where, self.widths, room.x, room.hidden, values)

        self.each(work, len(pieces))
        return Segments(values, start)


def held(w: Weights) -> Weights:
    """Models as compiled code reads them: (n, P), or (1, P) where one model stands for all."""
    return compact(w[:1] if w.strides[0] == 0 else w)


def each_row(value: Weights | None, size: int) -> Weights:
    """(n, P) as it is, (1, P) for one that all share, (0, P) for none."""
    if value is None:
        return np.empty((0, size), dtype=np.float32)
    return held(value[None] if value.ndim == 1 else value)


def terms_of(objective: Objective, n: int, size: int) -> network.Terms:
    """What an objective adds to the gradient, as compiled code reads it."""
    strength = np.full(n, objective.strength, dtype=np.float32)
    return network.Terms(strength, each_row(objective.anchor, size), each_row(objective.shift, size))
