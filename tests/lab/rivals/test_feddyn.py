"""FedDyn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from abps.core.arrays import repeated
from abps.lab.rivals.corrected import FedDyn
from abps.methods.fedavg import FedAvg
from abps.models.training import Objective, Training


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_server_state_is_the_mean_of_the_centers_states(context, play, weighting) -> None:
    for state in play(FedDyn(weighting=weighting), context(Training()), 4)[1:]:
        np.testing.assert_allclose(state.h, state.moved.mean(0), rtol=1e-4, atol=1e-6)
        assert np.abs(state.h).max() > 1e-4


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_it_is_the_papers_recursion(context, play, weighting) -> None:
    """Against the printed form: linear terms g_i, server h, w = mean - h / alpha."""
    here, alpha = context(Training(optimizer="sgd", lr=0.1)), 0.7
    strength = alpha * np.ones(here.n, dtype=np.float32)
    if weighting == "size":
        size = here.sizes()
        strength = alpha / (size / size.mean())
    w, g = here.learner.start.copy(), np.zeros((here.n, here.learner.layout.size), dtype=np.float32)
    h = np.zeros_like(w)  # of displacements: the printed h over -alpha
    for t in range(1, 4):
        theta = here.learner.train(repeated(w, here.n), t, Objective(strength, w, shift=-g))
        g = g - strength[:, None] * (theta - w)
        h = h + (theta - w).mean(0)
        mean, w = theta.mean(0), theta.mean(0) + h
    state = play(FedDyn(alpha=alpha, weighting=weighting), here, 3)[-1]
    np.testing.assert_allclose(state.models[0], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.cloud[0], w, rtol=1e-4, atol=1e-6)
    if weighting == "uniform":  # then the server's printed h is the mean of the g_i
        np.testing.assert_allclose(-alpha * state.h, g.mean(0), rtol=1e-4, atol=1e-6)


def test_a_center_can_work_out_the_mean_from_the_clouds(context, play) -> None:
    """So evaluating the mean costs no byte: m = (w_t + w_{t-1} - h_{t-1}) / 2."""
    states = play(FedDyn(), context(Training()), 3)
    h = np.zeros_like(states[0].h)
    for before, after in itertools.pairwise(states):
        mean = (after.cloud[0] + before.cloud[0] - h) / 2
        np.testing.assert_allclose(mean, after.models[0], rtol=1e-4, atol=1e-6)
        h = h + mean - before.cloud[0]


def test_first_round_of_equal_weights_is_fedavg_with_a_proximal_term(context, play) -> None:
    """Nothing is remembered yet; with a tiny alpha it is FedAvg's uniform mean."""
    here = context(Training(optimizer="sgd", lr=0.1))
    dyn = play(FedDyn(alpha=1e-9, weighting="uniform"), here, 1)[-1]
    plain = play(FedAvg(weighting="uniform"), here, 1)[-1]
    np.testing.assert_allclose(dyn.models, plain.models, rtol=1e-5, atol=1e-7)
