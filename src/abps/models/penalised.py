"""Penalised regression for any outcome, for a whole path of penalties: a convex loss and its slopes.

A model is (terms × columns + outputs,): the coefficients of each term, then the intercepts, which are not
penalised. ``mix`` (terms, outputs) makes answers of terms, as in :mod:`abps.models.additive`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import Outcome
from abps.models.outcomes import judged

Floats = NDArray[np.float64]

MOST_STEPS = 300


def penalised_path(
    outcome: Outcome, mix: NDArray[np.float32], x: Floats, y: Floats, penalties: Floats
) -> Floats:
    """(penalties, size) the models that minimise Σ loss + penalty/2 · Σ coefficient²."""
    from scipy.optimize import minimize  # loaded where it is used: a site's process is the smaller

    rows, columns = x.shape
    terms, outputs = mix.shape
    edge, whole = terms * columns, np.array([0, rows])
    path = np.empty((len(penalties), edge + outputs))
    w = np.concatenate([np.zeros(edge), outcome.start])
    for k in np.argsort(-penalties, kind="stable"):  # each solution is near the one before
        # Outcomes all alike: intercepts must stay finite.
        weight = np.concatenate([np.full(edge, penalties[k]), np.full(outputs, 1e-8 * rows)])

        def lost(v: Floats, weight: Floats = weight) -> tuple[float, Floats]:
            loss, slope = judged(outcome, answers(v[None], mix, x)[0], y, whole)
            by_term = (slope @ mix.T).T @ x
            held = weight * v
            gradient = np.concatenate([by_term.ravel(), slope.sum(axis=0)]) + held
            return float(loss.sum() + 0.5 * held @ v), gradient

        found = minimize(lost, w, jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS, "ftol": 1e-10})
        w = path[k] = found.x
    return path


def answers(path: Floats, mix: NDArray[np.float32], x: Floats) -> Floats:
    """(models, rows, outputs) what models answer to rows; (models, rows) where there is one answer."""
    terms, outputs = mix.shape
    edge = terms * x.shape[1]
    told = x @ path[:, :edge].reshape(len(path), terms, -1).transpose(0, 2, 1)
    made = told @ mix.astype(np.float64) + path[:, None, edge:]
    return made[..., 0] if outputs == 1 else made
