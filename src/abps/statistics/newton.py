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
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from abps.core.errors import RequestError
from abps.privacy import fixed_point
from abps.statistics.families import (
    CanonicalGLM,
    Floats,
    HospitalRows,
    Likelihood,
    Part,
    Sums,
    integrated,
    normal_intercepts,
    own_intercept,
    profiled,
)
from abps.statistics.heterogeneity import EffectHeterogeneity, dersimonian_laird, random_effects

#: Rounds after which a fit is given up, and the last step, in standard errors: the error left is about its
#: square. Standard errors are those before this step; with random intercepts they are carried over it, and
#: were within 1.1e-3 (mostly 1e-4) of those of a fit to 1e-6 in 90 made federations.
MOST_ROUNDS: Final = 25
TOLERANCE: Final = 1e-5
RANDOM_TOLERANCE: Final = 7e-3

#: The last step but one is mostly below this times the root of the tolerance; and the step, in standard
#: errors, after which effects with fixed intercepts are near enough for random ones to begin.
NEARLY: Final = 6.0
NEAR: Final = 10.0

#: The variance of intercepts from which their first moments are weighted.
PRIOR_VARIANCE: Final = 0.1

#: The step, in standardised coefficients, from which a fit with one intercept shows whether hospitals differ.
NEAR_PLAIN: Final = 0.3

#: The unit of a large number's upper part; and by what numbers are multiplied before masked sums round them.
LIMB: Final = 2.0**20
FINE: Final = 2.0**10

#: A standardised coefficient beyond this, or a curvature below that, is no estimate.
SEPARATED: Final = 15.0
SINGULAR: Final = 1e-7

#: A deviation of random intercepts below this (in logs) is none.
LEAST_LOG_SD: Final = -3.9

#: Hospitals from which sums show how an effect differs, and from which they show its average: a member that
#: knows its own two numbers (estimate and weight) faces more unknowns than the four and seven sums.
LEAST_DIFFERING: Final = 4
LEAST_AVERAGED: Final = 6

NOTHING: Final = "the outcome has one value only in the rows used; there is nothing to explain"

#: What a hospital adds at some parameters besides its part of the likelihood.
Extras = Callable[[Floats], Floats]


#: The slope of the profile likelihood in the log of a deviation, that log, and its change by the slope.
_SeenDeviation = tuple[float, float, float]


def _nothing(theta: Floats) -> Floats:
    return np.zeros(0)


T = TypeVar("T")

#: Yields vectors of a hospital's own numbers, is sent their totals over all hospitals, and returns a result.
SumProgram = Generator[Floats, Floats, T]


@dataclass(frozen=True, eq=False)
class CommonScale:
    """Means and deviations (p,) of all hospitals' rows; the rows, hospitals and events; outcomes over
    exposures; the deviation of a continuous outcome (1 for others); whether there is an offset."""

    mean: Floats
    deviation: Floats
    rows: float
    hospitals: int
    events: int
    rate: float
    spread: float
    offset: bool

    def back(self, intercept: bool) -> Floats:
        """(k, k) from coefficients of standardised columns to those of the columns."""
        inverse = np.diag(1.0 / self.deviation)
        if not intercept:
            return inverse
        first = np.append(1.0, -self.mean / self.deviation)
        return np.vstack([first, np.column_stack([np.zeros(len(self.mean)), inverse])])


@dataclass(frozen=True, eq=False)
class Fit:
    """Coefficients (k,) on the original scale, with their covariance (k, k).

    names: of the coefficients.  loglik, null: at the estimate, and without any column (NaN: not known).
    rows, events, hospitals: that took part.  rounds, entries: totals that were needed, and numbers in all of
    them.  sd: of random intercepts (NaN without).  unit: (p,) of the coefficients.  score: (p,) at the
    estimate on the original scale; information: (p, p), both of this hospital and of the columns alone, own
    intercept profiled out.
    differences: how each effect differs between hospitals, as far as sums say.  equal: score test that all
    effects are the same everywhere (statistic, degrees of freedom, p).
    """

    names: tuple[str, ...]
    beta: Floats
    covariance: Floats
    loglik: float
    null: float
    rows: int
    events: int
    hospitals: int
    rounds: int
    entries: int
    sd: float
    unit: Floats
    score: Floats
    information: Floats
    differences: tuple[EffectHeterogeneity | None, ...]
    equal: tuple[float, int, float]

    @property
    def bytes(self) -> int:
        """All bytes under masked sums: masked vectors and totals to every hospital, each with a check."""
        return 2 * self.hospitals * fixed_point.NUMBER * (self.entries + self.rounds)


