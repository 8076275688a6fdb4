"""A study from request to stored runs: plan, see what is there, compute what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abps.data.federation import Federation
from abps.engine.result import Run
from abps.methods.base import Method
from abps.study.plan import NONE, Plan, PlannedRun, Request, make_plan
from abps.study.progress import StudyProgress
from abps.study.records import TUNING, StudyFolder
from abps.study.tuning import tuned

#: Computes runs: given the study, the runs to do and where to report.
Executor = Callable[[StudyFolder, Sequence[PlannedRun], StudyProgress], None]


@dataclass(frozen=True)
class StudyOutcome:
    """How a study ended."""

    planned: int
    reused: int
    computed: int
    failed: tuple[tuple[PlannedRun, str], ...]
    missing: tuple[PlannedRun, ...]


def conduct(plan: Plan, out: Path, executor: Executor, elsewhere: bool = True) -> StudyOutcome:
    """Compute what a plan still lacks in the study's folder.

    elsewhere: the executor's processes are not this one, and need the data in the folder.
    """
    study = StudyFolder(out)
    with study.alone(), StudyProgress(plan.runs) as progress:
        for line in (*study.open(plan), *(f"left out: {reason}" for reason in plan.left_out)):
            progress.say(line)
        todo = survey(study, plan.runs, progress)
        if todo:
            for federation in plan.federations.values() if elsewhere else ():
                problem = study.keep(federation)
                if problem:
                    progress.say(problem)
            for run in todo:
                study.forget_failure(run)
                progress.waiting(run)
            executor(study, todo, progress)
        failed, missing = [], []
        for run in todo:
            if study.look(run).result is None:
                why = study.failure(run)
                if why:
                    failed.append((run, why))
                else:
                    missing.append(run)
        if not missing:  # what is missing may still be computed elsewhere, from this copy
            study.drop_data()
        return StudyOutcome(
            planned=len(plan.runs),
            reused=len(plan.runs) - len(todo),
            computed=len(todo) - len(failed) - len(missing),
            failed=tuple(failed),
            missing=tuple(missing),
        )


def survey(study: StudyFolder, runs: Sequence[PlannedRun], progress: StudyProgress) -> list[PlannedRun]:
    """The runs that are not there yet; what is damaged or foreign is named."""
    todo = []
    for run in runs:
        found = study.look(run)
        if found.result is not None:
            progress.there(run, found.result.main.mean)
        else:
            todo.append(run)
            if found.problem:
                progress.say(f"{found.problem}; it is not used, and the run is computed again")
    for name in study.strangers(list(runs)):
        progress.say(f"{study.root / 'runs' / name} belongs to no run of this study; it is not used")
    if todo and len(todo) < len(runs) and progress.console.is_terminal:
        progress.say(f"{len(runs) - len(todo)} of {len(runs)} runs are there already")
    return todo


def run_study(
    request: Request,
    words: Sequence[str],
    out: Path,
    executor: Executor,
    own: Mapping[str, Method] = NONE,
    given: Sequence[Federation] = (),
    elsewhere: bool = True,
    before: Callable[[Plan], None] | None = None,
) -> StudyOutcome:
    """Plan a request, tune its methods if it asks for that, and compute what its folder lacks.

    words: the methods as they were asked for.  own, given: methods and federations that only this process
    knows.  elsewhere: the executor's processes are not this one.  before: called with the plan.
    """
    plan = make_plan(request, words, own, given)
    if before is not None:
        before(plan)

    def trials(plan: Plan) -> tuple[list[tuple[PlannedRun, Run]], Mapping[str, str]]:
        """Tuning runs are kept in a study of their own, inside the folder of the comparison."""
        StudyFolder(out).admit(request)  # before anything is computed
        conduct(plan, out / TUNING, executor, elsewhere)
        folder = StudyFolder(out / TUNING)
        found = [(run, folder.look(run).result) for run in plan.runs]
        failed = {run.key: folder.failure(run) or "not computed yet" for run, result in found if not result}
        return [(run, result) for run, result in found if result is not None], failed

    return conduct(tuned(plan, trials, words, own), out, executor, elsewhere)
