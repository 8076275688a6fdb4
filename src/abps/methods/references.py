"""References: what a hospital, a data lake or a federated regression would give, fitted as well as it can be.

``local`` and ``centralized`` are the paper's network alone and on pooled rows. The others stand beside every
comparison, because a gain over a weak model is none: ``local-best`` is what a hospital has by itself,
``pooled-best`` what all rows in one place would give, ``glm-exact`` today's federated regression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core.arrays import repeated
from abps.core.errors import RequestError
from abps.data.prepare import Prepared, Rows
from abps.methods.base import Context, Method, Models, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.models.glm import message, newton_step, with_intercept
from abps.models.metrics import Segments
from abps.models.tabular import TableModel, fit_table
from abps.models.training import Training
from abps.privacy.small_counts import without_small
from abps.wire.number_lists import Field, NumberList

if TYPE_CHECKING:
    from abps.models.learners import Learner

Floats = NDArray[np.float64]

#: The penalty before any evidence, and what a last step may still gain, in nats of all rows together.
FIRST_PENALTY = 30.0
NEGLIGIBLE_GAIN = 0.01


@dataclass(frozen=True)
class Local(Method):
    """Every center trains alone: a method's default behaviour."""


@dataclass(frozen=True)
class Centralized(Method):
    """Pools the rows that each center standardised by itself: the features the federation sees."""

    def init(self, context: Context) -> Models:
        return Models(context.learner.start[None].copy())

    def derived(self, context: Context) -> Learner:
        return context.learner.on(pool(context.data))

    def train(self, context: Context, state: Models, t: int, alone: bool) -> Models:
        return Models(context.derived.train(state.models, t))

    def logits(self, context: Context, state: Models, rows: Rows) -> Segments:
        return context.learner.logits(repeated(state.models, context.n), rows)


def pool(data: Prepared) -> Prepared:
    """A federation of one center that owns all training rows."""
    train = replace(data.train, start=np.array([0, len(data.train.y)]), patient=None)
    return replace(data, centers=("pooled",), train=train, groups=None)


@dataclass(frozen=True, eq=False)
class Fitted:
    """One model per table; nothing before it is fitted."""

    tables: tuple[TableModel, ...] = ()


@dataclass(frozen=True)
class TableReference(Method):
    """Regressions and boosted trees, stacked by cross-validation over patients and fitted to training and
    validation rows (:mod:`abps.models.tabular`), in one round. Of validation rows it gives predictions by
    models that have not seen them, so that thresholds and calibration are honest."""

    stop: Stopping = field(default_factory=lambda: Stopping(rounds=1))

    fitted: ClassVar[bool] = True

    def init(self, context: Context) -> Fitted:
        return Fitted()

    def train(self, context: Context, state: Fitted, t: int, alone: bool) -> Fitted:
        return state if state.tables else Fitted(self.fit(context))

    def fit(self, context: Context) -> tuple[TableModel, ...]:
        raise NotImplementedError

    def logits(self, context: Context, state: Fitted, rows: Rows) -> Segments:
        data, models = context.data, state.tables
        if rows is data.validation:
            of_own = np.concatenate([model.held_out for model in models])
            both = np.stack([data.train.sizes, data.validation.sizes], axis=1).ravel()  # as own rows stand
            validated = ~np.repeat(np.tile([True, False], data.size), both)
            return Segments(_answers(of_own[validated]), rows.start)
        parts = [
            models[i if len(models) > 1 else 0].predict(rows.only(i).x.astype(np.float64))
            for i in range(len(rows.sizes))
        ]
        return Segments(_answers(np.concatenate(parts)), rows.start)


def _answers(z: Floats) -> Floats:
    return z[:, 0] if z.shape[1] == 1 else z


@dataclass(frozen=True)
class LocalBest(TableReference):
    """The best that every center can do with its own rows."""

    def fit(self, context: Context) -> tuple[TableModel, ...]:
        own = context.data.own
        found: list[TableModel] = [None] * len(own.sizes)  # type: ignore[list-item]

        def one(i: int) -> None:
            rows = own.only(i)
            x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
            found[i] = fit_table(x, y, rows.patient, context.seed, rows.outcome)

        context.learner.each(one, len(found))
        return tuple(found)


@dataclass(frozen=True)
class PooledBest(TableReference):
    """The same on all rows in one place, with one scale for every column."""

    training: Training = field(default_factory=lambda: Training(standardise="common"))

    def fit(self, context: Context) -> tuple[TableModel, ...]:
        own = context.data.own
        x, y = own.x.astype(np.float64), own.y.astype(np.float64)
        return (fit_table(x, y, own.patient, context.seed, own.outcome, context.learner.each),)


@dataclass(frozen=True, eq=False)
class RegressionState(Models):
    """models: (r, columns + 1) the coefficients, the intercept last.  w: (1 + columns,) the same, it first.
    base, before: the coefficients before the last step, and the loss there.  penalty: by evidence."""

    w: Floats
    base: Floats
    before: float = math.inf
    penalty: float = FIRST_PENALTY
    done: bool = False


