"""The hierarchical model: one common model, and every center's own deviation from it.

For a row x of center i the terms of the linear predictor are

    eta_t = x'b_it,     b_it ~ N(mu_it, variance_t),     x with a constant column at its end,

so the intercept is a coefficient like any other, with a variance of its own. Outputs are ``eta @ mix`` plus
the family's baseline (:mod:`abps.models.families`). Coefficients are arrays (terms, columns + 1).

This module has what a center computes on its own rows: sums at a common model with its intercept refitted,
curvature, and the mode of its own posterior. All functions take the rows of any number of centers, so that a
simulation and a single hospital run the same code. What all members compute together from the sums is in
:mod:`abps.models.common_fit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import ndtr

from abps.models.families import Family

Floats = NDArray[np.float64]

#: Newton steps for intercepts and for a center's own posterior, and the gain in log-posterior that ends them.
INTERCEPT_STEPS = 8
MODE_STEPS = 12
LEAST_GAIN = 1e-3


@dataclass(frozen=True, eq=False)
class CenterRows:
    """Rows of n centers, side by side.

    x: (rows, columns) inputs without the constant.  y: (rows,) outcomes.  start: (n + 1,) center i owns rows
    start[i]:start[i + 1].
    """

    x: NDArray[np.float32]
    y: Floats
    start: NDArray[np.int64]
    family: Family

    @property
    def n(self) -> int:
        """Centers."""
        return len(self.start) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Of a model's coefficients: (terms, columns + 1)."""
        return len(self.family.mix), self.x.shape[1] + 1

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(n,) rows per center."""
        return np.diff(self.start)

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """(rows,) the center of every row."""
        return np.repeat(np.arange(self.n), self.sizes)

    def design(self, i: int) -> Floats:
        """(rows, columns + 1) inputs of center i with the constant column."""
        own = self.x[self.start[i] : self.start[i + 1]]
        found = np.ones((len(own), own.shape[1] + 1))
        found[:, :-1] = own
        return found

    def outcomes(self, i: int) -> Floats:
        """(rows,) outcomes of center i."""
        return self.y[self.start[i] : self.start[i + 1]]

    def totals(self, values: Floats) -> Floats:
        """(n, ...) sums over the rows of every center."""
        total = np.zeros((len(values) + 1, *values.shape[1:]))
        np.cumsum(values, axis=0, out=total[1:])
        return np.asarray(total[self.start[1:]] - total[self.start[:-1]])

    def select(self, keep: NDArray[np.bool_]) -> CenterRows:
        """The rows in ``keep`` (rows,)."""
        counts = np.bincount(self.owner[keep], minlength=self.n)
        start = np.concatenate([[0], np.cumsum(counts)])
        return CenterRows(self.x[keep], self.y[keep], start, self.family)

    def centers(self, keep: NDArray[np.bool_]) -> CenterRows:
        """The centers in ``keep`` (n,)."""
        rows = np.repeat(keep, self.sizes)
        start = np.concatenate([[0], np.cumsum(self.sizes[keep])])
        return CenterRows(self.x[rows], self.y[rows], start, self.family)

    def predict(self, model: Floats) -> Floats:
        """(rows, outputs) predictors from one model (terms, columns + 1)."""
        eta = self.x @ model[:, :-1].T.astype(self.x.dtype) + model[:, -1]
        return np.asarray(eta @ self.family.mix + self.family.baseline)


@dataclass(frozen=True, eq=False)
class CommonModel:
    """What all members know: the mean of all centers' models and how far centers lie from it.

    mean: (terms, columns + 1).  variance: (terms, columns + 1) of a center's deviation, zero: none.
    dispersion: scale of the loss, 1 for families without one.
    """

    mean: Floats
    variance: Floats
    dispersion: float = 1.0

    @property
    def intercept_variance(self) -> Floats:
        """(terms,) of the random intercepts."""
        return np.asarray(self.variance[:, -1])


@dataclass(frozen=True, eq=False)
class CenterSums:
    """What n centers compute at a common model with their own intercepts; every field is a sum over rows.

    loss: (n,) negative log-posterior with the intercept's prior.  score: (n, terms, columns + 1).
    shift: (n, terms) intercepts' deviations.  doubt: (n, terms) their posterior variances.
    raw: (n,) losses alone, in the family's unit.
    """

    loss: Floats
    score: Floats
    shift: Floats
    doubt: Floats
    raw: Floats


def fit_intercepts(rows: CenterRows, common: CommonModel) -> tuple[Floats, Floats, Floats]:
    """Every center's intercept at the common coefficients: deviations (n, terms), their posterior covariance
    (n, terms, terms), and the outputs (rows, outputs) that result."""
    family, mix = rows.family, rows.family.mix
    offset = rows.predict(common.mean)
    terms = len(mix)
    prior = 1.0 / common.intercept_variance
    shift = np.zeros((rows.n, terms))

    def penalised(z: Floats, shift: Floats) -> Floats:
        loss = rows.totals(family.loss(z, rows.y, rows.start)) / common.dispersion
        return np.asarray(loss + 0.5 * (shift**2 * prior).sum(axis=1))

    z = offset
    now = penalised(z, shift)
    inverse: Floats = np.zeros((rows.n, terms, terms))
    for _ in range(INTERCEPT_STEPS):
        residual = family.residual(z, rows.y, rows.start) @ mix.T / common.dispersion
        information = rows.totals(family.information(z, rows.y, rows.start)) / common.dispersion
        inverse = np.asarray(np.linalg.inv(information + np.diag(prior)))
        step = np.einsum("nts,ns->nt", inverse, rows.totals(residual) - shift * prior)
        step = np.clip(step, -3.0, 3.0)
        # A step that makes a center worse is halved, for this center alone.
        for _ in range(4):
            trial = offset + (shift + step)[rows.owner] @ mix
            loss = penalised(trial, shift + step)
            worse = loss > now + 1e-9
            if not worse.any():
                break
            step = np.where(worse[:, None], 0.5 * step, step)
        keep = loss <= now + 1e-9
        gain = np.where(keep, now - loss, 0.0)
        shift = np.where(keep[:, None], shift + step, shift)
        z, now = offset + shift[rows.owner] @ mix, np.where(keep, loss, now)
        if gain.max(initial=0.0) < 1e-6:
            break
    return shift, inverse, z


def common_sums(rows: CenterRows, common: CommonModel) -> CenterSums:
    """What every center adds to the federation's sums at a common model."""
    family = rows.family
    shift, inverse, z = fit_intercepts(rows, common)
    residual = family.residual(z, rows.y, rows.start) @ family.mix.T / common.dispersion
    raw = rows.totals(family.loss(z, rows.y, rows.start))
    score = (
        np.stack([scored(rows, i, residual) for i in range(rows.n)]) if rows.n else np.zeros((0, *rows.shape))
    )
    prior = 0.5 * (shift**2 / common.intercept_variance).sum(axis=1)
    doubt = np.einsum("ntt->nt", inverse)
    return CenterSums(raw / common.dispersion + prior, score, shift, doubt, raw)


