"""The drift report: tests, histograms, outcome over eras, divergence of centers, windows against eras."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from abps.lab.drift_analysis import Drift
from abps.report.document import p_value, render
from abps.report.drawing import EARLY, LATE, QUIET, Drawing, blank, draw


def draw_all(drift: Drift) -> dict[str, Drawing]:
    by = f"{drift.question.window_years}-year window" if drift.windows else "era"
    eras = "Distribution in the two eras; dashed lines are the means."
    share = f"Share of {drift.question.label} with its 95 % Wilson interval, per {by}."
    planned = [
        ("histograms", "The two eras", eras, histograms),
        ("rates", "Does the outcome change?", share, rates),
        ("centers", "Centers", "Outcome rate of every center, by group.", centers),
    ]
    return {
        name: draw(name, title, caption, partial(make, drift))
        for name, title, caption, make in planned
        if name != "centers" or drift.centers
    }


def report(drift: Drift, drawings: Mapping[str, Drawing], title: str) -> str:
    era_words = f"the column {drift.era_source}"
    if drift.era_source == "window":
        era_words = f"windows of {drift.question.window_years} years of {drift.question.time}"
    rows = sum(line.stays for line in drift.eras)
    clusters = max((s.mean.clusters for s in drift.shifts if s.mean is not None), default=0)
    shown = {"drift": drift, "drawings": drawings, "era_words": era_words, "rows": rows, "clusters": clusters}
    return render("drift.html", title=title, **shown)


def histograms(drift: Drift) -> Figure:
    """One panel per column: the two eras as densities, means dashed."""
    columns = min(2, len(drift.shifts))
    rows = math.ceil(len(drift.shifts) / columns)
    drawn = blank(4.2 * columns, 2.3 * rows)
    panels = drawn.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(drift.shifts) :]:
        panel.set_axis_off()
    for panel, shift in zip(panels, drift.shifts):
        width = np.diff(shift.edges)
        for counts, mean, colour, name in zip(shift.counts, shift.test.mean, (EARLY, LATE), drift.between):
            density = counts / max(1, counts.sum()) / width
            panel.stairs(density, shift.edges, fill=True, alpha=0.35, color=colour, label=name)
            panel.stairs(density, shift.edges, color=colour, linewidth=0.8)
            if mean == mean:
                panel.axvline(mean, color=colour, linestyle="--", linewidth=1)
        panel.set_title(f"{shift.column}: p = {p_value(shift.p)} (mean), {p_value(shift.spread_p)} (spread)")
        panel.set_yticks([])
    if len(drift.shifts):
        panels[0].legend(fontsize=8, frameon=False)
    return drawn


def rates(drift: Drift) -> Figure:
    lines = drift.windows or drift.eras
    drawn = blank(8.4, 2.6)
    axes = drawn.subplots()
    x = np.arange(len(lines))
    rate = np.array([100 * line.rate for line in lines])
    low, high = (np.array([100 * getattr(line, side) for line in lines]) for side in ("low", "high"))
    axes.vlines(x, low, high, color=QUIET, linewidth=1.5)
    axes.scatter(x, rate, s=16, color=EARLY, zorder=3)
    step = max(1, math.ceil(len(lines) / 14))
    axes.set_xticks(x[::step], [line.name for line in lines][::step], fontsize=8)
    axes.set_ylabel("outcome rate, %")
    axes.set_ylim(bottom=0)
    return drawn


def centers(drift: Drift) -> Figure:
    grouped = len({group for _, group, _ in drift.centers}) < len(drift.centers)
    names = sorted({group for _, group, _ in drift.centers}) if grouped else ["all centers"]
    drawn = blank(8.4, max(1.4, 0.7 + 0.3 * len(names)))
    axes = drawn.subplots()
    for y, name in enumerate(names):
        members = [line for _, group, line in drift.centers if not grouped or group == name]
        spread = np.linspace(-0.25, 0.25, len(members)) if len(members) > 1 else np.zeros(1)
        axes.scatter([100 * m.rate for m in members], y + spread, s=9, color=EARLY, alpha=0.6, linewidths=0)
        pooled = sum(m.positives for m in members) / sum(m.stays for m in members)
        axes.vlines(100 * pooled, y - 0.38, y + 0.38, color=LATE, linewidth=1.6)
    axes.set_yticks(np.arange(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("outcome rate, % (line: over the group)")
    axes.set_xlim(left=0)
    return drawn
