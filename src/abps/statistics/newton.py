"""Newton's method on sums: every round each hospital adds its log-likelihood, score and information.

Every hospital runs :func:`program`: it yields a vector of the hospital's own numbers and is sent the total
over all hospitals, so all arrive at the fit of the pooled rows, and nobody sees a single hospital's numbers.
:func:`fit` runs the programs of all hospitals of a table; between sites totals come from masked sums. Columns
are standardised by common means and deviations; estimates are on the original scale.

Intercepts are ``common``, ``fixed`` (one per hospital, profiled out there) or ``random`` (normal around a
common one; the hospital integrates over its own: exactly in linear models, else by adaptive quadrature).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
from numpy.polynomial import polynomial
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
    fixed_part,
    integrated,
    normal_intercepts,
    own_fit,
    own_intercept,
)
from abps.statistics.heterogeneity import EffectHeterogeneity, dersimonian_laird, random_effects

#: Totals that a fit may take, heterogeneity included; and the last step, in standard errors, after which it
#: has converged: the error left is about its square. Standard errors are those before this step.
MOST_ROUNDS: Final = 8
TOLERANCE: Final = 1e-5
RANDOM_TOLERANCE: Final = 1e-3

#: A last step beyond this, in standard errors, or a standard error of a standardised coefficient beyond that
#: when the rounds are over, is that of coefficients that run away.
RUNS_AWAY: Final = 0.03
VAGUE: Final = 2.0

#: The last step but one is mostly below this times the root of the tolerance.
NEARLY: Final = 6.0

#: Step lengths that one round tries: far from the maximum, and where none of them led uphill.
LENGTHS: Final = (0.5, 1.0, 2.0)
BACK: Final = (0.5, 0.2, 0.05)

#: Deviations of random intercepts that the first round tries, the least of which counts as none; and how far
#: apart, in logs, those of the next rounds are.
DEVIATIONS: Final = (0.02, 0.1, 0.35, 1.0, 3.0)
APART: Final = (0.6, 0.15, 0.03)

#: The unit of a large number's upper part; and by what numbers are multiplied before masked sums round them.
LIMB: Final = 2.0**20
FINE: Final = 2.0**10

#: A standardised coefficient beyond this, or a curvature below that, is no estimate.
SEPARATED: Final = 15.0
SINGULAR: Final = 1e-7

#: Hospitals from which sums show how an effect differs, and from which they show its average: a member that
#: knows its own two numbers (estimate and weight) faces more unknowns than the four and seven sums.
LEAST_DIFFERING: Final = 4
LEAST_AVERAGED: Final = 6

NOTHING: Final = "the outcome has one value only in the rows used; there is nothing to explain"

T = TypeVar("T")

#: Yields vectors of a hospital's own numbers, is sent their totals over all hospitals, and returns a result.
SumProgram = Generator[Floats, Floats, T]


@dataclass(frozen=True, eq=False)
class CommonScale:
    """Means and deviations (p,) over all hospitals.  rate: outcomes over exposures.  spread: the deviation of
    a continuous outcome (1 for others)."""

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

    null: log-likelihood without any column (NaN: not known). rounds, entries: totals that were needed, and
    numbers in all of them. sd: of random intercepts (NaN without). unit: (p,) of the coefficients. score:
    (p,) and information: (p, p) of this hospital and of the columns alone, own intercept profiled out.
    differences: how each effect differs between hospitals, as far as sums say. equal: score test that all
    effects are the same everywhere (statistic, degrees of freedom, p). unsettled: the last step in standard
    errors where the fit has not converged, else 0.
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
    unsettled: float

    @property
    def bytes(self) -> int:
        """All bytes under masked sums: masked vectors and totals to every hospital, each with a check."""
        return 2 * self.hospitals * fixed_point.NUMBER * (self.entries + self.rounds)


def together(programs: Sequence[SumProgram[T]]) -> list[T]:
    """The results of all hospitals' programs, run side by side on totals as masked sums give them."""
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
    """The regression of all hospitals' rows, as each hospital ends with it.  intercepts: common, fixed or
    random.  robust: allow for correlation within hospitals.  min_cell: fewest events of a level."""
    return together([program(one, names, family, intercepts, robust, min_cell) for one in rows])


