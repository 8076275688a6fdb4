"""How steep a linear model's loss can get: what keeps a step down from being too long."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.jit import compiled

#: Rounds of the power iteration; the tests compare with the singular value.
POWERS = 40


@compiled
def curvatures(x, start, found):
    """(n,) the largest curvature of each center's mean logistic loss: a quarter of the largest eigenvalue of
    its second moments, the intercept as an input of ones; 0 for a center without rows."""
    d = x.shape[1]
    for i in range(len(start) - 1):
        mine = x[start[i] : start[i + 1]]
        rows = len(mine)
        if rows == 0:
            found[i] = 0.0
            continue
        way, level = np.full(d, np.float32(1.0 / np.sqrt(d + 1.0))), np.float32(1.0 / np.sqrt(d + 1.0))
        size = 0.0
        for _ in range(POWERS):
            seen = np.dot(mine, way) + level
            way = np.dot(seen, mine)
            level = seen.sum()
            size = np.sqrt(np.float64((way * way).sum()) + np.float64(level) ** 2)
            if size == 0.0:
                break
            way = way / np.float32(size)
            level = np.float32(level / size)
        found[i] = 0.25 * size / rows


def largest_curvature(x: NDArray[np.float32], start: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) the largest curvature of each center's mean logistic loss; center i owns start[i]:start[i+1]."""
    found = np.zeros(len(start) - 1)
    curvatures(np.ascontiguousarray(x), start, found)
    return found
