"""``abps run``: one method, one seed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from abps.cli import options


def run(
    method: options.Method,
    out: options.Out,
    columns: options.DataOptions,
    data: options.Data = "icu-synthetic",
    seed: options.Seed = 11,
    rounds: options.Rounds = None,
    model: options.Model = None,
    set_: options.Settings = None,
    engine: Annotated[
        str, typer.Option(help="simulate (fast), or debug (one center at a time).")
    ] = "simulate",
    device: Annotated[
        str, typer.Option(help="Device to train on: cpu, cuda, cuda:1, mps, or auto (a GPU if there is one).")
    ] = "cpu",
    attack: options.Attack = None,
    subgroups: options.Subgroups = "",
    as_json: options.Json = False,
) -> None:
    """Run one method with one seed; write result.json and decisions.parquet.

    Example: abps run --method abps-plus --data stays.csv --label died --center hospital --out my-run
    """
    from abps.checks import quick_check
    from abps.cli.check_command import announce
    from abps.cli.run_summary import summary, summary_table
    from abps.engine.attacks import parse
    from abps.engine.output import check_free, save
    from abps.engine.simulate import simulate
    from abps.methods.accounting import with_noise
    from abps.methods.catalog import CATALOG
    from abps.methods.settings import configure, describe
    from abps.models.modules import find_device

    if method not in CATALOG:
        quick_check(configure(method), method)
    config = with_noise(configure(method, options.settings(set_, model), rounds))
    place = find_device(device)
    console = options.terminal(stderr=True)
    with console.status("reading the federation") if console.is_terminal else nullcontext():
        federation = columns.federation(data)
        identity = {"method": method, "seed": seed, "config": describe(config), "device": place}
        identity["attack"] = str(parse(attack)) if attack else ""
        check_free(out, identity, federation.fingerprint())
    announce(federation.notes, columns.strict, f"{out}/result.json")
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn(f"validation {federation.outcome.measure} {{task.fields[auroc]:.3f}}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(method, total=config.stop.rounds, auroc=float("nan"))
        result = simulate(
            federation,
            config,
            seed,
            engine=engine,
            device=device,
            name=method,
            attack=attack,
            subgroups=options.split(subgroups),
            progress=lambda t, _most, value: bar.update(task, completed=t, auroc=value),
        )
    save(result, out)
    if as_json:
        print(json.dumps(summary(result)))
        return
    options.terminal().print(summary_table(result))
    options.terminal().print(f"written to {out}/result.json and {out}/decisions.parquet", soft_wrap=True)
