"""Effects from exchanges: the same as on pooled rows, and refusals that all hospitals arrive at alike."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm
from lifelines import CoxPHFitter

import abps
from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.data.prepare import prepare
from abps.engine.rounds import RunState
from abps.methods.base import Context
from abps.methods.regression import Regression
from abps.models.learners import learner_for
from abps.statistics.newton import Fit

OUTCOMES = ("died", "score", "event", "days")


def table(seed=3, hospitals=6, rows=70):
    rng = np.random.default_rng(seed)
    n = hospitals * rows
    age, lactate = rng.normal(60, 12, n), rng.gamma(2.0, 1.0, n)
    ward = rng.choice(["a", "b", "c"], n)
    own = 0.4 * rng.normal(size=hospitals).repeat(rows)
    eta = -0.8 + 0.03 * (age - 60) + 0.4 * (lactate - 2) + 0.5 * (ward == "b") + own
    time = rng.exponential(np.exp(-eta)) + 0.01
    died, score = rng.random(n) < 1 / (1 + np.exp(-eta)), 5 * eta + rng.normal(size=n)
    return pl.DataFrame(
        {
            "hospital": [f"h{k}" for k in np.repeat(np.arange(hospitals), rows)], "age": age,
            "lactate": np.where(rng.random(n) < 0.04, np.nan, lactate), "ward": ward,
            "died": died.astype(int), "score": score, "event": (time < 3).astype(int),
            "days": np.minimum(time, 3.0),
        }
    ).fill_nan(None)  # fmt: skip


def conduct(frame, method, label, **roles):
    """What every hospital ends with, after as many exchanges as it takes, and how many those were."""
    drop = [c for c in OUTCOMES if c not in (label, roles.get("duration"))]
    federation = abps.federation(frame, label=label, center="hospital", drop=drop, **roles)
    data = prepare(federation, 11, standardise="common")
    context = Context(learner_for(data, method.training, 11), data, center_ids(data.centers), 11, 40)
    state, rounds = RunState.start(method, context), 0
    while not method.finished(state.state):
        rounds += 1
        state, _ = state.round(rounds)
    return [method.replayed(state.context, state.state, i) for i in range(context.r)], rounds


def design(frame):
    known = frame.drop_nulls()
    wards = [(known["ward"] == level).cast(pl.Float64).to_numpy() for level in "bc"]
    return known, np.column_stack([known["age"].to_numpy(), known["lactate"].to_numpy(), *wards])


@pytest.mark.parametrize(
    ("label", "family"), [("died", sm.families.Binomial()), ("score", sm.families.Gaussian())]
)
def test_every_hospital_ends_with_the_pooled_fit(label, family):
    frame = table()
    outcome = {} if label == "died" else {"outcome": "continuous"}
    fits, rounds = conduct(frame, Regression(formula="age + lactate + ward"), label, **outcome)
    known, x = design(frame)
    theirs = sm.GLM(known[label].to_numpy(), sm.add_constant(x), family=family).fit(tol=1e-13)
    assert rounds <= 8 and len(fits) == 6
    for fit in fits:
        assert isinstance(fit, Fit) and fit.rows == known.height < frame.height
        np.testing.assert_allclose(fit.beta, theirs.params, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(np.sqrt(np.diag(fit.covariance)), theirs.bse, rtol=1e-6)


def test_cox_is_stratified_by_hospital():
    frame = table()
    fits, rounds = conduct(frame, Regression(formula="age + lactate + ward"), "event", duration="days")
    known, x = design(frame)
    pooled = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    pooled["t"], pooled["e"], pooled["h"] = (known[c].to_list() for c in ("days", "event", "hospital"))
    theirs = CoxPHFitter().fit(pooled, "t", "e", strata=["h"], fit_options={"precision": 1e-13})
    assert rounds <= 8
    np.testing.assert_allclose(fits[0].beta, theirs.params_.to_numpy(), rtol=1e-5)
    np.testing.assert_allclose(np.sqrt(np.diag(fits[0].covariance)), theirs.standard_errors_, rtol=1e-5)


@pytest.mark.parametrize("intercepts", ["fixed", "random"])
def test_intercepts_of_hospitals_equal_those_of_one_table(intercepts):
    frame = table()
    clustered = intercepts == "fixed"
    method = Regression(formula="age + lactate + ward", intercepts=intercepts, clustered=clustered)
    fits, _ = conduct(frame, method, "died")
    one = abps.regress(
        frame, "died", "hospital", "age + lactate + ward", intercepts=intercepts, robust=clustered
    )
    np.testing.assert_allclose(fits[3].beta, [e.estimate for e in one.effects], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(np.sqrt(np.diag(fits[3].covariance)), [e.se for e in one.effects], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "formula", "says"),
    [
        (lambda f: f.with_columns(twice=2 * pl.col("age")), "age + twice", "say the same"),
        (lambda f: f.with_columns(copy=pl.col("died") + 0.001 * pl.col("age")), "copy", "separates|settle"),
        (lambda f: f.head(300).with_columns(ward=pl.lit("a")), "age + lactate + age:lactate", None),
    ],
)
def test_all_hospitals_refuse_alike(change, formula, says):
    keep = ["copy"] if formula == "copy" else []
    fits, _ = conduct(change(table()), Regression(formula=formula), "died", keep=keep)
    if says is None:
        assert all(isinstance(fit, Fit) for fit in fits)
        return
    assert len(set(fits)) == 1 and isinstance(fits[0], str)
    assert any(word in fits[0] for word in says.split("|"))


def test_a_column_that_the_codebook_lacks_is_named():
    with pytest.raises(RequestError, match="'weight' is not among the codebook's columns"):
        conduct(table(), Regression(formula="age + weight"), "died")
    with pytest.raises(RequestError, match="choose common, fixed or random"):
        Regression(intercepts="some")
