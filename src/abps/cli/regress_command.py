"""``abps regress``: effects with intervals, and how far hospitals differ in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options
from abps.core.errors import RequestError


def regress(
    data: Annotated[Path, typer.Option(help="A CSV, Parquet or Excel file.")],
    label: Annotated[
        str, typer.Option(help="The outcome: 0 or 1, a count, a number, or with cox the event.")
    ],
    center: Annotated[str, typer.Option(help="The column that names the hospital of a row.")],
    formula: Annotated[
        str,
        typer.Option(help="Columns: 'age + sex + age:sex + spline(bmi, 3) + offset(log_days)'."),
    ] = "",
    columns: Annotated[str, typer.Option(help="Columns with commas between, instead of a formula.")] = "",
    family: Annotated[
        str, typer.Option(help="logistic, linear, poisson, or cox (stratified by hospital).")
    ] = "logistic",
    intercepts: Annotated[
        str, typer.Option(help="common (one), fixed (one per hospital) or random.")
    ] = "common",
    duration: Annotated[
        str | None, typer.Option(help="Cox: time to the event or to the end of observation.")
    ] = None,
    robust: Annotated[
        bool, typer.Option("--robust", help="Standard errors that allow for correlation within hospitals.")
    ] = False,
    min_cell: Annotated[
        int, typer.Option(help="Fewest rows and events of a level in all hospitals together.")
    ] = 10,
    out: Annotated[Path | None, typer.Option(help="Write CSV, LaTeX, HTML and JSON to this folder.")] = None,
    as_json: options.Json = False,
) -> None:
    """Estimate effects with intervals from sums over hospitals; equal to the fit on pooled rows.

    Example: abps regress --data stays.csv --label died --center hospital --formula "age + sex" --out effects
    """
    from rich.table import Table

    from abps.statistics import regression

    text = formula or " + ".join(options.split(columns))
    if not text:
        raise RequestError("name the columns: --formula 'age + sex', or --columns age,sex")
    result = regression.regress(
        data,
        label,
        center,
        text,
        family,
        intercepts,
        duration,
        robust,
        min_cell,
    )
    if out is not None:
        result.write(out)
    if as_json:
        print(json.dumps(result.to_json()))
        return
    console = options.terminal()
    console.print(regression.summary(result))
    for note in result.notes:
        console.print(note)
    head, rows = result.table()
    table = Table(box=None, pad_edge=False)
    for k, name in enumerate(head):
        table.add_column(name, justify="left" if k == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
