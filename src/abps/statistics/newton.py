"""Newton's method on sums: every round each hospital adds its log-likelihood, score and information.

Only totals are used, rounded as masked sums round them, so that nobody needs to see a single hospital's
numbers, and the fit is that of the pooled rows. Columns are standardised by common means and deviations
first; estimates are returned on the original scale.

Intercepts are ``common`` (one for all), ``fixed`` (one per hospital, profiled out at the hospital, which
keeps it) or ``random`` (normal around a common one; the hospital integrates over its own by adaptive
quadrature).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.polynomial.hermite import hermgauss

from abps.core.errors import RequestError
from abps.privacy import fixed_point
from abps.statistics.families import CanonicalGLM, Floats, HospitalRows, Likelihood, Sums

#: Rounds after which a fit is given up, and the step, in standard errors, after which nothing changes any
#: more: Newton's next step would be about its square.
MOST_ROUNDS: Final = 25
TOLERANCE: Final = 1e-5

#: Binary digits after the point in sums: nine decimal ones; and the unit of a large number's upper part.
DIGITS: Final = 30
LIMB: Final = 2.0**20

#: A standardised coefficient beyond this, or a curvature below that, is no estimate.
SEPARATED: Final = 15.0
SINGULAR: Final = 1e-7

#: Where the deviation of random intercepts begins.
START_SD: Final = 0.3

#: A deviation of random intercepts below this (in logs) is none.
LEAST_LOG_SD: Final = -3.9

#: Points of the quadrature over a hospital's intercept.
POINTS: Final = 15

#: A hospital's part of the log-likelihood at some parameters.
Part = Callable[[HospitalRows, Floats], Sums]


@dataclass(frozen=True, eq=False)
class CommonScale:
    """Means and deviations (p,) of all hospitals' rows, the rows, and the sum of outcomes and exposures."""

    mean: Floats
    deviation: Floats
    rows: float
    outcomes: float
    exposure: float


@dataclass(frozen=True, eq=False)
class Fit:
    """Coefficients (k,) on the original scale, with their covariance (k, k).

    names: of the coefficients.  loglik, null: at the estimate, and without any column (NaN: not known).
    scores: (hospitals, p) at the estimate on the original scale; informations: (hospitals, p, p), both of the
    columns alone, own intercept profiled out.  sd: of random intercepts (NaN without).
    """

    names: tuple[str, ...]
    beta: Floats
    covariance: Floats
    loglik: float
    null: float
    rounds: int
    bytes: int
    scores: Floats
    informations: Floats
    sd: float = float("nan")


class Exchange:
    """Sums over hospitals, counted: how many there were, and the bytes that they take under masks."""

    def __init__(self, hospitals: int) -> None:
        self.hospitals = hospitals
        self.rounds = 0
        self.bytes = 0

    def total(self, parts: Sequence[Floats], answer: int, wide: bool = False) -> Floats:
        """(k,) the sum of (k,) vectors of all hospitals; answer: numbers sent to each before.

        wide: numbers may be large, as sums of squares of a column in its own unit are; each travels as two.
        """
        stacked = np.stack(parts)
        if wide:
            high = np.floor(stacked / LIMB)
            stacked = np.concatenate([high, stacked - high * LIMB], axis=1)
        self.rounds += 1
        self.bytes += fixed_point.masked_bytes(self.hospitals, stacked.shape[1]) + 8 * answer * self.hospitals
        total = fixed_point.exact_sum(stacked, DIGITS)
        k = len(parts[0])
        return total[:k] * LIMB + total[k:] if wide else total


def common_scale(rows: Sequence[HospitalRows], exchange: Exchange, family: Likelihood) -> CommonScale:
    """Means and deviations of all columns from sums."""

    def part(one: HospitalRows) -> Floats:
        exposure = np.exp(np.clip(one.offset, -40, 40)).sum() if family.name == "poisson" else len(one.y)
        return np.concatenate(
            [one.x.sum(axis=0), (one.x**2).sum(axis=0), [len(one.y), one.y.sum(), exposure]]
        )

    total = exchange.total([part(one) for one in rows], 0, wide=True)
    p = rows[0].x.shape[1]
    n = total[2 * p]
    mean = total[:p] / n
    variance = np.maximum(total[p : 2 * p] / n - mean**2, 0.0)
    deviation = np.sqrt(variance)
    return CommonScale(mean, deviation, float(n), float(total[-2]), float(total[-1]))


