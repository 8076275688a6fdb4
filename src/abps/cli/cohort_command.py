"""``abps cohort``: raw clinical tables to one tidy table."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.progress import TaskProgressColumn, TimeElapsedColumn

from abps.cli import options
from abps.cohorts.cohort_page import next_command, write_cohort
from abps.cohorts.recipes import RECIPES, CohortRecipe
from abps.cohorts.tidy import check_out, positives_word
from abps.methods.settings import with_settings

Out = Annotated[Path, typer.Option(help="Parquet file to write; the report and the rest go beside it.")]

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
    group.command("other")(other_command)
    app.add_typer(group, name="cohort")


def _command(recipe: CohortRecipe) -> Callable[..., None]:
    """A function whose parameters are the options of a recipe, with its defaults."""
    made = type(recipe.options)

    def called(source: Path, out: Path, as_json: bool, **given: Any) -> None:
        if "features" in given:
            given["features"] = options.split(given["features"])
        _make(recipe, source, made(**given), out, as_json)

    hints = get_type_hints(made)
    wanted: list[tuple[str, Any, Any]] = [
        ("source", Annotated[Path, typer.Argument(help=recipe.place)], inspect.Parameter.empty),
        ("out", Out, Path("cohort.parquet")),
    ]
    for field in fields(made):
        flag = {"map_file": ["--map"], "first_stay": ["--first-stay"]}.get(field.name, [])
        option = typer.Option(*flag, help=HELP_OF[field.name])
        kind, default = hints[field.name], field.default
        if field.name == "features":
            kind, default = str, ",".join(recipe.options.features)
        wanted.append((field.name, Annotated[kind, option], default))
    wanted.append(("as_json", options.Json, False))
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, kind, default in wanted
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def other_command(
    recipe: Annotated[
        str, typer.Argument(help="A recipe: package.module:NAME, an installed package's, or one of ours.")
    ],
    source: Annotated[Path, typer.Argument(help="Where its data are.")],
    out: Out = Path("cohort.parquet"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the recipe: key=value.")
    ] = None,
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
    typer.echo(
        f"{rows:,} {'stays' if 'stay' in made.table.columns else 'patients'}, {positives:,} "
        f"{positives_word(made.roles.label)}, {centers:,} values of {center}; {out} and the report "
        f"{out.with_suffix('.html')}"
    )
    typer.echo(f"next: {next_command(made, out)}")
