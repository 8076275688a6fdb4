"""What a study says to every single hospital: its own evidence, that of all, its calibration, with whom."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from abps.evaluate.calibration import Interval
from abps.evaluate.verdicts import HospitalEvidence, HospitalVerdict
from abps.fitted.curves import GRAY, ChartLine, chart
from abps.report.analysis import SIMPLE, Comparison, MethodLine, Part, mean_of

#: Partners that are named; the rest is counted.
MOST_PARTNERS = 6


def mean_interval(found: Iterable[Interval]) -> Interval:
    """Value and ends, each as the mean of the repeats that have one."""
    known = [each for each in found if each.known]
    return Interval(*(mean_of(getattr(each, end) for each in known) for end in ("value", "low", "high")))


@dataclass(frozen=True)
class HospitalCalibration:
    """Calibration of one hospital before recalibration, as means over repeats.  expected: events.
    in_the_large: 0 is right.  slope: 1 is right.  mended: in how many repeats validation rows asked for a
    recalibration."""

    expected: float
    in_the_large: Interval
    slope: Interval
    mended: int
    repeats: int
    picture: Markup


def calibration_of(line: MethodLine, center: str) -> HospitalCalibration | None:
    """A hospital's calibration under a method; None where the runs do not keep it."""
    kept = (run.clinical.per_center.get(center) for run in line.runs)
    seen = [each for each in kept if each is not None]
    if not seen:
        return None
    return HospitalCalibration(
        mean_of(each.before.expected for each in seen),
        mean_interval(each.before.in_the_large for each in seen),
        mean_interval(each.before.slope for each in seen),
        sum(each.recalibration != "none" for each in seen),
        len(seen),
        _picture([each.curve for each in seen if each.curve], center),
    )


def _picture(curves: list[tuple[tuple[float, float], ...]], center: str) -> Markup:
    if not curves:
        return Markup()
    points = [np.array(curve).T for curve in curves]
    ends = np.array([0.0, max(float(each.max()) for each in points)])
    lines = [ChartLine(f"repeat {k}", x, y) for k, (x, y) in enumerate(points, 1)]
    right = ChartLine("as it should be", ends, ends, dashed=True, color=GRAY)
    return Markup(
        chart([*lines, right], "predicted probability", "share of events", f"Calibration, {center}")
    )


@dataclass(frozen=True)
class Partner:
    """Another hospital that this one learned from.  rounds: of all runs in which they were partners.  share:
    its weight in this hospital's model; NaN where the method states no weights."""

    name: str
    rounds: int
    share: float = math.nan


@dataclass(frozen=True)
class HospitalStory:
    """One hospital.  alone, together: the main measure alone and with the page's method.  beside: (method,
    level) of others.  rows, events: scored, each counted once.  own, common: weights of its own rows and of
    all hospitals in its model, where the method states weights."""

    name: str
    alone: float
    together: float
    evidence: HospitalEvidence
    beside: tuple[tuple[str, float], ...] = ()
    rows: float = math.nan
    events: float = math.nan
    calibration: HospitalCalibration | None = None
    partners: tuple[Partner, ...] = ()
    more: int = 0
    own: float = math.nan
    common: float = math.nan

    @property
    def advice(self) -> str:
        needed, settle = self.evidence.needed, ""
        if math.isfinite(needed) and needed > self.events:
            count = f"{two_digits(needed):,}"
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
        }[self.evidence.verdict]


def two_digits(value: float) -> int:
    """Two significant digits: more would pretend to know."""
    return round(float(f"{value:.2g}"))


