"""FedProx."""

from __future__ import annotations

import numpy as np

from abps.methods.fedavg import FedAvg, FedProx
from abps.models.training import Training


def test_without_the_term_it_is_fedavg(context, play) -> None:
    w = context(Training())
    plain, prox = play(FedAvg(), w, 3), play(FedProx(mu=0.0), w, 3)
    assert np.array_equal(plain[-1].models, prox[-1].models)


def test_steps_follow_the_proximal_gradient(context, play) -> None:
    """Two full-batch SGD steps by hand: w <- w - lr (g(w) + mu (w - received))."""
    training = Training(epochs=2, batch=1000, lr=0.1, weight_decay=0.0, optimizer="sgd", dropout=0.0)
    here = context(training)
    method = FedProx(training=training, mu=2.0)
    start = method.init(here).models
    w = start
    for _ in range(2):
        w = w - 0.1 * (here.learner.gradient(w, here.data.train) + 2.0 * (w - start))
    size = here.sizes()
    np.testing.assert_allclose(
        play(method, here, 1)[-1].models[0], (size / size.sum()) @ w, rtol=1e-4, atol=1e-6
    )


def test_a_stronger_term_keeps_centers_nearer(context) -> None:
    here = context(Training())
    moved = []
    for mu in (0.0, 1.0, 100.0):
        method = FedProx(mu=mu)
        state = method.init(here)
        after = here.learner.train(state.models, 1, method.objective(state))
        moved.append(float(np.linalg.norm(after - state.models)))
    assert moved[0] > moved[1] > moved[2]
