"""``abps cohort``: raw clinical tables to one tidy table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from abps import files
from abps.cli import options
from abps.cohorts import eicu, heart, meds, meds_rows, meds_tasks, mimiciv, omop, physionet2012, provenance
from abps.cohorts.duck import Progress as Tell
from abps.cohorts.recipes import RECIPES
from abps.cohorts.tidy import Cohort
from abps.core.errors import RequestError
from abps.data.partition import suggest_division
from abps.methods.settings import with_settings
from abps.report.pages import cohort_page as page

Out = Annotated[Path, typer.Option(help="The Parquet file to write; the report and the rest go beside it.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON line.")]
MinAge = Annotated[float | None, typer.Option(help="Youngest age, included.")]
MaxAge = Annotated[float | None, typer.Option(help="Oldest age, included.")]
MinHours = Annotated[float, typer.Option(help="Leave out ICU stays shorter than this; 0 keeps all.")]
Charlson = Annotated[
    str,
    typer.Option(help="Comorbidity columns: 12 (united as in the paper's reading), 17 (all), none."),
]
Window = Annotated[
    str,
    typer.Option(
        help="Hours that count: 6h, 12h, 24h, 48h (the first ones in the ICU), mimic-code (6 h before to "
        "24 h after admission), stay (all; to describe drift, not to predict)."
    ),
]
Features = Annotated[
    str,
    typer.Option(
        help="Columns beyond the vitals, with commas: labs, gcs, urine, vasopressors, ventilation, sofa, "
        "saps2; or all. From the tables that are there; absent ones are named."
    ),
]
FirstStay = Annotated[bool, typer.Option("--first-stay", help="Only the first ICU stay of every patient.")]
Clock = Annotated[
    str,
    typer.Option(
        help="A value counts from charttime (when it was measured) or from storetime (when it was stored, "
        "as a model at the bedside would see it)."
    ),
]
Diagnoses = Annotated[
    str,
    typer.Option(
        help="Comorbidities from: this (the admission's codes, written after discharge: they leak), "
        "earlier (earlier admissions only), none."
    ),
]

HELP = """Make one tidy table from raw clinical tables: one row per stay, with its provenance and a report.

Beside COHORT.parquet appear COHORT.html (the report), COHORT.flow.svg and .md (who was left out and why),
COHORT.dictionary.md and .csv (what the columns mean) and COHORT.provenance.json (files, hashes, options).

    abps cohort mimiciv mimic-iv-3.1 --out cohort.parquet
    abps partition cohort.parquet --by careunit,window:2y --out fed.parquet
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
    group.command("mimiciv")(mimiciv_command)
    group.command("eicu")(eicu_command)
    group.command("physionet2012")(physionet2012_command)
    group.command("meds")(meds_command)
    group.command("omop")(omop_command)
    group.command("task")(task_command)
    group.command("heart")(heart_command)
    group.command("other")(other_command)
    app.add_typer(group, name="cohort")


def mimiciv_command(
    source: Annotated[Path, typer.Argument(help="The folder that contains hosp and icu.")],
    out: Out = Path("cohort.parquet"),
    window: Window = "24h",
    diagnoses: Diagnoses = "this",
    charlson: Charlson = "12",
    min_age: MinAge = 18,
    max_age: MaxAge = 95,
    min_hours: MinHours = 0,
    features: Features = "",
    first_stay: FirstStay = False,
    clock: Clock = "charttime",
    as_json: Json = False,
) -> None:
    """MIMIC-IV v2.2 to v3.1 as distributed (.csv.gz or .csv): in-hospital death of adult ICU stays.

    Example: abps cohort mimiciv mimic-iv-3.1 --diagnoses earlier --out cohort.parquet
    """
    options = mimiciv.MimicOptions(
        window=window,
        diagnoses=diagnoses,
        charlson=charlson,
        min_age=min_age,
        max_age=max_age,
        min_hours=min_hours,
        features=_names(features),
        clock=clock,
        first_stay=first_stay,
    )
    _make(lambda tell: mimiciv.build(source, options, tell), "MIMIC-IV cohort", out, as_json)


def eicu_command(
    source: Annotated[Path, typer.Argument(help="The folder that contains patient.csv.gz.")],
    out: Out = Path("cohort.parquet"),
    charlson: Charlson = "12",
    min_age: MinAge = None,
    max_age: MaxAge = None,
    min_hours: MinHours = 0,
    features: Features = "",
    first_stay: FirstStay = False,
    clock: Clock = "charttime",
    as_json: Json = False,
) -> None:
    """eICU v2.0 and its demo: hospital death of unit stays; every hospital is a center.

    Example: abps cohort eicu eicu-crd-2.0 --min-age 18 --out cohort.parquet
    """
    options = eicu.EicuOptions(
        charlson=charlson,
        min_age=min_age,
        max_age=max_age,
        min_hours=min_hours,
        features=_names(features),
        clock=clock,
        first_stay=first_stay,
    )
    _make(lambda tell: eicu.build(source, options, tell), "eICU cohort", out, as_json)