def together(programs: Sequence[SumProgram[T]]) -> list[T]:
    """Run the programs of all hospitals side by side, on totals as masked sums give them; their results."""
    vectors = [next(each) for each in programs]
    while True:
        total = fixed_point.exact_sum(np.stack(vectors))
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
    min_cell: int = 0,
) -> list[Fit]:
    """The regression of all hospitals' rows, as each hospital ends with it.

    rows: a design for each hospital.  names: of its columns.  intercepts: common, fixed or random.
    robust: allow for correlation within hospitals.  min_cell: fewest events of a level.
    """
    return together([program(one, names, family, intercepts, robust, min_cell) for one in rows])


# The first total: scales, cells, and a start ---------------------------------------------------------


def _first_total(
    rows: HospitalRows, names: Sequence[str], family: Likelihood, own: bool, min_cell: int, sent: list[int]
) -> SumProgram[tuple[CommonScale, Floats]]:
    """Common means and deviations, and coefficients by weighted least squares on working responses, from
    which few Newton steps are left. Refuses a design that is too fine for the rows.

    Sums of squares of a column in its own unit may be large or tiny: each number travels as three.
    """
    n, p = rows.x.shape
    linear, event = family.name == "linear", rows.y > 0
    kinds = [np.ones(n, dtype=bool)] if linear else [event, ~event] if family.name == "logistic" else [event]
    exposure = np.exp(np.clip(rows.offset, -40, 40)).sum() if family.name == "poisson" else n
    cells = [((rows.x == v) & kind[:, None]).sum(axis=0) for kind in kinds for v in (0.0, 1.0)]
    x, curvature, slope = rows.x, np.zeros((0, 0)), np.zeros(0)
    if isinstance(family, CanonicalGLM):
        response, weight = family.working(rows)
        if own and n:
            x, response = x - (weight @ x) / weight.sum(), response - (weight @ response) / weight.sum()
        elif not own:
            x = np.column_stack([np.ones(n), x])
        curvature, slope = (x * weight[:, None]).T @ x, x.T @ (weight * response)
    y = rows.y - rows.offset if linear else rows.y
    wrong = (y != np.floor(np.maximum(y, 0.0))).sum() if family.name == "poisson" else 0
    head = [n, 1.0, y.sum(), y @ y, exposure, rows.offset.any(), wrong, *(kind.sum() for kind in kinds)]
    numbers = [~np.isin(rows.x, (0.0, 1.0)).all(axis=0)]
    k, ends = len(slope), np.cumsum([len(head), p, p, p, p * len(cells), len(slope)])
    upper = curvature[np.triu_indices(k)]
    sums = np.concatenate([head, rows.x.sum(axis=0), (rows.x**2).sum(axis=0), *numbers, *cells, slope, upper])
    total = yield from split_total(sums.astype(np.float64), sent)
    first, of_x, of_squares, plain, small, slope, upper = np.split(total, ends)
    count, hospitals, outcomes, squares, exposure, offset, wrong = first[:7]
    if wrong:
        raise RequestError("the outcome has values that are no counts; poisson needs whole numbers from 0")
    _enough_rows(first, plain, small.reshape(-1, 2, p).min(axis=(0, 1)), names, family, min_cell)
    mean = of_x / count
    deviation = np.sqrt(np.maximum(of_squares / count - mean**2, 0.0))
    for name, d, m in zip(names, deviation, mean):
        if d <= 1e-9 * abs(m) or d == 0.0:
            raise RequestError(f"{name!r} has one value only in the rows used; leave it out")
    spread = np.sqrt(max(squares / count - (outcomes / count) ** 2, 0.0)) if linear else 1.0
    rate = outcomes / max(exposure, 1e-12)
    if spread == 0.0 or rate in ((0.0, 1.0) if family.name == "logistic" else ()):
        raise RequestError(NOTHING)
    scale = CommonScale(
        mean,
        deviation,
        count,
        round(hospitals),
        round(first[7]),
        float(rate),
        float(spread),
        bool(offset),
    )
    start = np.zeros(p)
    if k:
        back = scale.back(not own)
        matrix = back.T @ _symmetric(upper, k) @ back
        start = np.asarray(np.linalg.lstsq(matrix, back.T @ slope, rcond=1e-10)[0]) / spread
    return scale, start


