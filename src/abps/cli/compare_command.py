"""``abps compare``: many methods, many seeds, then the report."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from abps.cli import options
from abps.cli.check_command import announce
from abps.cli.options import split
from abps.core.errors import RequestError
from abps.data.roles import Roles
from abps.data.synthetic.builtin import is_builtin
from abps.methods.catalog import REFERENCES
from abps.report.build import Report
from abps.report.comparison import load_study
from abps.report.tables import NOTHING, brief, percent, times, with_deviation
from abps.study.execute import Outcome, conduct
from abps.study.plan import Plan, Request, Source, expand_methods, make_plan
from abps.study.workers.processes import run_local
from abps.study.workers.slurm import Slurm, run_slurm, write_script


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    methods: Annotated[
        str,
        typer.Option(help="Names with commas between, or paper (the paper's table and controls), or all."),
    ],
    out: options.Out,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A file or a built-in federation, as in `abps run`; may be given several times."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Whole numbers with commas between.")] = "11,22,33,44,55",
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of each method's own number.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting for every method that has it: --set gamma=0.5."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A setting with several values: --vary gamma=0.1,0.25,0.5; a row for each."),
    ] = None,
    references: Annotated[
        bool,
        typer.Option(help="Also run a hospital alone, pooled rows and a federated regression at their best."),
    ] = True,
    jobs: Annotated[
        int | None, typer.Option(help="Processes at the same time; default: one per core.")
    ] = None,
    executor: Annotated[str, typer.Option(help="local (processes here) or slurm (job arrays).")] = "local",
    slurm_account: Annotated[str | None, typer.Option(help="Slurm: the account to charge.")] = None,
    slurm_partition: Annotated[str | None, typer.Option(help="Slurm: the partition.")] = None,
    slurm_minutes: Annotated[int, typer.Option(help="Slurm: the time limit of one run.")] = 60,
    slurm_memory: Annotated[float, typer.Option(help="Slurm: the memory of one run in GB.")] = 4.0,
    slurm_cores: Annotated[int, typer.Option(help="Slurm: the cores of one run.")] = 1,
    slurm_deadline: Annotated[
        float | None, typer.Option(help="Slurm: stop waiting after so many minutes; jobs stay in the queue.")
    ] = None,
    sbatch: Annotated[
        Path | None, typer.Option(help="Compute nothing; write a script for `sbatch` that will.")
    ] = None,
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
    """Compare methods over seeds; stop and start again as you like, nothing finished is computed twice.

    Every run lies in a folder of its own under OUT/runs. Interrupted (or killed), the same command goes on
    where it stopped. More methods or seeds may be added later to the same folder.

    Example: abps compare --methods local,fedavg,random-k1,abps-pq-k1 --seeds 11,22,33 --out my-study
    """
    roles = Roles(
        label or "", center or "", patient, time, group, split(drop), eras, every, split(keep), positive
    )
    sources = tuple(source(d, roles, min_stays) for d in data or ["icu-synthetic"])
    words = split(methods)
    request = Request(
        sources, expand_methods(words), read_seeds(seeds), rounds, options.settings(set_ or []),
        read_vary(vary or []), REFERENCES if references else (),
    )  # fmt: skip
    if executor not in ("local", "slurm"):
        raise RequestError(f"--executor {executor}: choose local or slurm")
    if jobs is not None and jobs < 1:
        raise RequestError(f"--jobs {jobs}: choose at least 1")
    slurm = Slurm(slurm_account, slurm_partition, slurm_minutes, slurm_memory, slurm_cores, slurm_deadline)
    plan = make_plan(request, words)
    for federation in plan.federations.values():
        announce(federation.notes, strict, f"{out}/study.json")
    if sbatch is not None:
        prepare_script(plan, out, slurm, sbatch, as_json)
    elif executor == "slurm":
        finish(plan, out, functools.partial(run_slurm, slurm=slurm), as_json)
    else:
        finish(plan, out, functools.partial(run_local, jobs=jobs), as_json)


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


def source(data: str, roles: Roles, min_stays: int | None) -> Source:
    """A ``--data`` argument with the roles of its columns."""
    roles = options.complete(data, roles)
    if not is_builtin(data) and Path(data).exists() and not (roles.label and roles.center):
        raise RequestError(f"--data {data}: name its columns with --label COL and --center COL")
    return Source(data, roles, min_stays)


def read_seeds(text: str) -> tuple[int, ...]:
    """``--seeds 11,22`` as numbers."""
    try:
        return tuple(int(part) for part in split(text))
    except ValueError:
        raise RequestError(
            f"--seeds {text}: give whole numbers with commas between, such as 11,22,33"
        ) from None


def read_vary(pairs: list[str]) -> dict[str, tuple[str, ...]]:
    """``--vary key=a,b`` as a mapping."""
    given = {}
    for pair in pairs:
        key, equals, values = pair.partition("=")
        if not equals or not key.strip() or not split(values):
            raise RequestError(f"--vary {pair}: write key=value,value, for instance --vary gamma=0.1,0.5")
        given[key.strip()] = split(values)
    return given


def finish(plan: Plan, out: Path, executor: Any, as_json: bool, words: tuple[str, ...] = ()) -> None:
    """Conduct a study, write its report, and say what came out; failed runs end it with their exit code."""
    try:
        outcome = conduct(plan, out, executor)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; the same command goes on from here", highlight=False)
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
        for line in section.part.lines:
            r = line.result
            entry: dict[str, Any] = {
                "method": r.label,
                "auroc": r.mean,
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
    console = Console()
    for section in report.sections:
        part = section.part
        table = Table(
            title=f"{part.data.name}: {part.data.centers} centers, {part.seeds()} seed(s)",
            box=None,
            padding=(0, 1, 0, 0),
        )
        for name in ("method", "AUROC", "bytes", "to FedAvg", "to random", "harmed", "rest"):
            table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
        for line in part.lines:
            r = line.result
            table.add_row(
                r.label,
                with_deviation(r.mean, r.deviation),
                times(r.vs_fedavg),
                brief(line.to_fedavg),
                brief(line.to_random),
                NOTHING if line.harm is None else percent(line.harm.expected, line.harm.centers),
                percent(r.rest, 1) if r.rest else NOTHING,
            )
        console.print(table)
        console.print(f"equal: within {part.margin:g}; ?: cannot tell; harmed: noise taken out", style="dim")
        for sentence in words or section.sentences:
            console.print(f"• {sentence}", highlight=False, markup=False)
    for missing in report.absent:
        console.print(f"not in the report: {missing}", style="yellow", highlight=False, markup=False)
    console.print(f"report: {report.page}", highlight=False, markup=False, soft_wrap=True)
