"""Gains of centers with the noise taken out: against draws and truths that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from abps.evaluate.shrinkage import _prior_freedom, center_gains


def table(rng, true, noise, seeds):
    return true + rng.normal(0, 1, (seeds, len(true))) * noise


def test_mean_quantiles_and_probabilities_belong_to_one_law() -> None:
    rng = np.random.default_rng(3)
    found = center_gains(table(rng, rng.normal(0.02, 0.05, 40), 0.04, 4))
    for share in (0.025, 0.5, 0.9):
        at = found.quantile(share)
        each = [found.below(limit)[k] for k, limit in enumerate(at)]
        np.testing.assert_allclose(each, share, atol=1e-9)
    for k in range(3):
        which = rng.choice(found.weight.shape[1], 20_000, p=found.weight[k])
        drawn = rng.normal(found.middle[k, which], found.spread[k, which])
        assert drawn.mean() == pytest.approx(found.mean[k], abs=0.002)
        assert np.quantile(drawn, 0.9) == pytest.approx(found.quantile(0.9)[k], abs=0.003)


def test_a_gain_that_all_share_harms_nobody_however_noisy_the_scores() -> None:
    rng = np.random.default_rng(1)
    raw, expected = [], []
    for _ in range(20):
        found = center_gains(table(rng, np.full(99, 0.076), 0.12, 5))
        raw.append((found.raw < -0.02).sum())
        expected.append(found.below(-0.02).sum())
    assert np.mean(raw) > 2 and np.mean(expected) < 0.5


def test_no_effect_at_all_is_not_a_third_of_harmed_centers() -> None:
    rng = np.random.default_rng(2)
    raw, expected = [], []
    for _ in range(20):
        found = center_gains(table(rng, np.zeros(99), 0.12, 5))
        raw.append((found.raw < -0.02).mean())
        expected.append(found.below(-0.02).mean())
    assert np.mean(raw) > 0.3 and np.mean(expected) < 0.05


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_three_hospitals_that_differ_are_found_and_nobody_else(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    true = np.full(30, 0.05)
    true[:3] = -0.3
    for _ in range(10):
        found = center_gains(table(rng, true, 0.05, seeds))
        assert set(np.argsort(found.mean)[:3]) == {0, 1, 2}
        assert (found.quantile(0.975)[:3] < 0).all()
        assert 2.5 < found.below(-0.02).sum() < 4.5
        np.testing.assert_allclose(found.mean[:3], -0.3, atol=0.15)


def test_expected_harm_matches_the_truth_where_gains_differ() -> None:
    rng = np.random.default_rng(5)
    told, truth, inside = [], [], []
    for _ in range(25):
        true = rng.normal(0.02, 0.04, 120)
        found = center_gains(table(rng, true, 0.05 * np.exp(rng.normal(0, 0.3, 120)), 5))
        told.append(found.below(-0.02).sum())
        truth.append((true < -0.02).sum())
        inside.append(((found.quantile(0.025) <= true) & (true <= found.quantile(0.975))).mean())
    assert np.mean(told) == pytest.approx(np.mean(truth), rel=0.25)
    assert 0.90 <= np.mean(inside) <= 0.99


def test_centers_without_a_score_and_tables_without_noise() -> None:
    rng = np.random.default_rng(6)
    values = table(rng, np.zeros(12), 0.05, 3)
    values[:, 4] = np.nan
    values[1:, 5] = np.nan
    found = center_gains(values)
    assert np.isnan(found.mean[4]) and found.seeds[4] == 0
    assert found.seeds[5] == 1 and found.error[5] > np.median(found.error[:4])
    assert center_gains(values[:1]) is None
    still = center_gains(np.full((3, 5), 0.1))
    np.testing.assert_allclose(still.mean, 0.1)
    assert (still.below(0.0) == 0).all()


def test_the_common_variance_is_worth_much_if_centers_are_alike_and_little_if_not() -> None:
    rng = np.random.default_rng(7)
    freedom = np.full(2000, 4)
    alike = stats.chi2.rvs(4, size=2000, random_state=rng)
    assert _prior_freedom(alike, freedom) > 60
    own = 6 / stats.chi2.rvs(6, size=2000, random_state=rng)  # variances drawn with six degrees of freedom
    assert _prior_freedom(alike * own, freedom) == pytest.approx(6.0, rel=0.25)
