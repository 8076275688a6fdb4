"""``abps bench``: how fast this machine is."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from abps.cli import options
from abps.core.errors import RequestError
from abps.data.prepare import Prepared, prepare
from abps.data.table import load
from abps.lab import speed
from abps.models.training import Training


def bench(
    data: Annotated[
        str, typer.Option(help="Built-in federation, or uniform:CENTERSxROWSxFEATURES (230x256x64).")
    ] = "icu-synthetic",
    model: options.Model = None,
    turns: Annotated[int, typer.Option(min=1, help="Number of measurements of each, in turns.")] = 5,
    scale: Annotated[
        bool, typer.Option("--scale", help="Also measure selection among 1,000, 10,000 and 100,000 centers.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Measure local training against a plain PyTorch loop and the machine's matrix-multiply speed."""
    training = Training.of(model or "mlp")
    prepared = (
        _uniform(data)
        if data.startswith("uniform")
        else prepare(load(data), 11, standardise=training.standardise, splines=training.splines)
    )
    with options.terminal(stderr=True).status("measuring in turns") as status:
        found = speed.measure(
            prepared, turns, progress=lambda k, of: status.update(f"turn {k} of {of}"), training=training
        )
        costs = {}
        for n in speed.SIZES if scale else ():
            status.update(f"selection among {n:,} centers")
            costs[n] = speed.in_its_own_process(speed.selection_cost, n)
    if as_json:
        more = {
            "select_s_per_round": {str(n): cost.seconds for n, cost in costs.items()},
            "select_peak_mb": {str(n): cost.peak_mb for n, cost in costs.items()},
        }
        print(json.dumps(asdict(found) | (more if costs else {})))
        return
    title = f"{prepared.name}: {found.centers} centers, {found.rows:,} training rows"
    table = Table(title=title, show_header=False)
    for name, value in (
        ("center-rounds per second", f"{found.center_rounds_per_s:,.0f}"),
        ("plain PyTorch loop", f"{found.loop_center_rounds_per_s:,.0f}"),
        ("ratio", f"{found.ratio_to_loop:.1f} ×"),
        ("useful Gflop/s", f"{found.useful_gflops:.1f}"),
        ("matrix-multiply roof, Gflop/s", f"{found.sgemm_gflops:.1f} on {found.cores} cores"),
        ("fraction of the roof", f"{found.fraction_of_roof:.2f}"),
        ("peak memory", f"{found.peak_mb:,.0f} MB"),
        *(
            (f"selection among {n:,} centers", f"{cost.seconds:.2f} s per round, {cost.peak_mb:,.0f} MB")
            for n, cost in costs.items()
        ),
    ):
        table.add_row(name, value)
    options.terminal().print(table)


def _uniform(spec: str) -> Prepared:
    """``uniform`` or ``uniform:230x256x64``."""
    _, _, sizes = spec.partition(":")
    try:
        numbers = [int(part) for part in sizes.split("x")] if sizes else []
    except ValueError:
        numbers = [0]
    if len(numbers) not in (0, 3) or any(number < 1 for number in numbers):
        raise RequestError(
            f"--data {spec}: write uniform:CENTERSxROWSxFEATURES, for instance uniform:230x256x64"
        )
    return speed.uniform(*numbers)
