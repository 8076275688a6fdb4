"""Comparisons in Python: many runs, and what they say together.

>>> import abps
>>> federation = abps.load("icu-synthetic:centers=8")
>>> study = abps.compare(federation, ["local", "fedavg"], seeds=[11], rounds=2, references=False)
>>> study
<Study of 2 methods on icu-synthetic:centers=8, 1 seed: 2 runs>
>>> study.frame().columns
['data', 'method', 'seed', 'center', 'auroc', 'auprc', 'brier']
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.engine.result import Accuracy, Run
from abps.methods.base import Method
from abps.methods.catalog import REFERENCES, find
from abps.report.build import Report, build, parts_of
from abps.report.drawing import Drawing
from abps.report.figures import draw_all
from abps.report.statistics import MARGIN
from abps.report.tables import Table, headline
from abps.study.computing import computed
from abps.study.execute import Executor, conduct
from abps.study.plan import Plan, PlannedRun, Request, Source, expand_methods, make_plan
from abps.study.records import StudyFolder, StudyRecord, record_of
from abps.study.tuning import in_folder, tuned, tuning_seeds
from abps.study.workers.in_process import run_here
from abps.study.workers.processes import run_local

#: The seeds of a comparison unless others are named.
SEEDS = (11, 22, 33, 44, 55)


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """Runs of several methods and seeds, and what they say together.

    record: what was asked for.  runs: what is finished.  absent: one line for every run that is not.
    root: the study's folder; None for a study that lives in memory.
    """

    record: StudyRecord
    runs: tuple[tuple[PlannedRun, Run], ...]
    absent: tuple[str, ...] = ()
    root: Path | None = None

    def frame(self) -> pl.DataFrame:
        """One row per method, seed and center: AUROC, AUPRC and Brier score, or the scores of another
        outcome; null where not defined."""
        parts = [
            pl.DataFrame(
                {
                    "data": run.data.name,
                    "method": planned.label,
                    "seed": run.seed,
                    "center": list(run.main.per_center),
                }
                | {
                    name: [told.per_center.get(center) for center in run.main.per_center]
                    for name, told in _told(run).items()
                },
                schema_overrides=dict.fromkeys(_told(run), pl.Float64),
            ).with_columns(pl.col(pl.Float64).fill_nan(None))
            for planned, run in self.runs
            if not planned.leave_out
        ]
        return pl.concat(parts, how="diagonal") if parts else pl.DataFrame()

    def tables(self) -> list[Table]:
        """The headline of every federation: accuracy, bytes, and what may be said of them."""
        return [headline(part) for part in parts_of(self)]

    def table(self) -> Table:
        """The headline of the study's federation (of its first, where it has several)."""
        return self.tables()[0]

    def plots(self) -> dict[str, Drawing]:
        """Every figure that the runs allow, by its name; a notebook shows it."""
        return {drawing.name: drawing for drawing in draw_all(parts_of(self)[0])}

    def plot_ranking(self) -> Drawing:
        """Mean AUROC of every method, with its seeds."""
        return self._plot("ranking")

    def plot_pareto(self) -> Drawing:
        """Accuracy against bytes."""
        return self._plot("pareto")

    def plot_rounds(self) -> Drawing:
        """AUROC over rounds."""
        return self._plot("rounds")

    def _plot(self, name: str) -> Drawing:
        found = draw_all(parts_of(self)[0], name)
        if not found:
            raise RequestError(f"these runs allow no figure {name!r}; study.plots() has those that they do")
        return found[0]

    def report(
        self,
        out: Path | str | None = None,
        targets: Sequence[float] | None = None,
        margin: float = MARGIN,
    ) -> Report:
        """Write tables, figures and ``report.html`` into a folder; default: the study's own.

        targets: AUROCs for the table of bytes; unless told, on the way from training alone to the best.
        margin: methods that differ by less are equal.
        """
        place = out if out is not None else self.root
        if place is None:
            raise RequestError("this study has no folder; name one: study.report(out='my-report')")
        return build(self, Path(place), targets, margin)

    def __repr__(self) -> str:
        labels = len({planned.label for planned, _ in self.runs})
        seeds = len({run.seed for _, run in self.runs})
        names = ", ".join(about.name for about in self.record.data)
        missing = f", {len(self.absent)} absent" if self.absent else ""
        return (
            f"<Study of {labels} method{'s' * (labels != 1)} on {names}, {seeds} seed{'s' * (seeds != 1)}: "
            f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}{missing}>"
        )

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())


