"""Logistic regression of a few columns, by Newton's method: what calibration and its tests need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Newton steps; calibration models have a handful of columns and need about six.
STEPS = 50


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """coefficients: (k,).  covariance: (k, k) inverse information at the maximum.

    deviance: -2 log likelihood.
    converged: False where there is no maximum (the columns separate the classes) or it was not reached.
    """

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
        mean = _sigmoid(eta)
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
    mean = _sigmoid(fixed + x @ beta)
    information = x.T @ (x * (mean * (1.0 - mean))[:, None])
    covariance = np.linalg.pinv(information).astype(np.float64)
    return LogisticFit(beta, covariance, value, converged)


def deviance(eta: Floats, y: Floats) -> float:
    """-2 log likelihood of 0/1 labels given linear predictors."""
    return float(2.0 * np.sum(np.logaddexp(0.0, eta) - y * eta))


def _sigmoid(eta: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-np.clip(eta, -700.0, 700.0)))
