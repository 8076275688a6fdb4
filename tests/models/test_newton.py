"""Newton's method and penalties by evidence against scikit-learn, SciPy and brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from sklearn.linear_model import BayesianRidge, LogisticRegression

import abps
from abps.core.streams import center_ids
from abps.data.outcome import Outcome
from abps.data.prepare import prepare
from abps.methods.base import Context, with_derived
from abps.models.learners import learner_for
from abps.models.modules import mean_loss
from abps.models.newton import (
    OwnRows,
    column_kinds,
    descend,
    fit_by_evidence,
    of_answers,
    penalties,
    ridge,
    shared_penalty,
)
from abps.models.training import Objective, Training
from federations import tiny

OUTCOMES = {
    "binary": Outcome(),
    "squared": Outcome("continuous", level=0.0, scale=1.0),
    "classes": Outcome("classes", names=("a", "b", "c")),
    "hazard": Outcome("survival", grid=(1.0, 2.0, 4.0), hazards=(0.2, 0.3, 0.3)),
}


def own_rows(kind: str, rows: int = 160, width: int = 4, seed: int = 0) -> OwnRows:
    rng = np.random.default_rng(seed)
    outcome = OUTCOMES[kind]
    x = rng.normal(size=(rows, width))
    eta = x[:, 0] - 0.6 * x[:, 1]
    if kind == "binary":
        y = (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(float)
    elif kind == "squared":
        y = eta + 0.7 * rng.normal(size=rows)
    elif kind == "classes":
        y = np.argmax(np.stack([eta, -eta, 0 * eta]).T + rng.gumbel(size=(rows, 3)), axis=1).astype(float)
    else:
        time = rng.exponential(2 * np.exp(-eta)) + 0.01 * rng.random(rows)
        y = np.where(rng.random(rows) < 0.7, time, -time)
    return OwnRows(x, y, of_answers(outcome), outcome.mix.astype(float))


def summed(outcome: Outcome, z: np.ndarray, y: np.ndarray) -> float:
    """The summed loss by PyTorch's functions, not the family's own."""
    return len(y) * float(mean_loss(outcome, torch.tensor(z), torch.tensor(y)))


@pytest.mark.parametrize("kind", list(OUTCOMES))
def test_newton_ends_where_a_general_optimiser_does(kind):
    rows = own_rows(kind)
    outcome = OUTCOMES[kind]
    start = np.concatenate([np.zeros(rows.edge), outcome.start.astype(float)])
    found = descend(rows, start, ridge(rows, 3.0, start), 60, slice(None))

    def penalised(w):
        z = rows.answers(w)
        loss = summed(outcome, z, rows.y)
        held = 1e-6 * len(rows.y) * ((w[rows.edge :] - start[rows.edge :]) ** 2).sum()
        return loss + 1.5 * (w[: rows.edge] ** 2).sum() + 0.5 * held

    best = minimize(penalised, start, method="BFGS", options={"gtol": 1e-6})
    assert penalised(found) <= best.fun + 1e-4
    ours, theirs = rows.answers(found), rows.answers(best.x)
    np.testing.assert_allclose(ours, theirs, atol=5e-3)


@pytest.mark.parametrize("shape", [(120, 6), (30, 50)])
def test_a_given_penalty_gives_scikit_learn_s_regression(shape):
    rng = np.random.default_rng(3)
    x = rng.normal(size=shape)
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    rows = OwnRows(x, y, of_answers(Outcome()), np.ones((1, 1)))
    w = descend(rows, np.zeros(shape[1] + 1), ridge(rows, 2.0, np.zeros(shape[1] + 1)), 60, slice(None))
    oracle = LogisticRegression(C=0.5, tol=1e-12, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(w[:-1], oracle.coef_[0], atol=1e-4)
    assert w[-1] == pytest.approx(oracle.intercept_[0], abs=1e-4)


def test_the_penalty_of_a_number_is_that_of_bayesian_ridge():
    rows = own_rows("squared", rows=80, width=12, seed=5)
    group = np.zeros(12, dtype=np.int64)
    w, penalty = fit_by_evidence(rows, np.zeros(13), group)
    flat = {"alpha_1": 0.0, "alpha_2": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
    oracle = BayesianRidge(max_iter=1000, tol=1e-8, **flat).fit(rows.x, rows.y)
    assert penalty[0] == pytest.approx(oracle.lambda_ / oracle.alpha_, rel=0.15)
    np.testing.assert_allclose(w[:-1], oracle.coef_, atol=0.01)


@pytest.mark.parametrize("shape", [(300, 10), (60, 80)])
def test_the_penalty_has_the_largest_evidence_of_all(shape):
    """The Laplace evidence, the intercept integrated out, maximised by brute force."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape)
    truth = np.r_[1.0, -0.8, 0.6, np.zeros(shape[1] - 3)]
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ truth))).astype(float)
    rows = OwnRows(x, y, of_answers(Outcome()), np.ones((1, 1)))
    _, penalty = fit_by_evidence(rows, np.zeros(shape[1] + 1), np.zeros(shape[1], dtype=np.int64))
    design = np.c_[x, np.ones(len(x))]

    def lack(log):
        model = LogisticRegression(C=np.exp(-log), tol=1e-10, max_iter=10_000).fit(x, y)
        z = model.decision_function(x)
        chance = 1 / (1 + np.exp(-z))
        prior = np.r_[np.full(shape[1], np.exp(log)), 0.0]
        whole = (design * (chance * (1 - chance))[:, None]).T @ design + np.diag(prior)
        loss = (np.logaddexp(0, z) - z * y).sum() + 0.5 * np.exp(log) * (model.coef_**2).sum()
        return loss + 0.5 * np.linalg.slogdet(whole)[1] - 0.5 * shape[1] * log

    best = minimize_scalar(lack, bounds=(-1, 8), method="bounded").x
    # The fixed point leaves out that the curvature itself depends on the penalty.
    assert lack(np.log(penalty[0])) <= lack(best) + 0.3