def split_total(values: Floats, sent: list[int] | None = None) -> SumProgram[Floats]:
    """The total of numbers of any size, to twelve decimal places.  sent: notes how many numbers travel."""
    high = np.floor(values / LIMB)
    middle = np.floor(values - high * LIMB)
    low = values - high * LIMB - middle
    if sent is not None:
        sent.append(3 * len(values))
    total = (yield np.concatenate([high, middle, low * LIMB])).reshape(3, -1)
    return np.asarray(total[0] * LIMB + total[1] + total[2] / LIMB)


def _enough_rows(
    first: Floats, plain: Floats, small: Floats, names: Sequence[str], family: Likelihood, min_cell: int
) -> None:
    """Refuse designs that are too fine: every level needs so many events (in linear models, rows) in all
    hospitals together, and in logistic ones so many without the event."""
    count, p, events = first[0], len(names), first[7:].min()
    if count < max(2 * (p + 1), min_cell):
        raise RequestError(
            f"{count:.0f} complete rows for {p} coefficients; choose fewer columns or degrees of freedom"
        )
    of = {"logistic": "events or non-events", "linear": "rows"}.get(family.name, "events")
    if events < max(min_cell, 1):
        if events == 0:
            raise RequestError(NOTHING)
        raise RequestError(f"fewer than {min_cell} {of} in the rows used; there is nothing to explain")
    for name, number, least in zip(names, plain, small):
        if not number and least < min_cell:
            raise RequestError(
                f"{name!r} has a level with fewer {of} in all hospitals together than the minimum cell of "
                f"{min_cell}; merge levels or leave the column out"
            )


# The climb -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Maximum:
    """Parameters, covariance (of all of them; none: the climb was left) and log-likelihood; the
    log-likelihood at the start; the extras of the last parameters ``at`` which totals were taken; and where
    the deviation of intercepts has been."""

    theta: Floats
    at: Floats
    covariance: Floats
    loglik: float
    began: float
    extras: Floats
    last: Floats
    seen: tuple[_SeenDeviation, ...] = ()


