"""Whether probabilities mean what they say: in the large, slope, smooth curve; and how to mend them.

In the large: as many events happen as expected. Slope: 1 if probabilities are as spread out as they should be
(below 1: too extreme, as after overfitting). The smooth curve shows where a model errs. All are logistic
regressions on its own log odds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtri

Floats = NDArray[np.float64]

#: Probabilities are kept this far from 0 and 1 before their log odds are taken.
EDGE = 1e-6

#: Events and non-events that an estimate of calibration needs.
ENOUGH = 5

#: … and a smooth curve.
ENOUGH_CURVE = 20

#: Harrell's places for the knots of a restricted cubic spline, by their number.
_KNOTS = {3: (0.10, 0.50, 0.90), 4: (0.05, 0.35, 0.65, 0.95), 5: (0.05, 0.275, 0.5, 0.725, 0.95)}

#: The level of the tests that ask for a recalibration.
LEVEL = 0.05

#: Newton steps; calibration models have a handful of columns and need about six.
STEPS = 50


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval; NaN where it is unknown."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        return math.isfinite(self.value)


UNKNOWN = Interval()


@dataclass(frozen=True)
class Calibration:
    """observed: events.  expected: the sum of the probabilities.

    in_the_large: the intercept of a logistic regression with the model's log odds as offset (0 is right).
    slope: the coefficient of the model's log odds (1 is right).  Unknown where there are too few events.
    """

    rows: int = 0
    observed: int = 0
    expected: float = 0.0
    in_the_large: Interval = UNKNOWN
    slope: Interval = UNKNOWN


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """at: (k,) predicted probabilities.  observed, low, high: (k,).  error: mean distance over all rows."""

    at: Floats
    observed: Floats
    low: Floats
    high: Floats
    error: float


@dataclass(frozen=True)
class Recalibration:
    """New log odds = intercept + slope × log odds.  kind: none, intercept, or intercept and slope."""

    intercept: float = 0.0
    slope: float = 1.0
    kind: str = "none"

    def apply(self, probability: Floats) -> Floats:
        """Probabilities after recalibration; those that need none stay as they are, bit for bit."""
        if self.kind == "none":
            return np.asarray(probability, dtype=np.float64)
        return expit(self.intercept + self.slope * log_odds(probability))


def log_odds(probability: Floats) -> Floats:
    p = np.clip(np.asarray(probability, dtype=np.float64), EDGE, 1.0 - EDGE)
    return np.log(p) - np.log1p(-p)


def expit(eta: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(eta, -700.0, 700.0))))


def calibration(probability: Floats, y: Floats) -> Calibration:
    """Calibration in the large and slope of (rows,) probabilities against (rows,) 0/1 labels."""
    p, y = np.asarray(probability, dtype=np.float64), np.asarray(y, dtype=np.float64)
    observed, expected = int(y.sum()), float(p.sum())
    if min(observed, len(y) - observed) < ENOUGH:
        return Calibration(len(y), observed, expected)
    large, both = _fits(log_odds(p), y)
    slope = UNKNOWN if both is None else _wald(both, 1)
    return Calibration(len(y), observed, expected, _wald(large, 0), slope)


def _fits(predicted: Floats, y: Floats) -> tuple[LogisticFit, LogisticFit | None]:
    """The intercept alone, and intercept and slope of (rows,) log odds; None where all are the same."""
    one = np.ones((len(y), 1))
    large = fit_logistic(one, y, predicted)
    return large, fit_logistic(np.column_stack([one, predicted]), y) if np.ptp(predicted) > 0 else None


def _wald(fit: LogisticFit, k: int) -> Interval:
    if not fit.converged:
        return UNKNOWN
    value, half = float(fit.coefficients[k]), float(ndtri(0.975) * np.sqrt(fit.covariance[k, k]))
    return Interval(value, value - half, value + half)


def smooth_curve(probability: Floats, y: Floats, points: int = 50) -> CalibrationCurve | None:
    """Logistic regression on a restricted cubic spline of the log odds, from the 1st to the 99th percentile;
    three knots from 20 events and non-events on, four from 100, five from 300. None if there are fewer."""
    p, y = np.asarray(probability, dtype=np.float64), np.asarray(y, dtype=np.float64)
    fewest = min(y.sum(), len(y) - y.sum())
    if fewest < ENOUGH_CURVE:
        return None
    predicted = log_odds(p)
    knots = np.quantile(predicted, _KNOTS[3 + int(fewest >= 100) + int(fewest >= 300)])
    if len(np.unique(knots)) < len(knots):
        return None  # a few different probabilities only
    fit = fit_logistic(_with_one(predicted, knots), y)
    if not fit.converged:
        return None
    least, most = np.quantile(predicted, (0.01, 0.99)).tolist()
    grid = np.linspace(least, most, points)
    basis = _with_one(grid, knots)
    middle = basis @ fit.coefficients
    half = ndtri(0.975) * np.sqrt(np.einsum("ij,jk,ik->i", basis, fit.covariance, basis))
    distance = np.abs(expit(_with_one(predicted, knots) @ fit.coefficients) - p)
    low, mean, high = (expit(middle + by) for by in (-half, 0.0, half))
    return CalibrationCurve(expit(grid), mean, low, high, float(distance.mean()))


def restricted_cubic(x: Floats, knots: Sequence[float] | Floats) -> Floats:
    """(rows, knots - 1) a cubic spline that is linear beyond the outer knots (Harrell's form)."""
    t = np.asarray(knots, dtype=np.float64)
    last, before = t[-1], t[-2]
    scale = (last - t[0]) ** 2

    def cube(v: Floats) -> Floats:
        return np.maximum(v, 0.0) ** 3

    columns = [x]
    for knot in t[:-2]:
        bend = cube(x - knot) - cube(x - before) * (last - knot) / (last - before)
        columns.append((bend + cube(x - last) * (before - knot) / (last - before)) / scale)
    return np.stack(columns, axis=1)


def _with_one(x: Floats, knots: Floats) -> Floats:
    return np.column_stack([np.ones_like(x), restricted_cubic(x, knots)])


def recalibration(probability: Floats, y: Floats) -> Recalibration:
    """What change of intercept and slope the rows ask for, by a closed test (Vergouwe and others, 2017).

    First both against none at 5 %; only if that rejects, both against the intercept alone: a model that is
    right is left alone in 95 of 100 cases, however few the rows.
    """
    y = np.asarray(y, dtype=np.float64)
    if min(y.sum(), len(y) - y.sum()) < ENOUGH:
        return Recalibration()
    predicted = log_odds(probability)
    large, both = _fits(predicted, y)
    if not large.converged:
        return Recalibration()
    shift = Recalibration(float(large.coefficients[0]), 1.0, "intercept")
    as_it_is = deviance(predicted, y)
    if both is None or not both.converged or both.coefficients[1] <= 0:
        return shift if chdtrc(1, max(0.0, as_it_is - large.deviance)) < LEVEL else Recalibration()
    if chdtrc(2, max(0.0, as_it_is - both.deviance)) >= LEVEL:
        return Recalibration()
    if chdtrc(1, max(0.0, large.deviance - both.deviance)) >= LEVEL:
        return shift
    return Recalibration(float(both.coefficients[0]), float(both.coefficients[1]), "intercept and slope")


# ---------------------------------------------------------------- logistic regression of a few columns


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """covariance: (k, k) inverse information at the maximum.  deviance: -2 log likelihood.  converged: False
    where there is no maximum (the columns separate the classes) or it was not reached."""

    coefficients: Floats
    covariance: Floats
    deviance: float
    converged: bool


def fit_logistic(columns: Floats, y: Floats, offset: Floats | None = None) -> LogisticFit:
    """The maximum of the likelihood of y given columns (rows, k), with a fixed offset (rows,)."""
    x = np.asarray(columns, dtype=np.float64)
    fixed = np.zeros(len(y)) if offset is None else np.asarray(offset, dtype=np.float64)
    beta = np.zeros(x.shape[1])
    value = deviance(fixed, y)
    converged = False
    for _ in range(STEPS):
        eta = fixed + x @ beta
        mean = expit(eta)
        gradient = x.T @ (y - mean)
        information = x.T @ (x * (mean * (1.0 - mean))[:, None])
        try:
            step = np.linalg.solve(information, gradient)
        except np.linalg.LinAlgError:
            break
        size, better = 1.0, value
        while size > 1e-4:  # halve a step that goes too far
            better = deviance(fixed + x @ (beta + size * step), y)
            if better <= value + 1e-12:
                break
            size /= 2.0
        beta, value = beta + size * step, better
        if np.max(np.abs(gradient)) < 1e-8 * len(y) or np.max(np.abs(size * step)) < 1e-10:
            converged = True
            break
        if np.max(np.abs(x @ beta)) > 50.0 * (1.0 + np.max(np.abs(fixed))):
            break
    mean = expit(fixed + x @ beta)
    information = x.T @ (x * (mean * (1.0 - mean))[:, None])
    covariance = np.linalg.pinv(information).astype(np.float64)
    return LogisticFit(beta, covariance, value, converged)


def deviance(eta: Floats, y: Floats) -> float:
    """-2 log likelihood of 0/1 labels given linear predictors."""
    return float(2.0 * np.sum(np.logaddexp(0.0, eta) - y * eta))
