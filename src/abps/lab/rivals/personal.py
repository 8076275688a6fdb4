"""Star methods with a part or a model of every center's own: FedRep, Ditto and FedMAP."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from abps.core.arrays import Weights, weighted_mean
from abps.core.errors import FROM_0, FROM_1, RequestError
from abps.lab.rivals.choosing import own_losses
from abps.methods.base import Context, Floats, Models, Wire
from abps.methods.fedavg import FedAvg, under
from abps.methods.star import Adding, Server
from abps.models.training import Objective


@dataclass(frozen=True)
class FedRep(FedAvg):
    """FedRep (Collins et al. 2021): a common representation, a private head, trained one after the other.

    Every round a center first fits its head to the trunk it received, then the trunk to that head, then sends
    the trunk. The layers that are held still do not decay either: each phase has an optimiser of its own.
    With one epoch each a round costs the compute of FedAvg's two; the authors use ten and one.

    head_epochs, trunk_epochs: passes over the rows in each phase (instead of ``epochs``).
    """

    wire: Wire = field(default_factory=lambda: Wire(private_layers=1))
    head_epochs: int = 1
    trunk_epochs: int = 1

    limits: ClassVar = {"head_epochs": FROM_1, "trunk_epochs": FROM_1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wire.private_layers < 1:
            raise RequestError("private_layers=0: FedRep needs a private head; choose at least 1")

    def train(self, context: Context, state: Models, t: int, alone: bool) -> Models:
        shared = self.wire.shared(context)
        # Two phases, two numbers, so that the second does not repeat the first one's batches.
        fitted = context.learner.train(
            state.models, 2 * t - 1, columns=slice(shared, None), epochs=self.head_epochs
        )
        return Models(
            context.learner.train(fitted, 2 * t, columns=slice(0, shared), epochs=self.trunk_epochs)
        )


@dataclass(frozen=True, eq=False)
class PersonalState(Models):
    """models: (r, P) personal.  received: (r, P) the global model, one row per center."""

    received: Weights


@dataclass(frozen=True, eq=False)
class TrainedModels:
    """models: (r, P) the global model after local training.  personal: (r, P)."""

    models: Weights
    personal: Weights


@dataclass(frozen=True)
class Ditto(FedAvg):
    """Ditto (Li et al. 2021): FedAvg, and beside it a personal model for every center, never sent.

    Every round it minimises F_i(v) + (lam / 2) ||v - w_t||² with w_t the global model as received, before the
    center's own training of it. Small lam: local training; large lam: the global model.
    """

    lam: float = 1.0

    limits: ClassVar = {"lam": FROM_0}
    searched: ClassVar = {"lam": (0.1, 1.0)}

    def init(self, context: Context) -> PersonalState:
        start = context.common_start()
        return PersonalState(start, start)

    def train(self, context: Context, state: PersonalState, t: int, alone: bool) -> TrainedModels:
        near = Objective(strength=self.lam, anchor=state.received)
        return TrainedModels(
            context.learner.train(state.received, t), context.learner.train(state.models, t, near)
        )

    def receive(
        self,
        context: Context,
        state: PersonalState,
        trained: TrainedModels,
        down: tuple[Weights, ...],
        t: int,
    ) -> PersonalState:
        return PersonalState(trained.personal, under(down[0], trained.models))

    def rest(self, context: Context, state: PersonalState, trained: TrainedModels, t: int) -> PersonalState:
        return PersonalState(trained.personal, state.received)


#: The authors' ε.
PERTURBATION = 1e-4


@dataclass(frozen=True, eq=False)
class MapTrained:
    """models: (r, P) of every center.  contribution: (r,) its ω."""

    models: Weights
    contribution: Floats


@dataclass(frozen=True)
class FedMAP(FedAvg):
    """FedMAP (Zhang et al., arXiv 2405.19000): every center's own model is a maximum a posteriori.

    A round: a center trains from the common model γ on F_i(θ) + (α/2) ‖θ − γ‖², keeps the result θ_i, and
    sends it with its contribution ω_i = exp(mean log-likelihood − prior / rows); γ becomes the mean of θ_i by
    ω_i, which hardly differ. The prior follows the authors' public code, which adds ε (‖θ‖² + ‖γ‖²) to the
    quadratic term; its network that is convex in its inputs (version 2) is left out: how it is trained is not
    public.
    """

    alpha: float = 0.01

    #: The contribution travels with the model.
    noted = True

    limits: ClassVar = {"alpha": FROM_0}
    searched: ClassVar = {"alpha": (0.01, 0.1)}

    @property
    def adds(self) -> Adding | None:
        return None

    def init(self, context: Context) -> PersonalState:
        start = context.common_start()
        return PersonalState(start, start)

    def train(self, context: Context, state: PersonalState, t: int, alone: bool) -> MapTrained:
        prior = Objective(strength=self.alpha, anchor=state.received)
        models = context.learner.train(state.models if alone else state.received, t, prior)
        squares = np.square(models.astype(np.float64)).sum(1) + np.square(state.received).sum(1)
        distance = np.square((models - state.received).astype(np.float64)).sum(1)
        rows = np.maximum(context.data.train.sizes, 1)
        log = (
            -own_losses(context, models, "train")
            - (self.alpha / 2 * distance + PERTURBATION * squares) / rows
        )
        return MapTrained(models, np.exp(log))

    def note(self, context: Context, trained: MapTrained) -> Floats:
        return trained.contribution

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        return (weighted_mean(sent[0], np.maximum(sent[1], 1e-30)),), None

    def receive(
        self, context: Context, state: Any, trained: MapTrained, down: tuple[Weights, ...], t: int
    ) -> PersonalState:
        return PersonalState(trained.models, under(down[0], trained.models))

    def rest(self, context: Context, state: Any, trained: MapTrained, t: int) -> PersonalState:
        return PersonalState(trained.models, state.received)
