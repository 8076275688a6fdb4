"""Ridge logistic regression, exactly: Newton's method on a convex loss, for a whole path of penalties."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: A Newton step that lowers the loss by less than this share of it ends the search.
TOLERANCE = 1e-9

MOST_STEPS = 50


def losses(logits: Floats, y: Floats) -> Floats:
    """Binary cross-entropy of every row, in nats."""
    return np.maximum(logits, 0.0) - logits * y + np.log1p(np.exp(-np.abs(logits)))


def ridge_path(x: Floats, y: Floats, penalties: NDArray[np.float64], start: Floats | None = None) -> Floats:
    """(penalties, p + 1) intercept and coefficients that minimise Σ loss + penalty/2 · Σ coefficient².

    x: (rows, p).  y: (rows,) 0 and 1.  start: (penalties, p + 1) to begin from, if something near is known.
    Where there are more columns than rows the search takes place in the space that the rows span, which
    holds the solution.
    """
    rows, p = x.shape
    if p > rows:
        from scipy.linalg import qr  # loaded where it is used: a site's process is the smaller

        basis, lower = qr(x.T, mode="economic")  # x = lower' · basis'
        path = ridge_path(lower.T, y, penalties)
        return np.concatenate([path[:, :1], path[:, 1:] @ basis.T], axis=1)
    design = np.concatenate([np.ones((rows, 1)), x], axis=1)
    path = np.empty((len(penalties), p + 1))
    rate = np.clip(y.mean(), 0.5 / len(y), 1 - 0.5 / len(y))
    w = np.zeros(p + 1)
    w[0] = np.log(rate / (1 - rate))
    # From the strongest penalty down: each solution is near the one before.
    for k in np.argsort(-penalties, kind="stable"):
        w = path[k] = newton(design, y, float(penalties[k]), w if start is None else start[k])
    return path


def newton(design: Floats, y: Floats, penalty: float, w: Floats) -> Floats:
    """(p + 1,) the solution for one penalty, from a start; the first column is not penalised."""
    from scipy.linalg import cho_factor, cho_solve  # loaded where it is used: a site's process is the smaller

    weight = np.full(len(w), penalty)
    weight[0] = 1e-8 * len(y)  # outcomes all alike: the intercept must stay finite

    def loss(v: Floats) -> tuple[float, Floats]:
        z = design @ v
        return float(losses(z, y).sum() + 0.5 * (weight * v**2).sum()), z

    now, z = loss(w)
    for _ in range(MOST_STEPS):
        chance = 0.5 * (1.0 + np.tanh(0.5 * z))
        gradient = design.T @ (chance - y) + weight * w
        root = np.sqrt(np.maximum(chance * (1.0 - chance), 1e-12))[:, None] * design
        curvature = root.T @ root
        curvature[np.diag_indices(len(w))] += weight
        step = cho_solve(cho_factor(curvature, check_finite=False), gradient, check_finite=False)
        length = 1.0
        new, moved = loss(w - step)
        while new > now and length > 1e-6:
            length /= 2
            new, moved = loss(w - length * step)
        if not new < now:
            break
        w, z, gained = w - length * step, moved, now - new
        now = new
        if gained <= TOLERANCE * abs(now):
            break
    return w
