"""MOON."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from abps.lab.rivals.moon import MOON
from abps.methods.fedavg import FedAvg
from abps.models.modules import contrastive_gradient
from abps.models.training import Training


def contrast(z: torch.Tensor, near: torch.Tensor, far: torch.Tensor, temperature: float) -> torch.Tensor:
    """The loss as the paper's code has it: cross-entropy of two cosines, the global one being right."""
    both = torch.stack([F.cosine_similarity(z, near, dim=-1), F.cosine_similarity(z, far, dim=-1)], dim=-1)
    right = torch.zeros(both.shape[:-1], dtype=torch.long)
    return F.cross_entropy((both / temperature).flatten(0, -2), right.flatten(), reduction="sum")


def test_gradient_is_autograds() -> None:
    g = torch.Generator().manual_seed(0)
    z, near, far = (torch.randn(3, 5, 7, generator=g, dtype=torch.float64).relu() for _ in range(3))
    z = z.requires_grad_()
    (wanted,) = torch.autograd.grad(contrast(z, near, far, 0.5), z)
    near, far = (F.normalize(other, dim=-1) for other in (near, far))
    torch.testing.assert_close(contrastive_gradient(z.detach(), near, far, 0.5), wanted)


def test_gradient_of_a_representation_of_zero_is_zero() -> None:
    zero, some = torch.zeros(2, 4), torch.ones(2, 4)
    assert not contrastive_gradient(zero, some, -some, 0.5).any()
    assert contrastive_gradient(some, zero, torch.eye(4)[:2], 0.5).isfinite().all()


def test_first_round_pulls_nowhere_and_is_fedavg(context, play) -> None:
    """To the bit where PyTorch trains both; contrasts have no compiled code."""
    here = context(Training(), loop=True)
    method = MOON(mu=10.0)
    moon, plain = play(method, here, 2), play(FedAvg(), here, 2)
    assert np.array_equal(moon[1].models, plain[1].models)
    assert not np.array_equal(moon[2].models, plain[2].models)


def test_without_the_term_it_is_fedavg(context, play) -> None:
    here = context(Training(), loop=True)
    assert np.array_equal(play(MOON(mu=0.0), here, 3)[-1].models, play(FedAvg(), here, 3)[-1].models)


def test_second_round_follows_the_whole_loss(context, play, one_step) -> None:
    """A full-batch SGD step against autograd on BCE + mu * contrast."""
    here = context(one_step)
    method = MOON(training=one_step, mu=3.0)
    state = play(method, here, 1)[-1]
    after = here.learner.train(state.models, 2, method.objective(state))
    network = one_step.factory(here.data.width)

    def represent(weights: np.ndarray, x: torch.Tensor) -> torch.Tensor:
        torch.nn.utils.vector_to_parameters(torch.tensor(weights), network.parameters())
        return network.representation(x).detach()

    for i in range(here.n):
        mine = here.data.train.only(i)
        x = torch.from_numpy(mine.x)
        near, far = represent(state.models[i], x), represent(state.previous[i], x)
        torch.nn.utils.vector_to_parameters(torch.tensor(state.models[i]), network.parameters())
        loss = F.binary_cross_entropy_with_logits(network(x), torch.from_numpy(mine.y))
        loss = loss + 3.0 * contrast(network.representation(x), near, far, 0.5) / len(x)
        slope = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(network.parameters()))])
        np.testing.assert_allclose(after[i], state.models[i] - 0.1 * slope.numpy(), rtol=1e-4, atol=1e-5)


def test_previous_is_the_centers_own_trained_model(context, play) -> None:
    here = context(Training(), loop=True)
    state = play(MOON(), here, 1)[-1]
    trained = here.learner.train(here.common_start(), 1)
    assert np.array_equal(state.previous, trained)
    assert np.array_equal(state.models[0], state.models[1])
