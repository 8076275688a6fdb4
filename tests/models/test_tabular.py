"""Ridge regression, additive model and boosting against scikit-learn; the choice between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression

from abps.data.outcome import Outcome
from abps.data.split import folds_of, most_folds
from abps.models.boosting import DEPTH, FEWEST, MOST_BINS, PENALTY, RATE, boost
from abps.models.outcomes import concordance, foretold
from abps.models.ridge import ridge_path
from abps.models.spline_regression import BENDS, spline_basis
from abps.models.tabular import PENALTIES, Choice, choose, fit


def table(rows: int, columns: int, seed: int = 0, curved: float = 1.0):
    """A table with a linear, a curved and an interacting part; some columns have few values."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    x[:, 1] = np.round(x[:, 1])
    x[:, 2] = x[:, 2] > 0.5
    z = x[:, 0] + curved * (x[:, 3] ** 2 - 1) + 0.5 * x[:, 1] * x[:, 2] - 1
    return x, (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(float)


@pytest.mark.parametrize(("rows", "columns"), [(200, 12), (40, 90)])
def test_ridge_is_scikit_learns(rows, columns):
    x, y = table(rows, columns)
    penalties = np.array([0.3, 3.0, 300.0])
    for penalty, w in zip(penalties, ridge_path(x, y, penalties)):
        other = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=100_000).fit(x, y)
        np.testing.assert_allclose(w[1:], other.coef_[0], atol=2e-4)
        np.testing.assert_allclose(w[0], other.intercept_[0], atol=2e-4)


@pytest.mark.parametrize("y", [np.zeros(30), np.ones(30), np.arange(30) < 15])
def test_ridge_stays_finite_where_outcomes_are_alike_or_told_by_a_column(y):
    x = np.stack([y, np.zeros(30), np.arange(30) * 1e6], axis=1).astype(float)
    assert np.isfinite(ridge_path(x, np.asarray(y, dtype=float), np.array(PENALTIES))).all()


@pytest.mark.parametrize("rows", [60, 700, 4000])
def test_boosting_is_scikit_learns(rows):
    x, y = table(rows, 9)
    x[:, 3] += 0.3 * x[:, 0]
    new, _ = table(300, 9, seed=1)
    ours = boost(x, y, 40).logits(new, np.array([1, 15, 40]))
    for k, trees in enumerate((1, 15, 40)):
        other = HistGradientBoostingClassifier(
            max_iter=trees, max_depth=DEPTH, learning_rate=RATE, min_samples_leaf=FEWEST,
            l2_regularization=PENALTY, max_bins=MOST_BINS, max_leaf_nodes=None, early_stopping=False,
        ).fit(x, y)  # fmt: skip
        theirs = other.decision_function(new)
        # In the first tree all rows of a class weigh the same, so that two splits of a small node can be
        # equally good to the last bit; which one is taken then is a matter of rounding.
        assert np.corrcoef(ours[k], theirs)[0, 1] > 0.98
        assert np.isclose(ours[k], theirs, atol=1e-6).mean() > (0.95 if k == 0 else 0.0)


HIST = {
    "max_depth": DEPTH, "learning_rate": RATE, "min_samples_leaf": FEWEST, "l2_regularization": PENALTY,
    "max_bins": MOST_BINS, "max_leaf_nodes": None, "early_stopping": False,
}  # fmt: skip


@pytest.mark.parametrize("rows", [120, 2000])
def test_boosting_of_other_outcomes_is_scikit_learns(rows):
    x, _ = table(rows, 6)
    rng = np.random.default_rng(3)
    new, _ = table(400, 6, seed=1)
    number = x[:, 0] + x[:, 3] ** 2 + 0.5 * rng.normal(size=rows)
    outcome = Outcome("continuous", "squared", scale=1.0)
    ours = fit(Choice("boosting", 40, 0.0), x, number, outcome)(new)[0, :, 0]
    theirs = HistGradientBoostingRegressor(max_iter=40, **HIST).fit(x, number).predict(new)
    assert np.corrcoef(ours, theirs)[0, 1] > 0.99
    assert np.mean((ours - theirs) ** 2) < 0.02 * np.var(theirs)
    which = np.argmax(np.stack([x[:, 0], -x[:, 3], 0 * x[:, 1]]) + rng.gumbel(size=(3, rows)), axis=0)
    outcome = Outcome("classes", "softmax", names=("a", "b", "c"))
    ours = foretold(outcome, fit(Choice("boosting", 40, 0.0), x, which.astype(float), outcome)(new)[0])
    theirs = HistGradientBoostingClassifier(max_iter=40, **HIST).fit(x, which).predict_proba(new)
    # scikit-learn scales multi-class leaves by (k - 1) / k and their slopes likewise; ours are Newton's.
    for k in range(3):
        assert np.corrcoef(ours[:, k], theirs[:, k])[0, 1] > 0.97