def test_penalties_of_groups_shrink_towards_all():
    dof, squares = np.array([0.9, 0.9, 0.5, 0.5]), np.array([1.0, 1.0, 1e-9, 1e-9])
    group = np.array([0, 0, 1, 1])
    found = penalties(dof, squares, group)
    common = dof.sum() / squares.sum()
    assert found[0] == pytest.approx(2.8 / (2.0 + 1 / common)) and found[2] == pytest.approx(2.0 * common)
    assert penalties(dof, squares, np.zeros(4, dtype=np.int64))[0] == pytest.approx(common)
    assert column_kinds(("sex", "age ~1", "age ~2", "age ~5")).tolist() == [0, 1, 2, 2]
    assert column_kinds(("age ~1", "age ~3")).tolist() == [0, 1]
    assert column_kinds(("sex", "age ~1", "age ~2", "age ~low", "age ~high")).tolist() == [0, 1, 2, 3, 3]


def test_shares_of_a_penalty_sum_to_the_one_of_all_rows():
    """Ten equal centers with uncorrelated columns: each sees a tenth of what all rows would say."""
    x = np.tile(np.eye(5) * 4.0, (40, 1))
    curvature = np.diag(x.T @ x) * 0.2
    b = np.array([0.5, -0.2, 0.1, 0.3, 0.0])
    group = np.zeros(5, dtype=np.int64)
    whole = shared_penalty(10 * curvature, b, group, 1)
    np.testing.assert_allclose(10 * shared_penalty(curvature, b, group, 10), whole, rtol=1e-9)
    dof = 10 * curvature / (10 * curvature + whole)
    assert whole[0] == pytest.approx(dof.sum() / (b**2).sum(), rel=1e-3)


