"""``abps demo``: the main job on the embedded federation, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from abps.cli import options
from abps.study.workers.processes import Local

#: What the demo compares: alone, everybody, random pairs, chosen pairs, and the paper's full method.
METHODS: Final = ("local", "fedavg", "random-k1", "abps-pq-k1", "abps-x")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("abps-demo"),
    data: Annotated[
        str, typer.Option(help="Another built-in federation, for instance a smaller one.")
    ] = "icu-synthetic",
    seeds: Annotated[str, typer.Option(help="Whole numbers with commas between.")] = "11,22",
    rounds: Annotated[int, typer.Option(help="Rounds at most; the paper's experiments have 50.")] = 30,
    jobs: Annotated[
        int | None, typer.Option(help="Processes at the same time; default: one per core.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Five ways to learn from 230 synthetic intensive care centers, compared (about a minute).

    Every center alone, FedAvg, random pairs, pairs chosen by ABPS, and ABPS-X: accuracy, bytes and who
    loses, after 30 rounds. Writes abps-demo/report.html.
    """
    console = options.terminal(stderr=True)
    if console.is_terminal:
        console.print(
            f"comparing {', '.join(METHODS)} on {data}, seeds {seeds} → {out}/report.html",
            highlight=False,
            markup=False,
        )
    with Local(jobs) as local:
        if not out.exists():
            local.get_ready(len(METHODS))
        # Imported while the workers get ready.
        from abps.cli.compare_command import read_seeds
        from abps.cli.study_outcome import finish
        from abps.study.plan import Request, Source, make_plan

        plan = make_plan(Request((Source(data),), METHODS, read_seeds(seeds), rounds))
        finish(plan, out, local, as_json)
