"""Cross-validation: every row once, by a model that never saw the patient; too few events are no score."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

import abps
from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.split import assign_folds, fold_split
from abps.data.synthetic.builtin import Roles
from abps.data.table import federate
from abps.engine.crossvalidation import cross_validate
from abps.engine.result import Run
from abps.models.batched import StackedLearner

FOLDS = 4


@pytest.fixture(scope="module")
def federation():
    return abps.load("icu-synthetic:centers=6,stays=900")


@pytest.fixture(scope="module")
def result(federation):
    return cross_validate(federation, abps.find("fedavg"), 11, FOLDS, name="fedavg")


def test_every_patient_is_in_one_fold_in_all_centers():
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "died": (rng.random(900) < 0.3).astype(int),
            "hospital": [f"h{k}" for k in rng.integers(0, 4, 900)],
            "person": rng.integers(0, 400, 900),
            "x": rng.normal(size=900),
        }
    )
    federation = federate(frame, Roles("died", "hospital", patient="person"), "t")
    fold = assign_folds(federation, 3, 5)
    assert set(fold.tolist()) == set(range(5))
    assert (
        frame.with_columns(fold=fold).group_by("person").agg(pl.col("fold").n_unique())["fold"] == 1
    ).all()
    tests = [fold_split(fold, k, 5) == 2 for k in range(5)]
    np.testing.assert_array_equal(np.sum(tests, axis=0), 1)  # every row is for test once
    for k in range(5):
        split = fold_split(fold, k, 5)
        assert set(np.unique(split)) == {0, 1, 2}


def test_areas_are_those_of_all_predictions_by_models_that_saw_none_of_the_patients(federation, result):
    """The same told plainly: fold by fold, center by center, scikit-learn's area."""
    config = abps.find("fedavg")
    fold = assign_folds(federation, 11, FOLDS)
    scores: dict[str, list[float]] = {name: [] for name in federation.centers}
    labels: dict[str, list[float]] = {name: [] for name in federation.centers}
    for k in range(FOLDS):
        data = prepare(federation, 11, split=fold_split(fold, k, FOLDS))
        seen = set(data.own.patient.tolist())
        assert not seen & set(data.test.patient.tolist())
        run = abps.simulate(data, config, 11)
        learner = StackedLearner(data, config.training, config.training.factory, 11)
        logits = learner.logits(run.models, data.test)
        for i, name in enumerate(data.centers):
            scores[name] += logits[i].tolist()
            labels[name] += data.test.only(i).y.tolist()
    for name in federation.centers:
        assert result.scored.per_center_rows[name] == len(labels[name])
        assert result.scored.per_center_events[name] == sum(labels[name])
        value = result.auroc.per_center[name]
        if min(sum(labels[name]), len(labels[name]) - sum(labels[name])) < 5:
            assert np.isnan(value) and name in result.scored.cannot_tell
        else:
            assert value == pytest.approx(roc_auc_score(labels[name], scores[name]), abs=1e-6)
            assert result.scored.per_center_low[name] < value < result.scored.per_center_high[name]
    assert sum(result.scored.per_center_rows.values()) == federation.rows


def test_a_center_with_too_few_events_is_not_scored():
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "died": np.concatenate([np.arange(200) % 4 == 0, np.arange(100) < 4]).astype(int),
            "hospital": ["big"] * 200 + ["few"] * 100,
            "x": rng.normal(size=300),
        }
    )
    run = cross_validate(federate(frame, Roles("died", "hospital"), "t"), "local-best", 11, 3)
    assert np.isnan(run.auroc.per_center["few"]) and run.auroc.scored_centers == 1
    assert run.scored.cannot_tell == {"few": "4 events and 96 others; an area needs 5 of each"}
    assert run.to_json()["auroc"]["per_center"]["few"] is None


def test_it_comes_back_from_disk_and_is_deterministic(federation, result):
    again = Run.from_json(result.to_json())
    assert again.scored == result.scored and again.scored.folds == FOLDS
    twice = cross_validate(federation, abps.find("fedavg"), 11, FOLDS, name="fedavg")
    assert twice.auroc.per_center == pytest.approx(result.auroc.per_center, abs=0, nan_ok=True)
    assert result.bytes.vs_fedavg == pytest.approx(1.0)  # the mean of the folds, not their sum


def test_one_split_tells_its_events_too(federation):
    run = abps.simulate(federation, "local", 11, rounds=1)
    test = prepare(federation, 11).test
    assert list(run.scored.per_center_events.values()) == test.positives().tolist()
    assert run.scored.folds == 0


def test_folds_that_cannot_be(federation):
    with pytest.raises(RequestError, match="at least 3"):
        cross_validate(federation, "local", 11, 2)
    with pytest.raises(RequestError, match="without windows"):
        cross_validate(abps.load("icu-stream:centers=6,stays=900"), "local", 11, 3)


def test_a_comparison_in_folds(federation):
    study = abps.compare(federation, ["local"], [11], rounds=1, references=False, folds=3)
    run = study.runs[0][1]
    assert run.scored.folds == 3 and sum(run.scored.per_center_rows.values()) == federation.rows
