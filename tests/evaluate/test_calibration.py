"""Clinical evaluation against other people's code and against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from abps.evaluate.calibration import Recalibration, calibration, fit_logistic, recalibration, smooth_curve
from abps.evaluate.performance import (
    age_groups,
    area,
    at_threshold,
    decision_curve,
    frequent,
    sensitive_threshold,
    share,
    subgroups,
    thirds,
)


def cohort(rows=2000, intercept=0.0, slope=1.0, seed=0):
    """Log odds that are told, and labels whose true log odds are intercept + slope × told."""
    rng = np.random.default_rng(seed)
    told = rng.normal(-1.5, 1.2, rows)
    y = (rng.random(rows) < expit(intercept + slope * told)).astype(float)
    return expit(told), y


def test_logistic_regression_is_the_maximum_of_the_likelihood():
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 3))])
    offset = rng.normal(size=300)
    y = (rng.random(300) < expit(offset + x @ [0.3, -1.0, 0.5, 0.0])).astype(float)
    mine = fit_logistic(x, y, offset)

    def loss(beta):
        eta = offset + x @ beta
        return np.sum(np.logaddexp(0, eta) - y * eta)

    other = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(mine.coefficients, other.x, atol=1e-6)
    assert mine.converged and mine.deviance == pytest.approx(2 * other.fun)
    plain = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(fit_logistic(x, y).coefficients, plain.coef_[0], atol=1e-4)


def test_classes_that_are_separate_have_no_maximum():
    x = np.column_stack([np.ones(20), np.arange(20.0)])
    assert not fit_logistic(x, (np.arange(20) > 9).astype(float)).converged


@pytest.mark.parametrize(("intercept", "slope"), [(0.0, 1.0), (0.7, 1.0), (-0.2, 0.6), (0.0, 1.4)])
def test_calibration_finds_what_was_put_in(intercept, slope):
    p, y = cohort(20_000, intercept, slope)
    found = calibration(p, y)
    assert found.slope.low < slope < found.slope.high and found.slope.high - found.slope.low < 0.1
    reference = LogisticRegression(C=np.inf, tol=1e-10).fit(logit(p)[:, None], y)
    assert found.slope.value == pytest.approx(reference.coef_[0, 0], abs=1e-4)
    # In the large: with the fitted shift as many events are expected as happened.
    assert expit(logit(p) + found.in_the_large.value).sum() == pytest.approx(y.sum(), rel=1e-6)


def test_intervals_cover_ninety_five_times_in_a_hundred():
    p, y = cohort(400_000, 0.3, 0.8, 12345)
    truth = roc_auc_score(y, p)
    slopes, areas = [], []
    for seed in range(400):
        p, y = cohort(400, 0.3, 0.8, seed)
        slope, auroc = calibration(p, y).slope, area(p, y)
        slopes.append(slope.low < 0.8 < slope.high)
        areas.append(auroc.low < truth < auroc.high)
    assert 0.92 < np.mean(slopes) < 0.98 and 0.92 < np.mean(areas) < 0.98


def test_too_few_events_say_nothing():
    p, y = cohort(100)
    y[:] = 0
    y[:4] = 1
    found = calibration(p, y)
    assert not found.slope.known and not found.in_the_large.known and found.observed == 4
    assert recalibration(p, y) == Recalibration() and smooth_curve(p, y) is None


def test_the_smooth_curve_follows_the_truth():
    p, y = cohort(20_000, 0.5, 0.7)
    curve = smooth_curve(p, y)
    truth = expit(0.5 + 0.7 * logit(curve.at))
    assert np.max(np.abs(curve.observed - truth)) < 0.04
    assert np.mean((curve.low < truth) & (truth < curve.high)) > 0.8
    assert curve.error == pytest.approx(np.mean(np.abs(expit(0.5 + 0.7 * logit(p)) - p)), abs=0.01)
    assert smooth_curve(*cohort(20_000)).error < 0.01


def test_recalibration_mends_and_leaves_alone():
    p, y = cohort(5000, 0.8, 1.0)
    shift = recalibration(p, y)
    assert shift.kind == "intercept" and shift.intercept == pytest.approx(0.8, abs=0.15)
    p, y = cohort(5000, 0.3, 0.5)
    both = recalibration(p, y)
    assert both.kind == "intercept and slope" and calibration(both.apply(p), y).slope.value == pytest.approx(
        1
    )
    kinds = [recalibration(*cohort(300, seed=seed)).kind for seed in range(300)]
    assert 0.91 < kinds.count("none") / 300 < 0.99
    p, _ = cohort(50)
    assert (Recalibration().apply(p) == p).all()


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60))
def test_the_area_is_the_share_of_ordered_pairs(pairs):
    scores = np.array([s for s, _ in pairs], dtype=float)
    y = np.array([int(b) for _, b in pairs])
    found = area(scores, y)
    events, others = scores[y == 1], scores[y == 0]
    assert (found.events, found.others) == (len(events), len(others))
    if len(events) and len(others):
        wins = sum((a > b) + 0.5 * (a == b) for a in events for b in others)
        assert found.value == pytest.approx(wins / (len(events) * len(others)))
        assert 0 <= found.low <= found.value + 1e-12 and found.value - 1e-12 <= found.high <= 1
    else:
        assert np.isnan(found.value)


def test_delongs_variance_is_that_of_the_plain_double_loop():
    rng = np.random.default_rng(4)
    y = np.repeat([1, 0], [15, 40])
    scores = np.round(rng.normal(size=55) + y, 1)
    kernel = np.array([[(a > b) + 0.5 * (a == b) for b in scores[y == 0]] for a in scores[y == 1]])
    variance = kernel.mean(1).var(ddof=1) / 15 + kernel.mean(0).var(ddof=1) / 40
    found = area(scores, y)
    value = kernel.mean()
    half = 1.959964 * np.sqrt(variance) / (value * (1 - value))
    assert (found.low, found.high) == pytest.approx(
        (expit(logit(value) - half), expit(logit(value) + half)), abs=1e-6
    )


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=80))
def test_decision_curves_are_counts(pairs):
    p = np.array([s / 20 for s, _ in pairs])
    y = np.array([float(b) for _, b in pairs])
    curve = decision_curve(p, y, np.array([0.05, 0.1, 0.25, 0.5]))
    for t, model, everyone in zip(curve.thresholds, curve.model, curve.everyone):
        true = sum(b for a, b in zip(p, y) if a >= t)
        false = sum(1 - b for a, b in zip(p, y) if a >= t)
        assert model == pytest.approx((true - false * t / (1 - t)) / len(y))
        assert everyone == pytest.approx(y.mean() - (1 - y.mean()) * t / (1 - t))
        assert at_threshold(p, y, t).net_benefit == pytest.approx(model)


def test_what_happens_at_a_threshold():
    p, y = np.array([0.9, 0.8, 0.3, 0.2, 0.1]), np.array([1, 0, 1, 0, 0])
    found = at_threshold(p, y, 0.3)
    assert found.sensitivity.value == 1 and found.specificity.value == pytest.approx(2 / 3)
    assert found.positive_value.value == pytest.approx(2 / 3) and found.negative_value.value == 1
    assert sensitive_threshold(p, y, 0.9) == 0.3 and sensitive_threshold(p, y, 0.5) == 0.9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0.05, 1.0))
def test_a_sensitive_threshold_keeps_its_promise(values, wanted):
    p = np.array(values)
    y = np.ones(len(p))
    assert at_threshold(p, y, sensitive_threshold(p, y, wanted)).sensitivity.value >= wanted - 1e-9


@pytest.mark.parametrize(("count", "of"), [(0, 7), (7, 7), (3, 20), (140, 1000)])
def test_shares_have_wilsons_interval(count, of):
    theirs = binomtest(count, of).proportion_ci(0.95, "wilson")
    found = share(count, of)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert not share(0, 0).known


def test_small_parts_are_hidden_and_cannot_be_subtracted():
    p, y = cohort(600)
    names = ["a"] * 300 + ["b"] * 200 + ["c"] * 94 + [None] * 6
    parts = {part.name: part for part in subgroups(p, y, names)}
    assert parts["unknown"].hidden and not parts["unknown"].auroc.known
    assert "unknown" in parts["c"].hidden and (parts["c"].rows, parts["c"].events) == (0, 0)
    assert np.isnan(parts["c"].ratio)
    assert parts["c"].auroc.value == round(roc_auc_score(y[500:594], p[500:594]), 3)
    assert parts["a"].auroc.value == pytest.approx(roc_auc_score(y[:300], p[:300]))
    assert parts["a"].events == int(y[:300].sum()) and parts["b"].rows == 200
    assert parts["a"].ratio == pytest.approx(y[:300].sum() / p[:300].sum())


def test_groups_of_ages_numbers_and_levels():
    assert age_groups(np.array([17, 40, 59.9, 79.5, 99, np.nan])) == [
        "under 18", "40 to 59", "40 to 59", "60 to 79", "80 and over", None,
    ]  # fmt: skip
    assert [v and v[0] for v in thirds(np.array([1.0, 2, 3, np.nan]))] == ["1", "2", "3", None]
    levels = [*("abcdefgh" * 3), "i", "j", None]
    assert set(frequent(levels)) == {*"abcdefg", "other", None}
