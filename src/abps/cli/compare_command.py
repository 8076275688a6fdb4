"""``abps compare``: many methods, many seeds, then the report."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from abps.cli import options
from abps.cli.options import read_seeds, split
from abps.core.errors import RequestError


def compare(
    methods: options.Methods,
    out: options.Out,
    columns: options.DataOptions,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A file or a built-in federation, as in `abps run`; may be given several times."),
    ] = None,
    seeds: options.Seeds = "11,22,33",
    rounds: options.Rounds = None,
    model: options.Model = None,
    set_: options.Settings = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A setting with several values: --vary gamma=0.1,0.25,0.5; a row for each."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            help="Score every patient out of so many folds, once for each seed; 1: the test rows of one "
            "split. Default: 5, and 1 for the paper's table and attacks."
        ),
    ] = None,
    subgroups: options.Subgroups = "",
    attack: options.Attack = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="First choose every method's grid, on validation rows of other seeds."),
    ] = False,
    tune_seeds: Annotated[
        str, typer.Option(help="Seeds to tune on; default: two that are not compared on.")
    ] = "",
    references: Annotated[
        bool,
        typer.Option(help="Also run a hospital alone, pooled rows and a federated regression at their best."),
    ] = True,
    jobs: options.Jobs = None,
    executor: Annotated[str, typer.Option(help="local (processes here) or slurm (job arrays).")] = "local",
    slurm_account: Annotated[str | None, typer.Option(help="Slurm: the account to charge.")] = None,
    slurm_partition: Annotated[str | None, typer.Option(help="Slurm: the partition.")] = None,
    slurm_minutes: Annotated[int, typer.Option(help="Slurm: the time limit of one run.")] = 60,
    slurm_memory: Annotated[float, typer.Option(help="Slurm: the memory of one run in GB.")] = 4.0,
    slurm_cores: Annotated[int, typer.Option(help="Slurm: the cores of one run.")] = 1,
    slurm_deadline: Annotated[
        float | None, typer.Option(help="Slurm: stop waiting after so many minutes; jobs stay in the queue.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare methods in folds and repeats; stop and start again, nothing finished is computed twice.

    Every run lies in a folder of its own under OUT/runs. Interrupted (or killed), the same command goes on
    where it stopped. More methods or repeats (seeds) may be added later to the same folder.

    Example: abps compare --methods local-best,fedavg,random-k1,abps-plus --seeds 11,22,33 --out my-study
    """
    from abps.cli.check_command import announce
    from abps.cli.study_outcome import finish
    from abps.study.execute import Executor
    from abps.study.plan import Plan, Source, request_of
    from abps.study.slurm import Slurm, run_slurm
    from abps.study.workers import run_local

    if executor not in ("local", "slurm"):
        raise RequestError(f"--executor {executor}: choose local or slurm")
    sources = tuple(Source(each, columns.roles(), columns.min_stays) for each in data or ["icu-synthetic"])
    words = split(methods)
    request = request_of(
        sources, words, read_seeds(seeds), rounds=rounds, settings=options.settings(set_, model),
        vary=read_vary(vary or []), references=references, folds=folds, attack=attack,
        tune=read_seeds(tune_seeds) if tune_seeds else tune, subgroups=split(subgroups),
    )  # fmt: skip
    slurm = Slurm(slurm_account, slurm_partition, slurm_minutes, slurm_memory, slurm_cores, slurm_deadline)
    local: Executor = functools.partial(run_local, jobs=jobs)
    compute = local if executor == "local" else functools.partial(run_slurm, slurm=slurm)

    def show_notes(plan: Plan) -> None:
        for federation in plan.federations.values():
            announce(federation.notes, columns.strict, f"{out}/study.json")

    finish(request, words, out, compute, as_json, show_notes)


def read_vary(pairs: list[str]) -> dict[str, tuple[str, ...]]:
    """``--vary key=a,b`` as a mapping."""
    given = {}
    for pair in pairs:
        key, equals, values = pair.partition("=")
        if not equals or not key.strip() or not split(values):
            raise RequestError(f"--vary {pair}: write key=value,value, for instance --vary gamma=0.1,0.5")
        given[key.strip()] = split(values)
    return given