def physionet2012_command(
    source: Annotated[
        Path, typer.Argument(help="The folder with Outcomes-*.txt and the sets (folders or tar).")
    ],
    out: Out = Path("cohort.parquet"),
    hours: Annotated[float, typer.Option(help="How many of the 48 recorded hours to use.")] = 24,
    min_age: MinAge = None,
    max_age: MaxAge = None,
    as_json: Json = False,
) -> None:
    """PhysioNet/CinC Challenge 2012, sets a, b and c: in-hospital death in four ICU types.

    Example: abps cohort physionet2012 challenge-2012 --out cohort.parquet
    """
    options = physionet2012.PhysionetOptions(hours, min_age, max_age)
    _make(lambda tell: physionet2012.build(source, options, tell), "PhysioNet 2012 cohort", out, as_json)


def meds_command(
    source: Annotated[Path, typer.Argument(help="A MEDS folder (data/**/*.parquet) or one Parquet file.")],
    out: Out = Path("cohort.parquet"),
    map_: Annotated[
        Path | None, typer.Option("--map", help="The code map (JSON); unset, the one for MIMIC-IV.")
    ] = None,
    window: Window = "24h",
    diagnoses: Diagnoses = "this",
    charlson: Charlson = "12",
    min_age: MinAge = 18,
    max_age: MaxAge = 95,
    features: Features = "",
    first_stay: FirstStay = False,
    as_json: Json = False,
) -> None:
    """MEDS events (Parquet) with a small map of their codes; one for MIMIC-IV is built in.

    Example: abps cohort meds mimic-iv-meds --out cohort.parquet
    """
    path = None if map_ is None else str(map_)
    options = meds.MedsOptions(
        map_file=path,
        window=window,
        diagnoses=diagnoses,
        charlson=charlson,
        min_age=min_age,
        max_age=max_age,
        features=_names(features),
        first_stay=first_stay,
    )
    _make(lambda tell: meds.build(source, options, tell), "MEDS cohort", out, as_json)


def omop_command(
    source: Annotated[
        Path, typer.Argument(help="A DuckDB database, or a folder of CDM tables (Parquet, CSV).")
    ],
    out: Out = Path("cohort.parquet"),
    window: Window = "24h",
    diagnoses: Diagnoses = "this",
    charlson: Charlson = "12",
    min_age: MinAge = 18,
    max_age: MaxAge = 95,
    features: Features = "",
    first_stay: FirstStay = False,
    as_json: Json = False,
) -> None:
    """OMOP CDM 5.3 and 5.4: hospital death of ICU stays, concepts and units by a shipped map.

    Example: abps cohort omop cdm.duckdb --features labs,gcs --out cohort.parquet
    """
    options = omop.OmopOptions(
        window=window,
        diagnoses=diagnoses,
        charlson=charlson,
        min_age=min_age,
        max_age=max_age,
        features=_names(features),
        first_stay=first_stay,
    )
    _make(lambda tell: omop.build(source, options, tell), "OMOP cohort", out, as_json)


def task_command(
    source: Annotated[Path, typer.Argument(help="A MEDS folder (data/**/*.parquet) or one Parquet file.")],
    out: Out = Path("cohort.parquet"),
    task: Annotated[
        str | None,
        typer.Option(help=f"A shipped task ({', '.join(meds_tasks.shipped())}) or a task file (JSON)."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="A MEDS label file, as ACES writes it: subject_id, prediction_time and a value."),
    ] = None,
    map_: Annotated[
        Path | None, typer.Option("--map", help="The code map (JSON); unset, the one for MIMIC-IV.")
    ] = None,
    hours: Annotated[int, typer.Option(help="Hours before the prediction that count: 6, 12, 24, 48.")] = 24,
    features: Features = "labs",
    outside: Annotated[
        str, typer.Option(help="Predictions outside a hospital stay: leave-out (counted) or keep.")
    ] = "leave-out",
    charlson: Charlson = "12",
    min_age: MinAge = 18,
    max_age: MaxAge = None,
    as_json: Json = False,
) -> None:
    """Any task on MEDS events: one row per prediction, from what was known before its moment.

    Examples:

        abps cohort task mimic-iv-meds --task aki --out aki.parquet

        abps cohort task mimic-iv-meds --labels readmission.parquet --hours 48 --out cohort.parquet
    """
    options = meds_rows.RowOptions(
        task=task,
        labels=None if labels is None else str(labels),
        map_file=None if map_ is None else str(map_),
        hours=hours,
        charlson=charlson,
        features=_names(features),
        outside=outside,
        min_age=min_age,
        max_age=max_age,
    )
    title = f"Task {task if task else Path(str(labels)).stem}"
    _make(lambda tell: meds_rows.build(source, options, tell), title, out, as_json)


