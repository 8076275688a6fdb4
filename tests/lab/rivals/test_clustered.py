"""Clustered FedAvg and FedMAP."""

from __future__ import annotations

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.lab.rivals.clusters import ClusteredFedAvg, clusters_of
from abps.lab.rivals.personal import FedMAP
from abps.methods.fedavg import FedAvg, FedProx
from abps.models.training import Training


def test_planted_directions_are_found():
    rng = np.random.default_rng(0)
    true = np.repeat(np.arange(3), 12)
    moved = rng.normal(size=(3, 40))[true] + 0.4 * rng.normal(size=(36, 40))
    found = clusters_of(moved, 8, 0.1)
    assert len(np.unique(found)) == 3
    assert all(len(np.unique(found[true == k])) == 1 for k in range(3))


def test_noise_is_not_divided():
    rng = np.random.default_rng(1)
    assert not clusters_of(rng.normal(size=(40, 60)), 8, 0.1).any()


def test_without_clusters_it_is_fedavg(context, play):
    here = context(Training())
    together = play(ClusteredFedAvg(warmup=2, separation=1.0), here, 4)[-1]
    assert np.array_equal(together.models, play(FedAvg(), here, 4)[-1].models)


def test_clusters_average_among_themselves(context, play):
    here = context(Training())
    states = play(ClusteredFedAvg(warmup=2, separation=-1.0), here, 4)
    number = states[-1].cluster
    assert len(np.unique(number)) > 1 and not states[1].cluster.any()
    for k in np.unique(number):
        assert np.ptp(states[-1].models[number == k], axis=0).max() == 0
    with pytest.raises(RequestError, match="warmup=0"):
        ClusteredFedAvg(warmup=0)


def test_fedmap_trains_around_the_common_model(context, play, one_step):
    """By hand: θ = γ − lr · gradient at γ, where the prior has no slope; γ' = mean by contribution."""
    here = context(one_step)
    first, second = play(FedMAP(training=one_step, alpha=2.0), here, 2)[1:]
    slope = here.learner.gradient(first.received, here.data.train)
    np.testing.assert_allclose(second.models, first.received - 0.1 * slope, rtol=1e-4, atol=1e-6)
    low, high = second.models.min(axis=0), second.models.max(axis=0)
    assert (second.received[0] >= low - 1e-6).all() and (second.received[0] <= high + 1e-6).all()


def test_fedmap_and_fedprox_train_alike(context, play):
    """With one and the same anchor both add (strength / 2) |w − anchor|²."""
    here = context(Training())
    ours, other = play(FedMAP(alpha=0.5), here, 1)[-1], FedProx(mu=0.5)
    trained = other.train(here, other.init(here), 1, False)
    np.testing.assert_array_equal(ours.models, trained.models)
    with pytest.raises(RequestError, match="alpha"):
        FedMAP(alpha=-1.0)
