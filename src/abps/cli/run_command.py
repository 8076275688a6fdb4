"""``abps run``: one method, one seed."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from abps.cli import options
from abps.cli.check_command import announce
from abps.core.errors import RequestError
from abps.learn.devices import device_name, find_device
from abps.methods.settings import configure, describe
from abps.simulator.output import check_free, save
from abps.simulator.result import Run
from abps.simulator.simulate import simulate


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    method: Annotated[str, typer.Option(help="A method's name; `abps methods` lists them.")],
    out: options.Out,
    data: options.Data = "icu-synthetic",
    seed: Annotated[int, typer.Option(help="Splits, initial weights and every other draw.")] = 11,
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of the method's own number.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting of the method: --set gamma=0.5 --set kappa=2."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="simulate (fast), or debug (one center at a time).")
    ] = "simulate",
    device: Annotated[
        str,
        typer.Option(help="Where centers train: cpu, cuda, cuda:1, mps, or auto (a GPU if there is one)."),
    ] = "cpu",
    label: options.Label = None,
    center: options.Center = None,
    patient: options.Patient = None,
    time: options.Time = None,
    group: options.Group = None,
    drop: options.Drop = "",
    keep: options.Keep = "",
    positive: options.Positive = None,
    strict: options.Strict = False,
    eras: options.Eras = None,
    every: options.Every = None,
    min_stays: options.MinStays = None,
    as_json: options.Json = False,
) -> None:
    """Run one method with one seed; write result.json and decisions.parquet.

    Example: abps run --method abps-pq-k1 --data stays.csv --label died --center hospital --out my-run
    """
    config = configure(method, options.settings(set_ or []), rounds)
    if seed < 0:
        raise RequestError(f"--seed {seed}: choose a whole number from 0")
    place = device_name(find_device(device))
    console = Console(stderr=True)
    with console.status("reading the federation") if console.is_terminal else Console(quiet=True).status(""):
        federation = options.federation(
            data, label, center, patient, time, group, drop, min_stays, eras, every, keep, positive
        )
        identity = {"method": method, "seed": seed, "config": describe(config), "device": place}
        check_free(out, identity, federation.fingerprint())
    announce(federation.notes, strict, f"{out}/result.json")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("validation AUROC {task.fields[auroc]:.3f}"),
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
            progress=lambda t, _most, value: bar.update(task, completed=t, auroc=value),
        )
    save(result, out)
    if as_json:
        print(json.dumps(summary(result)))
        return
    Console().print(summary_table(result))
    Console().print(f"written to {out}/result.json and {out}/decisions.parquet", highlight=False)


def summary(result: Run) -> dict[str, object]:
    """The numbers of a run that people ask for first."""
    content = result.to_json()
    return {
        "method": result.method,
        "seed": result.seed,
        "rounds": result.rounds,
        "centers": result.data.centers,
        "auroc": content["auroc"]["mean"],
        "scored_centers": result.auroc.scored_centers,
        "at_best_validation": content["auroc"]["at_best_validation"],
        "auprc": content["auprc"]["mean"],
        "brier": content["brier"]["mean"],
        "bytes": content["bytes"],
        "cost_usd": result.cost_usd,
        "partners_mean": result.partners_mean,
        "rest": content["rest"],
        "seconds": result.seconds,
    }


def summary_table(result: Run) -> Table:
    """A run as a table for the terminal."""
    table = Table(title=f"{result.method} on {result.data.name}, seed {result.seed}", show_header=False)
    rows = [
        (
            "centers",
            f"{result.data.centers} ({result.auroc.scored_centers} scored), {result.data.rows:,} stays",
        ),
        ("rounds", str(result.rounds)),
        ("AUROC, mean over centers", f"{result.auroc.mean:.3f}"),
        ("… at the best validation round", f"{result.auroc.at_best_validation:.3f}"),
        ("AUPRC, Brier", f"{result.auprc.mean:.3f}, {result.brier.mean:.3f}"),
        ("bytes (once per edge)", f"{result.bytes.edge:,} = {result.bytes.vs_fedavg:.3g} × FedAvg"),
        ("egress cost", f"${result.cost_usd:.4f}"),
        ("partners per center and round", f"{result.partners_mean:.2f}"),
    ]
    if result.rest.share:
        causes = (
            f"{100 * result.rest.no_candidates:.1f} no candidates, "
            f"{100 * result.rest.all_full:.1f} all full, "
            f"{100 * result.rest.declined:.1f} declined, {100 * result.rest.budget:.1f} budget"
        )
        rows.append(("rest, % of center-rounds", f"{100 * result.rest.share:.1f} ({causes})"))
    if result.history.beliefs:
        now = result.history.beliefs[-1]
        rows.append(
            (
                "beliefs (Theorem 1, δ = 5 %)",
                f"{now.pairs:,} peers observed, error up to {now.radius:.2f}; "
                f"{now.useful} shown useful, {now.harmful} harmful",
            )
        )
    rows.append(("seconds", f"{result.seconds:.1f}"))
    for name, value in rows:
        table.add_row(name, value)
    return table
