"""The cohort report: who is in and why, outcome, missing values and case mix per center."""

from __future__ import annotations

import shlex
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup
from matplotlib.figure import Figure

from abps import files
from abps.cohorts import tidy
from abps.cohorts.tidy import Cohort, Step
from abps.data import check
from abps.data.partition import CellRule, cell_sizes
from abps.report.drawing import EARLY, LATE, QUIET, blank, draw
from abps.report.pages.document import render

#: Figures show at most so many centers (the largest); tables show all.
MOST_CENTERS = 60


def report(cohort: Cohort, title: str) -> str:
    """The whole page as HTML."""
    label, center = cohort.roles.label, cohort.roles.center
    features = [c.name for c in cohort.dictionary if c.role == "feature"]
    table = cohort.table
    centers = check.center_lines(table, label, center, features)
    shown = sorted(sorted(centers, key=lambda c: (-c.stays, c.center))[:MOST_CENTERS], key=lambda c: c.center)
    names = [c.center for c in shown]
    positives = int(table[label].sum())
    low, high = check.wilson(positives, table.height)
    lines = check.feature_lines(table, features)
    some = (
        f"The {len(shown)} largest of {len(centers)} centers are shown." if len(shown) < len(centers) else ""
    )
    patient = cohort.roles.patient
    return render(
        "cohort.html",
        title=title,
        recipe=cohort.recipe,
        label=label,
        center=center,
        word=tidy.positives_word(label),
        rows=table.height,
        patients=table[patient].n_unique() if patient else None,
        positives=positives,
        rate=positives / table.height,
        low=low,
        high=high,
        centers=centers,
        features=lines,
        warnings=cohort.warnings,
        flow=Markup(flow_svg(cohort.steps, label)),
        rates=draw(
            "rates",
            "Outcome per center",
            f"Rate with its 95 % Wilson interval; the line is the rate over all. {some}",
            partial(_rates, shown, positives / table.height),
        ),
        missing=draw(
            "missing",
            "Missing values",
            f"Share of missing values, features by centers. {some}",
            partial(_missing, table, center, features, names),
        ),
        mix=draw(
            "mix",
            "Case mix",
            "Mean of each feature in a center, in standard deviations from the mean over all stays. " + some,
            partial(_mix, table, center, lines, names),
        ),
        dictionary=cohort.dictionary,
        files=cohort.files,
        options=_flat(cohort.options),
        versions=tidy.versions(),
    )


def write_cohort(made: Cohort, title: str, out: Path) -> None:
    """The table and everything beside it; nothing is written before all texts are made."""
    beside = {
        ".html": report(made, title),
        ".flow.svg": flow_svg(made.steps, made.roles.label),
        ".flow.md": tidy.flow_markdown(made.steps, made.roles.label),
        ".dictionary.md": tidy.dictionary_markdown(made.dictionary, f"{title}: columns"),
        ".dictionary.csv": tidy.dictionary_csv(made.dictionary),
    }
    for suffix, text in beside.items():
        files.write_text(out.with_suffix(suffix), text)
    tidy.write_table(made.table, tidy.of_cohort(made), out)


def next_command(made: Cohort, out: Path) -> str:
    """A command that divides this cohort into centers, and works."""
    label, center, rule = made.roles.label, made.roles.center, CellRule()
    sizes = cell_sizes(made.table[center].cast(pl.String).alias("center"), made.table[label])
    fitting = [1 for _, stays, positives in sizes.iter_rows() if not rule.reason(stays, positives)]
    how = f"--by {center}" if len(fitting) > 1 else "--iid 5 --small keep"
    return f"abps partition {shlex.quote(str(out))} {how} --out fed.parquet"


def _flat(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if v is not None and not isinstance(v, dict)}


