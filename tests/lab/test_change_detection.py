"""Welch windows and detectors, against SciPy, closed forms and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from abps.core.errors import RequestError
from abps.lab import change_detection as drift
from abps.lab.change_detection import two_sided_p

numbers = st.floats(-1e3, 1e3)


def alarms(rule: drift.WelchRule, batches: drift.SampleSummary) -> np.ndarray:
    """(rounds, centers) batches -> (rounds, centers) where an alarm was raised."""
    rounds, centers = batches.size.shape
    state, raised = drift.WelchState.start(centers), np.zeros((rounds, centers), bool)
    for r in range(rounds):
        state, raised[r] = drift.grow(rule, state, drift.SampleSummary(*(each[r] for each in batches)))
    return raised


def of(values: np.ndarray) -> drift.SampleSummary:
    return drift.summary(
        [np.mean(values)] if len(values) else [0.0],
        [np.var(values, ddof=1) if len(values) > 1 else 0.0],
        len(values),
    )


def test_student_tails_against_closed_forms() -> None:
    """One and two degrees of freedom have elementary tails; many are the normal law's."""
    t = np.array([1e-6, 0.3, 1.0, 4.0, 50.0])
    root = np.sqrt(2 + t**2)
    normal = [math.erfc(x / math.sqrt(2)) for x in t[:4]]
    np.testing.assert_allclose(two_sided_p(t, 1.0), 2 / np.pi * np.arctan(1 / t), rtol=1e-10)
    np.testing.assert_allclose(two_sided_p(-t, 2.0), 2 / (root * (root + t)), rtol=1e-10)
    np.testing.assert_allclose(two_sided_p(t[:4], 1e12), normal, rtol=1e-9)
    assert two_sided_p([np.inf, -np.inf, 0.0], 3.0).tolist() == [0.0, 0.0, 1.0]


@given(st.lists(numbers, min_size=0, max_size=12), st.lists(numbers, min_size=0, max_size=12))
def test_merged_summaries_equal_the_summary_of_all(a: list[float], b: list[float]) -> None:
    merged, whole = drift.merge(of(np.array(a)), of(np.array(b))), of(np.array(a + b))
    for got, want in zip(merged, whole, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-6)


@given(st.integers(2, 30), st.integers(2, 30), st.floats(0.1, 10), st.integers(0, 10**6))
def test_welch_against_scipy(n: int, m: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 1, n), rng.normal(0.3, scale, m)
    t, freedom = drift.welch(of(a), of(b))
    want = stats.ttest_ind(a, b, equal_var=False)
    assert t[0] == pytest.approx(want.statistic, rel=1e-9)
    assert freedom[0] == pytest.approx(want.df, rel=1e-9)
    assert two_sided_p(t, freedom)[0] == pytest.approx(want.pvalue, rel=1e-8)


@given(st.integers(2, 30), st.integers(2, 30), st.integers(0, 10**6))
def test_the_pooled_test_against_scipy(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 1, n), rng.normal(0.3, 2, m)
    t, freedom = drift.pooled(of(a), of(b))
    want = stats.ttest_ind(a, b, equal_var=True)
    assert t[0] == pytest.approx(want.statistic, rel=1e-9)
    assert freedom[0] == want.df


def test_welch_without_spread() -> None:
    flat, other = of(np.zeros(5)), of(np.ones(5))
    assert drift.welch(flat, flat)[0][0] == 0.0
    assert np.isinf(drift.welch(flat, other)[0][0])


def brute_force_windows(values: np.ndarray, rule: drift.WelchRule) -> list[int]:
    """The window rule on raw values with SciPy's test: the rounds of the alarms."""
    alarms, window, pending, k = [], [], [], 0
    for r, value in enumerate(values):
        pending.append(value)
        if len(pending) < rule.block:
            continue
        if len(window) >= 2:
            k += 1
            level = rule.alpha / (k * (k + 1)) if rule.spend else rule.alpha
            if stats.ttest_ind(window, pending, equal_var=False).pvalue <= level:
                alarms.append(r)
                window, k = [], 0
        window, pending = window + pending, []
    return alarms


@pytest.mark.parametrize("spend", [False, True])
@pytest.mark.parametrize("block", [2, 5, 20])
def test_growing_windows_against_brute_force_on_all_centers_at_once(block: int, spend: bool) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, (200, 12))
    values[100:, ::2] += 1.0
    rule = drift.WelchRule(alpha=0.05, block=block, spend=spend)
    state, seen = drift.WelchState.start(12), [[] for _ in range(12)]
    for r in range(200):
        state, alarm = drift.grow(rule, state, drift.summary(values[r]))
        for c in np.flatnonzero(alarm):
            seen[c].append(r)
    assert seen == [brute_force_windows(values[:, c], rule) for c in range(12)]
    assert any(seen)
    raised = alarms(rule, drift.summary(values))
    assert [np.flatnonzero(raised[:, c]).tolist() for c in range(12)] == seen


def test_rounds_of_patients_and_rounds_without_any() -> None:
    """Batches with their own variance; a center without patients keeps its window."""
    rng = np.random.default_rng(8)
    rule = drift.WelchRule(alpha=0.01)
    state = drift.WelchState.start(2)
    raised = []
    for r in range(40):
        rate = 0.1 if r < 20 else 0.5
        died = rng.random(60) < rate
        present = 60.0 if r != 10 else 0.0
        batch = drift.SampleSummary(
            np.array([died.mean(), 0.3]), np.array([died.var(ddof=1), 0.21]), np.array([present, 60.0])
        )
        before = state
        state, alarm = drift.grow(rule, state, batch)
        raised += [(r, int(c)) for c in np.flatnonzero(alarm)]
        if r == 10:
            assert state.window.size[0] == before.window.size[0]
            assert state.rounds[0] == before.rounds[0]
    assert (20, 0) in raised
    assert all(c == 0 for _, c in raised)


def test_spending_keeps_the_promised_rate_and_no_spending_does_not() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0, 1, (400, 2000))
    rate = {}
    for spend in (False, True):
        rule = drift.WelchRule(alpha=0.05, block=10, spend=spend)
        rate[spend] = alarms(rule, drift.summary(values)).any(axis=0).mean()
    assert rate[True] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
    assert rate[False] > 0.5


def test_a_window_that_is_emptied_begins_with_what_comes_next() -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(0, 1, (60, 3))
    rule = drift.WelchRule(alpha=0.05, block=5)
    state = drift.WelchState.start(3)
    for r in range(30):
        state, _ = drift.grow(rule, state, drift.summary(values[r]))
    state, alone = drift.restart(state, [1]), drift.WelchState.start(3)
    for r in range(30, 60):
        state, _ = drift.grow(rule, state, drift.summary(values[r]))
        alone, _ = drift.grow(rule, alone, drift.summary(values[r]))
    assert state.window.size[1] == alone.window.size[1] < state.window.size[0]
    np.testing.assert_allclose(state.window.mean[1], alone.window.mean[1])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: drift.WelchRule(alpha=0.0), "alpha"),
        (lambda: drift.WelchRule(block=1), "block"),
    ],
)
def test_wrong_requests(make: object, word: str) -> None:
    with pytest.raises(RequestError, match=word):
        make()  # type: ignore[operator]
