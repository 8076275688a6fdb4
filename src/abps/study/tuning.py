"""Equal tuning for all: every method's declared grid, tried on other seeds before a comparison.

Every combination of a method's ``grid`` runs once with each tuning seed; the one with the largest mean
validation AUROC at the end of its runs is chosen (the first in the grid's order, where several have it),
for each federation by itself. Test rows decide nothing here. The comparison then runs with what was chosen,
on seeds of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from abps.core.errors import RequestError
from abps.engine.result import Run
from abps.methods.base import Method
from abps.methods.settings import configure, names
from abps.study.plan import NONE, Choice, Plan, PlannedRun, Trial, identity, key_of, make_plan

#: The most combinations of a method's grid: nobody gets more tries than others.
MOST: Final = 8

#: Computes the runs of a plan that are not there yet: what is finished, and why the others failed.
Compute = Callable[[Plan], tuple[Sequence[tuple[PlannedRun, Run]], Mapping[str, str]]]


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
    """The runs that a comparison is tuned on."""
    request = plan.request
    if request.vary:
        raise RequestError(
            f"{next(iter(request.vary))} is varied and methods are tuned; do one of the two in a comparison"
        )
    runs = []
    methods = {run.method for run in plan.runs}
    for data, method in itertools.product(plan.federations, request.methods):
        if method not in methods:
            continue  # it cannot run on these data
        fixed = {name: value for name, value in request.settings.items() if name in _known(own, method)}
        for tried in combinations(configure(own.get(method, method), fixed, request.rounds), fixed):
            settings = fixed | tried
            config = configure(own.get(method, method), settings, request.rounds)
            label = " ".join([method, *(f"{name}={value}" for name, value in tried.items())])
            for seed in request.tune:
                key = key_of(identity(method, config, data, seed, None, request.attack))
                runs.append(
                    PlannedRun(label, method, settings, request.rounds, seed, data, key, None, request.attack)
                )
    if not runs:
        raise RequestError("none of the methods has anything to tune; leave tuning out")
    inner = replace(request, seeds=request.tune, tune=(), references=(), folds=None, subgroups=())
    return Plan(inner, plan.federations, tuple(runs))


def _known(own: Mapping[str, Method], method: str) -> Mapping[str, Any]:
    return names(configure(own.get(method, method)))


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
    """What tuning chose for every method on every federation."""
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
            why = next(
                (failed[run.key] for run in mine if run.key in failed), "not all of its runs are there"
            )
            raise RequestError(f"{method} cannot be tuned: {why}")
        best = max(whole, key=lambda trial: trial.validation or -math.inf)
        found.append(Choice(method, data, best.settings, tuple(tried)))
    return tuple(found)


def tuned(plan: Plan, compute: Compute, words: Sequence[str] = (), own: Mapping[str, Method] = NONE) -> Plan:
    """The plan with every method as tuning chose it; the same plan where nothing is to be tuned."""
    if not plan.request.tune:
        return plan
    trials = tuning_plan(plan, own)
    done, failed = compute(trials)
    chosen = choices(plan, trials, done, failed)
    return make_plan(plan.request, words, own, tuple(plan.federations.values()), chosen)


def words_of(choices: Sequence[Choice], seeds: Sequence[int]) -> tuple[str, ...]:
    """What was tuned, a line for every choice."""
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
