"""The hierarchical model: one common model, and every center's own deviation from it.

For a row x of center i the terms of the linear predictor are

    eta_t = x'b_it,     b_it ~ N(mu_it, variance_t),     x with a constant column at its end,

so the intercept is a coefficient like any other, with a variance of its own. Outputs are ``eta @ mix`` plus
the family's baseline (:mod:`abps.models.families`). Coefficients are arrays (terms, columns + 1).

The first part is what a center computes on its own rows: sums at a common model with its intercept refitted,
curvature, and the mode of its own posterior. Functions take the rows of any number of centers, so that a
simulation and a single hospital run the same code. The second part is what all members compute from broadcast
sums: quasi-Newton steps, penalties and variances by evidence. It is deterministic, so every member that holds
the sums computes the same model; vectors there are flat, (q,) with q = terms * (columns + 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from abps.models.families import Family
from abps.models.newton import OwnRows, Quadratic, descend, penalties

Floats = NDArray[np.float64]

#: Newton steps for intercepts and for a center's own posterior; the least variance that a prior can have.
INTERCEPT_STEPS, MODE_STEPS = 8, 12
LEAST_OWN_VARIANCE = 1e-12


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


def fit_intercepts(rows: CenterRows, common: CommonModel) -> tuple[Floats, Floats, Floats]:
    """Every center's intercept at the common coefficients: deviations (n, terms), their posterior covariance
    (n, terms, terms), and the outputs (rows, outputs) that result."""
    family, mix = rows.family, rows.family.mix
    offset = rows.predict(common.mean)
    terms = len(mix)
    prior = 1.0 / common.intercept_variance
    shift = np.zeros((rows.n, terms))

    def penalised(z: Floats, shift: Floats) -> Floats:
        loss = rows.totals(family.loss(z, rows.y)) / common.dispersion
        return np.asarray(loss + 0.5 * (shift**2 * prior).sum(axis=1))

    z = offset
    now = penalised(z, shift)
    inverse: Floats = np.zeros((rows.n, terms, terms))
    for _ in range(INTERCEPT_STEPS):
        residual = family.residual(z, rows.y) @ mix.T / common.dispersion
        information = rows.totals(family.information(z, rows.y)) / common.dispersion
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


def common_sums(rows: CenterRows, common: CommonModel) -> dict[str, Floats]:
    """What n centers add to the federation's sums at a common model, with their own intercepts.

    loss: (n,) negative log-posterior with the intercept's prior.  raw: (n,) losses alone, in the family's
    unit.  score: (n, terms, columns + 1).  shift: (n, terms) intercepts' deviations.  doubt: (n, terms) their
    posterior variances.
    """
    family = rows.family
    shift, inverse, z = fit_intercepts(rows, common)
    residual = family.residual(z, rows.y) @ family.mix.T / common.dispersion
    raw = rows.totals(family.loss(z, rows.y))
    score = np.zeros((rows.n, *rows.shape))
    for i in range(rows.n):
        part = slice(rows.start[i], rows.start[i + 1])
        own = residual[part].T
        score[i] = np.concatenate([own @ rows.x[part], own.sum(axis=1, keepdims=True)], axis=1)
    loss = raw / common.dispersion + 0.5 * (shift**2 / common.intercept_variance).sum(axis=1)
    doubt = np.einsum("ntt->nt", inverse)
    return {"loss": loss, "raw": raw, "score": score, "shift": shift, "doubt": doubt}


def common_losses(rows: CenterRows, common: CommonModel) -> Floats:
    """(n,) the loss of :func:`common_sums` alone."""
    shift, _, z = fit_intercepts(rows, common)
    prior = 0.5 * (shift**2 / common.intercept_variance).sum(axis=1)
    return np.asarray(rows.totals(rows.family.loss(z, rows.y)) / common.dispersion + prior)


def center_curvatures(rows: CenterRows, common: CommonModel) -> Iterator[tuple[Floats, Floats]]:
    """For every center in turn, with q = terms * (columns + 1): the information (q, q) of its rows about the
    common coefficients with its random intercept integrated out, and (terms, q) that of each constant with
    its own term."""
    family = rows.family
    terms, width = rows.shape
    _, _, z = fit_intercepts(rows, common)
    information = family.information(z, rows.y) / common.dispersion
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
    place, place_dof: (k,) position along shared deviations, where there are any, and its degrees of freedom.
    """

    model: Floats
    score: Floats
    dof: Floats
    evidence: float
    place: Floats = field(default_factory=lambda: np.zeros(0))
    place_dof: Floats = field(default_factory=lambda: np.zeros(0))


