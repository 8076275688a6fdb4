"""The sum of an additive model and a small network, as a module; :mod:`abps.models.joint` trains it."""

from __future__ import annotations

from torch import Tensor, nn

from abps.data.outcome import BINARY, Outcome
from abps.models.additive import Linear
from abps.models.layout import ModelFactory
from abps.models.models import MLP


class Joint(nn.Module):
    """Logits (rows,) = network + additive part; the network's answer is zero at the start."""

    def __init__(
        self, width: int, hidden: tuple[int, ...], dropout: float, outcome: Outcome = BINARY
    ) -> None:
        super().__init__()
        self.network = MLP(width, hidden, dropout, outcome)
        nn.init.zeros_(self.network.head.weight)
        nn.init.zeros_(self.network.head.bias)
        self.additive = Linear(width, outcome)

    def representation(self, x: Tensor) -> Tensor:
        """(rows, units) the network's last hidden layer."""
        return self.network.representation(x)

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits."""
        return self.network(x) + self.additive(x)


class Residual(nn.Module):
    """The network of a :class:`Joint`, on rows whose last columns, one per answer, are added to it."""

    def __init__(
        self, width: int, hidden: tuple[int, ...], dropout: float, outcome: Outcome = BINARY
    ) -> None:
        super().__init__()
        self.outputs = outcome.outputs
        self.network = MLP(width - self.outputs, hidden, dropout, outcome)

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) logits."""
        return self.network(x[:, : -self.outputs]) + x[:, -self.outputs :].squeeze(-1)


def joint(hidden: tuple[int, ...], dropout: float) -> ModelFactory:
    """Builds the sum."""
    return lambda width, outcome=BINARY: Joint(width, hidden, dropout, outcome)
