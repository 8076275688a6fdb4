"""FedAvg (McMahan et al. 2017) with its variants +P, +P+Q and X, and FedProx (Li et al. 2020).

Every center trains the server's model and sends it back; the server averages. Layers may stay private
(+P, FedPer), the codec may be coarser (+Q), and the server may smooth the shared layers over rounds (X).
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from abps.core.arrays import AGGREGATES, Aggregate, Weighting, Weights, lerp, repeated, shares, trusted
from abps.core.errors import FROM_0, FROM_0_BELOW_1
from abps.methods.base import Context, Models, Wire
from abps.methods.star import Adding, Server, StarMethod
from abps.models.training import PLAIN, Objective


@dataclass(frozen=True)
class FedAvg(StarMethod):
    """wire: codec and private layers.  weighting: size or uniform.

    smoothing: share of the previous average that the server keeps (the paper's EMA momentum); 0 is none.
    aggregate: mean, or an average that a few bad senders cannot move far (:mod:`abps.core.arrays`).
    """

    wire: Wire = field(default_factory=Wire)
    weighting: Weighting = "size"
    smoothing: float = 0.0
    aggregate: Aggregate = "mean"

    limits: ClassVar = {"smoothing": FROM_0_BELOW_1}

    @property
    def adds(self) -> Adding | None:
        """A mean needs the sum alone; robust averages need every model."""
        return self.weighting if self.aggregate == "mean" else None

    def objective(self, state: Any) -> Objective:
        """What a center adds to its own loss: nothing here."""
        return PLAIN

    def train(self, context: Context, state: Any, t: int, alone: bool) -> Any:
        objective = PLAIN if alone else self.objective(state)
        return replace(state, models=context.learner.train(state.models, t, objective))

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], Any]:
        weights = shares(sizes, self.weighting)
        before = server.last[0] if server.last else start[: sent[0].shape[1]]
        if self.aggregate == "trusted":
            trunk = trusted(sent[0], weights, before)
        else:
            trunk = AGGREGATES[self.aggregate](sent[0], weights)
        if self.smoothing:
            trunk = lerp(trunk, before, self.smoothing)
        return (trunk,), None

    def receive(self, context: Context, state: Any, trained: Any, down: tuple[Weights, ...], t: int) -> Any:
        return replace(trained, models=under(down[0], trained.models))


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose centers stay near the model they received.

    Local objective F_i(w) + (mu / 2) ||w - w_t||^2 over all parameters, biases included. With a handful of
    small Adam steps a round, w stays close to w_t anyway, so that FedProx is close to FedAvg.
    """

    mu: float = 0.01

    limits: ClassVar = {"mu": FROM_0}
    searched: ClassVar = {"mu": (0.01, 0.1)}

    def objective(self, state: Models) -> Objective:
        return Objective(strength=self.mu, anchor=state.models)


def under(trunk: Weights, models: Weights) -> Weights:
    """(r, P) models whose first columns are a common trunk (shared,)."""
    common = repeated(trunk, len(models))
    private = models[:, len(trunk) :]
    return np.concatenate([common, private], axis=1) if private.shape[1] else common
