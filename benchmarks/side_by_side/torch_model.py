"""The network in PyTorch, for the tools that use PyTorch."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from work import LEARNING_RATE, SIZES, Floats, Task, both_orders


def network(dropout: float) -> nn.Sequential:
    """Linear, ReLU, dropout, …, one logit."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(SIZES[:-1]):
        layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(SIZES[-2], 1), nn.Flatten(0))


@torch.no_grad()
def load(model: nn.Module, weights: list[Floats]) -> None:
    """Put weights (in, out) into the model."""
    for parameter, value in zip(model.parameters(), both_orders(weights)):
        parameter.copy_(torch.from_numpy(value))


def unload(model: nn.Module) -> list[Floats]:
    """The model's weights (in, out)."""
    return list(both_orders([p.detach().numpy() for p in model.parameters()]))


def train(job: Task, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Local training of one center, as anybody would write it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model.train()
    for _ in range(job.epochs):
        for index in torch.randperm(len(y)).split(job.batch):
            loss = nn.functional.binary_cross_entropy_with_logits(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
