"""What follows from an outcome for learning: the loss of a row, its slope, who is at risk, what is foretold.

``judged`` is compiled; :mod:`abps.models.modules` has the same losses for automatic differentiation.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import Outcome
from abps.models.native import row_losses as native
from abps.models.native.network import areas

Floats = NDArray[np.float64]

_CODES: Final = {
    "binary": native.LOGISTIC,
    "survival": native.HAZARD,
    "classes": native.SOFTMAX,
    "continuous": native.SQUARED,
}


def shaped(z: NDArray[Any]) -> NDArray[Any]:
    """(rows, outputs) of answers, which are (rows,) where there is one."""
    return z[:, None] if z.ndim == 1 else z


def judged(outcome: Outcome, z: NDArray[Any], y: NDArray[Any]) -> tuple[Floats, Floats]:
    """(rows,) losses and (rows, outputs) their slopes."""
    answers = np.ascontiguousarray(shaped(z), dtype=np.float64)
    loss, slope = np.zeros(len(answers)), np.zeros(answers.shape)
    native.judge(_CODES[outcome.kind], np.array(outcome.grid, dtype=np.float32), answers, y, slope, loss)
    return loss, slope


def foretold(outcome: Outcome, z: NDArray[Any]) -> Floats:
    """What answers say in the outcome's own terms: (rows, classes) chances, (rows, grid) chances to live
    longer than each time of the grid, or (rows,) numbers in their own unit."""
    answers = shaped(z).astype(np.float64)
    if outcome.kind == "classes":
        weight = np.exp(answers - answers.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))
    if outcome.kind == "survival":
        with np.errstate(over="ignore"):
            return np.asarray(np.cumprod(1.0 / (1.0 + np.exp(answers)), axis=1))
    if outcome.kind == "continuous":
        return answers[:, 0] * outcome.scale + outcome.level
    return answers[:, 0]


def risk(outcome: Outcome, z: NDArray[Any]) -> Floats:
    """(rows,) who fails earlier, or has the larger number: of hazards, the time that is not lived of the
    grid's span."""
    predicted = foretold(outcome, z)
    if outcome.kind != "survival":
        return predicted
    grid = np.array(outcome.grid)
    whole = np.concatenate([np.ones((len(predicted), 1)), predicted[:, :-1]], axis=1)
    # Lived in an interval: about the mean of its two ends.
    return -np.asarray((0.5 * (whole + predicted)) @ np.diff(grid, prepend=0.0))


def concordance(outcome: Outcome, z: NDArray[Any], y: NDArray[Any], start: NDArray[np.int64]) -> Floats:
    """(groups,) the share of pairs in the right order, 0.5 by chance: AUROC, its mean over the classes that a
    group has (one against the rest), Harrell's C, or the same for numbers. NaN where it is not defined."""
    if outcome.kind == "classes":
        chances = foretold(outcome, z)
        each = [
            areas(np.ascontiguousarray(chances[:, k]), (y == k).astype(np.float32), start)
            for k in range(len(outcome.names))
        ]
        stacked = np.stack(each)
        known = np.isfinite(stacked)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(known, stacked, 0.0).sum(axis=0) / known.sum(axis=0))
    if outcome.kind == "survival":
        time, event = np.abs(y).astype(np.float64), ~np.signbit(y)
    else:
        time, event = -y.astype(np.float64), np.ones(len(y), dtype=bool)
    return np.asarray(native.concordances(time, event, risk(outcome, z), start))


def residuals(outcome: Outcome, z: NDArray[Any], y: NDArray[Any]) -> tuple[Floats, Floats]:
    """(rows, outputs) what a model leaves over of one center's rows, and how sure each answer is (the loss's
    curvature); both zero for intervals that a row did not reach."""
    _, slope = judged(outcome, z, y)
    answers = shaped(z).astype(np.float64)
    if outcome.kind == "survival":
        chance = 0.5 * (1.0 + np.tanh(0.5 * answers))
        weight = np.where(slope != 0, chance * (1.0 - chance), 0.0)
    elif outcome.kind == "classes":
        chance = foretold(outcome, answers)
        weight = chance * (1.0 - chance)
    else:
        weight = np.ones_like(slope)
    return -slope, weight
