"""Rotation: everybody meets everybody in turn. A method of one's own, outside the package."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.lab.rivals.choosing import combine
from abps.methods.base import Models
from abps.methods.peers import PeerMethod, Preferences, StepResult


@dataclass(frozen=True, eq=False)
class Met(Models):
    """times: (r, n) how often each center has met each member."""

    times: NDArray[np.float64]


@dataclass(frozen=True)
class Rotation(PeerMethod):
    """share: what a center takes over of its partner's model."""

    share: float = 0.5
    kind = "mutual"

    def init(self, context):
        return Met(context.common_start(), np.zeros((context.r, context.n)))

    def rank_peers(self, context, state, trained, t):
        mine = context.ids[:, None]
        luck = streams.uniforms(context.seed, "rotation:ties", t, mine, context.ids[None])
        order = np.argsort(np.where(context.self_mask, np.inf, state.times + luck), axis=1)
        return Preferences(order[:, :-1].tolist())

    def learn(self, context, state, trained, received, t):
        times = state.times.copy()
        times[received.receiver, received.sender] += 1
        share = np.full(len(received.receiver), self.share)
        return StepResult(
            Met(combine(trained.models, received.arrived, received.receiver, received.sender, share), times)
        )


ROTATION = Rotation()
