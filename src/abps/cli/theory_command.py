"""``abps theory``: the guarantees, checked by simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from abps.cli import options
from abps.evaluate.change_detection import DETECTORS, available, detector
from abps.lab.detection import Detection, detection
from abps.lab.theory import TheoryResults, check

COLOURS = {"holds": "green", "unproven": "yellow", "fails": "red"}


def theory(
    out: options.Out = Path("abps-theory"),
    seed: options.Seed = 11,
    detectors: Annotated[
        str,
        typer.Option(
            help="Change detectors to compare: all (that are installed), none, or a comma-separated list of "
            f"{', '.join(DETECTORS)}."
        ),
    ] = "all",
    as_json: options.Json = False,
) -> None:
    """Check the theorems and the lemma by simulation with known utilities; write a page with figures.

    Concentration of beliefs, regret of choosing partners, when resting is best; what holds as printed,
    what holds with a correction, and what does not; and how late detectors of drift are.

    Writes report.html (one file), theory.json, figures (SVG, PDF) and tables (CSV).

    Example: abps theory --out theory
    """
    names = _chosen(detectors)
    console = options.terminal(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(study: str, share: float) -> None:
            if study not in tasks:
                tasks[study] = bar.add_task(study, total=1.0)
            bar.update(tasks[study], completed=share)

        checked = check(seed, progress)
        found = detection(seed, names, progress=lambda share: progress("Detectors", share)) if names else []
        from abps.report.pages.theory_page import (  # matplotlib, only once there is something to draw
            summary,
            write,
        )

        page = write(out, checked, found)
    if as_json:
        print(json.dumps({**summary(checked, found), "report": str(page)}, ensure_ascii=False))
        return
    options.terminal().print(verdicts(checked))
    if found:
        options.terminal().print(delays(found))
    options.terminal().print(f"written to {page}", highlight=False)


def _chosen(detectors: str) -> list[str]:
    if detectors.strip() in ("all", "none"):
        return available() if detectors.strip() == "all" else []
    names = list(dict.fromkeys(part.strip() for part in detectors.split(",") if part.strip()))
    for name in names:
        detector(name)  # fails here, with a sentence, and not after a minute
    return names


def verdicts(checked: TheoryResults) -> Table:
    """The statements as a table for the terminal."""
    table = Table(title="Guarantees, checked", show_lines=True)
    for column in ("statement", "verdict", "found"):
        table.add_column(column)
    for claim in checked.claims:
        colour = COLOURS[claim.verdict]
        table.add_row(claim.name, f"[{colour}]{claim.verdict}[/{colour}]", claim.found)
    return table


def delays(rows: list[Detection]) -> Table:
    """False alarms without change and delay after a sudden one, for the terminal."""
    table = Table(
        title="Detectors: streams of 400 with a false alarm; found and median delay of a sudden change"
    )
    table.add_column("detector")
    kinds = list(dict.fromkeys(row.kind for row in rows))
    for kind in kinds:
        table.add_column(kind, justify="right")
    by = {(row.detector, row.kind, row.change): row for row in rows}
    for name in dict.fromkeys(row.detector for row in rows):
        cells = []
        for kind in kinds:
            quiet, sudden = by[name, kind, "none"], by[name, kind, "sudden"]
            delay = f"{sudden.delay:.0f}" if sudden.delay is not None else "-"
            cells.append(f"{quiet.any_false:.0%} false; {sudden.found:.0%} found, {delay}")
        table.add_row(name, *cells)
    return table
