"""Comparisons: many runs, and what they say together. The command line and Python share this orchestration.

>>> import abps
>>> federation = abps.load("icu-synthetic:centers=8")
>>> study = abps.compare(federation, ["local", "fedavg"], seeds=[11], rounds=2, references=False, folds=3)
>>> study
<Study of 2 methods on icu-synthetic:centers=8, 3 folds, 1 repeat: 2 runs>
>>> study.frame().columns
['data', 'method', 'seed', 'center', 'auroc', 'auprc', 'brier', 'rounds', 'bytes', 'settings']
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import polars as pl

from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.engine.result import Accuracy, Run
from abps.engine.simulate import Metric
from abps.methods.base import Method
from abps.methods.catalog import find
from abps.study.execute import Executor, run_study, tuned
from abps.study.export import to_mlflow, to_tensorboard
from abps.study.plan import Plan, PlannedRun, Request, Source, StudyOptions, make_plan, request_of
from abps.study.progress import StudyProgress
from abps.study.records import StudyFolder, StudyRecord, record_of
from abps.study.workers import LocalExecutor, Runner, note

if TYPE_CHECKING:
    from abps.report.build import Report
    from abps.report.drawing import Drawing
    from abps.report.tables import Table

#: The repeats of a comparison unless others are named.
SEEDS = (11, 22, 33)


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """Runs of several methods and repeats, and what they say together.

    record: what was asked for.  runs: what is finished.  absent: one line for every run that is not.
    root: the study's folder; None for a study that lives in memory.
    metrics: the user's own, by name: function(labels, predictions) of a center's rows to a number.
    """

    record: StudyRecord
    runs: tuple[tuple[PlannedRun, Run], ...]
    absent: tuple[str, ...] = ()
    root: Path | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def frame(self) -> pl.DataFrame:
        """One row per method, repeat and center: AUROC, AUPRC and Brier score, or the scores of another
        outcome (null where not defined), with the run's rounds, bytes and settings."""
        parts = []
        for planned, run in self.runs:
            centers = list(run.main.per_center)
            scores: dict[str, Any] = {
                name: [score.per_center.get(c) for c in centers] for name, score in _scores(run).items()
            }
            scores |= _measured(run, centers, self.metrics)
            head = {"data": run.data.name, "method": planned.label, "seed": run.seed, "center": centers}
            settings = json.dumps(dict(planned.settings), default=str)
            rest = {"rounds": run.rounds, "bytes": run.bytes.all, "settings": settings}
            made = pl.DataFrame(head | scores | rest, schema_overrides=dict.fromkeys(scores, pl.Float64))
            parts.append(made.with_columns(pl.col(pl.Float64).fill_nan(None)))
        return pl.concat(parts, how="diagonal") if parts else pl.DataFrame()

    def to_mlflow(self, experiment: str, uri: str | None = None) -> list[str]:
        """Write all runs to an MLflow experiment (:func:`abps.study.export.to_mlflow`); returns their ids."""
        return to_mlflow([(planned.label, run) for planned, run in self.runs], experiment, uri)

    def to_tensorboard(self, folder: Path | str) -> list[Path]:
        """Write all runs as TensorBoard's event files; returns the folder of each."""
        return to_tensorboard([(planned.label, run) for planned, run in self.runs], folder)

    def tables(self) -> list[Table]:
        """The headline of every federation: accuracy, bytes, and what may be said of them."""
        return list(_report_module().headlines(self))

    def table(self) -> Table:
        """The headline of the study's federation (of its first, where it has several)."""
        return self.tables()[0]

    def plots(self) -> dict[str, Drawing]:
        """Every figure that the runs allow, by its name; a notebook shows it."""
        return {drawing.name: drawing for drawing in _report_module().figures(self)}

    def plot(self, name: str) -> Drawing:
        """One figure: pareto (accuracy against bytes), rounds, or another of :meth:`plots`."""
        found = self.plots()
        if name not in found:
            raise RequestError(f"there is no figure {name!r}; these runs allow {', '.join(found)}")
        return found[name]

    def report(self, out: Path | str | None = None, margin: float | None = None) -> Report:
        """Write tables, figures and ``report.html`` into a folder; default: the study's own.  margin: methods
        that differ by less are equal."""
        place = out if out is not None else self.root
        if place is None:
            raise RequestError("this study has no folder; name one: study.report(out='my-report')")
        return _report_module().build(self, Path(place), margin)

    def __repr__(self) -> str:
        labels = len({planned.label for planned, _ in self.runs})
        repeats = len({run.seed for _, run in self.runs})
        folds = max((planned.folds or 1 for planned, _ in self.runs), default=1)
        names = ", ".join(about.name for about in self.record.data)
        missing = f", {len(self.absent)} absent" if self.absent else ""
        how = f"{folds} folds" if folds > 1 else "one split"
        return (
            f"<Study of {labels} method{'s' * (labels != 1)} on {names}, {how}, {repeats} "
            f"repeat{'s' * (repeats != 1)}: {len(self.runs)} run{'s' * (len(self.runs) != 1)}{missing}>"
        )

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())


