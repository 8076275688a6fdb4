"""Beliefs that learn: how useful is a peer's model to me, judged by what I measured and what all can see.

The utility of peer j to center i is u_ij: the AUROC of j's model on i's own rows, which that model never
saw. Center i believes, before it has seen anything of j,

    u_ij = level + slopes · features_ij + own_j,

where the features are public likenesses of the pair (close metadata, similar associations of features and
outcome), and own_j, of spread tau, is what no feature shows. Level, slopes and tau have priors of their own,
and every measurement, of whichever peer, updates all of them: so one observation informs similar peers, and
whether likeness matters at all here is itself learned, by every center from its own experience. A measurement
has Hanley and McNeil's error; models move on, so it loses weight with age, and levels may have a trend.

All of this is linear and Gaussian, so the posterior is exact (Gaussian process regression with a small
kernel; tau over a grid, weighted by marginal likelihood), and stands with the prior beside it: the belief
before j itself was ever met. :meth:`Usefulness.beta` tells it in the paper's form, as a Beta distribution of
the same mean and deviation.

Arrays: r centers that see n members, k features; ``[i, j]`` is always center i's view of member j; T
observations of a center.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Means are kept inside this range: a Beta distribution needs an open interval.
_LOW, _HIGH = 0.02, 0.98

#: The share of the variance over rows that a mean over many mixes keeps (measured: 0.1 to 0.3).
_LASTING = 0.2


def auroc_se(auroc: ArrayLike, positives: ArrayLike, negatives: ArrayLike) -> Floats:
    """Hanley and McNeil's standard error of an AUROC (Radiology 1982)."""
    a = np.clip(np.asarray(auroc, dtype=np.float64), _LOW, _HIGH)
    p, m = np.asarray(positives, dtype=np.float64), np.asarray(negatives, dtype=np.float64)
    q1, q2 = a / (2.0 - a), 2.0 * a * a / (1.0 + a)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((a * (1 - a) + (p - 1) * (q1 - a * a) + (m - 1) * (q2 - a * a)) / (p * m))


@dataclass(frozen=True, eq=False)
class Experience:
    """What centers have measured, one entry per observation, oldest first.

    center: (o,) rows.  peer: (o,) places of members.  round: (o,).  value: (o,) utilities.  se: (o,) their
    standard errors.
    """

    center: Ints
    peer: Ints
    round: Ints
    value: Floats
    se: Floats

    @staticmethod
    def none() -> Experience:
        """Nothing measured yet."""
        whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Experience(whole, whole, whole, real, real)

    def observe(self, center: Ints, peer: Ints, round: int, value: Floats, se: Floats) -> Experience:
        """After more measurements; undefined ones (no positive row) say nothing."""
        seen = np.isfinite(value) & np.isfinite(se)
        when = np.full(int(seen.sum()), round)
        new = (center[seen], peer[seen], when, value[seen], se[seen])
        old = (self.center, self.peer, self.round, self.value, self.se)
        return Experience(*(np.concatenate(pair) for pair in zip(old, new)))

    def placed(self, place: Ints) -> Experience:
        """The same with members in other places."""
        return replace(self, peer=place[self.peer])

    def counts(self, r: int, n: int) -> Floats:
        """(r, n) how often each center measured each member."""
        counts = np.zeros((r, n))
        np.add.at(counts, (self.center, self.peer), 1.0)
        return counts

    def by_center(self, r: int, most: int) -> Ints:
        """(r, T) the numbers of each center's latest observations, oldest first; -1 where it has fewer."""
        order = np.argsort(self.center, kind="stable")
        counts = np.bincount(self.center, minlength=r)
        ends = np.cumsum(counts)
        width = int(min(most, counts.max(initial=0)))
        at = ends[:, None] - width + np.arange(width)
        return np.where(at >= (ends - counts)[:, None], order[at.clip(0)] if len(order) else -1, -1)


@dataclass(frozen=True, eq=False)
class Returns:
    """What mixing has brought each center so far, measured on validation rows that no model was trained on.

    meetings: (r,) mixes it made.  gain: (r,) the sum of what they took off the log-loss.
    variance: (r,) the sum of the squared standard errors of these gains.
    """

    meetings: Floats
    gain: Floats
    variance: Floats

    @staticmethod
    def none(n: int) -> Returns:
        """No mix yet."""
        return Returns(np.zeros(n), np.zeros(n), np.zeros(n))

    def observe(self, met: NDArray[np.bool_], gain: Floats, se: Floats) -> Returns:
        """After a round in which the centers ``met`` (n,) mixed; an undefined gain says nothing."""
        told = met & np.isfinite(gain) & np.isfinite(se)
        return Returns(
            self.meetings + told,
            self.gain + np.where(told, gain, 0.0),
            self.variance + np.where(told, se**2, 0.0),
        )

    def doubt(self, spread: float, noise: float) -> Floats:
        """(n,) from 0 to 1, how sure a center is that mixing does not pay: 2 P(mean gain below 0) - 1, or 0.

        spread: deviation of the mean gain before anything is seen.  noise: of a single gain around its mean.
        The rows are the same in all rounds, so a part of their error stays however many mixes there were.
        """
        count = np.maximum(self.meetings, 1.0)
        error = self.variance / count * (_LASTING + (1.0 - _LASTING) / count) + noise**2 / count
        trust = spread**2 / (spread**2 + error)
        below = normal_cdf(-trust * self.gain / count / np.sqrt(trust * error))
        return np.where(self.meetings > 0, np.maximum(2.0 * below - 1.0, 0.0), 0.0)


