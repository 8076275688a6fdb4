"""FedAvgM."""

from __future__ import annotations

import numpy as np

from abps.lab.rivals.corrected import FedAvgM
from abps.methods.fedavg import FedAvg
from abps.models.training import Training


def test_without_momentum_it_is_fedavg(context, play) -> None:
    # SGD: Adam would turn the rounding of w - (w - mean) into steps of full size where gradients vanish.
    here = context(Training(optimizer="sgd", lr=0.1))
    np.testing.assert_allclose(
        play(FedAvgM(beta=0.0), here, 3)[-1].models, play(FedAvg(), here, 3)[-1].models, rtol=1e-5, atol=1e-6
    )


def test_the_first_round_is_a_full_step(context, play) -> None:
    here = context(Training())
    np.testing.assert_allclose(
        play(FedAvgM(), here, 1)[-1].models, play(FedAvg(), here, 1)[-1].models, rtol=1e-5, atol=1e-7
    )


def test_the_server_keeps_moving(context, play) -> None:
    """By hand: v2 = beta v1 + (w1 - mean2), w2 = w1 - v2."""
    here = context(Training())
    first, second = play(FedAvgM(beta=0.5), here, 2)[1:]
    size = here.sizes()
    mean = (size / size.sum()) @ here.learner.train(first.models, 2)
    step = 0.5 * (here.learner.start - first.models[0]) + (first.models[0] - mean)
    np.testing.assert_allclose(second.models[0], first.models[0] - step, rtol=1e-5, atol=1e-6)
