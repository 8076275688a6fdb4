"""Accuracy of many centers at once: ragged groups of scores, one pass of sorting.

A metric is undefined (NaN) for a center whose rows are all of one class; means skip those and say how
many were scored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import BINARY, Outcome
from abps.data.prepare import Rows
from abps.models import outcomes
from abps.models.native import network as compiled


@dataclass(frozen=True, eq=False)
class Segments:
    """Values of k groups side by side: group g owns values[start[g]:start[g+1]].

    values: (rows,), or (rows, outputs) answers where an outcome asks for several.
    outcome: of labels, what they are.
    """

    values: NDArray[np.float32] | NDArray[np.float64]
    start: NDArray[np.int64]
    outcome: Outcome = BINARY

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, g: int) -> NDArray[np.float32] | NDArray[np.float64]:
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


def _sum(values: NDArray[np.floating], group: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    return np.bincount(group, weights=values, minlength=n).astype(np.float64)


def auroc(scores: Segments, labels: Segments) -> NDArray[np.float64]:
    """(k,) area under the ROC curve; tied scores count half (midranks).

    Of other outcomes the share of pairs in the right order (:func:`abps.models.outcomes.concordance`).
    """
    if not labels.outcome.binary:
        return outcomes.concordance(labels.outcome, scores.values, labels.values, scores.start)
    if len(scores) == 1:  # a hospital's own process: loading the compiler would take 120 MB of it
        return np.array([_area(scores.values, labels.values > 0)])
    return compiled.areas(scores.values, labels.values, scores.start)


def _area(score: NDArray[np.floating], event: NDArray[np.bool_]) -> float:
    """One area, to the bit as the compiled function has it."""
    high, low = np.sort(score[event]), score[~event]
    if not len(high) or not len(low):
        return float("nan")
    beaten = len(high) - np.searchsorted(high, low, "left"), len(high) - np.searchsorted(high, low, "right")
    return float(sum(int(each.sum()) for each in beaten) / (2.0 * len(high) * len(low)))


def auprc(scores: Segments, labels: Segments) -> NDArray[np.float64]:
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


def probabilities(logits: Segments) -> Segments:
    """Logits to probabilities."""
    with np.errstate(over="ignore"):
        return Segments((1.0 / (1.0 + np.exp(-logits.values))).astype(np.float32), logits.start)


def brier(logits: Segments, labels: Segments) -> NDArray[np.float64]:
    """(k,) mean squared error of the predicted probability; NaN for an empty group."""
    error = (probabilities(logits).values.astype(np.float64) - labels.values) ** 2
    with np.errstate(invalid="ignore"):
        return _sum(error, logits.group(), len(logits)) / np.diff(logits.start)


def row_losses(logits: Segments, labels: Segments) -> Segments:
    """Binary cross-entropy of every row, in nats; of other outcomes their own loss."""
    if not labels.outcome.binary:
        return Segments(outcomes.judged(labels.outcome, logits.values, labels.values)[0], logits.start)
    z = logits.values.astype(np.float64)
    loss = np.maximum(z, 0) - z * labels.values + np.log1p(np.exp(-np.abs(z)))
    return Segments(loss, logits.start)


def gains(rows: Rows, before: Segments, after: Segments) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(k,) what a change of models takes off the loss on every center's rows, and its standard error.

    before, after: the models' logits on the rows.
    """
    labels = labels_of(rows)
    gain = row_losses(before, labels).values - row_losses(after, labels).values
    owner = np.repeat(np.arange(len(rows.sizes)), rows.sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(owner, weights=gain, minlength=len(rows.sizes)) / rows.sizes
        square = np.bincount(owner, weights=gain**2, minlength=len(rows.sizes)) / rows.sizes
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0) / (rows.sizes - 1))


def log_loss(logits: Segments, labels: Segments) -> NDArray[np.float64]:
    """(k,) mean binary cross-entropy in nats, or mean loss of another outcome; NaN for an empty group."""
    loss = row_losses(logits, labels).values
    with np.errstate(invalid="ignore"):
        return _sum(loss, logits.group(), len(logits)) / np.diff(logits.start)


def mean_over_centers(values: NDArray[np.float64]) -> tuple[float, int]:
    """The plain mean over the centers for which the metric is defined, and how many those are."""
    scored = np.isfinite(values)
    return (float(values[scored].mean()) if scored.any() else float("nan")), int(scored.sum())
