"""What methods ask of a learner besides training: full gradients, contrasts of representations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from abps.core.arrays import Weights
from abps.data.prepare import Prepared, Rows
from abps.models.learners import Learner, learner_for
from abps.models.models import MLP
from abps.models.training import Contrast, Objective, Training

PLAIN = Training(batch=16, dropout=0.0)


class Other(nn.Module):
    """A user's own network: goes through the general kernel."""

    def __init__(self, width: int, rate: float = 0.3) -> None:
        super().__init__()
        self.first = nn.Linear(width, 8)
        self.drop = nn.Dropout(rate)
        self.head = nn.Linear(8, 1)

    def representation(self, x: Weights) -> Weights:
        """(rows, 8)."""
        return torch.tanh(self.first(x))

    def forward(self, x: Weights) -> Weights:
        """(rows, 1)."""
        return self.head(self.drop(self.representation(x)))


def models(learner: Learner, count: int) -> Weights:
    """Random models around the start."""
    noise = np.random.default_rng(3).normal(size=(count, learner.layout.size)).astype(np.float32)
    return learner.start + 0.1 * noise


@pytest.mark.parametrize("model", ["mlp", Other])
def test_gradient_is_autograds_over_all_rows(ready: Prepared, model) -> None:
    learner = learner_for(ready, replace(PLAIN, model=model), 11)
    w = models(learner, 6)
    found, network = learner.gradient(w, ready.train), learner.training.factory(ready.width).eval()
    for i in range(6):
        torch.nn.utils.vector_to_parameters(torch.tensor(w[i]), network.parameters())
        answers = network(torch.from_numpy(ready.train.only(i).x)).reshape(-1)
        loss = F.binary_cross_entropy_with_logits(answers, torch.from_numpy(ready.train.only(i).y))
        wanted = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters()))])
        np.testing.assert_allclose(found[i], wanted, rtol=1e-4, atol=1e-6)


def test_gradient_of_soft_labels(ready: Prepared) -> None:
    stacked = learner_for(ready, PLAIN, 11)
    rows = ready.train
    soft = Rows(rows.x, np.random.default_rng(0).random(len(rows.y)).astype(np.float32), rows.start)
    w = models(stacked, 6)
    found = stacked.gradient(w, soft)
    network = MLP(ready.width, dropout=0.0)
    for i in range(6):
        mine = soft.only(i)
        torch.nn.utils.vector_to_parameters(torch.tensor(w[i]), network.parameters())
        probability = torch.sigmoid(network(torch.from_numpy(mine.x)))
        # The divergence from a soft label has the gradient of cross-entropy against it.
        p = torch.from_numpy(mine.y)
        loss = (p * (p / probability).log() + (1 - p) * ((1 - p) / (1 - probability)).log()).mean()
        wanted = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters()))])
        np.testing.assert_allclose(found[i], wanted, rtol=1e-3, atol=1e-6)


def test_a_center_without_rows_has_no_gradient(ready: Prepared) -> None:
    empty = Rows(ready.train.x[:0], ready.train.y[:0], np.zeros(7, dtype=np.int64))
    for plain in (False, True):
        learner = learner_for(ready, PLAIN, 11, plain=plain)
        assert not learner.gradient(models(learner, 6), empty).any()


@pytest.mark.parametrize("model", ["mlp", "linear", Other])
def test_representation_is_the_modules_own(ready: Prepared, model) -> None:
    learner = learner_for(ready, Training.of(model), 11)
    network = learner.training.factory(ready.width).eval()
    x = ready.train.x[:5]
    for w in models(learner, 2):
        torch.nn.utils.vector_to_parameters(torch.tensor(w), network.parameters())
        wanted = network.representation(torch.from_numpy(x)).detach()
        np.testing.assert_allclose(learner.representation(w, x), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["mlp", lambda width: Other(width, 0.0)])
def test_a_contrast_adds_the_gradient_of_its_loss(ready: Prepared, model) -> None:
    """One SGD step on BCE + 3 * contrast, against autograd on the sum."""
    training = Training(
        epochs=1, batch=1000, lr=0.1, weight_decay=0.0, optimizer="sgd", dropout=0.0, model=model
    )
    network = training.factory(ready.width)
    learner = learner_for(ready, training, 11)
    w = models(learner, 6)
    near, far = learner.start, w[::-1]  # one for all, one for each
    after = learner.train(w, 1, Objective(contrast=Contrast(near, far, 3.0, 0.5)))

    def represent(weights: Weights, x: torch.Tensor) -> torch.Tensor:
        torch.nn.utils.vector_to_parameters(torch.tensor(weights), network.parameters())
        return network.representation(x)

    for i in range(6):
        mine = ready.train.only(i)
        x = torch.from_numpy(mine.x)
        shown = [represent(model, x).detach() for model in (near, far[i])]
        z = represent(w[i], x)
        like = torch.stack([F.cosine_similarity(z, other, dim=-1) for other in shown], dim=1)
        loss = F.binary_cross_entropy_with_logits(network(x).reshape(-1), torch.from_numpy(mine.y))
        loss = loss + 3.0 * F.cross_entropy(like / 0.5, torch.zeros(len(x), dtype=torch.long))
        slope = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters()))])
        np.testing.assert_allclose(after[i], w[i] - 0.1 * slope.numpy(), rtol=1e-4, atol=1e-6)
