"""MOON (Li et al. 2021): FedAvg whose centers keep their representations near the global model's.

Local loss BCE + mu * l with, for every row, l = -log( e^(cos(z, z_global) / tau) / (e^(cos(z, z_global) /
tau) + e^(cos(z, z_previous) / tau)) ), z the last hidden layer (after ReLU, before dropout), z_global and
z_previous those of the received model and of the center's own one of the round before, both frozen and
without dropout. There is no projection head: it would change the model that is compared.
"""

from dataclasses import dataclass
from typing import ClassVar

from abps.core.arrays import Weights
from abps.core.errors import FROM_0, POSITIVE
from abps.methods.base import Context, Models
from abps.methods.fedavg import FedAvg
from abps.models.training import PLAIN, Contrast, Objective


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  previous: (r, P) every center's own model after its last local training."""

    previous: Weights


@dataclass(frozen=True)
class MOON(FedAvg):
    """mu: weight of the contrastive loss; 0 is FedAvg.  temperature: tau."""

    mu: float = 1.0
    temperature: float = 0.5

    limits: ClassVar = {"mu": FROM_0, "temperature": POSITIVE}
    searched: ClassVar = {"mu": (1.0, 5.0)}

    def init(self, context: Context) -> State:
        start = context.common_start()
        return State(start, start)

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        trained: State = super().train(context, state, t, alone)
        return State(trained.models, trained.models)

    def objective(self, state: State) -> Objective:
        if self.mu == 0.0:
            return PLAIN
        return Objective(contrast=Contrast(state.models, state.previous, self.mu, self.temperature))
