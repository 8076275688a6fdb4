"""The sums that a federated regression is made of: every center's part of gradient and curvature.

Their totals are those of the pooled rows, so Newton's method on them gives the pooled fit, and no row leaves
a center (as in DataSHIELD and vantage6).
"""

import numpy as np
from numpy.typing import NDArray

from abps.data.prepare import Rows
from abps.models.families import log_loss
from abps.models.hierarchical import evidence_penalties

Floats = NDArray[np.float64]


def message_size(width: int) -> int:
    """Numbers in one center's message: half of a symmetric matrix, a gradient, a loss and a number of rows.

    >>> message_size(3)
    11
    """
    return (width * (width + 1)) // 2 + width + 2


def message(train: Rows, w: Floats) -> NDArray[np.float32]:
    """(centers, numbers) what every center sends for the coefficients w (1 + columns,): the upper half of
    X'WX, X'(p - y), the sum of losses, and rows."""
    width = len(w)
    half = np.triu_indices(width)
    found = np.empty((len(train.sizes), message_size(width)), dtype=np.float32)
    for i, (low, high) in enumerate(zip(train.start[:-1], train.start[1:])):
        design = with_intercept(train.x[low:high])
        y, z = train.y[low:high].astype(np.float64), design @ w
        chance = 0.5 * (1.0 + np.tanh(0.5 * z))
        curvature = (design * (chance * (1.0 - chance))[:, None]).T @ design
        found[i] = np.concatenate([curvature[half], design.T @ (chance - y), [log_loss(z, y).sum(), len(y)]])
    return found


def with_intercept(x: NDArray[np.float32]) -> Floats:
    """(rows, 1 + columns) with a one in front."""
    return np.concatenate([np.ones((len(x), 1)), x.astype(np.float64)], axis=1)


def newton_step(total: Floats, w: Floats, penalty: float) -> tuple[Floats, float, float]:
    """From the total of all messages at w (1 + columns,): the next coefficients, the penalty that maximises
    the evidence there, and by how much the step should lower the loss. The intercept is not penalised."""
    width = len(w)
    half = np.triu_indices(width)
    curvature = np.zeros((width, width))
    curvature[half] = total[: len(half[0])]
    curvature = curvature + np.triu(curvature, 1).T
    weight = np.full(width, penalty)
    weight[0] = 1e-6 * max(total[-1], 1.0)
    gradient = total[len(half[0]) : len(half[0]) + width]
    group = np.r_[-1, np.zeros(width - 1, dtype=np.int64)]
    weight, aim = evidence_penalties(curvature, curvature @ w - gradient, weight, group)
    step = aim - w
    gain = 0.5 * float(step @ (curvature @ step) + (weight * step**2).sum())
    return aim, float(weight[-1]), gain
