"""References: what a hospital, a data lake or a federated regression would give, fitted as well as it can be.

They stand beside every comparison, because a gain over a weak model is none. ``local-best`` is what a
hospital has without anybody; ``pooled-best`` what all rows in one place would give; ``glm-exact`` the
federated regression that clinical networks use today. ``local-stopped`` and ``centralized-stopped`` are the
paper's network alone and on pooled rows, stopped where validation rows say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core.ledger import Ledger, Traffic
from abps.data.prepare import Rows
from abps.learn.glm import message, message_size, newton_step, with_intercept
from abps.learn.metrics import Segments, labels_of, log_loss
from abps.learn.tabular import Choice, Predictor, choose, fit
from abps.learn.training import Learner, Training
from abps.methods.base import Method, Outcome, Stopping, World
from abps.methods.centralized import pool
from abps.wire.codecs import codec
from abps.wire.frames import frame_size

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fitted:
    """One model per table: what was chosen, and what it predicts; nothing before it is fitted."""

    choices: tuple[Choice, ...] = ()
    predictors: tuple[Predictor, ...] = ()


@dataclass(frozen=True)
class Reference(Method):
    """A reference that is fitted in one round by methods of its own, not by steps of local training."""

    stop: Stopping = field(default_factory=lambda: Stopping(rounds=1))

    #: Its models are not vectors of weights that centers could exchange.
    fitted: ClassVar[bool] = True

    def between_sites(self) -> str:
        """Why it does not run between sites."""
        return "it is a reference for simulations"


@dataclass(frozen=True)
class LocalBest(Reference):
    """The best of ridge regression, additive model and boosting at every center, on its own rows.

    Chosen by cross-validation over patients on training and validation rows, and fitted to both: what it
    answers on validation rows is therefore not held out.
    """

    def init(self, world: World) -> Fitted:
        """Nothing yet."""
        return Fitted()

    def apply(self, world: World, state: Fitted, t: int, ledger: Ledger) -> tuple[Fitted, Outcome]:
        """Choose and fit, once."""
        return self.fit(world) if not state.predictors else state, Outcome.alone(world.n)

    def moved(self, before: World, world: World, state: Fitted, t: int) -> Fitted:
        """New data: all is fitted anew."""
        return Fitted()

    def fit(self, world: World) -> Fitted:
        """Every center's own choice."""
        own = world.data.own
        found: list[tuple[Choice, Predictor]] = [None] * len(own.sizes)  # type: ignore[list-item]

        def one(i: int) -> None:
            rows = own.only(i)
            x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
            choice = choose(x, y, rows.patient, world.seed)
            found[i] = choice, fit(choice, x, y)

        world.learner.each(one, len(found))
        return Fitted(tuple(c for c, _ in found), tuple(p for _, p in found))

    def logits(self, world: World, state: Fitted, rows: Rows) -> Segments:
        """Every center's model on its own rows."""
        parts = [state.predictors[i](rows.only(i).x.astype(np.float64))[0] for i in range(len(rows.sizes))]
        return Segments(np.concatenate(parts), rows.start)


@dataclass(frozen=True)
class PooledBest(Reference):
    """The best of the same three on all rows in one place, with one scale for every column."""

    training: Training = field(default_factory=lambda: Training(standardise="common"))

    def init(self, world: World) -> Fitted:
        """Nothing yet."""
        return Fitted()

    def apply(self, world: World, state: Fitted, t: int, ledger: Ledger) -> tuple[Fitted, Outcome]:
        """Choose and fit, once."""
        return self.fit(world) if not state.predictors else state, Outcome.alone(world.n)

    def moved(self, before: World, world: World, state: Fitted, t: int) -> Fitted:
        """New data: all is fitted anew."""
        return Fitted()

    def fit(self, world: World) -> Fitted:
        """One choice for all."""
        own = world.data.own
        x, y = own.x.astype(np.float64), own.y.astype(np.float64)
        choice = choose(x, y, own.patient, world.seed, each=world.learner.each)
        return Fitted((choice,), (fit(choice, x, y),))

    def logits(self, world: World, state: Fitted, rows: Rows) -> Segments:
        """The one model on all rows."""
        return Segments(state.predictors[0](rows.x.astype(np.float64))[0], rows.start)


@dataclass(frozen=True, eq=False)
class Regression:
    """A federated regression on its way.

    w: (1 + columns,) coefficients that centers are asked about.  step: which penalty is being solved.
    before: the penalised training loss one round ago.  best, judged: the coefficients with the smallest
    validation loss so far, and that loss.  done: all penalties are solved.
    """

    w: Floats
    step: int = 0
    before: float = np.inf
    best: Floats | None = None
    judged: float = np.inf
    done: bool = False

    @property
    def models(self) -> Tensor:
        """(1, 1 + columns) the coefficients in use."""
        return torch.from_numpy(self.w if self.best is None else self.best)[None]


