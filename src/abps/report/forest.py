"""The forest plot: every hospital's gain with its interval, best first, the average, and a further hospital.

The template draws rows of a table with a small picture each: positions are per cent of the cell's width, so
that text keeps its size on a phone and the drawing takes what is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from abps.evaluate.calibration import Interval
from abps.report.analysis import Comparison
from abps.report.hospitals import HospitalStory

#: Rows of the short plot: the best and the worst.
BEST, WORST = 10, 5


@dataclass(frozen=True)
class ForestScale:
    """Gains as per cent of a cell's width."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Per cent from the left, kept inside the plot."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(3 + 94 * share, 2)

    def holds(self, value: float) -> bool:
        """Whether a value lies inside the plot."""
        return self.low <= value <= self.high

    @property
    def shown(self) -> tuple[float, ...]:
        """Ticks that have a number."""
        zero = self.ticks.index(0.0) if 0.0 in self.ticks else 0
        return self.ticks if len(self.ticks) <= 4 else self.ticks[zero % 2 :: 2]


@dataclass(frozen=True, eq=False)
class ForestPlot:
    """All hospitals with at least five events, from the largest estimated gain to the largest loss.

    hidden: how many others there are.  average: of these hospitals.
    """

    scale: ForestScale
    ordered: tuple[HospitalStory, ...]
    hidden: int
    average: Interval

    @property
    def between(self) -> int:
        """How many rows the short plot leaves out."""
        few = len(self.ordered) > BEST + WORST + 2
        return len(self.ordered) - BEST - WORST if few else 0

    def parts(self, whole: bool) -> tuple[Sequence[HospitalStory], Sequence[HospitalStory]]:
        """The rows above and below the gap."""
        if whole or not self.between:
            return self.ordered, ()
        return self.ordered[:BEST], self.ordered[-WORST:]


def forest(hospitals: Sequence[HospitalStory], found: Comparison | None) -> ForestPlot | None:
    """The plot of one comparison; None where there is nothing to plot."""
    known = [h for h in hospitals if h.evidence.shown and h.evidence.gain.known]
    if found is None or not known:
        return None
    ordered = tuple(sorted(known, key=lambda h: (-h.evidence.gain.value, h.name)))
    ends = [v for h in ordered for v in (h.evidence.gain.low, h.evidence.gain.high)]
    ends += [0.0, *(v for v in found.interval if math.isfinite(v))]
    step = next((s for s in (0.02, 0.05, 0.1, 0.2, 0.5) if (max(ends) - min(ends)) / s <= 5), 1.0)
    first = math.floor(min(ends) / step)
    last = max(math.ceil(max(ends) / step), first + 1)
    ticks = tuple(round(k * step, 6) for k in range(first, last + 1))
    average = Interval(found.gain.estimate, *found.interval)
    return ForestPlot(
        ForestScale(first * step, last * step, ticks), ordered, len(hospitals) - len(known), average
    )
