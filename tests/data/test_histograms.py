"""Common scales from sums of counts: near what all rows give, exact where only the sum is seen, and noisy by
the stated amount."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.core.streams import center_ids
from abps.data.scales import (
    FIRST,
    PASSES,
    PROBABILITIES,
    HistogramSum,
    bin_counts,
    counts_size,
    published_counts,
    sum_histograms,
)

NAMES = ("normal", "ph", "lactate", "huge", "constant", "empty", "signed")


def columns(rows=4000, seed=0):
    rng = np.random.default_rng(seed)
    found = np.stack(
        [
            rng.normal(100, 15, rows),
            rng.normal(7.38, 0.07, rows),
            rng.lognormal(0.5, 0.7, rows),
            rng.normal(2.5e5, 8e4, rows),
            np.full(rows, 3.0),
            np.full(rows, np.nan),
            rng.normal(0, 1e-2, rows),
        ]
    )
    found[0, ::7] = np.nan
    return found


def agreed(values, n=8, **how):
    """The scales of all columns, and the bytes that they took."""
    start = np.linspace(0, values.shape[1], n + 1).astype(np.int64)
    counting = HistogramSum(**how)
    found, spent = sum_histograms(values, start, tuple(f"h{i}" for i in range(n)), counting)
    return dict(zip(NAMES, found.scales(counting.doubt(len(NAMES), n)))), spent


def test_scales_are_near_those_of_all_rows():
    values = columns()
    scales = agreed(values, masked=True)[0]
    for k in (0, 1, 2, 3, 6):
        known = values[k][np.isfinite(values[k])]
        scale = scales[NAMES[k]]
        spread = known.std()
        assert abs(scale.center - known.mean()) < 0.08 * spread
        assert 0.85 < scale.spread / spread < 1.1
        exact = np.quantile(known, PROBABILITIES)
        np.testing.assert_allclose(scale.quantiles, exact, atol=0.12 * spread)
    assert scales["constant"].spread == scales["empty"].spread == 0


def test_one_value_far_out_owns_no_scale():
    values = columns()
    values[0, 0] = 1e9
    scale = agreed(values)[0]["normal"]
    assert abs(scale.center - 100) < 2 and 12 < scale.spread < 17


def test_how_rows_are_spread_over_centers_changes_nothing():
    values = columns()
    (one, less), (other, more) = agreed(values, n=3), agreed(values, n=40)
    assert one == other and less < more


def test_one_row_moves_one_count_of_every_column_by_one():
    values = columns(50)
    edges = np.tile(FIRST, (len(NAMES), 1))
    owner = np.zeros(50, dtype=np.int64)
    with_it, without = (bin_counts(v, o, 1, edges) for v, o in ((values, owner), (values[:, 1:], owner[1:])))
    moved = (with_it - without)[0]
    assert set(np.unique(moved)) <= {0.0, 1.0} and (moved.sum(axis=1) <= 1).all()
    assert np.linalg.norm(moved) <= np.sqrt(len(NAMES))


def test_noise_has_the_stated_deviation_and_others_at_every_center_and_count():
    counting, ids = HistogramSum(noise=2.0, seed=5), center_ids(("a", "b"))
    nothing = np.zeros((2, 9, 500))
    told = [counting.noisy(nothing, ids, number) for number in range(PASSES)]
    for each in told:
        assert each.std() == pytest.approx(2.0 * 3.0, rel=0.05)
    assert abs(np.corrcoef(told[0][0].ravel(), told[0][1].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(told[0][0].ravel(), told[1][0].ravel())[0, 1]) < 0.05
    assert np.array_equal(counting.noisy(nothing, ids, 1), told[1])


def test_scales_outlive_noise():
    values = columns(20_000)
    scales = agreed(values, n=10, noise=3.0, seed=1)[0]
    for k, width in ((0, 15), (2, None), (3, 8e4)):
        known = values[k][np.isfinite(values[k])]
        spread = width or known.std()
        assert abs(scales[NAMES[k]].center - np.median(known)) < 0.5 * spread
        assert 0.4 < scales[NAMES[k]].spread / spread < 1.8
        assert list(scales[NAMES[k]].quantiles) == sorted(scales[NAMES[k]].quantiles)
    assert scales["empty"].spread == 0


def test_a_center_with_few_values_of_a_column_tells_nothing_of_it():
    values = columns(60)
    values[0, :55] = np.nan
    edges, owner = np.tile(FIRST, (len(NAMES), 1)), np.zeros(60, dtype=np.int64)
    all_told, told = (published_counts(values, owner, 1, edges, least) for least in (None, np.array([20])))
    assert all_told[0, 0].sum() > 0 and told[0, 0].sum() == 0
    np.testing.assert_array_equal(told[0, 1:], all_told[0, 1:])


def rice_bits(column):
    """One column's plain counts as a string of bits, written out one after the other."""
    used = [k for k, count in enumerate(column) if count]
    first, last = (used[0], used[-1]) if used else (0, 0)
    kept = column[first : last + 1] if used else []
    width = max(sum(kept) // max(len(kept), 1), 1).bit_length() - 1
    bits = f"{first:08b}{last:08b}{width:05b}"
    for count in kept:
        low = f"{count % 2**width:0{width}b}" if width else ""
        bits += low + "1" * (count >> width) + "0"
    return bits


def test_the_size_of_plain_counts_is_that_of_their_codes():
    rng = np.random.default_rng(4)
    counts = rng.poisson(rng.gamma(0.3, 30.0, (5, 7, 42)))
    counts[0, 0], counts[1, 1, :40] = 0, 0
    for sent, of_center in zip(counts_size(counts.astype(float)), counts):
        bits = "".join(rice_bits(column) for column in of_center.tolist())
        assert sent == -(-len(bits) // 8)


@given(st.lists(st.floats(-1e30, 1e30), max_size=90))
def test_whatever_the_values_scales_and_what_they_read_are_finite(values):
    found, _ = sum_histograms(np.array([values]), np.array([0, len(values)]), ("a",), HistogramSum())
    scale = found.scales(0.0)[0]
    assert np.isfinite([scale.center, scale.spread, *scale.quantiles]).all()
    assert np.isfinite(scale.read(np.array(values))).all()
