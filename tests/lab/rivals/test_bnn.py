"""BNN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from abps.core import streams
from abps.core.arrays import repeated
from abps.core.errors import RequestError
from abps.lab.rivals.bnn import BNN, State, raw_of, softplus
from abps.methods.fedavg import FedAvg
from abps.methods.star import Server
from abps.models.draws import normals, weight_keys
from abps.models.training import Training

QUIET = Training(weight_decay=0.0, dropout=0.0)


def test_without_spread_it_is_fedavg(context, play) -> None:
    # SGD, so that rounding stays rounding; with Adam a vanishing gradient turns it into a step.
    training = Training(weight_decay=0.0, dropout=0.0, optimizer="sgd", lr=0.1)
    here = context(training)
    plain = play(FedAvg(training=training), here, 3)[-1].models
    distance = []
    for sigma in (1e-2, 1e-4, 1e-6):
        bayes = play(BNN(training=training, sigma=sigma, kl=0.0), here, 3)[-1].models
        distance.append(float(np.abs(bayes - plain).max()))
    assert distance[0] > distance[1] > distance[2]
    assert distance[2] < 1e-5


def test_without_spread_its_predictions_are_fedavgs(context, play) -> None:
    here = context(QUIET)
    plain = play(FedAvg(training=QUIET), here, 2)[-1]
    bayes = State(plain.models, raw_of(np.full_like(plain.models, 1e-7)))
    rows = here.data.test
    np.testing.assert_allclose(
        BNN().logits(here, bayes, rows).values, here.learner.logits(plain.models, rows).values, atol=1e-4
    )


def test_gradient_is_autograds_of_the_bound(context, one_step) -> None:
    """One full-batch SGD step on (m, r) against autograd on BCE(m + softplus(r) e) + kl / N * KL."""
    here = context(one_step)
    method = BNN(training=one_step, kl=5.0, prior_sigma=0.3, sigma=0.05)
    state = method.init(here)
    size = here.learner.layout.size
    both = np.concatenate([state.models, state.raw], axis=1) + np.float32(0.01)
    after = here.learner.train(both, 1, method.objective(here, state))
    keys = weight_keys(here.seed, here.ids, 1, np.zeros(1, dtype=np.uint64))[:, 0]
    drawn = torch.from_numpy(normals(keys, size))
    network = one_step.factory(here.data.width)
    names = [name for name, _ in network.named_parameters()]
    shapes = [p.shape for p in network.parameters()]
    for i in range(here.n):
        mine = here.data.train.only(i)
        v = torch.tensor(both[i], requires_grad=True)
        mean, spread = v[:size], F.softplus(v[size:])
        parts = torch.split(mean + spread * drawn[i], [s.numel() for s in shapes])
        values = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes)}
        logits = torch.func.functional_call(network, values, (torch.from_numpy(mine.x),))
        about = Normal(0.0, 0.3)
        loss = F.binary_cross_entropy_with_logits(logits, torch.from_numpy(mine.y))
        loss = loss + 5.0 / len(mine.y) * kl_divergence(Normal(mean, spread), about).sum()
        (slope,) = torch.autograd.grad(loss, v)
        np.testing.assert_allclose(after[i], both[i] - 0.1 * slope.numpy(), rtol=1e-3, atol=1e-5)


def test_raw_of_inverts_softplus() -> None:
    spread = np.array([1e-6, 1e-3, 0.02, 0.7, 5.0, 80.0], dtype=np.float32)
    raw = raw_of(spread)
    np.testing.assert_allclose(F.softplus(torch.from_numpy(raw)), spread, rtol=1e-3, atol=0)
    np.testing.assert_allclose(softplus(raw), F.softplus(torch.from_numpy(raw)), rtol=1e-6)


def test_averages_of_gaussians() -> None:
    mean = np.array([[0.0, 1.0], [2.0, 3.0]], dtype=np.float32)
    spread = np.array([[0.5, 0.1], [1.5, 0.2]], dtype=np.float32)
    sizes = np.array([3.0, 1.0], dtype=np.float32)
    (center, raw), _ = BNN().serve(mean[0], Server(), (mean, raw_of(spread)), sizes, 1)
    np.testing.assert_allclose(center, np.average(mean, axis=0, weights=sizes), rtol=1e-6)
    np.testing.assert_allclose(softplus(raw) ** 2, np.average(spread**2, axis=0, weights=sizes), rtol=1e-5)


def test_predictions_are_the_mean_probability(context) -> None:
    here = context(QUIET)
    method = BNN(sigma=0.2, samples=60)
    state = method.init(here)
    found = method.logits(here, state, here.data.test).values
    # The same draws through a plain module, one center after the other.
    rng = streams.generator(here.seed, "sample-weights")
    network, total = QUIET.factory(here.data.width).eval(), 0.0
    for _ in range(60):
        drawn = torch.from_numpy(rng.standard_normal(here.learner.layout.size, dtype=np.float32))
        chances = []
        for i in range(here.n):
            w = torch.tensor(state.models[i]) + F.softplus(torch.tensor(state.raw[i])) * drawn
            torch.nn.utils.vector_to_parameters(w, network.parameters())
            chances.append(torch.sigmoid(network(torch.from_numpy(here.data.test.only(i).x))))
        total = total + torch.cat(chances).detach()
    np.testing.assert_allclose(1 / (1 + np.exp(-found)), (total / 60).numpy(), atol=1e-5)


def test_predictions_of_one_model_held_by_all_are_each_centers_own(context) -> None:
    here = context(QUIET)
    method = BNN(sigma=0.2)
    each = method.init(here)
    common = State(repeated(each.models[0], here.n), repeated(each.raw[0], here.n))
    assert common.models.strides[0] == 0
    one, other = (method.logits(here, state, here.data.test).values for state in (each, common))
    np.testing.assert_array_equal(one, other)


def test_weight_decay_is_refused(context) -> None:
    with pytest.raises(RequestError, match="weight_decay"):
        BNN(training=Training()).init(context(Training()))