def _report_module() -> Any:
    """Pages and tables lie above studies: they are loaded by name, when somebody asks for them."""
    return import_module("abps.report.build")


def load_study(root: Path | str) -> Study:
    """The study in a folder: its finished runs, and what is absent."""
    folder = StudyFolder(Path(root))
    if not folder.root.is_dir():
        raise RequestError(f"{root}: no such folder; give the folder of a comparison")
    record = folder.read()
    there, absent = folder.finished(record)
    return Study(record, tuple(there), tuple(absent), folder.root)


def compare(
    federation: Federation | Sequence[Federation] | Mapping[str, Federation],
    methods: Sequence[str | Method] | Mapping[str, str | Method],
    seeds: Sequence[int] = SEEDS,
    out: Path | str | None = None,
    jobs: int | None = None,
    metrics: Mapping[str, Metric] | None = None,
    executor: Executor | None = None,
    **options: Unpack[StudyOptions],
) -> Study:
    """Run methods in folds and repeats and hold them against each other.

    federation, methods: one or several; a mapping gives them names of their own. Methods are names (also
    ``package.module:CONFIG``, ``paper`` and ``all``) or configurations.
    seeds: one per repeat; each divides the patients anew.
    out: a folder that keeps the runs; asked for again, what is finished is not computed twice. Without one
    the runs live in memory.
    jobs: compute in so many processes, each with its own cores; needs ``out``.
    metrics: of one's own, for :meth:`Study.frame`: function(labels, predictions) to a number.
    executor: what else computes the runs, for instance a cluster; needs ``out``.
    options: see :class:`~abps.study.plan.StudyOptions`.
    """
    if isinstance(federation, Mapping):
        federation = [replace(each, name=name) for name, each in federation.items()]
    federations = (federation,) if isinstance(federation, Federation | str) else tuple(federation)
    for each in federations:
        if not isinstance(each, Federation):
            raise RequestError(f"{each!r:.60}: no federation; make one with abps.federation or abps.load")
    words, own = _named(methods)
    request = request_of([Source(each.name) for each in federations], words, seeds, own, **options)
    if jobs is not None and out is None:
        raise RequestError(f"jobs={jobs}: other processes need a folder; name one with out")
    if out is None:
        return replace(_in_memory(request, own, federations), metrics=metrics or {})

    def here(study: StudyFolder, todo: Sequence[PlannedRun], progress: StudyProgress) -> None:
        runner = Runner(study.root, own, {each.fingerprint(): each for each in federations})
        for run in todo:
            runner.compute(run, functools.partial(note, progress, run))

    elsewhere = executor or (None if jobs is None else LocalExecutor(jobs, own))
    run_study(request, Path(out), elsewhere or here, own, federations, elsewhere is not None)
    return replace(load_study(out), metrics=metrics or {})


def _in_memory(request: Request, own: Mapping[str, Method], federations: Sequence[Federation]) -> Study:
    def all_of(plan: Plan) -> list[tuple[PlannedRun, Run]]:
        return [(run, run.compute(plan.federations[run.data], run.config(own))) for run in plan.runs]

    plan = make_plan(request, own, federations)
    plan = tuned(plan, lambda trials: (all_of(trials), {}), own)
    return Study(record_of(plan), tuple(all_of(plan)), plan.left_out)


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


def _scores(run: Run) -> dict[str, Accuracy]:
    binary = {"auroc": run.auroc, "auprc": run.auprc, "brier": run.brier}
    return binary if run.score is None else run.measures


def _measured(run: Run, centers: Sequence[str], metrics: Mapping[str, Metric]) -> dict[str, list[float]]:
    """The user's own metrics of every center, from the rows that a run has scored."""
    if not metrics:
        return {}
    frame = run.predictions()
    kept = [name for name in frame.columns if name.startswith(("probability", "score"))]
    if not kept:
        raise RequestError(f"metrics: rows of an outcome of {run.outcome} keep no predictions; leave out")
    rows = {str(key[0]): part for key, part in frame.group_by("center")}

    def value(metric: Metric, center: str) -> float:
        if center not in rows:
            return math.nan
        said = rows[center].select(kept).to_numpy()
        return float(metric(rows[center]["y"].to_numpy(), said[:, 0] if len(kept) == 1 else said))

    return {name: [value(metric, center) for center in centers] for name, metric in metrics.items()}
