"""From a table to the models that hospitals would use.

The method runs twice on the same federation: in folds, where every patient is predicted by models trained
without them (how good they are; recalibration and thresholds), and on all rows: the models that come out. Of
``local-best``, stacked from several models, its additive form comes out, and the numbers are of that form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.federation import Federation, groups_of
from abps.data.prepare import Prepared, Rows, prepare
from abps.data.scales import Scale
from abps.data.split import assign_splits
from abps.engine.clinical import mended, mends_of
from abps.engine.crossvalidation import FOLDS, cross_validate
from abps.engine.result import Run, versions
from abps.engine.simulate import Progress, simulate
from abps.evaluate.calibration import Recalibration
from abps.evaluate.performance import Subgroup
from abps.fitted.evaluation import (
    AloneComparison,
    HeldOutRows,
    ModelEvaluation,
    chosen_thresholds,
    compare_alone,
)
from abps.fitted.model import FittedModel, LayeredNetwork, network_of, ranges_of
from abps.methods.base import Context, Method, Models, Stopping
from abps.methods.catalog import name_of
from abps.methods.plus_state import LocalRows, as_models, local_rows
from abps.methods.settings import configure, describe
from abps.models.hierarchical import CommonModel
from abps.models.hierarchical import alone as own_fit
from abps.models.layout import answering
from abps.models.metrics import Segments, brier, labels_of, main_score
from abps.models.training import Training

Floats = NDArray[np.float64]

#: The best that a hospital can do without the others.
ALONE = "local-best"


@dataclass(frozen=True)
class Making:
    """How models were made, as their cards report it.  others: centers besides the card's.  sent: known bytes
    of all exchanges.  partners: per center and round.  measured: how the card's numbers came about."""

    method: str
    rounds: int
    seed: int
    others: int
    sent: int
    partners: float
    measured: str


@dataclass(frozen=True, eq=False)
class FitResult:
    """What a fit gives.

    evaluations: by center, on rows that the evaluated models had not seen; overall: on all rows together,
    each predicted by its own center's model.  subgroups: by column.  alone: by center, its best model.
    evaluated: the cross-validated run, where there was one.
    """

    federation: Federation
    making: Making
    models: tuple[FittedModel, ...]
    evaluations: Mapping[str, ModelEvaluation]
    overall: ModelEvaluation
    subgroups: Mapping[str, list[Subgroup]]
    alone: Mapping[str, AloneComparison] = field(default_factory=dict)
    evaluated: Run | None = None


@dataclass(frozen=True, eq=False)
class TrainedNetworks:
    """Rows and the (centers,) networks that were trained on them.  split: (rows of the federation,)."""

    data: Prepared
    networks: tuple[LayeredNetwork, ...]
    split: NDArray[np.int8]


