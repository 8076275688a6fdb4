"""``abps simulate-drift``: drift, alarms, and recovery."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from abps.cli import options
from abps.cli.options import read_seeds, split
from abps.core.errors import RequestError
from abps.lab import drift_simulation as study
from abps.study.execute import conduct
from abps.study.workers.processes import run_local


def simulate_drift(
    out: options.Out = Path("abps-drift-simulation"),
    data: Annotated[
        str,
        typer.Option(
            help="icu-stream with its change: icu-stream:change=risk,course=sudden,at=25,share=0.5. "
            "change: risk, protocol, outcome or case_mix; course: sudden, gradual or recurring."
        ),
    ] = study.DEFAULT,
    method: Annotated[str, typer.Option(help="Method of the abps family.")] = "abps",
    forget: Annotated[
        str,
        typer.Option(help="Comma-separated ways to forget: alarm, window, discount; never is added."),
    ] = "alarm",
    seeds: options.Seeds = "11,22,33,44,55",
    set_: options.Settings = None,
    jobs: options.Jobs = None,
    as_json: options.Json = False,
) -> None:
    """Simulate hospitals that change over time; compare methods that forget with one that does not.

    Runs the method on a stream whose centers change, and on the same stream without the change. Repeat the
    command to continue an interrupted study.

    Writes adapt.html (one file), adapt.json, figures and a table of all rounds.

    Example: abps simulate-drift --data icu-stream:heterogeneity=4,centers=12,change=outcome --out drift
    """
    scenario = study.Scenario.of(data)
    ways = ("never", *(way for way in split(forget) if way != "never"))
    if len(ways) == 1:
        raise RequestError(
            "--forget names no way to forget; give alarm, window or discount, with commas between"
        )
    plan = study.plan(scenario, method, ways, read_seeds(seeds), options.settings(set_))
    outcome = conduct(plan, out, functools.partial(run_local, jobs=jobs))
    if outcome.failed:
        run, error = outcome.failed[0]
        raise RequestError(f"{len(outcome.failed)} run(s) failed, the first (seed {run.seed}) with: {error}")
    if outcome.missing:
        raise typer.Exit(1)
    courses = study.read(scenario, plan, out)
    from abps.report.pages.adapt_page import summary, write  # draws, so only once there is something to draw

    page = write(out, scenario, courses, method)
    if as_json:
        print(json.dumps({**summary(scenario, courses, method), "report": str(page)}))
        return
    options.terminal().print(result_table(scenario, courses))
    for seen in study.alarm_rates(scenario, courses):
        rate = seen.false / seen.looks if seen.looks else 0.0
        print(
            f"forget {seen.forget}: {seen.false} false alarms in {seen.looks} looks at new data "
            f"({rate:.2%}, stated {seen.level:.2%}); "
            f"{seen.found} of {seen.changed} changed centers found within {study.AFTER} rounds"
            + (f" ({', '.join(f'{what} {count}' for what, count in seen.by.items())})" if seen.by else "")
        )
    print(f"written to {page}")


def result_table(scenario: study.Scenario, courses: list[study.DriftRun]) -> Table:
    """Accuracy after the change, seed by seed."""
    table = Table(title=f"AUROC over the {study.AFTER} rounds from round {scenario.begins} on")
    for name in ("forget", "seed", "never", "forgetting", "difference"):
        table.add_column(name, justify="left" if name == "forget" else "right")
    for d in study.differences(scenario, courses):
        for seed, (without, with_) in zip(d.seeds, d.after):
            table.add_row(d.forget, str(seed), f"{without:.4f}", f"{with_:.4f}", f"{with_ - without:+.4f}")
        better = f"better in {d.wins} of {len(d.seeds)}"
        table.add_row(d.forget, "all", "", better, f"{d.gain:+.4f}")
        still = f"{0.0 - d.loss_when_still:+.4f}"
        table.add_row(d.forget, "no change", "", "all rounds", still, end_section=True)
    return table
