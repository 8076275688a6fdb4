"""References against scikit-learn, and what they cost."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import abps
from abps.core.ledger import CONTROL_MESSAGE
from abps.core.streams import center_ids
from abps.data.prepare import prepare
from abps.methods.base import Context
from abps.methods.catalog import CATALOG, REFERENCES
from abps.models.glm import message_size
from abps.models.learners import learner_for
from abps.models.tabular import fit_table

SEED = 11


@pytest.fixture(scope="module")
def federation():
    return abps.load("icu-synthetic:centers=5,stays=2500,groups=3")


def areas_of(rows, scores):
    """Each center's area."""
    return [roc_auc_score(rows.y[a:b], scores[a:b]) for a, b in zip(rows.start[:-1], rows.start[1:])]


def test_local_best_is_every_centers_own_stacked_model(federation):
    data = prepare(federation, SEED)
    ours = abps.simulate(federation, "local-best", SEED)
    for i, name in enumerate(data.centers):
        own, test = data.own.only(i), data.test.only(i)
        model = fit_table(own.x.astype(float), own.y.astype(float), own.patient, SEED)
        area = roc_auc_score(test.y, model.predict(test.x.astype(float))[:, 0])
        assert ours.auroc.per_center[name] == pytest.approx(area)
    assert ours.bytes.edge == ours.bytes.directed == ours.bytes.control == 0


@pytest.mark.parametrize("name", ["local-best", "pooled-best"])
def test_of_validation_rows_references_give_what_models_that_have_not_seen_them_predict(federation, name):
    config = abps.find(name)
    data = prepare(federation, SEED, standardise=config.training.standardise)
    context = Context(learner_for(data, config.training, SEED), data, center_ids(data.centers), SEED, 1)
    state = config.train(context, config.init(context), 1, True)
    seen = config.logits(context, state, data.validation)
    again = config.logits(context, state, replace(data.validation, x=data.validation.x.copy()))
    assert np.abs(seen.values - again.values).mean() > 1e-3  # the final model has seen them
    assert np.corrcoef(seen.values, again.values)[0, 1] > 0.8
    own = state.tables[0].held_out[: data.own.sizes[0], 0]
    np.testing.assert_array_equal(seen[0], own[data.train.sizes[0] :])


def test_pooled_best_is_one_stacked_model_of_all_rows(federation):
    data = prepare(federation, SEED, standardise="common")
    own = data.own
    model = fit_table(own.x.astype(float), own.y.astype(float), own.patient, SEED)
    areas = areas_of(data.test, model.predict(data.test.x.astype(float))[:, 0])
    assert abps.simulate(federation, "pooled-best", SEED).auroc.mean == pytest.approx(np.mean(areas))


def lack_of_evidence(x, y, log):
    """Minus the Laplace evidence of a ridge penalty, the intercept integrated out."""
    model = LogisticRegression(C=np.exp(-log), tol=1e-10, max_iter=10_000).fit(x, y)
    design, chance = np.c_[x, np.ones(len(x))], model.predict_proba(x)[:, 1]
    prior = np.r_[np.full(x.shape[1], np.exp(log)), 0.0]
    curvature = (design * (chance * (1 - chance))[:, None]).T @ design + np.diag(prior)
    loss = log_loss(y, chance, normalize=False) + 0.5 * np.exp(log) * (model.coef_**2).sum()
    return loss + 0.5 * np.linalg.slogdet(curvature)[1] - 0.5 * x.shape[1] * log


def test_the_federated_regression_is_the_pooled_one_and_its_bytes_are_counted(federation):
    data = prepare(federation, SEED, standardise="common")
    run = abps.simulate(federation, "glm-exact", SEED)
    ours, x, y = run.models[0].astype(float), data.train.x.astype(float), data.train.y
    score = x.T @ (y - 1 / (1 + np.exp(-x @ ours[:-1] - ours[-1])))
    penalty = score @ ours[:-1] / (ours[:-1] @ ours[:-1])  # what makes it an optimum
    best = minimize_scalar(lambda log: lack_of_evidence(x, y, log), bounds=(-1, 8), method="bounded")
    assert lack_of_evidence(x, y, np.log(penalty)) < best.fun + 0.1
    pooled = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(ours[:-1], pooled.coef_[0], atol=5e-3)  # the intercept is the last
    scores = pooled.decision_function(data.test.x)
    areas = [
        roc_auc_score(data.test.y[a:b], scores[a:b])
        for a, b in zip(data.test.start[:-1], data.test.start[1:])
    ]
    assert abs(run.auroc.mean - np.mean(areas)) < 0.001
    # In every exchange a center sends half a matrix, a vector and two numbers, and receives the coefficients,
    # those before, and three numbers; one of the centers takes the step.
    width = 1 + data.width
    up, down = 4 * message_size(width), 4 * (2 * width + 3)
    assert 4 <= run.rounds <= 10 and run.bytes.edge == run.bytes.directed == 0
    each = (run.bytes.control - data.agreed) / (run.rounds * (data.size - 1))
    assert 2 * CONTROL_MESSAGE <= each - up - down < 64


def test_references_are_deterministic_and_their_results_are_whole(federation):
    for name in REFERENCES:
        run, again = (abps.simulate(federation, name, SEED, rounds=2) for _ in range(2))
        assert run.auroc.per_center == again.auroc.per_center
        out = json.loads(json.dumps(run.to_json(), allow_nan=False))
        assert out["rounds"] == 2 and out["auroc"]["scored_centers"] == 5
        assert CATALOG[name].family == "reference"


def test_coins_are_not_foretold():
    """Outcomes without any relation to the columns: choosing among many models must not find one."""
    federation = abps.load("icu-synthetic:centers=5,stays=2500,groups=3")
    # A run's mean AUROC has a standard deviation of 0.064 here: the cheap method affords twelve of them.
    for name, runs in (("local-best", 4), ("pooled-best", 4), ("glm-exact", 12)):
        areas = []
        for seed in (11 * k for k in range(1, runs + 1)):
            coins = np.random.default_rng(seed).permutation(federation.label)
            noise = replace(federation, label=coins, patient=None)
            areas.append(abps.simulate(noise, name, seed).auroc.mean)
        assert abs(np.mean(areas) - 0.5) < 0.05
