"""ABPS under drift: beliefs that decay after alarms, or that only count recent rounds.

A center monitors its own data and the utilities of its partners. When new rows replace old ones it compares
the two; after every round it tests the utilities it observed. An alarm lets its beliefs decay toward the
prior and, if it is announced, the beliefs of others about it. ``--set forget=alarm`` (or any other setting of
:class:`Forgetting`) turns ABPS into :class:`AdaptiveABPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.arrays import Weights
from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError, validate
from abps.core.matching import MatchingPlan
from abps.data.prepare import Rows
from abps.lab import change_detection as drift
from abps.lab.change_detection import two_sided_p
from abps.methods.abps import ABPS, State
from abps.methods.base import Alarm, Context, Decisions, Models
from abps.methods.peers import Received, StepResult
from abps.methods.proposals import RankedPreferences, repeat_word
from abps.models.metrics import Segments, labels_of, row_losses

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

#: What can be monitored. loss: of the own model, on new rows against rows held out of the last window.
#: outcome: the share of positive rows. case_mix: the share of rows with each binary feature.
#: relation: the association of features and outcome.
#: utility: the credit of partners, against the beliefs about them.
Statistic = Literal["loss", "outcome", "case_mix", "relation", "utility"]
#: Permutations that are expected beyond the level of a test.
_BEYOND = 5
#: Rows times permutations that are in memory at a time.
_CELLS = 2_000_000


@dataclass(frozen=True, eq=False)
class Observations:
    """A round's observations: which row, about which member, and the clipped utility.

    surprise: value minus the belief's mean before; NaN where the peer had never been observed.
    """

    center: Ints
    peer: Ints
    value: Floats
    surprise: Floats
    round: int = 0

    def without(self, centers: list[int]) -> Observations:
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
class DriftMonitor:
    """What drift tests keep from round to round: past observations, and windows over the surprises."""

    past: tuple[Observations, ...] = ()
    windows: drift.WelchState | None = None

    def placed(self, place: Ints) -> DriftMonitor:
        """With members at other indices."""
        return replace(self, past=tuple(replace(each, peer=place[each.peer]) for each in self.past))


@dataclass(frozen=True)
class Forgetting:
    """Which evidence is discarded, and when.

    forget: never (the paper), alarm (of the centers that raise one), or window (all that is older than
    ``recall`` rounds).  kept: share of the evidence that an alarm leaves.
    announce: a center publishes its alarm, and the beliefs of others about it decay as well.
    watch: the monitored statistics: loss, outcome, case_mix, relation, utility, with plus signs between.
    alarm_level: the probability of a false alarm of a center each time its data change, divided over the
    monitored statistics (utilities: windows by Welch's rule, the level spent over all rounds).
    block: utilities that a center gathers before it compares them with those before.
    """

    forget: Literal["never", "alarm", "window"] = "never"
    kept: float = 0.2
    recall: int = 10
    announce: bool = True
    watch: tuple[Statistic, ...] = ("loss", "outcome", "relation")
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
        """Alarms on the centers' own data when, before round t, new rows replaced old ones."""
        if self.forget != "alarm":
            return ()
        found: list[Alarm] = []
        keys = keys_of(context, t)
        if "loss" in self.watch:
            old = losses(before, models, before.data.validation)
            new = joined(
                losses(context, models, context.data.train), losses(context, models, context.data.validation)
            )
            found += self._compare("loss", old, new)
        if "outcome" in self.watch:
            old = joined(labels_of(before.data.train), labels_of(before.data.validation))
            new = joined(labels_of(context.data.train), labels_of(context.data.validation))
            found += self._compare("outcome", old, new)
        if "case_mix" in self.watch:
            found += self._case_mix(before, context)
        if "relation" in self.watch:
            found += self._relation(before, context, keys)
        return tuple(found)

    def _compare(self, statistic: str, old: Segments, new: Segments) -> list[Alarm]:
        """Every center's new values against its old ones."""
        p = p_values(summary_of(old), summary_of(new))
        return [Alarm(int(i), statistic, float(p[i])) for i in np.flatnonzero(p <= self.level)]

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

    def surprises(
        self, state: DriftMonitor, observed: Observations, n: int
    ) -> tuple[DriftMonitor, tuple[Alarm, ...]]:
        """Alarms of n centers on a round's utilities: do the latest surprises agree with those before?"""
        if not self.watches_utility:
            return state, ()
        batch = summary_of(by_center(observed.center, observed.surprise, n))
        windows, raised = drift.grow(self._rule, state.windows or drift.WelchState.start(n), batch)
        alarms = tuple(Alarm(int(i), "utility", np.nan) for i in np.flatnonzero(raised))
        return replace(state, windows=windows), alarms

    @property
    def watches_utility(self) -> bool:
        """Whether the utilities of partners are monitored."""
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

    def recalled(self, beliefs: Beliefs, state: DriftMonitor, here: Ints) -> Beliefs:
        """Beliefs from the last rounds alone, with ``forget=window``; here: (r,) the rows' member indices."""
        if self.forget != "window":
            return beliefs
        fresh = Beliefs(beliefs.n, beliefs.prior)
        for observed in state.past:
            fresh = fresh.observe(here[observed.center], observed.peer, observed.value)
        return fresh

    def remember(self, state: DriftMonitor, observed: Observations) -> DriftMonitor:
        """Keep this round's observations, where beliefs are those of a window of rounds."""
        if self.forget != "window":
            return state
        recent = (each for each in state.past if each.round > observed.round - self.recall)
        return replace(state, past=(*recent, observed))

    def clear(self, state: DriftMonitor, alarms: tuple[Alarm, ...]) -> DriftMonitor:
        """After an alarm a center's earlier observations are no reference any more."""
        centers = [alarm.center for alarm in alarms]
        if not centers or not self.watches_utility:
            return state
        return DriftMonitor(
            tuple(each.without(centers) for each in state.past),
            None if state.windows is None else drift.restart(state.windows, centers),
        )


def keys_of(context: Context, t: int) -> Keys:
    """(r,) the stream keys of the centers' detectors in round t."""
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


def p_values(old: drift.SampleSummary, new: drift.SampleSummary) -> Floats:
    """(n,) two-sided p-values of the pooled t-test; 1 where there is too little to compare.

    Welch's test, with a variance for each side, is four times too sure of itself on rare outcomes with a few
    dozen rows on one side: rows without a death show hardly any variance.
    """
    t, freedom = drift.pooled(old, new)
    p = two_sided_p(t, freedom)
    return np.where((old.size < 2) | (new.size < 2), 1.0, p)


@dataclass(frozen=True, eq=False)
class AdaptiveState(State):
    """monitor: what drift tests keep.  alarms: raised or received since the last round.  at: that round."""

    monitor: DriftMonitor = field(default_factory=DriftMonitor)
    alarms: tuple[Alarm, ...] = ()
    at: int = 0

    def placed(self, place: Ints, n: int) -> AdaptiveState:
        """With members at other indices."""
        return replace(self, beliefs=self.beliefs.placed(place, n), monitor=self.monitor.placed(place))


@dataclass(frozen=True)
class AdaptiveABPS(ABPS):
    """memory: which evidence is discarded, and when.  discount: share of it that survives each round."""

    memory: Forgetting = field(default_factory=Forgetting)
    discount: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.discount <= 1:
            raise RequestError(f"discount={self.discount}: a share, choose 0 to 1")
        if self.memory.forget == "window" and self.discount < 1:
            raise RequestError(f"forget=window with discount={self.discount}: choose one way to forget")

    @property
    def announces(self) -> bool:
        """Whether centers publish alarms."""
        return self.memory.announce and self.memory.watches_utility

    def between_sites(self) -> str:
        """Alarms stay in the simulation."""
        if self.memory.forget == "alarm":
            return "alarms of drift are raised in simulations only; set forget=window or forget=never"
        return super().between_sites()

    def init(self, context: Context) -> AdaptiveState:
        """The common start and prior beliefs."""
        return AdaptiveState(context.common_start(), Beliefs(context.n, self.selection.prior))

    def moved(self, before: Context, context: Context, state: AdaptiveState, t: int) -> AdaptiveState:
        """New data: each center compares them with the old."""
        return replace(state, alarms=state.alarms + self.memory.look(before, context, state.models, t))

    def hear(self, state: AdaptiveState, alarms: tuple[Alarm, ...]) -> AdaptiveState:
        """Alarms of this center and of others, which take effect in the coming round."""
        return replace(state, alarms=alarms)

    def rest(self, context: Context, state: Any, trained: Models, t: int) -> AdaptiveState:
        """Beliefs decay all the same."""
        return replace(state, models=trained.models, beliefs=self.decayed(state, t), alarms=(), at=t)

    def decayed(self, state: AdaptiveState, t: int) -> Beliefs:
        """The beliefs at the beginning of round t."""
        beliefs = state.beliefs
        if self.discount < 1:
            beliefs = beliefs.discount(self.discount ** (t - state.at))
        return self.memory.fade(beliefs, state.alarms)

    def rank_peers(
        self, context: Context, state: Any, trained: Callable[[], Any], t: int
    ) -> RankedPreferences:
        """Rank by the decayed beliefs; alarms enter the audit trail."""
        found = super().rank_peers(context, replace(state, beliefs=self.decayed(state, t)), trained, t)
        plain = found.trail
        assert plain is not None

        def trail(plan: MatchingPlan) -> Decisions:
            return plain(plan).after(alarm_trail(state.alarms))

        centers = len({alarm.center for alarm in state.alarms}) if self.memory.announce else 0
        return replace(found, trail=trail, announcing=centers)

    def learn(self, context: Context, state: Any, trained: Models, received: Received, t: int) -> StepResult:
        """Mix, credit, update the beliefs, and test the new utilities."""
        mixed, utility, answers = self.mix(context, state, trained, received, t)
        beliefs: Beliefs = received.preferences.beliefs
        members = context.local_index[utility.center]
        belief = beliefs.posterior(members, utility.peer)
        surprise = np.where(belief.count > 0, utility.value - belief.mean, np.nan)
        observed = Observations(utility.center, utility.peer, utility.value, surprise, t)
        own = tuple(replace(a, center=int(context.row[a.center])) for a in state.alarms)
        monitor = self.memory.clear(state.monitor, tuple(a for a in own if a.center >= 0))
        monitor, raised = self.memory.surprises(monitor, observed, context.r)
        monitor = self.memory.remember(monitor, observed)
        seen = self.memory.recalled(
            beliefs.observe(members, utility.peer, utility.value), monitor, context.local_index
        )
        alarms = tuple(replace(alarm, center=int(context.local_index[alarm.center])) for alarm in raised)
        return StepResult(AdaptiveState(mixed, seen, monitor, alarms, t), utility, alarms, answers)


def adaptive(config: Any) -> AdaptiveABPS:
    """The adaptive form of an ABPS configuration, which so far never forgets."""
    if isinstance(config, AdaptiveABPS):
        return config
    if not isinstance(config, ABPS):
        raise RequestError(
            f"{type(config).__name__} keeps no beliefs to forget; choose abps or a variant of it"
        )
    return AdaptiveABPS(**{f.name: getattr(config, f.name) for f in fields(config)})


def alarm_trail(alarms: Sequence[Alarm]) -> Decisions:
    """Alarms as rows of the audit trail: the statistic is the reason, its p-value the score."""
    nothing = np.full(len(alarms), np.nan)
    return Decisions(
        center=np.array([alarm.center for alarm in alarms], dtype=np.int64),
        peer=np.full(len(alarms), -1),
        decision=repeat_word("alarm", len(alarms)),
        score=np.array([alarm.p for alarm in alarms], dtype=np.float64),
        mean=nothing,
        count=nothing,
        reason=np.array([alarm.statistic for alarm in alarms], dtype=object),
    )