# The first total: scales, cells, and a start ---------------------------------------------------------


def _first_total(
    rows: HospitalRows, names: Sequence[str], family: Likelihood, own: bool, min_cell: int, sent: list[int]
) -> SumProgram[tuple[CommonScale, Floats, float]]:
    """Common scales; the start, where the sum of hospitals' likelihoods, each taken for quadratic around its
    own fit, is largest; and the residual variance of a linear model with own intercepts. Refuses a design
    that is too fine for the rows. Sums of squares may be large or tiny: each number travels as three."""
    n, p = rows.x.shape
    linear, event = family.name == "linear", rows.y > 0
    kinds = [np.ones(n, dtype=bool)] if linear else [event, ~event] if family.name == "logistic" else [event]
    exposure = np.exp(np.clip(rows.offset, -40, 40)).sum() if family.name == "poisson" else n
    cells = [((rows.x == v) & kind[:, None]).sum(axis=0) for kind in kinds for v in (0.0, 1.0)]
    fit, common = own_fit(family, rows), family.intercept and not own
    if isinstance(family, CanonicalGLM) and common:
        intercept = 0.0 if linear else own_intercept(family, rows.y, rows.x @ fit + rows.offset, 0.05)
        fit = np.append(intercept, fit)
        here = family.sums(_with_ones(rows), fit)
    else:
        here = fixed_part(family)(rows, fit)
    slope = here.score + here.information @ fit
    y = rows.y - rows.offset if linear else rows.y
    wrong = (y != np.floor(np.maximum(y, 0.0))).sum() if family.name == "poisson" else 0
    around_mean = ((y - y.mean()) ** 2).sum() if linear and n else 0.0
    head = [n, 1.0, y.sum(), y @ y, exposure, rows.offset.any(), wrong, around_mean]
    head += [kind.sum() for kind in kinds]
    numbers = [~np.isin(rows.x, (0.0, 1.0)).all(axis=0)]
    k, ends = len(slope), np.cumsum([len(head), p, p, p, p * len(cells), len(slope)])
    upper = here.information[np.triu_indices(k)]
    sums = np.concatenate([head, rows.x.sum(axis=0), (rows.x**2).sum(axis=0), *numbers, *cells, slope, upper])
    total = yield from split_total(sums.astype(np.float64), sent)
    first, of_x, of_squares, plain, small, slope, upper = np.split(total, ends)
    count, hospitals, outcomes, squares, exposure, offset, wrong, within = first[:8]
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
    hospitals, events = round(hospitals), round(first[8])
    scale = CommonScale(mean, deviation, count, hospitals, events, float(rate), float(spread), bool(offset))
    back = scale.back(common)
    matrix, slope = back.T @ _symmetric(upper, k) @ back, back.T @ slope
    start = np.asarray(np.linalg.lstsq(matrix, slope, rcond=1e-10)[0])
    residual = 1.0
    if linear and own:
        residual = _residual((within - slope @ start) / (max(count - hospitals - p, 1.0) * spread**2))
    return scale, start / spread, residual


def _with_ones(rows: HospitalRows) -> HospitalRows:
    return replace(rows, x=np.column_stack([np.ones(len(rows.y)), rows.x]))


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
    count, p, events = first[0], len(names), first[8:].min()
    if count < max(2 * (p + 1), min_cell):
        raise RequestError(
            f"{count:.0f} complete rows for {p} coefficients; choose fewer columns or degrees of freedom"
        )
    of = {"logistic": "events or non-events", "linear": "rows"}.get(family.name, "events")
    if events < max(min_cell, 1):
        few = f"fewer than {min_cell} {of} in the rows used; there is nothing to explain"
        raise RequestError(few if events else NOTHING)
    for name, number, least in zip(names, plain, small):
        if not number and least < min_cell:
            raise RequestError(
                f"{name!r} has a level with fewer {of} in all hospitals together than the minimum cell of "
                f"{min_cell}; merge levels or leave the column out"
            )