@dataclass(eq=False)
class _Fitting:
    """One hospital's fit: its standardised rows, and how many numbers it has sent in each total."""

    rows: HospitalRows
    names: list[str]
    family: Likelihood
    scale: CommonScale
    robust: bool
    min_cell: int
    sent: list[int] = field(default_factory=list)

    @property
    def columns(self) -> HospitalRows:
        """The rows without a column of ones."""
        return replace(self.rows, x=self.rows.x[:, self.names[0] == "intercept" :])

    def total(self, vector: Floats) -> SumProgram[Floats]:
        """The total of a vector, to nine decimal places."""
        self.sent.append(len(vector))
        total = yield vector * FINE
        return total / FINE

    def sums(self, part: Part, theta: Floats, more: Floats) -> SumProgram[tuple[Sums, Floats]]:
        """Totals of log-likelihood, score and half of the information at some parameters, and of ``more``."""
        k, here = len(theta), part(self.rows, theta)
        half = here.information[np.triu_indices(k)]
        total = yield from self.total(np.concatenate([[here.loglik], here.score, half, more]))
        end = len(total) - len(more)
        return Sums(float(total[0]), total[1 : 1 + k], _symmetric(total[1 + k : end], k)), total[end:]

    def climb(
        self,
        part: Part,
        start: Floats,
        tolerance: float = TOLERANCE,
        more: Extras = _nothing,
        leave: Callable[[_Maximum, Floats], bool] = lambda now, step: False,
    ) -> SumProgram[_Maximum]:
        """The maximum from a start.

        more: further numbers to add up every time.  leave: whether to end, without a covariance, where the
        next step is this.
        """
        k, carried, closing = len(self.names), False, self.closing(part)
        best, extras = yield from self.sums(part, start, more(start))
        before = best
        now = _Maximum(start, start, np.zeros((0, 0)), best.loglik, best.loglik, extras, np.zeros(0))
        _identified(best.information[:k, :k], self.names)
        for _ in range(MOST_ROUNDS):
            step = _direction(best)
            if len(start) > k:
                step, seen = _random_direction(best, now.theta[-1], now.seen)
                now = replace(now, seen=seen)
            left = float(step @ best.score)
            if leave(now, step):
                return replace(now, theta=now.theta + step)
            if left < tolerance**2 and carried:
                information = best.information
                if len(now.seen) > 1:  # as it will be after this step, by how it changed with the last one
                    share = step[-1] / (now.seen[-1][1] - now.seen[-2][1])
                    information = information + share * (information - before.information)
                covariance = np.asarray(np.linalg.inv(information), dtype=np.float64)
                return replace(now, theta=now.theta + step, covariance=covariance)
            carried = left < NEARLY**2 * tolerance
            while True:
                theta = now.theta + step
                here = np.concatenate([more(theta), closing(theta) if carried else np.zeros(0)])
                after, total = yield from self.sums(part, theta, here)
                worse = after.loglik < best.loglik - 1e-6 * (1.0 + abs(best.loglik))
                if not worse or np.abs(step).max() <= 1e-6:
                    break
                step, carried = step / 2.0, False
            before, best, ends = best, after, len(now.extras)
            now = replace(
                now, theta=theta, at=theta, loglik=best.loglik, extras=total[:ends], last=total[ends:]
            )
            _bounded(theta[:k], best, self.names)
        largest = self.names[int(np.argmax(np.abs(now.theta[:k])))]
        raise RequestError(
            f"the fit did not settle in {MOST_ROUNDS} rounds; {largest!r} may separate outcomes: leave it "
            "out, or merge rare levels"
        )

    def fixed(self, start: Floats) -> SumProgram[tuple[_Maximum, float, float]]:
        """The maximum without random intercepts, NaN for their deviation, and the log-likelihood without any
        column."""
        family, common = self.family, self.names[0] == "intercept"
        if not isinstance(family, CanonicalGLM):
            found = yield from self.climb(family.sums, start)
            return found, float("nan"), found.began
        part: Part = family.sums if common else profiled(family)
        empty = np.zeros(len(self.names))
        empty[:1] = family.link(self.scale.rate / self.scale.spread) if common else 0.0
        null = np.array([part(self.rows, empty).loglik])
        found = yield from self.climb(part, start, more=lambda theta: null)
        # beside an offset the best intercept of a logistic model without columns is not known
        known = not (common and self.scale.offset and family.name == "logistic")
        return found, float("nan"), float(found.extras[0]) if known else float("nan")

    def random(self, start: Floats) -> SumProgram[tuple[_Maximum, float, float]]:
        """The maximum with random intercepts, their deviation, and NaN: how likely outcomes are without any
        column is not known. Where hospitals do not differ, the fit with one intercept."""
        assert isinstance(self.family, CanonicalGLM)
        linear, k, least = self.family.name == "linear", len(self.names), np.exp(2.0 * LEAST_LOG_SD)
        part: Part = normal_intercepts if linear else integrated(self.family)
        near, variance = yield from self._near_random(start)
        climbs = 0

        def vanishes(now: _Maximum, step: Floats) -> bool:
            """The deviation is next to zero, or small and its slope does not fall with it as it would near a
            maximum: where the best variance is zero, Newton's step in its log tends to -1/4."""
            slope, log_sd, rate = now.seen[-1]
            sure = len(now.seen) + (log_sd < -3.0) > 2
            steep = -slope * rate < (-0.22 if sure else -0.42)
            return bool(log_sd + step[-1] < LEAST_LOG_SD or (climbs < 2 and log_sd < -1.9 and steep))

        def moment(now: _Maximum, step: Floats) -> float:
            """The variance of intercepts around the common one, which is still a step away."""
            squares, variances, weights = now.extras
            residual = -2.0 * now.loglik / (self.scale.rows - k) if linear else 1.0
            return float((squares - residual * variances) / max(weights, 1e-300) - step[0] ** 2)

        def varies(now: _Maximum, step: Floats) -> bool:
            """Near the maximum with one intercept, hospitals differ by more than chance."""
            return climbs < 2 and np.abs(step).max() < NEAR_PLAIN and moment(now, step) > least

        while True:
            if variance > least:
                climbs += 1
                begin = np.append(near, 0.5 * np.log(variance))
                found = yield from self.climb(part, begin, RANDOM_TOLERANCE, leave=vanishes)
                if found.covariance.size:
                    return found, float(np.exp(found.theta[-1])), float("nan")
                near = found.theta[:-1]
            found = yield from self.climb(self.family.sums, near[:k], more=self._at_no_variance, leave=varies)
            if found.covariance.size:
                return found, 0.0, float("nan")
            near, variance = np.append(found.theta, near[k:]), moment(found, found.theta - found.at)

    def _near_random(self, start: Floats) -> SumProgram[tuple[Floats, float]]:
        """Where random intercepts begin: a common intercept, the effects with fixed ones and in linear models
        the log of the residual's deviation; and the variance of intercepts by their moments."""
        assert isinstance(self.family, CanonicalGLM)
        inside, linear = replace(self, rows=self.columns, names=self.names[1:]), self.family.name == "linear"
        theta, left, residual, prior = start, np.inf, 1.0, PRIOR_VARIANCE
        while left > NEAR**2:
            at, moments = yield from inside.sums(
                profiled(self.family), theta, self._intercept_moments(inside.rows, theta, prior)
            )
            _identified(at.information, inside.names)
            step = _direction(at)
            theta, left = theta + step, float(step @ at.score)
            _bounded(theta, at, inside.names)
            if linear:
                free = self.scale.rows - self.scale.hospitals - len(theta)
                residual = _residual((-2.0 * at.loglik - left) / max(free, 1.0))
            w, wa, waa, w2 = moments[:4]
            expected = residual * (self.scale.hospitals - 1.0 - prior * (w - w2 / w))
            variance = max(0.0, (waa - wa**2 / w - expected) / (w - w2 / w))
            prior = max(variance, PRIOR_VARIANCE / 10.0)
        center = (wa - moments[4:] @ step) / w  # as it is after the last step
        return np.concatenate([[center], theta, [0.5 * np.log(residual)] * linear]), variance

    def _intercept_moments(self, rows: HospitalRows, beta: Floats, prior: float) -> Floats:
        """(4 + p,) weight, weighted intercept and its square, squared weight, and weighted columns of this
        hospital."""
        assert isinstance(self.family, CanonicalGLM)
        eta, base = rows.x @ beta + rows.offset, self.family.link(self.scale.rate / self.scale.spread)
        if not len(eta):
            return np.zeros(4 + len(beta))
        own = base
        if rows.y.min() < rows.y.max():
            own = base + own_intercept(self.family, rows.y, eta + base)
        mean, variance = self.family.mean(eta + own)
        weight = 1.0 / (1.0 / variance.sum() + prior)
        own += (rows.y - mean).sum() / variance.sum()
        moments = [weight, weight * own, weight * own**2, weight**2]
        return np.concatenate([moments, weight * (rows.x.T @ variance) / variance.sum()])

    def _at_no_variance(self, theta: Floats) -> Floats:
        """(3,) whether intercepts vary at all: squared sum of residuals, its variance, and that squared."""
        assert isinstance(self.family, CanonicalGLM)
        mean, variance = self.family.mean(self.rows.x @ theta + self.rows.offset)
        residual, weight = (self.rows.y - mean).sum() / self.typical, variance.sum() / self.typical
        return np.array([residual**2, weight / self.typical, weight**2])

    # How hospitals differ

    @property
    def typical(self) -> float:
        """Rows of the average hospital: the unit of weights."""
        return self.scale.rows / self.scale.hospitals

    def own_effects(self, theta: Floats) -> Sums:
        """This hospital's part at parameters, of the columns alone, own intercept profiled out."""
        rows, first = self.columns, int(self.names[0] == "intercept")
        part: Part = profiled(self.family) if isinstance(self.family, CanonicalGLM) else self.family.sums
        return part(rows, theta[first : first + rows.x.shape[1]])

    def closing(self, part: Part) -> Extras:
        """What is added up at the end: outer products of scores where standard errors are to allow for
        correlation within hospitals, and how hospitals differ."""

        def extras(theta: Floats) -> Floats:
            score = part(self.rows, theta).score
            outer = np.outer(score, score)[np.triu_indices(len(theta))] if self.robust else np.zeros(0)
            own = self.own_effects(theta)
            used, weight = self._used(own), np.diag(own.information)
            safe = np.where(used, weight, 1.0)
            each = np.stack(
                [
                    np.ones_like(safe),
                    safe / self.typical,
                    own.score,
                    own.score**2 / safe,
                    (safe / self.typical) ** 2,
                ]
            )
            return np.concatenate([outer, (each * used).ravel(), _score_test(own, used)])

        return extras

    def _used(self, own: Sums) -> NDArray[np.bool_]:
        """(p,) whether this hospital's estimate of an effect counts: enough events, rows of each level, and
        information."""
        x, y = self.columns.x, self.rows.y
        low, high = x.min(axis=0, initial=np.inf), x.max(axis=0, initial=-np.inf)
        flag = ((x == low) | (x == high)).all(axis=0)
        few = np.minimum((x == low).sum(axis=0), (x == high).sum(axis=0)) < self.min_cell
        events = {"logistic": min((y > 0).sum(), (y == 0).sum()), "linear": len(y)}.get(
            self.family.name, (y > 0).sum()
        )
        informed = np.diag(own.information) > 0.04
        return np.asarray(informed & ~(flag & few) & (events >= max(self.min_cell, 1)))

    def differences(
        self, found: _Maximum, phi: float
    ) -> SumProgram[tuple[tuple[EffectHeterogeneity | None, ...], tuple[float, int, float]]]:
        """How each effect differs between hospitals, on the original scale, and the test that none does."""
        p, c = self.columns.x.shape[1], self.typical
        start = len(found.at) * (len(found.at) + 1) // 2 if self.robust else 0
        count, w, score, q, w2 = found.last[start : start + 5 * p].reshape(5, p)
        w, w2, q = w * c / phi, w2 * (c / phi) ** 2, (q - score**2 / np.maximum(w * c, 1e-300)) / phi
        tau2 = np.array([dersimonian_laird(*each) for each in zip(count, w, w2, q)])
        averaged = count >= LEAST_AVERAGED
        own = self.own_effects(found.at)
        sums = np.full((3, p), np.nan)
        if averaged.any():
            weight = np.where(self._used(own) & averaged, np.diag(own.information), 0.0)
            inverse = np.maximum(weight, 1e-300)
            weight, away = weight / (phi + tau2 * weight), own.score / inverse * (weight > 0)
            here = np.stack([weight / c, weight * away, weight * away**2])
            total = yield from self.total(here.ravel())
            sums = np.where(averaged, total.reshape(3, p), np.nan)
            sums[0] *= c
        first, unit = int(self.names[0] == "intercept"), self.scale.spread / self.scale.deviation
        made = [
            random_effects(round(count[j]), (w[j], w2[j], q[j]), tau2[j], tuple(sums[:, j])).moved(
                found.at[first + j], unit[j]
            )
            if count[j] >= LEAST_DIFFERING
            else None
            for j in range(p)
        ]
        statistic, freedom = found.last[start + 5 * p : start + 5 * p + 2]
        freedom = max(round(freedom) - p, 1)
        equal = float(statistic / phi), freedom, float(chdtrc(freedom, max(0.0, statistic / phi)))
        return tuple(made), equal