def standardised(rows: HospitalRows, scale: CommonScale, intercept: bool) -> HospitalRows:
    """The design in common deviations, with a column of ones in front where there is a common intercept."""
    x = (rows.x - scale.mean) / scale.deviation
    if intercept:
        x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    return replace(rows, x=x)


def profiled(family: CanonicalGLM) -> Part:
    """A hospital's part with its own intercept at its best: score and information of the other
    coefficients."""

    def part(rows: HospitalRows, beta: Floats) -> Sums:
        p = rows.x.shape[1]
        if len(rows.y) == 0 or rows.y.min() == rows.y.max():  # nothing but its intercept explains it
            return Sums(0.0, np.zeros(p), np.zeros((p, p)))
        eta = rows.x @ beta + rows.offset
        own = _own_intercept(family, rows.y, eta)
        mean, variance = family.mean(eta + own)
        cross = rows.x.T @ variance
        information = (rows.x * variance[:, None]).T @ rows.x - np.outer(cross, cross) / variance.sum()
        loglik = float(family.loglik(rows.y, eta + own).sum())
        return Sums(loglik, rows.x.T @ (rows.y - mean), information)

    return part


def _own_intercept(family: CanonicalGLM, y: Floats, eta: Floats) -> float:
    own = 0.0
    for _ in range(100):
        mean, variance = family.mean(eta + own)
        step = float(np.clip((y - mean).sum() / max(variance.sum(), 1e-12), -2.0, 2.0))
        own += step
        if abs(step) < 1e-12:
            break
    return own


def integrated(family: CanonicalGLM) -> Part:
    """A hospital's part with a normal intercept of its own integrated out (adaptive Gauss-Hermite).

    Parameters (p + 1,): coefficients, the first of the common intercept, and the log of the deviation. The
    gradient is the mean of the complete score over the intercept's posterior, the information the mean
    complete information less the variance of that score (Louis 1982).
    """
    nodes, weights = hermgauss(POINTS)

    def part(rows: HospitalRows, theta: Floats) -> Sums:
        beta, sd = theta[:-1], float(np.exp(theta[-1]))
        eta = rows.x @ beta + rows.offset
        mode, curvature = 0.0, 1.0 / sd**2
        for _ in range(100):
            mean, variance = family.mean(eta + mode)
            curvature = variance.sum() + 1.0 / sd**2
            step = float(np.clip(((rows.y - mean).sum() - mode / sd**2) / curvature, -2.0, 2.0))
            mode += step
            if abs(step) < 1e-10:
                break
        at = mode + np.sqrt(2.0 / curvature) * nodes
        value = np.array([family.loglik(rows.y, eta + u).sum() for u in at])
        prior = -0.5 * (at / sd) ** 2 - np.log(sd) - 0.5 * np.log(2.0 * np.pi)
        logs = value + prior + np.log(weights) + nodes**2 + 0.5 * np.log(2.0 / curvature)
        top = logs.max()
        loglik = top + float(np.log(np.exp(logs - top).sum()))
        share = np.exp(logs - loglik)
        p = rows.x.shape[1]
        score, information = np.zeros((POINTS, p + 1)), np.zeros((p + 1, p + 1))
        for k, u in enumerate(at):
            mean, variance = family.mean(eta + u)
            score[k, :p] = rows.x.T @ (rows.y - mean)
            score[k, p] = (u / sd) ** 2 - 1.0
            information[:p, :p] += share[k] * ((rows.x * variance[:, None]).T @ rows.x)
            information[p, p] += share[k] * 2.0 * (u / sd) ** 2
        mean_score = share @ score
        about = score - mean_score
        return Sums(loglik, mean_score, information - (about * share[:, None]).T @ about)

    return part


