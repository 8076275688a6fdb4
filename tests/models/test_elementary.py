"""Elementary functions in single precision against double precision."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, ndtri

from abps.models.native import elementary

#: A few units in the last place.
CLOSE = 4 * float(np.finfo(np.float32).eps)


def each(function, x):
    return np.array([function(value) for value in x.astype(np.float32)])


@pytest.mark.parametrize(
    "name, x",
    [
        ("exp", np.linspace(-87, 88, 4001)),
        ("log", np.exp(np.linspace(-87, 87, 4001))),
        ("log", np.linspace(0.5, 2, 4001)),
        ("log1p", np.exp(np.linspace(-87, 21, 4001))),
        ("log1p", np.linspace(0, 3, 4001)),
    ],
)
def test_functions_are_numpys_in_double_precision(name, x) -> None:
    single = x.astype(np.float32)
    wanted = getattr(np, name)(single.astype(np.float64))
    np.testing.assert_allclose(each(getattr(elementary, name), single), wanted, rtol=CLOSE)


def test_exp_ends_where_floats_do() -> None:
    ends = each(elementary.exp, np.array([-1e6, -88.0, 89.0, 1e6]))
    assert np.isfinite(ends).all() and (ends[:2] < 2e-38).all() and (ends[2:] > 1e38).all()


def test_softplus_and_its_slope() -> None:
    x = np.linspace(-80, 200, 4001).astype(np.float32)
    found = each(elementary.softplus, x)
    double = x.astype(np.float64)
    np.testing.assert_allclose(found[:, 0], np.logaddexp(0, double), rtol=CLOSE)
    np.testing.assert_allclose(found[:, 1], expit(double), rtol=CLOSE)


def test_normal_is_the_quantile_of_a_words_part() -> None:
    rng = np.random.default_rng(0)
    low, high = np.arange(0, 2**16, 64), 2**32 - 1 - np.arange(0, 2**16, 64)  # far out in both tails
    words = np.concatenate([rng.integers(0, 2**32, 4000), low, high]).astype(np.uint32)
    found = np.array([elementary.normal(word) for word in words])
    np.testing.assert_allclose(found, ndtri(((words >> 8) + 0.5) / 2**24), rtol=CLOSE, atol=CLOSE)
    assert np.abs(found).max() < 5.5
