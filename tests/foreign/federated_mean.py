"""A coordinated method of somebody else: every exchange moves all models by the mean of local steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from abps.methods.base import Models, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.models.training import Training
from abps.wire.number_lists import Field, NumberList


@dataclass(frozen=True)
class FederatedMean(CoordinatedMethod):
    """until: exchanges until it is done."""

    training: Training = field(default_factory=lambda: Training.of("linear"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=4))
    until: int = 4

    def sums_only(self, t):
        return True

    def finished(self, state):
        return state.exchanges >= self.until

    def init(self, context):
        return Exchanged(context.common_start(), 0)

    def upload(self, context, state, t):
        step = context.learner.train(state.models, t) - state.models
        sizes = context.data.train.sizes.astype(np.float64)
        values = [np.append(size * row, size) for row, size in zip(step.astype(np.float64), sizes)]
        return Upload.encode(values, [(Field("single", len(values[0])),)] * len(values))

    def aggregate(self, context, state, uploads, t):
        total = np.nansum(uploads, axis=0)
        return Broadcast(NumberList.of(total[:-1] / total[-1], (Field("single", len(total) - 1),)))

    def apply_broadcast(self, context, state, broadcast, t):
        step = broadcast.common.values
        if step.shape != state.models.shape[1:]:
            raise ValueError("a step of another length")
        return replace(state, models=state.models + step.astype(np.float32), exchanges=t)


@dataclass(frozen=True, eq=False)
class Exchanged(Models):
    """exchanges: how many are done."""

    exchanges: int


MEAN = FederatedMean()
ENDLESS = FederatedMean(until=10**6)
