"""Beta beliefs: the sparse store against a dense one, and the paper's closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.core.beliefs import Beliefs

N = 6
pair = st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)).filter(lambda p: p[0] != p[1])
observation = st.tuples(pair, st.floats(0, 1))
batch = st.lists(observation, max_size=12)


def dense(prior, batches):
    alpha, beta, count = np.full((N, N), prior[0]), np.full((N, N), prior[1]), np.zeros((N, N))
    for observations in batches:
        for (i, j), v in observations:
            alpha[i, j] += v
            beta[i, j] += 1 - v
            count[i, j] += 1
    return alpha, beta, count


@settings(max_examples=60)
@given(st.lists(batch, max_size=5), st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)))
def test_the_sparse_store_equals_a_dense_one(batches, prior):
    beliefs = Beliefs(N, prior)
    for observations in batches:
        i = [p[0] for p, _ in observations]
        j = [p[1] for p, _ in observations]
        beliefs = beliefs.observe(i, j, [v for _, v in observations])
    alpha, beta, count = dense(prior, batches)
    got = beliefs.posterior(np.arange(N)[:, None], np.arange(N)[None, :])
    np.testing.assert_allclose(got.alpha, alpha)
    np.testing.assert_allclose(got.beta, beta)
    np.testing.assert_array_equal(got.count, count)
    assert len(beliefs.key) == (count > 0).sum()


def test_posterior_mean_is_the_closed_form_of_theorem_1():
    phi = np.array([0.2, 0.9, 0.5, 0.55])
    beliefs = Beliefs(3, (2.0, 3.0))
    for value in phi:
        beliefs = beliefs.observe([0], [1], [value])
    mean = beliefs.posterior(0, 1).mean
    assert mean == pytest.approx((2 + phi.sum()) / (5 + len(phi)))


def test_an_undefined_utility_leaves_the_belief_as_it_was():
    before = Beliefs(3).observe([0], [1], [0.7])
    after = before.observe([0, 0], [1, 2], [np.nan, np.nan])
    assert len(after.key) == 1
    assert after.posterior(0, 1).count == 1


def test_observing_is_pure():
    before = Beliefs(3).observe([0], [1], [0.7])
    gain = before.gain.copy()
    before.observe([0, 1], [1, 2], [0.1, 0.2])
    assert (before.gain == gain).all() and len(before.key) == 1


@pytest.mark.parametrize(
    ("i", "j", "v"), [([0], [0], [0.5]), ([0], [3], [0.5]), ([0], [1], [1.1]), ([-1], [1], [0.1])]
)
def test_nonsense_is_refused(i, j, v):
    with pytest.raises(ValueError):
        Beliefs(3).observe(i, j, v)


def test_memory_grows_with_observations_not_with_pairs():
    n = 100_000
    beliefs = Beliefs(n).observe(np.arange(n), (np.arange(n) + 1) % n, np.full(n, 0.5))
    stored = sum(a.nbytes for a in (beliefs.key, beliefs.gain, beliefs.loss, beliefs.count))
    assert stored == 32 * n
    assert beliefs.posterior([5, 5], [6, 7]).count.tolist() == [1, 0]
