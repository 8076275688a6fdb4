"""``abps cohort``: raw clinical tables to one tidy table."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from abps import files
from abps.cli import options
from abps.cohorts import meds_rows, meds_tasks, provenance
from abps.cohorts.duck import Progress as Report
from abps.cohorts.recipes import RECIPES, CohortRecipe
from abps.cohorts.tidy import Cohort
from abps.data.partition import suggest_division
from abps.methods.settings import with_settings
from abps.report.pages import cohort_page as page

Out = Annotated[Path, typer.Option(help="Parquet file to write; the report and the rest go beside it.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON line.")]

#: The type of every option of a recipe on the command line, with its help.
OPTIONS: dict[str, Any] = {
    "window": Annotated[
        str,
        typer.Option(
            help="Hours that count: 6h, 12h, 24h, 48h (the first ones in the ICU), mimic-code (6 h before to "
            "24 h after admission), stay (all; to describe drift, not to predict)."
        ),
    ],
    "diagnoses": Annotated[
        str,
        typer.Option(
            help="Comorbidities from: this (the admission's codes, written after discharge: they leak), "
            "earlier (earlier admissions only), none."
        ),
    ],
    "charlson": Annotated[
        str, typer.Option(help="Comorbidity columns: 12 (as in the paper), 17 (all), or none.")
    ],
    "min_age": Annotated[float | None, typer.Option(help="Youngest age, included.")],
    "max_age": Annotated[float | None, typer.Option(help="Oldest age, included.")],
    "min_hours": Annotated[float, typer.Option(help="Leave out ICU stays shorter than this; 0 keeps all.")],
    "features": Annotated[
        str,
        typer.Option(
            help="Comma-separated columns beyond the vitals: labs, gcs, urine, vasopressors, ventilation, "
            "sofa, saps2; or all. Absent source tables are named."
        ),
    ],
    "first_stay": Annotated[bool, typer.Option("--first-stay", help="Only each patient's first ICU stay.")],
    "clock": Annotated[
        str,
        typer.Option(
            help="A value counts from charttime (when it was measured) or from storetime (when it was "
            "stored, as a model at the bedside would see it)."
        ),
    ],
    "hours": Annotated[float, typer.Option(help="Hours of the record (or before the prediction) to use.")],
    "map_file": Annotated[
        str | None, typer.Option("--map", help="Code map (JSON). Default: the one for MIMIC-IV.")
    ],
    "task": Annotated[
        str | None,
        typer.Option(help=f"A shipped task ({', '.join(meds_tasks.shipped())}) or a task file (JSON)."),
    ],
    "labels": Annotated[
        str | None,
        typer.Option(help="MEDS label file, as ACES writes it: subject_id, prediction_time and a value."),
    ],
    "outside": Annotated[
        str, typer.Option(help="Predictions outside a hospital stay: leave-out (counted) or keep.")
    ],
}


@dataclass(frozen=True)
class CohortCommand:
    """A recipe on the command line.  source: help of its argument.  about: its help, with an example."""

    recipe: CohortRecipe
    source: str
    about: str


_MEDS = "A MEDS folder (data/**/*.parquet) or one Parquet file."
COMMANDS = {
    "mimiciv": CohortCommand(
        RECIPES.find("mimiciv"),
        "The folder that contains hosp and icu.",
        """MIMIC-IV v2.2 to v3.1 as distributed (.csv.gz or .csv): in-hospital death of adult ICU stays.

        Example: abps cohort mimiciv mimic-iv-3.1 --diagnoses earlier --out cohort.parquet""",
    ),
    "eicu": CohortCommand(
        RECIPES.find("eicu"),
        "The folder that contains patient.csv.gz.",
        """eICU v2.0 and its demo: hospital death of unit stays; every hospital is a center.

        Example: abps cohort eicu eicu-crd-2.0 --min-age 18 --out cohort.parquet""",
    ),
    "physionet2012": CohortCommand(
        RECIPES.find("physionet2012"),
        "The folder with Outcomes-*.txt and the sets (folders or tar).",
        """PhysioNet/CinC Challenge 2012, sets a, b and c: in-hospital death in four ICU types.

        Example: abps cohort physionet2012 challenge-2012 --out cohort.parquet""",
    ),
    "meds": CohortCommand(
        RECIPES.find("meds"),
        _MEDS,
        """MEDS events (Parquet) with a small map of their codes; one for MIMIC-IV is built in.

        Example: abps cohort meds mimic-iv-meds --out cohort.parquet""",
    ),
    "omop": CohortCommand(
        RECIPES.find("omop"),
        "A DuckDB database, or a folder of CDM tables (Parquet, CSV).",
        """OMOP CDM 5.3 and 5.4: hospital death of ICU stays, concepts and units by a shipped map.

        Example: abps cohort omop cdm.duckdb --features labs,gcs --out cohort.parquet""",
    ),
    "task": CohortCommand(
        CohortRecipe("task", "Task", meds_rows.RowOptions, meds_rows.build),
        _MEDS,
        """Any task on MEDS events: one row per prediction, from what was known before its moment.

        Examples:

            abps cohort task mimic-iv-meds --task aki --out aki.parquet

            abps cohort task mimic-iv-meds --labels readmission.parquet --hours 48 --out cohort.parquet""",
    ),
    "heart": CohortCommand(
        RECIPES.find("heart"),
        "The folder with the four processed.*.data files.",
        """UCI Heart Disease: four hospitals, 920 patients.

        Example: abps cohort heart heart-disease --out heart.parquet""",
    ),
}


HELP = """Make one tidy table from raw clinical tables: one row per stay, with its provenance and a report.

