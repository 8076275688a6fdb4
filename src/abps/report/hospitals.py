"""What a study says to every single hospital: its own evidence, that of all, with whom, at what price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtrit

from abps.engine.clinical import AtCenter, Interval, Level
from abps.evaluate.verdicts import RELEVANT, HospitalVerdict
from abps.report.analysis import SIMPLE, Comparison, MethodLine, MethodResult, Part

#: Partners that are named; the rest is counted.
MOST_PARTNERS = 6


# ---------------------------------------------------------------- calibration, as means over repeats


def mean_of(values: Iterable[float]) -> float:
    """The mean of those that are known."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def mean_interval(found: Iterable[Interval]) -> Interval:
    """Value and ends, each as the mean of the repeats that have one."""
    known = [each for each in found if each.known]
    return Interval(*(mean_of(getattr(each, end) for each in known) for end in ("value", "low", "high")))


def mean_level(found: Sequence[Level]) -> Level:
    """Calibration, as the mean over repeats."""
    return Level(
        mean_of(level.expected for level in found),
        mean_interval(level.in_the_large for level in found),
        mean_interval(level.slope for level in found),
    )


@dataclass(frozen=True)
class RepeatCalibration:
    """Calibration of one hospital over repeats: before and after recalibration.

    mended: in how many repeats its validation rows asked for one.  repeats: of how many.
    curves: (predicted probability, share of events) of every repeat that has one.
    """

    before: Level
    after: Level
    mended: int
    repeats: int
    curves: tuple[tuple[tuple[float, float], ...], ...]


def calibrations(result: MethodResult, center: str) -> RepeatCalibration | None:
    """A hospital's calibration under a method; None where the runs do not keep it."""
    seen: list[AtCenter] = [
        run.clinical.per_center[center] for run in result.runs if center in run.clinical.per_center
    ]
    if not seen:
        return None
    return RepeatCalibration(
        mean_level([each.before for each in seen]),
        mean_level([each.after for each in seen]),
        sum(each.recalibration != "none" for each in seen),
        len(seen),
        tuple(each.curve for each in seen if each.curve),
    )


# ---------------------------------------------------------------- one hospital


@dataclass(frozen=True)
class Partner:
    """Another hospital that this one learned from.

    share: its weight in this hospital's model; NaN where the method states no weights.
    rounds: in how many rounds of all runs they were partners.
    """

    name: str
    rounds: int
    share: float = math.nan


@dataclass(frozen=True)
class HospitalEvidence:
    """What is known about one hospital's gain.

    measured, own_low, own_high: by its own patients alone.  estimate, low, high: with what all hospitals
    show.  gains, gains_clearly, loses_clearly: probability of a gain, of one above 0.02, of a loss above
    0.02.  needed: events of its own that would settle it.
    """

    measured: float = math.nan
    own_low: float = math.nan
    own_high: float = math.nan
    estimate: float = math.nan
    low: float = math.nan
    high: float = math.nan
    gains: float = math.nan
    gains_clearly: float = math.nan
    loses_clearly: float = math.nan
    needed: float = math.nan
    verdict: HospitalVerdict = HospitalVerdict.TOO_FEW

    @property
    def shown(self) -> bool:
        """Whether there are enough events to show anything."""
        return self.verdict is not HospitalVerdict.TOO_FEW


