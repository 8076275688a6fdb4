"""Star methods between sites: their server's part as an exchange of masked sums.

A server that needs nothing but the sum of what centers send needs no machine of its own. Every member uploads
its summand, and does for itself what the server would do with the sum; so all have the server's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights
from abps.data.prepare import Rows
from abps.methods.base import Context, Floats, Models
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.methods.fedavg import FedAvg
from abps.methods.star import Server, StarMethod, from_sum, summands
from abps.methods.state_bytes import freeze, thaw
from abps.models.metrics import Segments
from abps.wire.number_lists import Field, NumberList


@dataclass(frozen=True, eq=False)
class StarState(Models):
    """own: the rest of the star method's state.  memory: the server's (empty: none).  Both as bytes.
    last: what the server sent last."""

    own: NDArray[np.uint8]
    memory: NDArray[np.uint8]
    last: tuple[NDArray[np.float32], ...] = ()


@dataclass(frozen=True)
class StarExchange(CoordinatedMethod):
    """star: a method whose server adds up (``adds``), and whose models are sent whole."""

    star: StarMethod = field(default_factory=FedAvg)

    def sums_only(self, t: int) -> bool:
        """Always."""
        return True

    def finished(self, state: StarState) -> bool:
        """Whether the server has nothing more to ask."""
        return self.star.over(self._memory(state))

    def derived(self, context: Context) -> Any:
        """What the star method derives."""
        return self.star.derived(context)

    def init(self, context: Context) -> StarState:
        """Its first state; the server remembers nothing."""
        return _state(self.star.init(context), None, ())

    def logits(self, context: Context, state: StarState, rows: Rows) -> Segments:
        """By the star method's own state."""
        return self.star.logits(context, self._own(context, state), rows)

    def upload(self, context: Context, state: StarState, t: int) -> Upload:
        """Train, and add messages times weights, and the weights."""
        own, rows = self._own(context, state), context.data.train.sizes.astype(np.float64)
        sent = self.star.upload(context, own, self.star.train(context, own, t, False), t)
        values = summands(sent, rows, self.star.adds or "size") if sent else np.zeros((len(rows), 0))
        return Upload.encode(list(values), [(Field("single", values.shape[1]),)] * len(values))

    def aggregate(self, context: Context, state: StarState, uploads: Floats, t: int) -> Broadcast:
        """The sum, as two four-byte numbers each: a regression needs more than one."""
        total = np.nansum(uploads, axis=0)
        both = np.concatenate([total, total - total.astype(np.float32)])
        return Broadcast(NumberList.of(both, (Field("single", len(total), 2),)))

    def apply_broadcast(self, context: Context, state: StarState, broadcast: Broadcast, t: int) -> StarState:
        """What the server makes of the sum, and a center of the server's answer."""
        learner, lengths = context.learner, self.star.uploads(context.learner.layout)
        total = broadcast.common.values.reshape(2, -1).sum(axis=0)
        if len(total) != sum(lengths) + 1 or not total[-1] > 0:
            raise ValueError("no sum of such uploads")
        sent, weight = from_sum(total, lengths, self.star.adds or "size")
        server = Server(state.last, self._memory(state), context.seed, learner.layout)
        down, memory = self.star.serve(learner.start, server, sent, weight, t)
        own = self._own(context, state)
        return _state(self.star.receive(context, own, own, down, t), memory, down)

    def _own(self, context: Context, state: StarState) -> Any:
        return thaw(type(self.star.init(context)), state.own.tobytes(), models=state.models)

    def _memory(self, state: StarState) -> Any:
        keeps = self.star.keeps if state.memory.size else None
        return None if keeps is None else thaw(keeps, state.memory.tobytes())


def _state(own: Any, memory: Any, last: tuple[Weights, ...]) -> StarState:
    rest, kept = freeze(own, ("models",)), b"" if memory is None else freeze(memory)
    return StarState(own.models, np.frombuffer(rest, np.uint8), np.frombuffer(kept, np.uint8), last)
