"""What a statistician fits to one table: regressions, straight and curved, and boosted trees, stacked.

Candidates are a penalised regression, the same with splines of every number, and scikit-learn's histogram
gradient boosting, each in a few strengths. Strengths, then candidates, are averaged (their linear predictors)
by how well they predict patients left out: a choice by the smallest loss on a hundred rows is often luck.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import BINARY, Outcome
from abps.data.split import folds_of, most_folds
from abps.models.families import at_risk
from abps.models.newton import MODE_STEPS, OwnRows, descend, fit_by_evidence, of_answers, ridge
from abps.models.outcomes import row_losses

Floats = NDArray[np.float64]

#: (rows, columns) to (rows, outputs) linear predictors.
Predictor = Callable[[Floats], Floats]

FOLDS: Final = 5

#: Multiples of the penalty by evidence, with their prior weights; one for tables too large to be in doubt.
MULTIPLES: Final = {1.0: 0.4, 3.0: 0.3, 10.0: 0.2, 100.0: 0.1}
MANY_ROWS: Final = 5000

#: Columns with fewer distinct values do not bend; splines need so many rows per column that does.
FEWEST_VALUES: Final = 10
ROWS_PER_BEND, FEWEST_ROWS_THAT_BEND = 25, 100

#: Numbers of trees to choose from, and the fewest rows and events that trees are tried on.
TREES: Final = (15, 40, 100)
TREES_OF_MANY: Final = (50, 100, 200, 400)
FEWEST_ROWS, FEWEST_EVENTS = 250, 40

#: What richer candidates must gain on the simplest, in nats of log-likelihood.
CAUTION: Final = 3.0

#: Parts of the final model with less weight are left out.
NEGLIGIBLE: Final = 0.02

#: Steps of the weights of a mixture.
SIMPLEX_STEPS: Final = 10


@dataclass(frozen=True, eq=False)
class TableModel:
    """A model of one table.  weights: of every candidate.  loss: the mean on rows left out (NaN: too few
    events to leave any out).  held_out: (rows, outputs) predictors by models that have not seen the row."""

    weights: dict[str, float]
    loss: float
    held_out: Floats
    predict: Predictor


@dataclass(frozen=True, eq=False)
class Candidate:
    """One kind of model.  strengths: with their prior weights.  fit: from some rows (index or mask) to a
    predictor for every strength."""

    name: str
    strengths: dict[float, float]
    fit: Callable[[NDArray[Any]], list[Predictor]]


def _regression(name: str, outcome: Outcome, x: Floats, y: Floats) -> Candidate:
    """Penalised regression for the outcome's own loss, perhaps with splines or effects that change over time;
    a strength multiplies the penalty by evidence. Parts of the rows start from the fit to all."""
    design = SplineBasis(x).of if name == "splines" else lambda new: new
    fixed = outcome.kind == "survival" and name != "over time"
    mix = (outcome.mix[:1] if fixed else outcome.mix).astype(np.float64)
    rows = OwnRows(design(x), y, of_answers(outcome), mix)
    group = np.zeros(rows.x.shape[1], dtype=np.int64)
    group[x.shape[1] :] = 1
    start = np.concatenate([np.zeros(rows.edge), outcome.start])
    whole, penalty = fit_by_evidence(rows, start, np.tile(group, len(mix)))
    strengths = MULTIPLES if len(y) < MANY_ROWS else {1.0: 1.0}

    def predict(w: Floats, new: Floats) -> Floats:
        return replace(rows, x=design(new)).answers(w)

    def fit(some: NDArray[Any]) -> list[Predictor]:
        part = replace(rows, x=rows.x[some], y=y[some])
        held = [ridge(part, strength * penalty, whole) for strength in strengths]
        models = [descend(part, whole, each, MODE_STEPS, slice(None)) for each in held]
        return [partial(predict, w) for w in models]

    return Candidate(name, strengths, fit)


def _boosting(outcome: Outcome, x: Floats, y: Floats) -> Candidate:
    """Boosted trees for the outcome's own loss; a strength is their number: fewer are the first of more."""
    numbers = TREES_OF_MANY if len(y) >= MANY_ROWS else TREES

    def fit(some: NDArray[Any]) -> list[Predictor]:
        made = _boosted(outcome, x[some], y[some], max(numbers))
        return [partial(made, k) for k in numbers]

    return Candidate("boosting", dict.fromkeys(map(float, numbers), 1.0 / len(numbers)), fit)


