"""The crossed design against closed forms, dense algebra and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from abps.evaluate.crossed import BALANCE, crossed


def drawn(rng, center, seed, rest, seeds, centers, absent=0.0):
    values = rng.normal(0, center, centers) + rng.normal(0, seed, (seeds, 1))
    values = values + rng.normal(0, rest, (seeds, centers))
    values[rng.random(values.shape) < absent] = np.nan
    return values


@given(st.integers(2, 6), st.integers(2, 12), st.integers(0, 10**6))
def test_a_full_table_gives_the_textbook_mean_squares(seeds: int, centers: int, seed: int) -> None:
    values = drawn(np.random.default_rng(seed), 0.05, 0.02, 0.04, seeds, centers)
    a = seeds * ((values.mean(axis=0) - values.mean()) ** 2).sum() / (centers - 1)
    b = centers * ((values.mean(axis=1) - values.mean()) ** 2).sum() / (seeds - 1)
    left = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
    e = (left**2).sum() / ((seeds - 1) * (centers - 1))
    found = crossed(values)
    factor, kept = BALANCE[min(seeds, 5)]
    assert found.mean == pytest.approx(values.mean())
    assert (found.center_freedom, found.seed_freedom) == (centers - 1, seeds - 1)
    assert found.rest == pytest.approx(e)
    assert found.center == pytest.approx(max(a - e, 0) / seeds, abs=1e-15)
    assert found.seed == pytest.approx(max(b - e, 0) / centers, abs=1e-15)
    t = stats.t.isf(0.025, [centers - 1, seeds - 1])
    square = (factor * t[0]) ** 2 * a + t[1] ** 2 * max(b - kept * e, 0)
    assert found.half_width(0.95) == pytest.approx(math.sqrt(square / (seeds * centers)))


@given(st.integers(2, 5), st.integers(3, 10), st.integers(0, 10**6))
def test_empty_cells_give_what_dense_projections_give(seeds: int, centers: int, seed: int) -> None:
    """Components by traces and projections of the whole design, with nothing absorbed."""
    values = drawn(np.random.default_rng(seed), 0.05, 0.02, 0.04, seeds, centers, 0.25)
    found = crossed(values)
    values = values[np.isfinite(values).any(axis=1)][:, np.isfinite(values).any(axis=0)]
    s, c = np.nonzero(np.isfinite(values))
    y, (rows, columns) = values[s, c], values.shape
    zs, zc = np.eye(rows)[s], np.eye(columns)[c]

    def off(x):  # the part of everything that the columns of x do not explain
        return np.eye(len(y)) - x @ np.linalg.pinv(x)

    both = off(np.hstack([zs, zc]))
    freedom = round(np.trace(both))
    if freedom < 1 or np.trace(off(zc) - both) < 0.5 or np.trace(off(zs) - both) < 0.5:
        assert math.isnan(found.half_width(0.95))
        return
    rest = y @ both @ y / freedom
    for z, other, got in ((zs, zc, found.seed), (zc, zs, found.center)):
        form = off(other) - both
        component = (y @ form @ y - round(np.trace(form)) * rest) / np.trace(z.T @ form @ z)
        assert got == pytest.approx(max(component, 0.0), abs=1e-12)
    assert found.rest == pytest.approx(rest)
    assert found.mean == pytest.approx(np.nanmean(values, axis=1).mean())


@pytest.mark.parametrize("seeds", [2, 3, 4, 5, 8])
def test_p_is_the_level_at_which_the_interval_touches_zero(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    for shift in (0.0, 0.01, 0.05, 0.3):
        found = crossed(shift + drawn(rng, 0.02, 0.01, 0.04, seeds, 20, 0.1))
        if 1e-12 < found.p < 1:
            assert found.half_width(1 - found.p) == pytest.approx(abs(found.mean), rel=1e-4)
        assert (found.p < 0.05) == (abs(found.mean) > found.half_width(0.95))


def test_what_cannot_be_known_has_no_interval() -> None:
    one_seed = crossed(np.array([[0.1, 0.2, 0.3]]))
    assert one_seed.mean == pytest.approx(0.2)
    assert math.isnan(one_seed.half_width(0.95)) and math.isnan(one_seed.p)
    assert math.isnan(crossed(np.array([[0.1], [0.2]])).half_width(0.95))  # one center
    apart = np.array([[0.1, 0.2, np.nan, np.nan], [np.nan, np.nan, 0.3, 0.1]])  # no center has two scores
    assert math.isnan(crossed(apart).half_width(0.95))
    assert crossed(np.full((2, 3), np.nan)).seeds == 0
    equal = crossed(np.zeros((3, 4)))
    assert (equal.half_width(0.95), equal.p) == (0.0, 1.0)


#: Standard deviations of center effect, seed effect and rest; centers: what studies show.
SETTINGS = [
    (0.0, 0.0024, 0.036, 99), (0.011, 0.0, 0.041, 99), (0.0, 0.0022, 0.036, 230), (0.038, 0.009, 0.033, 29),
    (0.05, 0.01, 0.09, 15), (0.05, 0.01, 0.05, 4), (0.01, 0.007, 0.05, 230), (0.005, 0.008, 0.03, 230),
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("seeds", [2, 5])
def test_false_positives_are_about_one_in_twenty(setting, seeds: int) -> None:
    """3 to 7 %, with room for 1500 draws; benchmarks/false_positives.py measures it sharply."""
    rng = np.random.default_rng(17)
    draws = 1500
    wrong = 0
    for _ in range(draws):
        found = crossed(drawn(rng, *setting[:3], seeds, setting[3]))
        wrong += abs(found.mean) > found.half_width(0.95)
    room = 2 * math.sqrt(0.05 * 0.95 / draws)
    assert 0.03 - room <= wrong / draws <= 0.07 + room
