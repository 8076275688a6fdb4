"""Beliefs that learn: how useful is a peer's model to me, judged by what I measured and what all can see.

The utility of peer j to center i is u_ij: the AUROC of j's model on i's own rows, which that model never
saw. The belief about it is a Beta distribution, as in the paper, with two changes that let it learn.

*Evidence is fractional.* An AUROC measured with standard error se tells as much as
``AUROC (1 - AUROC) / se²`` coin throws (Hanley and McNeil's formula gives se). So an observation adds that
many pseudo-counts, not one. The rows are the same every time, so repeated observations are not
independent: older evidence is discounted before the new is added, and its weight stays bounded.

*The prior is learned.* What a center has seen of some peers tells it about others that look alike in
public: close metadata, similar associations of features and outcome, similar directions of learning.
Each center fits, by Bayesian linear regression on its own observations, how much each of these pair
features predicts utility; the prediction for a peer is its prior mean, and the uncertainty of the
prediction sets how many pseudo-counts the prior is worth.

Arrays: n centers, n peers, k pair features; ``[i, j]`` is always center i's view of peer j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Utilities and prior means are kept inside this range: a Beta distribution needs an open interval.
_LOW, _HIGH = 0.02, 0.98


def auroc_se(auroc: ArrayLike, positives: ArrayLike, negatives: ArrayLike) -> Floats:
    """Hanley and McNeil's standard error of an AUROC (Radiology 1982)."""
    a = np.clip(np.asarray(auroc, dtype=np.float64), _LOW, _HIGH)
    p, m = np.asarray(positives, dtype=np.float64), np.asarray(negatives, dtype=np.float64)
    q1, q2 = a / (2.0 - a), 2.0 * a * a / (1.0 + a)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((a * (1 - a) + (p - 1) * (q1 - a * a) + (m - 1) * (q2 - a * a)) / (p * m))


def pseudo_counts(mean: ArrayLike, variance: ArrayLike) -> Floats:
    """How many coin throws tell as much as an estimate of a share with this variance."""
    m = np.clip(np.asarray(mean, dtype=np.float64), _LOW, _HIGH)
    return np.asarray(m * (1.0 - m) / np.maximum(np.asarray(variance, dtype=np.float64), 1e-12))


@dataclass(frozen=True, eq=False)
class Evidence:
    """What centers have measured: (n, n) discounted pseudo-counts for and against, and observations.

    Dense, because the learned prior needs every pair's features anyway.
    """

    gain: Floats
    loss: Floats
    count: Floats

    @staticmethod
    def none(n: int) -> Evidence:
        """Nothing measured yet."""
        return Evidence(*(np.zeros((n, n)) for _ in range(3)))

    @property
    def weight(self) -> Floats:
        """(n, n) pseudo-counts in all."""
        return self.gain + self.loss

    def observe(self, center: Ints, peer: Ints, value: Floats, se: Floats, keep: float) -> Evidence:
        """After measurements ``value`` with errors ``se``; a pair's older evidence keeps a share."""
        seen = np.isfinite(value) & np.isfinite(se)
        i, j, v, s = center[seen], peer[seen], np.clip(value[seen], _LOW, _HIGH), se[seen]
        throws = pseudo_counts(v, s * s)
        new = Evidence(self.gain.copy(), self.loss.copy(), self.count.copy())
        new.gain[i, j] = keep * new.gain[i, j] + throws * v
        new.loss[i, j] = keep * new.loss[i, j] + throws * (1.0 - v)
        new.count[i, j] += 1
        return new

    def fade(self, keep: float) -> Evidence:
        """Let all evidence lose a share: models move on."""
        return Evidence(keep * self.gain, keep * self.loss, self.count)


@dataclass(frozen=True)
class PriorSettings:
    """The regression's own prior.

    level, level_sd: utility of a peer before anything is known.  slope_sd: how far one standard deviation
    of a pair feature may be expected to move utility.  spread_floor: peers differ by at least this much
    (standard deviation) in ways that no public feature shows.
    """

    level: float = 0.6
    level_sd: float = 0.1
    slope_sd: float = 0.05
    spread_floor: float = 0.02


