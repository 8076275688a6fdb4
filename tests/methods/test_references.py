"""References against scikit-learn, and what they cost."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import abps
from abps.data.prepare import prepare
from abps.data.split import folds_of
from abps.methods.catalog import CATALOG, REFERENCES
from abps.methods.references import GlmExact
from abps.models.glm import message_size
from abps.models.learners import learner_for
from abps.models.metrics import labels_of
from abps.models.metrics import log_loss as losses_of

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
SEED = 11


@pytest.fixture(scope="module")
def federation():
    return abps.load("icu-synthetic:centers=5,stays=2500,groups=3")


class Bends:
    """The additive model's columns, told by scikit-learn's transformers and a loop."""

    def fit(self, x, y=None):
        self.scale = StandardScaler().fit(x)
        self.knots = [
            (k, at)
            for k in range(x.shape[1])
            if len(np.unique(x[:, k])) > 6
            for at in np.unique(np.quantile(x[:, k], QUANTILES))
            if x[:, k].min() < at < x[:, k].max()
        ]
        self.bent = StandardScaler().fit(self.hinges(x))
        return self

    def hinges(self, x):
        return np.stack([np.where(x[:, k] > at, x[:, k] - at, 0.0) for k, at in self.knots], axis=1)

    def transform(self, x):
        return np.concatenate([self.scale.transform(x), self.bent.transform(self.hinges(x)) / 2], axis=1)

    def fit_transform(self, x, y=None):
        return self.fit(x).transform(x)


def candidates(rows: int):
    """Every model and dial, from the simplest family to the richest."""
    penalties = 10.0 ** np.arange(0.0, 3.51, 0.5)
    for scale in (StandardScaler, Bends):
        yield [
            make_pipeline(scale(), LogisticRegression(C=1 / p, tol=1e-8, max_iter=10_000)) for p in penalties
        ]
    yield [
        HistGradientBoostingClassifier(
            max_iter=trees, max_depth=3, learning_rate=0.1, min_samples_leaf=10, l2_regularization=1.0,
            max_bins=32, max_leaf_nodes=None, early_stopping=False,
        )
        for trees in ((10, 25, 50, 100, 200, 400) if rows >= 5000 else (10, 25, 50, 100))
    ]  # fmt: skip


def by_scikit_learn(x, y, patient, new):
    """Cross-validate, choose by the rule of one standard error, fit to all rows, predict."""
    folds = PredefinedSplit(folds_of(patient, y, 5, SEED))
    best, held = None, None
    for family in candidates(len(y)):
        chances = [cross_val_predict(m, x, y, cv=folds, method="predict_proba")[:, 1] for m in family]
        chances = [np.clip(p, 1e-12, 1 - 1e-12) for p in chances]
        k = int(np.argmin([log_loss(y, p) for p in chances]))
        loss = -np.where(y > 0, np.log(chances[k]), np.log(1 - chances[k]))
        if best is None or (held - loss).mean() > (held - loss).std(ddof=1) / np.sqrt(len(y)):
            best, held = family[k], loss
    return best.fit(x, y).predict_proba(new)[:, 1]


def areas_of(rows, scores):
    """Each center's area."""
    return [roc_auc_score(rows.y[a:b], scores[a:b]) for a, b in zip(rows.start[:-1], rows.start[1:])]


@pytest.mark.slow
def test_local_best_is_the_pipeline_of_a_statistician(federation):
    data = prepare(federation, SEED)
    areas = {}
    for i, name in enumerate(data.centers):
        own, test = data.own.only(i), data.test.only(i)
        x, new = own.x.astype(float), test.x.astype(float)
        areas[name] = roc_auc_score(test.y, by_scikit_learn(x, own.y.astype(float), own.patient, new))
    ours = abps.simulate(federation, "local-best", SEED)
    assert abs(ours.auroc.mean - np.mean(list(areas.values()))) < 0.003
    for name, area in areas.items():
        assert abs(ours.auroc.per_center[name] - area) < 0.003
    assert ours.bytes.edge == ours.bytes.directed == ours.bytes.control == 0


