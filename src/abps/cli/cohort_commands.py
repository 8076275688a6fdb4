"""``abps cohort`` and ``partition``: raw clinical tables to one tidy table, and a tidy table to centers."""

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.progress import TaskProgressColumn, TimeElapsedColumn

from abps.cli import options
from abps.cli.check_command import COMPARE
from abps.cohorts.cohort_page import next_command, write_cohort
from abps.cohorts.partition import CellRule, Partition, Recipe, divide, parse_only
from abps.cohorts.recipes import RECIPES, CohortRecipe
from abps.cohorts.tidy import check_out, positives_word, versions, write_table
from abps.core.errors import RequestError
from abps.data.federation import left_out_lines
from abps.data.roles import read_provenance
from abps.data.table import read_frame
from abps.methods.settings import with_settings

Out = Annotated[Path, "Parquet file to write; the report and the rest go beside it."]

#: What every option of a recipe means.
HELP_OF = {
    "window": "Hours that count: 6h, 12h, 24h, 48h (the first ones in the ICU), mimic-code (6 h before to "
    "24 h after admission), stay (all; to describe drift, not to predict).",
    "diagnoses": "Comorbidities from: this (the admission's codes, written after discharge: they leak), "
    "earlier (earlier admissions only), none.",
    "charlson": "Comorbidity columns: 12 (as in the paper), 17 (all), or none.",
    "min_age": "Youngest age, included.",
    "max_age": "Oldest age, included.",
    "min_hours": "Leave out ICU stays shorter than this; 0 keeps all.",
    "features": "Comma-separated columns beyond the vitals: labs, gcs, urine, vasopressors, ventilation, "
    "sofa, saps2; or all. Absent source tables are named.",
    "first_stay": "Only each patient's first ICU stay.",
    "clock": "A value counts from charttime (when it was measured) or from storetime (when it was stored, as "
    "a model at the bedside would see it).",
    "hours": "Hours of the record to use.",
    "map_file": "Code map (JSON). Default: the one for MIMIC-IV.",
}

