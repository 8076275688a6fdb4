"""Would the federation's model serve a hospital that did not take part?

Centers stay away in turn, in groups; the others make their models. What an outsider is given: the mean of the
others' final models by their rows, and the codebook they agreed on. Where centers standardise by their own
rows, so does the outsider; it needs no outcome for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import Weights, repeated
from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.data.prepare import Prepared, Rows, prepare
from abps.data.split import assign_splits
from abps.data.subgroup_names import groups_of
from abps.engine.result import Run, RunArtifacts, evaluated
from abps.engine.row_scores import row_scores
from abps.engine.simulate import Progress, simulate
from abps.methods.averaging import weighted_mean
from abps.methods.base import Method
from abps.models.learners import learner_for
from abps.models.metrics import Segments


@dataclass(frozen=True, eq=False)
class Absence:
    """One turn.  away: (centers,) who stays away.  run: of the others.  model: (1, P) the mean of theirs.

    rows: of all centers, encoded as the others agreed.
    """

    away: NDArray[np.bool_]
    run: Run
    model: Weights
    rows: Prepared


def without(federation: Federation, away: NDArray[np.bool_]) -> Federation:
    """A federation without some of its centers.  away: (centers,) true for those that stay away."""
    stays = np.flatnonzero(~away)
    part = federation.only(~away[federation.center])
    return replace(
        part,
        center=np.searchsorted(stays, part.center).astype(np.int32),
        centers=tuple(federation.centers[i] for i in stays),
        groups=None if federation.groups is None else tuple(federation.groups[i] for i in stays),
    )


def check_turns(federation: Federation, groups: int) -> None:
    """Refuse a number of groups in which centers cannot stay away."""
    n = federation.size
    if not 2 <= groups <= n:
        raise RequestError(f"leave centers out in 2 to {n} groups, not {groups}")
    if n - -(-n // groups) < 2:
        raise RequestError("leaving centers out needs at least two that stay; choose more groups")
    if federation.era is not None or not federation.outcome.binary:
        raise RequestError("leaving centers out: choose a binary outcome without windows of time")


def absences(
    federation: Federation,
    method: Method,
    name: str,
    seed: int,
    groups: int,
    progress: Progress | None = None,
) -> Iterator[Absence]:
    """Every center stays away once, in so many groups; as many as there are centers leaves out one at a time.

    Every center's rows are split as they are when all take part.
    """
    check_turns(federation, groups)
    n, training = federation.size, method.training
    split = assign_splits(federation, seed)
    for g in range(groups):
        away = np.arange(n) % groups == g
        inside = prepare(
            without(federation, away),
            seed,
            split=split[~away[federation.center]],
            standardise=training.standardise,
            splines=training.splines,
            min_cell=method.privacy.min_cell,
        )
        run = simulate(inside, method, seed, name=name, progress=_turn(progress, g, groups))
        if run.models is None or inside.book is None:
            raise RequestError(f"{name} keeps no weights of its own for every center; choose another method")
        weights = inside.train.sizes.astype(np.float32)
        mean = run.models[0] if len(run.models) == 1 else weighted_mean(run.models, weights)
        theirs = prepare(federation, seed, inside.book, split, training.standardise, training.splines)
        yield Absence(away, run, mean[None], theirs)


def _turn(progress: Progress | None, turn: int, turns: int) -> Progress | None:
    if progress is None:
        return None
    return lambda t, most, value: progress(turn * most + t, turns * most, value)


def stay_away(
    federation: Federation,
    method: Method,
    seed: int,
    groups: int,
    progress: Progress | None = None,
    name: str = "",
    subgroups: Sequence[str] = (),
) -> Run:
    """A run in which every center's scores are those of an outsider, on the test rows it always has.

    Nothing is fitted to an outsider: its probabilities are not recalibrated. Bytes, rounds and the rest are
    those of the first turn.
    """
    began = time.perf_counter()
    parts = groups_of(federation, subgroups)
    first: Absence | None = None
    logits = np.zeros(0)
    for turn in absences(federation, method, name, seed, groups, progress):
        test = turn.rows.test
        learner = learner_for(turn.rows, method.training, seed)
        answers = learner.logits(repeated(turn.model, federation.size), test)
        if first is None:
            first, logits = turn, np.full(len(test.y), np.nan, dtype=answers.values.dtype)
        theirs = turn.away[answers.group()]
        logits[theirs] = answers.values[theirs]
    assert first is not None
    test = first.rows.test
    outside = Segments(logits, test.start)
    # Without validation rows there is nothing to recalibrate by.
    empty = Rows(test.x[:0], test.y[:0], np.zeros(federation.size + 1, dtype=np.int64))
    judged = Segments(np.zeros(0), empty.start)
    rows = replace(first.rows, validation=empty)
    fields, seen = evaluated(rows, outside, judged, None, math.nan, None, parts, {})
    return replace(
        first.run,
        data=replace(federation.about(), features=first.run.data.features),
        **fields,
        seconds=round(time.perf_counter() - began, 3),
        artifacts=RunArtifacts(
            decisions=first.run.artifacts.decisions,
            scores=row_scores(test, outside),
            answers=outside,
            probabilities=seen,
        ),
    )