@pytest.mark.parametrize("name", ["feddyn", "scaffold"])
def test_corrected_stars_reach_the_optimum_of_all_rows(name):
    """With a given penalty per row the pooled optimum is scikit-learn's."""
    fed = abps.load("icu-synthetic:centers=6,stays=3000,heterogeneity=2")
    run = abps.simulate(fed, name, rounds=150, model="linear", settings={"weight_decay": "0.01"})
    data = prepare(fed, 11, standardise="common")
    oracle = LogisticRegression(C=1 / (0.01 * len(data.train.y)), tol=1e-10, max_iter=10_000)
    oracle.fit(data.train.x, data.train.y)
    np.testing.assert_allclose(run.models[0][:-1], oracle.coef_[0], atol=0.02)


def test_fedavg_is_as_good_as_the_regression_on_pooled_sums():
    fed = abps.load("icu-synthetic:centers=20,stays=8000,heterogeneity=0")
    star, exact = (abps.simulate(fed, name, model="gam") for name in ("fedavg", "glm-exact"))
    assert star.auroc.mean > exact.auroc.mean - 0.005


def test_alone_a_center_is_fitted_once_and_then_stays():
    data = tiny()
    learner = learner_for(data, Training.of("linear"), 1)
    w = np.zeros((data.size, data.width + 1), dtype=np.float32)
    once = learner.train(w, 1)
    np.testing.assert_array_equal(learner.train(once, 2), once)
    for i in range(data.size):
        single = learner_for(data.only(i), Training.of("linear"), 1)
        np.testing.assert_array_equal(single.train(w[i : i + 1], 1)[0], once[i])


def test_terms_of_an_objective_are_in_the_solution():
    """A strong pull ends at its anchor, a shift moves the optimum's gradient, and held columns stay."""
    data = tiny(sizes=(200, 80))
    learner = learner_for(data, Training.of("linear", weight_decay=0.0, epochs=50), 1)
    learner.sharing = 2
    w = np.zeros((2, data.width + 1), dtype=np.float32)
    anchor = np.full_like(w, 0.3)
    pulled = learner.train(w, 1, Objective(strength=1e6, anchor=anchor))
    np.testing.assert_allclose(pulled, anchor, atol=1e-3)
    shift = np.random.default_rng(0).normal(size=w.shape).astype(np.float32) * 0.02
    moved = w
    for _ in range(60):
        moved = learner.train(moved, 1, Objective(shift=shift))
    np.testing.assert_allclose(learner.gradient(moved, data.train), -shift, atol=2e-4)
    kept = learner.train(anchor, 1, columns=slice(0, data.width))
    assert (kept[:, -1] == anchor[:, -1]).all() and (kept[:, 0] != anchor[:, 0]).all()


def test_who_learns_together_shares_the_penalty():
    data = tiny()
    for name, count in (("local", 1), ("fedavg", data.size), ("random-k1", data.size), ("ifca", 2)):
        method = abps.find(name)
        learner = learner_for(data, Training.of("linear"), 1)
        with_derived(method, Context(learner, data, center_ids(data.centers), 1, 1))
        assert learner.sharing == count


def test_gradients_are_those_of_finite_differences():
    rng = np.random.default_rng(2)
    for kind, outcome in OUTCOMES.items():
        mine = own_rows(kind, seed=4)
        w = 0.3 * rng.normal(size=rows_size(mine))
        score = mine.score(mine.answers(w))
        for k in range(len(w)):
            step = np.zeros_like(w)
            step[k] = 1e-5
            up, down = (summed(outcome, mine.answers(v), mine.y) for v in (w + step, w - step))
            assert score[k] == pytest.approx(-(up - down) / 2e-5, abs=2e-3)


def rows_size(rows: OwnRows) -> int:
    return rows.edge + rows.mix.shape[1]


def test_outcomes_all_alike_and_separable_rows_stay_finite():
    x = np.random.default_rng(0).normal(size=(20, 3))
    for y in (np.zeros(20), (x[:, 0] > 0).astype(float), np.ones(20)):
        rows = replace(own_rows("binary"), x=x, y=y)
        w, penalty = fit_by_evidence(rows, np.zeros(4), np.zeros(3, dtype=np.int64))
        assert np.isfinite(w).all() and (np.abs(w) < 40).all() and (penalty > 0).all()
