"""What a statistician would fit to one table: the best of three models, chosen by cross-validation.

Ridge regression, an additive model (a broken line for every number), and boosted trees. Each has one dial
(a penalty, or the number of trees), set to the smallest cross-entropy on patients who were left out. A richer
model takes the place of a simpler one if it is better there by more than the standard error of the
difference: on a hundred rows the smallest loss alone is often luck. The winner is fitted to all rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import BINARY, Outcome
from abps.data.split import folds_of, most_folds
from abps.models.boosting import boost, boost_any
from abps.models.outcomes import judged, residuals
from abps.models.penalised import answers, penalised_path
from abps.models.ridge import losses, ridge_path
from abps.models.spline_regression import BENDS, spline_basis

Floats = NDArray[np.float64]

#: (rows, columns) to (dials, rows) logits, or (dials, rows, outputs) answers.
Predictor = Callable[[Floats], Floats]

PENALTIES: Final = tuple(float(v) for v in 10.0 ** np.arange(0.0, 3.51, 0.5))

#: Numbers of trees to choose from; those beyond the fourth only where there are many rows.
TREES: Final = (10, 25, 50, 100, 200, 400)
MANY_ROWS: Final = 5000

FOLDS: Final = 5


def linear(x: Floats, y: Floats, dials: tuple[float, ...], bends: tuple[float, ...]) -> Predictor:
    """Ridge regressions with these penalties, on columns that may bend."""
    basis = spline_basis(x, bends)
    path = ridge_path(basis.of(x), y, np.array(dials))
    return lambda new: path[:, :1] + path[:, 1:] @ basis.of(new).T


def ridge(x: Floats, y: Floats, dials: tuple[float, ...]) -> Predictor:
    """Ridge regression; a dial is a penalty."""
    return linear(x, y, dials, ())


def gam(x: Floats, y: Floats, dials: tuple[float, ...]) -> Predictor:
    """The additive model; a dial is a penalty."""
    return linear(x, y, dials, BENDS)


def boosting(x: Floats, y: Floats, dials: tuple[float, ...]) -> Predictor:
    """Boosted trees; a dial is their number, in rising order."""
    forest = boost(x, y, int(max(dials)))
    return lambda new: forest.logits(new, np.array(dials, dtype=np.int64))


Family = Callable[[Floats, Floats, tuple[float, ...]], Predictor]

#: From the simplest to the richest.
FAMILIES: Final[dict[str, Family]] = {"ridge": ridge, "gam": gam, "boosting": boosting}


def dials_of(family: str, rows: int) -> tuple[float, ...]:
    """The values of a family's dial that are tried on a table of so many rows."""
    if family != "boosting":
        return PENALTIES
    return TREES if rows >= MANY_ROWS else TREES[:4]


@dataclass(frozen=True)
class Choice:
    """What was chosen: a family, its dial, and the mean loss that it had on patients left out."""

    family: str
    dial: float
    loss: float


def choose(
    x: Floats,
    y: Floats,
    patient: NDArray[np.int64] | None,
    seed: int,
    families: tuple[str, ...] | None = None,
    each: Callable[[Callable[[int], None], int], None] | None = None,
    outcome: Outcome = BINARY,
) -> Choice:
    """The best of some families on a table, by cross-validation.

    each: runs work for 0..count-1, perhaps side by side.  Where events (or patients without one) are fewer
    than two there is nothing to choose by: the regression with the strongest penalty.
    """
    event = outcome.events(y)
    count = min(FOLDS, most_folds(patient, event))
    if count < 2:
        return Choice("ridge", PENALTIES[-1], float("nan"))
    families = families or families_of(outcome)
    fold = folds_of(patient, event, count, seed)
    left_out = {name: np.empty((len(dials_of(name, len(y))), len(y), outcome.outputs)) for name in families}

    def one(k: int) -> None:
        out = fold == k
        for name in families:
            dials = dials_of(name, len(y))
            found = family_of(name, outcome)(x[~out], y[~out], dials)(x[out])
            left_out[name][:, out] = found.reshape(len(dials), -1, outcome.outputs)

    if each is None:
        for k in range(count):
            one(k)
    else:
        each(one, count)
    best: Choice | None = None
    held = np.empty(0)
    for name in families:
        loss = _losses(outcome, left_out[name], y)
        k = int(np.argmin(loss.mean(axis=1)))
        gain = np.zeros(1) if best is None else held - loss[k]
        if best is None or gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)):
            best, held = Choice(name, dials_of(name, len(y))[k], float(loss[k].mean())), loss[k]
    assert best is not None
    return best


def fit(choice: Choice, x: Floats, y: Floats, outcome: Outcome = BINARY) -> Predictor:
    """The chosen model, fitted to all rows."""
    return family_of(choice.family, outcome)(x, y, (choice.dial,))


def families_of(outcome: Outcome) -> tuple[str, ...]:
    """What is tried for an outcome, from the simplest to the richest."""
    if outcome.binary:
        return tuple(FAMILIES)
    return ("ridge", "gam", "over time", "boosting") if outcome.way == "hazard" else tuple(FAMILIES)


def family_of(name: str, outcome: Outcome) -> Family:
    """A family of models for an outcome."""
    if outcome.binary:
        return FAMILIES[name]
    if name == "boosting":
        return functools.partial(_boosted_hazards if outcome.way == "hazard" else _boosted, outcome)
    mix = outcome.mix if name == "over time" or outcome.way != "hazard" else outcome.mix[:1]
    bends = BENDS if name == "gam" else ()

    def penalised(x: Floats, y: Floats, dials: tuple[float, ...]) -> Predictor:
        basis = spline_basis(x, bends)
        path = penalised_path(outcome, mix, basis.of(x), y, np.array(dials))
        return lambda new: answers(path, mix, basis.of(new))

    return penalised


def _boosted(outcome: Outcome, x: Floats, y: Floats, dials: tuple[float, ...]) -> Predictor:
    """Boosted trees for an outcome's own loss, a forest for each answer; a dial is their number."""
    base = np.zeros(outcome.outputs)
    if outcome.kind == "classes":
        base = np.log(np.bincount(y.astype(np.int64), minlength=outcome.outputs) + 0.5)
    elif outcome.kind == "continuous":
        base[0] = y.mean() if outcome.way == "squared" else np.quantile(y, outcome.quantile)
    forests = boost_any(x, lambda z: residuals(outcome, z, y), base, int(max(dials)))
    at = np.array(dials, dtype=np.int64)
    return lambda new: np.stack([forest.logits(new, at) for forest in forests], axis=-1)


def _boosted_hazards(outcome: Outcome, x: Floats, y: Floats, dials: tuple[float, ...]) -> Predictor:
    """Boosted trees for hazards: a row for every interval that somebody reached, which is a column."""
    left, reached = residuals(outcome, np.zeros((len(y), outcome.outputs)), y)
    row, interval = np.nonzero(reached)
    failed = (left[row, interval] > 0).astype(np.float64)
    forest = boost(np.column_stack([x[row], interval]), failed, int(max(dials)))
    at = np.array(dials, dtype=np.int64)

    def predict(new: Floats) -> Floats:
        each = [np.column_stack([new, np.full(len(new), float(k))]) for k in range(outcome.outputs)]
        return np.stack([forest.logits(part, at) for part in each], axis=-1)

    return predict


def _losses(outcome: Outcome, z: Floats, y: Floats) -> Floats:
    """(dials, rows) losses of answers (dials, rows, outputs)."""
    if outcome.binary:
        return losses(z[..., 0], y)
    whole = np.array([0, len(y)])
    return np.stack([judged(outcome, each, y, whole)[0] for each in z])