@dataclass(frozen=True)
class Expectation:
    """What a center expects before it has seen anything: the prior of the regression.

    level, level_sd: utility of a peer.  trend_sd: how far the level may move in ten rounds.  slope_sd: how
    far the worth of one standard deviation of likeness may be from what is expected of it.  spreads: grid for
    tau, the deviation between peers that no feature shows.  own_error: the share of an AUROC's variance that
    is specific to the peer's model (the rest comes from which rows the center happens to have and is common
    to all peers).  ageing: deviation by which a measurement's worth drifts per round.  memory: how many of a
    center's latest observations are used.  returns, returns_noise: deviation of what a mix takes off the
    validation log-loss, on average over a center's mixes and of a single one around that (0 for the first:
    whether mixing pays at all is not asked).
    """

    level: float = 0.6
    level_sd: float = 0.1
    trend_sd: float = 0.05
    slope_sd: float = 0.04
    spreads: tuple[float, ...] = (0.01, 0.04, 0.1)
    own_error: float = 0.5
    ageing: float = 0.004
    memory: int = 120
    returns: float = 0.01
    returns_noise: float = 0.02


@dataclass(frozen=True, eq=False)
class Usefulness:
    """What r centers believe of the utility of n members.

    mean, sd: (r, n) of the posterior.  prior_mean, prior_sd: (r, n) what the center's level and slopes alone
    say about the peer, whatever was measured of it.  weights: (r, 1 + k) the center's level and slopes.
    spread: (r,) its tau.  count: (r, n) measurements.
    """

    mean: Floats
    sd: Floats
    prior_mean: Floats
    prior_sd: Floats
    weights: Floats
    spread: Floats
    count: Floats

    def beta(self) -> tuple[Floats, Floats]:
        """(r, n) alpha and beta of the Beta distributions with these means and deviations."""
        total = np.maximum(self.mean * (1.0 - self.mean) / self.sd**2 - 1.0, 0.5)
        return self.mean * total, (1.0 - self.mean) * total

    def helps(self, break_even: Floats) -> Floats:
        """(r, n) P(u_ij above the center's break-even (r,))."""
        return normal_cdf((self.mean - break_even[:, None]) / self.sd)

    def expected_gain(self, break_even: Floats) -> Floats:
        """(r, n) E[max(u_ij - break-even, 0)]: what calling a peer is worth before it is called."""
        z = (self.mean - break_even[:, None]) / self.sd
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return self.sd * (z * normal_cdf(z) + density)


