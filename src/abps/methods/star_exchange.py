"""FedAvg between sites: the server's part as an exchange of masked sums.

A server that needs only the sum of what centers send needs no machine of its own: every member uploads its
summand, and does for itself what the server would do with the sum.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from abps.methods.base import Context, Floats, Models
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.methods.fedavg import FedAvg
from abps.methods.star import Server, from_sum, summands
from abps.wire.number_lists import Field, NumberList


@dataclass(frozen=True, eq=False)
class StarState(Models):
    """last: what the server sent last."""

    last: tuple[NDArray[np.float32], ...] = ()


@dataclass(frozen=True)
class StarExchange(CoordinatedMethod):
    """star: FedAvg or FedProx with whole models and their mean."""

    star: FedAvg = field(default_factory=FedAvg)

    def sums_only(self, t: int) -> bool:
        return True

    def init(self, context: Context) -> StarState:
        return StarState(context.common_start())

    def upload(self, context: Context, state: StarState, t: int) -> Upload:
        sent = self.star.upload(context, state, self.star.train(context, state, t, False), t)
        values = summands(sent, context.data.train.sizes.astype(np.float64), self.star.weighting)
        return Upload.encode(list(values), [(Field("single", values.shape[1]),)] * len(values))

    def aggregate(self, context: Context, state: StarState, uploads: Floats, t: int) -> Broadcast:
        """The sum, as two four-byte numbers each."""
        total = np.nansum(uploads, axis=0)
        both = np.concatenate([total, total - total.astype(np.float32)])
        return Broadcast(NumberList.of(both, (Field("single", len(total), 2),)))

    def apply_broadcast(self, context: Context, state: StarState, broadcast: Broadcast, t: int) -> StarState:
        learner, lengths = context.learner, self.star.uploads(context.learner.layout)
        total = broadcast.common.values.reshape(2, -1).sum(axis=0)
        if len(total) != sum(lengths) + 1 or not total[-1] > 0:
            raise ValueError("no sum of such uploads")
        sent, weight = from_sum(total, lengths)
        server = Server(state.last, None, context.seed, learner.layout)
        down, _ = self.star.serve(learner.start, server, sent, weight, t)
        received: StarState = self.star.receive(context, state, state, down, t)
        return replace(received, last=down)
