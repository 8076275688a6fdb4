"""EHRFL's selection (Kim et al. 2026): hospitals work with those whose average patient looks like theirs.

For ``warmup`` rounds partners are drawn at random, so that all models mean the same by their hidden layer.
Then every center tells a board the mean of that layer over its training rows (of an additive model: what
every term adds to the logit), the board tells each its ``near`` nearest by Euclidean distance of z-scored
means, and from then on a center's partner is a random one of these; whoever asks is welcome.

The authors have one host that asks others; their text promises noise on the means, their code adds none.
Here ``noise`` above 0 adds it: rows are cut to the length ``clip``, one patient moves a mean by at most 2
clip / N, and the deviation is ``noise`` times that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from abps.core import streams
from abps.core.errors import RequestError
from abps.lab.rivals import graphs
from abps.lab.rivals.choosing import drawn, trail_with
from abps.methods.base import Floats, Ints, Kind, Models, World, tried
from abps.methods.peers import Heard, Learned, Notice, Opinion, PeerMethod, Reply
from abps.tensors import Tensor, torch
from abps.wire.numerals import Numerals, Stretch


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  near: (r, k) the places of the nearest members of each center; -1: not known yet."""

    near: Ints

    def placed(self, place: Ints, n: int) -> State:
        """With members in other places."""
        return replace(self, near=np.where(self.near >= 0, place[self.near], -1))


@dataclass(frozen=True)
class EHRFL(PeerMethod):
    """near: how many of the nearest a center works with.  warmup: rounds of random pairs before.

    clip, noise: protection of the means, off by default.
    """

    near: int = 10
    warmup: int = 5
    clip: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.near < 1 or self.warmup < 1:
            raise RequestError(f"near={self.near}, warmup={self.warmup}: choose at least 1 each")
        if self.clip <= 0 or self.noise < 0:
            raise RequestError(f"clip={self.clip}, noise={self.noise}: choose clip above 0, noise from 0")

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """The learning rate and near."""
        return tried(self, near=(5, 10))

    @property
    def kind(self) -> Kind:
        """Links are mutual."""
        return "mutual"

    def init(self, world: World) -> State:
        """The common start; nobody is near."""
        return State(world.common_start(), np.full((world.r, min(self.near, max(1, world.n - 1))), -1))

    def questions(self, t: int, horizon: int) -> int:
        """One, when the warm-up is over."""
        return int(t == self.warmup + 1)

    def reply(self, world: World, state: State, t: int, question: int) -> Reply:
        """The mean patient."""
        means = self.means(world, state.models)
        return Reply.of(means, (Stretch("single", means.shape[1]),))

    def means(self, world: World, models: Tensor) -> Floats:
        """(r, units) of the hidden layer over every center's training rows; 0 without rows."""
        rows, found = world.data.train, []
        for i in range(world.r):
            x = torch.from_numpy(rows.x[rows.start[i] : rows.start[i + 1]])
            seen = world.learner.representation(models[i][None], x[None])[0].double()
            if self.noise > 0:
                seen = seen * (self.clip / seen.norm(dim=1).clamp_min(self.clip))[:, None]
            mean = seen.sum(0).numpy() / max(1, len(x))
            if self.noise > 0:
                rng = streams.generator(world.seed, "sketch", 2, int(world.ids[world.here[i]]))
                scale = self.noise * 2.0 * self.clip / max(1, len(x))
                mean = mean + scale * rng.standard_normal(len(mean))
            found.append(mean)
        return np.stack(found)

    def board(self, answers: Floats, sizes: Floats, t: int, question: int) -> Notice:
        """Tell everybody its nearest."""
        near = nearest(answers, self.near).astype(np.float64)
        own = {i: Numerals.of(mine, (Stretch("place", len(mine)),)) for i, mine in enumerate(near)}
        return Notice(Numerals.of(np.zeros(0), ()), own)

    def informed(self, world: World, state: State, notice: Notice, t: int, question: int) -> State:
        """Remember who is near."""
        told = [notice.only(int(place)) for place in world.here]
        if any(len(mine) > world.n or (mine >= world.n).any() for mine in told):
            raise ValueError("no members of this study")
        return replace(state, near=np.stack(told).astype(np.int64))

    def opine(self, world: World, state: State, trained: Callable[[], Any], t: int) -> Opinion:
        """A random one of the nearest; before that of all."""
        known = np.zeros((world.r, world.n), dtype=bool)
        row, column = np.nonzero(state.near >= 0)
        known[row, state.near[row, column]] = True
        known[~known.any(axis=1)] = True
        rankings = drawn(world, np.zeros((world.r, world.n)), t, known)
        return Opinion(rankings, trail=trail_with(known.astype(np.float64)))

    def learn(self, world: World, state: State, trained: State, heard: Heard, t: int) -> Learned:
        """Average with the partner, by size."""
        weight = graphs.by_size(world, heard.to, heard.by)
        models = graphs.combine(trained.models, heard.arrived, heard.to, heard.by, weight)
        return Learned(replace(trained, models=models))


def nearest(means: Floats, k: int) -> Ints:
    """(n, k) the k nearest of each of n vectors (n, units), every unit in deviations over the vectors; NaN:
    nothing is known of it, and it is far from all."""
    known = np.asarray(~np.isnan(means).any(axis=1))
    about = means - means[known].mean(axis=0)
    deviation = means[known].std(axis=0)
    z = np.where(known[:, None], about / np.where(deviation > 0, deviation, 1.0), np.inf)
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(((z[:, None] - z[None]) ** 2).sum(axis=2), nan=np.inf)
    np.fill_diagonal(apart, np.nan)  # last of all
    return np.argsort(apart, axis=1, kind="stable")[:, : min(k, len(means) - 1)]