def flow_svg(steps: tuple[Step, ...], label: str) -> str:
    """The flow of exclusions: boxes downwards, what was left out to the right, as in a clinical paper."""
    width, box, side, height, gap = 760, 380, 300, 64, 38
    word = tidy.positives_word(label)
    total = len(steps) * height + (len(steps) - 1) * gap + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" '
        f'height="{total}" role="img" aria-label="Flow of exclusions" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<defs><marker id="flow-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>',
    ]

    def text(x: float, y: float, content: str, weight: str = "normal") -> str:
        return f'<text x="{x}" y="{y}" font-weight="{weight}" fill="currentColor">{escape(content)}</text>'

    for i, step in enumerate(steps):
        y = 2 + i * (height + gap)
        last = i == len(steps) - 1
        head = step.label if i == 0 else ("Cohort" if last else "Remaining")
        people = "" if step.patients is None else f"{step.patients:,} patients, "
        parts += [
            f'<rect x="2" y="{y}" width="{box}" height="{height}" rx="3" '
            f'fill="{"#2f7fb8" if last else "none"}" fill-opacity="0.15" stroke="currentColor"/>',
            text(14, y + 19, head, "bold"),
            text(14, y + 37, f"{step.stays:,} stays" if people else f"{step.stays:,} rows"),
            text(14, y + 54, f"{people}{step.positives:,} {word}"),
        ]
        if i:
            top, middle = y - gap, y - gap / 2
            parts += [
                f'<path d="M{box / 2} {top}V{y - 2}" stroke="currentColor" marker-end="url(#flow-arrow)"/>',
                f'<path d="M{box / 2} {middle}H{width - side - 4}" stroke="currentColor" '
                'marker-end="url(#flow-arrow)"/>',
                f'<rect x="{width - side - 2}" y="{middle - 24}" width="{side}" height="48" rx="3" '
                'fill="none" stroke="#8a8f98"/>',
                text(width - side + 8, middle - 6, f"Left out: {step.left_out:,}", "bold"),
                text(width - side + 8, middle + 13, _short(step.label, 46)),
            ]
    return "\n".join([*parts, "</svg>"])


def _short(content: str, most: int) -> str:
    return content if len(content) <= most else content[: most - 1] + "…"


def _rates(lines: list[check.CenterLine], overall: float) -> Figure:
    """Rate and interval per center, as horizontal bars of uncertainty."""
    drawn = blank(7.6, max(1.6, 0.6 + 0.17 * len(lines)))
    axes = drawn.subplots()
    y = np.arange(len(lines))[::-1]
    rate = np.array([100 * c.rate for c in lines])
    low = np.array([100 * c.low for c in lines])
    high = np.array([100 * c.high for c in lines])
    axes.hlines(y, low, high, color=QUIET, linewidth=1.5)
    size = 8 + 30 * np.sqrt(np.array([c.stays for c in lines]) / max(c.stays for c in lines))
    axes.scatter(rate, y, s=size, color=EARLY, zorder=3)
    axes.axvline(100 * overall, color=LATE, linewidth=1)
    axes.set_yticks(y, [f"{c.center} ({c.stays:,})" for c in lines], fontsize=8)
    axes.set_xlabel("outcome rate, %")
    axes.set_ylim(-0.8, len(lines) - 0.2)
    axes.set_xlim(left=0)
    return drawn


def _grid(
    values: np.ndarray[Any, Any], rows: list[str], columns: list[str], cmap: str, low: float, high: float
) -> Figure:
    """A heat map, features down, centers across."""
    drawn = blank(max(4.5, min(9.5, 2.6 + 0.22 * len(columns))), max(1.8, 1.0 + 0.15 * len(rows)))
    axes = drawn.subplots()
    # one embedded image: as paths, thousands of cells would make the page several megabytes
    shown = np.ma.masked_invalid(values)
    image = axes.imshow(shown, cmap=cmap, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    axes.set_yticks(np.arange(len(rows)), rows, fontsize=6.5)
    axes.set_xticks(np.arange(len(columns)), columns, fontsize=6.5, rotation=90)
    axes.tick_params(length=0)
    drawn.colorbar(image, ax=axes, shrink=0.5, aspect=18)
    return drawn


def _missing(table: pl.DataFrame, center: str, features: list[str], names: list[str]) -> Figure:
    shares = (
        table.group_by(pl.col(center).cast(pl.String).fill_null("unknown").alias("center"))
        .agg(pl.col(features).is_null().mean())
        .filter(pl.col("center").is_in(names))
        .sort("center")
    )
    values = 100 * shares.select(features).to_numpy().T
    return _grid(values, features, shares["center"].to_list(), "magma_r", 0, 100)


def _mix(table: pl.DataFrame, center: str, lines: list[check.FeatureLine], names: list[str]) -> Figure:
    used = [line for line in lines if line.mean is not None]
    mix = check.case_mix(table, center, [line.name for line in used]).filter(pl.col("center").is_in(names))
    spread = [
        line.sd or float(np.sqrt(max(1e-12, line.mean * (1 - line.mean))))
        for line in used
        if line.mean is not None
    ]
    means = np.array([line.mean for line in used], dtype=np.float64)
    values = (mix.select([line.name for line in used]).to_numpy().astype(np.float64) - means) / np.array(
        spread
    )
    return _grid(values.T, [line.name for line in used], mix["center"].to_list(), "PuOr", -1.5, 1.5)
