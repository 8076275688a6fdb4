"""Cross-fitting: every patient is scored out of fold, so that small hospitals get an answer too.

A run trains as many federations as there are folds, each without the patients of one and with a training seed
of its own. Another seed deals patients out anew: a repeat.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.federation import Federation, groups_of
from abps.data.prepare import Rows
from abps.engine.clinical import Clinical, RowProbabilities, clinical
from abps.engine.partners import partners_of
from abps.engine.result import Run, RunArtifacts, accuracy, named, scored_on, scores_of
from abps.engine.simulate import Progress, shared_rows, simulate
from abps.evaluate.calibration import Recalibration
from abps.evaluate.measured import measured
from abps.methods.base import Method
from abps.methods.catalog import name_of
from abps.methods.settings import configure
from abps.models.metrics import Segments, labels_of

#: Fewer folds than this leave no rows to train on beside those for validation and test.
FEWEST_FOLDS = 3

#: Folds of a comparison, unless it says otherwise.
FOLDS = 5


def fold_seed(seed: int, fold: int) -> int:
    """The training seed of a fold: every fold draws its own initial weights, batches and partners."""
    return streams.key(seed, "fold", round=fold) >> 32


def cross_validate(
    federation: Federation,
    method: str | Method,
    seed: int,
    folds: int = FOLDS,
    progress: Progress | None = None,
    name: str | None = None,
    subgroups: Sequence[str] = (),
) -> Run:
    """One method in so many folds: every row is scored once, by a model that never saw its patient.

    A center's AUROC counts pairs of rows that one model scored; a center with too few events (or others) is
    not scored. Bytes and rounds are the mean of the folds; decisions name their fold.
    """
    began = time.perf_counter()
    if folds < FEWEST_FOLDS:
        raise RequestError(f"folds={folds}: choose at least {FEWEST_FOLDS} (train, validation and test)")
    config = configure(method)
    parts = groups_of(federation, subgroups)
    label = name or (method if isinstance(method, str) else name_of(method))
    data = shared_rows(federation, seed, config, folds)
    runs = [
        simulate(each, config, fold_seed(seed, k), progress=_in_fold(progress, k, folds), name=label)
        for k, each in enumerate(data)
    ]
    first = runs[0]
    seen = _clinical_rows([part for run in runs if (part := run.artifacts.probabilities) is not None])
    scores, artifacts = _fold_scores(federation.centers, runs, [each.test for each in data])
    decisions = pl.concat(
        run.decisions.with_columns(fold=pl.lit(k, pl.UInt8))
        for k, run in enumerate(runs)
        if run.artifacts.decisions is not None
    )
    averaged = ("rounds", "bytes", "cost_usd", "partners_mean", "rest", "history")
    return replace(
        first,
        seed=seed,
        method=label,
        data=replace(federation.about(), features=first.data.features),
        **scores,
        **{name: _mean([getattr(run, name) for run in runs]) for name in averaged},
        seconds=round(time.perf_counter() - began, 3),
        clinical=Clinical() if seen is None else clinical(federation.centers, seen, parts),
        partners=partners_of(decisions),
        artifacts=replace(artifacts, decisions=decisions, probabilities=seen),
    )


def _in_fold(progress: Progress | None, k: int, folds: int) -> Progress | None:
    if progress is None:
        return None
    return lambda t, most, value: progress(k * most + t, folds * most, value)


def _fold_scores(
    centers: tuple[str, ...], runs: Sequence[Run], tests: Sequence[Rows]
) -> tuple[dict[str, Any], RunArtifacts]:
    """The fields of a run that say how accurate it is, over all folds, and every scored row."""
    outcome = tests[0].outcome
    logits = _together([part for run in runs if (part := run.artifacts.answers) is not None])
    labels = _together([Segments(rows.y, rows.start) for rows in tests])
    y = labels.values.astype(np.float32)
    rows = Rows(np.empty((len(y), 0), np.float32), y, labels.start, outcome=outcome)
    scored = scored_on(centers, labels_of(rows), len(runs))
    at_best = float(np.mean([run.main.at_best_validation for run in runs]))
    scores = scores_of(centers, logits, rows, rows, at_best)
    scored_rows = [(k, run.row_scores) for k, run in enumerate(runs)]
    frame = pl.concat(f.with_columns(fold=pl.lit(k, pl.UInt8)) for k, f in scored_rows if f is not None)
    values = measured({"model": [frame]}, len(centers)).level("model")
    values[[name in scored.cannot_tell for name in centers]] = math.nan
    main = accuracy(centers, values, at_best)
    if outcome.binary:
        scores["auroc"] = main
    else:
        scores["score"] = named(main, outcome.measure)
    history = ((k, run.center_history()) for k, run in enumerate(runs))
    rounds = pl.concat(each.with_columns(fold=pl.lit(k, pl.UInt8)) for k, each in history)
    return scores | {"scored": scored}, RunArtifacts(scores=frame, centers=rounds, answers=logits)


def _together(parts: list[Segments]) -> Segments:
    owner = np.concatenate([part.group() for part in parts])
    values = np.concatenate([part.values for part in parts])[np.argsort(owner, kind="stable")]
    sizes = np.sum([np.diff(part.start) for part in parts], axis=0)
    return Segments(values, np.concatenate([[0], np.cumsum(sizes)]))


def _clinical_rows(parts: list[RowProbabilities]) -> RowProbabilities | None:
    """All folds as one: every row once, recalibrated in its fold."""
    if not parts:
        return None
    places = [part.place for part in parts if part.place is not None]
    owner = np.concatenate([part.labels.group() for part in parts])
    return RowProbabilities(
        _together([part.before for part in parts]),
        _together([part.after for part in parts]),
        _together([part.labels for part in parts]),
        None if not places else np.concatenate(places)[np.argsort(owner, kind="stable")],
        tuple(
            Recalibration(kind="by fold" if any(mend.kind != "none" for mend in mends) else "none")
            for mends in zip(*(part.mends for part in parts))
        ),
    )


def _mean(parts: Sequence[Any]) -> Any:
    """The mean of numbers, or of every field of records; of lists as far as all go. Bytes stay whole."""
    first = parts[0]
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        found = {name: _mean([getattr(part, name) for part in parts]) for name in vars(first)}
        return type(first)(**found)
    if isinstance(first, dict):
        return {key: _mean([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_mean(each) for each in zip(*parts))
    mean = float(np.mean(parts))
    return round(mean) if isinstance(first, int) else mean
