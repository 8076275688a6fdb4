"""Penalised regression on one table: logistic by Newton's method with penalties by evidence, and any other
outcome for a path of penalties.

Intercepts are not penalised. Penalties are in units of the summed loss: Σ loss + Σ penalty/2 · coefficient².
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from abps.data.outcome import Outcome
from abps.models.outcomes import judged

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Bounds of a penalty by evidence. The strongest leaves the direction of the first gradient step.
LEAST_PENALTY, MOST_PENALTY = 0.3, 1e5

#: A Newton step that lowers the loss by less than this share of it ends the search.
TOLERANCE = 1e-7
MOST_STEPS = 40

#: Rounds of mode and penalties; fixed-point iterations of the penalties in each.
SWEEPS, INNER_SWEEPS = 6, 6

#: Steps of a quasi-Newton search for other outcomes.
MOST_SEARCH_STEPS = 150


def row_losses(logits: Floats, y: Floats) -> Floats:
    """Log-loss of every row, in nats."""
    return np.asarray(np.logaddexp(0.0, logits) - logits * y)


@dataclass(frozen=True, eq=False)
class Logistic:
    """A logistic regression: intercept, coefficients (p,) and their penalties (p,)."""

    intercept: float
    coefficients: Floats
    penalty: Floats

    def logits(self, x: Floats) -> Floats:
        """(rows,) log-odds."""
        return np.asarray(self.intercept + x @ self.coefficients)


def fit_logistic(x: Floats, y: Floats, penalty: Floats, start: Logistic | None = None) -> Logistic:
    """The penalised optimum by Newton's method with step halving.  x: (rows, p).  penalty: (p,)."""
    rate = np.clip(y.mean(), 0.5 / len(y), 1.0 - 0.5 / len(y))
    a, b = float(np.log(rate / (1.0 - rate))), np.zeros(x.shape[1])
    if start is not None:
        a, b = start.intercept, start.coefficients

    def loss(z: Floats, b: Floats) -> float:
        return float(row_losses(z, y).sum() + 0.5 * (penalty * b**2).sum())

    z = a + x @ b
    now = loss(z, b)
    for _ in range(MOST_STEPS):
        step_a, step_b = _newton_step(x, y, z, b, penalty)
        move, length = step_a + x @ step_b, 1.0
        new = loss(z + move, b + step_b)
        while not new <= now and length > 1e-6:
            length /= 2.0
            new = loss(z + length * move, b + length * step_b)
        if not new < now:
            break
        a, b, z, gained, now = a + length * step_a, b + length * step_b, z + length * move, now - new, new
        if gained <= TOLERANCE * (1.0 + abs(now)):
            break
    return Logistic(a, b, penalty)


def _newton_step(x: Floats, y: Floats, z: Floats, b: Floats, penalty: Floats) -> tuple[float, Floats]:
    """The step of intercept and coefficients."""
    curvature, middle, total = _curvature(x, z, len(y))
    residual = y - expit(z)
    pull = float(residual.sum())
    curvature[np.diag_indices(len(b))] += penalty
    step = np.linalg.solve(curvature, x.T @ residual - penalty * b - middle * pull)
    return pull / total - float(middle @ step), step


def _curvature(x: Floats, z: Floats, rows: int) -> tuple[Floats, Floats, float]:
    """(p, p) curvature with the intercept profiled out, (p,) the weighted mean row, and the weights' sum."""
    chance = expit(z)
    weight = np.maximum(chance * (1.0 - chance), 1e-6)
    total = float(weight.sum()) + 1e-8 * rows  # outcomes all alike: the intercept must stay finite
    middle = weight @ x / total
    root = np.sqrt(weight)[:, None] * (x - middle)
    return root.T @ root, middle, total


def fit_by_evidence(x: Floats, y: Floats, group: Ints) -> Logistic:
    """The penalised logistic regression whose penalties maximise the marginal likelihood (Laplace).

    group: (p,) columns with one penalty in common, from 0. MacKay's fixed point for every group: penalty =
    effective degrees of freedom / squared norm, on the quadratic approximation at the mode.
    """
    groups = int(group.max(initial=-1)) + 1
    penalty = np.full(groups, 30.0)
    model = fit_logistic(x, y, penalty[group])
    for _ in range(SWEEPS if groups else 0):
        curvature, _, _ = _curvature(x, model.intercept + x @ model.coefficients, len(y))
        target = curvature @ model.coefficients + model.penalty * model.coefficients
        before = penalty
        for _ in range(INNER_SWEEPS):
            inverse = np.linalg.inv(curvature + np.diag(penalty[group]))
            mode = inverse @ target
            freedom = np.bincount(group, 1.0 - penalty[group] * np.diag(inverse), groups)
            norm = np.bincount(group, mode**2, groups)
            found = np.clip(freedom / np.maximum(norm, 1e-12), LEAST_PENALTY, MOST_PENALTY)
            settled, penalty = np.abs(np.log(found / penalty)).max() < 0.02, found
            if settled:
                break
        model = fit_logistic(x, y, penalty[group], model)
        if np.abs(np.log(penalty / before)).max() < 0.05:
            break
    return model


def penalised_path(
    outcome: Outcome, mix: NDArray[np.float32], x: Floats, y: Floats, penalties: Floats
) -> Floats:
    """(penalties, size) models of any outcome; mix: (terms, outputs) turns terms into answers.

    A model is (terms × columns + outputs,): the coefficients of each term, then the intercepts.
    """
    from scipy.optimize import minimize  # loaded where it is used: a site's process is the smaller

    rows, columns = x.shape
    terms, outputs = mix.shape
    edge = terms * columns
    path = np.empty((len(penalties), edge + outputs))
    w = np.concatenate([np.zeros(edge), outcome.start])
    for k in np.argsort(-penalties, kind="stable"):  # each solution is near the one before
        # Outcomes all alike: intercepts must stay finite.
        weight = np.concatenate([np.full(edge, penalties[k]), np.full(outputs, 1e-8 * rows)])

        def penalised(v: Floats, weight: Floats = weight) -> tuple[float, Floats]:
            loss, slope = judged(outcome, answers(v[None], mix, x)[0], y)
            by_term = (slope @ mix.T).T @ x
            gradient = np.concatenate([by_term.ravel(), slope.sum(axis=0)]) + weight * v
            return float(loss.sum() + 0.5 * (weight * v) @ v), gradient

        options = {"maxiter": MOST_SEARCH_STEPS, "ftol": 1e-10}
        w = path[k] = minimize(penalised, w, jac=True, method="L-BFGS-B", options=options).x
    return path


def answers(path: Floats, mix: NDArray[np.float32], x: Floats) -> Floats:
    """(models, rows, outputs) what models answer to rows."""
    terms, _ = mix.shape
    edge = terms * x.shape[1]
    parts = x @ path[:, :edge].reshape(len(path), terms, -1).transpose(0, 2, 1)
    return np.asarray(parts @ mix.astype(np.float64) + path[:, None, edge:])
