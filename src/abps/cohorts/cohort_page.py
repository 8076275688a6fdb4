"""The cohort report: who is in and why, outcome, missing values and case mix per center."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup
from matplotlib.figure import Figure

from abps import files
from abps.cohorts import partition, tidy
from abps.cohorts.tidy import Cohort, Step
from abps.evaluate.performance import share
from abps.report.document import render
from abps.report.drawing import EARLY, LATE, QUIET, blank, draw

#: Figures show at most so many centers (the largest); tables show all.
MOST_CENTERS = 60


def report(cohort: Cohort, title: str) -> str:
    label, center, table = cohort.roles.label, cohort.roles.center, cohort.table
    features = [c.name for c in cohort.dictionary if c.role == "feature"]
    centers = partition.center_lines(table, label, center, features)
    shown = sorted(sorted(centers, key=lambda c: (-c.stays, c.center))[:MOST_CENTERS], key=lambda c: c.center)
    names = [c.center for c in shown]
    positives = int(table[label].sum())
    rate = share(positives, table.height)
    lines = partition.feature_lines(table, features)
    few = (
        f" The {len(shown)} largest of {len(centers)} centers are shown." if len(shown) < len(centers) else ""
    )
    patient = cohort.roles.patient
    rates = "Rate with its 95 % Wilson interval; the line is the rate over all."
    mix = "Mean of each feature in a center, in standard deviations from the mean over all stays."
    return render(
        "cohort.html",
        title=title,
        cohort=cohort,
        word=tidy.positives_word(label),
        patients=table[patient].n_unique() if patient else None,
        positives=positives,
        rate=positives / table.height,
        low=rate.low,
        high=rate.high,
        centers=centers,
        features=lines,
        flow=Markup(flow_svg(cohort.steps, label)),
        rates=draw(
            "rates", "Outcome per center", rates + few, partial(_rates, shown, positives / table.height)
        ),
        missing=draw(
            "missing",
            "Missing values",
            f"Share of missing values, features by centers.{few}",
            partial(_missing, table, center, features, names),
        ),
        mix=draw("mix", "Case mix", mix + few, partial(_mix, table, center, lines, names)),
        options={k: v for k, v in cohort.options.items() if v is not None and not isinstance(v, dict)},
        versions=tidy.versions(),
    )


def write_cohort(made: Cohort, title: str, out: Path) -> None:
    """The table and everything beside it; nothing is written before all texts are made."""
    beside = {
        ".html": report(made, title),
        ".flow.svg": flow_svg(made.steps, made.roles.label),
        ".dictionary.csv": pl.DataFrame(made.dictionary).rename({"name": "column"}).write_csv(),
    }
    for suffix, text in beside.items():
        files.write_text(out.with_suffix(suffix), text)
    tidy.write_table(made.table, tidy.of_cohort(made), out)


def next_command(made: Cohort, out: Path) -> str:
    """A command that divides this cohort into centers, and works."""
    label, center, rule = made.roles.label, made.roles.center, partition.CellRule()
    sizes = partition.cell_sizes(made.table[center].cast(pl.String).alias("center"), made.table[label])
    fitting = [1 for _, stays, positives in sizes.iter_rows() if not rule.reason(stays, positives)]
    how = f"--by {center}" if len(fitting) > 1 else "--iid 5 --small keep"
    return f"abps partition {shlex.quote(str(out))} {how} --out fed.parquet"


def flow_svg(steps: Sequence[Step], label: str) -> str:
    return render("cohort_flow.svg", steps=steps, word=tidy.positives_word(label)).strip()


def _rates(lines: list[partition.CenterLine], overall: float) -> Figure:
    drawn = blank(7.6, max(1.6, 0.6 + 0.17 * len(lines)))
    axes = drawn.subplots()
    y = np.arange(len(lines))[::-1]
    rate, low, high, stays = np.array([(c.rate, c.low, c.high, c.stays) for c in lines]).T
    axes.hlines(y, 100 * low, 100 * high, color=QUIET, linewidth=1.5)
    axes.scatter(100 * rate, y, s=8 + 30 * np.sqrt(stays / stays.max()), color=EARLY, zorder=3)
    axes.axvline(100 * overall, color=LATE, linewidth=1)
    axes.set_yticks(y, [f"{c.center} ({c.stays:,})" for c in lines], fontsize=8)
    axes.set_xlabel("outcome rate, %")
    axes.set_ylim(-0.8, len(lines) - 0.2)
    axes.set_xlim(left=0)
    return drawn


def _grid(
    values: np.ndarray[Any, Any], rows: list[str], columns: list[str], cmap: str, low: float, high: float
) -> Figure:
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


def _by_center(table: pl.DataFrame, center: str, names: list[str], values: pl.Expr) -> pl.DataFrame:
    key = pl.col(center).cast(pl.String).fill_null("unknown").alias("center")
    return table.group_by(key).agg(values).filter(pl.col("center").is_in(names)).sort("center")


def _missing(table: pl.DataFrame, center: str, features: list[str], names: list[str]) -> Figure:
    shares = _by_center(table, center, names, pl.col(features).is_null().mean())
    values = 100 * shares.select(features).to_numpy().T
    return _grid(values, features, shares["center"].to_list(), "magma_r", 0, 100)


def _mix(table: pl.DataFrame, center: str, lines: list[partition.FeatureLine], names: list[str]) -> Figure:
    """Numbers and yes/no columns; a category's first level would mislead."""
    used = {line.name: line for line in lines if line.mean is not None}
    mix = _by_center(table, center, names, pl.col(list(used)).cast(pl.Float64).mean())
    means = np.array([line.mean for line in used.values()], dtype=np.float64)
    spread = [line.sd or np.sqrt(max(1e-12, m * (1 - m))) for line, m in zip(used.values(), means)]
    values = (mix.select(list(used)).to_numpy() - means) / np.array(spread)
    return _grid(values.T, list(used), mix["center"].to_list(), "PuOr", -1.5, 1.5)
