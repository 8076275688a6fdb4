"""What each center gains or loses, with the noise taken out.

A center's mean difference over a few seeds is its true gain plus noise, and the extremes of many such means
are mostly noise. Here the distribution of the true gains is estimated from all centers: a mixture of normal
laws about a common mean, from no spread at all to the widest seen (M. Stephens, False discovery rates: a new
deal, Biostatistics 18, 2017). What is known about a center is then its own mean and what centers of this
federation are like: an exact gain for all gives no harmed center however noisy the scores, and three
hospitals that really differ stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import digamma, ndtr, polygamma

from abps.evaluate.crossed import crossed

Floats = NDArray[np.float64]

#: Steps of the estimation, and widths of the mixture.
STEPS, WIDTHS = 300, 12


@dataclass(frozen=True, eq=False)
class CenterGains:
    """Per center (arrays of shape (centers,), NaN without a score): its gain as far as it can be known.

    raw: its own mean over seeds.  seeds: how many of them.  error: the standard error of ``raw`` but for the
    seeds' common effect.
    weight, middle, spread: (centers, widths) the normal laws that its true gain is a mixture of.
    """

    raw: Floats
    seeds: NDArray[np.int64]
    error: Floats
    weight: Floats
    middle: Floats
    spread: Floats

    def below(self, limit: float) -> Floats:
        """(centers,) the probability that the true gain lies below a limit."""
        return np.asarray((self.weight * ndtr((limit - self.middle) / self.spread)).sum(axis=1))

    @property
    def mean(self) -> Floats:
        """(centers,) the expected true gain."""
        return np.asarray((self.weight * self.middle).sum(axis=1))

    def quantile(self, share: float) -> Floats:
        """(centers,) the gain that the true one falls below with probability ``share``, by bisection."""
        reach = 12.0 * np.maximum(self.spread.max(axis=1), 1e-12)
        low, high = self.middle.min(axis=1) - reach, self.middle.max(axis=1) + reach
        for _ in range(60):
            half = 0.5 * (low + high)
            under = (self.weight * ndtr((half[:, None] - self.middle) / self.spread)).sum(axis=1) < share
            low, high = np.where(under, half, low), np.where(under, high, half)
        return np.asarray(0.5 * (low + high))


def center_gains(values: Floats) -> CenterGains | None:
    """The gains of centers from (seeds, centers) differences, NaN where there is no score.

    None if the noise cannot be known: fewer than two seeds, or fewer than two centers, with scores.
    """
    parts = crossed(values)
    if not np.isfinite(parts.rest):
        return None
    known = np.isfinite(values)
    count = known.sum(axis=0)
    scored = count > 0
    raw = np.full(values.shape[1], np.nan)
    raw[scored] = np.where(known, values, 0.0).sum(axis=0)[scored] / count[scored]
    error = np.full(raw.shape, np.nan)
    error[scored] = _errors(values[:, scored], parts.rest)
    weight, middle, spread = (np.full((len(raw), WIDTHS), np.nan) for _ in range(3))
    weight[scored], middle[scored], spread[scored] = _mixture(raw[scored], error[scored])
    spread = np.sqrt(spread**2 + parts.seed / parts.seeds)  # the seeds' effect is the same for all
    return CenterGains(raw, count, error, weight, middle, spread)


def _errors(values: Floats, rest: float) -> Floats:
    """(centers,) standard errors of the centers' means, from their own variance and everybody's.

    An estimated variance makes a t law of a normal one; its wider spread is what stands here.
    """
    known = np.isfinite(values)
    count = known.sum(axis=0)
    d = np.where(known, values, 0.0)
    about_center = np.where(known, values - d.sum(axis=0) / count, 0.0)
    effect = about_center.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    squares = (np.where(known, about_center - effect[:, None], 0.0) ** 2).sum(axis=0)
    own = count - 1
    common = _prior_freedom(squares[own > 0], own[own > 0])
    freedom = common + own
    variance = (common * rest + squares) / freedom
    return np.asarray(np.sqrt(variance * freedom / (freedom - 2.0) / count))


def _prior_freedom(squares: Floats, freedom: NDArray[np.int64]) -> float:
    """How many observations the common variance is worth: few if variances differ between centers, else many.

    From the spread of the logarithms of the centers' variances beyond what their own degrees of freedom make
    (G. Smyth, Linear models and empirical Bayes methods, 2004).
    """
    least, most = 4.0, 1000.0
    positive = squares > 0.0
    if positive.sum() < 3:
        return least
    logs = np.log(squares[positive] / freedom[positive]) - digamma(freedom[positive] / 2.0)
    logs += np.log(freedom[positive] / 2.0)
    beyond = float(logs.var(ddof=1) - polygamma(1, freedom[positive] / 2.0).mean())
    if beyond <= polygamma(1, most / 2.0):
        return most
    if beyond >= polygamma(1, least / 2.0):
        return least
    return float(brentq(lambda v: polygamma(1, v / 2.0) - beyond, least, most))


def _mixture(raw: Floats, error: Floats) -> tuple[Floats, Floats, Floats]:
    """(centers, widths) weights, means and standard deviations of each center's true gain.

    Expectation and maximisation of the likelihood over the shares of the widths and the common mean. The
    narrowest width has two centers to begin with, so that a spread must be seen to be believed.
    """
    noise = error**2
    floor = max(float(np.sqrt(noise.min())) / 10.0, 1e-9)
    widest = max(
        2.0 * float(np.sqrt(np.maximum((raw - np.median(raw)) ** 2 - noise, 0.0).max())), 4.0 * floor
    )
    square = np.concatenate([[0.0], np.geomspace(floor, widest, WIDTHS - 1) ** 2])
    total = np.maximum(noise[:, None] + square, 1e-18)
    bonus = np.zeros(WIDTHS)
    bonus[0] = min(2.0, len(raw) / 4.0)
    share, mean = np.full(WIDTHS, 1.0 / WIDTHS), float(np.median(raw))
    for _ in range(STEPS):
        log = (
            np.log(np.maximum(share, 1e-300)) - 0.5 * np.log(total) - 0.5 * (raw[:, None] - mean) ** 2 / total
        )
        weight = np.exp(log - log.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        share = (weight.sum(axis=0) + bonus) / (len(raw) + bonus.sum())
        mean = float((weight / total * raw[:, None]).sum() / (weight / total).sum())
    kept = square / total
    middle = mean + kept * (raw[:, None] - mean)
    # how well the common mean is known belongs to every center that leans on it
    of_mean = 1.0 / float((weight / total).sum())
    spread = np.sqrt(kept * noise[:, None] + (1.0 - kept) ** 2 * of_mean)
    return weight, middle, np.maximum(spread, 1e-12)
