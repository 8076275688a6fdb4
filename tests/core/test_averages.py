"""Averages that a few bad messages cannot move far."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

import abps
from abps.core import arrays as averaging
from abps.core.errors import RequestError
from abps.methods.settings import configure

SMALL = {"hidden": (8, 4)}


def models(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 7)).astype(np.float32)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_medians_and_trimmed_means_are_those_of_numpy_and_scipy(count, seed):
    sent, say = models(count, seed), np.ones(count, dtype=np.float32)
    np.testing.assert_allclose(averaging.median(sent, say), np.median(sent, axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        averaging.trimmed(sent, say), trim_mean(sent, averaging.BAD, axis=0), rtol=1e-5, atol=1e-6
    )


def test_krum_by_its_definition():
    sent = models(10)
    far = np.square(sent[:, None] - sent[None]).sum(axis=2)
    near = np.sort(far, axis=1)[:, 1:7].sum(axis=1)  # n - f - 2 = 6 neighbours
    chosen = np.argsort(near)[:8]
    np.testing.assert_allclose(
        averaging.krum(sent, np.ones(10, dtype=np.float32)), sent[chosen].mean(axis=0), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("name", ["median", "trimmed", "krum"])
def test_a_fifth_of_wild_senders_moves_them_by_no_more_than_honest_ones_differ(name):
    honest = models(8)
    wild = np.full((2, 7), 1e6, dtype=np.float32)
    found = averaging.AGGREGATES[name](np.concatenate([honest, wild]), np.ones(10, dtype=np.float32))
    assert (found <= honest.max(axis=0)).all()
    assert (found >= honest.min(axis=0)).all()


def test_trust_by_direction_ignores_who_goes_backwards():
    before = np.zeros(7, dtype=np.float32)
    forward = np.ones((8, 7), dtype=np.float32) + 0.1 * models(8)
    both = np.concatenate([forward, -5.0 * np.ones((2, 7), dtype=np.float32)])
    found = averaging.trusted(both, np.ones(10, dtype=np.float32), before)
    alone = averaging.trusted(forward, np.ones(8, dtype=np.float32), before)
    assert found @ alone > 0.99 * np.linalg.norm(found) * np.linalg.norm(alone)
    assert np.linalg.norm(found) <= 1.05 * np.linalg.norm(
        averaging.median(both, np.ones(10, dtype=np.float32))
    )


@pytest.mark.parametrize("aggregate", ["median", "trimmed", "krum", "trusted"])
def test_a_federation_learns_with_each(tiny, aggregate):
    run = abps.simulate(tiny, "fedavg", seed=11, rounds=3, settings={**SMALL, "aggregate": aggregate})
    assert np.isfinite(run.models).all()


def test_what_is_no_aggregate_is_said():
    with pytest.raises(RequestError, match="aggregate"):
        configure("fedavg", {"aggregate": "mode"})
