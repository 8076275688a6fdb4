"""Cross-validation: every patient is scored once, so that small hospitals get an answer too.

A run trains as many federations as there are folds, each without the patients of one; what counts is every
center's AUROC over the predictions for all its rows. Another seed deals patients out anew: a repeat.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.data.prepare import Rows, prepare
from abps.data.split import assign_folds, fold_split
from abps.data.subgroup_names import groups_of
from abps.engine.clinical import Clinical, Told, clinical
from abps.engine.result import Bytes, History, RestShares, Run, accuracy, calibrated, scored_on, scores_of
from abps.engine.simulate import Progress, simulate
from abps.evaluate.calibration import Recalibration
from abps.methods.base import Method
from abps.methods.settings import configure
from abps.models.metrics import Segments, labels_of

#: Fewer folds than this leave no rows to train on beside those for validation and test.
FEWEST_FOLDS = 3


def compute(
    federation: Federation,
    method: str | Method,
    seed: int,
    folds: int | None = None,
    progress: Progress | None = None,
    name: str | None = None,
    attack: str | None = None,
    subgroups: Sequence[str] = (),
) -> Run:
    """One method, one seed: on one split, perhaps with members that attack, or in so many folds."""
    if folds is None:
        return simulate(
            federation, method, seed, progress=progress, name=name, attack=attack, subgroups=subgroups
        )
    if attack is not None:
        raise RequestError(f"folds={folds} with attack={attack!r}: choose one of them")
    return cross_validate(federation, method, seed, folds, progress, name, subgroups)


def cross_validate(
    federation: Federation,
    method: str | Method,
    seed: int,
    folds: int,
    progress: Progress | None = None,
    name: str | None = None,
    subgroups: Sequence[str] = (),
) -> Run:
    """One method in so many folds; accuracy over all rows, bytes and rounds as the mean of the folds.

    A center with too few events (or others) among all its rows is not scored.
    """
    began = time.perf_counter()
    if folds < FEWEST_FOLDS:
        raise RequestError(f"folds={folds}: choose at least {FEWEST_FOLDS} (train, validation and test)")
    if federation.era is not None:
        raise RequestError(f"folds={folds}: choose a federation without windows of time, or leave folds out")
    config = configure(method)
    parts = groups_of(federation, subgroups)
    fold = assign_folds(federation, seed, folds)
    # All folds on one time grid and one scale, so that their answers can stand side by side.
    agreed = replace(federation, outcome=federation.outcome.settled(federation.label))
    runs: list[Run] = []
    tests: list[Rows] = []
    for k in range(folds):
        split = fold_split(fold, k, folds)
        how = config.training
        data = prepare(
            agreed,
            seed,
            split=split,
            standardise=how.standardise,
            splines=how.splines,
            floor=config.privacy.floor,
        )
        told: Progress | None = None
        if progress is not None:
            before, told = k * config.stop.rounds, progress

            def shifted(t: int, most: int, value: float, before: int = before, tell: Any = told) -> None:
                tell(before + t, folds * most, value)

            told = shifted
        runs.append(simulate(data, config, seed, progress=told, name=name))
        tests.append(data.test)
    label = method if isinstance(method, str) else type(method).__name__.lower()
    logits = _together([run.answers for run in runs if run.answers is not None])
    labels = _together([Segments(rows.y, rows.start) for rows in tests])
    centers, outcome = federation.centers, tests[0].outcome
    y = labels.values.astype(np.float32)
    rows = Rows(np.empty((len(y), 0), np.float32), y, labels.start, outcome=outcome)
    scored = scored_on(centers, logits, labels_of(rows), folds)
    at_best = float(np.mean([run.main.at_best_validation for run in runs]))
    scores = scores_of(centers, logits, rows, rows, at_best)
    if outcome.binary:
        values = np.array(list(scores["auroc"].per_center.values()))
        values[[name in scored.cannot_tell for name in centers]] = math.nan
        scores["auroc"] = accuracy(centers, values, at_best)
    first = runs[0]
    seen = _told([run.told for run in runs if run.told is not None])
    return replace(
        first,
        method=name or label,
        rounds=round(float(np.mean([run.rounds for run in runs]))),
        data=replace(federation.about(), features=first.data.features),
        **scores,
        bytes=_mean(Bytes, [run.bytes for run in runs]),
        cost_usd=float(np.mean([run.cost_usd for run in runs])),
        partners_mean=float(np.mean([run.partners_mean for run in runs])),
        rest=_mean(RestShares, [run.rest for run in runs]),
        history=_mean_history([run.history for run in runs]),
        seconds=round(time.perf_counter() - began, 3),
        scored=scored,
        calibration=calibrated(centers, logits, labels_of(rows)),
        clinical=Clinical() if seen is None else clinical(centers, seen, parts),
        models=None,
        beliefs=None,
        answers=logits,
        told=seen,
    )


def _together(parts: list[Segments]) -> Segments:
    """The values of every group in all parts, side by side."""
    owner = np.concatenate([part.group() for part in parts])
    values = np.concatenate([part.values for part in parts])[np.argsort(owner, kind="stable")]
    sizes = np.sum([np.diff(part.start) for part in parts], axis=0)
    return Segments(values, np.concatenate([[0], np.cumsum(sizes)]))


def _told(parts: list[Told]) -> Told | None:
    """All folds as one: every row once, recalibrated in its fold; thresholds are the folds' mean."""
    if not parts:
        return None
    places = [part.place for part in parts]
    owner = np.concatenate([part.labels.group() for part in parts])
    mends = [part.mends[i] for i in range(len(parts[0].mends)) for part in parts]
    per = len(parts)
    return Told(
        _together([part.before for part in parts]),
        _together([part.after for part in parts]),
        _together([part.labels for part in parts]),
        None
        if any(place is None for place in places)
        else np.concatenate([place for place in places if place is not None])[
            np.argsort(owner, kind="stable")
        ],
        tuple(
            Recalibration(kind="by fold" if any(m.kind != "none" for m in mends[i : i + per]) else "none")
            for i in range(0, len(mends), per)
        ),
        {name: float(np.mean([part.cuts[name] for part in parts])) for name in parts[0].cuts},
    )


def _mean(kind: Any, values: list[Any]) -> Any:
    """Field by field; bytes stay whole numbers."""
    found = {}
    for name, example in vars(values[0]).items():
        mean = float(np.mean([getattr(value, name) for value in values]))
        found[name] = round(mean) if isinstance(example, int) else mean
    return kind(**found)


def _mean_history(parts: list[History]) -> History:
    """Round by round, as far as all folds went."""
    rounds = min(len(part.auroc) for part in parts)

    def mean(name: str) -> tuple[float, ...]:
        return tuple(np.mean([getattr(part, name)[:rounds] for part in parts], axis=0).tolist())

    return History(
        mean("auroc"),
        mean("validation_auroc"),
        tuple(round(value) for value in mean("edge_bytes")),
        mean("rest"),
        {
            cause: tuple(np.mean([part.rest_causes[cause][:rounds] for part in parts], axis=0).tolist())
            for cause in parts[0].rest_causes
        },
    )
