"""Rotation: everybody meets everybody in turn. A method of one's own, outside the package."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.lab.rivals.graphs import combine
from abps.methods.base import Models
from abps.methods.peers import Learned, Opinion, PeerMethod


@dataclass(frozen=True, eq=False)
class Met(Models):
    """times: (r, n) how often each center has met each member."""

    times: NDArray[np.float64]

    def placed(self, place, n):
        times = np.zeros((len(self.times), n))
        times[:, place] = self.times
        return replace(self, times=times)


@dataclass(frozen=True)
class Rotation(PeerMethod):
    """share: what a center takes over of its partner's model."""

    share: float = 0.5
    kind = "mutual"

    def init(self, world):
        return Met(world.common_start(), np.zeros((world.r, world.n)))

    def opine(self, world, state, trained, t):
        mine = world.ids[world.here][:, None]
        luck = streams.uniforms(world.seed, "rotation:ties", t, mine, world.ids[None])
        order = np.argsort(np.where(world.self_mask, np.inf, state.times + luck), axis=1)
        return Opinion(order[:, :-1].tolist())

    def learn(self, world, state, trained, heard, t):
        times = state.times.copy()
        times[heard.to, heard.by] += 1
        share = np.full(len(heard.to), self.share)
        return Learned(Met(combine(trained.models, heard.arrived, heard.to, heard.by, share), times))


ROTATION = Rotation()
