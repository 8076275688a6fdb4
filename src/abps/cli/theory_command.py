"""``abps theory``: the guarantees, checked by simulation."""

from __future__ import annotations

import json
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from abps.cli import options
from abps.lab.theory import TheoryResults, check

COLOURS = {"holds": "green", "unproven": "yellow", "fails": "red"}


def theory(
    out: options.Out = Path("abps-theory"),
    seed: options.Seed = 11,
    as_json: options.Json = False,
) -> None:
    """Check the theorems and the lemma by simulation with known utilities; write a page with figures.

    Concentration of beliefs, regret of choosing partners, when resting is best: what holds as printed, what
    holds with a correction, and what does not.

    Writes report.html (one file), theory.json, figures (SVG, PDF) and tables (CSV).

    Example: abps theory --out theory
    """
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
        from abps.report.pages.theory_page import (  # matplotlib, only once there is something to draw
            summary,
            write,
        )

        page = write(out, checked)
    if as_json:
        print(json.dumps({**summary(checked), "report": str(page)}, ensure_ascii=False))
        return
    options.terminal().print(verdicts(checked))
    options.terminal().print(f"written to {page}", highlight=False)


def verdicts(checked: TheoryResults) -> Table:
    """The statements as a table for the terminal."""
    table = Table(title="Guarantees, checked", show_lines=True)
    for column in ("statement", "verdict", "found"):
        table.add_column(column)
    for claim in checked.claims:
        colour = COLOURS[claim.verdict]
        table.add_row(claim.name, f"[{colour}]{claim.verdict}[/{colour}]", claim.found)
    return table
