"""Clustered differences against the sandwich by matrices, and the chance level of purity by dealing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats.contingency import crosstab

from abps.lab import drift_statistics as divergence


def sandwich(values: np.ndarray, era: np.ndarray, cluster: np.ndarray) -> tuple[float, float, float]:
    """Least squares of the values on the era, with the cluster-robust covariance: difference, t, p."""
    x = np.stack([np.ones(len(values)), era], axis=1).astype(float)
    bread = np.linalg.inv(x.T @ x)
    beta = bread @ x.T @ values
    residual = values - x @ beta
    meat = np.zeros((2, 2))
    names = np.unique(cluster)
    for name in names:
        score = x[cluster == name].T @ residual[cluster == name]
        meat += np.outer(score, score)
    g, n = len(names), len(values)
    covariance = g / (g - 1) * (n - 1) / (n - 2) * bread @ meat @ bread
    t = beta[1] / math.sqrt(covariance[1, 1])
    return beta[1], t, 2 * stats.t.sf(abs(t), g - 1)


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(8, 120))
def test_equals_the_sandwich(seed: int, groups: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, groups, rows)
    cluster[:2] = [0, 1]
    era = rng.random(rows) < 0.4
    era[:4] = [True, False, True, False]
    values = rng.normal(size=rows) + cluster
    found = divergence.clustered_difference(values[era], values[~era], cluster[era], cluster[~era])
    gap, t, p = sandwich(values, era, cluster)
    assert found.difference == pytest.approx(gap) and found.t == pytest.approx(t)
    assert found.p == pytest.approx(p) and found.df == len(np.unique(cluster)) - 1


def test_one_value_per_cluster_is_nearly_welch() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 300), rng.normal(0.2, 2, 400)
    found = divergence.clustered_difference(a, b, np.arange(300), np.arange(300, 700))
    assert found.t == pytest.approx(stats.ttest_ind(a, b, equal_var=False).statistic, rel=0.01)


def test_not_defined() -> None:
    assert math.isnan(divergence.clustered_difference([1.0], [], ["a"], []).p)
    one = divergence.clustered_difference([1.0, 2.0], [3.0, 5.0], ["a", "a"], ["a", "a"])
    assert math.isnan(one.p) and one.clusters == 1
    assert math.isnan(divergence.clustered_difference([1.0, 1.0], [2.0, 2.0], ["a", "b"], ["a", "b"]).p)
    assert (
        list(divergence.deviations([1.0, 2.0, 9.0])) == [1.0, 0.0, 7.0]
        and len(divergence.deviations([])) == 0
    )


def test_purity_by_chance_is_what_shuffled_labels_have() -> None:
    rng = np.random.default_rng(2)
    window = rng.integers(0, 60, 140)
    era = rng.choice(5, 140, p=[0.55, 0.2, 0.15, 0.05, 0.05])
    counts = crosstab(window, era).count
    shuffled = [crosstab(window, rng.permutation(era)).count for _ in range(2_000)]
    dealt = np.mean([(c.max(axis=1) / c.sum(axis=1)).mean() for c in shuffled])
    found = divergence.association(counts)
    assert found.chance_purity == pytest.approx(dealt, abs=0.005)
    assert found.chance_purity > counts.sum(axis=0).max() / counts.sum() + 0.1  # small windows are pure
    assert divergence.association(counts) == found  # the same draws every time
