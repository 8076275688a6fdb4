"""Shapley values against brute force over permutations, and their axioms."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from abps.core.credit import clip_affine, sampled_shapley, shapley


def brute_force(utility):
    k = len(utility).bit_length() - 1
    total = np.zeros(k)
    orders = list(itertools.permutations(range(k)))
    for order in orders:
        mask = 0
        for p in order:
            total[p] += utility[mask | 1 << p] - utility[mask]
            mask |= 1 << p
    return total / len(orders)


games = st.integers(1, 5).flatmap(lambda k: hnp.arrays(np.float64, 1 << k, elements=st.floats(0, 1)))


@given(games)
def test_exact_values_equal_brute_force_and_add_up(utility):
    values = shapley(utility)
    np.testing.assert_allclose(values, brute_force(utility), atol=1e-12)
    assert values.sum() == pytest.approx(utility[-1] - utility[0])


def test_many_games_at_once():
    rng = np.random.default_rng(0)
    table = rng.random((7, 3, 8))
    got = shapley(table)
    for a in range(7):
        for b in range(3):
            np.testing.assert_allclose(got[a, b], brute_force(table[a, b]))


@given(st.integers(2, 5).flatmap(lambda k: hnp.arrays(np.float64, 1 << k, elements=st.floats(0, 1))))
def test_sampling_all_permutations_without_truncation_is_exact(utility):
    k = len(utility).bit_length() - 1
    orders = np.array(list(itertools.permutations(range(k))))
    got = sampled_shapley(orders, lambda masks: utility[masks], tolerance=-1.0)
    np.testing.assert_allclose(got, shapley(utility), atol=1e-12)


def test_truncation_saves_questions_and_keeps_efficiency_within_tolerance():
    k, asked = 8, []
    rng = np.random.default_rng(3)
    worth = np.array([0.2, 0.1, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0])

    def utility(masks):
        asked.extend(masks)
        return np.array([0.5 + sum(worth[p] for p in range(k) if m >> p & 1) for m in masks])

    orders = np.stack([rng.permutation(k) for _ in range(8)])
    values = sampled_shapley(orders, utility, tolerance=1e-3)
    assert len(asked) == len(set(asked)) < 8 * k
    np.testing.assert_allclose(values, worth, atol=1e-9)


def test_the_clip():
    np.testing.assert_allclose(clip_affine([-1, -0.1, 0, 0.05, 0.1, 1]), [0, 0, 0.5, 0.75, 1, 1], atol=1e-12)
    assert clip_affine([-0.2, 0.3]).tolist() == [0, 1]
    assert np.isnan(clip_affine([np.nan])).all()