def common_losses(rows: CenterRows, common: CommonModel) -> Floats:
    """(n,) the loss of :func:`common_sums` alone."""
    shift, _, z = fit_intercepts(rows, common)
    prior = 0.5 * (shift**2 / common.intercept_variance).sum(axis=1)
    return np.asarray(rows.totals(rows.family.loss(z, rows.y, rows.start)) / common.dispersion + prior)


def scored(rows: CenterRows, i: int, residual: Floats) -> Floats:
    """(terms, columns + 1) the score of center i's coefficients from residuals (rows, terms)."""
    part = slice(rows.start[i], rows.start[i + 1])
    own = residual[part].T
    return np.concatenate([own @ rows.x[part], own.sum(axis=1, keepdims=True)], axis=1)


def center_curvatures(rows: CenterRows, common: CommonModel) -> Iterator[tuple[Floats, Floats]]:
    """For every center in turn, with q = terms * (columns + 1): the information (q, q) of its rows about the
    common coefficients with its random intercept integrated out, and (terms, q) that of each constant with
    its own term."""
    family = rows.family
    terms, width = rows.shape
    _, _, z = fit_intercepts(rows, common)
    information = family.information(z, rows.y, rows.start) / common.dispersion
    constant = np.arange(terms) * width + width - 1
    for i in range(rows.n):
        part = slice(rows.start[i], rows.start[i + 1])
        x = rows.design(i)
        found = np.empty((terms, width, terms, width))
        for t in range(terms):
            for s in range(t + 1):
                found[t, :, s] = (x * information[part, t, s, None]).T @ x
                found[s, :, t] = found[t, :, s].T
        flat = found.reshape(terms * width, terms * width)
        across = flat[:, constant]
        inner = across[constant] + np.diag(1.0 / common.intercept_variance)
        own = np.where(np.arange(terms * width)[None] // width == np.arange(terms)[:, None], across.T, 0.0)
        yield flat - across @ np.linalg.solve(inner, across.T), own


@dataclass(frozen=True, eq=False)
class Posterior:
    """A center's own posterior, approximated at its mode.

    model: (terms, columns + 1).  score: (terms, columns + 1) derivative of the log-likelihood there.
    dof: (terms, columns + 1) share of the variance that the rows explain, 0 (all prior) to 1 (all data).
    evidence: log-likelihood of the rows under the prior, the model integrated out (Laplace).
    loss: of the rows at the mode, in the family's unit.
    """

    model: Floats
    score: Floats
    dof: Floats
    evidence: float
    loss: float


def posterior(
    x: Floats, y: Floats, family: Family, prior: CommonModel, begin: Floats | None = None
) -> Posterior:
    """The posterior of one center with design x (rows, columns + 1) under a normal prior, by Newton's method.

    begin: (terms, columns + 1) where to start; default: the prior mean.
    """
    if len(y) == 0:
        return Posterior(prior.mean, np.zeros_like(prior.mean), np.zeros_like(prior.mean), 0.0, 0.0)
    scale = np.sqrt(prior.variance)
    start = np.array([0, len(y)])
    offset = x @ prior.mean.T @ family.mix + family.baseline
    phi = prior.dispersion

    def evaluate(g: Floats) -> tuple[float, Floats]:
        z = offset + x @ (scale * g).T @ family.mix
        loss = family.loss(z, y, start).sum() / phi
        return -float(loss) - 0.5 * float((g**2).sum()), z

    g = np.zeros_like(scale)
    if begin is not None:
        g = np.divide(begin - prior.mean, scale, out=g, where=scale > 0)
    now, z = evaluate(g)
    if begin is not None:  # a bad start costs more steps than none
        plain = evaluate(np.zeros_like(g))
        if plain[0] > now:
            g, (now, z) = np.zeros_like(g), plain
    for _ in range(MODE_STEPS):
        residual = family.residual(z, y, start) @ family.mix.T / phi
        gradient = scale * (residual.T @ x) - g
        solver = WhitenedCurvature(x, family.information(z, y, start) / phi, scale)
        step = solver.solve(gradient)
        for _ in range(6):
            value, trial = evaluate(g + step)
            if value > now - 1e-9:
                break
            step = 0.5 * step
        gain = value - now
        if not gain > -1e-9:
            break
        g, now, z = g + step, value, trial
        if gain < LEAST_GAIN:
            break
    residual = family.residual(z, y, start) @ family.mix.T / phi
    solver = WhitenedCurvature(x, family.information(z, y, start) / phi, scale)
    dof, logdet = solver.summary()
    loss = float(family.loss(z, y, start).sum())
    return Posterior(prior.mean + scale * g, residual.T @ x, dof, now - 0.5 * logdet, loss)


def chance_of_gain(
    x: Floats, y: Floats, family: Family, prior: CommonModel, model: Floats, other: Floats, patients: float
) -> float:
    """The posterior probability that a center's model has a smaller loss than another one on so many further
    patients.

    The loss is quadratic around the mode ``model`` (terms, columns + 1) of the posterior. With the distance d
    of the other model, the information H of one row and the posterior covariance C, the difference of the
    losses of m rows has the mean m d'Hd / 2 and the variance m² d'HCHd + m d'Hd.
    """
    if len(y) == 0:
        return 0.5
    scale, apart = np.sqrt(prior.variance), other - model
    start = np.array([0, len(y)])
    information = family.information(x @ model.T @ family.mix + family.baseline, y, start) / prior.dispersion
    along = x @ apart.T
    bent = np.einsum("rts,rs->rt", information, along)
    size = float((along * bent).sum()) / len(y)
    slope = scale * (bent.T @ x) / len(y)
    doubt = float((slope * WhitenedCurvature(x, information, scale).solve(slope)).sum())
    spread = np.sqrt(patients**2 * doubt + patients * size)
    return float(ndtr(0.5 * patients * size / max(spread, 1e-12)))


class WhitenedCurvature:
    """I + B'B, the curvature of a log-posterior in coordinates in which the prior is standard normal.

    B: (rows * terms, terms * columns) inputs times the square root of the information, times prior scales.
    The smaller of B'B and BB' is factorised.
    """

    def __init__(self, x: Floats, information: Floats, scale: Floats) -> None:
        rows, terms, _ = information.shape
        self.shape = scale.shape
        if terms == 1:
            self.b = x * (np.sqrt(information[:, 0]) * scale)
        else:
            root = np.linalg.cholesky(information + 1e-10 * np.eye(terms))
            spread = np.einsum("rtj,rc,tc->rjtc", root, x, scale, optimize=True)
            self.b = spread.reshape(rows * terms, -1)
        self.wide = self.b.shape[0] < self.b.shape[1]
        gram = self.b @ self.b.T if self.wide else self.b.T @ self.b
        gram.flat[:: len(gram) + 1] += 1.0
        self.factor = np.linalg.cholesky(gram)

    def _lower(self, right: Floats) -> Floats:
        return np.asarray(solve_triangular(self.factor, right, lower=True, check_finite=False))

    def _apply(self, right: Floats) -> Floats:
        half = self._lower(right)
        return np.asarray(solve_triangular(self.factor, half, lower=True, trans=1, check_finite=False))

    def solve(self, gradient: Floats) -> Floats:
        """(terms, columns) the Newton step for a gradient of the same shape."""
        flat = gradient.ravel()
        if self.wide:
            found = flat - self.b.T @ self._apply(self.b @ flat)
        else:
            found = self._apply(flat)
        return np.asarray(found.reshape(self.shape))

    def summary(self) -> tuple[Floats, float]:
        """(terms, columns) 1 minus the diagonal of the inverse, and the log-determinant."""
        logdet = 2.0 * float(np.log(np.diag(self.factor)).sum())
        if self.wide:
            dof = (self._lower(self.b) ** 2).sum(axis=0)
        else:
            dof = 1.0 - (self._lower(np.eye(len(self.factor))) ** 2).sum(axis=0)
        return dof.reshape(self.shape), logdet


#: Fixed-point iterations of a center's own penalties, and their bounds.
ALONE_SWEEPS = 6
LEAST_OWN_PENALTY, MOST_OWN_PENALTY = 1.0, 1e4

#: Variance of the intercept of a center on its own.
ALONE_INTERCEPT_VARIANCE = 4.0


def alone(x: Floats, y: Floats, family: Family, group: NDArray[np.int64], common: CommonModel) -> Posterior:
    """What one center would fit without the others: ridge penalties by the evidence of its own rows.

    group: (terms, columns + 1) coefficients that share a penalty, -1 for constants.  common: only its
    intercept, as a weak prior, and its dispersion are used.
    """
    shape = common.mean.shape
    used, groups = group >= 0, int(group.max()) + 1
    mean = np.where(used, 0.0, common.mean)
    penalty = np.full(groups, max(10.0, 0.02 * len(y)))
    found: Posterior | None = None
    for _ in range(ALONE_SWEEPS):
        variance = np.where(used, 1.0 / penalty[np.maximum(group, 0)], ALONE_INTERCEPT_VARIANCE)
        prior = CommonModel(mean, variance.reshape(shape), common.dispersion)
        before = found
        found = posterior(x, y, family, prior, None if before is None else before.model)
        if before is not None and found.evidence < before.evidence + 0.05:
            break
        dof = np.bincount(group[used], found.dof[used], groups)
        norm = np.bincount(group[used], found.model[used] ** 2, groups)
        penalty = np.clip((dof + 0.5) / (norm + 0.5 / penalty), LEAST_OWN_PENALTY, MOST_OWN_PENALTY)
    assert found is not None
    return found
