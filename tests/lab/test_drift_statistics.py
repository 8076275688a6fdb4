"""The statistics of ``abps drift`` against SciPy and against formulas written out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance

from abps.evaluate.verdicts import holm
from abps.lab import drift_statistics as divergence


@given(
    st.lists(st.floats(-500, 500), min_size=2, max_size=40),
    st.lists(st.floats(-500, 500), min_size=2, max_size=40),
)
@settings(max_examples=200, deadline=None)
def test_welch_is_scipys(a: list[float], b: list[float]) -> None:
    mine = divergence.welch(a, b)
    if np.std(a) < 1e-6 or np.std(b) < 1e-6:
        return  # without spread the statistic is rounding error over rounding error
    theirs = stats.ttest_ind(a, b, equal_var=False)
    assert mine.t == pytest.approx(theirs.statistic, rel=1e-8, abs=1e-10)
    assert mine.df == pytest.approx(theirs.df, rel=1e-8)
    assert mine.p == pytest.approx(theirs.pvalue, rel=1e-7, abs=1e-300)


def test_welch_without_spread_or_rows_is_undefined_not_an_error() -> None:
    assert math.isnan(divergence.welch([1.0, 1.0], [1.0, 1.0]).p)
    assert math.isnan(divergence.welch([1.0], [1.0, 2.0]).t)
    empty = divergence.welch([], [1.0, 2.0])
    assert empty.count == (0, 2) and math.isnan(empty.mean[0]) and math.isnan(empty.effect)


def test_outlier_rule_by_hand() -> None:
    x = np.array([10.0] * 30 + [11.0] * 30 + [40.0])
    mean = sum(x) / len(x)
    sd = math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))
    expected = [abs(v - mean) <= 3 * sd for v in x]
    assert divergence.within_deviations(x).tolist() == expected
    assert not expected[-1] and all(expected[:-1])
    assert divergence.within_deviations([5.0]).tolist() == [True]


@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=12))
def test_holm_step_by_step(p: list[float]) -> None:
    adjusted = holm(p)
    left = sorted((v, i) for i, v in enumerate(p) if not math.isnan(v))
    running = 0.0
    for step, (value, i) in enumerate(left):
        running = max(running, min(1.0, (len(left) - step) * value))
        assert adjusted[i] == pytest.approx(running)
    assert np.isnan(adjusted).sum() == len(p) - len(left)


@given(st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=300, deadline=None)
def test_jensen_shannon_is_scipys_distance_squared(p: float, q: float) -> None:
    expected = distance.jensenshannon([p, 1 - p], [q, 1 - q]) ** 2
    expected = 0.0 if math.isnan(expected) else expected
    mine = float(divergence.bernoulli_js(p, q))
    assert mine == pytest.approx(expected, abs=1e-12)
    assert 0.0 <= mine <= math.log(2) + 1e-12
    assert mine == pytest.approx(float(divergence.bernoulli_js(q, p)), abs=1e-15)


def test_jensen_shannon_of_histograms() -> None:
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    assert float(divergence.jensen_shannon(p, q)) == pytest.approx(distance.jensenshannon(p, q) ** 2)
    assert float(divergence.jensen_shannon([1.0, 0.0], [0.0, 1.0])) == pytest.approx(math.log(2))


def test_outcome_divergence_by_enumerating_pairs() -> None:
    rng = np.random.default_rng(3)
    rates, sizes = rng.uniform(0.02, 0.3, 17), rng.integers(40, 900, 17)
    groups = rng.choice(["CVICU", "MICU", "SICU"], 17)
    found = divergence.outcome_divergence(rates, sizes, groups)
    lists: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for i, j in itertools.combinations(range(17), 2):
        js = distance.jensenshannon([rates[i], 1 - rates[i]], [rates[j], 1 - rates[j]]) ** 2
        lists[bool(groups[i] == groups[j])].append((js, (1 / sizes[i] + 1 / sizes[j]) / 8))
    assert found.between == pytest.approx(np.mean([v for v, _ in lists[False]]))
    assert found.within == pytest.approx(np.mean([v for v, _ in lists[True]]))
    assert found.between_noise == pytest.approx(np.mean([n for _, n in lists[False]]))
    assert found.within_noise == pytest.approx(np.mean([n for _, n in lists[True]]))
    assert (found.between_pairs, found.within_pairs) == (len(lists[False]), len(lists[True]))


def test_noise_is_what_centers_of_one_rate_show() -> None:
    rng = np.random.default_rng(1)
    sizes = np.full(400, 309)
    rates = rng.binomial(sizes, 0.1) / sizes
    found = divergence.outcome_divergence(rates, sizes, np.zeros(400))
    assert found.within == pytest.approx(found.within_noise, rel=0.15)
    assert math.isnan(found.between) and found.between_pairs == 0


@given(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=2, max_size=6))
@settings(max_examples=200, deadline=None)
def test_cramers_v_is_scipys(rows: list[list[int]]) -> None:
    table = np.array(rows)
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    found = divergence.association(rows)
    if table.size == 0 or min(table.shape) < 2:
        assert math.isnan(found.v)
        return
    chi2, _, df, _ = stats.chi2_contingency(table, correction=False)
    assert found.v == pytest.approx(stats.contingency.association(table, method="cramer"), abs=1e-9)
    assert found.chi2 == pytest.approx(chi2, abs=1e-8) and found.df == df
    assert 0 <= found.v <= 1 + 1e-9


def test_purity_and_correction_of_independent_labels() -> None:
    rng = np.random.default_rng(8)
    window, era = rng.integers(0, 41, 71_008), rng.choice(5, 71_008, p=[0.336, 0.2, 0.2, 0.164, 0.1])
    found = divergence.association(stats.contingency.crosstab(window, era).count)
    assert found.v == pytest.approx(math.sqrt(160 / 71_008 / 4), rel=0.2)  # what chance alone gives
    assert found.v_corrected < 0.01
    assert found.chance_purity == pytest.approx(0.336, abs=0.01)
