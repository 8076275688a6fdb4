"""Time to an event that not everybody lives to see: curves, concordance, and scores that allow for censoring.

A row has a time and whether the event happened then (else it was only watched so long). Where an event and
the end of watching fall on one time, the event came first. A larger ``risk`` means: fails earlier.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
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
        return self._stepped(np.searchsorted(self.time, times, side="right"))

    def before(self, times: Floats) -> Floats:
        """The value just before times."""
        return self._stepped(np.searchsorted(self.time, times, side="left"))

    def _stepped(self, steps: NDArray[np.int64]) -> Floats:
        return np.concatenate([[1.0], self.value])[steps]


def check_times(time: Floats, event: Bools) -> None:
    """Refuse what is no time to an event."""
    if len(time) == 0 or len(time) != len(event):
        raise RequestError(
            f"{len(time)} times and {len(event)} events: give one of each per row, at least one"
        )
    if not np.all(np.isfinite(time)) or np.any(time < 0):
        raise RequestError("a time to the event is missing or negative; mend the duration column")


def at_risk(time: Floats, event: Bools) -> tuple[Floats, Floats, Floats, Floats]:
    """Different times in order, and at each: rows still watched, events, rows whose watching ended."""
    order = np.argsort(time, kind="stable")
    steps, first = np.unique(time[order], return_index=True)
    died = np.add.reduceat(event[order].astype(np.float64), first)
    left = np.diff(np.append(first, len(time))).astype(np.float64)
    return steps, (len(time) - first).astype(np.float64), died, left - died


def kaplan_meier(time: Floats, event: Bools) -> SurvivalCurve:
    """The chance to live longer than t.

    >>> kaplan_meier(np.array([1.0, 2.0, 3.0]), np.array([True, False, True])).value.round(3).tolist()
    [0.667, 0.667, 0.0]
    """
    check_times(time, event)
    steps, watched, died, _ = at_risk(time, event)
    return SurvivalCurve(steps, np.cumprod(1.0 - died / watched, dtype=np.float64))


def censoring(time: Floats, event: Bools) -> SurvivalCurve:
    """The chance to be watched longer than t: Kaplan-Meier of the end of watching."""
    check_times(time, event)
    steps, watched, died, ended = at_risk(time, event)
    left = watched - died
    share = np.divide(ended, left, out=np.zeros_like(left), where=left > 0)
    return SurvivalCurve(steps, np.cumprod(1.0 - share, dtype=np.float64))


def concordance(time: Floats, event: Bools, risk: Floats) -> float:
    """Harrell's C: of all pairs in which one surely failed first, the share in which it had the larger risk.

    Equal risks count half. NaN without such a pair.
    """
    check_times(time, event)
    # From the latest time back: who is in ``later`` lives longer than the row at hand.
    order = np.lexsort((event, -time))
    later: list[float] = []
    pairs = good = 0.0
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and time[order[end]] == time[order[at]]:
            end += 1
        together = order[at:end]
        # At one time those only watched so long live longer than those who failed.
        for k in together[~event[together]]:
            insort(later, float(risk[k]))
        for k in together[event[together]]:
            below, up_to = bisect_left(later, float(risk[k])), bisect_right(later, float(risk[k]))
            good += below + 0.5 * (up_to - below)
            pairs += len(later)
        for k in together[event[together]]:
            insort(later, float(risk[k]))
        at = end
    return good / pairs if pairs else float("nan")


def weighted_concordance(
    time: Floats, event: Bools, risk: Floats, watched: SurvivalCurve, until: float
) -> float:
    """Uno's C: the same share, every pair by how rarely its first failure could be seen (squared), and only
    of failures before ``until``; it does not depend on who was watched how long.

    watched: by :func:`censoring`, on training rows.
    """
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
    """(grid,) squared error of predicted survival at each time, weighted for censoring (Graf et al. 1999).

    survival: (rows, grid) predicted chances to live longer.  watched: by :func:`censoring`, on training rows.
    Rows whose watching ended before carry no weight; the others stand for them.
    """
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


def common_curve(
    grid: Floats, watched: Sequence[Floats], died: Sequence[Floats], ended: Sequence[Floats], floor: int = 10
) -> SurvivalCurve:
    """Kaplan-Meier of several centers that publish counts on a common grid, and no times.

    watched, died, ended: per center (grid,) rows watched at the start of each interval, events and ends of
    watching in it (:func:`grid_counts`). Intervals with fewer than ``floor`` events in all are joined with
    the next, so that no step shows a handful of patients; what is left over at the end is not shown.
    """
    there, failed = np.sum(watched, axis=0), np.sum(died, axis=0)
    times, values, value, lives, deaths = [], [], 1.0, 1.0, 0.0
    for k in range(len(grid)):
        if there[k] > 0:
            lives *= 1.0 - failed[k] / there[k]
        deaths += failed[k]
        if deaths >= floor:
            value *= lives
            times.append(grid[k])
            values.append(value)
            lives, deaths = 1.0, 0.0
    return SurvivalCurve(np.array(times), np.array(values))


def grid_counts(time: Floats, event: Bools, grid: Floats) -> tuple[Floats, Floats, Floats]:
    """(grid,) of one center: rows watched at the start of each interval, events and ends of watching in it.

    Interval k ends at grid[k], its end included; the first begins at zero. Later rows are watched to the end.
    """
    check_times(time, event)
    place = np.searchsorted(grid, time, side="left")
    size = len(grid) + 1
    died = np.bincount(place[event], minlength=size)[:-1].astype(np.float64)
    ended = np.bincount(place[~event], minlength=size)[:-1].astype(np.float64)
    gone = np.concatenate([[0.0], np.cumsum(died + ended)[:-1]])
    return len(time) - gone, died, ended