@pytest.mark.parametrize("way", ["hazard", "cox"])
def test_boosting_finds_in_times_what_no_sum_of_columns_tells(way):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 4))
    risk = 1.5 * np.sign(x[:, 0] * x[:, 1])
    time, ended = np.ceil(20 * rng.exponential(np.exp(-risk))), np.ceil(rng.exponential(40, len(x)))
    y = np.where(time <= ended, time, -ended).astype(np.float32)
    outcome = Outcome("survival", way).settled(y)
    choice = choose(x, y.astype(float), None, 11, outcome=outcome)
    assert choice.family == "boosting"
    told = fit(choice, x, y.astype(float), outcome)(x)[0]
    plain = fit(Choice("gam", 10.0, 0.0), x, y.astype(float), outcome)(x)[0]
    found = [concordance(outcome, z, y, np.array([0, len(y)]))[0] for z in (told, plain)]
    assert found[0] > 0.72 > 0.6 > found[1]


def test_an_additive_models_columns_bend_at_quantiles_and_are_straight_outside():
    x, _ = table(400, 5)
    basis = spline_basis(x)
    assert set(basis.source.tolist()) == {0, 3, 4}  # columns of few values do not bend
    mine = basis.at[basis.source == 3]
    np.testing.assert_allclose(mine, np.quantile(x[:, 3], BENDS))
    far = np.repeat(x[:1], 3, axis=0)
    for ends in ([5.0, 6.0, 7.0], [-5.0, -6.0, -7.0]):
        far[:, 3] = ends
        made = basis.of(far)
        np.testing.assert_allclose(made[2] - made[1], made[1] - made[0], atol=1e-12)
    made = basis.of(x)
    np.testing.assert_allclose(made.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(made[:, :5].std(axis=0), 1)


@given(st.integers(0, 500), st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_a_patient_is_in_one_fold_and_events_are_spread(seed, count):
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, 60, 150)
    y = (rng.random(150) < 0.2).astype(float)
    count = min(count, most_folds(patient, y))
    if count < 2:
        return
    fold = folds_of(patient, y, count, seed)
    for person in np.unique(patient):
        assert len(np.unique(fold[patient == person])) == 1
    with_event = [len(np.unique(patient[(fold == k) & (y > 0)])) for k in range(count)]
    assert max(with_event) - min(with_event) <= 1 and min(with_event) >= 1
    order = rng.permutation(150)
    np.testing.assert_array_equal(folds_of(patient[order], y[order], count, seed), fold[order])


def test_the_richer_model_must_earn_its_place():
    x, y = table(1500, 6, curved=0.0)
    assert choose(x, y, None, 11, ("ridge", "gam")).family == "ridge"
    x, y = table(1500, 6, curved=1.0)
    assert choose(x, y, None, 11, ("ridge", "gam")).family == "gam"
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 4))
    y = (rng.random(3000) < 1 / (1 + np.exp(-2.5 * x[:, 0] * x[:, 1]))).astype(float)
    assert choose(x, y, None, 11).family == "boosting"


def test_too_few_events_to_choose_by():
    x, _ = table(50, 4)
    y = np.zeros(50)
    y[7] = 1.0
    choice = choose(x, y, None, 11)
    assert (choice.family, choice.dial) == ("ridge", PENALTIES[-1])
    assert np.isfinite(fit(choice, x, y)(x)).all()