# The climb -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Maximum:
    """Parameters, and those ``at`` which the last totals were taken, one step before.  last: the closing
    totals.  unsettled: the last step in standard errors where it was too long."""

    theta: Floats
    at: Floats
    covariance: Floats
    loglik: float
    last: Floats
    unsettled: float


@dataclass(eq=False)
class _Fitting:
    """One hospital's fit: its standardised rows, and how many numbers it has sent in each total."""

    rows: HospitalRows
    names: list[str]
    family: Likelihood
    scale: CommonScale
    robust: bool
    min_cell: int
    sent: list[int]

    @property
    def columns(self) -> HospitalRows:
        return replace(self.rows, x=self.rows.x[:, self.names[0] == "intercept" :])

    def total(self, vector: Floats) -> SumProgram[Floats]:
        """The total of a vector, to nine decimal places."""
        self.sent.append(len(vector))
        total = yield vector * FINE
        return total / FINE

    def sums(
        self, part: Part, points: Sequence[Floats], more: Floats
    ) -> SumProgram[tuple[list[Sums], Floats]]:
        """Totals of log-likelihood, score and half of the information at some points, and of ``more``."""
        k, here = len(points[0]), [part(self.rows, theta) for theta in points]
        halves = np.triu_indices(k)
        parts = [np.concatenate([[one.loglik], one.score, one.information[halves]]) for one in here]
        total = yield from self.total(np.concatenate([*parts, more]))
        each = total[: len(total) - len(more)].reshape(len(points), -1)
        found = [Sums(float(t[0]), t[1 : 1 + k], _symmetric(t[1 + k :], k)) for t in each]
        return found, total[len(total) - len(more) :]

    def climb(
        self, part: Part, points: Sequence[Floats], tolerance: float = TOLERANCE, closes: bool = False
    ) -> SumProgram[_Maximum | None]:
        """The maximum from the best of some points; none if the deviation of random intercepts vanishes. Far
        from it a round tries several step lengths; the round that is expected to be the last (``closes``) has
        the closing totals, too."""
        k, closing = len(self.names), self.closing(part)
        best: tuple[Floats, Sums] | None = None
        while True:
            final = len(self.sent) + 1 >= MOST_ROUNDS - (self.scale.hospitals >= LEAST_AVERAGED)
            if closes := closes or final:
                points = points[:1]
            totals, last = yield from self.sums(part, points, closing(points[0]) if closes else np.zeros(0))
            top = max(range(len(points)), key=lambda i: totals[i].loglik)
            theta, here = points[top], totals[top]
            _identified(here.information[:k, :k], self.names)
            if best and here.loglik < best[1].loglik - 1e-6 * (1.0 + abs(here.loglik)) and not final:
                points, closes = [best[0] + length * (points[0] - best[0]) for length in BACK], False
                continue
            best = theta, here
            _bounded(theta[:k], here, self.names)
            step = _direction(here)
            if len(theta) > k:
                step = _AtDeviation.of(theta, here).newton() - theta
                if theta[-1] + step[-1] < np.log(DEVIATIONS[0]):
                    return None
            left = float(np.sqrt(abs(step @ here.score)))
            if closes and (left < tolerance or final):
                covariance = np.asarray(np.linalg.inv(here.information), dtype=np.float64)
                unsettled = 0.0 if left < tolerance else left
                return _Maximum(theta + step, theta, covariance, here.loglik, last, unsettled)
            closes = left < NEARLY * np.sqrt(tolerance)
            points = [theta + length * step for length in ((1.0,) if left < 1.0 else LENGTHS)]

    @property
    def empty(self) -> Floats:
        empty = np.zeros(len(self.names))
        if isinstance(self.family, CanonicalGLM) and self.names[0] == "intercept":
            empty[0] = self.family.link(self.scale.rate / self.scale.spread)
        return empty

    def fixed(self, start: Floats) -> SumProgram[tuple[_Maximum, float]]:
        """The maximum without random intercepts, and NaN for their deviation."""
        part = self.family.sums if self.names[0] == "intercept" else fixed_part(self.family)
        points = [start, (start + self.empty) / 2.0]
        found = yield from self.climb(part, points, closes=self.family.name == "linear")
        assert found is not None
        return found, float("nan")

    def random(self, start: Floats) -> SumProgram[tuple[_Maximum, float]]:
        """The maximum with random intercepts, and their deviation; where hospitals do not differ, the fit
        with one intercept. The first rounds have totals at several deviations: the likelihood as a function
        of the deviation is far from quadratic, and Newton's method in it slow."""
        assert isinstance(self.family, CanonicalGLM)
        part = normal_intercepts if self.family.name == "linear" else integrated(self.family)
        grid = [self._conditional(start, sd) for sd in DEVIATIONS]
        k, nearly, most = len(self.names), NEARLY * RANDOM_TOLERANCE**0.5, None
        for apart in APART:
            totals, _ = yield from self.sums(part, grid, np.zeros(0))
            _identified(totals[0].information[:k, :k], self.names)
            at = [_AtDeviation.of(*each) for each in zip(grid, totals)]
            found, grid = _best_deviation(at, apart)
            left = at[0].gain ** 0.5
            if found is not None:
                near = min(at, key=lambda one: abs(one.log_sd - found[-1]))
                left = (near.gain + near.slope**2 / max(abs(near.curvature), 1e-12)) ** 0.5
            if left < nearly:
                break
            least = min(one.gain for one in at)
            if apart == APART[0] and least > 1.0:
                # So far from the maximum slopes mislead: look at the same deviations again, one step further.
                grid = [one.moved(0.0) for one in at if one is at[0] or one.gain < 4.0 * least]
        if found is not None:
            most = yield from self.climb(part, [found], RANDOM_TOLERANCE, left < nearly)
        if most is not None:
            return most, float(np.exp(most.theta[-1]))
        most = yield from self.climb(self.family.sums, [grid[0][:k]], closes=left < NEARLY * TOLERANCE**0.5)
        assert most is not None
        return most, 0.0

    def _conditional(self, start: Floats, sd: float) -> Floats:
        """Parameters whose means over hospitals are about those with one intercept (Zeger, Liang, Albert
        1988)."""
        if self.family.name == "logistic":
            start = start * np.sqrt(1.0 + 0.346 * sd**2)
        elif self.family.name == "poisson":
            start = np.append(start[0] - 0.5 * sd**2, start[1:])
        return np.append(start, np.log(sd))

    # How hospitals differ

    @property
    def typical(self) -> float:
        """Rows of the average hospital: the unit of weights."""
        return self.scale.rows / self.scale.hospitals

    def own_effects(self, theta: Floats) -> Sums:
        """This hospital's part at parameters, of the columns alone, own intercept profiled out."""
        rows, first = self.columns, int(self.names[0] == "intercept")
        return fixed_part(self.family)(rows, theta[first : first + rows.x.shape[1]])

    def closing(self, part: Part) -> Callable[[Floats], Floats]:
        """What is added up at the end: the log-likelihood without any column, outer products of scores for
        robust standard errors, and how hospitals differ."""

        def extras(theta: Floats) -> Floats:
            null = part(self.rows, self.empty).loglik if len(theta) == len(self.names) else 0.0
            score = part(self.rows, theta).score
            outer = np.outer(score, score)[np.triu_indices(len(theta))] if self.robust else np.zeros(0)
            own = self.own_effects(theta)
            used, weight = self._used(own), np.diag(own.information)
            safe = np.where(used, weight, 1.0)
            w = safe / self.typical
            each = np.stack([np.ones_like(w), w, own.score, own.score**2 / safe, w**2])
            return np.concatenate([[null], outer, (each * used).ravel(), _score_test(own, used)])

        return extras

    def _used(self, own: Sums) -> NDArray[np.bool_]:
        """(p,) whether this hospital's estimate counts: enough events, rows of each level, information."""
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
        start = 1 + (len(found.at) * (len(found.at) + 1) // 2 if self.robust else 0)
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
    """(2,) a hospital's part of Rao's test of equal effects, and its rank: effects that its rows cannot
    separate count with those that they can."""
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
    linear, random = family.name == "linear", intercepts == "random"
    apart = intercepts == "fixed" or (random and linear)
    scale, start, residual = yield from _first_total(rows, names, family, apart, min_cell, sent)
    has_intercept = family.intercept and intercepts != "fixed"
    x = (rows.x - scale.mean) / scale.deviation
    ready = HospitalRows(x, rows.y / scale.spread, rows.offset / scale.spread, rows.time)
    ready = _with_ones(ready) if has_intercept else ready
    called = [*(["intercept"] * has_intercept), *names]
    fitting = _Fitting(ready, called, family, scale, robust, min_cell, sent)
    k = len(called)
    if linear and random:
        start = np.array([scale.rate / scale.spread, *start, 0.5 * np.log(residual)])
    found, sd = yield from fitting.random(start) if random else fitting.fixed(start)
    _settled(found, called)
    covariance, loglik, phi = found.covariance, found.loglik, 1.0
    # beside an offset the best intercept of a logistic model without columns is not known
    unknown = random or (has_intercept and scale.offset and family.name == "logistic")
    null = float("nan") if unknown else float(found.last[0])
    if linear and sd > 0.0:
        phi, loglik = float(np.exp(2.0 * found.theta[k])), loglik - scale.rows * np.log(scale.spread)
    elif linear:
        free = scale.rows - k - (scale.hospitals if intercepts == "fixed" else 0)
        phi = _residual(-2.0 * loglik / max(free, 1.0))
        covariance = covariance * phi
        # the residual variance at its best instead of unit variance
        loglik, null = (
            -0.5 * scale.rows * float(np.log(2.0 * np.pi * residual * scale.spread**2) + 1.0)
            for residual in (max(-2.0 * v / scale.rows, 1e-300) for v in (loglik, null))
        )
    if robust:
        bread = found.covariance
        meat = _symmetric(found.last[1 : 1 + len(bread) * (len(bread) + 1) // 2], len(bread))
        correction = scale.hospitals / (scale.hospitals - 1) * (scale.rows - 1) / (scale.rows - k)
        covariance = correction * bread @ meat @ bread
    differences, equal = yield from fitting.differences(found, phi)
    own, back = fitting.own_effects(found.theta), scale.back(has_intercept) * scale.spread
    unit = scale.spread / scale.deviation
    return Fit(
        tuple(called), back @ found.theta[:k], back @ covariance[:k, :k] @ back.T, loglik, null,
        round(scale.rows), scale.events, scale.hospitals, len(sent), sum(sent), sd * scale.spread, unit,
        own.score / unit / phi, own.information / np.outer(unit, unit) / phi, differences, equal,
        found.unsettled,
    )  # fmt: skip


def _residual(variance: float) -> float:
    """The residual variance of a linear model, in that of the outcome, where there is one."""
    if variance < 1e-9:
        raise RequestError("the columns explain the outcome exactly; leave out the one that follows from it")
    return variance


def _direction(at: Sums) -> Floats:
    """Newton's step; where the information is not positive definite, along its absolute curvature."""
    value, vector = np.linalg.eigh(at.information)
    bounded = np.maximum(np.abs(value), 1e-6 * max(np.abs(value).max(), 1e-12))
    return np.asarray(vector @ ((vector.T @ at.score) / bounded))


@dataclass(frozen=True, eq=False)
class _AtDeviation:
    """The profile likelihood in the log of the deviation, other parameters at their best by Newton's step:
    its value, slope and curvature; these parameters and their rates; the square of that step in standard
    errors."""

    log_sd: float
    value: float
    slope: float
    curvature: float
    rest: Floats
    rates: Floats
    gain: float

    @classmethod
    def of(cls, theta: Floats, at: Sums) -> _AtDeviation:
        inner, cross = at.information[:-1, :-1], at.information[:-1, -1]
        step, turn = _direction(Sums(0.0, at.score[:-1], inner)), _direction(Sums(0.0, cross, inner))
        gain = float(step @ at.score[:-1])
        slope, curvature = at.score[-1] - cross @ step, at.information[-1, -1] - cross @ turn
        rest, value = theta[:-1] + step, at.loglik + gain / 2.0
        return cls(float(theta[-1]), value, float(slope), float(curvature), rest, -turn, gain)

    def moved(self, change: float) -> Floats:
        return np.append(self.rest + change * self.rates, self.log_sd + change)

    def newton(self) -> Floats:
        """The parameters after a Newton step, not too far in the log of the deviation."""
        return self.moved(min(max(self.slope / max(abs(self.curvature), 1e-12), -1.0), 0.7))


def _best_deviation(at: Sequence[_AtDeviation], apart: float) -> tuple[Floats | None, list[Floats]]:
    """Where the likelihood is largest by its values at rising deviations (none: hospitals do not differ), and
    the points to look at next, the least deviation first. Between two deviations the slope of the likelihood
    and the other parameters are cubic."""
    top, least = max(at, key=lambda one: one.value - one.gain / 2.0), at[0]
    peaks = [(a, b) for a, b in pairwise(at) if a.slope > 0.0 >= b.slope]
    peaks += [(at[-1], at[-1])] if at[-1].slope > 0.0 else []
    low, high = max(peaks, key=lambda pair: max(one.value for one in pair), default=(least, least))
    reached = max(low.value, high.value)
    if peaks and top.value - top.gain / 2.0 > reached:  # too far from the maximum to trust slopes
        best, rates = top.moved(0.0), np.append(top.rates, 1.0)
    elif not peaks or (least.slope <= 0.0 and least.value >= reached):
        return None, [each.moved(0.0) for each in at]
    elif low is high:
        best, rates = low.newton(), np.append(low.rates, 1.0)
    else:
        width = high.log_sd - low.log_sd
        a, b = (np.append(one.slope, one.moved(0.0)) for one in (low, high))
        da, db = (width * np.concatenate([[-one.curvature], one.rates, [1.0]]) for one in (low, high))
        cubic = np.stack([a, da, 3.0 * (b - a) - 2.0 * da - db, 2.0 * (a - b) + da + db])
        roots = polynomial.polyroots(cubic[:, 0])
        where = min(roots[abs(roots.imag) < 1e-9].real, key=lambda root: abs(root - 0.5))
        best = polynomial.polyval(where, cubic)[1:]
        rates = polynomial.polyval(where, polynomial.polyder(cubic))[1:] / width
    around = [best + by * rates for by in (-apart, 0.0, apart)]
    return best, [at[0].moved(0.0), *(each for each in around if each[-1] > at[0].log_sd)]


def _settled(found: _Maximum, names: Sequence[str]) -> None:
    """Refuse a fit whose steps are long when its rounds are over."""
    slopes = np.array(names) != "intercept"
    vague = np.sqrt(np.diag(found.covariance)[: len(names)]).max(where=slopes, initial=0.0) > VAGUE
    if found.unsettled > RUNS_AWAY or (found.unsettled and vague):
        sizes = np.abs(found.theta[: len(names)]) * slopes
        raise RequestError(
            f"the fit did not settle in {MOST_ROUNDS} rounds; {names[int(np.argmax(sizes))]!r} may separate "
            "outcomes: leave it out, or merge rare levels"
        )


def _symmetric(upper: Floats, k: int) -> Floats:
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
