"""What a study says to every single hospital: alone and together, how sure, with whom, at what price."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.engine.result import Run
from abps.evaluate.roc import FEWEST_EVENTS
from abps.report.seed_means import Calibrations, calibrations
from abps.report.statistics import (
    BETTER,
    CONFIDENCE,
    EQUAL,
    HARM,
    UNSURE,
    WORSE,
    Harm,
    Line,
    Part,
    Results,
    paired,
)

#: Partners that are named; the rest is counted.
MOST_PARTNERS = 6
UNSCORED = "not scored"
NO_VERDICT = "no verdict"


@dataclass(frozen=True)
class Partner:
    """Another hospital that this one worked with: in how many rounds of all runs, and why the last time.

    helps: the probability that a mix with it lowers this hospital's loss, as it believes itself; mean over
    seeds, NaN where nothing is believed.
    """

    name: str
    rounds: int
    reason: str
    helps: float = math.nan

    @property
    def words(self) -> str:
        """The belief in words: ``probably helps, 8 in 10``."""
        return in_words(self.helps)


def in_words(chance: float) -> str:
    """A probability that somebody helps, in words.

    >>> in_words(0.83), in_words(0.5), in_words(0.04)
    ('probably helps, 8 in 10', 'may help or harm, 5 in 10', 'hardly ever helps, less than 1 in 10')
    """
    if not math.isfinite(chance):
        return ""
    tenths = round(10 * chance)
    of = {0: "less than 1 in 10", 10: "more than 9 in 10"}.get(tenths, f"{tenths} in 10")
    if chance >= 0.9:
        return f"almost surely helps, {of}"
    if chance >= 0.65:
        return f"probably helps, {of}"
    if chance >= 0.35:
        return f"may help or harm, {of}"
    return f"probably does not help, {of}" if chance >= 0.1 else f"hardly ever helps, {of}"


@dataclass(frozen=True)
class HospitalResult:
    """One method at one hospital: its AUROC, the gain over training alone with its interval, the verdict.

    gain: with its noise taken out.  measured: as it was seen in the seeds that scored both.
    """

    method: str
    auroc: float
    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan
    verdict: str = NO_VERDICT
    measured: float = math.nan


@dataclass(frozen=True)
class Events:
    """On what a hospital's numbers stand, under the method that the page is about; means over seeds.

    rows, events: scored rows and those with the outcome.  expected: how many the model expected.
    slope: of its calibration (1 is right, below: too extreme); NaN where there are too few events.
    calibration: all of it, of runs that keep it.
    """

    rows: float = math.nan
    events: float = math.nan
    expected: float = math.nan
    slope: float = math.nan
    calibration: Calibrations | None = None

    @property
    def known(self) -> bool:
        """Whether the runs say it."""
        return math.isfinite(self.rows)

    @property
    def few(self) -> bool:
        """Whether there are too few events, or others, for any verdict."""
        return self.known and min(self.events, self.rows - self.events) < FEWEST_EVENTS


@dataclass(frozen=True)
class Hospital:
    """One center of the federation.

    alone: AUROC without the others.  together: with the method that the page is about, first; then others.
    scored: on what these numbers stand.
    partners, more: those named, and how many there were besides.
    rested: rounds without a partner, by cause, of all ``rounds`` (over all seeds).
    megabytes, dollars: sent by this hospital in one run, on average; NaN where that is not known.
    """

    name: str
    alone: float
    together: tuple[HospitalResult, ...]
    partners: tuple[Partner, ...] = ()
    more: int = 0
    rested: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 0
    megabytes: float = math.nan
    dollars: float = math.nan
    scored: Events = Events()

    def under(self, label: str) -> HospitalResult | None:
        """This hospital under a certain method."""
        return next(
            (hospital_result for hospital_result in self.together if hospital_result.method == label), None
        )

    @property
    def on_events(self) -> str:
        """``, 12 events``: what its scores stand on, where the runs say it."""
        return f", {self.scored.events:.0f} events" if self.scored.known else ""

    def words(self, hospital_result: HospitalResult) -> str:
        """The verdict with what it stands on: ``cannot tell: 3 events in 30 rows``."""
        if hospital_result.verdict in (UNSURE, UNSCORED) and self.scored.known:
            on = f"{self.scored.events:.0f} events in {self.scored.rows:.0f} test rows"
            return f"{hospital_result.verdict}: {on}"
        return f"equal within {HARM:g}" if hospital_result.verdict == EQUAL else hospital_result.verdict

    @property
    def main(self) -> HospitalResult:
        """The method that the page is about."""
        return self.together[0]


@dataclass(frozen=True, eq=False)
class Map:
    """Who worked with whom in each round of one run: pairs of indices into ``centers``."""

    seed: int
    centers: tuple[str, ...]
    rounds: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, eq=False)
class Hospitals:
    """All hospitals, by name, under one method."""

    lead: Line
    all: tuple[Hospital, ...]
    map: Map | None

    def by_gain(self) -> list[Hospital]:
        """From the largest loss that was measured to the largest gain; those without a score last."""
        return sorted(self.all, key=lambda h: (math.isnan(h.main.measured), h.main.measured, h.name))

    def with_verdict(self, verdict: str, label: str = "") -> list[tuple[Hospital, HospitalResult]]:
        """Those of which this is said under a method (the page's, unless named), the clearest first."""
        label = label or self.lead.result.label
        found = [(h, h.under(label)) for h in self.all]
        told = [(h, s) for h, s in found if s is not None and s.verdict == verdict]
        return sorted(told, key=lambda entry: (-abs(entry[1].gain), entry[0].name))


def lead_of(part: Part) -> Line | None:
    """The method that a page is about: ABPS+ if it ran, else the most accurate one that exchanges models."""
    sending = [line for line in part.lines if line.result.vs_fedavg > 0]
    if not sending:
        return None
    plus = [line for line in sending if line.result.method == "abps-plus"]
    return plus[0] if plus else max(sending, key=lambda line: line.result.mean)


def hospitals_of(part: Part) -> Hospitals | None:
    """Every hospital's story; None if no method exchanged anything."""
    lead = lead_of(part)
    if lead is None:
        return None
    names = [lead.result.label, "fedavg", lead.random, "pooled-best", "centralized"]
    shown = {line.result.label: line for line in part.lines}
    lines = [shown[name] for name in dict.fromkeys(names) if name in shown]
    alone = part.find(part.alone) if part.alone else None
    levels = _means(alone) if alone is not None else np.full(len(part.centers), np.nan)
    shown_as = [standings(line.result, line.harm, alone) for line in lines]
    outside = part.outside_of(lead.result.label)
    if outside is not None:
        shown_as.append(standings(outside.result, outside.harm, alone))
    scored = _events(lead.result, part.centers)
    trail = _trail(lead.result)
    stories = _stories(trail, lead.result)
    prices = _prices(trail, lead.result, part.centers)
    found = tuple(
        Hospital(
            name,
            float(levels[k]),
            tuple(_doubted(each[k], scored[k]) for each in shown_as),
            **stories.get(name, {"rounds": sum(run.rounds for run in lead.result.runs)}),
            megabytes=prices[k][0],
            dollars=prices[k][1],
            scored=scored[k],
        )
        for k, name in enumerate(part.centers)
    )
    return Hospitals(lead, found, _map(trail, lead.result, part.centers))


def _means(result: Results) -> NDArray[np.float64]:
    """(centers,) mean AUROC over the seeds that have one."""
    return _average(result.auroc)


def _average(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(centers,) mean over the seeds that have a value, of (seeds, centers)."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan))


def standings(result: Results, harm: Harm | None, alone: Results | None) -> list[HospitalResult]:
    """One method at every center."""
    label, levels = result.label, _means(result)
    if harm is None:
        seen = np.full(len(levels), np.nan) if alone is None else _average(paired(result, alone))
        return [
            HospitalResult(
                label, float(v), verdict=NO_VERDICT if math.isfinite(v) else UNSCORED, measured=float(m)
            )
            for v, m in zip(levels, seen)
        ]
    gains = harm.gains
    tail = (1.0 - CONFIDENCE) / 2.0
    lows, highs = gains.quantile(tail), gains.quantile(1.0 - tail)
    return [
        HospitalResult(
            label, float(v), float(g), float(low), float(high), _verdict(low, high, raw, error), float(raw)
        )
        for v, g, low, high, raw, error in zip(levels, gains.mean, lows, highs, gains.raw, gains.error)
    ]


def _events(result: Results, centers: Sequence[str]) -> list[Events]:
    """What every center's numbers stand on, where the runs say it."""

    def mean(each: Callable[[Run], Mapping[str, float]], name: str) -> float:
        known = [each(run)[name] for run in result.runs if math.isfinite(each(run).get(name, math.nan))]
        return float(np.mean(known)) if known else math.nan

    return [
        Events(
            mean(lambda run: run.scored.per_center_rows, name),
            mean(lambda run: run.scored.per_center_events, name),
            mean(lambda run: run.calibration.per_center_expected, name),
            mean(lambda run: run.calibration.per_center_slope, name),
            calibrations(result, name),
        )
        for name in centers
    ]


def _doubted(hospital_result: HospitalResult, on: Events) -> HospitalResult:
    """A standing without a verdict where it stands on a few events."""
    told = hospital_result.verdict in (BETTER, WORSE, EQUAL)
    return replace(hospital_result, verdict=UNSURE) if told and on.few else hospital_result


def _verdict(low: float, high: float, raw: float, error: float) -> str:
    """What is said to one hospital: all centers together must show it, and its own scores must agree.

    Its own mean has to lie a standard error beyond zero: nobody is told to lose because others do.
    """
    if not math.isfinite(raw):
        return UNSCORED
    if low > 0.0 and raw > error:
        return BETTER
    if high < 0.0 and raw < -error:
        return WORSE
    return EQUAL if low >= -HARM and high <= HARM and abs(raw) <= HARM else UNSURE


# ---------------------------------------------------------------- from the audit trail


def _trail(result: Results) -> pl.DataFrame:
    """The decisions of all runs of a method, with their seed."""
    parts = [
        run.decisions.with_columns(seed=pl.lit(run.seed))
        for run in result.runs
        if run.artifacts.decisions is not None
    ]
    return pl.concat(parts) if parts else pl.DataFrame()


def _pairs(trail: pl.DataFrame) -> pl.DataFrame:
    """Every partnership seen from both sides: seed, round, center, peer."""
    if trail.is_empty():
        return trail
    columns = ["seed", "round", "center", "peer"]
    met = trail.filter(pl.col("decision") == "accepted").select(columns)
    other = met.select("seed", "round", pl.col("peer").alias("center"), pl.col("center").alias("peer"))
    return pl.concat([met, other]).unique()


def _stories(trail: pl.DataFrame, result: Results) -> dict[str, dict[str, Any]]:
    """Per center: its partners, and when it rested."""
    if trail.is_empty():
        return {}
    rounds = sum(run.rounds for run in result.runs)
    counts = _pairs(trail).group_by("center", "peer").len()
    counts = counts.sort("center", "len", "peer", descending=[False, True, False])
    said = trail.filter(pl.col("decision").is_in(["accepted", "proposed"]) & pl.col("reason").is_not_null())
    why = dict(zip(zip(said["center"], said["peer"]), said["reason"]))  # the last word counts
    stories: dict[str, dict[str, Any]] = {}
    for (name,), group in counts.group_by("center", maintain_order=True):
        partners = [
            Partner(peer, often, why.get((name, peer), ""), math.nan) for _, peer, often in group.iter_rows()
        ]
        named = tuple(partners[:MOST_PARTNERS])
        stories[name] = {"partners": named, "more": len(partners) - len(named)}
    rested = trail.filter(pl.col("decision") == "rested").group_by("center", "reason").len()
    for name, reason, often in rested.sort("center", "reason").iter_rows():
        stories.setdefault(name, {}).setdefault("rested", {})[reason] = often
    return {name: {**story, "rounds": rounds} for name, story in stories.items()}


def _prices(trail: pl.DataFrame, result: Results, centers: Sequence[str]) -> list[tuple[float, float]]:
    """(megabytes, dollars) that each hospital sends in one run: its share of all transfers.

    An equal share where the trail names no pairs: a star, where all send alike.
    """
    total = result.average(lambda run: run.bytes.directed + run.bytes.control) / 1e6
    cost = result.average(lambda run: run.cost_usd)
    met = _pairs(trail)
    often = dict(met.group_by("center").len().iter_rows()) if met.height else dict.fromkeys(centers, 1)
    whole = sum(often.values())
    shares = [often.get(name, 0) / whole for name in centers]
    return [(total * share, cost * share) for share in shares]


def _map(trail: pl.DataFrame, result: Results, centers: Sequence[str]) -> Map | None:
    """The first run's partnerships, round by round."""
    if trail.is_empty():
        return None
    run = result.runs[0]
    place = {name: k for k, name in enumerate(centers)}
    met = trail.filter((pl.col("decision") == "accepted") & (pl.col("seed") == run.seed))
    if met.is_empty():
        return None
    edges: list[list[tuple[int, int]]] = [[] for _ in range(run.rounds)]
    for t, a, b in met.select("round", "center", "peer").iter_rows():
        edges[t - 1].append((place[a], place[b]))
    return Map(run.seed, tuple(centers), tuple(tuple(each) for each in edges))
