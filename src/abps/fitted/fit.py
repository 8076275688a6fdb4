"""From a table to the models that hospitals would use.

The method runs twice on the same federation. First with the usual three splits: its test rows say how good
the models are, and nothing else looks at them. Then with the test rows among those that are learned from:
these are the models that come out. The validation rows stay what they are in both runs: the method judges its
peers there, and the recalibration and the thresholds are fitted there. So no row is idle, and no number on
the card was made on rows that were learned from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.arrays import Weights, repeated
from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.outcome import time_grid
from abps.data.prepare import Prepared, Rows, prepare, side_by_side
from abps.data.scales import Scale, Statistics
from abps.data.split import assign_splits
from abps.data.subgroup_names import groups_of
from abps.engine.clinical import chosen_cuts, mended, mends_of
from abps.engine.outsiders import check_turns
from abps.engine.result import Run, versions
from abps.engine.simulate import Progress, simulate
from abps.evaluate.calibration import Recalibration, expit, recalibration
from abps.evaluate.subgroups import Part, subgroups
from abps.evaluate.survival import breslow, hazard_at
from abps.fitted.as_outsiders import Outsider, outsiders
from abps.fitted.evaluation import Evaluation, evaluate, evaluate_other
from abps.fitted.inputs import ranges_of
from abps.fitted.layers import Network, network_of
from abps.fitted.model import FittedModel
from abps.methods.base import Method
from abps.methods.settings import configure, describe
from abps.models.layout import answering
from abps.models.learners import learner_for
from abps.models.metrics import Segments, brier, labels_of
from abps.models.outcome_scores import main_score

Floats = NDArray[np.float64]

#: How the numbers of a fit come about.
TWO_RUNS = (
    "How good the models are was measured on test rows by a first run that had not seen them; the models "
    "here come from a second run that learned from those rows too."
)


@dataclass(frozen=True)
class Making:
    """How models were made, as their cards tell it.

    others: centers besides the one a card is of.  sent: bytes of all exchanges that are known of.
    partners: per center and round.  measured: how the numbers on the card came about.
    """

    method: str
    rounds: int
    seed: int
    others: int
    sent: int
    partners: float
    measured: str


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit gives.

    models: one per center.  evaluations: by center, on test rows, of models that had not seen them; overall:
    the same for all test rows together, each predicted by its own center's model.
    parts: by column, performance in parts of the cohort.
    probabilities: of every row by its own center's final model: row (of the federation), center, split
    (learned from, or validation), run (as the run's own learner gives it), probability (recalibrated). Of
    other outcomes than an event or none, what the model says of every row.
    evaluated: the run that was scored, where there was one.
    outsiders: every center as one that stayed away, where asked for.
    """

    federation: Federation
    making: Making
    models: tuple[FittedModel, ...]
    evaluations: Mapping[str, Evaluation]
    overall: Evaluation
    parts: Mapping[str, list[Part]]
    probabilities: pl.DataFrame
    evaluated: Run | None = None
    outsiders: tuple[Outsider, ...] = ()


@dataclass(frozen=True, eq=False)
class Trained:
    """Rows and the models that were trained on them.

    weights: (centers, P).  networks: the same, as layers.
    """

    data: Prepared
    weights: Weights
    networks: tuple[Network, ...]


def fit(
    federation: Federation,
    method: str | Method,
    seed: int = 11,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    parts: Sequence[str] = (),
    leave_out: int = 0,
    progress: Progress | None = None,
    name: str | None = None,
) -> Fitted:
    """The final models of a method, with their evaluation.

    parts: columns of the table by which performance is told apart, besides sex and age where they are found.
    leave_out: in how many groups centers stay away in turn, to see how their outsiders fare; 0: not at all.
    """
    config = configure(method, settings, rounds)
    name = name or (method if isinstance(method, str) else type(method).__name__.lower())
    if not federation.outcome.binary and (parts or leave_out):
        raise RequestError(
            "parts of the cohort and centers that stay away are told of binary outcomes; this outcome is "
            f"{federation.outcome.kind}; leave them out"
        )
    if federation.era is not None:
        raise RequestError("fit learns from all rows at once; leave the windows of time (eras) out")
    groups_of(federation, parts)  # before anything is computed
    if leave_out:
        check_turns(federation, leave_out)
    split = assign_splits(federation, seed)
    first, scored = _train(federation, config, name, seed, split, progress)
    result = np.where(split == 2, 0, split).astype(np.int8)
    last, run = _train(federation, config, name, seed, result, progress)
    making = Making(
        name, run.rounds, seed, federation.size - 1, run.bytes.directed, run.partners_mean, TWO_RUNS
    )
    away = tuple(outsiders(federation, config, name, seed, leave_out)) if leave_out else ()
    made = put_together(federation, config, making, first, (last, result), parts)
    return replace(made, evaluated=scored, outsiders=away)


