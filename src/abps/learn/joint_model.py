"""The sum of an additive model and a small network, as a module; :mod:`abps.learn.joint` trains it."""

from __future__ import annotations

from torch import Tensor, nn

from abps.learn.additive import Linear
from abps.learn.models import MLP, ModelFactory


class Joint(nn.Module):
    """Logits (rows,) = network + additive part; the network's answer is zero at the start."""

    def __init__(self, width: int, hidden: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.network = MLP(width, hidden, dropout)
        nn.init.zeros_(self.network.head.weight)
        nn.init.zeros_(self.network.head.bias)
        self.additive = Linear(width)

    def representation(self, x: Tensor) -> Tensor:
        """(rows, units) the network's last hidden layer."""
        return self.network.representation(x)

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits."""
        return self.network(x) + self.additive(x)


class Residual(nn.Module):
    """The network of a :class:`Joint`, on rows (rows, width + 1) whose last column is added to its answer."""

    def __init__(self, width: int, hidden: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.network = MLP(width - 1, hidden, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits."""
        return self.network(x[:, :-1]) + x[:, -1]


def joint(hidden: tuple[int, ...], dropout: float) -> ModelFactory:
    """Builds the sum."""
    return lambda width: Joint(width, hidden, dropout)
