"""What the command line consists of; a command's code is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer


def _demo(app: typer.Typer) -> None:
    from abps.cli import demo

    demo.register(app)


def _run(app: typer.Typer) -> None:
    from abps.cli import run

    run.register(app)


def _compare(app: typer.Typer) -> None:
    from abps.cli import compare

    compare.register(app)


def _report(app: typer.Typer) -> None:
    from abps.cli import report

    report.register(app)


def _methods(app: typer.Typer) -> None:
    from abps.cli import methods

    methods.register(app)


def _cohort(app: typer.Typer) -> None:
    from abps.cli import cohort

    cohort.register(app)


def _partition(app: typer.Typer) -> None:
    from abps.cli import partition

    partition.register(app)


def _drift(app: typer.Typer) -> None:
    from abps.cli import drift

    drift.register(app)


def _adapt(app: typer.Typer) -> None:
    from abps.cli import adapt

    adapt.register(app)


def _theory(app: typer.Typer) -> None:
    from abps.cli import theory

    theory.register(app)


def _bench(app: typer.Typer) -> None:
    from abps.cli import bench

    bench.register(app)


def _site(app: typer.Typer) -> None:
    from abps.cli import site

    site.register(app)


#: Every command by its name, in the order of ``abps --help``.
COMMANDS: Final[dict[str, Callable[[typer.Typer], None]]] = {
    "demo": _demo,
    "run": _run,
    "compare": _compare,
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
