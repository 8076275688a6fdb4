"""FedProx (Li et al. 2020): FedAvg whose centers are held near the model they received.

Local objective F_i(w) + (mu / 2) ||w - w_t||^2 over all parameters, biases included. With a handful of
small Adam steps a round, w stays close to w_t anyway, so FedProx is expected to be close to FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from abps.core.errors import RequestError
from abps.methods.base import Models, tried
from abps.methods.fedavg import FedAvg
from abps.models.training import Objective


@dataclass(frozen=True)
class FedProx(FedAvg):
    """mu: strength of the proximal term; 0 is FedAvg."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise RequestError(f"mu={self.mu}: the strength of the proximal term, choose 0 or more")

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """The learning rate and mu."""
        return tried(self, mu=(0.01, 0.1))

    def objective(self, state: Models) -> Objective:
        """Pull towards the model that the round starts from."""
        return Objective(strength=self.mu, anchor=state.models)