def _score_test(own: Sums, used: NDArray[np.bool_]) -> Floats:
    """(2,) a hospital's part of Rao's test of equal effects, and its rank: effects that its rows cannot tell
    apart count with those that they can."""
    if not used.any():
        return np.zeros(2)
    value, vector = np.linalg.eigh(own.information[np.ix_(used, used)])
    known = value > 1e-9 * max(value.max(), 1e-300)
    return np.array([((vector[:, known].T @ own.score[used]) ** 2 / value[known]).sum(), known.sum()])


def program(
    rows: HospitalRows,
    names: Sequence[str],
    family: Likelihood,
    intercepts: str = "common",
    robust: bool = False,
    min_cell: int = 0,
) -> SumProgram[Fit]:
    """What one hospital does in a regression: its own numbers out, totals in, the common fit at the end."""
    sent: list[int] = []
    scale, start = yield from _first_total(rows, names, family, intercepts != "common", min_cell, sent)
    linear, has_intercept = family.name == "linear", family.intercept and intercepts != "fixed"
    x = (rows.x - scale.mean) / scale.deviation
    x = np.column_stack([np.ones(len(x)), x]) if has_intercept else x
    ready = HospitalRows(x, rows.y / scale.spread, rows.offset / scale.spread, rows.time)
    called = [*(["intercept"] * has_intercept), *names]
    fitting = _Fitting(ready, called, family, scale, robust, min_cell, sent)
    found, sd, null = yield from fitting.random(start) if intercepts == "random" else fitting.fixed(start)
    k = len(called)
    covariance, loglik, phi = found.covariance, found.loglik, 1.0
    if linear and sd > 0.0:
        phi, loglik = float(np.exp(2.0 * found.theta[k])), loglik - scale.rows * np.log(scale.spread)
    elif linear:
        free = scale.rows - k - (scale.hospitals if intercepts == "fixed" else 0)
        phi = _residual(-2.0 * loglik / max(free, 1.0))
        covariance = covariance * phi
        loglik, null = (_normal_loglik(v, scale) for v in (loglik, null))
    if robust:
        bread = found.covariance
        meat = _symmetric(found.last[: len(bread) * (len(bread) + 1) // 2], len(bread))
        correction = scale.hospitals / (scale.hospitals - 1) * (scale.rows - 1) / (scale.rows - k)
        covariance = correction * bread @ meat @ bread
    differences, equal = yield from fitting.differences(found, phi)
    own, back = fitting.own_effects(found.theta), scale.back(has_intercept) * scale.spread
    unit = scale.spread / scale.deviation
    return Fit(
        tuple(called), back @ found.theta[:k], back @ covariance[:k, :k] @ back.T, loglik, null,
        round(scale.rows), scale.events, scale.hospitals, len(sent), sum(sent), sd * scale.spread, unit,
        own.score / unit / phi, own.information / np.outer(unit, unit) / phi, differences, equal,
    )  # fmt: skip


def _residual(variance: float) -> float:
    """The residual variance of a linear model, in that of the outcome, where there is one."""
    if variance < 1e-9:
        raise RequestError("the columns explain the outcome exactly; leave out the one that follows from it")
    return variance


def _normal_loglik(value: float, scale: CommonScale) -> float:
    """A normal log-likelihood with the residual variance at its best, from that with unit variance."""
    residual = max(-2.0 * value / scale.rows, 1e-300)
    return -0.5 * scale.rows * float(np.log(2.0 * np.pi * residual * scale.spread**2) + 1.0)


def _direction(at: Sums) -> Floats:
    """Newton's step; where the information is not positive definite, along its absolute curvature."""
    value, vector = np.linalg.eigh(at.information)
    bounded = np.maximum(np.abs(value), 1e-6 * max(np.abs(value).max(), 1e-12))
    return np.asarray(vector @ ((vector.T @ at.score) / bounded))


def _random_direction(
    at: Sums, log_sd: float, seen: tuple[_SeenDeviation, ...]
) -> tuple[Floats, tuple[_SeenDeviation, ...]]:
    """Newton's step where the last parameter is the log of a deviation, in which likelihoods are far from
    quadratic: its own step follows from where the slope of the profile likelihood was seen before; with that
    slope added."""
    inner, cross = at.information[:-1, :-1], at.information[:-1, -1]
    plain, turn = _direction(Sums(0.0, at.score[:-1], inner)), _direction(Sums(0.0, cross, inner))
    curvature = at.information[-1, -1] - cross @ turn
    slope = at.score[-1] - cross @ plain
    change = slope / max(abs(curvature), 1e-12)
    seen = (*seen, (float(slope), log_sd, float(-1.0 / curvature)))
    before = seen[-2] if len(seen) > 1 else seen[-1]
    if len(seen) == 1 and curvature > 0.0 and change > -0.3:
        change = float(np.log1p(change / (1.0 + change)))  # Newton's step in the deviation itself
    elif curvature > 0.0 > before[2] and abs(slope) < 0.9 * abs(before[0]):
        further = _hermite_root(before, seen[-1]) - log_sd
        change = further if 0.3 < further / change < 3.0 else change
    change = min(max(change, -1.0), 0.7)  # not too far for the log of a deviation
    return np.append(plain - change * turn, change), seen


def _hermite_root(a: _SeenDeviation, b: _SeenDeviation) -> float:
    """Where the slope is zero, by the cubic in the slope that has both values and both rates."""
    (g, x, dx), (h, y, dy) = a, b
    width, t = h - g, -g / (h - g)
    return (
        (1 + 2 * t) * (1 - t) ** 2 * x + t * (1 - t) ** 2 * width * dx
        + t**2 * (3 - 2 * t) * y + t**2 * (t - 1) * width * dy
    )  # fmt: skip


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
    spread = np.sqrt(np.maximum(np.diag(at.information)[: len(theta)], 1e-300))
    flat = (spread < 1e-2) & (np.abs(theta) > 5.0)
    worst = int(np.argmax(np.abs(theta) * (1 + 10 * flat)))
    if names[worst] == "intercept" or not (abs(theta[worst]) > SEPARATED or flat[worst]):
        return
    raise RequestError(
        f"{names[worst]!r} separates those with the outcome from those without, so its effect has no finite "
        "estimate; leave it out or merge levels"
    )
