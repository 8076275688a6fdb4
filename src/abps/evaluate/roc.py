"""The area under one ROC curve with an honest interval, and how many events it stands on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

Floats = NDArray[np.float64]

#: Events and non-events below which an area is not told: "cannot tell".
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
    def told(self) -> bool:
        """Whether there are enough events to say anything."""
        return min(self.events, self.others) >= FEWEST_EVENTS


def placements(scores: Floats, y: Floats) -> tuple[Floats, Floats]:
    """DeLong's placement values: of every event the share of non-events below it, and of every non-event the
    share of events above it; ties count half."""
    positive = np.asarray(y) > 0
    events, others = np.asarray(scores)[positive], np.asarray(scores)[~positive]
    together = rankdata(np.concatenate([events, others]))
    m, n = len(events), len(others)
    return (together[:m] - rankdata(events)) / n, 1.0 - (together[m:] - rankdata(others)) / m


def area(scores: Floats, y: Floats, level: float = 0.95) -> Area:
    """The AUROC of (rows,) scores with DeLong's variance, the interval made on the log odds of the area.

    On that scale the interval stays between 0 and 1. An area of 0 or 1 has no variance of its own: there
    the interval is that of the exact binomial with the smaller class as its number of trials.
    """
    y = np.asarray(y)
    events, others = int((y > 0).sum()), int((y <= 0).sum())
    if min(events, others) == 0:
        return Area(math.nan, math.nan, math.nan, events, others)
    up, down = placements(scores, y)
    value = float(up.mean())
    z = float(norm.ppf(0.5 + level / 2))
    if value in (0.0, 1.0) or min(events, others) == 1:
        away = 1.0 - ((1.0 - level) / 2) ** (1.0 / min(events, others))
        return Area(value, max(0.0, value - away), min(1.0, value + away), events, others)
    variance = float(up.var(ddof=1) / events + down.var(ddof=1) / others)
    middle, half = math.log(value / (1 - value)), z * math.sqrt(variance) / (value * (1 - value))
    return Area(value, _expit(middle - half), _expit(middle + half), events, others)


def _expit(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -700 else 0.0