def load_study(root: Path | str) -> Study:
    """The study in a folder: its finished runs, and what is absent."""
    folder = StudyFolder(Path(root))
    if not folder.root.is_dir():
        raise RequestError(f"{root}: no such folder; give the folder of a comparison")
    record = folder.read()
    there, absent = folder.finished(record)
    return Study(record, tuple(there), tuple(absent), folder.root)


def compare(
    federation: Federation,
    methods: Sequence[str | Method] | Mapping[str, str | Method],
    seeds: Sequence[int] = SEEDS,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    out: Path | str | None = None,
    jobs: int | None = None,
    references: bool = True,
    folds: int | None = None,
    tune: bool | Sequence[int] = False,
    subgroups: Sequence[str] = (),
    leave_centers_out: int = 0,
) -> Study:
    """Run methods over seeds and hold them against each other.

    methods: names (also ``package.module:CONFIG``, ``paper`` and ``all``) or configurations; a mapping gives
    configurations names of their own.
    settings, vary: replaced in every method that has them; ``vary`` makes a row for each value.
    out: a folder that keeps the runs; asked for again, what is finished is not computed twice. Without one
    the runs live in memory, with their final models.
    jobs: compute in so many processes, each with its own cores; needs ``out``, and methods with a name.
    references: also run what a hospital alone, pooled rows and a federated regression would give.
    folds: score every row once by cross-validation over patients; each seed deals them out anew.
    tune: first try every method's grid on other seeds (two, or those named) and run with what does best there
    on validation rows.
    subgroups: columns by which accuracy is told apart, besides sex and age where they are found.
    leave_centers_out: also let centers stay away, in so many groups, one after the other: what would the
    others' model be worth to a hospital that did not take part?
    """
    words, own = _named(methods)
    request = Request(
        (Source(federation.name),),
        tuple(name for word in words for name in ((word,) if word in own else expand_methods([word]))),
        tuple(seeds),
        rounds,
        dict(settings or {}),
        {name: tuple(values) for name, values in (vary or {}).items()},
        REFERENCES if references else (),
        folds,
        tune=tuning_seeds(tune, seeds),
        subgroups=tuple(subgroups),
        leave_out=leave_centers_out,
    )
    plan = make_plan(request, words, own, (federation,))
    if jobs is not None and (out is None or own):
        raise RequestError(f"jobs={jobs}: other processes need a folder (out) and methods that have a name")
    if out is None:

        def all_of(plan: Plan) -> list[tuple[PlannedRun, Run]]:
            return [(run, computed(run, federation, run.config(own))) for run in plan.runs]

        plan = tuned(plan, lambda trials: (all_of(trials), {}), words, own)
        return Study(record_of(plan), tuple(all_of(plan)), plan.left_out)
    executor: Executor = functools.partial(run_here, own=own, federations=plan.federations)
    if jobs is not None:
        executor = functools.partial(run_local, jobs=jobs)
    elsewhere = jobs is not None
    plan = tuned(plan, in_folder(request, Path(out), executor, elsewhere), words, own)
    conduct(plan, Path(out), executor, elsewhere)
    return load_study(out)


def _named(
    methods: Sequence[str | Method] | Mapping[str, str | Method],
) -> tuple[list[str], dict[str, Method]]:
    """Methods by name, in order, and the configurations of those that have none elsewhere."""
    if isinstance(methods, str | Method):
        methods = [methods]
    if not isinstance(methods, Mapping):
        names = [m if isinstance(m, str) else type(m).__name__.lower() for m in methods]
        twins = [name for name in names if names.count(name) > 1]
        if twins:
            raise RequestError(
                f"two methods are called {twins[0]!r}; give a mapping from names to methods instead of a list"
            )
        methods = dict(zip(names, methods))
    own = {}
    for name, method in methods.items():
        if isinstance(method, Method):
            own[name] = method
        elif method != name:
            own[name] = find(method)
    return list(methods), own


def _told(run: Run) -> dict[str, Accuracy]:
    """The scores of a run by their names."""
    if run.score is None:
        return {"auroc": run.auroc, "auprc": run.auprc, "brier": run.brier}
    return run.measures