def put_together(
    federation: Federation,
    config: Method,
    making: Making,
    first: Trained,
    final: tuple[Trained, NDArray[np.int8]],
    parts: Sequence[str] = (),
) -> Fitted:
    """Final models, with the split they were trained by, and the evaluation of those scored first."""
    if not federation.outcome.binary:
        return _put_together_other(federation, config, making, first, final)
    probability = _recalibrated(first, first.data.test)
    labels = first.data.test
    thresholds = chosen_cuts(_recalibrated(first, first.data.validation), first.data.validation.y)
    evaluations = {
        center: evaluate(_of(probability, labels, i), _of(labels.y, labels, i), thresholds)
        for i, center in enumerate(federation.centers)
    }
    index = _places(labels)
    told = {
        column: subgroups(probability, labels.y.astype(np.float64), [names[k] for k in index.tolist()])
        for column, names in groups_of(federation, parts).items()
    }
    last, result = final
    models = tuple(
        _model(federation, config, making, last, i, result, thresholds) for i in range(federation.size)
    )
    return Fitted(
        federation,
        making,
        models,
        evaluations,
        evaluate(probability, labels.y.astype(np.float64), thresholds),
        told,
        _probabilities(federation, config, last, models, result, making.seed),
    )


def _put_together_other(
    federation: Federation,
    config: Method,
    making: Making,
    first: Trained,
    final: tuple[Trained, NDArray[np.int8]],
) -> Fitted:
    """The same for an outcome that is not an event or none: its own scores, and no thresholds."""
    test, train = first.data.test, first.data.train
    answers = _answers(first, test)
    evaluations = {
        center: evaluate_other(answers[int(test.start[i]) : int(test.start[i + 1])], test.only(i), train)
        for i, center in enumerate(federation.centers)
    }
    last, result = final
    models = tuple(_model(federation, config, making, last, i, result, {}) for i in range(federation.size))
    rows = side_by_side(last.data.train, last.data.validation)
    told = [
        model.in_words(last.networks[i].answers(rows.only(i).x)).with_columns(center=pl.lit(model.center))
        for i, model in enumerate(models)
    ]
    order = _places(rows)
    where = pl.DataFrame({"row": order, "split": np.where(result[order] == 0, "learned", "validation")})
    predictions = pl.concat([where, pl.concat(told, how="diagonal")], how="horizontal").sort("row")
    overall = evaluate_other(answers, test, train)
    return Fitted(federation, making, models, evaluations, overall, {}, predictions)


def _answers(trained: Trained, rows: Rows) -> Floats:
    """(rows, outputs) every row by its own center's network."""
    return np.concatenate([network.answers(rows.only(i).x) for i, network in enumerate(trained.networks)])


def trained(data: Prepared, config: Method, weights: Weights) -> Trained:
    """Models (centers, P), or one for all (1, P), with their networks."""
    weights = repeated(weights, data.size) if len(weights) == 1 else weights
    made = answering(config.training.factory, data.outcome, data.columns)
    return Trained(data, weights, tuple(network_of(made(data.width), row) for row in weights))


def _train(
    federation: Federation,
    config: Method,
    name: str,
    seed: int,
    split: NDArray[np.int8],
    progress: Progress | None,
) -> tuple[Trained, Run]:
    """One run on rows split in this way, and its models as networks."""
    data = prepare(
        federation,
        seed,
        split=split,
        standardise=config.training.standardise,
        splines=config.training.splines,
        floor=config.privacy.floor,
    )
    if not len(data.test.y):
        data = replace(data, test=data.validation)  # the run wants rows to score; nobody reads the score
    run = simulate(data, config, seed, progress=progress, name=name)
    if run.models is None:
        raise RequestError(f"{name} keeps no weights of its own for every center; fit another method")
    made = trained(data, config, run.models)
    labels = labels_of(data.test)
    if data.outcome.binary:
        ours = brier(replace(labels, values=_log_odds(made, data.test)), labels)
        theirs = np.array([run.brier.per_center[center] for center in data.centers])
    else:
        answers = _answers(made, data.test)
        answers = answers[:, 0] if answers.shape[1] == 1 else answers
        ours = main_score(replace(labels, values=answers), labels)
        theirs = np.array([run.main.per_center[center] for center in data.centers])
    if not np.allclose(ours, theirs, atol=1e-5, equal_nan=True):
        raise RequestError(
            f"{name} predicts with more than one network per center, which cannot be written as a model; "
            "fit another method"
        )
    return made, run


