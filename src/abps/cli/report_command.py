"""``abps report``: tables, figures and the page of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options
from abps.cli.study_outcome import show, summary
from abps.core.errors import RequestError
from abps.evaluate.verdicts import MARGIN
from abps.study.compare import load_study


def report(
    study: Annotated[Path, typer.Argument(help="The folder of a study (the --out of `abps compare`).")],
    out: Annotated[Path | None, typer.Option(help="Write here instead of into the study's folder.")] = None,
    margin: Annotated[float, typer.Option(help="Methods that differ by less are called equal.")] = MARGIN,
    as_json: options.Json = False,
) -> None:
    """Write the report of a study: tables (Markdown, CSV, LaTeX), figures (SVG, PDF) and report.html.

    Works on an unfinished study too, and says what is not in it. Example: abps report my-study
    """
    if not 0 < margin < 1:
        raise RequestError(f"--margin {margin:g}: give an AUROC difference between 0 and 1, such as 0.01")
    written = load_study(study).report(out, margin)
    if as_json:
        print(json.dumps(summary(written)))
    else:
        show(written)
