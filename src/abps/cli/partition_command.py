"""``abps partition``: a tidy table to centers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options
from abps.cli.check_command import COMPARE
from abps.cohorts.partition import CellRule, Partition, Recipe, divide, parse_only
from abps.cohorts.tidy import check_out, versions, write_table
from abps.core.errors import RequestError
from abps.data.federation import left_out_lines
from abps.data.roles import read_provenance
from abps.data.table import read_frame


def partition(
    table: Annotated[Path, typer.Argument(help="A tidy table: Parquet (from `abps cohort`) or CSV.")],
    by: Annotated[
        str,
        typer.Option(help="Columns that together name a center; window:2y is a window of the time column."),
    ] = "",
    dirichlet: Annotated[
        float | None, typer.Option(help="Label skew: Dirichlet(alpha) shares per class; small is uneven.")
    ] = None,
    iid: Annotated[int | None, typer.Option(help="This many equal centers at random.")] = None,
    centers: Annotated[int | None, typer.Option(help="How many centers --dirichlet makes.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Keep these values first: --only careunit=CVICU,CCU,MICU. Can be repeated."),
    ] = None,
    min_stays: Annotated[int, typer.Option(help="Stays that a center needs.")] = 50,
    min_positives: Annotated[
        int, typer.Option(help="Positive stays, and negative ones, that a center needs (one per split).")
    ] = 3,
    small: Annotated[
        str,
        typer.Option(help="Smaller cells: drop, keep, or redraw (random partitions) until there is none."),
    ] = "drop",
    seed: Annotated[int, typer.Option(help="The seed of random partitions.")] = 11,
    label: Annotated[str | None, typer.Option(help="The label column (a cohort knows its own).")] = None,
    patient: Annotated[str | None, typer.Option(help="The patient column (a cohort knows its own).")] = None,
    time: Annotated[str | None, typer.Option(help="The year column (a cohort knows its own).")] = None,
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")] = Path("fed.parquet"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON line.")] = False,
) -> None:
    """Divide a tidy table into centers; adds the column center (and group, where centers lie in one).

    Examples:

        abps partition cohort.parquet --by careunit,window:2y --out fed.parquet

        abps partition cohort.parquet --by careunit --dirichlet 1 --centers 40 --small redraw

        abps partition cohort.parquet --iid 20 --out fed.parquet
    """
    check_out(out)
    if iid is not None and centers is not None:
        raise RequestError("--iid says how many centers there are; leave --centers out")
    recipe = Recipe(
        by=options.split(by),
        dirichlet=dirichlet,
        iid=iid is not None,
        centers=iid if iid is not None else centers,
        only=tuple(parse_only(text) for text in only or []),
        seed=seed,
    )
    rule = CellRule(min_stays, min_positives, min_positives, small)
    source = read_provenance(table) if table.suffix == ".parquet" else None
    frame = read_frame(table)
    known = (source or {}).get("roles", {})
    label = label or known.get("label") or "died"
    patient = patient or known.get("patient") or ("patient" if "patient" in frame.columns else None)
    time = time or known.get("time") or ("admission_year" if "admission_year" in frame.columns else None)
    made = divide(frame, recipe, rule, label, patient, time)
    roles = _roles(made, label, patient, time, known)
    content = made.summary() | {
        "roles": roles,
        "table": {
            "name": table.name,
            "cohort": source and {k: source[k] for k in ("source", "recipe", "files")},
        },
        "columns": (source or {}).get("columns", []),
        "versions": versions(),
    }
    write_table(made.table, content, out)
    _say(made, out, roles, as_json)


def _roles(
    made: Partition, label: str, patient: str | None, time: str | None, known: dict[str, object]
) -> dict[str, object]:
    """Which columns of the divided table are no features."""
    drop = {str(c) for c in known.get("drop", ())} | {str(known.get("center", ""))}  # type: ignore[attr-defined]
    drop |= {key for key in made.recipe.by if not key.startswith("window:")}
    drop |= {column for column, _ in made.recipe.only}
    kept = [c for c in made.table.columns if c in drop and c not in (label, patient, time, "center", "group")]
    roles = {"label": label, "center": "center", "patient": patient, "time": time}
    roles |= {"group": "group" if "group" in made.table.columns else None}
    return {k: v for k, v in {**roles, "drop": kept}.items() if v}


def _say(made: Partition, out: Path, roles: dict[str, object], as_json: bool) -> None:
    console = options.terminal(stderr=True)
    for line in left_out_lines(made.dropped):
        console.print(f"left out: {line}", soft_wrap=True)
    if made.shared_patients:
        console.print(f"note: {made.shared_patients:,} patients have stays in more than one center")
    summary = made.summary()
    if as_json:
        brief = {k: v for k, v in summary.items() if k not in ("left_out", "schema")}
        print(json.dumps({"out": str(out), **brief, "roles": roles}, ensure_ascii=False))
        return
    typer.echo(
        f"{made.centers:,} centers, {made.table.height:,} stays; left out {summary['cells_left_out']} cells "
        f"with {summary['rows_left_out']:,} stays; written to {out}"
    )
    typer.echo(f"next: {COMPARE} --data {shlex.quote(str(out))} --out results")
