"""``abps report``: tables, figures and the page of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options
from abps.cli.options import split
from abps.cli.study_outcome import show, summary
from abps.core.errors import RequestError
from abps.evaluate.verdicts import MARGIN
from abps.study.compare import load_study


def report(
    study: Annotated[Path, typer.Argument(help="The folder of a study (the --out of `abps compare`).")],
    out: Annotated[Path | None, typer.Option(help="Write here instead of into the study's folder.")] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            help="AUROC targets of the table of bytes, with commas; unset, on the way to the best method."
        ),
    ] = None,
    margin: Annotated[float, typer.Option(help="Methods that differ by less are called equal.")] = MARGIN,
    as_json: options.Json = False,
) -> None:
    """Write the report of a study: tables (Markdown, CSV, LaTeX), figures (SVG, PDF) and report.html.

    Works on an unfinished study too, and says what is not in it. Example: abps report my-study
    """
    if not 0 < margin < 1:
        raise RequestError(f"--margin {margin:g}: give an AUROC difference between 0 and 1, such as 0.01")
    written = load_study(study).report(out, None if targets is None else read_targets(targets), margin)
    if as_json:
        print(json.dumps(summary(written)))
    else:
        show(written)


def read_targets(text: str) -> tuple[float, ...]:
    """``--targets 0.75,0.77`` as numbers."""
    try:
        values = tuple(float(part) for part in split(text))
    except ValueError:
        values = ()
    if not values or not all(0 < value < 1 for value in values):
        raise RequestError(
            f"--targets {text}: give numbers between 0 and 1 with commas between, such as 0.75,0.8"
        )
    return values