def posterior(
    x: Floats, y: Floats, family: Family, prior: CommonModel, begin: Floats | None = None
) -> Posterior:
    """The posterior of one center with design x (rows, columns + 1) under a normal prior, by Newton's method.

    begin: (terms, columns + 1) where to start; default: the prior mean.
    """
    if len(y) == 0:
        return Posterior(prior.mean, np.zeros_like(prior.mean), np.zeros_like(prior.mean), 0.0)
    rows, held, phi = _own_rows(x, y, family), _held(family, prior), prior.dispersion
    w, edge = held.middle.copy(), rows.edge
    if begin is not None:
        w[:edge] = begin.ravel()
    w = descend(rows, w, held, MODE_STEPS, slice(0, edge))
    z, shape = rows.answers(w), prior.mean.shape
    factored = rows.curvature(z).factored(held.precision, slice(0, edge))
    evidence = -(rows.loss(z) + held.value(w)) / phi - 0.5 * factored.log_determinant()
    score, dof = rows.score(z)[:edge] / phi, factored.freedom()
    return Posterior(w[:edge].reshape(shape), score.reshape(shape), dof.reshape(shape), evidence)


def _own_rows(x: Floats, y: Floats, family: Any) -> OwnRows:
    """Rows as Newton's method reads them; the constant is one of the columns."""
    return OwnRows(x, y, replace(family, mix=np.eye(len(family.baseline))), family.mix)


def _held(family: Family, prior: CommonModel) -> Quadratic:
    """What the prior adds to a summed loss, in the family's unit."""
    precision = prior.dispersion / np.maximum(prior.variance, LEAST_OWN_VARIANCE)
    nothing = np.zeros(len(family.baseline))
    return Quadratic(
        np.concatenate([precision.ravel(), nothing]), np.concatenate([prior.mean.ravel(), family.baseline])
    )


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
    rows, held, n, phi = _own_rows(x, y, family), _held(family, prior), len(y), prior.dispersion
    part = slice(0, rows.edge)
    curvature = rows.curvature(rows.answers(np.concatenate([model.ravel(), family.baseline])))
    apart = np.concatenate([(other - model).ravel(), 0.0 * family.baseline])
    slope = curvature.times(apart)[part] / (n * phi)
    size = float(apart[part] @ slope)
    doubt = phi * float(slope @ curvature.factored(held.precision, part).solve(slope))
    spread = np.sqrt(patients**2 * doubt + patients * size)
    return float(ndtr(0.5 * patients * size / max(spread, 1e-12)))


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


# From sums over centers

#: Parts of a step at which centers report their loss, the whole step first.
FRACTIONS = (1.0, 0.5, 0.25)

#: Fixed-point iterations of the penalties for one quadratic model.
PENALTY_SWEEPS = 12

#: Bounds of the variance of a coefficient between centers.
LEAST_VARIANCE, MOST_VARIANCE = 1e-6, 0.5
LEAST_INTERCEPT_VARIANCE, MOST_INTERCEPT_VARIANCE = 1e-3, 9.0


@dataclass(frozen=True, eq=False)
class FitState:
    """The state of the common fit between two exchanges.

    point: (q,) the common model that the next sums are taken at.  curvature: (q, q) of the summed loss.
    penalty: (q,) ridge.  group: (q,) columns that share a penalty; -1: the constants, which have none.
    middle: (terms, q) mean input of each term, weighted by information.
    intercept_variance: (terms,).  certainty: (terms,) mean share of an intercept that the rows decide.
    centers: how many add to the sums.  rows: of those who added to the last ones.
    base: point, score and summed loss from which the step to ``point`` was taken; none: there was no step.
    """

    point: Floats
    curvature: Floats
    penalty: Floats
    group: NDArray[np.int64]
    middle: Floats
    intercept_variance: Floats
    certainty: Floats
    centers: int
    base: tuple[Floats, Floats, float] | None = None
    rows: float = 0.0

    def part_of_step(self, fraction: float) -> Floats:
        """(q,) the point after a part of the step from the base."""
        return self.point if self.base is None else self.base[0] + fraction * (self.point - self.base[0])


def assemble_curvature(matrix: Floats, floor: float = 1e-4) -> Floats:
    """A symmetric matrix with its small and negative eigenvalues raised, in units of its diagonal."""
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-9))
    scaled = matrix / np.outer(size, size)
    value, vector = np.linalg.eigh(0.5 * (scaled + scaled.T))
    return np.asarray((vector * np.maximum(value, floor)) @ vector.T * np.outer(size, size))


