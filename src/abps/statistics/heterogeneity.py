"""Random-effects meta-analysis of hospitals' estimates of an effect.

Between-hospital variance by restricted maximum likelihood, intervals by Hartung and Knapp, the prediction
interval of a further hospital by Higgins, Thompson and Spiegelhalter (2009). Where counts are too small for
normal estimates, :func:`likelihood_summary` uses the hospitals' own likelihoods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtrc, chdtri, stdtrit

from abps.statistics.families import CanonicalGLM, Floats, HospitalRows, Likelihood

if TYPE_CHECKING:
    from abps.statistics.newton import Fit


@dataclass(frozen=True)
class LikelihoodSummary:
    """Mean effect with its 95 % profile-likelihood interval; tau: deviation between hospitals (ML)."""

    mean: float
    low: float
    high: float
    tau: float


@dataclass(frozen=True)
class EffectHeterogeneity:
    """A summary of k hospitals' estimates of one effect.

    mean, low, high: of the average effect (95 %, Hartung-Knapp). next_low, next_high: where the effect of a
    further hospital would lie. tau2: between-hospital variance, by REML or DL (DerSimonian and Laird, from
    sums). i2: share of variance beyond chance. q, p: Cochran's test of no difference. likelihood: the summary
    where counts are small. NaN: too few hospitals.
    """

    hospitals: int
    mean: float
    se: float
    low: float
    high: float
    next_low: float
    next_high: float
    tau2: float
    i2: float
    q: float
    p: float
    likelihood: LikelihoodSummary | None = None
    method: str = "REML"

    def moved(self, origin: float, unit: float) -> EffectHeterogeneity:
        """The same of an effect in another unit, counted from another origin."""
        where = {n: origin + getattr(self, n) for n in ("mean", "low", "high", "next_low", "next_high")}
        scaled = {name: unit * value for name, value in where.items()}
        return replace(self, se=unit * self.se, tau2=unit**2 * self.tau2, **scaled)


def dersimonian_laird(k: float, w: float, w2: float, q: float) -> float:
    """Between-hospital variance by moments, from sums of weights and squared weights, and Cochran's Q."""
    spread = w - w2 / w if w > 0.0 else 0.0
    return max(0.0, float((q - (k - 1.0)) / spread)) if spread > 1e-9 * w else 0.0


def random_effects(
    k: int,
    fixed: tuple[float, float, float],
    tau2: float,
    sums: tuple[float, float, float],
    method: str = "DL",
) -> EffectHeterogeneity:
    """The summary that follows from sums over k hospitals.  fixed: of weights 1/variance, of their squares,
    and Cochran's Q.  sums: of weights 1/(variance + tau2), and of estimates and their squares with these
    weights."""
    w, w2, q = fixed
    total, first, second = sums
    mean = first / total
    se = float(np.sqrt(max(second - first * mean, 0.0) / ((k - 1) * total)))
    half = float(stdtrit(k - 1, 0.975)) * se
    wide = float(stdtrit(k - 2, 0.975) * np.sqrt(tau2 + 1.0 / total)) if k > 2 else float("nan")
    typical = (k - 1) * w / (w**2 - w2)
    return EffectHeterogeneity(
        k, float(mean), se, mean - half, mean + half, mean - wide, mean + wide, float(tau2),
        float(tau2 / (tau2 + typical)), float(q), float(chdtrc(k - 1, q)), None, method,
    )  # fmt: skip


def reml(estimates: Floats, variances: Floats) -> float:
    """The between-hospital variance by restricted maximum likelihood (Fisher scoring, zero at least)."""
    tau2 = max(0.0, float(np.var(estimates, ddof=1) - variances.mean()))
    for _ in range(200):
        w = 1.0 / (variances + tau2)
        total = w.sum()
        mean = (w * estimates).sum() / total
        trace = total - (w**2).sum() / total
        quadratic = (w**2 * (estimates - mean) ** 2).sum()
        information = (w**2).sum() - 2.0 * (w**3).sum() / total + ((w**2).sum() / total) ** 2
        after = max(0.0, tau2 + (quadratic - trace) / information)
        if abs(after - tau2) < 1e-12:
            return after
        tau2 = after
    return tau2