Beside COHORT.parquet appear COHORT.html (the report), COHORT.flow.svg and .md (who was left out and why),
COHORT.dictionary.md and .csv (what the columns mean) and COHORT.provenance.json (files, hashes, options).

    abps cohort mimiciv mimic-iv-3.1 --out cohort.parquet
    abps partition cohort.parquet --by careunit,window:2y --out fed.parquet
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
    for name, command in COMMANDS.items():
        group.command(name, help=inspect.cleandoc(command.about))(_command(command))
    group.command("other")(other_command)
    app.add_typer(group, name="cohort")


def _command(command: CohortCommand) -> Callable[..., None]:
    """A function whose parameters are the options of a recipe, with its defaults."""
    recipe = command.recipe
    made = recipe.options if isinstance(recipe.options, type) else type(recipe.options)

    def called(source: Path, out: Path, as_json: bool, **given: Any) -> None:
        if "features" in given:
            given["features"] = options.split(given["features"])
        chosen = made(**given)
        _make(lambda report: recipe.build(source, chosen, report), _title(recipe, given), out, as_json)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("source", keyword, annotation=Annotated[Path, typer.Argument(help=command.source)]),
        inspect.Parameter("out", keyword, annotation=Out, default=Path("cohort.parquet")),
    ]
    for field in fields(made):
        default: Any = field.default
        if field.name == "features":
            default = ",".join(default)
        kind = OPTIONS[field.name]
        if field.type == "int":
            kind = Annotated[int, kind.__metadata__[0]]
        parameters.append(inspect.Parameter(field.name, keyword, annotation=kind, default=default))
    parameters.append(inspect.Parameter("as_json", keyword, annotation=Json, default=False))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def _title(recipe: CohortRecipe, given: dict[str, Any]) -> str:
    """The title of the report: the recipe, or the task that was named."""
    task = given.get("task") or given.get("labels")
    return f"Task {Path(str(task)).stem}" if task else recipe.about


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
    settings = options.settings(set_)
    chosen = with_settings(found.options, settings) if settings else found.options
    _make(lambda report: found.build(source, chosen, report), found.about, out, as_json)


@contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
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

        def report(what: str, share: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=share)

        yield report


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


def _make(build: Callable[[Report], Cohort], title: str, out: Path, as_json: bool) -> None:
    """Build, then write everything; nothing is written before all of it is made."""
    provenance.check_out(out)
    console = options.terminal(stderr=True)
    with progress_bar(console) as report:
        made = build(report)
        report("drawing the report", 0.0)
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
