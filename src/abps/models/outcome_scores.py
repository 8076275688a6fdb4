"""Scores of every outcome but the binary one, center by center; the first of each is its main score.

Weights for censoring come from the training rows of all centers (counts that centers sum), up to the time at
which one row in twenty was still watched: later, few rows would stand for many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import Outcome
from abps.data.prepare import Rows
from abps.evaluate import survival
from abps.models import outcomes
from abps.models.metrics import Segments, auroc, labels_of, log_loss

Floats = NDArray[np.float64]

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
    groups = range(len(labels))
    return np.array(
        [score(labels.outcome, logits[i], labels[i]) if len(labels[i]) else np.nan for i in groups]
    )


def _explained(outcome: Outcome, z: NDArray[Any], y: NDArray[Any]) -> float:
    """R²: what the best constant loses, and how much of it is spared."""
    y = y.astype(np.float64)
    lost, _ = outcomes.judged(outcome, z, y)
    alone, _ = outcomes.judged(outcome, np.full(len(y), y.mean()), y)
    return float(1.0 - lost.sum() / alone.sum()) if alone.sum() > 0 else float("nan")


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