@dataclass(frozen=True)
class HospitalStory:
    """One hospital.  alone, together: the main measure alone and with the page's method.

    beside: (method, level, gain over alone) of others.  rows, events: scored, each counted once.
    expected, slope: events that the page's method expects, and its calibration slope.
    rested: rounds without a partner, by cause, of all ``rounds``.  own, common: the weight of its own rows
    and of all hospitals together in its model, where the method states weights.
    """

    name: str
    alone: float
    together: float
    evidence: HospitalEvidence
    beside: tuple[tuple[str, float, float], ...] = ()
    rows: float = math.nan
    events: float = math.nan
    expected: float = math.nan
    slope: float = math.nan
    calibration: RepeatCalibration | None = None
    partners: tuple[Partner, ...] = ()
    more: int = 0
    rested: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 0
    megabytes: float = math.nan
    own: float = math.nan
    common: float = math.nan

    @property
    def advice(self) -> str:
        """What follows for this hospital."""
        e = self.evidence
        settle = ""
        if math.isfinite(e.needed) and e.needed > self.events:
            count = f"{two_digits(e.needed):,}"
            settle = f" About {count} events of your own would settle it; {self.events:.0f} are here."
        return {
            HospitalVerdict.GAINS: "Take part: your own patients and those of the others agree.",
            HospitalVerdict.PROBABLY_GAINS: f"Taking part is the better bet.{settle}",
            HospitalVerdict.SAME: "Your own model is as good: take part for other reasons, or not at all.",
            HospitalVerdict.INCONCLUSIVE: f"Decide on other grounds for now.{settle}",
            HospitalVerdict.PROBABLY_LOSES: f"Your own model is the better bet.{settle}",
            HospitalVerdict.LOSES: "Keep your own model, and ask why your patients differ.",
            HospitalVerdict.TOO_FEW: (
                "Your hospital has fewer than five events (or others): it cannot judge any model by itself. "
                "Go by the average of all hospitals."
            ),
        }[e.verdict]


def two_digits(value: float) -> int:
    """Two significant digits: more would pretend to know."""
    if value < 100:
        return round(value)
    digits = len(str(int(value))) - 2
    return round(value / 10**digits) * 10**digits


def hospital_evidence(found: Comparison) -> list[HospitalEvidence]:
    """(centers,) what is known about every hospital's gain."""
    gains = found.hospitals
    if gains is None:
        return [HospitalEvidence()] * len(found.cells.gain)
    low, high = gains.model.interval()
    variance, freedom = found.cells.moderated
    half = -stdtrit(np.maximum(freedom, 1.0), 0.025) * np.sqrt(found.inflation * variance)
    columns = {
        "measured": gains.measured,
        "own_low": gains.measured - half,
        "own_high": gains.measured + half,
        "estimate": gains.model.mean,
        "low": low,
        "high": high,
        "gains": gains.model.above(0.0),
        "gains_clearly": gains.model.above(RELEVANT),
        "loses_clearly": 1.0 - gains.model.above(-RELEVANT),
        "needed": found.events_needed,
    }
    return [
        HospitalEvidence(verdict=verdict, **{name: float(column[k]) for name, column in columns.items()})
        for k, verdict in enumerate(found.hospital_verdicts)
    ]


def hospitals_of(part: Part) -> tuple[HospitalStory, ...]:
    """Every hospital's story under the page's method, by name; nothing if no method exchanges anything."""
    lead = part.lead
    if lead is None:
        return ()
    alone = part.find(part.alone)
    size = len(part.centers)
    nothing = np.full(size, np.nan)
    evidence = [HospitalEvidence()] * size if lead.to_alone is None else hospital_evidence(lead.to_alone)
    names = [SIMPLE, "fedavg", lead.random, "pooled-best", "centralized"]
    shown = [r for name in dict.fromkeys(names) if name != part.page and (r := part.find(name)) is not None]
    alone_level = nothing if alone is None else alone.level
    trail = _trail(lead.result)
    stories = _stories(trail, lead.result)
    sizes = _megabytes(trail, lead.result, part.centers)
    return tuple(
        HospitalStory(
            name,
            float(alone_level[k]),
            float(lead.result.level[k]),
            evidence[k],
            tuple((r.label, float(r.level[k]), float(r.level[k] - alone_level[k])) for r in shown),
            **_scored(lead, name, k),
            **stories.get(name, {}),
            megabytes=sizes[k],
        )
        for k, name in enumerate(part.centers)
    )


def _scored(lead: MethodLine, name: str, k: int) -> dict[str, Any]:
    """On what a hospital's numbers stand, and its calibration."""
    runs = lead.result.runs
    rows, events = (
        mean_of(getattr(run.scored, each).get(name, math.nan) for run in runs)
        for each in ("per_center_rows", "per_center_events")
    )
    if lead.to_alone is not None and lead.to_alone.cells.others.any():
        cells = lead.to_alone.cells
        events, rows = float(cells.events[k]), float(cells.events[k] + cells.others[k])
    levels = [run.clinical.per_center[name].before for run in runs if name in run.clinical.per_center]
    return {
        "rows": rows,
        "events": events,
        "expected": mean_of(level.expected for level in levels),
        "slope": mean_of(level.slope.value for level in levels),
        "calibration": calibrations(lead.result, name),
    }


