"""What acting on a model is worth: decision curves, and what happens at a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DecisionCurve:
    """Net benefit at every threshold: of the model, of treating all, (of treating none it is 0).

    thresholds, model, everyone: (k,).
    """

    thresholds: Floats
    model: Floats
    everyone: Floats


@dataclass(frozen=True)
class Share:
    """A proportion of so many, with its 95 % Wilson interval; NaN of none."""

    value: float
    low: float
    high: float
    of: int


@dataclass(frozen=True)
class AtThreshold:
    """What happens if everybody at or above a threshold is called."""

    threshold: float
    called: Share
    sensitivity: Share
    specificity: Share
    positive_value: Share
    negative_value: Share
    net_benefit: float


def decision_curve(probability: Floats, y: Floats, thresholds: Floats | None = None) -> DecisionCurve:
    """Vickers and Elkin's decision curve of (rows,) probabilities.

    Net benefit at threshold t: true positives minus false positives times t / (1 - t), per row.
    """
    p, y = np.asarray(probability, dtype=np.float64), np.asarray(y, dtype=np.float64)
    t = np.arange(1, 51) / 100.0 if thresholds is None else np.asarray(thresholds, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    first = np.searchsorted(p[order], t, side="left")  # rows below the threshold
    events_below = np.concatenate([[0.0], np.cumsum(y[order])])[first]
    true = y.sum() - events_below
    false = (len(y) - first) - true
    odds = t / (1.0 - t)
    rate = y.mean()
    return DecisionCurve(t, (true - false * odds) / len(y), rate - (1.0 - rate) * odds)


def at_threshold(probability: Floats, y: Floats, threshold: float) -> AtThreshold:
    """Sensitivity, specificity and predictive values at one threshold."""
    called = np.asarray(probability) >= threshold
    event = np.asarray(y) > 0
    true = int((called & event).sum())
    false = int((called & ~event).sum())
    missed = int((~called & event).sum())
    spared = int((~called & ~event).sum())
    n = len(event)
    return AtThreshold(
        float(threshold),
        share(true + false, n),
        share(true, true + missed),
        share(spared, spared + false),
        share(true, true + false),
        share(spared, spared + missed),
        (true - false * threshold / (1.0 - threshold)) / n if n and threshold < 1 else float("nan"),
    )


def share(count: int, of: int, level: float = 0.95) -> Share:
    """A proportion with its Wilson interval.

    >>> found = share(20, 140)
    >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
    (0.1429, 0.0944, 0.2104)
    """
    if of == 0:
        return Share(float("nan"), float("nan"), float("nan"), 0)
    ends = binomtest(count, of).proportion_ci(level, "wilson")
    return Share(count / of, float(ends.low), float(ends.high), of)


def sensitive_threshold(probability: Floats, y: Floats, sensitivity: float = 0.9) -> float:
    """The highest threshold at which at least so many of the events are called; NaN without events."""
    events = np.sort(np.asarray(probability)[np.asarray(y) > 0])[::-1]
    if len(events) == 0:
        return float("nan")
    needed = int(np.ceil(sensitivity * len(events) - 1e-9))
    return float(events[max(needed, 1) - 1])
