"""``abps demo``: the main job on the embedded federation, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from abps.cli import options
from abps.study.workers import LocalExecutor

#: The best alone, a plain federated regression, everybody, random pairs, the flagship, and the true groups.
METHODS: Final = ("local-best", "glm-exact", "fedavg", "random-k1", "abps-plus", "group-oracle-k1")

#: Repeats: every patient is scored once in each.
SEEDS: Final = "11"

#: Hospitals that differ, and hospitals that are alike.
DIFFER: Final = "icu-synthetic:heterogeneity=4,centers=40"
ALIKE: Final = "icu-synthetic:heterogeneity=0,centers=40"


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("abps-demo"),
    data: Annotated[
        list[str] | None,
        typer.Option(help="Another built-in federation, for instance a smaller one; may be repeated."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="One whole number per repeat, with commas between.")] = SEEDS,
    rounds: Annotated[int, typer.Option(help="Rounds at most.")] = 50,
    jobs: Annotated[
        int | None, typer.Option(help="Processes at the same time; default: one per core.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Would collaboration help, and with whom? Hospitals that differ and hospitals that are alike.

    Forty synthetic intensive care centers each: the best that a hospital can do alone, a federated
    regression, FedAvg, random pairs, abps-plus, and pairs by the true groups, all on the same additive model.
    Every patient is scored out of five folds. Writes abps-demo/report.html, in about a minute.
    """
    given = tuple(data or (DIFFER, ALIKE))
    console = options.terminal(stderr=True)
    if console.is_terminal:
        console.print(
            f"comparing {', '.join(METHODS)}, seeds {seeds} → {out}/report.html",
            highlight=False,
            markup=False,
        )
    with LocalExecutor(jobs) as local:
        if not out.exists():
            local.get_ready(len(METHODS))
        # Imported while the workers get ready.
        from abps.cli.study_outcome import finish
        from abps.study.plan import Request, Source

        request = Request(
            tuple(Source(each) for each in given),
            METHODS,
            options.read_seeds(seeds),
            rounds,
            {"model": "gam"},
        )
        finish(request, METHODS, out, local, as_json)
    if not as_json:
        options.terminal().print(
            "your own table: abps compare --data stays.csv --label died --center hospital "
            "--methods fedavg,abps-plus --out my-study",
            soft_wrap=True,
        )
