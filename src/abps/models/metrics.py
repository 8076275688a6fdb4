"""Accuracy of many centers at once, for every outcome: ragged groups of scores.

A metric is undefined (NaN) for a center whose rows are all of one class; means skip those and say how many
were scored. Weights for censoring come from the training rows of all centers, up to the time at which one row
in twenty was still watched: later, few rows would stand for many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import BINARY, Outcome
from abps.data.prepare import Rows
from abps.evaluate import survival
from abps.models import outcomes

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Segments:
    """Values (rows,) or (rows, outputs) of k groups side by side: g owns values[start[g]:start[g+1]]."""

    values: NDArray[np.float32] | NDArray[np.float64]
    start: NDArray[np.int64]
    outcome: Outcome = BINARY

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, g: int) -> NDArray[np.float32] | Floats:
        return self.values[self.start[g] : self.start[g + 1]]

    def split(self, first: NDArray[np.int64]) -> tuple[Segments, Segments]:
        """Two parts of every group: its ``first[g]`` values, and the rest."""
        sizes = np.diff(self.start)
        within = np.arange(len(self.values)) - np.repeat(self.start[:-1], sizes)
        early = within < np.repeat(first, sizes)
        return (
            replace(self, values=self.values[early], start=np.concatenate([[0], np.cumsum(first)])),
            replace(self, values=self.values[~early], start=np.concatenate([[0], np.cumsum(sizes - first)])),
        )

    def group(self) -> NDArray[np.int64]:
        """(values,) the group that each value belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))


def labels_of(rows: Rows, owner: NDArray[np.int64] | None = None) -> Segments:
    """The labels of the rows of every owner, in the shape of a learner's answers."""
    if owner is None:
        return Segments(rows.y, rows.start, rows.outcome)
    sizes = rows.sizes[owner]
    start = np.concatenate([[0], np.cumsum(sizes)])
    index = np.arange(start[-1]) + np.repeat(rows.start[owner] - start[:-1], sizes)
    return Segments(rows.y[index], start, rows.outcome)


def _sum(values: NDArray[np.floating], group: NDArray[np.int64], n: int) -> Floats:
    return np.bincount(group, weights=values, minlength=n).astype(np.float64)


def auroc(scores: Segments, labels: Segments) -> Floats:
    """(k,) area under the ROC curve, ties as half; of other outcomes the share of pairs in right order."""
    if not labels.outcome.binary:
        return outcomes.concordance(labels.outcome, scores.values, labels.values, scores.start)
    if len(scores) == 1:  # a hospital's own process: loading the compiler would take 120 MB of it
        return np.array([_area(scores.values, labels.values > 0)])
    return outcomes.areas(scores.values, labels.values, scores.start)


def _area(score: NDArray[np.floating], event: NDArray[np.bool_]) -> float:
    """One area, to the bit as the compiled function has it."""
    high, low = np.sort(score[event]), score[~event]
    if not len(high) or not len(low):
        return float("nan")
    beaten = len(high) - np.searchsorted(high, low, "left"), len(high) - np.searchsorted(high, low, "right")
    return float(sum(int(each.sum()) for each in beaten) / (2.0 * len(high) * len(low)))


