"""Ditto."""

from __future__ import annotations

import numpy as np

from abps.lab.rivals.personal import Ditto
from abps.methods.fedavg import FedAvg
from abps.methods.references import Local
from abps.models.training import Training


def test_the_global_branch_is_fedavg(context, play) -> None:
    here = context(Training())
    assert np.array_equal(play(Ditto(), here, 3)[-1].received, play(FedAvg(), here, 3)[-1].models)


def test_without_the_pull_it_is_local_training(context, play) -> None:
    here = context(Training())
    assert np.array_equal(play(Ditto(lam=0.0), here, 3)[-1].models, play(Local(), here, 3)[-1].models)


def test_an_infinite_pull_is_the_global_model(context, play) -> None:
    """SGD with lr * lam = 1: v <- received - lr * gradient, so v comes as near as 1 / lam."""
    distance = []
    for lam in (1e1, 1e3, 1e5):
        training = Training(optimizer="sgd", lr=1 / lam, weight_decay=0.0)
        before, after = play(Ditto(training=training, lam=lam), context(training), 3)[-2:]
        distance.append(float(np.abs(after.models - before.received).max()))
    assert distance[0] < 0.1
    assert distance[1] < 0.02 * distance[0]
    assert distance[2] < 0.02 * distance[1]


def test_the_anchor_is_the_model_as_received(context, play, one_step) -> None:
    """By hand: v2 = v1 - lr (g(v1) + lam (v1 - w1)), w1 the global model before round 2's training."""
    here = context(one_step)
    first, second = play(Ditto(training=one_step, lam=2.0), here, 2)[1:]
    slope = here.learner.gradient(first.models, here.data.train) + 2.0 * (first.models - first.received)
    np.testing.assert_allclose(second.models, first.models - 0.1 * slope, rtol=1e-4, atol=1e-6)


def test_without_bytes_the_last_global_model_stays_the_anchor(context, play) -> None:
    here = context(Training())
    states = play(Ditto(budget=1.0), here, 2)
    assert np.array_equal(states[-1].received, here.common_start())