# ---------------------------------------------------------------- from the audit trail


def _trail(result: MethodResult) -> pl.DataFrame:
    """The decisions of all trainings of a method; run: the number of the training (repeat and fold)."""
    kept = [run for run in result.runs if run.artifacts.decisions is not None]
    parts = [run.decisions.with_columns(run=pl.lit(100 * k)) for k, run in enumerate(kept)]
    trail = pl.concat(parts) if parts else pl.DataFrame()
    return trail.with_columns(pl.col("run") + pl.col("fold")) if "fold" in trail.columns else trail


def _pairs(trail: pl.DataFrame) -> pl.DataFrame:
    """Every partnership seen from both sides: run, round, center, peer."""
    if trail.is_empty():
        return trail
    columns = ["run", "round", "center", "peer"]
    met = trail.filter(pl.col("decision") == "accepted").select(columns)
    other = met.select("run", "round", pl.col("peer").alias("center"), pl.col("center").alias("peer"))
    return pl.concat([met, other]).unique()


def _weights(trail: pl.DataFrame) -> pl.DataFrame:
    """center, peer, share: what a hospital's model weighs, as mean over all trainings; peer is null for all
    hospitals together. A peer that a training does not name has no weight in it."""
    stated = trail.filter(pl.col("decision") == "weight")
    trainings = stated.select("run", "round").n_unique()
    return stated.group_by("center", "peer").agg((pl.col("score").sum() / trainings).alias("share"))


def _stories(trail: pl.DataFrame, result: MethodResult) -> dict[str, dict[str, Any]]:
    """Per center: its partners, and when it rested."""
    if trail.is_empty():
        return {}
    folds = trail["fold"].n_unique() if "fold" in trail.columns else 1
    rounds = folds * sum(run.rounds for run in result.runs)
    counts = _pairs(trail).group_by("center", "peer").len()
    weights = _weights(trail)
    named = weights.filter(pl.col("peer").is_not_null() & (pl.col("peer") != pl.col("center")))
    joined = counts.join(named, on=["center", "peer"], how="full", coalesce=True)
    joined = joined.with_columns(pl.col("len").fill_null(0), pl.col("share").fill_null(math.nan))
    joined = joined.sort(
        "center", pl.col("share").fill_nan(-1.0), "len", "peer", descending=[False, True, True, False]
    )
    stories: dict[str, dict[str, Any]] = {}
    for (name,), group in joined.group_by("center", maintain_order=True):
        found = [
            Partner(peer, often, share)
            for peer, often, share in group.select("peer", "len", "share").iter_rows()
        ]
        shown = tuple(found[:MOST_PARTNERS])
        stories[str(name)] = {"partners": shown, "more": len(found) - len(shown)}
    for name, peer, share in weights.iter_rows():
        if peer is None or peer == name:
            stories.setdefault(name, {})["common" if peer is None else "own"] = share
    rested = trail.filter(pl.col("decision") == "rested").group_by("center", "reason").len()
    for name, reason, often in rested.sort("center", "reason").iter_rows():
        stories.setdefault(name, {}).setdefault("rested", {})[reason] = often
    return {name: {**story, "rounds": rounds} for name, story in stories.items()}


def _megabytes(trail: pl.DataFrame, result: MethodResult, centers: Sequence[str]) -> list[float]:
    """What each hospital sends and receives in one run: its share of all transfers.

    An equal share where the trail names no pairs: all send alike.
    """
    met = _pairs(trail)
    often = dict(met.group_by("center").len().iter_rows()) if met.height else dict.fromkeys(centers, 1)
    whole = sum(often.values())
    return [result.megabytes * len(centers) * often.get(name, 0) / whole for name in centers]