def fit(
    rows: Sequence[HospitalRows], names: Sequence[str], family: Likelihood, intercepts: str = "common"
) -> Fit:
    """The regression of all hospitals' rows.

    rows: a design for each hospital.  names: of its columns.  intercepts: common, fixed or random.
    """
    exchange = Exchange(len(rows))
    scale = common_scale(rows, exchange, family)
    constant = np.flatnonzero(scale.deviation < 1e-9 * np.maximum(np.abs(scale.mean), 1.0))
    if len(constant):
        raise RequestError(f"{names[constant[0]]!r} has one value only in the rows used; leave it out")
    random, own = intercepts == "random", intercepts == "fixed"
    has_intercept = family.intercept and not own
    ready = [standardised(one, scale, has_intercept) for one in rows]
    p = len(names) + has_intercept
    start = np.zeros(p)
    if has_intercept:
        start[0] = _start(family, scale)
    part: Part = family.sums
    if own and isinstance(family, CanonicalGLM):
        part = profiled(family)
    null = float("nan")
    if isinstance(family, CanonicalGLM):
        named = [*(["intercept"] * has_intercept), *names]
        start, null = _first_step(ready, family, part, start, own, exchange, named)
    called = [*(["intercept"] * has_intercept), *names]
    sd = float("nan")
    if random:
        assert isinstance(family, CanonicalGLM)
        start = np.append(start, np.log(START_SD))
        part, called = integrated(family), [*called, "deviation"]
    beta, total, begun = _climb(ready, part, start, exchange, called)
    if random and beta[-1] < LEAST_LOG_SD:  # hospitals do not differ: the fit with one intercept
        beta, total, _ = _climb(ready, family.sums, beta[:-1], exchange, called[:-1])
        beta = np.append(beta, -np.inf)
    if not isinstance(family, CanonicalGLM):
        null = begun
        _identified(total.information, called)
    if random:
        beta, sd = beta[:-1], float(np.exp(beta[-1]))
    covariance = np.linalg.inv(total.information)[:p, :p]
    if family.name == "linear":
        covariance = covariance * (-2.0 * total.loglik / max(scale.rows - p - (len(rows) if own else 0), 1))
    scores, informations = _by_hospital(rows, ready, beta, family, scale, has_intercept)
    transform = _back(scale, has_intercept)
    return Fit(
        (*(("intercept",) if has_intercept else ()), *names),
        transform @ beta,
        transform @ covariance @ transform.T,
        total.loglik,
        null,
        exchange.rounds,
        exchange.bytes,
        scores,
        informations,
        sd,
    )


def _start(family: Likelihood, scale: CommonScale) -> float:
    """The intercept without any column, as far as sums say."""
    rate = scale.outcomes / max(scale.exposure, 1e-12)
    if family.name == "logistic":
        if not 0.0 < rate < 1.0:
            raise RequestError("the outcome has one value only in the rows used; there is nothing to explain")
        return float(np.log(rate / (1.0 - rate)))
    if family.name == "poisson":
        if rate <= 0.0:
            raise RequestError("no event was counted in the rows used; there is nothing to explain")
        return float(np.log(rate))
    return float(rate)


def _first_step(
    rows: Sequence[HospitalRows],
    family: CanonicalGLM,
    part: Part,
    null: Floats,
    own: bool,
    exchange: Exchange,
    names: Sequence[str],
) -> tuple[Floats, float]:
    """Weighted least squares on working responses: a start from which few Newton steps are left.

    The log-likelihood without any column travels along. With intercepts of their own hospitals take their
    weighted means out.
    """
    k = len(null)
    half = np.triu_indices(k)
    parts = []
    for one in rows:
        response, weight = family.working(one)
        x = one.x
        if own and len(x):
            x = x - (weight @ x) / weight.sum()
            response = response - (weight @ response) / weight.sum()
        curvature = (x * weight[:, None]).T @ x
        parts.append(np.concatenate([[part(one, null).loglik], x.T @ (weight * response), curvature[half]]))
    total = exchange.total(parts, k)
    curvature = _symmetric(total[1 + k :], k)
    _identified(curvature, names)
    return np.asarray(np.linalg.lstsq(curvature, total[1 : 1 + k], rcond=1e-10)[0]), float(total[0])


def _climb(
    rows: Sequence[HospitalRows], part: Part, start: Floats, exchange: Exchange, names: Sequence[str]
) -> tuple[Floats, Sums, float]:
    """The maximum, the sums there, and the log-likelihood at the start."""
    theta, step = start, np.zeros_like(start)
    best = _sums(rows, part, theta, exchange)
    null = best.loglik
    for _ in range(MOST_ROUNDS):
        step = _direction(best)
        if float(step @ best.score) < TOLERANCE**2:
            return theta + step, best, null
        after = _sums(rows, part, theta + step, exchange)
        while after.loglik < best.loglik - 1e-6 * (1.0 + abs(best.loglik)) and np.abs(step).max() > 1e-6:
            step = step / 2.0
            after = _sums(rows, part, theta + step, exchange)
        theta, best = theta + step, after
        if names[-1] == "deviation" and theta[-1] < LEAST_LOG_SD:
            return theta, best, null
        _bounded(theta, best, names)
    raise RequestError(
        f"the fit did not settle in {MOST_ROUNDS} rounds; leave out columns or merge rare levels"
    )


