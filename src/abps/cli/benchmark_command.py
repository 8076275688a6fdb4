"""``abps benchmark``: methods × federations on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abps.cli import options
from abps.core.errors import RequestError, nearest


def benchmark(
    out: options.Out,
    methods: Annotated[
        str, typer.Option(help="Methods with commas between; also package.module:CONFIG, and method@model.")
    ] = "fedavg,feddyn,random-k1,abps-plus",
    federations: Annotated[
        str, typer.Option(help="Names with commas between, real, synthetic, or all (what is there).")
    ] = "all",
    data_folder: Annotated[
        Path | None, typer.Option(help="The folder that holds the real tables; nothing is downloaded.")
    ] = None,
    describe: Annotated[
        list[Path] | None, typer.Option(help="A TOML file that describes a federation of your own.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Repeats: new folds of a table, new worlds of a generator.")
    ] = "11,22,33",
    model: Annotated[str, typer.Option(help="What every method shares: gam, linear or mlp.")] = "gam",
    codec: Annotated[str, typer.Option(help="How all methods that send weights write them.")] = "bf16",
    rows: Annotated[
        int,
        typer.Option(help="Cut larger federations to whole hospitals with so many rows; 0: as described."),
    ] = 0,
    folds: Annotated[int, typer.Option(help="Folds; every patient is scored out of fold.")] = 5,
    jobs: Annotated[int | None, typer.Option(help="Processes.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the federations and what is missing.")] = False,
) -> None:
    """Compare methods over many federations: scores with intervals, ranks, bytes, harm, time.

    Example: abps benchmark --methods fedavg,abps-plus --federations real --data-folder tables --out bench
    """
    from abps.lab import benchmark as lab
    from abps.lab.suite import missing, suite
    from abps.report.pages import benchmark_page

    known = suite(describe or [])
    console = options.terminal()
    if list_:
        for name, each in known.items():
            reason = missing(each, data_folder)
            console.print(f"{name}: {each.title}; {each.licence}{f'; missing: {reason}' if reason else ''}")
        return
    asked = options.split(federations)
    kinds = {
        "all": lambda each: True,
        "real": lambda each: each.real,
        "synthetic": lambda each: not each.real,
    }
    chosen = []
    for word in asked:
        if word in kinds:
            some = [each for each in known.values() if kinds[word](each)]
            for each in some:
                if missing(each, data_folder):
                    console.print(f"left out: {each.name}: {missing(each, data_folder)}")
            chosen += [each for each in some if not missing(each, data_folder)]
        elif word in known:
            reason = missing(known[word], data_folder)
            if reason:
                raise RequestError(f"{word}: {reason}")
            chosen.append(known[word])
        else:
            raise RequestError(f"--federations {word}: no such federation{nearest(word, known)}")
    if not chosen:
        raise RequestError("no federation is left; see `abps benchmark --list`")
    try:
        repeats = [int(part) for part in options.split(seeds)]
    except ValueError as error:
        raise RequestError(f"--seeds {seeds}: write whole numbers with commas between") from error
    unique = list({each.name: each for each in chosen}.values())
    asked_methods, screen = options.split(methods), options.terminal(stderr=True)
    setup = lab.Setup(model, codec, folds, rows, jobs)
    found = lab.run_benchmark(unique, asked_methods, repeats, data_folder, out, setup, screen.print)
    frame = lab.to_frame(found.rows)
    benchmark_page.write(found, out)
    console.print(benchmark_page.conclusion(lab.ranking(frame)))
    console.print(f"written: {out / 'benchmark.html'}, {out / 'benchmark.csv'}")