@dataclass(frozen=True)
class GlmExact(CoordinatedMethod):
    """The pooled ridge regression from sums: each exchange one Newton step, all centers' X'WX and gradient.

    The penalty maximises the evidence of all rows. Steps end when one would lower the loss by less than
    :data:`NEGLIGIBLE_GAIN`. With a minimum cell size a center leaves out yes/no columns that have a small
    cell with the outcome, and everything if it has fewer rows of an outcome: its sums have zeros there.
    """

    only_binary: ClassVar[str] = "its sums are those of a logistic regression; leave it out"

    training: Training = field(default_factory=lambda: Training(standardise="common", model="linear"))

    fitted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        model = "gam" if self.training.splines else "linear"
        if self.training.model != model:
            object.__setattr__(self, "training", replace(self.training, model=model))
        if self.training.clip is not None:
            raise RequestError(
                "clip: this regression takes no steps on single rows, so nothing of it is private; leave "
                "clip and dp_epsilon out, or choose fedavg"
            )

    def sums_only(self, t: int) -> bool:
        return True

    def finished(self, state: RegressionState) -> bool:
        return state.done

    def derived(self, context: Context) -> tuple[Rows, NDArray[np.bool_]]:
        """Training rows as sums may include them (columns with a small cell are zero), and (centers,) which
        centers send zeros."""
        data, train = context.data, context.data.train
        if not data.min_cell:
            return train, np.zeros(data.size, dtype=bool)
        few, kept = releasable_columns(data)
        x = np.where(np.repeat(kept, train.sizes, axis=0), train.x, np.float32(0.0))
        return replace(train, x=x), few

    def init(self, context: Context) -> RegressionState:
        zero = np.zeros(1 + context.data.width)
        return RegressionState(np.zeros((context.r, len(zero)), dtype=np.float32), zero, zero)

    def upload(self, context: Context, state: RegressionState, t: int) -> Upload:
        train, few = context.derived
        sums = message(train, state.w)
        sums[few] = 0.0
        return Upload.encode(list(sums), [(Field("single", sums.shape[1]),)] * len(sums))

    def aggregate(self, context: Context, state: RegressionState, uploads: Floats, t: int) -> Broadcast:
        after = self.step(state, np.nansum(uploads, axis=0))
        values = np.concatenate([after.w, after.base, [after.before, after.penalty, after.done]])
        return Broadcast(NumberList.of(values, (Field("single", len(values)),)))

    def step(self, state: RegressionState, total: Floats) -> RegressionState:
        """After the sums of all at the coefficients; the models are as they were."""
        now, old = (
            float(loss + 0.5 * state.penalty * (w[1:] ** 2).sum())
            for loss, w in ((total[-2], state.w), (state.before, state.base))
        )
        if now > old * (1.0 + 1e-6):  # too far
            return replace(state, w=0.5 * (state.w + state.base))
        w, penalty, gain = newton_step(total, state.w, state.penalty)
        done, before = gain < NEGLIGIBLE_GAIN, float(total[-2])
        return replace(state, w=w, base=state.w, before=before, penalty=penalty, done=done)

    def apply_broadcast(
        self, context: Context, state: RegressionState, broadcast: Broadcast, t: int
    ) -> RegressionState:
        values, width = broadcast.common.values, len(state.w)
        if len(values) != 2 * width + 3:
            raise ValueError("no coefficients of such a regression")
        w, base, (before, penalty, done) = np.split(values, (width, 2 * width))
        models = np.tile(np.roll(w, -1).astype(np.float32), (context.r, 1))  # the intercept is the last
        return RegressionState(models, w, base, float(before), float(penalty), bool(done))

    def logits(self, context: Context, state: RegressionState, rows: Rows) -> Segments:
        return Segments(with_intercept(rows.x) @ state.w, rows.start)


def categories(data: Prepared) -> NDArray[np.int64]:
    """(columns,) of which category every encoded column is a level; -1 of others."""
    known = () if data.book is None else data.book.columns
    source = {column.name: column.source for column in known if column.kind == "level"}
    numbers = {name: k for k, name in enumerate(dict.fromkeys(source.values()))}
    return np.array([numbers.get(source.get(name, ""), -1) for name in data.columns], dtype=np.int64)


def releasable_columns(data: Prepared) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(centers,) which have too few events, or rows without one, to publish sums of them, and (centers,
    columns) which columns the others may include: those without a small cell."""
    rows, groups = data.train, categories(data)
    few = np.minimum(rows.positives(), rows.sizes - rows.positives()) < data.min_rows
    shown = np.zeros((data.size, rows.x.shape[1]), dtype=bool)
    for i in range(data.size):
        mine = slice(int(rows.start[i]), int(rows.start[i + 1]))
        events = data.outcome.events(rows.y[mine]).astype(np.float64)
        x, least = rows.x[mine].astype(np.float64), int(data.min_rows[i])
        shown[i] = without_small(x, events, least, groups).any(axis=0)
    return np.asarray(few), shown