def believe(
    features: Floats, slopes: Floats, experience: Experience, now: int, expect: Expectation
) -> Usefulness:
    """Every center's posterior after its experience up to round ``now``.

    features: (r, n, k) standardised likenesses.  slopes: (k,) what is expected of each.
    """
    r, n, k = features.shape
    design = np.concatenate([np.ones((r, n, 1)), np.zeros((r, n, 1)), features], axis=2)
    base = np.array([expect.level, 0.0, *slopes])
    scale = np.array([expect.level_sd, expect.trend_sd] + [expect.slope_sd] * k) ** 2
    index = experience.by_center(r, expect.memory)
    real = index >= 0
    row, steps = np.arange(r)[:, None], np.arange(index.shape[1])

    def told(values: NDArray, otherwise: ArrayLike) -> NDArray:  # type: ignore[type-arg]
        return np.where(real, values[index], otherwise) if len(values) else np.zeros(index.shape)

    peer = told(experience.peer, -1 - steps).astype(np.int64)
    age = told(now - experience.round, 0)
    shown = design[row, peer.clip(0)] * real[:, :, None]  # (r, T, 2+k) as of now
    phi = shown.copy()
    phi[:, :, 1] = -age / 10.0
    noise = told(expect.own_error * experience.se**2, 1.0) + (expect.ageing * age) ** 2
    rest = told(experience.value, 0.0) - phi @ base
    same = (peer[:, :, None] == peer[:, None, :]) & real[:, :, None]
    common = (phi * scale) @ phi.transpose(0, 2, 1)
    now_to_then = (shown * scale) @ phi.transpose(0, 2, 1)

    means, variances, found, scores = [], [], [], []
    for tau in expect.spreads:
        kernel = common + tau**2 * same
        kernel[:, steps, steps] += noise
        inverse = np.linalg.inv(kernel)
        pull = (inverse @ rest[:, :, None])[:, :, 0]
        scores.append(-0.5 * (rest * pull).sum(axis=1) - 0.5 * np.linalg.slogdet(kernel)[1])
        lever = (phi * scale).transpose(0, 2, 1)  # (r, 2+k, T)
        weights = base + (lever @ pull[:, :, None])[:, :, 0]
        unsure = np.diag(scale) - lever @ inverse @ lever.transpose(0, 2, 1)
        mean = np.einsum("ijk,ik->ij", design, weights)
        variance = ((design @ unsure) * design).sum(axis=2) + tau**2
        means.append([mean, mean.copy()])
        variances.append([variance, variance.copy()])
        # Peers that were met: their own measurements count.
        reach = now_to_then + tau**2 * same
        met_mean = shown @ base + (reach @ pull[:, :, None])[:, :, 0]
        met_variance = (shown * shown * scale).sum(axis=2) + tau**2 - ((reach @ inverse) * reach).sum(axis=2)
        who = np.broadcast_to(row, peer.shape)[real]
        means[-1][1][who, peer[real]] = met_mean[real]
        variances[-1][1][who, peer[real]] = met_variance[real]
        found.append(weights)

    share = np.exp(np.stack(scores) - np.max(scores, axis=0))
    share /= share.sum(axis=0)  # (grid, r)
    prior, after = (_mixture(share, [m[w] for m in means], [v[w] for v in variances]) for w in (0, 1))
    level = np.einsum("gi,gik->ik", share, np.stack(found))
    return Usefulness(
        after[0].clip(_LOW, _HIGH),
        after[1],
        prior[0].clip(_LOW, _HIGH),
        prior[1],
        np.delete(level, 1, axis=1),
        share.T @ np.array(expect.spreads),
        experience.counts(r, n),
    )


def _mixture(share: Floats, means: list[Floats], variances: list[Floats]) -> tuple[Floats, Floats]:
    """Mean and deviation of a mixture of distributions (r, n) with weights (grid, r)."""
    mean = sum(s[:, None] * m for s, m in zip(share, means))
    second = sum(s[:, None] * (v + m * m) for s, m, v in zip(share, means, variances))
    return np.asarray(mean), np.sqrt(np.maximum(np.asarray(second) - np.asarray(mean) ** 2, 1e-8))


def normal_cdf(z: Floats) -> Floats:
    """Φ(z), by Abramowitz and Stegun 7.1.26 (error below 1.5e-7)."""
    x = np.abs(z) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = 1.0 - poly * np.exp(-x * x)
    return np.asarray(0.5 * (1.0 + np.sign(z) * erf))


def inconsistency(estimates: Floats, variances: Floats) -> float:
    """I² of Higgins and Thompson, pooled over the columns of estimates (centers, features): which share of
    their variation is more than the sampling error that their variances (centers,) lead to expect."""
    live = np.any(estimates != 0, axis=0)
    if len(estimates) < 2 or not live.any():
        return 0.0
    weight = 1.0 / variances[:, None]
    x = estimates[:, live]
    q = (weight * (x - (weight * x).sum(axis=0) / weight.sum()) ** 2).sum()
    return float(max(0.0, 1.0 - (len(x) - 1) * live.sum() / q))


def standardised(feature: Floats) -> Floats:
    """(n, n) a pair feature with mean 0 and deviation 1 over each center's peers; a constant one is 0."""
    n = len(feature)
    off = ~np.eye(n, dtype=bool)
    mean = np.where(off, feature, 0.0).sum(axis=1, keepdims=True) / max(1, n - 1)
    centred = np.where(off, feature - mean, 0.0)
    sd = np.sqrt((centred**2).sum(axis=1, keepdims=True) / max(1, n - 1))
    return np.where(sd > 1e-12, centred / np.where(sd > 1e-12, sd, 1.0), 0.0)


def cosines(vectors: Floats) -> Floats:
    """(n, n) cosine of vectors centred over the centers; a zero vector is like nobody (0)."""
    told = np.any(vectors != 0, axis=1)
    centre = vectors[told].mean(axis=0) if told.any() else np.zeros(vectors.shape[1])
    centred = np.where(told[:, None], vectors - centre, 0.0)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = centred / np.where(length > 0, length, 1.0)
    return np.asarray(unit @ unit.T)


def closeness(vectors: Floats) -> Floats:
    """(n, n) minus the root mean square distance of metadata standardised over the centers."""
    spread = vectors.std(axis=0)
    z = (vectors - vectors.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    square = (z * z).sum(axis=1)
    distance = np.maximum(square[:, None] + square[None, :] - 2.0 * z @ z.T, 0.0)
    return np.asarray(-np.sqrt(distance / z.shape[1]))
