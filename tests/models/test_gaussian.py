"""Gaussian weights: their noise, and training that draws them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from abps.core import streams
from abps.core.arrays import repeated
from abps.models import network as compiled
from abps.models.draws import normals, weight_keys
from abps.models.learners import learner_for
from abps.models.training import GaussianWeights, Objective, Training
from federations import tiny

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


def test_compiled_weights_are_drawn_as_softplus_says() -> None:
    count = 5000
    rng = np.random.default_rng(0)
    both = np.concatenate([rng.standard_normal(count), rng.uniform(-15, 25, count)]).astype(np.float32)
    drawn = noise(SEED, IDS[:1], 2, 7, count)[0]
    spread, tilt, w = (np.empty(count, dtype=np.float32) for _ in range(3))
    compiled._draw_weights(both, drawn, spread, tilt, w)
    mean, raw = torch.from_numpy(both).double().chunk(2)
    np.testing.assert_allclose(spread, torch.nn.functional.softplus(raw), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(tilt, torch.sigmoid(raw), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(w, mean + torch.nn.functional.softplus(raw) * drawn, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_both_ways_of_training_gaussians_agree(own: bool, dropout: float) -> None:
    """With a prior for all and with one for each; several steps and epochs. With SGD: Adam turns the rounding
    of a gradient that vanishes into a step."""
    data = tiny((300, 140, 129, 20, 1))
    training = Training(hidden=(16, 8), optimizer="sgd", lr=0.05, weight_decay=0.0, dropout=dropout)
    stacked, loop = (learner_for(data, training, SEED, plain=plain) for plain in (False, True))
    n, size = data.size, stacked.layout.size
    around = np.random.default_rng(1).normal(size=(n, size)).astype(np.float32)
    center, spread = (
        (0.1 * around, 0.2 + 0.1 * np.abs(around))
        if own
        else (stacked.start, np.full((size,), 0.3, dtype=np.float32))
    )
    objective = Objective(
        gaussian=GaussianWeights(center, spread, np.linspace(0.0, 0.01, n, dtype=np.float32))
    )
    raw = np.linspace(-4.0, -1.0, size, dtype=np.float32)
    both = repeated(np.concatenate([stacked.start, raw]), n)
    fused = stacked.train(both, 2, objective, epochs=3)
    np.testing.assert_allclose(fused, loop.train(both, 2, objective, epochs=3), atol=2e-6, rtol=1e-5)
    assert not np.array_equal(fused[0, size:], raw) and not np.array_equal(fused[0], fused[1])
