"""Logistic regressions from sums: ODAL in three exchanges, and a mixed model with random intercepts.

**ODAL** (Duan et al. 2020), by a surrogate likelihood.

1. Every center sends its own regression with the precision of each coefficient; their weighted mean β̄ comes
   back. 2. Every center sends the gradient of its loss at β̄. 3. The lead, the center with the most rows,
   minimises its own mean loss plus (g − g_lead)'β, where g is the gradient of all rows, and sends the result
   to all. So the gradient is that of the pooled rows, the curvature that of the lead.

The authors' package (pda) fits without a penalty, which fails where a column is constant at a hospital. Here
centers penalise by evidence, and the lead is held at β̄ by its own penalty, where its rows say nothing. Their
second form (ODAL2) adds curvatures; without a penalty its surrogate is not convex, and it is left out.

**GLMM**, in the way of dPQL and COLA-GLMM.

    logit P(y = 1 | x, center i) = a + u_i + x'b,    u_i ~ N(0, τ²)

Every exchange is one step of penalised quasi-likelihood (Breslow and Clayton 1993): a center finds its own
u_i for the a, b and τ² that were sent, and uploads gradient and curvature of (a, b) with u_i profiled out,
u_i² and its degrees of freedom. All are summed, so masked sums suffice. The coordinator takes a Newton step
and renews τ² and a ridge penalty per kind of column by evidence: variance = Σ squares / Σ freedom.

dPQL (Li et al. 2022) and COLA-GLMM (2025) have no penalty; the latter sends counts of every pattern of
covariates once, which needs few categories. Their fits are what this one gives without the penalty.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from abps.data.outcome import BINARY
from abps.methods.base import Context, Floats, Models, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.models.families import log_loss
from abps.models.newton import OwnRows, column_kinds, fit_by_evidence, of_answers
from abps.models.training import Training
from abps.statistics.families import LOGISTIC, own_intercept
from abps.wire.number_lists import Field, NumberList


@dataclass(frozen=True)
class SumRegression(CoordinatedMethod):
    """An additive logistic regression on common scales."""

    only_binary: ClassVar[str] = "it is a logistic regression; leave it out"

    training: Training = field(default_factory=lambda: Training.of("gam", standardise="common"))


def _upload(lists: list[Floats]) -> Upload:
    return Upload.encode(lists, [(Field("single", len(values)),) for values in lists])


def _broadcast(values: Floats) -> Broadcast:
    return Broadcast(NumberList.of(values, (Field("single", len(values)),)))


@dataclass(frozen=True, eq=False)
class Surrogate(Models):
    """models: (r, P) the coefficients so far, for all the same.  mean: (P,) β̄.  gradient: (P,) of the mean
    loss of all rows at β̄, known to the lead."""

    mean: Floats
    gradient: Floats


@dataclass(frozen=True)
class ODAL(SumRegression):
    """The largest center leads."""

    stop: Stopping = field(default_factory=lambda: Stopping(rounds=3))

    def init(self, context: Context) -> Surrogate:
        zero = np.zeros(context.data.width + 1)
        return Surrogate(np.zeros((context.r, len(zero)), np.float32), zero, zero)

    def upload(self, context: Context, state: Surrogate, t: int) -> Upload:
        """The own regression; the own gradient; the lead's result."""
        lists, lead = [], int(np.argmax(context.sizes()))
        for i in range(context.n):
            if t == 3 and i != lead:
                lists.append(np.zeros(0))
                continue
            rows = context.data.train.only(i)
            x, y = rows.x.astype(np.float64), rows.y.astype(np.float64)
            if t == 2:
                lists.append(np.append(_gradient(x, y, state.mean), len(y)))
                continue
            mine, columns = OwnRows(x, y, of_answers(BINARY), np.ones((1, 1))), x.shape[1]
            w, penalty = fit_by_evidence(mine, np.zeros(columns + 1), np.zeros(columns, dtype=np.int64))
            if t == 1:
                chance = expit(mine.answers(w)[:, 0])
                precision = (chance * (1.0 - chance)) @ np.column_stack([x, np.ones(len(y))]) ** 2
                lists.append(np.concatenate([w, precision]))
            else:
                lists.append(surrogate_fit(x, y, state, np.append(penalty, 0.0)))
        return _upload(lists)

    def aggregate(self, context: Context, state: Surrogate, uploads: Floats, t: int) -> Broadcast:
        if t == 2:
            total = np.nansum(uploads, axis=0)
            message = NumberList.of(total[:-1] / total[-1], (Field("single", len(total) - 1),))
            return Broadcast(NumberList.of(np.zeros(0), ()), {int(np.argmax(context.sizes())): message})
        if t == 1:
            w, precision = np.split(uploads, 2, axis=1)
            found = np.nansum(w * precision, axis=0) / np.maximum(np.nansum(precision, axis=0), 1e-30)
        else:
            found = np.nansum(uploads, axis=0)
        return _broadcast(found)

    def apply_broadcast(self, context: Context, state: Surrogate, broadcast: Broadcast, t: int) -> Surrogate:
        if t == 2:
            return Surrogate(state.models, state.mean, broadcast.only(int(np.argmax(context.sizes()))))
        w = broadcast.common.values
        models = np.tile(w.astype(np.float32), (context.r, 1))
        return Surrogate(models, w if t == 1 else state.mean, state.gradient)


