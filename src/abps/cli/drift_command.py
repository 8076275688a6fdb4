"""``abps drift``: what changes over time and between centers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from abps import files
from abps.cli import options
from abps.core.errors import RequestError
from abps.data.roles import recorded_roles
from abps.data.synthetic.builtin import builtin_table, is_builtin
from abps.data.table import read_frame
from abps.lab import drift_analysis as analysis
from abps.report.pages import drift_page as report
from abps.report.pages.document import p_value


def drift(
    data: options.Data = "icu-synthetic",
    out: options.Out = Path("abps-drift"),
    label: options.Label = None,
    center: options.Center = None,
    group: options.Group = None,
    time: options.Time = None,
    era: Annotated[
        str | None,
        typer.Option(help="Column with eras. Default: era, anchor_year_group, or windows of --time."),
    ] = None,
    between: Annotated[str, typer.Option(help="Two comma-separated eras. Default: first and last.")] = "",
    columns: Annotated[
        str, typer.Option(help="Comma-separated columns to compare. Default: the means of the vitals.")
    ] = "",
    window: Annotated[int, typer.Option(help="Width of the windows of --time, in years.")] = 2,
    deviations: Annotated[
        float, typer.Option(help="Outlier rule: standard deviations from the era's mean.")
    ] = 3.0,
    as_json: options.Json = False,
) -> None:
    """Test a table for drift: vitals between eras, outcome between centers, windows against eras.

    Writes drift.json, drift.html (one file) and the figures. A table from `abps cohort` or `abps partition`
    knows its columns; for another one name them.

    Example: abps drift --data cohort.parquet --between "2008 - 2010,2020 - 2022" --out drift
    """
    table, roles = _read(data)
    pair = [part.strip() for part in between.split(",") if part.strip()]
    if pair and len(pair) != 2:
        raise RequestError(f"--between {between!r} must name two eras with one comma between")
    label = label or roles.get("label")
    if label is None:
        raise RequestError(f"--data {data}: name the column to predict with --label COL")
    question = analysis.Question(
        label=label,
        center=center or roles.get("center"),
        group=group or roles.get("group"),
        time=time or roles.get("time"),
        era=era,
        between=(pair[0], pair[1]) if pair else None,
        columns=tuple(part.strip() for part in columns.split(",") if part.strip()),
        window_years=window,
        deviations=deviations,
    )
    found = analysis.analyse(table, question)
    content = found.to_json()
    drawings = report.draw_all(found)
    html = report.report(found, drawings, f"Drift in {Path(data).stem if not is_builtin(data) else data}")
    files.folder(out)
    for drawing in drawings.values():
        drawing.save(out, "drift-")
    files.write_json(out / "drift.json", content)
    files.write_text(out / "drift.html", html)
    if as_json:
        print(json.dumps(content, ensure_ascii=False))
        return
    _say(found)
    typer.echo(f"written to {out}/drift.html")


def _read(data: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """The table, and the roles that it knows itself."""
    if is_builtin(data):
        table, own = builtin_table(data)
        return table, {k: v for k, v in vars(own).items() if v and k != "drop"}
    path = Path(data)
    table = read_frame(path)
    return table, {k: v for k, v in recorded_roles(path).items() if k != "drop"}


def _say(found: analysis.Drift) -> None:
    from rich.table import Table

    table = Table(title=f"{found.between[0]} compared with {found.between[1]}")
    for name in ("column", "stays", "mean", "p", "p (Holm)", "SD", "p", "p (Holm)"):
        table.add_column(name, justify="left" if name == "column" else "right", overflow="fold")
    for shift in found.shifts:
        test = shift.test
        table.add_row(
            shift.column,
            f"{test.count[0]:,} | {test.count[1]:,}",
            f"{test.mean[0]:.4g} | {test.mean[1]:.4g}",
            p_value(shift.p),
            p_value(shift.p_holm),
            f"{test.sd[0]:.3g} | {test.sd[1]:.3g}",
            p_value(shift.spread_p),
            p_value(shift.spread_p_holm),
        )
    console = options.terminal()
    console.print(table)
    many = max((s.mean.clusters for s in found.shifts if s.mean is not None), default=0)
    if many:
        console.print(f"errors clustered by {many} centers", highlight=False)
    for column, reason in found.skipped:
        console.print(f"not compared: {column} ({reason})", highlight=False)
    if found.outcome is not None:
        o = found.outcome
        if o.within_pairs:
            console.print(
                f"outcome divergence, nats: {o.between:.4f} between groups, {o.within:.4f} within "
                f"(sampling alone: {o.between_noise:.4f} and {o.within_noise:.4f})",
                highlight=False,
            )
        else:
            console.print(
                f"outcome divergence between centers: {o.between:.4f} nats "
                f"(sampling alone: {o.between_noise:.4f})",
                highlight=False,
            )
    if found.association is not None:
        a = found.association
        console.print(
            f"Cramér's V of window and era: {a.v:.3f} ({a.v_corrected:.3f} without chance); "
            f"purity {a.purity:.3f}, by chance {a.chance_purity:.3f}",
            highlight=False,
        )
