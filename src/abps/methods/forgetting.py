"""What centers forget, and when: alarms of drift, and evidence that decays.

A center watches its own data and what its peers bring it. When new rows take the place of old ones it
compares them; after every round it looks at the utilities it observed. An alarm lets its beliefs decay
toward the prior, and, if it says so to the others, theirs about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError, validate
from abps.data.prepare import Rows
from abps.evaluate import change_detection as drift
from abps.evaluate.change_detection import two_sided_p
from abps.methods.base import Alarm, Context
from abps.models.metrics import Segments, labels_of, row_losses

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

#: What can be watched. loss: of the own model, on new rows against rows held out of the last window.
#: outcome: the share of positive rows. case_mix: the share of rows with each binary feature.
#: relation: how the features go with the outcome.
#: utility: what partners brought, against what was believed of them.
Statistic = Literal["loss", "outcome", "case_mix", "relation", "utility"]
Detector = Literal["t-test", "page-hinkley", "adwin", "kswin"]
#: How many permutations are expected beyond the level of a test.
_BEYOND = 5
#: Rows times permutations that are in memory at a time.
_CELLS = 2_000_000


@dataclass(frozen=True, eq=False)
class Observed:
    """A round's observations: which row, about the member at which place, and the clipped utility.

    surprise: value minus the belief's mean before; NaN where the peer had never been observed.
    """

    center: Ints
    peer: Ints
    value: Floats
    surprise: Floats
    round: int = 0

    def without(self, centers: list[int]) -> Observed:
        """The observations of the other centers."""
        keep = ~np.isin(self.center, centers)
        return replace(
            self,
            center=self.center[keep],
            peer=self.peer[keep],
            value=self.value[keep],
            surprise=self.surprise[keep],
        )


@dataclass(frozen=True, eq=False)
class Watch:
    """What is carried from round to round: past observations, and windows over the surprises."""

    past: tuple[Observed, ...] = ()
    windows: drift.WelchState | None = None

    def placed(self, place: Ints) -> Watch:
        """With members in other places."""
        return replace(self, past=tuple(replace(each, peer=place[each.peer]) for each in self.past))


@dataclass(frozen=True)
class Memory:
    """What is forgotten, and when.

    forget: never (the paper), alarm (of the centers that raise one), or window (all that is older than
    ``recall`` rounds).  kept: share of the evidence that an alarm leaves.
    announce: a center tells its alarm to all, and their beliefs about it decay as well.
    watch: loss, outcome, case_mix, relation, utility, with plus signs between.
    alarm_level: the chance of a false alarm of a center each time its data change, divided over what is
    watched (utilities: windows by Welch's rule, the level spent over all rounds).
    detector: of loss, outcome and utility: t-test, which keeps that level; or page-hinkley, adwin, kswin
    (see ``abps theory``), with settings of their own.
    block: utilities that a center gathers before it compares them with those before.
    """

    forget: Literal["never", "alarm", "window"] = "never"
    kept: float = 0.2
    recall: int = 10
    announce: bool = True
    watch: tuple[Statistic, ...] = ("loss", "outcome", "relation")
    detector: Detector = "t-test"
    alarm_level: float = 0.01
    block: int = 10

    def __post_init__(self) -> None:
        validate(self)
        if not 0 <= self.kept <= 1:
            raise RequestError(f"kept={self.kept}: a share, choose 0 to 1")
        if self.recall < 1 or self.block < 2:
            raise RequestError(f"recall={self.recall}, block={self.block}: choose at least 1 and 2")
        if not 0 < self.alarm_level < 1:
            raise RequestError(f"alarm_level={self.alarm_level}: a probability, choose between 0 and 1")

    @property
    def level(self) -> float:
        """The level of one comparison."""
        return self.alarm_level / max(1, len(self.watch))

    def look(self, before: Context, context: Context, models: Weights, t: int) -> tuple[Alarm, ...]:
        """Alarms on the centers' own data when, before round t, new rows took the place of old."""
        if self.forget != "alarm":
            return ()
        found: list[Alarm] = []
        keys = keys_of(context, t)
        if "loss" in self.watch:
            old = losses(before, models, before.data.validation)
            new = joined(
                losses(context, models, context.data.train), losses(context, models, context.data.validation)
            )
            found += self._compare("loss", old, new, keys)
        if "outcome" in self.watch:
            old = joined(labels_of(before.data.train), labels_of(before.data.validation))
            new = joined(labels_of(context.data.train), labels_of(context.data.validation))
            found += self._compare("outcome", old, new, keys)
        if "case_mix" in self.watch:
            found += self._case_mix(before, context)
        if "relation" in self.watch:
            found += self._relation(before, context, keys)
        return tuple(found)

    def _compare(self, statistic: str, old: Segments, new: Segments, keys: Keys) -> list[Alarm]:
        """Every center's new values against its old ones."""
        if self.detector == "t-test":
            p = p_values(summary_of(old), summary_of(new))
            return [Alarm(int(i), statistic, float(p[i])) for i in np.flatnonzero(p <= self.level)]
        return [
            Alarm(i, statistic, np.nan)
            for i in range(len(old))
            if self._fires(old[i].astype(np.float64), new[i].astype(np.float64), int(keys[i]))
        ]

    def _fires(self, old: Floats, new: Floats, key: int) -> bool:
        """Does a detector that has seen the old values raise an alarm on the new ones?"""
        spread = float(old.std()) if len(old) else 0.0
        if spread == 0.0:
            return False
        watcher = drift.detector(self.detector, key)
        for value in old.tolist():
            watcher.update(value / spread)
        return any(watcher.update(value / spread) for value in new.tolist())

    def _case_mix(self, before: Context, context: Context) -> list[Alarm]:
        """The smallest p-value over the binary columns, times their number."""
        binary = [
            k
            for k in range(context.data.width)
            if all(np.isin(w.data.train.x[:, k], (0.0, 1.0)).all() for w in (before, context))
        ]
        least = np.ones(context.n)
        for k in binary:
            old, new = (Segments(w.data.train.x[:, k], w.data.train.start) for w in (before, context))
            least = np.minimum(least, p_values(summary_of(old), summary_of(new)))
        p = np.minimum(least * len(binary), 1.0)
        return [Alarm(int(i), "case_mix", float(p[i])) for i in np.flatnonzero(p <= self.level)]

    def _relation(self, before: Context, context: Context, keys: Keys) -> list[Alarm]:
        """Permutation tests that have a handful of permutations beyond their level."""
        count = int(np.ceil(_BEYOND / self.level)) - 1
        found = []
        for i in range(context.n):
            (x, y), (x_new, y_new) = rows_of(before, i), rows_of(context, i)
            rng = np.random.Generator(np.random.SFC64(int(keys[i])))
            p = relation_p(x, y, x_new, y_new, rng, count)
            found += [Alarm(i, "relation", p)] if p <= self.level else []
        return found

    def surprises(self, state: Watch, observed: Observed, keys: Keys) -> tuple[Watch, tuple[Alarm, ...]]:
        """Alarms on a round's utilities: do the latest surprises agree with those before? keys: (n,)."""
        if not self.watches_utility:
            return state, ()
        n = len(keys)
        batch = summary_of(by_center(observed.center, observed.surprise, n))
        if self.detector == "t-test":
            windows, raised = drift.grow(self._rule, state.windows or drift.WelchState.start(n), batch)
            return replace(state, windows=windows), tuple(
                Alarm(int(i), "utility", np.nan) for i in np.flatnonzero(raised)
            )
        past = (*state.past, observed)
        alarms = []
        for i in range(n):
            old, new = (surprises_of(part, i) for part in (past[:-1], past[-1:]))
            if len(old) >= self.block and self._fires(old, new, int(keys[i])):
                alarms.append(Alarm(i, "utility", np.nan))
        return replace(state, past=past), tuple(alarms)

    @property
    def watches_utility(self) -> bool:
        """Whether the utilities of partners are watched."""
        return self.forget == "alarm" and "utility" in self.watch

    @property
    def _rule(self) -> drift.WelchRule:
        return drift.WelchRule(self.level, self.block, spend=True)

    def fade(self, beliefs: Beliefs, alarms: tuple[Alarm, ...]) -> Beliefs:
        """Beliefs after the alarms, those of one round at a time."""
        for t in sorted({alarm.round for alarm in alarms}):
            centers = sorted({alarm.center for alarm in alarms if alarm.round == t})
            beliefs = beliefs.discount(self.kept, centers)
            if self.announce:
                beliefs = beliefs.discount(self.kept, centers, about=True)
        return beliefs

    def recalled(self, beliefs: Beliefs, state: Watch, here: Ints) -> Beliefs:
        """Beliefs from the last rounds alone, where older ones do not count; here: (r,) the rows' places."""
        if self.forget != "window":
            return beliefs
        fresh = Beliefs(beliefs.n, beliefs.prior)
        for observed in state.past:
            fresh = fresh.observe(here[observed.center], observed.peer, observed.value)
        return fresh

    def remember(self, state: Watch, observed: Observed) -> Watch:
        """What later rounds will need of this one, where beliefs are those of a window of rounds."""
        if self.forget != "window":
            return state
        recent = (each for each in state.past if each.round > observed.round - self.recall)
        return replace(state, past=(*recent, observed))

    def clear(self, state: Watch, alarms: tuple[Alarm, ...]) -> Watch:
        """After an alarm, what a center saw before is no measure any more."""
        centers = [alarm.center for alarm in alarms]
        if not centers or not self.watches_utility:
            return state
        return Watch(
            tuple(each.without(centers) for each in state.past),
            None if state.windows is None else drift.restart(state.windows, centers),
        )


def keys_of(context: Context, t: int) -> Keys:
    """(r,) what the centers' detectors draw from in round t."""
    return streams.bits(context.seed, "drift-test", t, context.ids[context.local_index])


def rows_of(context: Context, i: int) -> tuple[Floats, Floats]:
    """Center i's training and validation rows: features (rows, k) and outcomes (rows,)."""
    parts = [rows.only(i) for rows in (context.data.train, context.data.validation)]
    return (
        np.concatenate([part.x for part in parts]).astype(np.float64),
        np.concatenate([part.y for part in parts]).astype(np.float64),
    )


def relation_p(
    x: Floats, y: Floats, x_new: Floats, y_new: Floats, rng: np.random.Generator, count: int
) -> float:
    """p-value of: the features go with the outcome as they did before.

    Compared are the covariances of every feature with the outcome, in units of their spread; the sum of
    squares of their differences is set against ``count`` random divisions of all rows into old and new. So
    the level is exact however rare the outcome, and a change in many features at once adds up.
    """
    rows = np.concatenate([x, x_new])
    outcome = np.concatenate([y, y_new])
    if len(x) == 0 or len(x_new) == 0 or np.ptp(outcome) == 0.0:
        return 1.0
    joint = (rows - rows.mean(axis=0)) * (outcome - outcome.mean())[:, None]
    joint -= joint.mean(axis=0)
    spread = joint.std(axis=0)
    joint = joint[:, spread > 1e-9] / spread[spread > 1e-9]
    # The rows' deviations add up to 0, so the sum over the new ones says what the difference of means does.
    is_new = np.arange(len(rows)) >= len(x)
    found = ((is_new @ joint) ** 2).sum() * (1 - 1e-9)  # the same rows in another order are a tie
    beyond, at_once = 0, max(1, _CELLS // len(rows))
    for done in range(0, count, at_once):
        drawn = rng.permuted(np.tile(is_new, (min(at_once, count - done), 1)), axis=1)
        beyond += int((((drawn @ joint) ** 2).sum(axis=1) >= found).sum())
    return (1 + beyond) / (1 + count)


def losses(context: Context, models: Weights, rows: Rows) -> Segments:
    """Every center's deviance residual on each of its rows: the root of twice its log-loss, less skewed."""
    loss = row_losses(context.learner.logits(models, rows), labels_of(rows))
    return Segments(np.sqrt(2.0 * loss.values), loss.start)


def joined(a: Segments, b: Segments) -> Segments:
    """Group by group, the values of a and then those of b."""
    size_a, size_b = np.diff(a.start), np.diff(b.start)
    start = np.concatenate([[0], np.cumsum(size_a + size_b)])
    values = np.empty(int(start[-1]), dtype=np.float32)
    values[np.arange(len(a.values)) + np.repeat(start[:-1] - a.start[:-1], size_a)] = a.values
    values[np.arange(len(b.values)) + np.repeat(start[:-1] + size_a - b.start[:-1], size_b)] = b.values
    return Segments(values, start)


def summary_of(values: Segments) -> drift.SampleSummary:
    """Mean, variance and number of every group's values."""
    group, n = values.group(), len(values)
    size = np.diff(values.start).astype(np.float64)
    v = values.values.astype(np.float64)
    mean = np.bincount(group, weights=v, minlength=n) / np.maximum(size, 1)
    squares = np.bincount(group, weights=(v - mean[group]) ** 2, minlength=n)
    return drift.SampleSummary(mean, squares / np.maximum(size - 1, 1), size)


def by_center(center: Ints, values: Floats, n: int) -> Segments:
    """Values that are known, grouped by center."""
    known = np.isfinite(values)
    order = np.argsort(center[known], kind="stable")
    start = np.searchsorted(center[known][order], np.arange(n + 1))
    return Segments(values[known][order], start)


def surprises_of(past: tuple[Observed, ...], center: int) -> Floats:
    """A center's surprises in some rounds, in their order."""
    parts = [each.surprise[each.center == center] for each in past]
    values = np.concatenate(parts) if parts else np.zeros(0)
    return values[np.isfinite(values)]


def p_values(old: drift.SampleSummary, new: drift.SampleSummary) -> Floats:
    """(n,) two-sided p-values of the pooled t-test; 1 where there is too little to compare.

    Welch's test, with a variance for each side, is four times too sure of itself on rare outcomes with a few
    dozen rows on one side: rows without a death show hardly any variance.
    """
    t, freedom = drift.pooled(old, new)
    p = two_sided_p(t, freedom)
    return np.where((old.size < 2) | (new.size < 2), 1.0, p)
