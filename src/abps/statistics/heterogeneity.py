"""How much an effect differs between hospitals: random-effects meta-analysis of hospital estimates.

Between-hospital variance by restricted maximum likelihood, intervals by Hartung and Knapp, the prediction
interval of a further hospital by Higgins, Thompson and Spiegelhalter (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from abps.statistics.families import Floats
from abps.statistics.newton import Fit


@dataclass(frozen=True)
class EffectHeterogeneity:
    """A summary of k hospitals' estimates of one effect.

    mean, low, high: of the average effect (95 %, Hartung-Knapp).  next_low, next_high: where the effect of a
    further hospital would lie.  tau2: between-hospital variance.  i2: share of variance beyond chance.
    q, p: Cochran's test of no difference.
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
    k = len(estimates)
    tau2 = reml(estimates, variances)
    w = 1.0 / (variances + tau2)
    mean = float((w * estimates).sum() / w.sum())
    se = float(np.sqrt((w * (estimates - mean) ** 2).sum() / ((k - 1) * w.sum())))
    fixed = 1.0 / variances
    center = (fixed * estimates).sum() / fixed.sum()
    q = float((fixed * (estimates - center) ** 2).sum())
    typical = (k - 1) * fixed.sum() / (fixed.sum() ** 2 - (fixed**2).sum())
    half = float(stats.t.ppf(0.975, k - 1)) * se
    wide = float("nan")
    if k > 2:
        wide = float(stats.t.ppf(0.975, k - 2) * np.sqrt(tau2 + 1.0 / w.sum()))
    return EffectHeterogeneity(
        k,
        mean,
        se,
        mean - half,
        mean + half,
        mean - wide,
        mean + wide,
        tau2,
        float(tau2 / (tau2 + typical)),
        q,
        float(stats.chi2.sf(q, k - 1)),
    )


def hospital_estimates(fits: Sequence[Fit], column: int) -> tuple[Floats, Floats]:
    """(hospitals,) one effect at every hospital and its variance, NaN where its rows say nothing of it.

    One Newton step of the hospital's own likelihood from the common estimate, in this coefficient, with its
    own intercept and the other coefficients as they are for all: stable where a fit of its own is not.
    """
    common = fits[0].beta[len(fits[0].beta) - len(fits[0].score) + column]
    information = np.array([fit.information[column, column] for fit in fits])
    known = information > 1e-9
    variance = np.where(known, 1.0 / np.where(known, information, 1.0), np.nan)
    return common + np.array([fit.score[column] for fit in fits]) * variance, variance
