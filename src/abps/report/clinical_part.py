"""The clinical part of a report: calibration, decision curves and subgroups, as means over repeats; so are
the ends of an interval. What is small in a single repeat stays hidden."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from abps.evaluate.calibration import Interval
from abps.report.analysis import MethodLine, Part, mean_of
from abps.report.drawing import EARLY, INK, LATE, QUIET, Drawing, blank, draw
from abps.report.hospitals import HospitalStory, mean_interval
from abps.report.tables import Table, number


@dataclass(frozen=True, eq=False)
class ClinicalPart:
    """What the page shows, or why there is nothing (absent).  judged, low, high: hospitals with enough events
    to judge the level of the probabilities, and where it is too low or too high.  recalibrated: where
    validation rows asked for it in at least one repeat."""

    absent: str = ""
    judged: int = 0
    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()
    recalibrated: int = 0
    subgroups: Table | None = None
    decisions: Drawing | None = None


def clinical_part(part: Part, hospitals: Sequence[HospitalStory]) -> ClinicalPart:
    lead = part.lead
    if lead is None or part.measure != "AUROC":
        return ClinicalPart("This needs a method that exchanges something and a binary outcome.")
    if not _has_clinical(lead):
        return ClinicalPart("These runs were stored without it. The same comparison asked for again has it.")
    each = {h.name: h.calibration for h in hospitals if h.calibration is not None}
    levels = {name: c.in_the_large for name, c in each.items() if c.in_the_large.known}
    beside = [part.find(name) for name in (part.alone, "fedavg") if name != lead.label]
    shown = [lead, *(line for line in beside if line is not None and _has_clinical(line))]
    low = tuple(name for name, level in levels.items() if level.low > 0)
    high = tuple(name for name, level in levels.items() if level.high < 0)
    mended = sum(c.mended > 0 for c in each.values())
    caption = (
        "Net benefit of acting at a threshold, per 1,000 stays: a model is worth using where its line lies "
        "above those of calling everybody and nobody. Mean over repeats, recalibrated."
    )
    decisions = draw("decisions", "Decision curves", caption, partial(decision_figure, shown))
    return ClinicalPart("", len(levels), low, high, mended, _subgroups(*shown[:2]), decisions)


def _has_clinical(line: MethodLine) -> bool:
    return all(run.clinical.per_center and run.clinical.thresholds for run in line.runs)


def within(found: Interval, digits: int = 2, unknown: str = "too few events") -> str:
    """A number with its interval in brackets, or that there are too few events."""
    if not found.known:
        return unknown
    return f"{number(found.value, digits)} ({number(found.low, digits)} to {number(found.high, digits)})"


def _subgroups(lead: MethodLine, beside: MethodLine | None = None) -> Table | None:
    shown = [lead] if beside is None else [lead, beside]
    rows = []
    for column, name in dict.fromkeys(
        (column, part.name)
        for run in lead.runs
        for column, parts in run.clinical.subgroups.items()
        for part in parts
    ):
        mine, *other = (
            [s for run in line.runs for s in run.clinical.subgroups.get(column, ()) if s.name == name]
            for line in shown
        )
        small = "" if all(part.auroc.known for part in mine) else "too few rows or events to show"
        areas = [small or within(mean_interval(p.auroc for p in parts), 3) for parts in (mine, *other)]
        counts, ratio = ["hidden", "hidden"], ""
        if not any(part.hidden for part in mine):
            counts = [f"{mean_of(getattr(part, each) for part in mine):,.0f}" for each in ("rows", "events")]
            ratio = number(mean_of(part.ratio for part in mine), 2)
        rows.append((column, name, *counts, *areas, ratio))
    if not rows:
        return None
    areas = [f"AUROC, {line.label}" for line in shown]
    return Table(
        "subgroups",
        "Parts of the cohort",
        ("column", "part", "rows", "events", *areas, f"observed / expected, {lead.label}"),
        tuple(sorted(rows, key=lambda row: row[:2])),
        (
            "Test rows of all hospitals, each by its own hospital's model after recalibration; means over "
            "repeats, 95 % intervals (DeLong) as wide as one repeat leaves them.",
            "A part that has fewer than 10 rows, 5 events or 5 others in any split is hidden; where it would "
            "be the only one, so are the counts of the next smallest.",
        ),
    )


#: Lines of a decision curve: distinguished by colour and by dashes.
_LINES = ((EARLY, "-"), (LATE, (0, (5, 2))), (QUIET, (0, (2, 1.5))))


def decision_figure(shown: Sequence[MethodLine]) -> Figure:
    figure = blank(7.2, 3.8)
    axes = figure.add_subplot()
    t = 100 * np.array(shown[0].runs[0].clinical.thresholds)
    curves = [1000 * np.mean([run.clinical.net_benefit for run in line.runs], axis=0) for line in shown]
    for line, curve, (tint, dashes) in zip(shown, curves, _LINES):
        axes.plot(t, curve, color=tint, linestyle=dashes, linewidth=1.6, label=line.label)
    everyone = 1000 * np.mean([run.clinical.everyone for run in shown[0].runs], axis=0)
    axes.plot(t, everyone, color=INK, alpha=0.6, linewidth=1.0, label="call everybody")
    axes.axhline(0.0, color=INK, alpha=0.6, linewidth=0.8, linestyle=(0, (1, 2)), label="call nobody")
    highest = max(float(np.max(curves)), 1.0)
    axes.set(xlim=(0, t[-1]), ylim=(-0.15 * highest, 1.08 * highest))
    axes.set(xlabel="threshold, %", ylabel="net benefit per 1,000 stays")
    axes.legend(loc="upper right")
    axes.grid(color=INK, alpha=0.12, linewidth=0.5)
    return figure
