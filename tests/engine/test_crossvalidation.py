"""Cross-validation: every row once, by a model that never saw the patient; too few events are no score."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

import abps
from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.roles import Roles
from abps.data.split import assign_folds, fold_split
from abps.data.table import federate
from abps.engine import simulate as engine
from abps.engine.crossvalidation import cross_validate, fold_seed
from abps.engine.result import Run
from abps.engine.simulate import shared_rows
from abps.methods.settings import configure
from abps.models.learners import learner_for

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


def test_areas_are_those_of_pairs_within_folds_by_models_that_saw_none_of_the_patients(federation, result):
    """The same in plain steps: fold by fold, center by center, scikit-learn's area, weighted by its pairs."""
    config = abps.find("fedavg")
    fold = assign_folds(federation, 11, FOLDS)
    right, pairs, rows, events = (dict.fromkeys(federation.centers, 0.0) for _ in range(4))
    frame = result.row_scores.with_columns(
        center=pl.Series(federation.centers).gather(result.row_scores["center"])
    )
    for k in range(FOLDS):
        data = prepare(federation, 11, split=fold_split(fold, k, FOLDS))
        assert not set(data.own.patient.tolist()) & set(data.test.patient.tolist())
        seed = fold_seed(11, k)
        run = abps.simulate(data, config, seed)
        learner = learner_for(data, config.training, seed)
        logits = learner.logits(run.models, data.test)
        for i, name in enumerate(data.centers):
            y = data.test.only(i).y
            count = y.sum() * (len(y) - y.sum())
            rows[name] += len(y)
            events[name] += y.sum()
            kept = frame.filter((pl.col("center") == name) & (pl.col("fold") == k))
            np.testing.assert_allclose(np.sort(kept["logit"]), np.sort(logits[i]), atol=1e-6)
            if count:
                right[name] += count * roc_auc_score(y, logits[i])
                pairs[name] += count
    for name in federation.centers:
        assert result.scored.per_center_rows[name] == rows[name]
        assert result.scored.per_center_events[name] == events[name]
        value = result.auroc.per_center[name]
        if min(events[name], rows[name] - events[name]) < 5:
            assert np.isnan(value) and name in result.scored.cannot_tell
        else:
            assert value == pytest.approx(right[name] / pairs[name], abs=1e-6)
    assert len(frame) == federation.rows and frame["row"].n_unique() == federation.rows


def test_folds_have_training_seeds_of_their_own():
    seeds = {fold_seed(seed, k) for seed in range(20) for k in range(5)}
    assert len(seeds) == 100


def test_folds_are_prepared_once_for_methods_that_want_the_same(federation, monkeypatch):
    made = []
    original = engine.prepare
    monkeypatch.setattr(engine, "prepare", lambda *a, **k: made.append(1) or original(*a, **k))
    monkeypatch.setattr(engine, "_HELD", {})
    for method in ("local", "fedavg"):
        cross_validate(federation, configure(method, {}, 1), 11, 3, name=method)
    assert len(made) == 3
    monkeypatch.setattr(engine, "MOST_BYTES", 1)  # keeps the last one alone
    config = configure("fedavg", {}, 1)
    first = shared_rows(federation, 11, config)
    assert shared_rows(federation, 11, config) is first and len(made) == 4
    shared_rows(federation, 12, config)
    assert shared_rows(federation, 11, config) is not first and len(made) == 6


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


def test_a_comparison_in_folds(federation):
    study = abps.compare(federation, ["local"], [11], rounds=1, references=False, folds=3)
    run = study.runs[0][1]
    assert run.scored.folds == 3 and sum(run.scored.per_center_rows.values()) == federation.rows
