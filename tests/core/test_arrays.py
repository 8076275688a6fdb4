"""Arithmetic on rows of weights, against PyTorch's and against double precision."""

import numpy as np
import pytest
import torch

from abps.core.arrays import compact, lerp, repeated, weighted_sum

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_lerp_is_pytorchs_to_the_last_bit(weight):
    a, b = RNG.normal(size=(2, 3, 1000)).astype(np.float32)
    wanted = torch.lerp(torch.from_numpy(a), torch.from_numpy(b), weight).numpy()
    np.testing.assert_array_equal(lerp(a, b, weight), wanted)


def test_lerp_takes_a_weight_for_every_row():
    a, b = RNG.normal(size=(2, 3, 50)).astype(np.float32)
    weights = np.array([0.0, 0.25, 1.0], dtype=np.float32)
    found = lerp(a, b, weights[:, None])
    np.testing.assert_array_equal(found[[0, 2]], [a[0], b[2]])
    np.testing.assert_allclose(found[1], 0.75 * a[1] + 0.25 * b[1], rtol=1e-5, atol=1e-6)


def test_a_weighted_sum_is_that_of_double_precision_but_for_rounding():
    rows, weights = RNG.normal(size=(40, 300)).astype(np.float32), RNG.random(40).astype(np.float32)
    wanted = weights.astype(np.float64) @ rows.astype(np.float64)
    np.testing.assert_allclose(weighted_sum(weights, rows), wanted, rtol=1e-5, atol=1e-5)


def test_a_repeated_row_takes_no_memory_and_compact_makes_it_writable():
    row = np.arange(4, dtype=np.float32)
    many = repeated(row, 3)
    assert many.shape == (3, 4) and np.shares_memory(many, row) and not many.flags.writeable
    own = compact(many)
    assert own.flags.writeable and own.flags.c_contiguous and np.array_equal(own, many)