@pytest.mark.slow
def test_pooled_best_is_the_pipeline_of_a_data_lake(federation):
    data = prepare(federation, SEED, standardise="common")
    own = data.own
    scores = by_scikit_learn(own.x.astype(float), own.y.astype(float), own.patient, data.test.x.astype(float))
    areas = [
        roc_auc_score(data.test.y[a:b], scores[a:b])
        for a, b in zip(data.test.start[:-1], data.test.start[1:])
    ]
    ours = abps.simulate(federation, "pooled-best", SEED)
    assert abs(ours.auroc.mean - np.mean(areas)) < 0.003


def test_the_federated_regression_is_the_pooled_one_and_its_bytes_are_counted(federation):
    data = prepare(federation, SEED, standardise="common")
    run = abps.simulate(federation, "glm-exact", SEED)
    models = {
        p: LogisticRegression(C=1 / p, tol=1e-10, max_iter=10_000).fit(data.train.x, data.train.y)
        for p in GlmExact().penalties
    }
    held = {
        p: log_loss(data.validation.y, m.predict_proba(data.validation.x)[:, 1]) for p, m in models.items()
    }
    pooled = models[min(held, key=held.get)]
    ours = run.models[0]
    np.testing.assert_allclose(ours[:-1], pooled.coef_[0], atol=5e-3)  # the intercept is the last
    scores = pooled.decision_function(data.test.x)
    areas = [
        roc_auc_score(data.test.y[a:b], scores[a:b])
        for a, b in zip(data.test.start[:-1], data.test.start[1:])
    ]
    assert abs(run.auroc.mean - np.mean(areas)) < 0.001
    # Every round a center sends half a matrix, a vector and four numbers, and receives a vector and a flag.
    width = 1 + data.width
    up, down = 4 * message_size(width), 4 * (width + 1)
    rounds = sum(b > a for a, b in zip((0, *run.history.edge_bytes), run.history.edge_bytes))
    assert 8 <= rounds <= 30
    header = run.bytes.edge / (rounds * data.size) - up
    assert 0 <= header < 64
    assert run.bytes.directed == rounds * data.size * (up + down + 2 * header)


def test_references_are_deterministic_and_their_results_are_whole(federation):
    for name in REFERENCES:
        run, again = (abps.simulate(federation, name, SEED, rounds=2) for _ in range(2))
        assert run.auroc.per_center == again.auroc.per_center
        out = json.loads(json.dumps(run.to_json(), allow_nan=False))
        assert out["rounds"] == 2 and out["auroc"]["scored_centers"] == 5
        assert CATALOG[name].family == "reference"


def test_early_stopping_keeps_each_centers_best_round(federation):
    data = prepare(federation, SEED)
    stopped = abps.simulate(federation, "local-stopped", SEED, rounds=12, settings={"lr": 0.01})
    best = [np.inf] * data.size
    wanted = {}
    for rounds in range(1, 13):
        run = abps.simulate(federation, "local", SEED, rounds=rounds, settings={"lr": 0.01})
        learner = learner_for(data, abps.find("local").training, SEED)
        loss = losses_of(learner.logits(run.models, data.validation), labels_of(data.validation))
        for i, name in enumerate(data.centers):
            if loss[i] < best[i]:
                best[i], wanted[name] = loss[i], run.auroc.per_center[name]
    assert stopped.auroc.per_center == pytest.approx(wanted, abs=1e-6)


def test_coins_are_not_foretold():
    """Outcomes without any relation to the columns: choosing among many models must not find one."""
    federation = abps.load("icu-synthetic:centers=5,stays=2500,groups=3")
    coins = np.random.default_rng(3).permutation(federation.label)
    noise = replace(federation, label=coins, patient=None)
    for name in ("local-best", "pooled-best", "glm-exact"):
        areas = [abps.simulate(noise, name, seed).auroc.mean for seed in (11, 22, 33)]
        assert abs(np.mean(areas) - 0.5) < 0.05
