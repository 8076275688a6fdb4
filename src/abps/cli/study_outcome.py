"""What comes of a study, on the terminal and for machines."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from pathlib import Path
from typing import Any

import typer
from rich.measure import Measurement
from rich.table import Table

from abps.cli.options import terminal
from abps.core.errors import RequestError
from abps.report.build import Report
from abps.report.comparison import load_study
from abps.report.live import serving
from abps.report.tables import NOTHING, brief, percent, standing_on, times, volume, with_deviation
from abps.study.execute import Outcome, conduct
from abps.study.plan import Plan
from abps.study.workers.slurm import Slurm, write_script


def prepare_script(plan: Plan, out: Path, slurm: Slurm, path: Path, as_json: bool) -> None:
    """Store the plan and its data, and write the script that computes it."""
    outcome = conduct(plan, out, functools.partial(write_script, slurm=slurm, path=path))
    todo = len(outcome.missing)
    if as_json:
        print(json.dumps({"script": str(path) if todo else None, "study": str(out), "runs": todo}))
    elif todo:
        print(f"{path}: {todo} runs; submit it with `sbatch {path}`, then `abps report {out}`")
    else:
        print(f"all runs are there already; `abps report {out}` writes the report")


def finish(
    plan: Plan, out: Path, executor: Any, as_json: bool, words: tuple[str, ...] = (), live: bool = False
) -> None:
    """Conduct a study, write its report, and say what came out; failed runs end it with their exit code.

    live: serve the report on this machine while the study runs.
    """
    try:
        with serving(out) if live else contextlib.nullcontext() as address:
            if address is not None:
                print(f"the report so far, on this machine while the study runs: {address}", file=sys.stderr)
            outcome = conduct(plan, out, executor)
    except KeyboardInterrupt:
        terminal(stderr=True).print("stopped; the same command goes on from here")
        raise
    if outcome.failed and len(outcome.failed) == outcome.planned:
        run, error = outcome.failed[0]
        raise RequestError(
            f"all {outcome.planned} runs failed, the first ({run.label}, seed {run.seed}) with: {error}"
        )
    if outcome.missing and len(outcome.missing) + len(outcome.failed) == outcome.planned:
        print("no run is finished yet; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(1)
    report = load_study(out).report()
    if as_json:
        print(json.dumps(summary(report, outcome)))
    else:
        show(report, words)
    if outcome.failed or outcome.missing:
        raise typer.Exit(1)


def summary(report: Report, outcome: Outcome | None = None) -> dict[str, Any]:
    """What came out, for machines."""
    content: dict[str, Any] = {"report": str(report.page), "absent": list(report.absent), "data": []}
    if report.tuned:
        content["tuned"] = list(report.tuned)
    if outcome is not None:
        content["runs"] = {
            "planned": outcome.planned,
            "reused": outcome.reused,
            "computed": outcome.computed,
            "failed": [
                {"method": run.label, "seed": run.seed, "error": error} for run, error in outcome.failed
            ],
            "missing": len(outcome.missing),
        }
    for section in report.sections:
        lines = []
        measure = section.part.measure
        for line in section.part.lines:
            r = line.result
            entry: dict[str, Any] = {
                "method": r.label,
                "auroc": r.mean if measure == "AUROC" else None,
                **({} if measure == "AUROC" else {"score": r.mean, "measure": measure}),
                "sd": r.deviation if len(r.seeds) > 1 else None,
                "vs_fedavg": r.vs_fedavg,
                "rest": r.rest,
                "seeds": len(r.seeds),
            }
            for name, d in (("fedavg", line.to_fedavg), ("random", line.to_random), ("alone", line.to_alone)):
                if d is not None:
                    entry[f"to_{name}"] = {
                        "estimate": d.estimate,
                        "low": d.low,
                        "high": d.high,
                        "p": d.p,
                        "p_holm": d.corrected,
                        "verdict": d.verdict,
                    }
            if line.harm is not None:
                entry["harmed_expected"], entry["harmed_surely"] = line.harm.expected, line.harm.sure
                entry["compared_centers"] = line.harm.centers
            lines.append(entry)
        content["data"].append(
            {"name": section.part.data.name, "methods": lines, "summary": section.sentences}
        )
    return content


def show(report: Report, words: tuple[str, ...] = ()) -> None:
    """The headline on the terminal, and what it means."""
    console = terminal()
    for section in report.sections:
        part = section.part
        table = Table(
            title=f"{part.data.name}: {part.data.centers} centers, {part.seeds()} seed(s)",
            box=None,
            padding=(0, 1, 0, 0),
        )
        for name in ("method", part.measure, "bytes", "a round", "to FedAvg", "to random", "harmed", "rest"):
            table.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
        for line in part.lines:
            r = line.result
            table.add_row(
                r.label,
                with_deviation(r.mean, r.deviation),
                times(r.vs_fedavg),
                volume(r.megabytes_a_round),
                brief(line.to_fedavg),
                brief(line.to_random),
                NOTHING if line.harm is None else percent(line.harm.expected, line.harm.centers),
                percent(r.rest, 1) if r.rest else NOTHING,
            )
        # No digit is cut off: a file takes the width it needs, a narrow terminal folds cells.
        needed = Measurement.get(console, console.options.update(width=400), table).maximum
        paper = console if console.is_terminal else terminal(width=max(console.width, needed))
        paper.print(table)
        legend = (
            f"a round: per center; equal: within {part.margin:g}; ?: cannot tell; harmed: noise taken out"
        )
        console.print(legend, style="dim")
        if standing_on(part):
            console.print(f"{part.measure} {standing_on(part)}", style="dim")
        for sentence in words or section.sentences:
            console.print(f"• {sentence}")
    for told in report.tuned:
        console.print(told, style="dim")
    for missing in report.absent:
        console.print(f"not in the report: {missing}", style="yellow")
    console.print(f"report: {report.page}", soft_wrap=True)
