"""The spectrum of scores against derivatives, closed forms, simulation and planted differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from abps.lab.spectrum import (
    Scores,
    directions,
    draws,
    own_intercept,
    p_values,
    score,
    spectrum,
    tracy_widom_sf,
    whitening,
)


def rows(rng, count=120, k=5):
    x = rng.standard_normal((count, k))
    y = (rng.random(count) < 1 / (1 + np.exp(-(x[:, 0] - 1)))).astype(float)
    return x, y


def log_likelihood(z, y):
    return float((y * z - np.logaddexp(0, z)).sum())


def test_the_score_is_the_slope_of_the_profile_likelihood():
    rng = np.random.default_rng(3)
    x, y = rows(rng)
    offset = 0.7 * x[:, 1]

    def profile(step, column):
        z = offset + step * x[:, column]
        found = minimize_scalar(lambda b: -log_likelihood(z + b, y), bracket=(-2, 1), tol=1e-12)
        return -found.fun

    told, _, _ = score(x, y, offset, np.ones((2, len(y))))
    for column in range(x.shape[1]):
        slope = (profile(1e-4, column) - profile(-1e-4, column)) / 2e-4
        assert told[column] == pytest.approx(slope, abs=2e-4)


def test_the_own_intercept_meets_the_outcomes():
    rng = np.random.default_rng(1)
    x, y = rows(rng)
    offset = 3 * x[:, 0]
    p = 1 / (1 + np.exp(-(offset + own_intercept(offset, y))))
    assert p.sum() == pytest.approx(y.sum(), abs=1e-8)


def test_null_draws_have_the_covariance_of_a_sum_of_flipped_residuals():
    rng = np.random.default_rng(5)
    x, y = rows(rng, 60, 3)
    signs = rng.choice([-1.0, 1.0], size=(40_000, len(y)))
    _, null, information = score(x, y, np.zeros(len(y)), signs)
    residual = y - y.mean()  # without an offset the own intercept is the rate
    assert information == pytest.approx(float(residual @ residual))
    centred = x - x.mean(axis=0)
    # The intercept is fitted to flipped outcomes as well, and centred columns do not see it.
    expected = (centred * (residual**2)[:, None]).T @ centred
    assert np.cov(null.T) == pytest.approx(expected, rel=0.06, abs=0.25)
    assert np.abs(null.mean(axis=0)).max() < 0.15


def test_a_center_with_one_outcome_tells_nothing():
    told, null, information = score(np.ones((4, 2)), np.zeros(4), np.zeros(4), np.ones((3, 4)))
    assert not told.any() and not null.any() and information == 0


@pytest.mark.parametrize(("x", "upper"), [(0.9793, 0.05), (2.0234, 0.01), (0.4501, 0.10)])
def test_tracy_widom_has_its_published_quantiles(x, upper):
    assert tracy_widom_sf(np.array(x)) == pytest.approx(upper, abs=0.002)


def test_p_values_of_gaussian_noise_are_uniform():
    rng = np.random.default_rng(11)
    found = []
    for _ in range(300):
        z = rng.standard_normal((9, 60, 30))
        largest = np.array([np.linalg.svd(m, compute_uv=False)[0] ** 2 for m in z])
        found.append(p_values(largest[:1], largest[1:], 60, 30)[0])
    found = np.array(found)
    assert 0.02 <= (found < 0.05).mean() <= 0.09
    assert 0.40 <= (found < 0.5).mean() <= 0.60


def told_by(rng, n=50, k=12, count=None, planted=None, mixing=None):
    """Scores of n unequal centers with correlated columns; planted: (n, k) their true differences."""
    count = draws(n) if count is None else count
    information = rng.uniform(8, 40, n)
    mixing = np.eye(k) + 0.3 * np.tri(k) if mixing is None else mixing
    noise = rng.standard_normal((n, count + 1, k)) @ mixing.T * np.sqrt(information)[:, None, None]
    real = noise[:, 0]
    if planted is not None:
        real = real + information[:, None] * (planted @ mixing @ mixing.T)
    return Scores(real, noise[:, 1:], information)


def test_false_positives_are_as_rare_as_promised():
    rng = np.random.default_rng(2)
    found = [spectrum(told_by(rng)).p for _ in range(300)]
    assert 0.02 <= np.mean(np.array(found) < 0.05) <= 0.085


def test_two_planted_dimensions_are_found_with_their_columns():
    rng = np.random.default_rng(7)
    truth = np.zeros((60, 12))
    truth[:, 3], truth[:, 8] = rng.choice([-0.7, 0.7], 60), rng.normal(0, 0.6, 60)
    seen = spectrum(told_by(rng, 60, planted=truth, mixing=np.eye(12)))
    assert seen.p < 1e-4 and seen.dimensions == 2
    assert set(np.argsort(-seen.loading)[:2]) == {3, 8}
    assert seen.loading.sum() == pytest.approx(1)
    # Positions are the truth up to a rotation, with errors of variance 1 / information.
    centred = truth[:, [3, 8]] - np.average(truth[:, [3, 8]], axis=0, weights=seen.information)
    turn, *_ = np.linalg.lstsq(seen.position, centred, rcond=None)
    error = (seen.position @ turn - centred) * np.sqrt(seen.information)[:, None]
    assert error.std() == pytest.approx(1, abs=0.25)


def test_what_all_have_in_common_is_no_difference():
    rng = np.random.default_rng(9)
    shift = np.tile(rng.normal(0, 2, 12), (50, 1))
    assert spectrum(told_by(rng, planted=shift)).p > 0.05


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_order_of_centers_and_rotations_of_columns_mean_nothing(seed):
    rng = np.random.default_rng(seed)
    told = told_by(rng, 20, 6, 10, planted=rng.normal(0, 0.5, (20, 6)))
    seen = spectrum(told)
    order, (turn, _) = rng.permutation(20), np.linalg.qr(rng.standard_normal((6, 6)))
    other = spectrum(Scores(told.score[order] @ turn, told.null[order] @ turn, told.information[order]))
    assert other.p == pytest.approx(seen.p, rel=1e-6, abs=1e-12)
    assert other.dimensions == seen.dimensions
    gaps = [np.linalg.norm(s[:, None] - s[None], axis=2) for s in (seen.position[order], other.position)]
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-6)


def test_silent_centers_stand_at_zero_and_change_nothing():
    rng = np.random.default_rng(4)
    told = told_by(rng, 30, 6, planted=rng.normal(0, 0.6, (30, 6)))
    more = Scores(*(np.concatenate([part, np.zeros((2, *part.shape[1:]))]) for part in vars(told).values()))
    seen, other = spectrum(told), spectrum(more)
    assert other.p == seen.p and not other.position[30:].any()


def test_too_few_centers_are_no_evidence():
    rng = np.random.default_rng(4)
    assert spectrum(told_by(rng, 7, 4, planted=rng.normal(0, 9, (7, 4)))).p == 1


def test_whitening_makes_noise_round_and_leaves_dim_directions_out():
    rng = np.random.default_rng(0)
    base = rng.standard_normal((6, 6))
    covariance = base @ base.T
    covariance[:, 5] = covariance[5] = 0
    turned = whitening(covariance, directions(covariance, 10_000))
    assert turned.shape[1] < 6
    assert turned.T @ covariance @ turned == pytest.approx(np.eye(turned.shape[1]), abs=1e-9)
    assert directions(covariance, 16) == 2


def test_few_draws_do_not_find_what_is_not_there():
    """The scores are looked at in no more directions than the draws that they are compared with."""
    rng = np.random.default_rng(8)
    mix = rng.standard_normal((60, 60)) * np.exp(0.5 * rng.standard_normal(60))
    found = []
    for _ in range(60):
        noise = rng.standard_normal((40, 9, 60)) @ mix
        found.append(spectrum(Scores(noise[:, 0], noise[:, 1:], np.ones(40))).p)
    assert np.mean(np.array(found) < 0.05) <= 0.12 and 0.3 < np.median(found) < 0.75