def hospitals_of(part: Part) -> tuple[HospitalStory, ...]:
    """Every hospital's story under the page's method, by name; nothing if no method exchanges anything."""
    lead, alone, size = part.lead, part.find(part.alone), len(part.centers)
    if lead is None:
        return ()
    evidence = [HospitalEvidence()] * size if lead.to_alone is None else lead.to_alone.evidence
    names = [SIMPLE, "fedavg", lead.random, "pooled-best", "centralized"]
    shown = [line for name in names if name != part.page and (line := part.find(name)) is not None]
    levels = np.full(size, np.nan) if alone is None else alone.level
    stories = _stories(lead)
    return tuple(
        HospitalStory(
            name,
            float(levels[k]),
            float(lead.level[k]),
            evidence[k],
            tuple((line.label, float(line.level[k])) for line in shown),
            *_scored(lead, name, k),
            calibration_of(lead, name),
            **stories.get(name, {}),
        )
        for k, name in enumerate(part.centers)
    )


def _scored(lead: MethodLine, name: str, k: int) -> tuple[float, float]:
    if lead.to_alone is not None and lead.to_alone.cells.others.any():
        events, others = float(lead.to_alone.cells.events[k]), float(lead.to_alone.cells.others[k])
        return events + others, events
    scored = [run.scored for run in lead.runs]
    return (
        mean_of(each.per_center_rows.get(name, math.nan) for each in scored),
        mean_of(each.per_center_events.get(name, math.nan) for each in scored),
    )


# ---------------------------------------------------------------- from the audit trail


def _stories(line: MethodLine) -> dict[str, dict[str, Any]]:
    """Per center: its partners, as the decisions of all trainings (repeats and folds) say."""
    kept = [run.decisions for run in line.runs if run.artifacts.decisions is not None]
    if not kept:
        return {}
    trail = pl.concat([each.with_columns(run=pl.lit(k)) for k, each in enumerate(kept)])
    training = ["run", "fold"] if "fold" in trail.columns else ["run"]
    met = trail.filter(pl.col("decision") == "accepted").select(*training, "round", "center", "peer")
    both = pl.concat([met, met.rename({"center": "peer", "peer": "center"}).select(met.columns)])
    counts = both.unique().group_by("center", "peer").len()
    # What a hospital's model weighs, as mean over all trainings; a peer that a training does not name has no
    # weight in it. The peer is null for all hospitals together.
    stated = trail.filter(pl.col("decision") == "weight")
    trainings = stated.select(*training, "round").n_unique()
    weights = stated.group_by("center", "peer").agg((pl.col("score").sum() / trainings).alias("share"))
    named = weights.filter(pl.col("peer").is_not_null() & (pl.col("peer") != pl.col("center")))
    joined = counts.join(named, on=["center", "peer"], how="full", coalesce=True)
    joined = joined.with_columns(pl.col("len").fill_null(0), pl.col("share").fill_null(math.nan)).sort(
        "center", pl.col("share").fill_nan(-1.0), "len", "peer", descending=[False, True, True, False]
    )
    stories: dict[str, dict[str, Any]] = {}
    for (name,), group in joined.group_by("center", maintain_order=True):
        found = [Partner(*row) for row in group.select("peer", "len", "share").iter_rows()]
        stories[str(name)] = {"partners": tuple(found[:MOST_PARTNERS]), "more": len(found[MOST_PARTNERS:])}
    for name, peer, share in weights.iter_rows():
        if peer is None or peer == name:
            stories.setdefault(name, {})["common" if peer is None else "own"] = share
    return stories


# ---------------------------------------------------------------- the forest plot
#
# Rows of a table with a small picture each: positions are per cent of the cell's width, so that text keeps
# its size on a phone.

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
        return self.low <= value <= self.high

    @property
    def shown(self) -> tuple[float, ...]:
        """Ticks that have a number."""
        zero = self.ticks.index(0.0) if 0.0 in self.ticks else 0
        return self.ticks if len(self.ticks) <= 4 else self.ticks[zero % 2 :: 2]


@dataclass(frozen=True, eq=False)
class ForestPlot:
    """Hospitals with at least five events, from the largest estimated gain to the largest loss; hidden: how
    many others there are."""

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
