"""FedAvg (McMahan et al. 2017) with its variants +P, +P+Q and X, and FedProx (Li et al. 2020).

Every center trains the server's model and sends it back; the server averages. Layers may stay private
(+P, FedPer), the codec may be coarser (+Q), and the server may smooth the shared layers over rounds (X).
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from abps.core.arrays import AGGREGATES, Aggregate, Weighting, Weights, lerp, repeated, shares, trusted
from abps.core.errors import FROM_0, FROM_0_BELOW_1
from abps.methods.base import Context, Floats, Models, Wire
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.methods.star import Adding, Server, StarMethod, from_sum, summands
from abps.models.training import PLAIN, Objective
from abps.wire.number_lists import Field, NumberList


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


@dataclass(frozen=True, eq=False)
class StarState(Models):
    """last: what the server sent last."""

    last: tuple[Weights, ...] = ()


@dataclass(frozen=True)
class StarExchange(CoordinatedMethod):
    """FedAvg or FedProx between sites, with whole models and their mean: a server that needs only the sum of
    what centers send needs no machine of its own. Every member uploads its summand, and does for itself what
    the server would do with the sum."""

    star: FedAvg = field(default_factory=FedAvg)

    def sums_only(self, t: int) -> bool:
        return True

    def init(self, context: Context) -> StarState:
        return StarState(context.common_start())

    def upload(self, context: Context, state: StarState, t: int) -> Upload:
        sent = self.star.upload(context, state, self.star.train(context, state, t, False), t)
        values = summands(sent, context.data.train.sizes.astype(np.float64), self.star.weighting)
        return Upload.encode(list(values), [(Field("single", values.shape[1]),)] * len(values))

    def aggregate(self, context: Context, state: StarState, uploads: Floats, t: int) -> Broadcast:
        """The sum, as two four-byte numbers each."""
        total = np.nansum(uploads, axis=0)
        both = np.concatenate([total, total - total.astype(np.float32)])
        return Broadcast(NumberList.of(both, (Field("single", len(total), 2),)))

    def apply_broadcast(self, context: Context, state: StarState, broadcast: Broadcast, t: int) -> StarState:
        learner, lengths = context.learner, self.star.uploads(context.learner.layout)
        total = broadcast.common.values.reshape(2, -1).sum(axis=0)
        if len(total) != sum(lengths) + 1 or not total[-1] > 0:
            raise ValueError("no sum of such uploads")
        sent, weight = from_sum(total, lengths)
        server = Server(state.last, None, context.seed, learner.layout)
        down, _ = self.star.serve(learner.start, server, sent, weight, t)
        received: StarState = self.star.receive(context, state, state, down, t)
        return replace(received, last=down)
