"""The belief of abps-plus against a Gaussian posterior computed the long way round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from abps.core.usefulness import (
    Expectation,
    Experience,
    Returns,
    auroc_se,
    believe,
    closeness,
    cosines,
    inconsistency,
    normal_cdf,
    standardised,
)

ONE_TAU = Expectation(spreads=(0.05,))


def features_of(n: int, k: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        np.array([standardised(rng.standard_normal((n, n))) for _ in range(k)])
        .reshape(k, n, n)
        .transpose(1, 2, 0)
    )


def experience_of(n: int, count: int, seed: int = 1) -> Experience:
    rng = np.random.default_rng(seed)
    center = rng.integers(0, n, count)
    peer = (center + rng.integers(1, n, count)) % n
    diary = Experience.none()
    for t in range(1, 4):
        here = slice(count * (t - 1) // 3, count * t // 3)
        size = len(center[here])
        diary = diary.observe(
            center[here], peer[here], t, rng.uniform(0.4, 0.9, size), rng.uniform(0.03, 0.1, size)
        )
    return diary


def long_way(features, slopes, diary, now, expect, tau, i):
    """Center i's posterior mean and deviation of every peer, by conditioning one joint normal distribution
    of all utilities, level, trend and slopes on the observations."""
    n, k = features.shape[0], features.shape[2]
    size = 2 + k + n  # level, trend, slopes, and every peer's own part
    mean = np.concatenate([[expect.level, 0.0], slopes, np.zeros(n)])
    cov = np.diag([expect.level_sd**2, expect.trend_sd**2] + [expect.slope_sd**2] * k + [tau**2] * n)
    mine = np.flatnonzero(diary.center == i)
    rows = np.zeros((len(mine), size))
    for r, o in enumerate(mine):
        j, age = diary.peer[o], now - diary.round[o]
        rows[r, 0], rows[r, 1], rows[r, 2 : 2 + k], rows[r, 2 + k + j] = 1, -age / 10, features[i, j], 1
    noise = np.diag(expect.own_error * diary.se[mine] ** 2 + (expect.ageing * (now - diary.round[mine])) ** 2)
    gain = cov @ rows.T @ np.linalg.inv(rows @ cov @ rows.T + noise)
    after = mean + gain @ (diary.value[mine] - rows @ mean)
    left = cov - gain @ rows @ cov
    show = np.zeros((n, size))
    show[:, 0], show[:, 2 : 2 + k] = 1, features[i]
    show[np.arange(n), 2 + k + np.arange(n)] = 1
    return show @ after, np.sqrt(np.einsum("jk,kl,jl->j", show, left, show))


@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_the_posterior_is_the_conditional_normal_distribution(k, count):
    n, now = 6, 9
    features, slopes, diary = features_of(n, k), np.linspace(0.01, 0.05, k), experience_of(n, count)
    found = believe(features, slopes, diary, now, ONE_TAU)
    for i in range(n):
        mean, sd = long_way(features, slopes, diary, now, ONE_TAU, 0.05, i)
        others = np.arange(n) != i
        np.testing.assert_allclose(found.mean[i, others], mean[others].clip(0.02, 0.98), atol=1e-9)
        np.testing.assert_allclose(found.sd[i, others], sd[others], atol=1e-8)


def test_the_grid_is_weighted_by_marginal_likelihood():
    n, now = 5, 4
    features, diary = features_of(n, 1), experience_of(n, 40)
    grid = believe(features, np.array([0.02]), diary, now, Expectation(spreads=(0.01, 0.1)))
    scores, means = [], []
    for tau in (0.01, 0.1):
        one = Expectation(spreads=(tau,))
        means.append(believe(features, np.array([0.02]), diary, now, one).mean)
        mine = np.flatnonzero(diary.center == 0)
        age = now - diary.round[mine]
        rows = np.column_stack([np.ones(len(mine)), -age / 10, features[0, diary.peer[mine], 0]])
        cov = rows @ np.diag([one.level_sd**2, one.trend_sd**2, one.slope_sd**2]) @ rows.T
        cov += tau**2 * (diary.peer[mine][:, None] == diary.peer[mine][None, :])
        cov += np.diag(one.own_error * diary.se[mine] ** 2 + (one.ageing * age) ** 2)
        expected = rows @ np.array([one.level, 0.0, 0.02])
        scores.append(stats.multivariate_normal(expected, cov).logpdf(diary.value[mine]))
    share = np.exp(scores - np.max(scores))
    share /= share.sum()
    np.testing.assert_allclose(grid.mean[0], share[0] * means[0][0] + share[1] * means[1][0], atol=1e-9)
    assert grid.spread[0] == pytest.approx(share @ [0.01, 0.1])


def test_one_observation_informs_similar_peers_and_no_others_experience_counts():
    features = np.zeros((4, 4, 1))
    features[0, :, 0] = [0.0, 1.5, 1.4, -1.5]
    nothing = believe(features, np.array([0.0]), Experience.none(), 1, Expectation())
    one = np.array([0]), np.array([1]), 1, np.array([0.9]), np.array([0.03])
    after = believe(features, np.array([0.0]), Experience.none().observe(*one), 1, Expectation())
    rise = after.mean[0] - nothing.mean[0]
    assert rise[1] > rise[2] > rise[3]
    np.testing.assert_array_equal(after.mean[1:], nothing.mean[1:])
    assert after.prior_mean[0, 1] < after.mean[0, 1]  # what was measured of the peer itself comes on top


def test_an_undefined_measurement_says_nothing():
    diary = Experience.none().observe(
        np.array([0, 1]), np.array([1, 0]), 1, np.array([np.nan, 0.7]), np.array([0.1, np.nan])
    )
    assert len(diary.center) == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40), st.integers(1, 5))
def test_the_latest_observations_of_each_center_are_kept_in_order(pairs, most):
    diary = Experience.none()
    for t, (i, j) in enumerate(pairs):
        diary = diary.observe(np.array([i]), np.array([j]), t, np.array([0.5]), np.array([0.1]))
    found = diary.by_center(5, most)
    for i in range(5):
        own = [o for o, (c, _) in enumerate(pairs) if c == i][-most:]
        assert [o for o in found[i].tolist() if o >= 0] == own


@given(st.floats(0.05, 0.95), st.integers(1, 60), st.integers(1, 300))
def test_hanley_and_mcneils_error_lies_between_its_known_bounds(auroc, positives, negatives):
    se = float(auroc_se(auroc, positives, negatives))
    least = np.sqrt(auroc * (1 - auroc) / (positives * negatives))
    assert least * 0.999 <= se <= np.sqrt(auroc * (1 - auroc) / min(positives, negatives)) * 1.001


def test_the_normal_distribution_and_the_beta_of_the_same_moments():
    z = np.linspace(-6, 6, 201)
    np.testing.assert_allclose(normal_cdf(z), stats.norm.cdf(z), atol=2e-7)
    found = believe(features_of(4, 1), np.array([0.02]), experience_of(4, 12), 5, Expectation())
    alpha, beta = found.beta()
    np.testing.assert_allclose(stats.beta.mean(alpha, beta), found.mean, atol=1e-9)
    np.testing.assert_allclose(stats.beta.std(alpha, beta), found.sd, atol=1e-6)
    even = np.full(4, 0.6)
    wanted = [
        stats.norm.expect(lambda u: max(u - 0.6, 0.0), loc=found.mean[0, j], scale=found.sd[0, j])
        for j in range(4)
    ]
    np.testing.assert_allclose(found.expected_gain(even)[0], wanted, atol=1e-5)


def test_inconsistency_is_cochrans_share_and_zero_where_centers_are_alike():
    rng = np.random.default_rng(0)
    variances = rng.uniform(0.02, 0.2, 400)
    noise = rng.standard_normal((400, 20)) * np.sqrt(variances)[:, None]
    assert inconsistency(noise, variances) < 0.03
    differ = noise + rng.standard_normal((400, 20)) * np.sqrt(variances.mean())
    assert 0.4 < inconsistency(differ, variances) < 0.7
    one = rng.standard_normal((3, 1))
    weight = 1 / variances[:3]
    q = (weight * (one[:, 0] - (weight * one[:, 0]).sum() / weight.sum()) ** 2).sum()
    assert inconsistency(one, variances[:3]) == pytest.approx(max(0.0, 1 - 2 / q))
    assert inconsistency(np.zeros((5, 3)), np.ones(5)) == 0.0


def test_likenesses():
    vectors = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [0.0, 0.0]])
    like = cosines(vectors)
    assert like[0, 1] > 0.9 and like[0, 2] < -0.9 and (like[3] == 0).all()
    close = closeness(vectors)
    assert close[0, 1] > close[0, 2] and np.allclose(close, close.T)
    z = standardised(close)
    off = ~np.eye(4, dtype=bool)
    for i in range(4):
        assert abs(z[i][off[i]].mean()) < 1e-12 and z[i][off[i]].std() == pytest.approx(1.0)


@given(
    st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=30),
    st.floats(0.001, 0.1),
    st.floats(0.001, 0.05),
)
def test_doubt_follows_the_closed_form(gains, se, spread):
    """A normal prior and normal gains whose row errors partly stay: checked against SciPy's distribution."""
    returns = Returns.none(1)
    for gain in gains:
        returns = returns.observe(np.array([True]), np.array([gain]), np.array([se]))
    m = len(gains)
    error = se**2 * (0.2 + 0.8 / m) + 0.02**2 / m
    mean = np.mean(gains) * spread**2 / (spread**2 + error)
    sd = np.sqrt(spread**2 * error / (spread**2 + error))
    want = max(0.0, 2 * stats.norm.cdf(-mean / sd) - 1)
    assert returns.doubt(spread, 0.02)[0] == pytest.approx(want, abs=1e-5)


def test_returns_count_only_mixes_that_say_something():
    returns = Returns.none(3).observe(
        np.array([True, False, True]), np.array([-0.1, -0.1, np.nan]), np.full(3, 0.01)
    )
    assert returns.meetings.tolist() == [1, 0, 0] and returns.gain.tolist() == [-0.1, 0, 0]
    assert returns.doubt(0.01, 0.02)[1:].tolist() == [0, 0]