class SplineBasis:
    """Columns, and what cubic splines of the numbers (knots at quantiles) add to a straight line."""

    def __init__(self, x: Floats) -> None:
        from sklearn.preprocessing import SplineTransformer  # loaded where it is used: see above

        self._bends = np.array([len(np.unique(column)) >= FEWEST_VALUES for column in x.T])
        self._parts: list[tuple[Floats, Floats]] = []
        if not self._bends.any():
            return
        self._transformer = SplineTransformer(n_knots=5, knots="quantile", extrapolation="linear")
        made = self._transformer.fit_transform(x[:, self._bends])
        for column, spline in zip(x[:, self._bends].T, np.split(made, self._bends.sum(), axis=1)):
            line = np.column_stack([np.ones(len(column)), column])
            straight = np.linalg.lstsq(line, spline, rcond=None)[0]
            _, size, axes = np.linalg.svd(spline - line @ straight, full_matrices=False)
            keep = size > 1e-6 * max(size.max(initial=0.0), 1e-12)
            scale = np.sqrt(len(column)) / max(size.max(initial=0.0), 1e-12)
            self._parts.append((straight, axes[keep].T * scale))

    def of(self, x: Floats) -> Floats:
        """(rows, columns + bends) the columns and their bends, the largest of unit size."""
        if not self._parts:
            return x
        made = self._transformer.transform(x[:, self._bends])
        parts = zip(x[:, self._bends].T, np.split(made, len(self._parts), axis=1), self._parts)
        bends = [
            (spline - np.column_stack([np.ones(len(column)), column]) @ straight) @ axes
            for column, spline, (straight, axes) in parts
        ]
        return np.concatenate([x, *bends], axis=1)


def fit_table(
    x: Floats,
    y: Floats,
    patient: NDArray[np.int64] | None,
    seed: int,
    outcome: Outcome = BINARY,
    each: Callable[[Callable[[int], None], int], None] | None = None,
) -> TableModel:
    """The stacked model of a table; the penalised regression alone where fewer than two patients have the
    event (or none).  each: runs work for 0..count-1, perhaps side by side."""
    event = outcome.events(y)
    count = min(FOLDS, most_folds(patient, event))
    candidates = _candidates(x, y, outcome, event)
    if count < 2:
        only = candidates[0]
        alone = only.fit(np.arange(len(y)))[0]
        return TableModel({only.name: 1.0}, float("nan"), alone(x), alone)
    fold = folds_of(patient, event, count, seed)
    left_out = [np.empty((len(one.strengths), len(y), outcome.outputs)) for one in candidates]

    def one_fold(k: int) -> None:
        out = fold == k
        for candidate, found in zip(candidates, left_out):
            for s, predict in enumerate(candidate.fit(~out)):
                found[s, out] = predict(x[out])

    if each is None:
        for k in range(count):
            one_fold(k)
    else:
        each(one_fold, count)
    shares = [
        _likelihoods(outcome, z, y, list(one.strengths.values())) for one, z in zip(candidates, left_out)
    ]
    held_out = np.stack([np.tensordot(share, z, axes=1) for share, z in zip(shares, left_out)])
    weights = _weights(outcome, held_out, y)
    parts = [
        (weight * part, predict)
        for weight, share, one in zip(weights, shares, candidates)
        for part, predict in zip(share, one.fit(np.arange(len(y))))
        if weight * part > NEGLIGIBLE
    ]

    def predict(new: Floats) -> Floats:
        return np.asarray(sum(part * one(new) for part, one in parts) / sum(part for part, _ in parts))

    mixture = np.tensordot(weights, held_out, axes=1)
    named = {one.name: float(weight) for one, weight in zip(candidates, weights)}
    return TableModel(named, float(row_losses(outcome, mixture, y).mean()), mixture, predict)