def surrogate_fit(x: Floats, y: Floats, state: Surrogate, penalty: Floats) -> Floats:
    """(P,) the minimum of the surrogate loss on the lead's rows; the intercept is the last."""
    tilt, hold = state.gradient - _gradient(x, y, state.mean) / len(y), penalty / len(y)

    def loss(w: Floats) -> tuple[float, Floats]:
        gap = w - state.mean
        value = log_loss(x @ w[:-1] + w[-1], y).mean() + tilt @ w + 0.5 * hold @ gap**2
        return float(value), _gradient(x, y, w) / len(y) + tilt + hold * gap

    options = {"maxiter": 500, "gtol": 1e-7}
    return np.asarray(minimize(loss, state.mean, jac=True, method="L-BFGS-B", options=options).x)


def _gradient(x: Floats, y: Floats, w: Floats) -> Floats:
    residual = expit(x @ w[:-1] + w[-1]) - y
    return np.append(x.T @ residual, residual.sum())


#: Bounds of τ² and of penalties; where they begin.
VARIANCES, PENALTIES, FIRST_VARIANCE, FIRST_PENALTY = (1e-4, 25.0), (0.1, 1e5), 0.1, 10.0

#: Changes below this end the search. A loss that grows by more than this share of it halves the step.
TOLERANCE, SLACK = 1e-3, 1e-3


@dataclass(frozen=True, eq=False)
class MixedState(Models):
    """models: (r, P) with own intercepts.  w: (1 + columns,) a and b.  before: those of the last exchange.
    loss: at ``before``, penalised as now.  variance: τ².  penalty: (kinds,).  done: nothing changes any more.
    """

    w: Floats
    before: Floats
    loss: float
    variance: float
    penalty: Floats
    done: bool = False


@dataclass(frozen=True)
class MixedModel(SumRegression):
    """A random intercept for every center, all else in common."""

    stop: Stopping = field(default_factory=lambda: Stopping(rounds=25))

    def sums_only(self, t: int) -> bool:
        return True

    def finished(self, state: MixedState) -> bool:
        return state.done

    def init(self, context: Context) -> MixedState:
        width, kinds = context.data.width + 1, int(column_kinds(context.data.columns).max(initial=0)) + 1
        models, penalty = np.zeros((context.r, width), np.float32), np.full(kinds, FIRST_PENALTY)
        return MixedState(models, np.zeros(width), np.zeros(width), np.inf, FIRST_VARIANCE, penalty)

    def upload(self, context: Context, state: MixedState, t: int) -> Upload:
        width = len(state.w)
        half, lists = np.triu_indices(width), []
        for i in range(context.r):
            rows = context.data.train.only(i)
            design, y = np.column_stack([np.ones(len(rows.y)), rows.x]), rows.y.astype(np.float64)
            u = own_intercept(LOGISTIC, y, design @ state.w, 1.0 / state.variance)
            chance = expit(design @ state.w + u)
            weight = chance * (1.0 - chance)
            crossed, total = design.T @ weight, weight.sum() + 1.0 / state.variance
            curvature = (design * weight[:, None]).T @ design - np.outer(crossed, crossed) / total
            loss = log_loss(design @ state.w + u, y).sum() + u**2 / (2 * state.variance)
            freedom = 1.0 - 1.0 / (total * state.variance)
            lists.append(np.concatenate([curvature[half], design.T @ (y - chance), [loss, u**2, freedom]]))
        return _upload(lists)

    def aggregate(self, context: Context, state: MixedState, uploads: Floats, t: int) -> Broadcast:
        total, width = np.nansum(uploads, axis=0), len(state.w)
        kinds = column_kinds(context.data.columns)
        weight = np.concatenate([[1e-8], state.penalty[kinds]])
        loss = float(total[-3] + 0.5 * weight @ state.w**2)
        if loss > state.loss * (1.0 + SLACK):  # the step was too long
            return _reply(replace(state, w=(state.w + state.before) / 2))
        curvature = np.zeros((width, width))
        curvature[np.triu_indices(width)] = total[: width * (width + 1) // 2]
        curvature = curvature + np.triu(curvature, 1).T
        inverse = np.linalg.inv(curvature + np.diag(weight))
        step = inverse @ (total[-3 - width : -3] - weight * state.w)
        w = state.w + step
        freedom = np.bincount(kinds, 1.0 - weight[1:] * np.diag(inverse)[1:], len(state.penalty))
        squares = np.bincount(kinds, w[1:] ** 2, len(state.penalty))
        penalty = np.clip(freedom / np.maximum(squares, 1e-12), *PENALTIES)
        variance = float(np.clip(total[-2] / max(total[-1], 1e-12), *VARIANCES))
        changes = (*np.log(penalty / state.penalty), np.log(variance / state.variance), *step)
        done = bool(np.abs(changes).max() < TOLERANCE)
        known = float(total[-3] + 0.5 * np.concatenate([[1e-8], penalty[kinds]]) @ state.w**2)
        return _reply(MixedState(state.models, w, state.w, known, variance, penalty, done))

    def apply_broadcast(
        self, context: Context, state: MixedState, broadcast: Broadcast, t: int
    ) -> MixedState:
        values, width = broadcast.common.values, len(state.w)
        w, before, (loss, variance, done) = values[:width], values[width : 2 * width], values[2 * width :][:3]
        models = np.tile(np.append(w[1:], w[0]).astype(np.float32), (context.r, 1))
        for i in range(context.r):
            rows = context.data.train.only(i)
            y, z = rows.y.astype(np.float64), w[0] + rows.x @ w[1:]
            models[i, -1] += own_intercept(LOGISTIC, y, z, 1.0 / variance)
        return MixedState(models, w, before, float(loss), float(variance), values[2 * width + 3 :], done > 0)


def _reply(state: MixedState) -> Broadcast:
    numbers = [min(state.loss, 1e30), state.variance, state.done]
    return _broadcast(np.concatenate([state.w, state.before, numbers, state.penalty]))