#: How long a change of the gradient may be beside its part that the step explains, squared.
MOST_ASIDE = 4.0


def bfgs(curvature: Floats, step: Floats, change: Floats) -> Floats:
    """The curvature updated so that it maps a step to the observed change of the gradient; a change that lies
    mostly elsewhere is none of this step, but of other members behind a sum."""
    image = curvature @ step
    bent, seen = float(step @ image), float(step @ change)
    if not bent > 0 or seen < 0.1 * bent:
        return curvature
    if bent * float(change @ np.linalg.solve(curvature, change)) > MOST_ASIDE * seen**2:
        return curvature
    return np.asarray(curvature - np.outer(image, image) / bent + np.outer(change, change) / seen)


def raised(curvature: Floats, step: Floats, losses: Floats) -> Floats:
    """The curvature, raised to what losses after the parts :data:`FRACTIONS` of a step say of it along it.

    It may be too small along columns of members who were not among those that it comes from.
    """
    whole, half, quarter = losses
    seen = 2.0 * ((whole - half) / 0.5 - (half - quarter) / 0.25) / 0.75
    image, missing = np.diag(curvature) * step, seen - float(step @ curvature @ step)
    length = float(image @ step)
    if not (missing > 0 and length > 0):
        return curvature
    return np.asarray(curvature + missing * np.outer(image, image) / length**2)


