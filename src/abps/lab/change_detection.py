"""Change detection: windows that grow while nothing changes, and alarms when something does.

A center watches a stream of one number per round (an outcome rate, a feature mean, the utility of its
peers). :func:`grow` is the window rule by Welch's test: the window expands while the newest observations
agree with it, and restarts with them when they do not. It runs for all centers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abps.core.errors import RequestError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# --------------------------------------------------------------------------- windows by Welch's test


class SampleSummary(NamedTuple):
    """Mean, variance (divided by size - 1) and number of observations; arrays of one shape (centers,)."""

    mean: Floats
    variance: Floats
    size: Floats


def summary(mean: ArrayLike, variance: ArrayLike = 0.0, size: ArrayLike = 1.0) -> SampleSummary:
    """A summary from what is at hand; a single number per center is a batch of size 1."""
    arrays = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (mean, variance, size)))
    return SampleSummary(*(np.array(each) for each in arrays))


def empty(centers: int) -> SampleSummary:
    """No observations yet."""
    return summary(np.zeros(centers), 0.0, 0.0)


def merge(a: SampleSummary, b: SampleSummary) -> SampleSummary:
    """The summary of both sets of observations together (exact; no observation is kept)."""
    size = a.size + b.size
    share = np.divide(b.size, size, out=np.zeros_like(size), where=size > 0)
    delta = b.mean - a.mean
    squares = (
        np.maximum(a.size - 1, 0) * a.variance
        + np.maximum(b.size - 1, 0) * b.variance
        + delta**2 * a.size * share
    )
    variance = np.divide(squares, size - 1, out=np.zeros_like(size), where=size > 1)
    return SampleSummary(a.mean + delta * share, variance, size)


def pooled(a: SampleSummary, b: SampleSummary) -> tuple[Floats, Floats]:
    """Student's statistic with one variance for both sets, and its degrees of freedom, per center.

    For rare outcomes in small batches: a batch without any event has no variance of its own, and Welch's
    statistic then takes its mean for certain.
    """
    freedom = np.maximum(a.size + b.size - 2.0, 1.0)
    squares = np.maximum(a.size - 1, 0) * a.variance + np.maximum(b.size - 1, 0) * b.variance
    both = SampleSummary(a.mean, squares / freedom, a.size), SampleSummary(b.mean, squares / freedom, b.size)
    return welch(*both)[0], freedom


def welch(a: SampleSummary, b: SampleSummary) -> tuple[Floats, Floats]:
    """Welch's statistic and its degrees of freedom (Satterthwaite), per center.

    Two sets without any spread give 0 if their means agree, else infinity.
    """
    va = np.divide(a.variance, a.size, out=np.zeros_like(a.size), where=a.size > 0)
    vb = np.divide(b.variance, b.size, out=np.zeros_like(b.size), where=b.size > 0)
    difference = np.asarray(a.mean - b.mean, np.float64)
    spread = np.asarray(va + vb)
    t = np.where(difference == 0.0, 0.0, np.copysign(np.inf, difference))
    np.divide(difference, np.sqrt(spread), out=t, where=spread > 0)
    # in units of the whole spread, so that squares of tiny variances do not underflow
    wa = np.divide(va, spread, out=np.zeros_like(spread), where=spread > 0)
    wb = np.divide(vb, spread, out=np.zeros_like(spread), where=spread > 0)
    below = wa**2 / np.maximum(a.size - 1, 1) + wb**2 / np.maximum(b.size - 1, 1)
    freedom = np.divide(1.0, below, out=np.ones_like(below), where=below > 0)
    return t, freedom


def two_sided_p(statistic: ArrayLike, freedom: ArrayLike) -> Floats:
    """P(|T| >= |statistic|) for Student's T with ``freedom`` degrees of freedom; the arrays broadcast."""
    from scipy.special import stdtr  # loaded where it is used: a site's process is the smaller

    return np.asarray(2.0 * stdtr(np.asarray(freedom, np.float64), -np.abs(statistic)))


@dataclass(frozen=True)
class WelchRule:
    """When a window ends.

    alpha: level of one comparison. block: observations gathered before they are compared (single
    numbers need several; a round's patients are a block by themselves). spend: a window is tested
    over and over, and at a fixed level a false alarm is only a matter of time; spending gives the
    k-th comparison of a window alpha / (k (k + 1)), so that all of them together stay at alpha.
    """

    alpha: float = 0.05
    block: int = 2
    spend: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise RequestError(f"alpha is {self.alpha}; a test level lies strictly between 0 and 1")
        if self.block < 2:
            raise RequestError(f"block is {self.block}; a variance needs at least 2 observations")

    def level(self, comparison: ArrayLike) -> Floats:
        """The level of a window's first, second, ... comparison."""
        k = np.asarray(comparison, np.float64)
        return np.asarray(self.alpha / (k * (k + 1.0)) if self.spend else np.full(k.shape, self.alpha))


@dataclass(frozen=True)
class WelchState:
    """Per center: the window in force, what waits to be compared with it, comparisons and rounds so far."""

    window: SampleSummary
    pending: SampleSummary
    comparisons: NDArray[np.int64]
    rounds: NDArray[np.int64]

    @classmethod
    def start(cls, centers: int) -> WelchState:
        zero = np.zeros(centers, np.int64)
        return cls(empty(centers), empty(centers), zero, zero.copy())


def grow(rule: WelchRule, state: WelchState, batch: SampleSummary) -> tuple[WelchState, Bools]:
    """One round for all centers: the new state, and who raised an alarm.

    Without alarm the batch joins the window. With alarm the window in force begins with what raised it.
    A center that saw nothing (size 0) keeps its state.
    """
    pending = merge(state.pending, batch)
    ready = pending.size >= rule.block
    tested = ready & (state.window.size >= 2)
    alarm = np.zeros(ready.shape, bool)
    if tested.any():
        t, freedom = welch(
            SampleSummary(*(each[tested] for each in state.window)),
            SampleSummary(*(each[tested] for each in pending)),
        )
        alarm[tested] = two_sided_p(t, freedom) <= rule.level(state.comparisons[tested] + 1)
    joined = merge(state.window, pending)
    zero = empty(ready.size)
    window = _choose(alarm, pending, _choose(ready, joined, state.window))
    waiting = np.where(batch.size > 0, 1, 0)
    return (
        WelchState(
            window,
            _choose(ready, zero, pending),
            np.where(alarm, 0, state.comparisons + tested),
            np.where(alarm, waiting, state.rounds + waiting),
        ),
        alarm,
    )


def restart(state: WelchState, centers: ArrayLike) -> WelchState:
    """The state with the windows of some centers emptied: they begin with what comes next."""
    anew = np.zeros(len(state.rounds), bool)
    anew[np.asarray(centers, np.int64)] = True
    zero = empty(anew.size)
    return WelchState(
        _choose(anew, zero, state.window),
        _choose(anew, zero, state.pending),
        np.where(anew, 0, state.comparisons),
        np.where(anew, 0, state.rounds),
    )


def _choose(where: Bools, a: SampleSummary, b: SampleSummary) -> SampleSummary:
    return SampleSummary(*(np.where(where, x, y) for x, y in zip(a, b, strict=True)))