@dataclass(frozen=True)
class GlmExact(Reference):
    """The pooled ridge regression from sums: each round one Newton step, all centers' X'WX and gradient.

    The penalty is the one with the smallest mean loss over all validation rows, whose sums travel along.
    penalties: tried from the strongest down, each from the solution before.
    """

    training: Training = field(default_factory=lambda: Training(standardise="common"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=50))
    penalties: tuple[float, ...] = (1000.0, 100.0, 10.0, 1.0)

    def init(self, world: World) -> Regression:
        """All zero."""
        return Regression(np.zeros(1 + world.data.width))

    def apply(self, world: World, state: Regression, t: int, ledger: Ledger) -> tuple[Regression, Outcome]:
        """One Newton step of the federation, unless all is done."""
        if state.done:
            return state, Outcome.alone(world.n)
        up = frame_size(codec("fp32"), message_size(len(state.w)))
        down = frame_size(codec("fp32"), len(state.w))
        traffic = Traffic(edge=world.n * up, directed=world.n * (up + down))
        if not ledger.affords(traffic):
            return replace(state, done=True), replace(Outcome.alone(world.n), overdrawn=True)
        # Sent as four-byte numbers, summed as eight.
        total = message(world.data.train, world.data.validation, state.w).sum(axis=0, dtype=np.float64)
        return self.serve(state, total), Outcome.of_star(world.n, traffic)

    def serve(self, state: Regression, total: Floats) -> Regression:
        """What the server makes of the sums at the coefficients that it asked about."""
        penalty = self.penalties[state.step]
        loss = float(total[-4] + 0.5 * penalty * (state.w[1:] ** 2).sum())
        if loss > state.before * (1.0 - 1e-5):  # solved: judge it, and on to the next penalty
            judged = float(total[-2] / max(total[-1], 1.0))
            if judged < state.judged:
                state = replace(state, best=state.w, judged=judged)
            if state.step + 1 == len(self.penalties):
                return replace(state, done=True)
            penalty = self.penalties[state.step + 1]
            state = replace(state, step=state.step + 1)
            loss = np.inf
        return replace(state, before=loss, w=newton_step(total, state.w, penalty))

    def moved(self, before: World, world: World, state: Regression, t: int) -> Regression:
        """New data: from the coefficients in use, all penalties anew."""
        return Regression(state.w if state.best is None else state.best)

    def logits(self, world: World, state: Regression, rows: Rows) -> Segments:
        """The one regression on all rows."""
        w = state.w if state.best is None else state.best
        return Segments(with_intercept(rows.x) @ w, rows.start)


@dataclass(frozen=True, eq=False)
class Stopped:
    """current: models as training goes on.  models, loss: each where its validation loss was smallest."""

    current: Tensor
    models: Tensor
    loss: Floats


@dataclass(frozen=True)
class LocalStopped(Method):
    """Every center alone, each with the model of its own best round."""

    def init(self, world: World) -> Any:
        """The common start."""
        start = world.common_start()
        return Stopped(start, start, np.full(world.n, np.inf))

    def apply(self, world: World, state: Stopped, t: int, ledger: Ledger) -> tuple[Any, Outcome]:
        """Train, and keep what is better."""
        trained = world.learner.train(state.current, t)
        answers = world.learner.logits(trained, world.data.validation)
        loss = log_loss(answers, labels_of(world.data.validation))
        return better(state, trained, loss), Outcome.alone(world.n)

    def moved(self, before: World, world: World, state: Stopped, t: int) -> Stopped:
        """Judged anew on the rows of the window in force."""
        return replace(state, loss=np.full(world.n, np.inf))


@dataclass(frozen=True, eq=False)
class PooledStopped:
    """The learner that sees all rows, and its one model."""

    pooled: Learner
    kept: Stopped

    @property
    def models(self) -> Tensor:
        """(1, P) the best so far."""
        return self.kept.models


@dataclass(frozen=True)
class CentralizedStopped(Method):
    """One network on pooled rows with one scale, of the round that was best on all validation rows."""

    training: Training = field(default_factory=lambda: Training(standardise="common"))

    def init(self, world: World) -> PooledStopped:
        """One model, the common start."""
        start = world.learner.start[None].clone()
        return PooledStopped(world.learner.on(pool(world.data)), Stopped(start, start, np.full(1, np.inf)))

    def apply(self, world: World, state: PooledStopped, t: int, ledger: Ledger) -> tuple[Any, Outcome]:
        """Train, and keep what is better."""
        trained, rows = state.pooled.train(state.kept.current, t), world.data.validation
        answers = world.learner.logits(trained.expand(world.n, -1), rows)
        whole = np.array([0, len(rows.y)])
        loss = log_loss(Segments(answers.values, whole), Segments(rows.y, whole))
        return PooledStopped(state.pooled, better(state.kept, trained, loss)), Outcome.alone(world.n)

    def moved(self, before: World, world: World, state: PooledStopped, t: int) -> PooledStopped:
        """The same model on the rows of the window in force, judged anew."""
        pooled = world.learner.on(pool(world.data))
        return PooledStopped(pooled, replace(state.kept, loss=np.full(1, np.inf)))

    def logits(self, world: World, state: PooledStopped, rows: Rows) -> Segments:
        """The best model on every center's own rows."""
        return world.learner.logits(state.models.expand(world.n, -1), rows)


def better(state: Stopped, trained: Tensor, loss: Floats) -> Stopped:
    """The state after a round: a model with a smaller validation loss takes the place of the best.

    A center without validation rows has nothing to stop by and keeps the last.
    """
    won = ~(loss >= state.loss)
    chosen = torch.where(torch.from_numpy(won)[:, None], trained, state.models)
    return Stopped(trained, chosen, np.where(won, np.where(np.isnan(loss), np.inf, loss), state.loss))
