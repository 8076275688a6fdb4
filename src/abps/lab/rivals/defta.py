"""DeFTA (Zhou et al. 2024): peers chosen by trust, averages corrected for how often a model is heard.

Models are averaged with weights N_j / d_j, where d_j counts those who hear j, itself included. Center i keeps
a confidence c_ij in every peer, draws peers by softmax(cReLU(c_i)), cReLU(x) = x below zero and ``slope`` * x
above, and after its next training lowers c_ij by (weight of j) * (change of its loss). Time machine: if the
loss is not finite or more than ``rollback`` times the one before, the center returns to its best model,
trains that, and counts the change as ``penalty``.

``links=mutual`` (default): draws are proposals, both sides of a link hear each other, each center has at most
``peers`` links: about n edges, as many as a star. ``links=pull``: a center hears exactly those it drew.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from abps.core.arrays import Weighting, Weights, shares
from abps.core.errors import FROM_1
from abps.lab.rivals.choosing import combine, drawn
from abps.methods.base import Context, Floats, Ints, Kind, Models
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult
from abps.models.metrics import labels_of, log_loss


@dataclass(frozen=True, eq=False)
class WeightedTransfers:
    """Who heard whom in a round, and with which weight: (transfers,) rows, places, weights."""

    receiver: Ints
    sender: Ints
    weight: Floats


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  confidence: (r, n).  loss: (r,) after the last training; best, best_loss: the backup.
    heard: what the next training will judge."""

    confidence: Floats
    loss: Floats
    best: Weights
    best_loss: Floats
    received: WeightedTransfers | None


@dataclass(frozen=True)
class DeFTA(PeerMethod):
    """peers: links a center may have, or pulls it makes.  links: mutual or pull."""

    weighting: Weighting = "size"
    peers: int = 2
    links: Literal["mutual", "pull"] = "mutual"
    slope: float = 0.2
    rollback: float = 3.0
    penalty: float = 10.0

    #: Every center sends its out-degree along.
    noted = True

    limits: ClassVar = {"peers": FROM_1, "rollback": (math.nextafter(1.0, 2.0), math.inf)}

    @property
    def kind(self) -> Kind:
        return self.links

    @property
    def capacity(self) -> int:
        return self.peers

    def init(self, context: Context) -> State:
        start, unknown = context.common_start(), np.full(context.r, np.inf)
        return State(start, np.zeros((context.r, context.n)), unknown, start, unknown, None)

    def train(self, context: Context, state: State, t: int, alone: bool) -> State:
        trained, loss, change = self.descend(context, state, t)
        better = loss < state.best_loss
        best = np.where(better[:, None], trained, state.best)
        best_loss = np.where(better, loss, state.best_loss)
        confidence = judge(state.confidence, state.received, change)
        return State(trained, confidence, loss, best, best_loss, None)

    def descend(self, context: Context, state: State, t: int) -> tuple[Weights, Floats, Floats]:
        """Trained models, their losses, and the change of loss each center saw; ruined ones roll back."""
        rows = context.data.train

        def measure(models: Weights) -> Floats:
            found = log_loss(context.learner.logits(models, rows), labels_of(rows))
            return np.where(rows.sizes > 0, found, 0.0)  # without rows there is nothing to judge by

        trained = context.learner.train(state.models, t)
        loss = measure(trained)
        first = ~np.isfinite(state.loss)
        change = np.where(first, 0.0, loss - np.where(first, 0.0, state.loss))
        ruined = ~np.isfinite(loss) | (loss > self.rollback * state.loss)
        if ruined.any():
            back = ruined[:, None]
            # Everybody's backup is trained, the ruined ones' is used: rare enough.
            trained = np.where(back, context.learner.train(state.best, t), trained)
            loss = np.where(ruined, measure(trained), loss)
            change = np.where(ruined, self.penalty, change)
        return trained, loss, change

    def rank_peers(self, context: Context, state: State, trained: Callable[[], Any], t: int) -> Preferences:
        return Preferences(self.rankings(context, trained().confidence, t))

    def rankings(self, context: Context, confidence: Floats, t: int) -> list[list[int]]:
        """Every center's peers in the order of a draw without replacement from its trust."""
        return drawn(context, crelu(confidence, self.slope), t)

    def note(self, context: Context, trained: State, listeners: Ints) -> Floats:
        return listeners.astype(np.float64)

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        size = shares(context.sizes(), self.weighting).astype(np.float64)
        say = size / (1.0 + received.notes)
        weight = hearing_weights(say, received.receiver, received.sender)
        mixed = combine(trained.models, received.arrived, received.receiver, received.sender, weight)
        return StepResult(
            replace(
                trained, models=mixed, received=WeightedTransfers(received.receiver, received.sender, weight)
            )
        )


def crelu(x: Floats, slope: float) -> Floats:
    return np.where(x > 0, slope * x, x)


def hearing_weights(say: Floats, receiver: Ints, sender: Ints) -> Floats:
    """(transfers,) weight of each model received, own model included; say: (n,) N_j / d_j."""
    total = say + np.bincount(receiver, weights=say[sender], minlength=len(say))
    return say[sender] / total[receiver]


def judge(confidence: Floats, received: WeightedTransfers | None, change: Floats) -> Floats:
    """Confidence (r, n) after the centers saw their losses change by (r,): c_ij falls by weight * change."""
    if received is None:
        return confidence
    judged = confidence.copy()
    judged[received.receiver, received.sender] -= received.weight * change[received.receiver]
    return judged