@dataclass(frozen=True, eq=False)
class LearnedPrior:
    """(n, n) mean and pseudo-counts of the prior, and what it was made of.

    weights: (n, 1 + k) each center's intercept and slopes.  spread: (n,) standard deviation between peers
    that the features do not explain.
    """

    mean: Floats
    strength: Floats
    weights: Floats
    spread: Floats


def learn_prior(features: Floats, evidence: Evidence, settings: PriorSettings) -> LearnedPrior:
    """Every center's regression of measured utility on the pair features (n, n, k).

    Observation noise of a pair is the variance of its evidence plus the unexplained spread between peers;
    the spread is estimated from the residuals (method of moments, two passes).
    """
    n, _, k = features.shape
    design = np.concatenate([np.ones((n, n, 1)), features], axis=2)
    seen = evidence.weight > 0
    value = np.where(seen, evidence.gain / np.where(seen, evidence.weight, 1.0), settings.level)
    inside = np.clip(value, _LOW, _HIGH)
    noise = np.where(seen, inside * (1 - inside) / np.where(seen, evidence.weight, 1.0), 1.0)
    prior_mean = np.zeros(1 + k)
    prior_mean[0] = settings.level
    prior_precision = np.diag([settings.level_sd**-2] + [settings.slope_sd**-2] * k)
    spread = np.full(n, settings.spread_floor)
    for _ in range(3):
        weight = np.where(seen, 1.0 / (noise + spread[:, None] ** 2), 0.0)
        precision = np.einsum("ijk,ij,ijl->ikl", design, weight, design) + prior_precision
        moment = np.einsum("ijk,ij->ik", design, weight * value) + prior_precision @ prior_mean
        beta = np.linalg.solve(precision, moment[:, :, None])[:, :, 0]
        fitted = np.einsum("ijk,ik->ij", design, beta)
        # Residuals hold the spread and the noise; degrees of freedom are lost to the fit.
        freedom = np.maximum(seen.sum(axis=1) - (1 + k), 0)
        excess = np.where(seen, (value - fitted) ** 2 - noise, 0.0).sum(axis=1)
        # One imagined pair at the floor keeps the estimate steady while little is known.
        pooled = (np.maximum(excess, 0.0) + 4 * settings.spread_floor**2) / (freedom + 4)
        spread = np.sqrt(np.maximum(pooled, settings.spread_floor**2))
    covariance = np.linalg.inv(precision)
    uncertain = np.einsum("ijk,ikl,ijl->ij", design, covariance, design) + spread[:, None] ** 2
    mean = np.clip(fitted, _LOW, _HIGH)
    return LearnedPrior(mean, np.maximum(pseudo_counts(mean, uncertain) - 1.0, 1.0), beta, spread)


@dataclass(frozen=True, eq=False)
class Usefulness:
    """The belief: Beta(alpha, beta) about the utility of every ordered pair, with its prior beside it."""

    prior: LearnedPrior
    evidence: Evidence
    alpha: Floats = field(init=False)
    beta: Floats = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", self.prior.mean * self.prior.strength + self.evidence.gain)
        object.__setattr__(self, "beta", (1 - self.prior.mean) * self.prior.strength + self.evidence.loss)

    @property
    def mean(self) -> Floats:
        """(n, n) posterior mean utility."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def sd(self) -> Floats:
        """(n, n) posterior standard deviation."""
        total = self.alpha + self.beta
        return np.sqrt(self.alpha * self.beta / (total * total * (total + 1.0)))

    def helps(self, break_even: Floats) -> Floats:
        """(n, n) P(u_ij above the center's break-even (n,)), by the normal approximation of the Beta."""
        return _normal_cdf((self.mean - break_even[:, None]) / self.sd)

    def expected_gain(self, break_even: Floats) -> Floats:
        """(n, n) E[max(u_ij - break-even, 0)]: what calling a peer is worth before it is called."""
        z = (self.mean - break_even[:, None]) / self.sd
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return self.sd * (z * _normal_cdf(z) + density)


def _normal_cdf(z: Floats) -> Floats:
    """Φ(z), by Abramowitz and Stegun 7.1.26 (error below 1.5e-7)."""
    x = np.abs(z) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = 1.0 - poly * np.exp(-x * x)
    return np.asarray(0.5 * (1.0 + np.sign(z) * erf))


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
    centred = vectors - vectors.mean(axis=0)
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