HELP = """Make one tidy table from raw clinical tables: one row per stay, with its provenance and a report.

Beside COHORT.parquet appear COHORT.html (the report), COHORT.flow.svg (who was left out and why),
COHORT.dictionary.csv (what the columns mean) and COHORT.provenance.json (files, hashes, options).

    abps cohort mimiciv mimic-iv-3.1 --out cohort.parquet
    abps partition cohort.parquet --by careunit,window:2y --out fed.parquet
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
    for name, recipe in RECIPES.builtin.items():
        group.command(name, help=recipe.help)(_command(recipe))
    group.command("other")(options.flatten(other_command))
    app.add_typer(group, name="cohort")
    app.command("partition")(options.flatten(partition))


def _command(recipe: CohortRecipe) -> Callable[..., None]:
    """A function whose parameters are the options of a recipe, with its defaults."""
    made = type(recipe.options)
    hints, source = get_type_hints(made), Annotated[Path, typer.Argument(help=recipe.place)]

    def called(source: Path, out: Path, as_json: bool, **given: Any) -> None:
        if "features" in given:
            given["features"] = options.split(given["features"])
        _make(recipe, source, made(**given), out, as_json)

    wanted = [options.option("source", source, inspect.Parameter.empty)]
    wanted.append(options.option("out", Out, Path("cohort.parquet")))
    for field in fields(made):
        words: Any = HELP_OF[field.name]
        words = typer.Option("--map", help=words) if field.name == "map_file" else words
        kind, default = hints[field.name], field.default
        if field.name == "features":
            kind, default = str, ",".join(recipe.options.features)
        wanted.append(options.option(field.name, Annotated[kind, words], default))
    return options.with_options(called, [*wanted, options.option("as_json", options.Json, False)])


def other_command(
    recipe: Annotated[str, typer.Argument(help="package.module:NAME, an installed recipe, or ours.")],
    source: Annotated[Path, typer.Argument(help="Where its data are.")],
    out: Out = Path("cohort.parquet"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="A recipe's option: key=value.")] = None,
    as_json: options.Json = False,
) -> None:
    """A cohort of your own: a CohortRecipe in any module that Python can import.

    Example: abps cohort other mypackage.cohorts:WARD data --set hours=12 --out cohort.parquet
    """
    found = RECIPES.find(recipe)
    settings = options.settings(set_)
    _make(found, source, with_settings(found.options, settings) if settings else found.options, out, as_json)


def _make(recipe: CohortRecipe, source: Path, chosen: Any, out: Path, as_json: bool) -> None:
    """Build, then write everything; nothing is written before all of it is made."""
    check_out(out)
    console = options.terminal(stderr=True)
    with options.progress_bar(TaskProgressColumn(), TimeElapsedColumn()) as report:
        made = recipe.build(source, chosen, report)
        report("drawing the report", 0.0)
        write_cohort(made, recipe.about, out)
    for warning in made.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    rows, positives = made.table.height, made.steps[-1].positives
    centers, center = made.table[made.roles.center].n_unique(), made.roles.center
    if as_json:
        content = {"out": str(out), "source": made.source, "recipe": made.recipe, "rows": rows}
        content |= {"positives": positives, "columns": made.table.width, "centers": centers}
        content |= {"flow": [vars(step) for step in made.steps], "warnings": list(made.warnings)}
        print(json.dumps(content, ensure_ascii=False))
        return
    for step in made.steps[1:]:
        typer.echo(f"left out: {step.left_out:,} ({step.label})")
    who, events = "stays" if "stay" in made.table.columns else "patients", positives_word(made.roles.label)
    typer.echo(f"{rows:,} {who}, {positives:,} {events}, {centers:,} values of {center}")
    typer.echo(f"written: {out} and the report {out.with_suffix('.html')}")
    typer.echo(f"next: {next_command(made, out)}")


def partition(
    table: Annotated[Path, typer.Argument(help="A tidy table: Parquet (from `abps cohort`) or CSV.")],
    by: Annotated[str, "Columns that together name a center; window:2y is a window of the time column."] = "",
    dirichlet: Annotated[float | None, "Label skew: Dirichlet(alpha) per class; small is uneven."] = None,
    iid: Annotated[int | None, "This many equal centers at random."] = None,
    centers: Annotated[int | None, "How many centers --dirichlet makes."] = None,
    only: Annotated[list[str] | None, "First keep only these: --only careunit=CVICU,CCU. Repeatable."] = None,
    min_stays: Annotated[int, "Stays that a center needs."] = 50,
    min_positives: Annotated[int, "Positive stays, and negative ones, that a center needs."] = 3,
    small: Annotated[str, "Smaller cells: drop, keep, or redraw a random partition."] = "drop",
    seed: Annotated[int, "The seed of random partitions."] = 11,
    label: Annotated[str | None, "The label column (a cohort knows its own)."] = None,
    patient: Annotated[str | None, "The patient column (a cohort knows its own)."] = None,
    time: Annotated[str | None, "The year column (a cohort knows its own)."] = None,
    out: Annotated[Path, "The Parquet file to write."] = Path("fed.parquet"),
    as_json: options.Json = False,
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
    kept, wanted = tuple(parse_only(text) for text in only or []), centers if iid is None else iid
    recipe = Recipe(options.split(by), dirichlet, iid is not None, wanted, kept, seed)
    rule = CellRule(min_stays, min_positives, min_positives, small)
    source = read_provenance(table) if table.suffix == ".parquet" else None
    frame = read_frame(table)
    known = (source or {}).get("roles", {})
    label = label or known.get("label") or "died"
    patient = patient or known.get("patient") or ("patient" if "patient" in frame.columns else None)
    time = time or known.get("time") or ("admission_year" if "admission_year" in frame.columns else None)
    made = divide(frame, recipe, rule, label, patient, time)
    roles = _roles(made, label, patient, time, known)
    cohort = source and {k: source[k] for k in ("source", "recipe", "files")}
    content = made.summary() | {"roles": roles, "table": {"name": table.name, "cohort": cohort}}
    content |= {"columns": (source or {}).get("columns", []), "versions": versions()}
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
    typer.echo(f"next: {options.command_line(COMPARE, {'data': out, 'out': 'results'})}")