def _direction(at: Sums) -> Floats:
    """Newton's step; where the information is not positive definite, along its absolute curvature."""
    value, vector = np.linalg.eigh(at.information)
    bounded = np.maximum(np.abs(value), 1e-6 * max(np.abs(value).max(), 1e-12))
    return np.asarray(vector @ ((vector.T @ at.score) / bounded))


def _sums(rows: Sequence[HospitalRows], part: Part, theta: Floats, exchange: Exchange) -> Sums:
    """Totals of all hospitals: a log-likelihood, a score and half of a symmetric matrix each."""
    k = len(theta)
    half = np.triu_indices(k)
    parts = [part(one, theta) for one in rows]
    total = exchange.total(
        [np.concatenate([[each.loglik], each.score, each.information[half]]) for each in parts], k
    )
    return Sums(float(total[0]), total[1 : 1 + k], _symmetric(total[1 + k :], k))


def _symmetric(upper: Floats, k: int) -> Floats:
    """(k, k) the matrix with this upper half."""
    whole = np.zeros((k, k))
    whole[np.triu_indices(k)] = upper
    return whole + np.triu(whole, 1).T


def _identified(information: Floats, names: Sequence[str]) -> None:
    """Refuse columns that say the same."""
    spread = np.sqrt(np.maximum(np.diag(information), 1e-300))
    value, vector = np.linalg.eigh(information / np.outer(spread, spread))
    if value[0] > SINGULAR:
        return
    together = [names[k] for k in np.argsort(-np.abs(vector[:, 0]))[:3] if abs(vector[k, 0]) > 0.1]
    raise RequestError(
        f"{', '.join(repr(name) for name in together)}: these columns say the same in the rows used, so "
        "their effects cannot be separated; leave one of them out"
    )


def _bounded(theta: Floats, at: Sums, names: Sequence[str]) -> None:
    """Refuse coefficients that run away: a column that separates the outcomes."""
    spread = np.sqrt(np.maximum(np.diag(at.information), 1e-300))
    flat = (spread < 1e-2) & (np.abs(theta) > 5.0)
    worst = int(np.argmax(np.abs(theta) * (1 + 10 * flat)))
    if names[worst] in ("intercept", "deviation") or not (abs(theta[worst]) > SEPARATED or flat[worst]):
        return
    raise RequestError(
        f"{names[worst]!r} separates those with the outcome from those without, so its effect has no finite "
        "estimate; leave it out or merge levels"
    )


def _back(scale: CommonScale, intercept: bool) -> Floats:
    """(k, k) from coefficients of standardised columns to those of the columns."""
    inverse = np.diag(1.0 / scale.deviation)
    if not intercept:
        return inverse
    whole = np.zeros((len(scale.mean) + 1, len(scale.mean) + 1))
    whole[0, 0] = 1.0
    whole[0, 1:] = -scale.mean / scale.deviation
    whole[1:, 1:] = inverse
    return whole


def _by_hospital(
    rows: Sequence[HospitalRows],
    ready: Sequence[HospitalRows],
    beta: Floats,
    family: Likelihood,
    scale: CommonScale,
    intercept: bool,
) -> tuple[Floats, Floats]:
    """Scores and informations of the columns at the estimate, own intercept profiled out; original scale."""
    at = beta[1:] if intercept else beta
    part: Part = profiled(family) if isinstance(family, CanonicalGLM) else family.sums
    found = [part(replace(one, x=one.x[:, 1:] if intercept else one.x), at) for one in ready]
    s = scale.deviation
    scores = np.stack([each.score * s for each in found])
    return scores, np.stack([each.information * np.outer(s, s) for each in found])


def robust_covariance(
    rows: Sequence[HospitalRows], fitted: Fit, family: Likelihood, intercepts: str
) -> Floats:
    """(k, k) the covariance of the coefficients when rows of one hospital may be correlated (CR1).

    Each hospital adds the outer product of its own score; the total alone is needed.
    """
    own = intercepts == "fixed"
    part: Part = profiled(family) if own and isinstance(family, CanonicalGLM) else family.sums
    k, count = len(fitted.beta), len(rows)
    total, meat, number = np.zeros((k, k)), np.zeros((k, k)), 0
    for one in rows:
        design = one
        if family.intercept and not own:
            design = replace(one, x=np.concatenate([np.ones((len(one.x), 1)), one.x], axis=1))
        here = part(design, fitted.beta)
        total, meat, number = (
            total + here.information,
            meat + np.outer(here.score, here.score),
            number + len(one.y),
        )
    bread = np.linalg.inv(total)
    correction = count / (count - 1) * (number - 1) / (number - k)
    return np.asarray(correction * bread @ meat @ bread)
