"""Outcome families: loss, score and information of one row, for every kind of outcome.

A linear predictor has one or several *outputs* per row; a model has *terms*, each a coefficient per column,
and a fixed matrix ``mix`` (terms, outputs) turns terms into outputs: one of each for a binary outcome, K of
each for K classes; hazards over a time grid have one output per interval and two terms, a constant effect and
one that changes linearly over time. A family has, for outputs z (rows, outputs) and outcomes y (rows,), the
loss (negative log-likelihood up to a constant), its negative derivative, and the information of the terms.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.data.outcome import Outcome

Floats = NDArray[np.float64]

#: The least information of a row: keeps Newton steps finite where a fit is perfect.
LEAST_INFORMATION = 1e-6

#: Logits beyond this have the same probability in double precision.
FARTHEST_LOGIT = 35.0


def sigmoid(z: Floats) -> Floats:
    """1 / (1 + exp(-z)), finite everywhere."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(z, -FARTHEST_LOGIT, FARTHEST_LOGIT))))


def softplus(z: Floats) -> Floats:
    return np.asarray(np.logaddexp(0.0, z))


def log_loss(z: Floats, y: Floats) -> Floats:
    """Minus the log-likelihood of events y at log odds z."""
    return np.asarray(softplus(z) - y * z)


@dataclass(frozen=True, eq=False)
class Family(ABC):
    """mix: (terms, outputs).  baseline: (outputs,) outputs of a model that knows nothing.

    dispersion_factor: the loss has a scale of its own, estimated by the mean loss times this; 0: it has none.
    """

    mix: Floats
    baseline: Floats

    dispersion_factor: ClassVar[float] = 0.0

    @abstractmethod
    def loss(self, z: Floats, y: Floats) -> Floats:
        """(rows,) losses."""

    @abstractmethod
    def residual(self, z: Floats, y: Floats) -> Floats:
        """(rows, outputs) negative derivatives of the losses."""

    @abstractmethod
    def information(self, z: Floats, y: Floats) -> Floats:
        """(rows, terms, terms) second derivatives of the losses along the terms."""


class Bernoulli(Family):
    """An event or none: logistic regression."""

    def loss(self, z: Floats, y: Floats) -> Floats:
        return log_loss(z[:, 0], y)

    def residual(self, z: Floats, y: Floats) -> Floats:
        return np.asarray(y[:, None] - sigmoid(z))

    def information(self, z: Floats, y: Floats) -> Floats:
        chance = sigmoid(z[:, 0])
        return np.asarray(np.maximum(chance * (1.0 - chance), LEAST_INFORMATION)[:, None, None])


class Gaussian(Family):
    """A number, by squared loss; its variance is the dispersion."""

    dispersion_factor = 2.0

    def loss(self, z: Floats, y: Floats) -> Floats:
        return np.asarray(0.5 * (y - z[:, 0]) ** 2)

    def residual(self, z: Floats, y: Floats) -> Floats:
        return np.asarray(y[:, None] - z)

    def information(self, z: Floats, y: Floats) -> Floats:
        return np.ones((len(y), 1, 1))


class Multinomial(Family):
    """One of several classes: softmax, a term for every class."""

    def loss(self, z: Floats, y: Floats) -> Floats:
        top = z.max(axis=1)
        whole = top + np.log(np.exp(z - top[:, None]).sum(axis=1))
        return np.asarray(whole - z[np.arange(len(y)), y.astype(np.int64)])

    def residual(self, z: Floats, y: Floats) -> Floats:
        chance = softmax(z)
        chance[np.arange(len(y)), y.astype(np.int64)] -= 1.0
        return -chance

    def information(self, z: Floats, y: Floats) -> Floats:
        chance = softmax(z)
        found = -chance[:, :, None] * chance[:, None, :]
        diagonal = np.arange(z.shape[1])
        found[:, diagonal, diagonal] += chance + LEAST_INFORMATION
        return np.asarray(found)


def softmax(z: Floats) -> Floats:
    weight = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def at_risk(grid: Floats, y: Floats) -> tuple[Floats, Floats]:
    """(rows, outputs) whether a row of signed time reaches an interval (whose end belongs to it), and whether
    it fails in it."""
    time, event = np.abs(y)[:, None], ~np.signbit(y)[:, None]
    survived = (grid < time) | (~event & (grid <= time))
    begins = np.concatenate([[-np.inf], grid[:-1]])
    failed = event & (begins < time) & (time <= grid)
    return (survived | failed).astype(np.float64), failed.astype(np.float64)


@dataclass(frozen=True, eq=False)
class Hazard(Family):
    """Time to an event (negative where observation ended without) on a grid (outputs,) of intervals' ends:
    log-odds to fail in each interval of those who reach it."""

    grid: Floats

    def loss(self, z: Floats, y: Floats) -> Floats:
        risk, failed = at_risk(self.grid, y)
        return np.asarray((softplus(z) * risk - z * failed).sum(axis=1))

    def residual(self, z: Floats, y: Floats) -> Floats:
        risk, failed = at_risk(self.grid, y)
        return np.asarray(failed - sigmoid(z) * risk)

    def information(self, z: Floats, y: Floats) -> Floats:
        risk, _ = at_risk(self.grid, y)
        chance = sigmoid(z)
        variance = chance * (1.0 - chance) * risk
        found = np.einsum("tk,rk,sk->rts", self.mix, variance, self.mix, optimize=True)
        diagonal = np.arange(len(self.mix))
        found[:, diagonal, diagonal] += LEAST_INFORMATION
        return np.asarray(found)


def family_of(outcome: Outcome) -> Family:
    """The family of an outcome, with what centers agreed on for it."""
    mix, start = outcome.mix.astype(np.float64), outcome.start.astype(np.float64)
    if outcome.kind == "survival":
        return Hazard(mix, start, np.array(outcome.grid))
    if outcome.kind == "classes":
        return Multinomial(mix, start)
    return Bernoulli(mix, start) if outcome.binary else Gaussian(mix, start)
