"""Newton's method on sums: every round each hospital adds its log-likelihood, score and information.

Every hospital runs the same program (:func:`program`). It yields a vector of the hospital's own numbers, is
sent the total over all hospitals, and goes on from that; so all arrive at the same fit, that of the pooled
rows, and nobody needs to see a single hospital's numbers. :func:`fit` runs the programs of all hospitals of a
table side by side; between sites each runs where its rows are, and totals come from masked sums.

Columns are standardised by common means and deviations first; estimates are on the original scale.

Intercepts are ``common`` (one for all), ``fixed`` (one per hospital, profiled out at the hospital, which
keeps it) or ``random`` (normal around a common one; the hospital integrates over its own: exactly in linear
models, by adaptive quadrature in others).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

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

T = TypeVar("T")

#: Yields vectors of a hospital's own numbers, is sent their totals over all hospitals, and returns a result.
SumProgram = Generator[Floats, Floats, T]


@dataclass(frozen=True, eq=False)
class CommonScale:
    """Means and deviations (p,) of all hospitals' rows, the rows and hospitals, the sum of outcomes and of
    exposures, and the deviation of outcomes."""

    mean: Floats
    deviation: Floats
    rows: float
    hospitals: int
    outcomes: float
    exposure: float
    spread: float


@dataclass(frozen=True, eq=False)
class Fit:
    """Coefficients (k,) on the original scale, with their covariance (k, k).

    names: of the coefficients.  loglik, null: at the estimate, and without any column (NaN: not known).
    rows, hospitals: that took part.  rounds, entries: totals that were needed, and numbers in all of them.
    sd: of random intercepts (NaN without).  score: (p,) at the estimate on the original scale; information:
    (p, p), both of this hospital and of the columns alone, own intercept profiled out.
    """

    names: tuple[str, ...]
    beta: Floats
    covariance: Floats
    loglik: float
    null: float
    rows: int
    hospitals: int
    rounds: int
    entries: int
    sd: float
    score: Floats
    information: Floats

    @property
    def bytes(self) -> int:
        """All bytes under masked sums: masked vectors and their protocol, and totals to every hospital."""
        n = self.hospitals
        return self.rounds * fixed_point.protocol_bytes(n) + 2 * n * fixed_point.NUMBER * self.entries


def together(programs: Sequence[SumProgram[T]]) -> list[T]:
    """Run the programs of all hospitals side by side, on totals as masked sums give them; their results."""
    vectors = [next(each) for each in programs]
    while True:
        total = fixed_point.exact_sum(np.stack(vectors), DIGITS)
        vectors, results = [], []
        for each in programs:
            try:
                vectors.append(each.send(total))
            except StopIteration as end:
                results.append(end.value)
        if results:
            return results


def fit(
    rows: Sequence[HospitalRows],
    names: Sequence[str],
    family: Likelihood,
    intercepts: str = "common",
    robust: bool = False,
) -> list[Fit]:
    """The regression of all hospitals' rows, as each hospital ends with it.

    rows: a design for each hospital.  names: of its columns.  intercepts: common, fixed or random.
    robust: allow for correlation within hospitals.
    """
    return together([program(one, names, family, intercepts, robust) for one in rows])


def _counted(vector: Floats, seen: list[int]) -> SumProgram[Floats]:
    """The total of a vector; its length is noted."""
    seen.append(len(vector))
    total = yield vector
    return total


def common_scale(rows: HospitalRows, family: Likelihood, seen: list[int]) -> SumProgram[CommonScale]:
    """Means and deviations of all columns from sums. Sums of squares of a column in its own unit may be
    large: each number travels as two."""
    exposure = np.exp(np.clip(rows.offset, -40, 40)).sum() if family.name == "poisson" else len(rows.y)
    squares = float(rows.y @ rows.y) if family.name == "linear" else 0.0
    counts = [len(rows.y), 1.0, rows.y.sum(), exposure, squares]
    own = np.concatenate([rows.x.sum(axis=0), (rows.x**2).sum(axis=0), counts])
    high = np.floor(own / LIMB)
    both = yield from _counted(np.concatenate([high, own - high * LIMB]), seen)
    total = both[: len(own)] * LIMB + both[len(own) :]
    p = rows.x.shape[1]
    n, hospitals, outcomes, exposed, squared = total[2 * p :]
    mean = total[:p] / n
    deviation = np.sqrt(np.maximum(total[p : 2 * p] / n - mean**2, 0.0))
    spread = float(np.sqrt(max(squared / n - (outcomes / n) ** 2, 1e-300)))
    return CommonScale(mean, deviation, float(n), round(hospitals), float(outcomes), float(exposed), spread)


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


def normal_intercepts(rows: HospitalRows, theta: Floats) -> Sums:
    """A hospital's part of a linear model with a normal intercept of its own, integrated out exactly.

    Parameters (p + 2,): coefficients, the first of the common intercept, and the logs of the residual's and
    of the intercepts' deviation. Residuals split into those around the hospital's mean (within) and the mean.
    """
    p, n = len(theta) - 2, len(rows.y)
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


def program(
    rows: HospitalRows,
    names: Sequence[str],
    family: Likelihood,
    intercepts: str = "common",
    robust: bool = False,
) -> SumProgram[Fit]:
    """What one hospital does in a regression: its own numbers out, totals in, the common fit at the end."""
    seen: list[int] = []
    scale = yield from common_scale(rows, family, seen)
    constant = np.flatnonzero(scale.deviation < 1e-9 * np.maximum(np.abs(scale.mean), 1.0))
    if len(constant):
        raise RequestError(f"{names[constant[0]]!r} has one value only in the rows used; leave it out")
    own = intercepts == "fixed"
    has_intercept = family.intercept and not own
    ready = standardised(rows, scale, has_intercept)
    called = [*(["intercept"] * has_intercept), *names]
    start = np.zeros(len(called))
    if has_intercept:
        start[0] = _start(family, scale)
    part: Part = profiled(family) if own and isinstance(family, CanonicalGLM) else family.sums
    null = float("nan")
    if isinstance(family, CanonicalGLM):
        start, null = yield from _first_step(ready, family, part, start, own, seen, called)
    if intercepts == "random":
        found = yield from _random(ready, family, start, scale, seen, called)
    else:
        beta, total, begun = yield from _climb(ready, part, start, seen, called)
        found = beta, total.information, total.loglik, float("nan")
        if not isinstance(family, CanonicalGLM):
            null = begun
            _identified(total.information, called)
    beta, information, loglik, sd = found
    covariance = np.asarray(np.linalg.inv(information), dtype=np.float64)
    if family.name == "linear" and not sd > 0.0:
        free = scale.rows - len(called) - (scale.hospitals if own else 0)
        covariance = covariance * (-2.0 * loglik / max(free, 1))
    if robust:
        covariance = yield from robust_covariance(ready, beta, part, scale, seen)
    score, own_information = _by_hospital(ready, beta, family, scale, has_intercept)
    back = _back(scale, has_intercept)
    return Fit(
        tuple(called), back @ beta, back @ covariance @ back.T, loglik, null, round(scale.rows),
        scale.hospitals, len(seen), sum(seen), sd, score, own_information,
    )  # fmt: skip


def _random(
    ready: HospitalRows,
    family: Likelihood,
    start: Floats,
    scale: CommonScale,
    seen: list[int],
    called: list[str],
) -> SumProgram[tuple[Floats, Floats, float, float]]:
    """Coefficients, information, log-likelihood and the deviation of random intercepts; where hospitals do
    not differ, the fit with one intercept."""
    assert isinstance(family, CanonicalGLM)
    unit = scale.spread if family.name == "linear" else 1.0
    scaled = replace(ready, y=ready.y / unit, offset=ready.offset / unit) if unit != 1.0 else ready
    more = [np.log(START_SD)] if unit == 1.0 else [0.0, np.log(START_SD)]
    part = integrated(family) if unit == 1.0 else normal_intercepts
    named = [*called, *(["residual"] if unit != 1.0 else []), "deviation"]
    theta, total, _ = yield from _climb(scaled, part, np.append(start / unit, more), seen, named)
    p = len(start)
    if theta[-1] < LEAST_LOG_SD:
        beta, total, _ = yield from _climb(ready, family.sums, unit * theta[:p], seen, called)
        return beta, total.information, total.loglik, 0.0
    loglik = total.loglik - (scale.rows * np.log(unit))
    # the inverse of the whole information, cut to the coefficients, is their covariance
    covariance = np.linalg.inv(total.information)[:p, :p] * unit**2
    return theta[:p] * unit, np.linalg.inv(covariance), loglik, float(np.exp(theta[-1])) * unit


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
    rows: HospitalRows,
    family: CanonicalGLM,
    part: Part,
    null: Floats,
    own: bool,
    seen: list[int],
    names: Sequence[str],
) -> SumProgram[tuple[Floats, float]]:
    """Weighted least squares on working responses: a start from which few Newton steps are left.

    The log-likelihood without any column travels along. With intercepts of their own hospitals take their
    weighted means out.
    """
    k = len(null)
    half = np.triu_indices(k)
    response, weight = family.working(rows)
    x = rows.x
    if own and len(x):
        x = x - (weight @ x) / weight.sum()
        response = response - (weight @ response) / weight.sum()
    curvature = (x * weight[:, None]).T @ x
    vector = np.concatenate([[part(rows, null).loglik], x.T @ (weight * response), curvature[half]])
    total = yield from _counted(vector, seen)
    curvature = _symmetric(total[1 + k :], k)
    _identified(curvature, names)
    return np.asarray(np.linalg.lstsq(curvature, total[1 : 1 + k], rcond=1e-10)[0]), float(total[0])


def _climb(
    rows: HospitalRows, part: Part, start: Floats, seen: list[int], names: Sequence[str]
) -> SumProgram[tuple[Floats, Sums, float]]:
    """The maximum, the sums there, and the log-likelihood at the start."""
    theta, step = start, np.zeros_like(start)
    best = yield from _sums(rows, part, theta, seen)
    null = best.loglik
    for _ in range(MOST_ROUNDS):
        step = _direction(best)
        if float(step @ best.score) < TOLERANCE**2:
            return theta + step, best, null
        after = yield from _sums(rows, part, theta + step, seen)
        while after.loglik < best.loglik - 1e-6 * (1.0 + abs(best.loglik)) and np.abs(step).max() > 1e-6:
            step = step / 2.0
            after = yield from _sums(rows, part, theta + step, seen)
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


def _sums(rows: HospitalRows, part: Part, theta: Floats, seen: list[int]) -> SumProgram[Sums]:
    """Totals of all hospitals: a log-likelihood, a score and half of a symmetric matrix each."""
    k = len(theta)
    here = part(rows, theta)
    vector = np.concatenate([[here.loglik], here.score, here.information[np.triu_indices(k)]])
    total = yield from _counted(vector, seen)
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
    ready: HospitalRows, beta: Floats, family: Likelihood, scale: CommonScale, intercept: bool
) -> tuple[Floats, Floats]:
    """Score and information of the columns at the estimate, own intercept profiled out; original scale."""
    at = beta[1:] if intercept else beta
    part: Part = profiled(family) if isinstance(family, CanonicalGLM) else family.sums
    found = part(replace(ready, x=ready.x[:, 1:] if intercept else ready.x), at)
    s = scale.deviation
    return found.score * s, found.information * np.outer(s, s)


def robust_covariance(
    ready: HospitalRows, beta: Floats, part: Part, scale: CommonScale, seen: list[int]
) -> SumProgram[Floats]:
    """(k, k) the covariance of the coefficients when rows of one hospital may be correlated (CR1).

    Each hospital adds its information and the outer product of its own score; only the totals are needed.
    """
    k, here = len(beta), part(ready, beta)
    half = np.triu_indices(k)
    vector = np.concatenate([here.information[half], np.outer(here.score, here.score)[half]])
    total = yield from _counted(vector, seen)
    bread = np.linalg.inv(_symmetric(total[: len(half[0])], k))
    meat = _symmetric(total[len(half[0]) :], k)
    correction = scale.hospitals / (scale.hospitals - 1) * (scale.rows - 1) / (scale.rows - k)
    return np.asarray(correction * bread @ meat @ bread)
