"""ODAL (Duan et al. 2020): a logistic regression in three exchanges, by a surrogate likelihood.

1. Every center sends its own regression with the precision of each coefficient; their weighted mean β̄ comes
   back. 2. Every center sends the gradient of its loss at β̄. 3. The lead, the center with the most rows,
   minimises its own mean loss plus (g − g_lead)'β, where g is the gradient of all rows, and sends the result
   to all. So the gradient is that of the pooled rows, the curvature that of the lead.

The authors' package (pda) fits without a penalty, which fails where a column is constant at a hospital. Here
centers penalise by evidence, and the lead is held at β̄ by its own penalty, where its rows say nothing. Their
second form (ODAL2) adds curvatures; without a penalty its surrogate is not convex, and it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from abps.data.outcome import BINARY
from abps.methods.base import Context, Floats, Models, Stopping
from abps.methods.coordinated import Broadcast, CoordinatedMethod, Upload
from abps.models.glm import row_losses
from abps.models.newton import OwnRows, fit_by_evidence, of_answers
from abps.models.training import Training
from abps.wire.number_lists import Field, NumberList


@dataclass(frozen=True, eq=False)
class Surrogate(Models):
    """models: (r, P) the coefficients so far, for all the same.  mean: (P,) β̄.

    gradient: (P,) of the mean loss of all rows at β̄, known to the lead.
    """

    mean: Floats
    gradient: Floats


@dataclass(frozen=True)
class ODAL(CoordinatedMethod):
    """The largest center leads."""

    only_binary: ClassVar[str] = "it is a logistic regression; leave it out"

    training: Training = field(default_factory=lambda: Training.of("gam", standardise="common"))
    stop: Stopping = field(default_factory=lambda: Stopping(rounds=3))

    def init(self, context: Context) -> Surrogate:
        """Nothing is known."""
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
        return Upload.encode(lists, [(Field("single", len(values)),) for values in lists])

    def aggregate(self, context: Context, state: Surrogate, uploads: Floats, t: int) -> Broadcast:
        """The weighted mean; the mean gradient, for the lead alone; what the lead found."""
        if t == 2:
            total = np.nansum(uploads, axis=0)
            message = NumberList.of(total[:-1] / total[-1], (Field("single", len(total) - 1),))
            return Broadcast(NumberList.of(np.zeros(0), ()), {int(np.argmax(context.sizes())): message})
        if t == 1:
            w, precision = np.split(uploads, 2, axis=1)
            found = np.nansum(w * precision, axis=0) / np.maximum(np.nansum(precision, axis=0), 1e-30)
        else:
            found = np.nansum(uploads, axis=0)
        return Broadcast(NumberList.of(found, (Field("single", len(found)),)))

    def apply_broadcast(self, context: Context, state: Surrogate, broadcast: Broadcast, t: int) -> Surrogate:
        """Coefficients for all; the gradient for the lead."""
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
        value = row_losses(x @ w[:-1] + w[-1], y).mean() + tilt @ w + 0.5 * hold @ gap**2
        return float(value), _gradient(x, y, w) / len(y) + tilt + hold * gap

    options = {"maxiter": 500, "gtol": 1e-7}
    return np.asarray(minimize(loss, state.mean, jac=True, method="L-BFGS-B", options=options).x)


def _gradient(x: Floats, y: Floats, w: Floats) -> Floats:
    """(P,) of the summed loss."""
    residual = expit(x @ w[:-1] + w[-1]) - y
    return np.append(x.T @ residual, residual.sum())
