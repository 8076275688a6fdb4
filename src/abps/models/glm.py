"""The sums that a federated regression is made of: every center's part of gradient and curvature.

Their totals over centers are those of the pooled rows, so Newton's method on them gives the pooled fit, and
no row leaves a center. (DataSHIELD and vantage6 fit generalised linear models in this way.)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from abps.data.prepare import Rows
from abps.models.penalised import row_losses

Floats = NDArray[np.float64]


def message_size(width: int) -> int:
    """Numbers in one center's message: half of a symmetric matrix, a gradient and two losses.

    >>> message_size(3)
    13
    """
    return (width * (width + 1)) // 2 + width + 4


def width_of(numbers: int) -> int:
    """The number of coefficients that a message of so many numbers is about.

    >>> width_of(message_size(65))
    65
    """
    return (math.isqrt(8 * numbers - 23) - 3) // 2  # 8 numbers - 23 = (2 width + 3)²


def message(train: Rows, validation: Rows, w: Floats) -> NDArray[np.float32]:
    """(centers, numbers) what every center sends for the coefficients w (1 + columns,).

    The upper half of X'WX, X'(p - y), the sum of training losses and rows, and those of validation.
    """
    width = len(w)
    half = np.triu_indices(width)
    found = np.empty((len(train.sizes), message_size(width)), dtype=np.float32)
    for i, (low, high) in enumerate(zip(train.start[:-1], train.start[1:])):
        design = with_intercept(train.x[low:high])
        y, z = train.y[low:high].astype(np.float64), design @ w
        chance = 0.5 * (1.0 + np.tanh(0.5 * z))
        curvature = (design * (chance * (1.0 - chance))[:, None]).T @ design
        part = slice(validation.start[i], validation.start[i + 1])
        judged = row_losses(with_intercept(validation.x[part]) @ w, validation.y[part].astype(np.float64))
        tail = [row_losses(z, y).sum(), len(y), judged.sum(), len(judged)]
        found[i] = np.concatenate([curvature[half], design.T @ (chance - y), tail])
    return found


def with_intercept(x: NDArray[np.float32]) -> Floats:
    """(rows, 1 + columns) with a one in front."""
    return np.concatenate([np.ones((len(x), 1)), x.astype(np.float64)], axis=1)


def newton_step(total: Floats, w: Floats, penalty: float) -> Floats:
    """(1 + columns,) the next coefficients from the total of all messages; the intercept is not penalised."""
    width = len(w)
    half = np.triu_indices(width)
    curvature = np.zeros((width, width))
    curvature[half] = total[: len(half[0])]
    curvature = curvature + np.triu(curvature, 1).T
    weight = np.full(width, penalty)
    weight[0] = 1e-6 * max(total[-3], 1.0)
    gradient = total[len(half[0]) : len(half[0]) + width] + weight * w
    curvature[np.diag_indices(width)] += weight
    from scipy.linalg import cho_factor, cho_solve  # loaded where it is used: a site's process is the smaller

    return np.asarray(w - cho_solve(cho_factor(curvature), gradient))
