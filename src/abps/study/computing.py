"""One planned run, computed: on one split, in folds, or with every center staying away once."""

from __future__ import annotations

from abps.data.federation import Federation
from abps.engine.crossvalidation import compute
from abps.engine.outsiders import stay_away
from abps.engine.result import Run
from abps.engine.simulate import Progress
from abps.methods.base import Method
from abps.study.plan import PlannedRun


def computed(
    run: PlannedRun,
    federation: Federation,
    config: Method,
    progress: Progress | None = None,
) -> Run:
    """The result of a planned run."""
    if run.leave_out:
        return stay_away(federation, config, run.seed, run.leave_out, progress, run.method, run.subgroups)
    return compute(
        federation,
        config,
        run.seed,
        run.folds,
        progress,
        run.method,
        run.attack,
        run.subgroups,
    )
