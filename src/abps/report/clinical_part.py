"""The clinical part of a report: calibration, decisions, subgroups, and hospitals that were left out.

Numbers are means over repeats. An interval is the mean of the repeats' intervals. What a single repeat hides
because it is small stays hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from abps.engine.clinical import Clinical, Cut, Interval, Subgroup
from abps.report.analysis import MethodLine, MethodResult, Part
from abps.report.drawing import EARLY, INK, LATE, QUIET, Drawing, blank, draw
from abps.report.hospitals import calibrations, mean_interval, mean_of
from abps.report.study_tables import listed
from abps.report.tables import NOTHING, Table, number, signed

#: Names in a sentence; more are counted.
MOST_NAMES = 5
HIDDEN = "too few rows or events to show"


@dataclass(frozen=True, eq=False)
class ClinicalPart:
    """What the page shows.  absent: why there is nothing, where there is nothing.

    label: the method that it is about.  tables, drawings: some may be missing.
    """

    label: str
    absent: str = ""
    sentences: tuple[str, ...] = ()
    cuts: Table | None = None
    subgroups: Table | None = None
    drawings: tuple[Drawing, ...] = ()

    @property
    def tables(self) -> list[Table]:
        """Those that there are."""
        return [table for table in (self.cuts, self.subgroups) if table is not None]


def clinical_part(part: Part) -> ClinicalPart:
    """The clinical part of one federation."""
    line = part.lead or part.lines[0]
    label = line.result.label
    if part.measure != "AUROC" or line.result.runs[0].score is not None:
        return ClinicalPart(
            label,
            "Decisions, subgroups and recalibration need an outcome that happens or does not. The scores of "
            "this outcome stand in the tables.",
        )
    if not has_clinical(line.result):
        return ClinicalPart(
            label,
            "These runs were stored by a version that did not keep what is shown here. The same comparison "
            "asked for again has it.",
        )
    shown = [line.result, *_others(part, label)]
    return ClinicalPart(
        label,
        sentences=tuple(_sentences(part, line)),
        cuts=_cuts(shown),
        subgroups=_subgroups(shown),
        drawings=tuple(_drawings(shown)),
    )


def has_clinical(result: MethodResult) -> bool:
    """Whether every run of a method keeps what clinicians ask for."""
    return all(run.clinical.per_center for run in result.runs)


def _others(part: Part, label: str) -> list[MethodResult]:
    """What a method is shown beside: a hospital alone, and FedAvg."""
    names = [name for name in (part.alone or "", "fedavg") if name != label]
    found = [part.find(name) for name in names]
    return [result for result in found if result is not None and has_clinical(result)]


def within(found: Interval, digits: int = 2, show: Callable[[float, int], str] = number) -> str:
    """A number with its interval in brackets, or that there are too few events."""
    if not found.known:
        return "too few events"
    return f"{show(found.value, digits)} ({show(found.low, digits)} to {show(found.high, digits)})"


# ---------------------------------------------------------------- sentences and tables


def _sentences(part: Part, line: MethodLine) -> list[str]:
    """Calibration of all hospitals together, in words."""
    result = line.result
    said: list[str] = []
    each = {name: c for name in part.centers if (c := calibrations(result, name)) is not None}
    known = {name: c for name, c in each.items() if c.before.in_the_large.known}
    if not known:
        return [*said, "No hospital has the five events and five others that its calibration needs."]
    off = {
        name: c.before.in_the_large
        for name, c in known.items()
        if c.before.in_the_large.low > 0 or c.before.in_the_large.high < 0
    }
    low = [name for name, level in off.items() if level.value > 0]
    high = [name for name, level in off.items() if level.value < 0]
    sides = [
        f"too low at {_names(low)}" if low else "",
        f"too high at {_names(high)}" if high else "",
    ]
    away = "; ".join(side for side in sides if side)
    said.append(
        f"Level of the probabilities, at {len(known)} of {len(part.centers)} hospitals with enough events: "
        + (
            f"{away}; right within its interval elsewhere."
            if away
            else "right within its interval at all of them."
        )
    )
    mended = sum(c.mended > 0 for c in each.values())
    said.append(
        f"Validation rows asked for a recalibration in at least one repeat at {mended} of {len(each)} "
        "hospitals; decisions and subgroups below are shown after it, as abps fit hands models out."
    )
    return said


def _names(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMES:
        return f"{len(names)} hospitals ({', '.join(names[:MOST_NAMES])} …)"
    return listed(names)


def _cuts(shown: Sequence[MethodResult]) -> Table | None:
    """What happens at some thresholds, method beside method."""
    rows = []
    names = dict.fromkeys(cut.name for run in shown[0].runs for cut in run.clinical.cuts)
    for name in names:
        for result in shown:
            cuts: list[Cut] = [c for run in result.runs for c in run.clinical.cuts if c.name == name]
            if cuts:
                rows.append((_cut_name(name, cuts), result.label, *_cut_cells(cuts)))
    if not rows:
        return None
    return Table(
        "thresholds",
        "What happens if everybody at or above a threshold is called",
        (
            "threshold", "method", "net benefit per 1,000", "called", "sensitivity", "specificity",
            "positive value", "negative value",
        ),
        tuple(rows),
        (
            "All test rows, each by its own hospital's model after recalibration. The first two thresholds "
            "come from validation rows: where nine of ten events are called, and the event rate.",
            "Net benefit per 1,000 stays: events called, less false calls weighed by the odds of the "
            "threshold; calling nobody has 0.",
            "Intervals (Wilson, 95 %) are as wide as one repeat leaves them.",
        ),
    )  # fmt: skip


def _cut_name(name: str, cuts: Sequence[Cut]) -> str:
    at = f"{100 * mean_of(cut.threshold for cut in cuts):.1f} %"
    return at if name[0].isdigit() else f"{at} ({name})"


def _cut_cells(cuts: Sequence[Cut]) -> tuple[str, ...]:
    kinds = ("called", "sensitivity", "specificity", "positive_value", "negative_value")
    shares = [_share(mean_interval(getattr(cut, kind) for cut in cuts)) for kind in kinds]
    return (signed(1000 * mean_of(cut.net_benefit for cut in cuts), 1), *shares)


def _share(found: Interval) -> str:
    if not found.known:
        return NOTHING
    return f"{100 * found.value:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f})"


def _subgroups(shown: Sequence[MethodResult]) -> Table | None:
    """Parts of the cohort: the method beside a hospital alone."""
    lead, *others = shown
    beside = others[0] if others else None
    rows = []
    columns = dict.fromkeys(column for run in lead.runs for column in run.clinical.subgroups)
    for column in columns:
        names = dict.fromkeys(s.name for run in lead.runs for s in run.clinical.subgroups.get(column, ()))
        for name in sorted(names):
            mine = _parts_named(lead, column, name)
            if not all(part.auroc.known for part in mine):
                rows.append((column, name, "hidden", "hidden", HIDDEN, *([""] if beside else []), ""))
                continue
            size, events = (mean_of(getattr(part, what) for part in mine) for what in ("rows", "events"))
            alone = []
            if beside is not None:
                alone = [within(mean_interval(p.auroc for p in _parts_named(beside, column, name)), 3)]
            if any(part.hidden for part in mine):
                area = within(mean_interval(part.auroc for part in mine), 3)
                rows.append((column, name, "hidden", "hidden", area, *alone, ""))
                continue
            rows.append(
                (
                    column, name, f"{size:,.0f}", f"{events:,.0f}",
                    within(mean_interval(part.auroc for part in mine), 3), *alone,
                    number(mean_of(part.ratio for part in mine), 2),
                )
            )  # fmt: skip
    if not rows:
        return None
    heads = ["column", "part", "rows", "events", f"AUROC, {lead.label}"]
    heads += [f"AUROC, {beside.label}"] if beside is not None else []
    return Table(
        "subgroups",
        "Parts of the cohort",
        (*heads, f"observed / expected, {lead.label}"),
        tuple(rows),
        (
            "Test rows of all hospitals, each by its own hospital's model after recalibration; means over "
            "repeats, 95 % intervals (DeLong) as wide as one repeat leaves them.",
            "A part that has fewer than 10 rows, 5 events or 5 others in any split is hidden; where it would "
            "be the only one, so are the counts of the next smallest.",
        ),
    )


def _parts_named(result: MethodResult, column: str, name: str) -> list[Subgroup]:
    return [s for run in result.runs for s in run.clinical.subgroups.get(column, ()) if s.name == name]


# ---------------------------------------------------------------- figures


def _drawings(shown: Sequence[MethodResult]) -> list[Drawing]:
    found = []
    if all(run.clinical.thresholds for result in shown for run in result.runs):
        found.append(
            draw(
                "decisions",
                "Decision curves",
                "Net benefit of acting at a threshold, per 1,000 stays: a model is worth using where its "
                "line lies above those of calling everybody and nobody. Mean over repeats, recalibrated.",
                partial(decision_figure, shown),
            )
        )
    if any(run.clinical.curve for run in shown[0].runs):
        found.append(
            draw(
                "calibration-curve",
                f"Calibration of {shown[0].label}",
                "Smooth curves, one for every repeat: the share of events among rows by predicted "
                "probability. Dashed: as it should be.",
                partial(calibration_figure, shown[0]),
            )
        )
    return found


#: Lines of a decision curve: distinguished by colour and by dashes.
_LINES = ((EARLY, "-"), (LATE, (0, (5, 2))), (QUIET, (0, (2, 1.5))))


def decision_figure(shown: Sequence[MethodResult]) -> Figure:
    """Net benefit over thresholds."""
    figure = blank(7.2, 3.8)
    axes = figure.add_subplot()
    curves = []
    for result, (tint, dashes) in zip(shown, _LINES):
        t, benefit = _mean_curve([run.clinical for run in result.runs], "net_benefit")
        curves.append(benefit)
        axes.plot(100 * t, 1000 * benefit, color=tint, linestyle=dashes, linewidth=1.6, label=result.label)
    t, everyone = _mean_curve([run.clinical for run in shown[0].runs], "everyone")
    axes.plot(100 * t, 1000 * everyone, color=INK, alpha=0.6, linewidth=1.0, label="call everybody")
    axes.axhline(0.0, color=INK, alpha=0.6, linewidth=0.8, linestyle=(0, (1, 2)), label="call nobody")
    highest = 1000 * max(float(np.max(curve)) for curve in curves)
    axes.set_ylim(-0.15 * max(highest, 1.0), 1.08 * max(highest, 1.0))
    axes.set_xlim(0, 100 * float(t[-1]))
    axes.set_xlabel("threshold, %")
    axes.set_ylabel("net benefit per 1,000 stays")
    axes.legend(loc="upper right")
    axes.grid(color=INK, alpha=0.12, linewidth=0.5)
    return figure


def _mean_curve(clinics: Sequence[Clinical], name: str) -> tuple[np.ndarray, np.ndarray]:
    thresholds = np.array(clinics[0].thresholds)
    return thresholds, np.mean([getattr(c, name) for c in clinics], axis=0)


def calibration_figure(result: MethodResult) -> Figure:
    """Smooth calibration curves of every repeat: as predicted, and after recalibration."""
    figure = blank(7.2, 3.5)
    panels = (("curve", LATE, "as predicted"), ("curve_after", EARLY, "after recalibration"))
    curves = {name: [getattr(run.clinical, name) for run in result.runs] for name, _, _ in panels}
    every = [point for found in curves.values() for curve in found for point in curve]
    highest = min(1.0, 1.05 * max(max(point) for point in every))
    for axes, (name, tint, words) in zip(figure.subplots(1, 2, sharey=True), panels):
        for points in curves[name]:
            if points:
                predicted, seen = np.array(points).T
                axes.plot(predicted, seen, color=tint, alpha=0.75, linewidth=1.3)
        axes.plot([0, highest], [0, highest], color=INK, alpha=0.5, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set(xlim=(0, highest), ylim=(0, highest), xlabel="predicted probability", title=words)
        axes.grid(color=INK, alpha=0.12, linewidth=0.5)
    figure.axes[0].set_ylabel("share of events")
    return figure
