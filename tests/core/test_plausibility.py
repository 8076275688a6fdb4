"""What can be a model: finite, and not many times farther from the common start than the own one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abps.core.arrays import FARTHEST, distances, plausible


def test_distances_are_norms_and_columns_beyond_the_start_begin_at_zero():
    rng = np.random.default_rng(0)
    models = rng.normal(size=(4, 6)).astype(np.float32)
    start = rng.normal(size=9).astype(np.float32)
    np.testing.assert_allclose(
        distances(models, start), np.linalg.norm(models - start[:6], axis=1), rtol=1e-6
    )
    padded = np.concatenate([start[:4], [0, 0]]).astype(np.float32)
    np.testing.assert_allclose(
        distances(models, start[:4]), np.linalg.norm(models - padded, axis=1), rtol=1e-6
    )


def test_no_numbers_are_no_model():
    models = np.array([[np.nan, 0.0], [np.inf, 1.0], [3e38, 3e38], [0.1, 0.1]], dtype=np.float32)
    far = distances(models, np.zeros(2, dtype=np.float32))
    assert plausible(far, np.full(4, 0.1)).tolist() == [False, False, False, True]


@given(st.floats(1e-6, 1e6), st.floats(0.0, 100.0))
def test_the_limit_is_a_ratio(own, times):
    seen = plausible(np.array([times * own]), np.array([own]))[0]
    assert seen == (times * own <= FARTHEST * own + 1e-12)
