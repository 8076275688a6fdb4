"""FedAvg whose server or centers correct their steps: FedAvgM, FedDyn and SCAFFOLD."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from abps.core.arrays import Weighting, Weights, lerp, repeated, shares, weighted_mean
from abps.core.errors import POSITIVE
from abps.methods.base import Context, Models, Wire, tried
from abps.methods.fedavg import under
from abps.methods.star import Adding, Server, StarMethod
from abps.models.training import PLAIN, Objective


@dataclass(frozen=True, eq=False)
class Momentum:
    """The server's own model (shared,) and its velocity (shared,)."""

    model: Weights
    velocity: Weights


@dataclass(frozen=True)
class FedAvgM(StarMethod):
    """FedAvgM (Hsu et al. 2019): v <- beta v + (w - mean of the centers' models);  w <- w - server_lr v.

    Heavy-ball momentum on the server, without Nesterov's look-ahead and with a full first step. It speeds up;
    the paper's "EMA momentum" (``smoothing`` of FedAvg) slows down.
    """

    wire: Wire = field(default_factory=Wire)
    weighting: Weighting = "size"
    beta: float = 0.9
    server_lr: float = 1.0

    keeps = Momentum
    limits: ClassVar = {"beta": (0.0, math.nextafter(1.0, 0.0)), "server_lr": POSITIVE}
    searched: ClassVar = {"beta": (0.5, 0.9)}

    @property
    def adds(self) -> Adding | None:
        return self.weighting

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], Momentum]:
        mean = weighted_mean(sent[0], shares(sizes, self.weighting))
        before = server.memory or Momentum(start[: len(mean)], np.zeros_like(mean))
        velocity = self.beta * before.velocity + (before.model - mean)
        model = before.model - self.server_lr * velocity
        return (model,), Momentum(model, velocity)

    def receive(
        self, context: Context, state: Any, trained: Models, down: tuple[Weights, ...], t: int
    ) -> Models:
        return Models(under(down[0], trained.models))


@dataclass(frozen=True, eq=False)
class DynState(Models):
    """models: (r, P) evaluated.  cloud: (r, P) where training starts.  moved: (r, P) each center's d_i.  h:
    (P,) the mean of all d_i, which follows from the cloud models."""

    cloud: Weights
    moved: Weights
    h: Weights


@dataclass(frozen=True, eq=False)
class DriftTerm:
    """The server's h (P,)."""

    h: Weights


@dataclass(frozen=True)
class FedDyn(StarMethod):
    """FedDyn (Acar et al. 2021): every center's loss is bent until all agree on one optimum.

    A center remembers how far it has moved in all rounds, d_i = sum of (theta_i - w), and minimises
    F_i(theta) + (alpha_i / 2) ||theta - (w - d_i)||^2: the paper's F_i - <g_i, theta> + (alpha / 2) ||theta -
    w||^2 with g_i = -alpha_i d_i. The server keeps h, the mean of all d_i, and sends out the "cloud" model,
    mean of theta plus h. What is evaluated is the plain mean, as the authors do; it follows from the clouds
    and costs no byte. alpha must hold a round's displacement against Adam's normalised steps: with few steps
    a round, values below about 0.3 let h grow like momentum without friction.

    alpha: none: 1 for networks, 0.1 for linear models, which are solved. weighting: size gives center i alpha
    / (N_i / mean N), as the authors' code does; uniform gives alpha to all. The server's mean is uniform in
    both.
    """

    alpha: float | None = None
    codec: str = "fp32"
    weighting: Weighting = "size"

    keeps = DriftTerm
    limits: ClassVar = {"alpha": POSITIVE}

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        return tried(self, alpha=(0.02, 0.1) if self.training.optimizer == "newton" else (0.1, 1.0))

    def init(self, context: Context) -> DynState:
        start = context.common_start()
        return DynState(start, start, np.zeros_like(start), np.zeros_like(context.learner.start))

    def strengths(self, context: Context) -> Weights:
        """(r,) alpha_i."""
        weights = shares(context.sizes(), self.weighting)
        usual = 0.1 if self.training.optimizer == "newton" else 1.0
        alpha = usual if self.alpha is None else self.alpha
        return alpha * weights.mean() / weights

    def train(self, context: Context, state: DynState, t: int, alone: bool) -> Models:
        bent = PLAIN if alone else Objective(self.strengths(context), state.cloud - state.moved)
        return Models(context.learner.train(state.cloud, t, bent))

    @property
    def adds(self) -> Adding | None:
        return "uniform"

    def upload(self, context: Context, state: DynState, trained: Models, t: int) -> tuple[Weights, ...]:
        return (trained.models,)

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], DriftTerm]:
        mean = sent[0].mean(0)
        before = server.memory.h if server.memory else np.zeros_like(mean)
        h = before + (mean - (server.last[0] if server.last else start))
        return (mean + h,), DriftTerm(h)

    def receive(
        self, context: Context, state: DynState, trained: Models, down: tuple[Weights, ...], t: int
    ) -> DynState:
        """Start from the cloud; the mean follows from it and the one before."""
        cloud, before = down[0], state.cloud[0]
        mean = (cloud + before - state.h) / 2
        moved = state.moved + (trained.models - state.cloud)
        return DynState(
            repeated(mean, context.r), repeated(cloud, context.r), moved, state.h + (mean - before)
        )

    def rest(self, context: Context, state: DynState, trained: Models, t: int) -> DynState:
        return DynState(trained.models, trained.models, state.moved, state.h)


