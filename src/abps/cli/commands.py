"""What the command line consists of; a command's code is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer


def _demo(app: typer.Typer) -> None:
    from abps.cli import demo_command as demo

    demo.register(app)


def _check(app: typer.Typer) -> None:
    from abps.cli import check_command as check

    check.register(app)


def _run(app: typer.Typer) -> None:
    from abps.cli import run_command as run

    run.register(app)


def _compare(app: typer.Typer) -> None:
    from abps.cli import compare_command as compare

    compare.register(app)


def _fit(app: typer.Typer) -> None:
    from abps.cli import fit_command as fit

    fit.register(app)


def _predict(app: typer.Typer) -> None:
    from abps.cli import predict_command as predict

    predict.register(app)


def _report(app: typer.Typer) -> None:
    from abps.cli import report_command as report

    report.register(app)


def _methods(app: typer.Typer) -> None:
    from abps.cli import methods_command as methods

    methods.register(app)


def _cohort(app: typer.Typer) -> None:
    from abps.cli import cohort_command as cohort

    cohort.register(app)


def _partition(app: typer.Typer) -> None:
    from abps.cli import partition_command as partition

    partition.register(app)


def _drift(app: typer.Typer) -> None:
    from abps.cli import drift_command as drift

    drift.register(app)


def _adapt(app: typer.Typer) -> None:
    from abps.cli import adapt_command as adapt

    adapt.register(app)


def _theory(app: typer.Typer) -> None:
    from abps.cli import theory_command as theory

    theory.register(app)


def _bench(app: typer.Typer) -> None:
    from abps.cli import bench_command as bench

    bench.register(app)


def _site(app: typer.Typer) -> None:
    from abps.cli import site_command as site

    site.register(app)


#: Every command by its name, in the order of ``abps --help``.
COMMANDS: Final[dict[str, Callable[[typer.Typer], None]]] = {
    "demo": _demo,
    "check": _check,
    "run": _run,
    "compare": _compare,
    "fit": _fit,
    "predict": _predict,
    "report": _report,
    "methods": _methods,
    "cohort": _cohort,
    "partition": _partition,
    "drift": _drift,
    "adapt": _adapt,
    "theory": _theory,
    "bench": _bench,
    "site": _site,
}