def summarise(estimates: Floats, variances: Floats) -> EffectHeterogeneity:
    """The random-effects summary of (k,) estimates with their variances; needs two hospitals.

    >>> round(summarise(np.array([0.1, 0.3, 0.2]), np.full(3, 0.01)).mean, 3)
    0.2
    """
    tau2 = reml(estimates, variances)
    w, fixed = 1.0 / (variances + tau2), 1.0 / variances
    about = estimates - (fixed * estimates).sum() / fixed.sum()
    known = fixed.sum(), (fixed**2).sum(), (fixed * about**2).sum()
    middle = float((w * estimates).sum() / w.sum())  # counted from here, squares lose no digits
    away = estimates - middle
    sums = w.sum(), (w * away).sum(), (w * away**2).sum()
    return random_effects(len(estimates), known, tau2, sums, "REML").moved(middle, 1.0)


def hospital_estimates(fits: Sequence[Fit], column: int) -> tuple[Floats, Floats]:
    """(hospitals,) one effect at every hospital and its variance, NaN where its rows say nothing of it.

    One Newton step of the hospital's own likelihood from the common estimate in this coefficient, with its
    own intercept and the other coefficients as they are for all: stable where a fit of its own is not.
    """
    common = fits[0].beta[len(fits[0].beta) - len(fits[0].score) + column]
    information = np.array([fit.information[column, column] for fit in fits])
    known = information > 1e-9
    variance = np.where(known, 1.0 / np.where(known, information, 1.0), np.nan)
    return common + np.array([fit.score[column] for fit in fits]) * variance, variance


def effect_profile(rows: HospitalRows, beta: Floats, column: int, at: Floats, family: Likelihood) -> Floats:
    """(points,) a hospital's log-likelihood at values of one effect, its own intercept profiled out."""
    if not isinstance(family, CanonicalGLM):
        moved = [np.where(np.arange(len(beta)) == column, b, beta) for b in at]
        return np.array([family.sums(rows, each).loglik for each in moved])
    rest = rows.x @ beta - rows.x[:, column] * beta[column] + rows.offset
    eta = rest[:, None] + rows.x[:, column, None] * at
    own = np.zeros(len(at))
    for _ in range(60):
        mean, variance = family.mean(eta + own)
        step = np.clip((rows.y[:, None] - mean).sum(axis=0) / np.maximum(variance.sum(axis=0), 1e-12), -2, 2)
        own = own + step
        if np.abs(step).max() < 1e-10:
            break
    return np.asarray(family.loglik(rows.y[:, None], eta + own).sum(axis=0))


def likelihood_summary(at: Floats, profiles: Floats, start: tuple[float, float]) -> LikelihoodSummary:
    """Random effects from the hospitals' own likelihoods: (hospitals, points) profiles at (points,) values.
    start: mean and deviation to begin with."""
    from scipy import interpolate, optimize  # 20 MB, which a hospital's process does not need

    curve = interpolate.CubicSpline(at, profiles - profiles.max(axis=1, keepdims=True), axis=1)
    nodes = np.linspace(-5.0, 5.0, 161)  # close enough for a hospital that is surer than hospitals differ
    weights = np.exp(-(nodes**2) / 2.0)
    weights /= weights.sum()

    def loss(mean: float, log_tau: float) -> float:
        where = np.clip(mean + np.exp(log_tau) * nodes, at[0], at[-1])
        inside = np.exp(np.clip(curve(where), -700.0, 0.0)) @ weights
        return -float(np.log(np.maximum(inside, 1e-300)).sum())

    unit = (at[-1] - at[0]) / 40.0

    def profile(mean: float) -> tuple[float, float]:
        """The loss at a mean with the deviation at its best, and the log of that."""
        bounds = (np.log(unit * 1e-3), np.log(unit * 20.0))
        found = optimize.minimize_scalar(lambda v: loss(mean, v), bounds=bounds, method="bounded")
        return float(found.fun), float(found.x)

    reach = max(4.0 * start[1], 4.0 * unit)
    inside = (max(at[0], start[0] - reach), min(at[-1], start[0] + reach))
    best = optimize.minimize_scalar(lambda m: profile(m)[0], bounds=inside, method="bounded")
    half = chdtri(1, 0.05) / 2.0

    def beyond(mean: float) -> float:
        return profile(mean)[0] - float(best.fun) - half

    low, high = (optimize.brentq(beyond, best.x, end) if beyond(end) > 0 else end for end in (at[0], at[-1]))
    tau = float(np.exp(profile(best.x)[1]))
    return LikelihoodSummary(float(best.x), float(low), float(high), 0.0 if tau < unit * 2e-3 else tau)
