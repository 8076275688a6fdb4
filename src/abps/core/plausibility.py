"""Whether what a peer sent can be a model at all, judged by one's own.

Centers start together and train alike, so their models are about equally far from the common start. A message
that is many times farther was not trained; one that is not finite is none. Neither is let in, whatever the
method.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: How many times farther from the common start than the own model a peer's may be. Among the built-in centers
#: the largest ratio of two honest ones is 3.4, in the first round; a center with forty times the rows takes
#: forty times the steps.
FARTHEST = 30.0


def distances(models: NDArray[np.float32], start: NDArray[np.float32]) -> NDArray[np.float64]:
    """(k,) how far models (k, columns) are from the common start (P,); not finite where a model is none.

    Columns beyond the start's begin at zero.
    """
    known = min(models.shape[1], len(start))
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.zeros(len(models))
        for k, model in enumerate(models):  # row by row: no copy of all models at once
            step = model[:known] - start[:known]
            total[k] = np.dot(step, step) + np.dot(model[known:], model[known:])
        return np.sqrt(total)


def plausible(
    theirs: NDArray[np.float64], own: NDArray[np.float64], farthest: float = FARTHEST
) -> NDArray[np.bool_]:
    """(k,) whether models are finite and not too far out, by their distances and those of the own models."""
    with np.errstate(invalid="ignore"):
        return np.isfinite(theirs) & (theirs <= farthest * own + 1e-12)
