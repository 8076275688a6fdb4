"""Beliefs that can be read: what a mix with a peer takes off a center's own loss, and how sure that is.

When two centers meet, each measures on its validation rows what the mix of their two models takes off its
loss: a mean over rows, and how much rows differ in it. How far a mix moves a center's predictions falls as
models agree, by a factor of a hundred in a study; what lasts is the *size* of the effect, its mean over the
deviation between rows. So beliefs are about sizes, and are told in nats at the meeting that they are of.

A center has a few dozen validation rows: alone it can hardly tell a helpful mix from a harmful one. But all
centers together can, and so what a center expects of its meetings is what all of them found. Between two roll
calls is a *stretch* of rounds; at its end every center tells the mean size that it has measured, with its
error, and is told the mean of all and how far centers differ (:func:`pooled`). The size of one meeting is
then normal around that: a level of the center, what is special about a peer, and what is special about the
meeting. A measurement has the error of so many rows, and a part of that error lasts, because a center has the
same rows in every round. The posterior is exact, given what the center measured in that stretch and was told.

The numbers in :class:`Sizes` were chosen so that P(helps) was as often right as it says, on two seeds (302
and 303) of six made-up worlds in which the truth is known; what is told of calibration is of other seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core.usefulness import Experience, normal_cdf

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: How many times as much as is usual a center's mean size counts at most.
FARTHEST = 5.0


@dataclass(frozen=True)
class Sizes:
    """What is expected of the sizes of effects.

    level: deviation between centers, until all were asked; ``least``: at least that much afterwards.  own:
    between peers.  single: between meetings.  wider: how much larger a measurement's variance is than its
    rows say (few events say little of it).  lasting: the share of it that is the same in all rounds.
    """

    level: float = 0.05
    least: float = 0.03
    own: float = 0.02
    single: float = 0.07
    wider: float = 3.0
    lasting: float = 0.5

    def error(self, rows: Ints, meetings: Ints) -> Floats:
        """Variance of the mean of a center's sizes, if every center had the same level."""
        noise = self.wider / (rows - 1.0)
        return np.asarray(
            noise * (self.lasting + (1.0 - self.lasting) / meetings) + self.single**2 / meetings
        )


@dataclass(frozen=True, eq=False)
class PeerEffects:
    """What is believed of each mix that was measured, in the order of the measurements.

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


def mean_sizes(seen: Experience, rows: Ints, after: int, expect: Sizes | None = None) -> Floats:
    """(r, 2) the mean size of each center's measurements after a round, and its variance; 0, 0: none.

    rows: (r,) validation rows.
    """
    expect = expect or Sizes()
    some = np.flatnonzero((seen.se > 0) & (rows[seen.center] > 2) & (seen.round > after))
    center = seen.center[some]
    size = seen.value[some] / (seen.se[some] * np.sqrt(rows[center] - 1.0))
    count = np.bincount(center, minlength=len(rows))
    told = np.zeros((len(rows), 2))
    there = count > 0
    told[there, 0] = np.bincount(center, weights=size, minlength=len(rows))[there] / count[there]
    told[there, 1] = expect.error(rows[there], count[there])
    return told


def pooled(told: Floats) -> tuple[float, float]:
    """The mean of all centers' sizes and the variance between centers.

    told: (n, 2) means and their variances; 0, 0 or NaN: nothing. As in a random-effects analysis (DerSimonian
    and Laird); who tells something far off counts as less far.
    """
    told = told[np.isfinite(told).all(axis=1)]
    told = told[told[:, 1] > 0]
    if not len(told):
        return 0.0, 0.0
    middle = float(np.median(told[:, 0]))
    far = FARTHEST * float(np.median(np.abs(told[:, 0] - middle))) + 1e-12
    value, weight = np.clip(told[:, 0], middle - far, middle + far), 1.0 / told[:, 1]
    mean = weight @ value / weight.sum()
    beyond = weight @ (value - mean) ** 2 - (len(value) - 1)
    scale = weight.sum() - (weight**2).sum() / weight.sum()
    between = max(0.0, beyond / scale) if len(value) > 1 else 0.0
    weight = 1.0 / (told[:, 1] + between)
    return float(weight @ value / weight.sum()), float(between)


def believed(seen: Experience, rows: Ints, stretches: Floats, expect: Sizes | None = None) -> PeerEffects:
    """Every center's beliefs of the mixes that it measured.

    rows: (r,) validation rows.  stretches: (k, 3) of those that are over: the last round, and what all were
    told of it: the mean size and the variance between centers.
    """
    expect = expect or Sizes()
    some = np.flatnonzero((seen.se > 0) & (rows[seen.center] > 2))
    # Of what nobody was asked about yet nothing is expected.
    ends = np.concatenate([stretches, [[np.inf, 0.0, expect.level**2]]])
    stretch = np.searchsorted(ends[:, 0], seen.round)
    mean, sd = np.full(len(seen.se), np.nan), np.full(len(seen.se), np.nan)
    for part in _parts(seen.center[some], stretch[some]):
        mine = some[part]
        i, k = seen.center[mine[0]], stretch[mine[0]]
        between = seen.se[mine] * np.sqrt(rows[i] - 1.0)  # deviation between rows
        level = max(ends[k, 2], expect.least**2)
        size, error = _posterior(
            seen.value[mine] / between - ends[k, 1],
            seen.peer[mine],
            level,
            expect.wider / (rows[i] - 1.0),
            expect,
        )
        mean[mine], sd[mine] = (size + ends[k, 1]) * between, error * between
    keep = np.isfinite(mean)
    return PeerEffects(seen.center[keep], seen.peer[keep], seen.round[keep], mean[keep], sd[keep])


def _parts(center: Ints, stretch: Ints) -> list[Ints]:
    """The numbers of the measurements of every center in every stretch."""
    if not len(center):
        return []
    order = np.lexsort((stretch, center))
    key = np.stack([center[order], stretch[order]])
    return np.split(order, 1 + np.flatnonzero((key[:, 1:] != key[:, :-1]).any(axis=0)))


def _posterior(value: Floats, peer: Ints, level: float, noise: float, expect: Sizes) -> tuple[Floats, Floats]:
    """(o,) mean and deviation of each size, given all values; level: variance of the center's own."""
    one = np.eye(len(value))
    true = level + expect.own**2 * (peer[:, None] == peer[None, :]) + expect.single**2 * one
    told = true + noise * (expect.lasting + (1.0 - expect.lasting) * one)
    reach = np.linalg.solve(told, true)
    left = np.diag(true) - np.einsum("ij,ij->j", true, reach)
    return value @ reach, np.sqrt(np.maximum(left, 1e-12))
