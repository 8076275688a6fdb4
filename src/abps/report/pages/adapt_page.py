"""The page of ``abps simulate-drift``: accuracy around the change, alarms, and partners that re-form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from abps import files
from abps.lab.drift_simulation import AFTER, DriftRun, Scenario, alarm_rates, differences, scenario_changed
from abps.report.drawing import EARLY, LATE, QUIET, Drawing, blank, draw
from abps.report.pages.document import render

Floats = NDArray[np.float64]

#: A colour and a dash per way to forget.
LOOKS = {
    "never": (QUIET, "--"),
    "alarm": (LATE, "-"),
    "window": (EARLY, "-."),
    "discount": (EARLY, ":"),
}


def write(out: Path, scenario: Scenario, courses: Sequence[DriftRun], method: str) -> Path:
    """Write the figures, the tables, adapt.json and adapt.html into ``out``; gives back the page."""
    figures = {drawing.name: drawing for drawing in _draw_all(scenario, courses)}
    for drawing in figures.values():
        drawing.save(out / "figures")
    content = summary(scenario, courses, method)
    files.write_with(out / "tables" / "courses.csv", table(courses).write_csv)
    files.write_json(out / "adapt.json", content)
    html = render(
        "adapt.html",
        title=f"Drift and recovery: {method}",
        figures=figures,
        scenario=scenario,
        content=content,
        after=AFTER,
    )
    files.write_text(out / "adapt.html", html)
    return out / "adapt.html"


def _draw_all(scenario: Scenario, courses: Sequence[DriftRun]) -> list[Drawing]:
    return [
        draw(
            "accuracy",
            "Accuracy",
            "Mean AUROC over centers, on the test rows of the window in force. Thin: one seed.",
            partial(curves, scenario, courses),
        ),
        draw(
            "partners",
            "Partners and alarms",
            "Left: share of partners that follow the same risk function. Right: centers that raised "
            "an alarm.",
            partial(partners, scenario, courses),
        ),
        draw(
            "who-with-whom",
            "Who with whom",
            "How often two centers worked together (first seed); centers ordered by the risk function "
            "that they follow at the time, lines between these groups.",
            partial(meetings, scenario, courses),
        ),
    ]


def summary(scenario: Scenario, courses: Sequence[DriftRun], method: str) -> dict[str, Any]:
    """What came out, for machines."""
    return {
        "schema": "abps.adapt/1",
        "method": method,
        "changing": scenario.changing,
        "still": scenario.still,
        "begins": scenario.begins,
        "differences": [
            {
                **asdict(d),
                "wins": d.wins,
                "gain": d.gain,
                "loss_when_still": d.loss_when_still,
            }
            for d in differences(scenario, courses)
        ],
        "watched": [asdict(w) for w in alarm_rates(scenario, courses)],
        "runs": len(courses),
    }


def table(courses: Sequence[DriftRun]) -> pl.DataFrame:
    """One row per run and round."""
    return pl.DataFrame(
        [
            {
                "changing": c.changing,
                "forget": c.forget,
                "seed": c.seed,
                "round": t + 1,
                "auroc": float(c.auroc[t]),
                "alike": float(c.alike[t]),
                "alarms": sum(when == t + 1 for when, _, _ in c.alarms),
            }
            for c in courses
            for t in range(len(c.auroc))
        ]
    )


def _ways(courses: Sequence[DriftRun]) -> list[str]:
    return list(dict.fromkeys(c.forget for c in courses))


def _look(way: str) -> tuple[str, str]:
    return LOOKS.get(way, (EARLY, ":"))


def _mean(rows: list[Floats]) -> Floats:
    """Mean over runs, round by round, of what is known."""
    stacked = np.stack(rows)
    known = np.isfinite(stacked)
    return np.asarray(np.where(known, stacked, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))


def curves(scenario: Scenario, courses: Sequence[DriftRun]) -> Figure:
    """Accuracy by round, where the federation changes and where it does not."""
    figure = blank(8.0, 3.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, changing in zip(panels, (True, False), strict=True):
        for way in _ways(courses):
            rows = [c.auroc for c in courses if c.forget == way and c.changing == changing]
            colour, dash = _look(way)
            for row in rows:
                axes.plot(np.arange(1, len(row) + 1), row, color=colour, alpha=0.25, linewidth=0.7)
            if rows:
                axes.plot(
                    np.arange(1, len(rows[0]) + 1), _mean(rows), dash, color=colour, label=f"forget {way}"
                )
        axes.set(xlabel="round", title="with the change" if changing else "without")
        if changing:
            axes.axvline(scenario.begins, color=QUIET, linewidth=0.8)
    # From where the first rounds have led: their climb would leave nothing of the scale for the rest.
    known = np.concatenate([c.auroc[min(10, len(c.auroc) // 2) :] for c in courses])
    panels[0].set_ylim(bottom=float(np.nanmin(known)) - 0.02)
    panels[0].set_ylabel("AUROC on the window in force")
    panels[0].legend(frameon=False, loc="lower right")
    return figure


def partners(scenario: Scenario, courses: Sequence[DriftRun]) -> Figure:
    """Share of partners with the same risk function, and alarms."""
    figure = blank(8.0, 3.2)
    left, right = figure.subplots(1, 2)
    changed = scenario_changed(scenario.knobs)
    for way in _ways(courses):
        rows = [c.alike for c in courses if c.forget == way and c.changing]
        colour, dash = _look(way)
        if rows:
            left.plot(np.arange(1, len(rows[0]) + 1), _mean(rows), dash, color=colour, label=f"forget {way}")
    left.axvline(scenario.begins, color=QUIET, linewidth=0.8)
    left.set(xlabel="round", ylabel="partners with the same risk function", ylim=(0, 1.02))
    left.legend(frameon=False, loc="lower right")
    raised = [c for c in courses if c.changing and c.forget == "alarm"]
    rounds = scenario.knobs.rounds
    for members, colour, name in ((True, LATE, "changed"), (False, EARLY, "not changed")):
        count = np.zeros(rounds)
        for c in raised:
            for t, who in {(t, who) for t, who, _ in c.alarms}:
                count[t - 1] += (who in changed) == members
        total = sum(sum((name in changed) == members for name in c.centers) for c in raised)
        shift = -0.2 if members else 0.2
        right.bar(np.arange(1, rounds + 1) + shift, count / max(total, 1), 0.4, color=colour, label=name)
    right.set(xlabel="round", ylabel="share of centers with an alarm", ylim=(0, 1.02))
    right.legend(frameon=False)
    return figure


def meetings(scenario: Scenario, courses: Sequence[DriftRun]) -> Figure:
    """Who worked with whom before and after the change, first seed; centers by the unit that they follow."""
    knobs, begins = scenario.knobs, scenario.begins
    ways = _ways(courses)
    figure = blank(8.0, 2.7 * len(ways))
    spans = (
        (f"rounds {max(1, begins - AFTER)}–{begins - 1}", max(0, begins - 1 - AFTER), begins - 1),
        (f"rounds {begins}–{begins + AFTER - 1}", begins - 1, begins - 1 + AFTER),
        (f"the last {AFTER} rounds", knobs.rounds - AFTER, knobs.rounds),
    )
    grid = figure.subplots(len(ways), 3, squeeze=False)
    eras = (knobs.follows(0), *[knobs.follows(knobs.eras - 1)] * 2)
    for row, way in zip(grid, ways, strict=True):
        mine = [c for c in courses if c.changing and c.forget == way]
        for axes, (title, first, last), follows in zip(row, spans, eras, strict=True):
            axes.set_xticks([])
            axes.set_yticks([])
            if not mine:
                continue
            c = mine[0]
            order = sorted(range(len(c.centers)), key=lambda k: (follows[c.centers[k]], c.centers[k]))
            share = c.meetings[first:last].mean(axis=0)[np.ix_(order, order)]
            axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
            units = [follows[c.centers[k]] for k in order]
            for edge in [k for k in range(1, len(units)) if units[k] != units[k - 1]]:
                axes.axhline(edge - 0.5, color=LATE, linewidth=0.8)
                axes.axvline(edge - 0.5, color=LATE, linewidth=0.8)
            if way == ways[0]:
                axes.set_title(title)
        row[0].set_ylabel(f"forget {way}")
    return figure