def fit(
    federation: Federation,
    method: str | Method = "abps-plus",
    seed: int = 11,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    subgroups: Sequence[str] = (),
    folds: int = FOLDS,
    alone: bool = True,
    progress: Progress | None = None,
) -> FitResult:
    """Train the final models of a method on all rows, with their out-of-fold evaluation.

    subgroups: columns by which performance is split, besides sex and age where they are found.
    folds: how many times the method is trained without a part of the patients, to evaluate it.
    alone: compare with the best that every center can do alone.
    """
    name = method if isinstance(method, str) else name_of(method)
    config = configure(AdditiveAlone() if name == ALONE else method, settings, rounds)
    if not federation.outcome.binary and subgroups:
        raise RequestError(f"subgroups need a binary outcome, not {federation.outcome.kind}; leave them out")
    groups_of(federation, subgroups)  # an unknown column ends here, before anything is computed
    first = progress and (lambda t, most, value: progress(t, most + most // folds, value))
    run = cross_validate(federation, config, seed, folds, first, name, subgroups)
    compared = {}
    if alone and name != ALONE:
        compared = compare_alone(run, cross_validate(federation, ALONE, seed, folds, name=ALONE), folds)
    split = assign_splits(federation, seed)
    final, last = _train(federation, config, name, seed, np.where(split == 2, 0, split).astype(np.int8))
    making = Making(
        name,
        last.rounds,
        seed,
        federation.size - 1,
        last.bytes.all,
        last.partners_mean,
        f"Every patient was predicted by one of {folds} models that were trained without them "
        "(cross-fitting). The model in this folder was trained on all patients in the same way.",
    )
    made = put_together(federation, config, making, HeldOutRows.of(run, federation), final, subgroups)
    return replace(made, alone=compared, evaluated=run)


def put_together(
    federation: Federation,
    config: Method,
    making: Making,
    seen: HeldOutRows,
    final: TrainedNetworks,
    columns: Sequence[str] = (),
) -> FitResult:
    models = tuple(_model(federation, config, making, final, i, seen) for i in range(federation.size))
    return FitResult(
        federation,
        making,
        models,
        {center: seen.evaluation(i) for i, center in enumerate(federation.centers)},
        seen.evaluation(),
        seen.subgroups(groups_of(federation, columns)) if federation.outcome.binary else {},
    )


def networks_of(data: Prepared, config: Method, weights: Any, split: NDArray[np.int8]) -> TrainedNetworks:
    """Models (centers, P), or one for all (1, P), as networks."""
    made = answering(config.training.factory, data.outcome)
    each = tuple(network_of(made(data.width), row) for row in weights)
    return TrainedNetworks(data, each * data.size if len(each) == 1 else each, split)


def _train(
    federation: Federation, config: Method, name: str, seed: int, split: NDArray[np.int8]
) -> tuple[TrainedNetworks, Run]:
    """One run on rows split in this way, and its models as networks."""
    how = config.training.standardise, config.training.splines, config.privacy.min_cell
    data = prepare(federation, seed, None, split, *how)
    data = replace(data, test=data.validation)  # the run wants rows to score; nobody reads the score
    run = simulate(data, config, seed, name=name)
    if run.models is None:
        raise RequestError(f"{name} keeps no weights of its own for every center; fit another method")
    made = networks_of(data, config, run.models, split)
    _check_same(made, run, name)
    return made, run


def _check_same(made: TrainedNetworks, run: Run, name: str) -> None:
    """Refuse networks that do not predict as the run did."""
    data, labels = made.data, labels_of(made.data.test)
    answers = _answers(made, data.test)
    answers = answers[:, 0] if answers.shape[1] == 1 else answers
    ours = (brier if data.outcome.binary else main_score)(replace(labels, values=answers), labels)
    stated = run.brier if data.outcome.binary else run.main
    theirs = np.array([stated.per_center[center] for center in data.centers])
    if not np.allclose(ours, theirs, atol=1e-5, equal_nan=True):
        raise RequestError(
            f"{name} predicts with more than one network per center, which cannot be written as a model; "
            "fit another method"
        )


def _answers(trained: TrainedNetworks, rows: Rows) -> Floats:
    """(rows, outputs) every row by its own center's network."""
    return np.concatenate([net.answers(rows.only(i).x) for i, net in enumerate(trained.networks)])


def held_out_test(trained: TrainedNetworks) -> HeldOutRows:
    """The test rows of one split, recalibrated and cut at thresholds by its validation rows."""
    data, test = trained.data, trained.data.test
    start, place = test.start, test.place
    assert place is not None
    fold, answers = np.zeros(len(test.y), np.int64), _answers(trained, test)
    if not data.outcome.binary:
        return HeldOutRows(Segments(answers, start), test, place, fold)
    judged = Segments(_answers(trained, data.validation)[:, 0], data.validation.start)
    mends = mends_of(judged, labels_of(data.validation))
    cuts = chosen_thresholds(mended(judged, mends).values.astype(np.float64), data.validation.y)
    chosen = {name: np.full(len(test.y), value) for name, value in cuts.items()}
    return HeldOutRows(mended(Segments(answers[:, 0], start), mends), test, place, fold, mends, cuts, chosen)


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
    return replace(book, statistics=scales)


def _model(
    federation: Federation,
    config: Method,
    making: Making,
    final: TrainedNetworks,
    i: int,
    seen: HeldOutRows,
) -> FittedModel:
    data, notes, outcome = final.data, federation.notes, federation.outcome
    assert data.book is not None
    learned = final.split == 0
    mine = (federation.center == i) & learned
    validation = data.validation.only(i)
    return FittedModel(
        center=federation.centers[i],
        label=notes.label if notes else "label",
        positive=notes.positive if notes else "1",
        book=own_book(federation, data.book, mine),
        network=final.networks[i],
        splines=data.splines,
        recalibration=seen.mends[i] if seen.mends else Recalibration(),
        thresholds=seen.thresholds,
        ranges=ranges_of(federation.features.filter(pl.Series(learned)), data.book),
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
    )


@dataclass(frozen=True)
class AdditiveAlone(Method):
    """An additive model of every center's own rows, penalised by their evidence. Nothing is exchanged."""

    training: Training = field(default_factory=lambda: Training.of("gam"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=1))

    #: Its models are fitted, not trained in steps.
    fitted: ClassVar[bool] = True

    def derived(self, context: Context) -> LocalRows:
        return local_rows(context.data, np.zeros(len(context.data.own.y)))

    def init(self, context: Context) -> Models:
        local: LocalRows = context.derived
        return Models(as_models(np.zeros((context.r, local.q)), local))

    def train(self, context: Context, state: Models, t: int, alone: bool) -> Models:
        local: LocalRows = context.derived
        rows, shape = local.rows, local.rows.shape
        nothing = CommonModel(np.zeros(shape), np.zeros(shape), 1.0)
        group = local.group.reshape(shape)
        modes = [
            own_fit(rows.design(i), rows.outcomes(i), rows.family, group, nothing).model.ravel()
            for i in range(rows.n)
        ]
        return Models(as_models(np.array(modes), local))