def auprc(scores: Segments, labels: Segments) -> Floats:
    """(k,) average precision: mean precision at the positives, thresholds at distinct scores."""
    group, n = scores.group(), len(scores)
    order = np.lexsort((-scores.values, group))
    value, owner, y = scores.values[order], group[order], labels.values[order].astype(np.float64)
    last = np.ones(len(value), dtype=bool)
    last[:-1] = (value[1:] != value[:-1]) | (owner[1:] != owner[:-1])
    hits = np.cumsum(y)
    before = np.concatenate([[0.0], hits])[scores.start[:-1]]
    hits = hits - before[owner]
    position = np.arange(len(value)) - scores.start[owner] + 1.0
    # Precision at a threshold counts the whole run of ties that it lets in.
    end = np.flatnonzero(last)
    run = np.cumsum(last) - last
    precision = (hits[end] / position[end])[run] if len(value) else hits
    positives = _sum(y, owner, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        area = _sum(precision * y, owner, n) / positives
    area[(positives == 0) | (positives == np.diff(scores.start))] = np.nan
    return area


def brier(logits: Segments, labels: Segments) -> Floats:
    """(k,) mean squared error of the predicted probability; NaN for an empty group."""
    with np.errstate(over="ignore"):
        chance = (1.0 / (1.0 + np.exp(-logits.values))).astype(np.float32)
    error = (chance.astype(np.float64) - labels.values) ** 2
    with np.errstate(invalid="ignore"):
        return _sum(error, logits.group(), len(logits)) / np.diff(logits.start)


def log_loss(logits: Segments, labels: Segments) -> Floats:
    """(k,) mean binary cross-entropy in nats, or mean loss of another outcome; NaN for an empty group."""
    loss = outcomes.row_losses(labels.outcome, logits.values, labels.values)
    with np.errstate(invalid="ignore"):
        return _sum(loss, logits.group(), len(logits)) / np.diff(logits.start)


def mean_over_centers(values: NDArray[np.float64]) -> tuple[float, int]:
    """The plain mean over the centers for which the metric is defined, and how many those are."""
    scored = np.isfinite(values)
    return (float(values[scored].mean()) if scored.any() else float("nan")), int(scored.sum())


# ---------------------------------------------------------------- every outcome

#: The share of rows still watched, below which times are not scored.
STILL_WATCHED = 0.05


def main_score(logits: Segments, labels: Segments) -> Floats:
    """(centers,) the main score: AUROC, C-index, macro AUROC, or the share of variation that is explained."""
    if labels.outcome.kind == "continuous":
        return _each(logits, labels, _explained)
    return auroc(logits, labels)


def measures(logits: Segments, rows: Rows, train: Rows) -> dict[str, Floats]:
    """(centers,) every score of an outcome by its name, the main one first."""
    labels, outcome = labels_of(rows), rows.outcome
    found = {outcome.measure: main_score(logits, labels)}
    if outcome.kind == "classes":
        found["log-loss"] = log_loss(logits, labels)
        found["accuracy"] = _each(logits, labels, _hits)
    elif outcome.kind == "continuous":
        found["RMSE"] = _each(logits, labels, _deviation)
        found["calibration slope"] = _each(logits, labels, _slope)
    elif outcome.kind == "survival":
        found |= _survival(logits, labels, train)
    return found


def _each(
    logits: Segments, labels: Segments, score: Callable[[Outcome, NDArray[Any], NDArray[Any]], float]
) -> Floats:
    """(centers,) a score of each center's rows; NaN without rows."""
    parts = ((logits[i], labels[i]) for i in range(len(labels)))
    return np.array([score(labels.outcome, z, y) if len(y) else np.nan for z, y in parts])


def _explained(outcome: Outcome, z: NDArray[Any], y: NDArray[Any]) -> float:
    """R²: what the best constant loses, and how much of it is spared."""
    constant = np.full(len(y), y.mean(dtype=np.float64))
    lost, alone = (float(outcomes.row_losses(outcome, answer, y).sum()) for answer in (z, constant))
    return 1.0 - lost / alone if alone > 0 else float("nan")


def _deviation(outcome: Outcome, z: NDArray[Any], y: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean((z.astype(np.float64) - y) ** 2)) * outcome.scale)


def _slope(outcome: Outcome, z: NDArray[Any], y: NDArray[Any]) -> float:
    """By how much outcomes rise where predictions rise by one: 1 is right, less is too bold."""
    centred = z.astype(np.float64) - z.mean(dtype=np.float64)
    spread = float(centred @ centred)
    return float(centred @ y) / spread if spread > 0 and len(y) > 2 else float("nan")


def _hits(outcome: Outcome, z: NDArray[Any], y: NDArray[Any]) -> float:
    return float(np.mean(np.argmax(z, axis=1) == y))


def _survival(logits: Segments, labels: Segments, train: Rows) -> dict[str, Floats]:
    outcome, n = labels.outcome, len(labels)
    time, event = np.abs(train.y).astype(np.float64), ~np.signbit(train.y)
    watched = survival.censoring(time, event)
    known = watched.value >= STILL_WATCHED
    last = float(watched.time[known][-1]) if known.any() else 0.0
    middle = float(np.median(time[event & (time <= last)])) if (event & (time <= last)).any() else last
    grid = np.array([t for t in outcome.grid if t <= last])
    weighted, area, error = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    for i in range(n):
        if not len(labels[i]):
            continue
        t, e = np.abs(labels[i]).astype(np.float64), ~np.signbit(labels[i])
        risk = outcomes.risk(outcome, logits[i])
        weighted[i] = survival.weighted_concordance(t, e, risk, watched, last)
        area[i] = survival.auroc_at(t, e & (t <= last), risk, middle, watched)
        if len(grid):
            alive = outcomes.foretold(outcome, logits[i])[:, : len(grid)]
            error[i] = survival.integrated(survival.brier(t, e, alive, grid, watched), grid)
    return {"C-index (IPCW)": weighted, f"AUROC at {middle:.4g}": area, "Brier (IPCW)": error}