@dataclass(frozen=True, eq=False)
class ScaffoldState(Models):
    """models: (r, P).  own: (r, P) the control variates c_i.  common: (P,) their mean c."""

    own: Weights
    common: Weights


@dataclass(frozen=True)
class Scaffold(StarMethod):
    """SCAFFOLD (Karimireddy et al. 2020): control variates take a center's own bias out of its steps.

    Every step follows g - c_i + c, where c_i is center i's gradient and c the mean over all centers. Model
    and control variate travel both ways. Networks take K local steps, after which c_i is the gradient at the
    received model x (the paper's option I; option II needs plain gradient steps).

    Convex models are solved: the limit of ever more steps, for which the paper's bound on the step size
    leaves no room. So the K steps become one implicit step of their whole length s, which stays bounded: y_i
    = argmin F_i(y) + (c - c_i)'y + |y - x|^2 / (2 s), c_i <- c_i - c + (x - y_i) / s (option II; the gradient
    at y_i). With convex losses |x - x*|^2 + s^2 mean |c_i - c_i*|^2 then never grows, whatever s is.

    server_lr: the server's step. step: s. weighting: size or uniform, of both means.
    """

    server_lr: float = 1.0
    step: float = 10.0
    weighting: Weighting = "size"
    codec: str = "fp32"

    #: The model, and the control variate.
    messages = 2

    limits: ClassVar = {"server_lr": POSITIVE, "step": POSITIVE}

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        return {"step": (3.0, 10.0)} if self.training.optimizer == "newton" else super().grid

    def init(self, context: Context) -> ScaffoldState:
        start = context.common_start()
        return ScaffoldState(start, np.zeros_like(start), np.zeros_like(context.learner.start))

    def train(self, context: Context, state: ScaffoldState, t: int, alone: bool) -> ScaffoldState:
        if alone:
            return ScaffoldState(context.learner.train(state.models, t, PLAIN), state.own, state.common)
        shift = state.common - state.own
        if self.training.optimizer != "newton" or self.training.clip is not None:
            trained = context.learner.train(state.models, t, Objective(shift=shift))
            renewed = context.learner.gradient(state.models, context.data.train)
            return ScaffoldState(trained, renewed, state.common)
        implicit = Objective(1.0 / self.step, state.models, shift)
        trained = context.learner.train(state.models, t, implicit)
        renewed = (state.models - trained) / np.float32(self.step) - shift
        return ScaffoldState(trained, renewed * (context.data.train.sizes[:, None] > 0), state.common)

    @property
    def adds(self) -> Adding | None:
        return self.weighting

    def upload(
        self, context: Context, state: ScaffoldState, trained: ScaffoldState, t: int
    ) -> tuple[Weights, ...]:
        return trained.models, trained.own

    def serve(
        self, start: Weights, server: Server, sent: tuple[Weights, ...], sizes: Weights, t: int
    ) -> tuple[tuple[Weights, ...], None]:
        weights = shares(sizes, self.weighting)
        mean, common = (weighted_mean(each, weights) for each in sent)
        return (lerp(server.last[0] if server.last else start, mean, self.server_lr), common), None

    def receive(
        self,
        context: Context,
        state: ScaffoldState,
        trained: ScaffoldState,
        down: tuple[Weights, ...],
        t: int,
    ) -> ScaffoldState:
        return ScaffoldState(repeated(down[0], context.r), trained.own, down[1])

    def rest(self, context: Context, state: ScaffoldState, trained: ScaffoldState, t: int) -> ScaffoldState:
        return ScaffoldState(trained.models, state.own, state.common)
