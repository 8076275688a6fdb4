"""The noise of Gaussian weights."""

from __future__ import annotations

import numpy as np
from scipy import stats

from abps.core import streams
from abps.models.draws import normals, weight_keys

SEED = 5


def noise(seed, ids, round, step, count):
    """(m, count) what centers draw at a step."""
    return normals(weight_keys(seed, ids, round, np.array([step], dtype=np.uint64))[:, 0], count)


IDS = streams.center_ids(["a", "b", "c"])


def test_noise_is_standard_normal_and_unlike_any_other() -> None:
    """Of every center, round and step: the distribution, its tails, and no correlation with others."""
    count = 40_000
    drawn = np.concatenate([noise(SEED, IDS, t, step, count) for t in (1, 2) for step in (0, 1)]).astype(
        np.float64
    )
    for row in drawn:
        assert stats.kstest(row, "norm").pvalue > 1e-4
        assert 0.5 < (abs(row) > 3).mean() / (2 * stats.norm.sf(3)) < 1.5
    limit = 4.5 / np.sqrt(count)
    assert abs(np.corrcoef(drawn)[np.triu_indices(12, 1)]).max() < limit
    assert abs(np.corrcoef(drawn**2)[np.triu_indices(12, 1)]).max() < limit
    for lag in (1, 2, 64, 128):
        assert abs((drawn[:, lag:] * drawn[:, :-lag]).mean(axis=1)).max() < limit
    places = drawn.mean(axis=0) * np.sqrt(12)  # no place of its own mean
    assert stats.kstest(places, "norm").pvalue > 1e-4


def test_all_bits_of_a_word_are_fair_and_pairs_of_bits_independent() -> None:
    words = streams.words(streams.bits(SEED, "sample-weights", 1, IDS, 0), 30_000)
    bits = ((words[..., None] >> np.arange(32, dtype=np.uint32)) & 1).astype(float).reshape(-1, 32) * 2 - 1
    limit = 5 / np.sqrt(len(bits))
    assert abs(bits.mean(axis=0)).max() < limit
    assert abs((bits.T @ bits / len(bits))[np.triu_indices(32, 1)]).max() < limit


def test_a_center_draws_alone_what_it_draws_among_others() -> None:
    assert np.array_equal(noise(SEED, IDS, 3, 1, 100)[1:2], noise(SEED, IDS[1:2], 3, 1, 100))
    assert np.array_equal(noise(SEED, IDS, 3, 1, 100)[:, :40], noise(SEED, IDS, 3, 1, 40))
