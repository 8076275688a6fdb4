"""What one hospital computes from its rows at given coefficients: the log-likelihood, its gradient (the
score) and negative Hessian (the observed information). Their sums over hospitals are those of the pooled
rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.polynomial.hermite import hermgauss
from numpy.typing import NDArray
from scipy.special import expit, gammaln, logit

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


#: A hospital's part of the log-likelihood at some parameters.
Part = Callable[[HospitalRows, Floats], Sums]

#: Points of the quadrature over a hospital's intercept.
POINTS: Final = 15


@dataclass(frozen=True)
class CanonicalGLM:
    """A generalised linear model with canonical link: score X'(y - mu), information X'VX.  mean: (rows,) mean
    and variance at linear predictors.  loglik: (rows,).  link: the linear predictor of a mean."""

    name: str
    mean: Callable[[Floats], tuple[Floats, Floats]]
    loglik: Callable[[Floats, Floats], Floats]
    link: Callable[[float], float]
    intercept: bool = True

    def sums(self, rows: HospitalRows, beta: Floats) -> Sums:
        eta = rows.x @ beta + rows.offset
        mean, variance = self.mean(eta)
        information = (rows.x * variance[:, None]).T @ rows.x
        return Sums(float(self.loglik(rows.y, eta).sum()), rows.x.T @ (rows.y - mean), information)


def _bernoulli(eta: Floats) -> tuple[Floats, Floats]:
    p = expit(eta)
    return p, p * (1.0 - p)


def _rate(eta: Floats) -> Floats:
    return np.asarray(np.exp(np.clip(eta, -40.0, 40.0)))


#: Binary outcome; coefficients are log odds ratios.
LOGISTIC: Final = CanonicalGLM(
    "logistic", _bernoulli, lambda y, eta: y * eta - np.logaddexp(0.0, eta), lambda mean: float(logit(mean))
)

#: Counts; coefficients are log rate ratios.
POISSON: Final = CanonicalGLM(
    "poisson",
    lambda eta: (_rate(eta), _rate(eta)),
    lambda y, eta: y * eta - _rate(eta) - gammaln(y + 1.0),
    lambda mean: float(np.log(mean)),
)

#: A number with normal errors of unit variance; the residual variance is estimated afterwards.
NORMAL: Final = CanonicalGLM(
    "linear",
    lambda eta: (eta, np.ones_like(eta)),
    lambda y, eta: -0.5 * (y - eta) ** 2,
    lambda mean: mean,
)


class CoxLikelihood:
    """Time to an event; every hospital is a stratum with its own baseline hazard (Efron's ties)."""

    name = "cox"
    intercept = False

    def sums(self, rows: HospitalRows, beta: Floats) -> Sums:
        assert rows.time is not None
        order = np.argsort(-rows.time, kind="stable")  # the latest first: risk sets are running sums
        x, time, event = rows.x[order], rows.time[order], rows.y[order] > 0
        eta = x @ beta + rows.offset[order]
        shift, p = eta.max(initial=-np.inf), x.shape[1]
        weight = np.exp(eta - shift)
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
            dw, dx = weight[now][failed], x[now][failed]
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


Likelihood = CanonicalGLM | CoxLikelihood

LIKELIHOODS: dict[str, Likelihood] = {f.name: f for f in (LOGISTIC, NORMAL, POISSON, CoxLikelihood())}


# A hospital's own intercept --------------------------------------------------------------------------


def profiled(family: CanonicalGLM) -> Part:
    """A hospital's part, own intercept at its best: score and information of the other coefficients."""

    def part(rows: HospitalRows, beta: Floats) -> Sums:
        p = rows.x.shape[1]
        if len(rows.y) == 0 or rows.y.min() == rows.y.max():  # nothing but its intercept explains it
            return Sums(0.0, np.zeros(p), np.zeros((p, p)))
        eta = rows.x @ beta + rows.offset
        eta = eta + own_intercept(family, rows.y, eta)
        mean, variance = family.mean(eta)
        cross = rows.x.T @ variance
        information = (rows.x * variance[:, None]).T @ rows.x - np.outer(cross, cross) / variance.sum()
        return Sums(float(family.loglik(rows.y, eta).sum()), rows.x.T @ (rows.y - mean), information)

    return part


def fixed_part(family: Likelihood) -> Part:
    """A hospital's part without a common intercept."""
    return profiled(family) if isinstance(family, CanonicalGLM) else family.sums


def own_intercept(family: CanonicalGLM, y: Floats, eta: Floats, precision: float = 0.0) -> float:
    """The intercept at its best, with a normal prior around zero of some precision."""
    if family.name == "linear":
        return float((y - eta).sum() / (len(y) + precision))
    own = 0.0
    for _ in range(100):
        mean, variance = family.mean(eta + own)
        slope, curvature = (y - mean).sum() - precision * own, variance.sum() + precision
        step = float(np.clip(slope / max(curvature, 1e-12), -2.0, 2.0))
        own += step
        if abs(step) < 1e-12:
            break
    return own


def own_fit(family: Likelihood, rows: HospitalRows) -> Floats:
    """(p,) coefficients near those of this hospital alone: a ridge fit, own intercept at its best."""
    beta = np.zeros(rows.x.shape[1])
    if family.name == "linear" or not len(rows.y):  # quadratic everywhere
        return beta
    part = fixed_part(family)
    variance, about = rows.x.var(axis=0), rows.x - rows.x.mean(axis=0)
    ridge = np.where(variance > 0.0, variance, 1.0)
    for _ in range(5):
        here = part(rows, beta)
        step = np.linalg.solve(here.information + np.diag(ridge), here.score - ridge * beta)
        beta = beta + step * min(1.0, 3.0 / max(np.abs(about @ step).max(), 1e-12))
    return beta


def integrated(family: CanonicalGLM) -> Part:
    """A hospital's part with a normal intercept of its own integrated out (adaptive Gauss-Hermite).

    Parameters (p + 1,): coefficients, the first of the common intercept, and the log of the deviation. The
    score is the mean complete score over the intercept's posterior, the information the mean complete
    information less the variance of that score (Louis 1982).
    """
    nodes, weights = hermgauss(POINTS)

    def part(rows: HospitalRows, theta: Floats) -> Sums:
        p, precision = rows.x.shape[1], float(np.exp(-2.0 * theta[-1]))
        eta, y = rows.x @ theta[:-1] + rows.offset, rows.y
        mode = own_intercept(family, y, eta, precision)
        curvature = family.mean(eta + mode)[1].sum() + precision
        at = mode + np.sqrt(2.0 / curvature) * nodes
        each = eta[:, None] + at
        prior = 0.5 * (np.log(precision) - np.log(2.0 * np.pi) - precision * at**2)
        logs = family.loglik(y[:, None], each).sum(axis=0) + prior + np.log(weights) + nodes**2
        loglik = float(np.logaddexp.reduce(logs)) + 0.5 * np.log(2.0 / curvature)
        share = np.exp(logs - np.logaddexp.reduce(logs))
        mean, variance = family.mean(each)
        score = np.column_stack([(y[:, None] - mean).T @ rows.x, precision * at**2 - 1.0])
        information = np.zeros((p + 1, p + 1))
        information[:p, :p] = (rows.x * (variance @ share)[:, None]).T @ rows.x
        information[p, p] = 2.0 * precision * (share @ at**2)
        about = score - share @ score
        return Sums(loglik, share @ score, information - (about * share[:, None]).T @ about)

    return part


def normal_intercepts(rows: HospitalRows, theta: Floats) -> Sums:
    """A hospital's part of a linear model with a normal intercept of its own, integrated out exactly.

    Parameters (p + 2,): coefficients, the first of the common intercept, and the logs of the residual's and
    of the intercepts' deviation. Residuals split into those around the hospital's mean (within) and the mean.
    """
    p, n = len(theta) - 2, len(rows.y)
    if not n:
        return Sums(0.0, np.zeros(p + 2), np.zeros((p + 2, p + 2)))
    s, t = np.exp(2.0 * theta[p:])
    residual = rows.y - rows.x @ theta[:p] - rows.offset
    mean_x, mean_r = rows.x.mean(axis=0), residual.mean()
    x, r = rows.x - mean_x, residual - mean_r
    within, between, q, nt = float(r @ r), n * mean_r**2, n * t + s, n * t
    loglik = -0.5 * (n * np.log(2.0 * np.pi) + (n - 1) * np.log(s) + np.log(q) + within / s + between / q)
    inside, outside = x.T @ r, n * mean_x * mean_r
    score = np.append(
        inside / s + outside / q,
        [within / s + between * s / q**2 - (n - 1) - s / q, between * nt / q**2 - nt / q],
    )
    information = np.zeros((p + 2, p + 2))
    information[:p, :p] = x.T @ x / s + n * np.outer(mean_x, mean_x) / q
    information[:p, p] = information[p, :p] = 2.0 * (inside / s + outside * s / q**2)
    information[:p, p + 1] = information[p + 1, :p] = 2.0 * outside * nt / q**2
    information[p, p] = 2.0 * (s / q - s**2 / q**2 + within / s - between * (s / q**2 - 2.0 * s**2 / q**3))
    information[p + 1, p + 1] = 2.0 * (nt / q - nt**2 / q**2 - between * (nt / q**2 - 2.0 * nt**2 / q**3))
    information[p, p + 1] = information[p + 1, p] = 2.0 * (2.0 * between * s * nt / q**3 - s * nt / q**2)
    return Sums(float(loglik), score, information)