def _log_odds(trained: Trained, rows: Rows) -> Floats:
    """(rows,) every row by its own center's network."""
    return np.concatenate(
        [network.log_odds(rows.only(i).x) for i, network in enumerate(trained.networks)] or [np.zeros(0)]
    )


def _recalibrated(trained: Trained, rows: Rows) -> Floats:
    """(rows,) probabilities after each center's recalibration on its validation rows."""
    validation = trained.data.validation
    seen = Segments(_log_odds(trained, validation), validation.start)
    mends = mends_of(seen, labels_of(validation))
    return mended(Segments(_log_odds(trained, rows), rows.start), mends).values.astype(np.float64)


def _of(values: NDArray[Any], rows: Rows, i: int) -> Floats:
    return np.asarray(values[int(rows.start[i]) : int(rows.start[i + 1])], dtype=np.float64)


def own_book(federation: Federation, book: Codebook, rows: NDArray[np.bool_]) -> Codebook:
    """A codebook with the scales that one center fits on its own rows, where none are agreed on."""
    if book.statistics is not None:
        return book
    scales = {}
    for name in book.numbers:
        values = federation.features[name].cast(pl.Float64).to_numpy()[rows]
        known = values[np.isfinite(values)]
        mean = float(known.mean()) if len(known) else 0.0
        spread = float(np.sqrt(np.mean((known - mean) ** 2))) if len(known) else 0.0
        usable = spread > 1e-8 * (1.0 + abs(mean))
        scales[name] = Scale(mean, spread if usable else 0.0, mean)
    return replace(book, statistics=Statistics(scales))


def _model(
    federation: Federation,
    config: Method,
    making: Making,
    trained: Trained,
    i: int,
    split: NDArray[np.int8],
    thresholds: Mapping[str, float],
) -> FittedModel:
    """Center i's model."""
    data, notes = trained.data, federation.notes
    assert data.book is not None
    mine = (federation.center == i) & (split == 0)
    validation, outcome = data.validation.only(i), federation.outcome
    mend = Recalibration()
    if outcome.binary:
        told = expit(trained.networks[i].log_odds(validation.x))
        mend = recalibration(told, validation.y.astype(np.float64))
    return FittedModel(
        center=federation.centers[i],
        label=notes.label if notes else "label",
        positive=notes.positive if notes else "1",
        book=own_book(federation, data.book, mine),
        network=trained.networks[i],
        splines=data.splines,
        recalibration=mend,
        thresholds=thresholds,
        ranges=ranges_of(federation.features.filter(pl.Series(split == 0)), data.book),
        about={
            "method": making.method,
            "seed": making.seed,
            "rounds": making.rounds,
            "data": {"name": federation.name, "fingerprint": federation.fingerprint()},
            "rows": {"learned": int(mine.sum()), "validation": len(validation.y)},
            "events": {
                "learned": int(outcome.events(federation.label[mine]).sum()),
                "validation": int(outcome.events(validation.y).sum()),
            },
            "config": describe(config),
            "versions": versions(),
        },
        baseline=_baseline(trained, i) if outcome.way == "cox" else (),
    )


def _baseline(trained: Trained, i: int) -> tuple[tuple[float, float], ...]:
    """Of Cox's model: the cumulative hazard by the times of a grid, on a center's own rows."""
    rows = side_by_side(trained.data.train, trained.data.validation).only(i)
    time, event = np.abs(rows.y).astype(np.float64), ~np.signbit(rows.y)
    curve = breslow(time, event, trained.networks[i].log_odds(rows.x))
    grid = np.array(time_grid(rows.y))
    return tuple(zip(grid.tolist(), hazard_at(curve, grid).tolist()))


def _places(rows: Rows) -> NDArray[np.int64]:
    """(rows,) where prepared rows stand in their federation."""
    assert rows.place is not None
    return rows.place


def _probabilities(
    federation: Federation,
    config: Method,
    trained: Trained,
    models: Sequence[FittedModel],
    split: NDArray[np.int8],
    seed: int,
) -> pl.DataFrame:
    """Every row's probability: as the run's own learner gives it, and as the model that comes out does."""
    data = trained.data
    learner = learner_for(data, config.training, seed)
    rows = side_by_side(data.train, data.validation)
    told = expit(learner.logits(trained.weights, rows).values.astype(np.float64))
    owner = np.repeat(np.arange(data.size), rows.sizes)
    order = _places(rows)
    mended = np.concatenate([m.recalibration.apply(_of(told, rows, i)) for i, m in enumerate(models)])
    return pl.DataFrame(
        {
            "row": order,
            "center": np.array(federation.centers)[owner],
            "split": np.where(split[order] == 0, "learned", "validation"),
            "run": told,
            "probability": mended,
        }
    ).sort("row")
