"""Likelihoods: what one hospital computes from its rows at given coefficients.

Each family returns the log-likelihood, its gradient (the score) and the negative Hessian (the observed
information) of a hospital's rows. Sums of these over hospitals are those of the pooled rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaln

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HospitalRows:
    """One hospital's design (rows, p), outcome (rows,), offset (rows,) and, for Cox, times (rows,)."""

    x: Floats
    y: Floats
    offset: Floats
    time: Floats | None = None


@dataclass(frozen=True, eq=False)
class Sums:
    """Log-likelihood, score (p,) and information (p, p) of some rows."""

    loglik: float
    score: Floats
    information: Floats

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.loglik + other.loglik, self.score + other.score, self.information + other.information
        )


class Likelihood(Protocol):
    """A likelihood with canonical link; ``intercept``: whether its linear predictor has one."""

    name: str
    intercept: bool

    def sums(self, rows: HospitalRows, beta: Floats) -> Sums:
        """Log-likelihood, score and information of one hospital at the coefficients (p,)."""
        ...


class CanonicalGLM:
    """A generalised linear model with canonical link: score X'(y - mu), information X'VX."""

    name: str
    intercept = True

    def mean(self, eta: Floats) -> tuple[Floats, Floats]:
        """(rows,) mean and variance at a linear predictor."""
        raise NotImplementedError

    def loglik(self, y: Floats, eta: Floats) -> Floats:
        """(rows,) log-likelihood of each row."""
        raise NotImplementedError

    def guess(self, y: Floats) -> Floats:
        """(rows,) linear predictors near the outcomes, from which weighted least squares begins."""
        raise NotImplementedError

    def working(self, rows: HospitalRows) -> tuple[Floats, Floats]:
        """(rows,) working response and weight at the guess: the first step of iterated least squares."""
        eta = self.guess(rows.y)
        mean, variance = self.mean(eta)
        return eta - rows.offset + (rows.y - mean) / variance, variance

    def sums(self, rows: HospitalRows, beta: Floats) -> Sums:
        """Log-likelihood, score and information of one hospital."""
        eta = rows.x @ beta + rows.offset
        mean, variance = self.mean(eta)
        information = (rows.x * variance[:, None]).T @ rows.x
        return Sums(float(self.loglik(rows.y, eta).sum()), rows.x.T @ (rows.y - mean), information)


class LogisticLikelihood(CanonicalGLM):
    """Binary outcome; coefficients are log odds ratios."""

    name = "logistic"

    def mean(self, eta: Floats) -> tuple[Floats, Floats]:
        """Probability, and p(1 - p)."""
        p = expit(eta)
        return p, p * (1.0 - p)

    def loglik(self, y: Floats, eta: Floats) -> Floats:
        """Bernoulli."""
        return y * eta - np.logaddexp(0.0, eta)

    def guess(self, y: Floats) -> Floats:
        """Log odds of the outcome drawn halfway to one half."""
        p = (y + 0.5) / 2.0
        return np.log(p / (1.0 - p))


class PoissonLikelihood(CanonicalGLM):
    """Counts; coefficients are log rate ratios."""

    name = "poisson"

    def mean(self, eta: Floats) -> tuple[Floats, Floats]:
        """Rate, which is the variance too."""
        rate = np.exp(np.clip(eta, -40.0, 40.0))
        return rate, rate

    def loglik(self, y: Floats, eta: Floats) -> Floats:
        """Poisson."""
        return y * eta - np.exp(np.clip(eta, -40.0, 40.0)) - gammaln(y + 1.0)

    def guess(self, y: Floats) -> Floats:
        """Log of the count and a little."""
        return np.log(y + 0.1)


class NormalLikelihood(CanonicalGLM):
    """A number with normal errors of unit variance; the residual variance is estimated afterwards."""

    name = "linear"

    def mean(self, eta: Floats) -> tuple[Floats, Floats]:
        """The mean, and one."""
        return eta, np.ones_like(eta)

    def loglik(self, y: Floats, eta: Floats) -> Floats:
        """Half the squared residual, negative."""
        return -0.5 * (y - eta) ** 2

    def guess(self, y: Floats) -> Floats:
        """The number itself."""
        return y


class CoxLikelihood:
    """Time to an event; every hospital is a stratum with its own baseline hazard (Efron's ties)."""

    name = "cox"
    intercept = False

    def sums(self, rows: HospitalRows, beta: Floats) -> Sums:
        """Partial log-likelihood of one hospital, its score and information."""
        assert rows.time is not None
        order = np.argsort(-rows.time, kind="stable")  # the latest first: risk sets are running sums
        x, time, event = rows.x[order], rows.time[order], rows.y[order] > 0
        eta = x @ beta + rows.offset[order]
        weight = np.exp(eta - eta.max()) if len(eta) else eta
        shift = eta.max() if len(eta) else 0.0
        p = x.shape[1]
        risk, first, second = 0.0, np.zeros(p), np.zeros((p, p))
        loglik, score, information = 0.0, np.zeros(p), np.zeros((p, p))
        bounds = np.flatnonzero(np.diff(time)) + 1
        for low, high in zip([0, *bounds], [*bounds, len(time)]):
            now = slice(low, high)
            wx = weight[now, None] * x[now]
            risk += weight[now].sum()
            first = first + wx.sum(axis=0)
            second = second + wx.T @ x[now]
            failed = event[now]
            deaths = int(failed.sum())
            if not deaths:
                continue
            dw = weight[now][failed]
            dx = x[now][failed]
            tied, tied_first = dw.sum(), (dw[:, None] * dx).sum(axis=0)
            tied_second = (dw[:, None] * dx).T @ dx
            loglik += float(eta[now][failed].sum()) - deaths * shift
            score = score + dx.sum(axis=0)
            for k in range(deaths):
                share = k / deaths
                total = risk - share * tied
                mean = (first - share * tied_first) / total
                loglik -= float(np.log(total))
                score = score - mean
                information = information + (second - share * tied_second) / total - np.outer(mean, mean)
        return Sums(loglik, score, information)


LIKELIHOODS: dict[str, Likelihood] = {
    f.name: f for f in (LogisticLikelihood(), NormalLikelihood(), PoissonLikelihood(), CoxLikelihood())
}
