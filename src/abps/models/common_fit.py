"""The common model from sums over centers: quasi-Newton steps, penalties by evidence, variances by evidence.

Everything here is a deterministic function of broadcast sums, so every member that holds them computes the
same model. Vectors are flat: (q,), q = terms * (columns + 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Bounds of the ridge penalty per coefficient, in units of log-likelihood.
LEAST_PENALTY, MOST_PENALTY = 0.3, 1e5

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
    centers: how many add to the sums.  last: point and score one exchange ago.
    best: point, score and summed loss where the penalised loss was smallest.
    """

    point: Floats
    curvature: Floats
    penalty: Floats
    group: NDArray[np.int64]
    middle: Floats
    intercept_variance: Floats
    certainty: Floats
    centers: int
    last: tuple[Floats, Floats] | None = None
    best: tuple[Floats, Floats, float] | None = None


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
    return penalty, np.linalg.solve(curvature + np.diag(penalty), target)


def quasi_newton_step(fit: FitState, score: Floats, loss: float) -> FitState:
    """The fit after one more exchange, from the summed score (q,) and loss at its point: curvature, penalties
    and the point to ask about next.

    A step that raised the penalised loss still teaches the curvature; the next one starts where the loss was
    smallest.
    """
    curvature = fit.curvature
    if fit.last is not None:
        before, old = fit.last
        curvature = bfgs(curvature, fit.point - before, old - score)
    best = fit.best
    if best is None or _penalised(fit, fit.point, loss) <= _penalised(fit, best[0], best[2]):
        best = (fit.point, score, loss)
    target = curvature @ best[0] + best[1]
    penalty, aim = evidence_penalties(curvature, target, fit.penalty, fit.group)
    return replace(fit, point=aim, curvature=curvature, penalty=penalty, last=(fit.point, score), best=best)


def _penalised(fit: FitState, point: Floats, loss: float) -> float:
    return loss + 0.5 * float((fit.penalty * point**2).sum())


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
        last=None,
        best=None,
    )


def with_dispersion(fit: FitState, ratio: float) -> FitState:
    """The fit when the dispersion of the loss becomes ``ratio`` times what it was."""
    return replace(fit, curvature=fit.curvature / ratio, last=None, best=None)


def shrunken_correlation(matrix: Floats, rows: float) -> tuple[Floats, Floats]:
    """(q, q) correlations of a curvature that ``rows`` rows gave, and the square roots (q,) of its diagonal.

    Correlations shrink towards zero by the share of their squares that sampling explains.
    """
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-9))
    off = matrix / np.outer(size, size)
    np.fill_diagonal(off, 0.0)
    noise = float(((1.0 - off**2) ** 2).sum()) / max(rows, 1.0)
    keep = 1.0 - min(0.7, noise / max(float((off**2).sum()), 1e-9))
    return keep * off + np.eye(len(off)), size


def compress(correlation: Floats, rank: int) -> tuple[Floats, Floats]:
    """Factors (rank, q) and a diagonal (q,) that stand for a correlation matrix in fewer numbers.

    The diagonal makes up for what the factors leave out, half of the way to an upper bound: a curvature that
    is too small makes steps too long, one that is too large only makes them short.
    """
    value, vector = np.linalg.eigh(correlation)
    factors = (vector[:, -rank:] * np.sqrt(np.maximum(value[-rank:], 0.0))).T
    low = factors.T @ factors
    left = np.maximum(1.0 - np.diag(low), 0.02)
    most = float(np.linalg.eigvalsh((correlation - low) / np.sqrt(np.outer(left, left)))[-1])
    return factors, left * max(0.5 * most, 1.0)


@dataclass(frozen=True, eq=False)
class VarianceSums:
    """Sums over centers at their posterior modes.

    squares: (groups,) squared deviations of the coefficients.  dof: (groups,) effective degrees of freedom.
    shift, shift_squares, shift_dof: (terms,) the same of the intercepts, and their summed deviations.
    """

    squares: Floats
    dof: Floats
    shift: Floats
    shift_squares: Floats
    shift_dof: Floats


def variances(sums: VarianceSums) -> tuple[Floats, Floats]:
    """Variances (groups,) of the coefficients between centers and (terms,) of the intercepts.

    The fixed point of the evidence: squared deviations over degrees of freedom. A group shrinks towards all
    groups by one degree of freedom.
    """
    overall = sums.squares.sum() / max(float(sums.dof.sum()), 1e-6)
    each = (sums.squares + overall) / (sums.dof + 1.0)
    intercept = sums.shift_squares / np.maximum(sums.shift_dof, 0.1)
    return (
        np.clip(each, LEAST_VARIANCE, MOST_VARIANCE),
        np.clip(intercept, LEAST_INTERCEPT_VARIANCE, MOST_INTERCEPT_VARIANCE),
    )