def _candidates(x: Floats, y: Floats, outcome: Outcome, event: NDArray[np.bool_]) -> list[Candidate]:
    names = ["linear"]
    bends = sum(len(np.unique(column)) >= FEWEST_VALUES for column in x.T)
    if bends and len(y) >= max(ROWS_PER_BEND * bends, FEWEST_ROWS_THAT_BEND):
        names.append("splines")
    if outcome.kind == "survival":
        names.append("over time")
    found = [_regression(name, outcome, x, y) for name in names]
    if len(y) >= FEWEST_ROWS and min(event.sum(), (~event).sum()) >= FEWEST_EVENTS:
        found.append(_boosting(outcome, x, y))
    return found


def _weights(outcome: Outcome, held_out: Floats, y: Floats) -> Floats:
    """(candidates,) weights: the mean over all mixtures, each by its likelihood on rows left out."""
    many = len(held_out)
    if many == 1:
        return np.ones(1)
    grid = [
        np.diff([-1, *cut, SIMPLEX_STEPS + many - 1]) - 1
        for cut in itertools.combinations(range(SIMPLEX_STEPS + many - 1), many - 1)
    ]
    mixtures = np.array(grid) / SIMPLEX_STEPS
    made = np.tensordot(mixtures, held_out, axes=1)
    prior = np.exp(-CAUTION * (1.0 - mixtures[:, 0]))
    return np.asarray(_likelihoods(outcome, made, y, prior) @ mixtures)


def _likelihoods(outcome: Outcome, z: Floats, y: Floats, prior: Any) -> Floats:
    """(k,) the posterior weights of predictors z (k, rows, outputs), by their likelihood of y."""
    log = np.log(prior) - np.array([row_losses(outcome, one, y).sum() for one in z])
    likelihood = np.exp(log - log.max())
    return np.asarray(likelihood / likelihood.sum())


#: How trees are grown: shallow, slowly, with leaves that hold a few patients.
_TREES: Final = {
    "learning_rate": 0.1, "max_depth": 3, "min_samples_leaf": 10, "l2_regularization": 5.0,
    "early_stopping": False, "random_state": 0,
}  # fmt: skip


def _boosted(outcome: Outcome, x: Floats, y: Floats, trees: int) -> Callable[[int, Floats], Floats]:
    """Boosted trees: from a number of trees and rows to linear predictors (rows, outputs)."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if outcome.binary or outcome.kind == "classes":
        classes = HistGradientBoostingClassifier(max_iter=trees, **_TREES).fit(x, y)
        return lambda k, new: _of_classes(outcome, classes, _stage(classes.staged_decision_function(new), k))
    if outcome.kind == "survival":
        return _boosted_hazards(outcome, x, y, trees)
    number = HistGradientBoostingRegressor(max_iter=trees, **_TREES).fit(x, y)
    return lambda k, new: _stage(number.staged_predict(new), k)[:, None]


def _stage(stages: Any, k: int) -> Floats:
    return np.asarray(next(itertools.islice(stages, k - 1, None)))


def _of_classes(outcome: Outcome, model: Any, z: Floats) -> Floats:
    """(rows, outputs) predictors, also of classes that were not there."""
    if outcome.binary:
        return z.reshape(-1, 1)
    if z.ndim == 1 or z.shape[1] == 1:  # two of the classes
        z = np.column_stack([-z.ravel() / 2, z.ravel() / 2])
    found = np.full((len(z), outcome.outputs), z.min() - 3.0)
    found[:, model.classes_.astype(np.int64)] = z
    return found


def _boosted_hazards(outcome: Outcome, x: Floats, y: Floats, trees: int) -> Callable[[int, Floats], Floats]:
    """Boosted trees for hazards: a row for every interval that somebody reached, which is a column."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    reached, failed = at_risk(np.array(outcome.grid), y)
    row, interval = np.nonzero(reached)
    model = HistGradientBoostingClassifier(max_iter=trees, **_TREES)
    model.fit(np.column_stack([x[row], interval]), failed[row, interval] > 0)

    def predict(k: int, new: Floats) -> Floats:
        each = [np.column_stack([new, np.full(len(new), float(j))]) for j in range(outcome.outputs)]
        return np.column_stack([_stage(model.staged_decision_function(part), k).ravel() for part in each])

    return predict
