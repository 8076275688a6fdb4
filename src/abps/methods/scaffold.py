"""SCAFFOLD (Karimireddy et al. 2020): control variates take a center's own bias out of its steps.

Every step follows g - c_i + c, where c_i is center i's gradient and c the mean over all centers. After a
round c_i is renewed, either with the full gradient of its loss at the received model (the paper's option
I) or from its displacement over steps and step size (option II). Option II reads the displacement as a
sum of gradients, which it is with SGD only: an Adam step has the size of the learning rate whatever the
gradient. Model and control variate travel both ways, so a round costs two of FedAvg's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from abps.core import ledger as bytes_of
from abps.core.errors import RequestError
from abps.core.ledger import Ledger
from abps.core.matching import Rest
from abps.learn.training import PLAIN, Objective
from abps.methods.base import Method, Outcome, Wire, World, center_weights, weighted_mean


@dataclass(frozen=True, eq=False)
class State:
    """models: (n, P).  own: (n, P) the control variates c_i.  common: (P,) their mean c."""

    models: Tensor
    own: Tensor
    common: Tensor


@dataclass(frozen=True)
class Scaffold(Method):
    """control: gradient (option I) or displacement (option II, SGD only).  server_lr: the server's step.

    weighting: size or uniform, of both means.
    """

    control: str = "gradient"
    server_lr: float = 1.0
    weighting: str = "size"
    codec: str = "fp32"

    def __post_init__(self) -> None:
        Wire(self.codec)
        if self.control not in ("gradient", "displacement"):
            raise RequestError(f"control={self.control!r}: choose gradient or displacement")
        if self.server_lr <= 0:
            raise RequestError(f"server_lr={self.server_lr}: a step size, choose above 0")

    def init(self, world: World) -> State:
        """The common start, all control variates zero."""
        if self.control == "displacement" and self.training.optimizer != "sgd":
            raise RequestError(
                "control=displacement reads steps as gradients, which needs optimizer=sgd; "
                "set that, or control=gradient"
            )
        start = world.common_start()
        return State(start, torch.zeros_like(start), torch.zeros_like(world.learner.start))

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """Train with the correction, renew the control variates, send both up, average, send both down."""
        corrected = Objective(shift=state.common - state.own)
        trained = world.learner.train(state.models, t, PLAIN if ledger.closed else corrected)
        wire = Wire(self.codec)
        traffic = bytes_of.star(world.n, 2 * wire.payload(world))
        if not ledger.affords(traffic):
            return State(trained, state.own, state.common), Outcome.alone(
                world.n, Rest.BUDGET, overdrawn=True
            )
        own = self.renewed(world, state, trained)
        weights = center_weights(world, self.weighting)
        server = state.models[0]
        # Two messages each way, each with a number of its own.
        first, second = 2 * t - 1, 2 * t
        mean = weighted_mean(wire.deliver(world, trained, first), weights)
        common = weighted_mean(wire.deliver(world, own, second), weights)
        moved = torch.lerp(server, mean, self.server_lr)
        models = wire.deliver(world, moved[None], first, server=True).expand(world.n, -1)
        common = wire.deliver(world, common[None], second, server=True)[0]
        return State(models, own, common), Outcome.of_star(world.n, traffic)

    def renewed(self, world: World, state: State, trained: Tensor) -> Tensor:
        """(n, P) every center's control variate after the round."""
        if self.control == "gradient":
            return world.learner.gradient(state.models, world.data.train)
        steps = self.training.epochs * -(-world.data.train.sizes // self.training.batch)
        scale = torch.from_numpy((1.0 / (np.maximum(steps, 1) * self.training.lr)).astype(np.float32))
        return state.own - state.common + (state.models - trained) * scale[:, None]
