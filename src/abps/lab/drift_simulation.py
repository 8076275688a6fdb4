"""Drift and recovery: the same method with and without forgetting, while the federation changes.

Two federations alike but for the change, the method with each way to forget, several seeds; what comes
out is read from the runs: accuracy around the change, alarms, and who works with whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.synthetic.builtin import is_builtin, parse_builtin
from abps.data.synthetic.icu_stream import IcuStream
from abps.engine.result import Run
from abps.lab.forgetting import adaptive
from abps.methods.settings import configure
from abps.study.plan import Plan, PlannedRun, Request, Source, make_plan
from abps.study.records import StudyFolder

Floats = NDArray[np.float64]

#: Twenty-four hospitals of three kinds, six hundred stays each per window, with risk functions far apart.
DEFAULT = "icu-stream:heterogeneity=4,centers=24,groups=3,stays=14400"
#: Beliefs that can rank within the rounds there are, and mixes that are not adopted where they harm.
SETTINGS = {"gamma": "0.05", "adopt": "if_helpful"}
#: Share of the evidence that survives a round when beliefs are discounted in every one.
DISCOUNT = "0.9"
#: Rounds after the change over which accuracy is compared.
AFTER = 10


@dataclass(frozen=True)
class Scenario:
    """A stream that changes, and the same stream without the change."""

    changing: str
    still: str
    knobs: IcuStream

    @staticmethod
    def of(spec: str) -> Scenario:
        """From the specification of an ``icu-stream``."""
        if not is_builtin(spec) or spec.partition(":")[0] != "icu-stream":
            raise RequestError(f"data={spec}: give an icu-stream, such as {DEFAULT}")
        knobs, _ = parse_builtin(spec)
        assert isinstance(knobs, IcuStream)
        if knobs.change == "none":
            raise RequestError(f"data={spec}: nothing changes in it; set change=risk, for instance")
        if not 1 < knobs.at <= knobs.rounds - 1:
            raise RequestError(f"data={spec}: the change at round {knobs.at} is not within the rounds")
        name, _, text = spec.partition(":")
        kept = [part for part in text.split(",") if part and part.split("=")[0].strip() != "change"]
        return Scenario(spec, f"{name}:{','.join([*kept, 'change=none'])}", knobs)

    @property
    def begins(self) -> int:
        """The first round in which changed data are in force."""
        era = next(e for e in range(self.knobs.eras) if self.knobs.progress(e) > 0)
        return 1 + era * self.knobs.every


def plan(
    scenario: Scenario,
    method: str,
    forget: Sequence[str],
    seeds: tuple[int, ...],
    settings: Mapping[str, str],
) -> Plan:
    """All runs: with and without the change, every way to forget, every seed.

    forget: never, alarm, window (the setting of that name), and discount (in every round).
    """
    adaptive(configure(method))  # raises for a method without beliefs
    common = {**SETTINGS, **settings}
    share = common.pop("discount", None)
    if share is not None and "discount" not in forget:
        raise RequestError(f"discount={share}: name it as a way to forget, forget=alarm,discount")
    request = Request(
        (Source(scenario.changing), Source(scenario.still)),
        (method,),
        seeds,
        scenario.knobs.rounds,
        common,
        {"forget": tuple(way for way in forget if way != "discount")},
    )
    made = make_plan(request, (method,))
    if "discount" not in forget:
        return made
    share = share or DISCOUNT
    also = replace(request, settings={**common, "discount": share}, vary={"forget": ("never",)})
    runs = [replace(run, label=f"{method} discount={share}") for run in make_plan(also, (method,)).runs]
    return replace(made, runs=(*made.runs, *runs))


def way_of(run: PlannedRun) -> str:
    """The way to forget of a run."""
    return "discount" if "discount" in run.settings else run.settings["forget"]


@dataclass(frozen=True, eq=False)
class DriftRun:
    """One run, round by round.

    auroc: (rounds,) mean over centers.  alike: (rounds,) share of partners that follow the same risk function
    (NaN where nobody worked with anybody).  alarms: (round, center, statistic).
    meetings: (rounds, centers, centers) who worked with whom.
    level: the stated rate of false alarms, of a center at one look.  utilities: these were watched, too.
    """

    forget: str
    seed: int
    changing: bool
    centers: tuple[str, ...]
    auroc: Floats
    alike: Floats
    alarms: tuple[tuple[int, str, str], ...]
    meetings: NDArray[np.bool_]
    level: float
    utilities: bool

    def after(self, begins: int, rounds: int = AFTER) -> float:
        """Mean AUROC over the rounds from the change on."""
        return float(self.auroc[begins - 1 : begins - 1 + rounds].mean())

    def before(self, begins: int, rounds: int = AFTER) -> float:
        """Mean AUROC over the rounds up to the change."""
        return float(self.auroc[max(0, begins - 1 - rounds) : begins - 1].mean())


def read(scenario: Scenario, made: Plan, out: Path) -> list[DriftRun]:
    """All finished runs, round by round."""
    study = StudyFolder(out)
    key_of = {federation.name: key for key, federation in made.federations.items()}
    runs = []
    for run in made.runs:
        found = study.look(run).result
        if found is not None:
            runs.append(_drift_run(scenario, run, found, run.data == key_of[scenario.changing]))
    return runs


def _drift_run(scenario: Scenario, run: PlannedRun, result: Run, changing: bool) -> DriftRun:
    trail = result.decisions
    knobs = scenario.knobs if changing else replace(scenario.knobs, change="none")
    centers = tuple(sorted(result.auroc.per_center))
    index = {name: k for k, name in enumerate(centers)}
    rounds = result.rounds
    met = np.zeros((rounds, len(centers), len(centers)), dtype=bool)
    pairs = trail.filter(pl.col("decision") == "accepted")
    for t, i, j in zip(pairs["round"], pairs["center"], pairs["peer"]):
        met[t - 1, index[i], index[j]] = met[t - 1, index[j], index[i]] = True
    follows = [knobs.follows(era) for era in range(knobs.eras)]
    alike = np.full(rounds, np.nan)
    for t in range(rounds):
        unit = np.array([follows[min(t // knobs.every, knobs.eras - 1)][name] for name in centers])
        if met[t].any():
            alike[t] = float((unit[:, None] == unit[None, :])[met[t]].mean())
    raised = trail.filter(pl.col("decision") == "alarm")
    memory = result.config["memory"]
    return DriftRun(
        forget=way_of(run),
        seed=run.seed,
        changing=changing,
        centers=centers,
        auroc=np.array(result.history.auroc),
        alike=alike,
        alarms=tuple(zip(raised["round"], raised["center"], raised["reason"])),
        meetings=met,
        level=memory["alarm_level"],
        utilities="utility" in memory["watch"],
    )


@dataclass(frozen=True)
class Difference:
    """One way to forget against never forgetting, seed by seed.

    after: mean AUROC over the rounds after the change, without and with forgetting, per seed.
    still: mean AUROC over all rounds where nothing changes, likewise.
    """

    forget: str
    seeds: tuple[int, ...]
    after: tuple[tuple[float, float], ...]
    still: tuple[tuple[float, float], ...]

    @property
    def wins(self) -> int:
        """Seeds in which forgetting was better after the change."""
        return sum(b > a for a, b in self.after)

    @property
    def gain(self) -> float:
        """Mean gain after the change."""
        return float(np.mean([b - a for a, b in self.after]))

    @property
    def loss_when_still(self) -> float:
        """Mean loss of AUROC where nothing changes; negative: a gain."""
        return float(np.mean([a - b for a, b in self.still])) or 0.0  # no negative zero


def differences(scenario: Scenario, runs: Sequence[DriftRun]) -> list[Difference]:
    """Every way to forget against ``never``."""
    by = {(c.forget, c.seed, c.changing): c for c in runs}
    ways = [w for w in dict.fromkeys(c.forget for c in runs) if w != "never"]
    found = []
    for way in ways:
        seeds = [
            s
            for s in dict.fromkeys(c.seed for c in runs)
            if all((w, s, x) in by for w in ("never", way) for x in (True, False))
        ]
        found.append(
            Difference(
                way,
                tuple(seeds),
                tuple(
                    (by["never", s, True].after(scenario.begins), by[way, s, True].after(scenario.begins))
                    for s in seeds
                ),
                tuple(
                    (float(by["never", s, False].auroc.mean()), float(by[way, s, False].auroc.mean()))
                    for s in seeds
                ),
            )
        )
    return found


@dataclass(frozen=True)
class AlarmRates:
    """How the centers' detectors did over all runs of one way to forget.

    looks: how often a center that had not changed compared new data with old (in either stream), and
    false: how often that raised an alarm.  level: the stated share.  centers: runs of centers whose
    utilities were watched where nothing changes, and false_utility: those with an alarm on them.
    changed: centers that changed, found: those with an alarm within ``AFTER`` rounds, and the median delay.
    by: how many were found by each statistic.
    """

    forget: str
    level: float
    looks: int
    false: int
    centers: int
    false_utility: int
    changed: int
    found: int
    delay: float | None
    by: dict[str, int]


def alarm_rates(scenario: Scenario, runs: Sequence[DriftRun]) -> list[AlarmRates]:
    """False alarms, and changes that were noticed, for every way to forget that raises alarms."""
    rows = []
    for way in dict.fromkeys(c.forget for c in runs):
        mine = [c for c in runs if c.forget == way]
        if way == "alarm" or any(c.alarms for c in mine):
            rows.append(_alarm_rates(scenario, way, mine))
    return rows


def _alarm_rates(scenario: Scenario, way: str, runs: Sequence[DriftRun]) -> AlarmRates:
    knobs, begins = scenario.knobs, scenario.begins
    starts = [1 + e * knobs.every for e in range(1, knobs.eras)]
    changed = scenario_changed(knobs)
    looks = false = count = 0
    delays: list[int] = []
    by: Counter[str] = Counter()
    for c in runs:
        own = {(t, name) for t, name, what in c.alarms if what != "utility"}
        moved = changed if c.changing else set()
        quiet = {(t, name) for name in c.centers for t in starts if t < begins or name not in moved}
        looks += len(quiet)
        false += len(own & quiet)
        for name in moved.intersection(c.centers):
            count += 1
            raised = [(t, what) for t, who, what in c.alarms if who == name and begins <= t < begins + AFTER]
            delays += [min(raised)[0] - begins] if raised else []
            by.update({what for _, what in raised})
    still = [c for c in runs if not c.changing]
    return AlarmRates(
        way,
        runs[0].level,
        looks,
        false,
        sum(len(c.centers) * c.utilities for c in still),
        sum(len({name for _, name, what in c.alarms if what == "utility"}) for c in still),
        count,
        len(delays),
        float(np.median(delays)) if delays else None,
        dict(sorted(by.items())),
    )


def scenario_changed(knobs: IcuStream) -> set[str]:
    """The names of the centers that change."""
    from abps.data.synthetic.icu import population_of

    before = population_of(knobs)
    return {name for name, moved in zip(before.names, knobs.affected(before)) if moved}