def evidence_penalties(
    curvature: Floats, target: Floats, penalty: Floats, group: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Penalties (q,) that maximise the evidence of a quadratic log-likelihood, and its penalised mode (q,).

    The log-likelihood is target'b - b'curvature b / 2. MacKay's fixed point for every group of columns:
    penalty = effective degrees of freedom / squared norm; a group shrinks towards all by one more coefficient
    of the average size.
    """
    used = group >= 0
    for _ in range(PENALTY_SWEEPS):
        inverse = np.linalg.inv(curvature + np.diag(penalty))
        mode, dof, new = inverse @ target, 1.0 - penalty * np.diag(inverse), penalty.copy()
        new[used] = penalties(dof[used], mode[used] ** 2, group[used])
        settled = np.abs(np.log(new[used] / penalty[used])).max(initial=0.0) < 0.02
        penalty = new
        if settled:
            break
    return penalty, np.asarray(np.linalg.solve(curvature + np.diag(penalty), target))


#: By how much, relatively, the rows behind two sums may differ if they are the same: masks round.
SAME_ROWS = 1e-6


def quasi_newton_step(fit: FitState, score: Floats, losses: Floats, rows: float) -> FitState:
    """The fit after one more exchange: curvature, penalties and the point to ask about next.

    score: (q,) summed at the point.  losses: (fractions,) summed after the parts :data:`FRACTIONS` of the
    step. The next step starts where the penalised loss is smallest; there the score is interpolated between
    both ends, which is exact for a quadratic loss. If the number of rows changed, the sums are over other
    centers than before: the score is then taken per row, and the loss before is not comparable.
    """
    curvature, chosen = fit.curvature, (fit.point, score, float(losses[0]))
    if fit.base is not None:
        start, old, before = fit.base
        fractions: tuple[float, ...] = FRACTIONS
        every = losses.tolist()
        if np.isclose(rows, fit.rows, rtol=SAME_ROWS, atol=0.0):
            fractions, every = (*fractions, 0.0), [*every, before]
        else:
            old = old * rows / max(fit.rows, 1.0)
        curvature = bfgs(curvature, fit.point - start, old - score)
        points = [fit.part_of_step(fraction) for fraction in fractions]
        held = [0.5 * float((fit.penalty * point**2).sum()) for point in points]
        k = int(np.argmin(np.add(every, held)))
        if fractions[k] == 0.0:  # no part of the step was any good: the next one would be the same
            curvature = raised(curvature, fit.point - start, losses)
        chosen = (points[k], (1.0 - fractions[k]) * old + fractions[k] * score, every[k])
    target = curvature @ chosen[0] + chosen[1]
    penalty, aim = evidence_penalties(curvature, target, fit.penalty, fit.group)
    return replace(fit, point=aim, curvature=curvature, penalty=penalty, base=chosen, rows=rows)


def with_intercept_variance(fit: FitState, variance: Floats) -> FitState:
    """The fit with other variances (terms,) of the random intercepts.

    A random intercept takes information away from its term's mean input: the less it may vary, the less it
    takes. With the same mean input in all centers this is a change of rank one, and exact for the constant.
    Nothing is taken off, because an approximate curvature could lose a direction: steps are shorter then.
    """
    precision = fit.certainty / (1.0 - fit.certainty) / fit.intercept_variance  # mean information of a center
    certainty = precision * variance / (1.0 + precision * variance)
    change = fit.centers * np.maximum(certainty / variance - fit.certainty / fit.intercept_variance, 0.0)
    curvature = fit.curvature + (fit.middle.T * change) @ fit.middle
    return replace(
        fit,
        curvature=assemble_curvature(curvature),
        intercept_variance=variance,
        certainty=certainty,
        base=None,
    )


def shrunken_correlation(matrix: Floats, rows: float) -> Floats:
    """(q, q) correlations of a curvature that ``rows`` rows gave.

    Correlations shrink towards zero by the share of their squares that sampling explains.
    """
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-9))
    off = matrix / np.outer(size, size)
    np.fill_diagonal(off, 0.0)
    noise = float(((1.0 - off**2) ** 2).sum()) / max(rows, 1.0)
    keep = 1.0 - min(0.7, noise / max(float((off**2).sum()), 1e-9))
    return keep * off + np.eye(len(off))


#: The widest gap between two positions that one byte can say.
WIDEST_GAP = 255

#: The least eigenvalue of a compressed correlation matrix: too small a curvature makes steps too long.
LEAST_EIGENVALUE = 0.05


def compress(correlation: Floats, rank: int, entries: int) -> tuple[Floats, Floats, Floats]:
    """A correlation matrix in fewer numbers: factors (rank, q), and the largest entries of what they leave
    over, as gaps (entries,) between positions in the lower triangle and values (entries,).

    Smooth terms of different columns hardly correlate, so few entries carry nearly all.
    """
    value, vector = np.linalg.eigh(correlation)
    factors = (vector[:, len(value) - rank :] * np.sqrt(np.maximum(value[len(value) - rank :], 0.0))).T
    left = (correlation - factors.T @ factors)[np.tril_indices(len(correlation), -1)]
    # Fillers keep every gap within one byte.
    fillers = np.arange(WIDEST_GAP - 1, len(left), WIDEST_GAP)
    ranked = np.argsort(-np.abs(left), kind="stable")
    chosen = np.zeros(len(left), dtype=bool)
    chosen[fillers] = True
    chosen[ranked[~chosen[ranked]][: max(entries - len(fillers), 0)]] = True
    at = np.flatnonzero(chosen)[:entries]
    gaps = np.diff(at, prepend=-1).astype(np.float64)
    missing = entries - len(at)
    return factors, np.pad(gaps, (0, missing)), np.pad(left[at], (0, missing))


def decompress(factors: Floats, gaps: Floats, values: Floats) -> Floats:
    """The (q, q) correlation matrix that factors and entries stand for, made positive definite."""
    q = factors.shape[1]
    low = factors.T @ factors
    at = np.cumsum(np.rint(gaps).astype(np.int64)) - 1
    inside = (at >= 0) & (at < q * (q - 1) // 2) & (gaps > 0)
    triangle = np.zeros(q * (q - 1) // 2)
    triangle[at[inside]] = values[inside]
    matrix = np.zeros((q, q))
    matrix[np.tril_indices(q, -1)] = triangle
    matrix = low + matrix + matrix.T
    np.fill_diagonal(matrix, 1.0)
    return assemble_curvature(matrix, LEAST_EIGENVALUE)


def variances(sums: Mapping[str, Floats], before: Floats) -> tuple[Floats, Floats]:
    """Variances (groups,) of the coefficients between centers and (terms,) of the intercepts, from sums over
    centers at their posterior modes: squared deviations and effective degrees of freedom of the coefficients
    (``squares``, ``dof``) and of the intercepts (``shift_squares``, ``shift_dof``).

    The evidence is largest where squared deviations over degrees of freedom reproduce the variance. Near zero
    that fixed point is reached slowly, so two of its steps are taken at once; before: (groups,) variances
    that the sums were taken with. A group shrinks towards all groups by one degree of freedom.
    """
    squares, dof = sums["squares"], sums["dof"]
    each = (squares + squares.sum() / max(float(dof.sum()), 1e-6)) / (dof + 1.0)
    each = each * np.clip(each / np.maximum(before, LEAST_VARIANCE), 0.2, 5.0)
    intercept = sums["shift_squares"] / np.maximum(sums["shift_dof"], 0.1)
    return (
        np.clip(each, LEAST_VARIANCE, MOST_VARIANCE),
        np.clip(intercept, LEAST_INTERCEPT_VARIANCE, MOST_INTERCEPT_VARIANCE),
    )
