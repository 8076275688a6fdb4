"""The area under one ROC curve with an honest interval, and how many events it stands on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from abps.evaluate.paired import ScoredRows, auroc_values, paired_cells

Floats = NDArray[np.float64]

#: Events and non-events below which no area is shown.
FEWEST_EVENTS = 5


@dataclass(frozen=True)
class Area:
    """An AUROC with its 95 % interval, beside the events and non-events that it stands on.

    value, low and high are NaN where one of the classes is empty.
    """

    value: float
    low: float
    high: float
    events: int
    others: int

    @property
    def enough(self) -> bool:
        """Whether there are enough events to say anything."""
        return min(self.events, self.others) >= FEWEST_EVENTS


def area(scores: Floats, y: Floats, level: float = 0.95, fold: NDArray[np.int64] | None = None) -> Area:
    """The AUROC of (rows,) scores with DeLong's variance, the interval made on the log odds of the area.

    fold: (rows,) rows with one number were scored by one model; only their pairs count. Default: all were.
    On the log odds the interval stays between 0 and 1. An area of 0 or 1 has no variance of its own: there
    the interval is that of the exact binomial with the smaller class as its number of trials.
    """
    positive = (np.asarray(y) > 0).astype(np.float64)
    events, others = int(positive.sum()), int((1.0 - positive).sum())
    number = np.arange(len(positive))
    run = np.zeros(len(positive), np.int64) if fold is None else np.asarray(fold, np.int64)
    rows = ScoredRows(number, number, np.zeros_like(run), run, positive, 1, int(run.max(initial=0)) + 1)
    values = auroc_values(rows, {"model": np.asarray(scores, dtype=np.float64), "": np.zeros(len(run))})
    values.value[""][:] = 0.0  # against nothing: the cells are the level itself
    cells = paired_cells(rows, values, "model", "")
    value = float(cells.gain[0])
    if math.isnan(value):
        return Area(math.nan, math.nan, math.nan, events, others)
    if value in (0.0, 1.0) or min(events, others) == 1:
        away = 1.0 - ((1.0 - level) / 2) ** (1.0 / min(events, others))
        return Area(value, max(0.0, value - away), min(1.0, value + away), events, others)
    z, variance = float(ndtri(0.5 + level / 2)), float(cells.variance[0])
    middle, half = math.log(value / (1 - value)), z * math.sqrt(variance) / (value * (1 - value))
    return Area(value, _expit(middle - half), _expit(middle + half), events, others)


def _expit(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -700 else 0.0