def heart_command(
    source: Annotated[Path, typer.Argument(help="The folder with the four processed.*.data files.")],
    out: Out = Path("cohort.parquet"),
    as_json: Json = False,
) -> None:
    """UCI Heart Disease: four hospitals, 920 patients.

    Example: abps cohort heart heart-disease --out heart.parquet
    """
    _make(lambda tell: heart.build(source, tell), "UCI Heart Disease", out, as_json)


def other_command(
    recipe: Annotated[
        str, typer.Argument(help="A recipe: package.module:NAME, an installed package's, or one of ours.")
    ],
    source: Annotated[Path, typer.Argument(help="Where its data are.")],
    out: Out = Path("cohort.parquet"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the recipe: key=value.")
    ] = None,
    as_json: Json = False,
) -> None:
    """A cohort of your own: a CohortRecipe in any module that Python can import.

    Example: abps cohort other mypackage.cohorts:WARD data --set hours=12 --out cohort.parquet
    """
    found = RECIPES.find(recipe)
    settings = {}
    for text in set_ or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise RequestError(f"--set {text!r} is not key=value")
        settings[key.strip()] = value
    options = with_settings(found.options, settings) if settings else found.options
    _make(lambda tell: found.build(source, options, tell), found.about, out, as_json)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@contextmanager
def telling(console: Console) -> Iterator[Tell]:
    """A progress bar on stderr, one line per thing done; silent where stderr is not a terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, share: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=share)

        yield tell


def write_cohort(made: Cohort, title: str, out: Path) -> None:
    """The table and everything beside it; nothing is written before all texts are made."""
    beside = {
        ".html": page.report(made, title),
        ".flow.svg": page.flow_svg(made.steps, made.roles.label),
        ".flow.md": provenance.flow_markdown(made.steps, made.roles.label),
        ".dictionary.md": provenance.dictionary_markdown(made.dictionary, f"{title}: columns"),
        ".dictionary.csv": provenance.dictionary_csv(made.dictionary),
    }
    for suffix, text in beside.items():
        files.write_text(out.with_suffix(suffix), text)
    provenance.write_table(made.table, provenance.of_cohort(made), out)


def _make(build: Callable[[Tell], Cohort], title: str, out: Path, as_json: bool) -> None:
    """Build, then write everything; nothing is written before all of it is made."""
    provenance.check_out(out)
    console = options.terminal(stderr=True)
    with telling(console) as tell:
        made = build(tell)
        tell("drawing the report", 0.0)
        write_cohort(made, title, out)
    for warning in made.warnings:
        console.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
    word = provenance.positives_word(made.roles.label)
    if as_json:
        print(
            json.dumps(
                {
                    "out": str(out),
                    "source": made.source,
                    "recipe": made.recipe,
                    "rows": made.table.height,
                    "outcome": made.outcome,
                    "positives": made.steps[-1].positives,
                    "columns": made.table.width,
                    "centers": made.table[made.roles.center].n_unique(),
                    "flow": [vars(step) for step in made.steps],
                    "warnings": list(made.warnings),
                },
                ensure_ascii=False,
            )
        )
        return
    for step in made.steps[1:]:
        typer.echo(f"left out: {step.left_out:,} ({step.label})")
    rows = "stays" if "stay" in made.table.columns else "patients"
    typer.echo(
        f"{made.table.height:,} {rows}, "
        + ("" if made.steps[-1].positives is None else f"{made.steps[-1].positives:,} {word}, ")
        + f"{made.table[made.roles.center].n_unique():,} values of {made.roles.center}; "
        f"{out} and the report {out.with_suffix('.html')}"
    )
    typer.echo(f"next: {_next_command(made, out)}")


def _next_command(made: Cohort, out: Path) -> str:
    """A command that divides this cohort into centers, and works."""
    center, label = made.roles.center, made.roles.label
    by: tuple[str, ...] | None = (center,)
    if made.outcome == "binary":
        context = [c.name for c in made.dictionary if c.role == "context" and c.name != center]
        text = [name for name in context if made.table[name].dtype == pl.String]
        by = suggest_division(made.table, label, center, text)
    how = f"--by {','.join(by)}" if by else "--iid 5 --small keep"
    return f"abps partition {shlex.quote(str(out))} {how} --out fed.parquet"
