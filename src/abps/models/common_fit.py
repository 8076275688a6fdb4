"""The common model from sums over centers: quasi-Newton steps, penalties by evidence, variances by evidence.

Everything here is a deterministic function of broadcast sums, so every member that holds them computes the
same model. Vectors are flat: (q,), q = terms * (columns + 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Bounds of the ridge penalty per coefficient, in units of log-likelihood.
LEAST_PENALTY, MOST_PENALTY = 0.3, 1e5

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
    centers: how many add to the sums.
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

    def part_of_step(self, fraction: float) -> Floats:
        """(q,) the point after a part of the step from the base."""
        return self.point if self.base is None else self.base[0] + fraction * (self.point - self.base[0])


def assemble_curvature(matrix: Floats, floor: float = 1e-4) -> Floats:
    """A symmetric matrix with its small and negative eigenvalues raised, in units of its diagonal."""
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-9))
    scaled = matrix / np.outer(size, size)
    value, vector = np.linalg.eigh(0.5 * (scaled + scaled.T))
    return np.asarray((vector * np.maximum(value, floor)) @ vector.T * np.outer(size, size))


def bfgs(curvature: Floats, step: Floats, change: Floats) -> Floats:
    """The curvature updated so that it maps a step to the observed change of the gradient."""
    image = curvature @ step
    bent, seen = float(step @ image), float(step @ change)
    if not bent > 0 or seen < 0.1 * bent:
        return curvature
    return np.asarray(curvature - np.outer(image, image) / bent + np.outer(change, change) / seen)


def evidence_penalties(
    curvature: Floats, target: Floats, penalty: Floats, group: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Penalties (q,) that maximise the evidence of a quadratic log-likelihood, and its penalised mode (q,).

    The log-likelihood is target'b - b'curvature b / 2. MacKay's fixed point for every group of columns:
    penalty = effective degrees of freedom / squared norm; a group shrinks towards all by one more coefficient
    of the average size.
    """
    used = group >= 0
    groups = int(group.max(initial=-1)) + 1
    mode = np.zeros_like(target)
    for _ in range(PENALTY_SWEEPS):
        inverse = np.linalg.inv(curvature + np.diag(penalty))
        mode = inverse @ target
        dof = 1.0 - penalty * np.diag(inverse)
        common = dof[used].sum() / max(float((mode[used] ** 2).sum()), 1e-12)
        common = float(np.clip(common, LEAST_PENALTY, MOST_PENALTY))
        if groups == 1:
            each = np.array([common])
        else:
            total = np.bincount(group[used], dof[used], groups) + 1.0
            norm = np.bincount(group[used], mode[used] ** 2, groups) + 1.0 / common
            each = np.clip(total / norm, LEAST_PENALTY, MOST_PENALTY)
        new = np.where(used, each[np.maximum(group, 0)], penalty)
        settled = np.abs(np.log(new[used] / penalty[used])).max(initial=0.0) < 0.02
        penalty = new
        if settled:
            break
    return penalty, np.asarray(np.linalg.solve(curvature + np.diag(penalty), target))


def quasi_newton_step(fit: FitState, score: Floats, losses: Floats) -> FitState:
    """The fit after one more exchange: curvature, penalties and the point to ask about next.

    score: (q,) summed at the point.  losses: (fractions,) summed after the parts :data:`FRACTIONS` of the
    step. The next step starts where the penalised loss is smallest; there the score is interpolated between
    both ends, which is exact for a quadratic loss.
    """
    curvature, chosen = fit.curvature, (fit.point, score, float(losses[0]))
    if fit.base is not None:
        start, old, before = fit.base
        step = fit.point - start
        curvature = bfgs(curvature, step, old - score)
        points = [fit.part_of_step(fraction) for fraction in (*FRACTIONS, 0.0)]
        every = [*losses.tolist(), before]
        held = [0.5 * float((fit.penalty * point**2).sum()) for point in points]
        k = int(np.argmin(np.add(every, held)))
        fraction = (*FRACTIONS, 0.0)[k]
        chosen = (points[k], (1.0 - fraction) * old + fraction * score, every[k])
    target = curvature @ chosen[0] + chosen[1]
    penalty, aim = evidence_penalties(curvature, target, fit.penalty, fit.group)
    return replace(fit, point=aim, curvature=curvature, penalty=penalty, base=chosen)


def with_intercept_variance(fit: FitState, variance: Floats) -> FitState:
    """The fit with other variances (terms,) of the random intercepts.

    A random intercept takes information away from its term's mean input: the less it may vary, the less it
    takes. With the same mean input in all centers this is a change of rank one, and exact for the constant.
    """
    precision = fit.certainty / (1.0 - fit.certainty) / fit.intercept_variance  # mean information of a center
    certainty = precision * variance / (1.0 + precision * variance)
    change = fit.centers * (certainty / variance - fit.certainty / fit.intercept_variance)
    curvature = fit.curvature + (fit.middle.T * change) @ fit.middle
    return replace(
        fit,
        curvature=assemble_curvature(curvature),
        intercept_variance=variance,
        certainty=certainty,
        base=None,
    )


def with_dispersion(fit: FitState, ratio: float) -> FitState:
    """The fit when the dispersion of the loss becomes ``ratio`` times what it was."""
    return replace(fit, curvature=fit.curvature / ratio, base=None)


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
