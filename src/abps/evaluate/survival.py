"""Time to an event that not everybody lives to see: scores that allow for censoring.

A row has a time and whether the event happened then (else it was only watched so long). Where an event and
the end of watching fall on one time, the event came first. A larger ``risk`` means: fails earlier.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SurvivalCurve:
    """A step function that starts at one: ``value[k]`` from ``time[k]`` on."""

    time: Floats
    value: Floats

    def at(self, times: Floats) -> Floats:
        """The value at times, steps on them included."""
        return np.concatenate([[1.0], self.value])[np.searchsorted(self.time, times, side="right")]

    def before(self, times: Floats) -> Floats:
        """The value just before times."""
        return np.concatenate([[1.0], self.value])[np.searchsorted(self.time, times, side="left")]


def check_times(time: Floats, event: Bools) -> None:
    if len(time) == 0 or len(time) != len(event):
        raise RequestError(f"{len(time)} times and {len(event)} events: give as many, at least one")
    if not np.all(np.isfinite(time)) or np.any(time < 0):
        raise RequestError("a time to the event is missing or negative; mend the duration column")


def censoring(time: Floats, event: Bools) -> SurvivalCurve:
    """The chance to be watched longer than t: Kaplan-Meier of the end of watching."""
    check_times(time, event)
    order = np.argsort(time, kind="stable")
    steps, first = np.unique(time[order], return_index=True)
    died = np.add.reduceat(event[order].astype(np.float64), first)
    ended = np.diff(np.append(first, len(time))) - died
    left = len(time) - first - died
    share = np.divide(ended, left, out=np.zeros_like(left), where=left > 0)
    return SurvivalCurve(steps, np.cumprod(1.0 - share, dtype=np.float64))


def weighted_concordance(
    time: Floats, event: Bools, risk: Floats, watched: SurvivalCurve, until: float
) -> float:
    """Uno's C: of all pairs in which one surely failed first, the share in which it had the larger risk,
    equal risks as half. A pair counts by how rarely its first failure could be seen
    (squared), up to ``until``.  watched: by :func:`censoring`, on training rows."""
    check_times(time, event)
    first = np.flatnonzero(event & (time < until))
    good = pairs = 0.0
    for k in first:
        later = (time > time[k]) | ((time == time[k]) & ~event)
        weight = 1.0 / watched.before(time[k : k + 1])[0] ** 2
        others = risk[later]
        good += weight * float((others < risk[k]).sum() + 0.5 * (others == risk[k]).sum())
        pairs += weight * len(others)
    return good / pairs if pairs else float("nan")


def brier(time: Floats, event: Bools, survival: Floats, grid: Floats, watched: SurvivalCurve) -> Floats:
    """(grid,) squared error of predicted survival (rows, grid), weighted for censoring (Graf et al. 1999):
    rows whose watching ended before carry no weight; the others stand for them.  watched: as above."""
    check_times(time, event)
    past, there = time[:, None] <= grid[None], time[:, None] > grid[None]
    with np.errstate(divide="ignore"):
        failed = np.where(past & event[:, None], 1.0 / watched.before(time)[:, None], 0.0)
        alive = np.where(there, 1.0 / watched.at(grid)[None], 0.0)
    return np.mean(failed * survival**2 + alive * (1.0 - survival) ** 2, axis=0)


def integrated(values: Floats, grid: Floats) -> float:
    """The mean of a score over the grid's span (trapezes)."""
    if len(grid) == 1:
        return float(values[0])
    return float(np.trapezoid(values, grid) / (grid[-1] - grid[0]))


def auroc_at(time: Floats, event: Bools, risk: Floats, t: float, watched: SurvivalCurve) -> float:
    """AUROC for "fails until t" against "lives longer", weighted for censoring; NaN with one kind only."""
    check_times(time, event)
    cases, controls = event & (time <= t), time > t
    if not cases.any() or not controls.any():
        return float("nan")
    weight = 1.0 / watched.before(time[cases])
    others = np.sort(risk[controls])
    below = np.searchsorted(others, risk[cases], side="left")
    up_to = np.searchsorted(others, risk[cases], side="right")
    return float(np.sum(weight * (below + 0.5 * (up_to - below))) / (weight.sum() * len(others)))
