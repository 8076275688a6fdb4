"""A study from request to stored runs: plan, tune, see what is there, compute what is not.

Tuning is equal for all: every combination of a method's ``grid`` runs once with each tuning seed; the one
with the largest mean validation AUROC at the end (the first, where several have it) is chosen, for each
federation by itself. The comparison then runs with what was chosen, on seeds of its own.
"""

import itertools
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.engine.result import Run
from abps.methods.base import Method
from abps.methods.settings import configure, names
from abps.study.plan import NONE, Choice, Plan, PlannedRun, Request, Trial, known_settings, make_plan
from abps.study.progress import StudyProgress
from abps.study.records import FAILED, TUNING, StudyFolder

#: Computes runs: given the study, the runs to do and where to report.
Executor = Callable[[StudyFolder, Sequence[PlannedRun], StudyProgress], None]

#: Computes the runs of a plan that are not there yet: what is finished, and why the others failed.
Compute = Callable[[Plan], tuple[Sequence[tuple[PlannedRun, Run]], Mapping[str, str]]]

#: The most combinations of a method's grid: nobody gets more tries than others.
MOST: Final = 8


@dataclass(frozen=True)
class StudyOutcome:
    planned: int
    reused: int
    computed: int
    failed: tuple[tuple[PlannedRun, str], ...]
    missing: tuple[PlannedRun, ...]


def conduct(plan: Plan, out: Path, executor: Executor, elsewhere: bool = True) -> StudyOutcome:
    """Compute what a plan still lacks in the study's folder; elsewhere: the executor's processes are not this
    one, and need the data in the folder."""
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
                (study.folder(run) / FAILED).unlink(missing_ok=True)  # it is tried anew
                progress.waiting(run)
            executor(study, todo, progress)
        absent = [(run, study.failure(run)) for run in todo if study.look(run).result is None]
        failed = tuple((run, why) for run, why in absent if why)
        missing = tuple(run for run, why in absent if not why)
        if not missing:  # what is missing may still be computed elsewhere, from this copy
            shutil.rmtree(study.cache, ignore_errors=True)
        return StudyOutcome(
            len(plan.runs), len(plan.runs) - len(todo), len(todo) - len(absent), failed, missing
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
    return todo


def run_study(
    request: Request,
    out: Path,
    executor: Executor,
    own: Mapping[str, Method] = NONE,
    given: Sequence[Federation] = (),
    elsewhere: bool = True,
    before: Callable[[Plan], None] | None = None,
) -> StudyOutcome:
    """Plan a request, tune its methods if it asks for that, and compute what its folder lacks.

    own, given: methods and federations that only this process knows.  before: called with the plan.
    """
    plan = make_plan(request, own, given)
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

    return conduct(tuned(plan, trials, own), out, executor, elsewhere)


def combinations(config: Method, fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every setting of a method's grid that may be tried; what was fixed by hand is not varied."""
    grid, known = config.grid, names(config)
    for name, values in grid.items():
        if name not in known or not values:
            raise RequestError(
                f"the grid of {type(config).__name__} names {name!r}: give settings that it has, with values"
            )
    held = {known[name] for name in fixed if name in known}
    free = {name: values for name, values in grid.items() if known[name] not in held}
    found = [dict(zip(free, values)) for values in itertools.product(*free.values())]
    if len(found) > MOST:
        raise RequestError(
            f"the grid of {type(config).__name__} has {len(found)} combinations; tuning is equal for all, "
            f"choose at most {MOST}"
        )
    return found if free else []


def tuning_plan(plan: Plan, own: Mapping[str, Method] = NONE) -> Plan:
    request = plan.request
    runs = []
    methods = [method for method in request.methods if any(run.method == method for run in plan.runs)]
    for data, method in itertools.product(plan.federations, methods):
        fixed = known_settings(request, configure(own.get(method, method)))
        for tried in combinations(configure(own.get(method, method), fixed, request.rounds), fixed):
            label = " ".join([method, *(f"{name}={value}" for name, value in tried.items())])
            what = (label, method, fixed | tried, request.rounds)
            for seed in request.tune:
                runs.append(PlannedRun(*what, seed, data, attack=request.attack).keyed(own))
    if not runs:
        raise RequestError("none of the methods has anything to tune; leave tuning out")
    inner = replace(request, seeds=request.tune, tune=(), references=(), folds=None, subgroups=())
    return Plan(inner, plan.federations, tuple(runs))


def validation_of(run: Run) -> float:
    """The mean validation AUROC of the models that a run ends with."""
    values = run.history.validation_auroc
    if not values:
        return math.nan
    restored = bool(run.config["stop"]["restore_best"])
    return max(values, key=lambda v: -math.inf if math.isnan(v) else v) if restored else values[-1]


def choices(
    plan: Plan, trials: Plan, done: Sequence[tuple[PlannedRun, Run]], failed: Mapping[str, str]
) -> tuple[Choice, ...]:
    seen = {planned.key: validation_of(run) for planned, run in done}
    found = []
    for data, method in itertools.product(plan.federations, plan.request.methods):
        mine = [run for run in trials.runs if (run.data, run.method) == (data, method)]
        if not mine:
            found.append(Choice(method, data, {}))
            continue
        tried = []
        for settings in {run.label: run.settings for run in mine}.values():
            values = [seen.get(run.key, math.nan) for run in mine if run.settings == settings]
            varied = {name: value for name, value in settings.items() if name not in plan.request.settings}
            mean = sum(values) / len(values)
            tried.append(Trial(varied, None if math.isnan(mean) else mean))
        whole = [trial for trial in tried if trial.validation is not None]
        if not whole:
            why = next((failed[r.key] for r in mine if r.key in failed), "not all of its runs are there")
            raise RequestError(f"{method} cannot be tuned: {why}")
        best = max(whole, key=lambda trial: trial.validation or -math.inf)
        found.append(Choice(method, data, best.settings, tuple(tried)))
    return tuple(found)


def tuned(plan: Plan, compute: Compute, own: Mapping[str, Method] = NONE) -> Plan:
    """The plan with every method as tuning chose it; the same plan where nothing is to be tuned."""
    if not plan.request.tune:
        return plan
    trials = tuning_plan(plan, own)
    done, failed = compute(trials)
    chosen = choices(plan, trials, done, failed)
    return make_plan(plan.request, own, tuple(plan.federations.values()), chosen)


def words_of(choices: Sequence[Choice], seeds: Sequence[int]) -> tuple[str, ...]:
    if not choices:
        return ()
    several = len({choice.data for choice in choices}) > 1
    on = f"tuned on seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    lines = []
    for choice in choices:
        where = f" (data {choice.data[:8]})" if several else ""
        if not choice.tried:
            lines.append(f"{choice.method}{where}: nothing to tune, it runs as it is")
            continue
        chosen = ", ".join(f"{name}={value}" for name, value in choice.settings.items())
        best = max(trial.validation or 0.0 for trial in choice.tried)
        lines.append(
            f"{choice.method}{where} {on}: {chosen} "
            f"(validation AUROC {best:.3f}, best of {len(choice.tried)} settings)"
        )
    return tuple(lines)
