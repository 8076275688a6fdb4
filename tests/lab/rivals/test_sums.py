"""Rivals that send sums: boosting equals scikit-learn on pooled rows, the mixed model a brute-force optimum,
ODAL's gradient that of the pooled rows."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from abps.core import streams
from abps.core.ledger import CONTROL_MESSAGE
from abps.data.federation import Federation
from abps.data.prepare import prepare
from abps.engine.rounds import RunState
from abps.lab.rivals.boosting import EDGES, HistogramBoosting
from abps.lab.rivals.regressions import ODAL, MixedModel, column_kinds
from abps.methods.base import Context
from abps.methods.settings import with_model
from abps.models.learners import learner_for


def hospitals(spread: float, sizes: tuple[int, ...], seed: int = 0) -> Federation:
    """Hospitals whose intercepts differ by ``spread``, with three numbers and a yes/no column."""
    rng = np.random.default_rng(seed)
    center = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    x = rng.normal(size=(len(center), 3))
    flag = rng.random(len(center)) < 0.3
    z = -0.5 + spread * rng.normal(size=len(sizes))[center] + x @ [0.8, -0.5, 0.0] + 0.6 * flag
    features = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "flag": flag.astype(np.int8)})
    label = (rng.random(len(center)) < expit(z)).astype(np.int8)
    return Federation("made", features, label, center, tuple(f"h{i:02d}" for i in range(len(sizes))))


def played(method, federation, rounds):
    """The run after some rounds, or when it is finished, and the bytes of each round."""
    training = method.training
    data = prepare(federation, 11, standardise=training.standardise, splines=training.splines)
    learner = learner_for(data, training, 11)
    run = RunState.start(method, Context(learner, data, streams.center_ids(data.centers), 11, rounds))
    spent = []
    for t in range(1, rounds + 1):
        run, result = run.round(t)
        spent.append(result.traffic)
        if method.finished(run.state):
            break
    return run, spent


def test_boosting_is_that_of_the_pooled_rows():
    trees, method = 12, HistogramBoosting(least=1e-3, patience=50)
    run, _ = played(method, hospitals(0.5, (120, 60, 200)), 1 + 3 * trees)
    train, test = run.context.data.train, run.context.data.test
    binned = np.searchsorted(EDGES, train.x)
    sklearn = HistGradientBoostingClassifier(
        learning_rate=0.1, max_iter=trees, max_depth=3, max_leaf_nodes=None, min_samples_leaf=1,
        l2_regularization=1.0, max_bins=255, early_stopping=False,
    ).fit(binned, train.y)  # fmt: skip
    found = method.logits(run.context, run.state, test).values
    np.testing.assert_allclose(found, sklearn.decision_function(np.searchsorted(EDGES, test.x)), atol=1e-3)


def test_boosting_does_not_see_who_holds_a_row():
    """Rows moved between hospitals give the same trees: nothing but sums is used."""
    whole, method = hospitals(0.5, (120, 60, 200)), HistogramBoosting()
    run, _ = played(method, whole, 40)
    context, data = run.context, run.context.data
    first = method.upload(context, run.state, 41).values.sum(axis=0)
    pooled = method._histograms(context.derived[0], run.state.at, run.state.scores[0], data.train.y, 41)
    np.testing.assert_allclose(first[:-1], pooled, rtol=1e-4, atol=1e-3)


def test_boosting_stops_by_validation_rows_and_keeps_the_best():
    run, _ = played(HistogramBoosting(rate=0.5, patience=3), hospitals(0.5, (80, 60, 90)), 300)
    state = run.state
    assert state.done and len(state.values) == int(np.argmin(state.losses))
    again = HistogramBoosting()._answers(state, run.context.derived[1])
    np.testing.assert_allclose(state.scores[1], again)


@pytest.mark.parametrize("model", ["linear", "gam"])
def test_the_mixed_model_is_the_optimum_of_its_likelihood(model):
    """Coefficients, intercepts, τ² and penalties at the end satisfy their equations, found by brute force."""
    federation = hospitals(0.8, (60, 90, 120, 70, 150, 80, 110, 50))
    run, _ = played(with_model(MixedModel(), model), federation, 150)
    state, rows = run.state, run.context.data.train
    assert state.done
    center = np.repeat(np.arange(8), rows.sizes)
    kinds = column_kinds(run.context.data.columns)
    x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
    p = x.shape[1]

    def loss(v):
        a, b, u = v[0], v[1 : 1 + p], v[1 + p :]
        z = a + x @ b + u[center]
        value = np.logaddexp(0, z) - y * z
        r = expit(z) - y
        slope = [
            r.sum(),
            *(x.T @ r + state.penalty[kinds] * b),
            *(np.bincount(center, r) + u / state.variance),
        ]
        prior = 0.5 * (state.penalty[kinds] * b**2).sum() + 0.5 * (u**2).sum() / state.variance
        return value.sum() + prior, np.array(slope)

    best = minimize(loss, np.zeros(1 + p + 8), jac=True, method="BFGS", options={"gtol": 1e-6}).x
    np.testing.assert_allclose(state.w, best[: 1 + p], atol=5e-3)
    np.testing.assert_allclose(state.models[:, -1], best[0] + best[1 + p :], atol=5e-3)
    weight = expit(best[0] + x @ best[1 : 1 + p] + best[1 + p :][center])
    total = np.bincount(center, weight * (1 - weight)) + 1 / state.variance
    freedom = (1 - 1 / (total * state.variance)).sum()
    assert state.variance == pytest.approx((best[1 + p :] ** 2).sum() / freedom, rel=0.02)


def test_the_mixed_model_finds_the_variance_of_intercepts():
    many = played(with_model(MixedModel(), "linear"), hospitals(0.8, (150,) * 60, 4), 60)[0].state
    none = played(with_model(MixedModel(), "linear"), hospitals(0.0, (150,) * 60, 4), 60)[0].state
    assert np.sqrt(many.variance) == pytest.approx(0.8, abs=0.2)
    assert np.sqrt(none.variance) < 0.2
    np.testing.assert_allclose(many.w[1:3], [0.8, -0.5], atol=0.1)


def test_odal_is_nearer_to_the_pooled_fit_than_the_mean():
    federation = hospitals(0.0, (400, 60, 60, 60, 60, 60, 60, 60), 2)
    run, spent = played(with_model(ODAL(), "linear"), federation, 3)
    rows = run.context.data.train
    pooled = LogisticRegression(C=np.inf, tol=1e-8).fit(rows.x, rows.y)
    wanted = np.append(pooled.coef_[0], pooled.intercept_)
    state = run.state
    assert np.abs(state.models[0] - wanted).max() < np.abs(state.mean - wanted).max()
    # The gradient that the lead was given is that of all rows.
    residual = expit(rows.x @ state.mean[:-1] + state.mean[-1]) - rows.y
    np.testing.assert_allclose(state.gradient[:-1], rows.x.T @ residual / len(residual), atol=1e-6)
    # The lead alone hears the gradient, and sends the result: bytes of both directions.
    p, list_of = len(wanted), lambda count: 1 + 7 + 4 * count
    others, both = 7, 2 * CONTROL_MESSAGE
    assert [traffic.directed for traffic in spent] == [0, 0, 0]
    assert spent[0].control == others * (list_of(2 * p) + list_of(p) + both)
    # One of the eight coordinates, and sends itself nothing.
    assert spent[1].control in {others * (list_of(p + 1) + 1 + both) + more for more in (0, list_of(p))}
    assert spent[2].control in {
        others * (list_of(p) + list_of(0) + both) + more for more in (0, list_of(p) - list_of(0))
    }
