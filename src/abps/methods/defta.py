"""DeFTA (Zhou et al. 2024): peers chosen by trust, averages corrected for how often a model is heard.

(a) A center averages its own and the models it receives with weights N_j / d_j, where d_j counts those who
hear j, itself included: a model with many listeners would otherwise weigh more in the network than its
rows do.

(b) Trust. Center i keeps a confidence c_ij in every peer it knows, draws peers with probabilities
softmax(cReLU(c_i)), cReLU(x) = x below zero and ``slope`` * x above (distrust is fast, trust is slow), and
after its next training lowers c_ij by (weight of j) * (change of its loss) for the peers it heard.
Time machine: if the loss is not finite or more than ``rollback`` times the one before, the center returns
to its best model, trains that, and counts the change as ``penalty``.

``links=mutual`` (default): the draws are proposals and both sides of a link hear each other, each center
having at most ``peers`` links, so that a round has about n edges, as many as a star. ``links=pull``: a
center hears exactly those it drew, one way, which touches about twice as many pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import ledger as bytes_of
from abps.core import streams
from abps.core.errors import RequestError
from abps.core.ledger import CONTROL_MESSAGE, Ledger, Traffic
from abps.core.matching import Answer, Rest, propose
from abps.learn.metrics import labels_of, log_loss
from abps.methods import graphs
from abps.methods.base import Method, Outcome, Wire, World, center_weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Heard:
    """Who heard whom in a round, and with which weight: (transfers,) each."""

    receiver: Ints
    sender: Ints
    weight: Floats


@dataclass(frozen=True, eq=False)
class State:
    """models: (n, P).  confidence: (n, n).  loss: (n,) after the last training; best, best_loss: the backup.

    heard: what the next training will judge.
    """

    models: Tensor
    confidence: Floats
    loss: Floats
    best: Tensor
    best_loss: Floats
    heard: Heard | None


@dataclass(frozen=True)
class DeFTA(Method):
    """peers: links a center may have, or pulls it makes.  pool: how many peers it knows (none: all).

    links: mutual or pull.  loss: train or validation, what trust is judged on.
    trust_decay: share of confidence that survives a round (1: all of it).
    """

    wire: Wire = field(default_factory=Wire)
    weighting: str = "size"
    peers: int = 2
    pool: int | None = None
    links: str = "mutual"
    slope: float = 0.2
    rollback: float = 3.0
    penalty: float = 10.0
    loss: str = "train"
    trust_decay: float = 1.0

    def __post_init__(self) -> None:
        if self.peers < 1 or (self.pool is not None and self.pool < 1):
            raise RequestError(f"peers={self.peers}, pool={self.pool}: choose at least 1 each")
        if self.links not in ("mutual", "pull"):
            raise RequestError(f"links={self.links!r}: choose mutual or pull")
        if self.loss not in ("train", "validation"):
            raise RequestError(f"loss={self.loss!r}: choose train or validation")
        if self.rollback <= 1:
            raise RequestError(f"rollback={self.rollback}: how much worse a loss may get, choose above 1")
        if not 0 <= self.trust_decay <= 1:
            raise RequestError(f"trust_decay={self.trust_decay}: a share, choose 0 to 1")

    def init(self, world: World) -> State:
        """The common start; no opinion of anybody."""
        start, n = world.common_start(), world.n
        unknown = np.full(n, np.inf)
        return State(start, np.zeros((n, n)), unknown, start, unknown, None)

    def apply(self, world: World, state: State, t: int, ledger: Ledger) -> tuple[State, Outcome]:
        """Train, judge those heard last round, draw peers, average."""
        trained, loss, change = self.train(world, state, t)
        better = loss < state.best_loss
        best = torch.where(torch.from_numpy(better)[:, None], trained, state.best)
        best_loss = np.where(better, loss, state.best_loss)
        confidence = judge(state.confidence * self.trust_decay, state.heard, change)
        after = State(trained, confidence, loss, best, best_loss, None)
        if ledger.closed:
            return after, Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
        receiver, sender, rest, traffic = self.draw(world, confidence, t)
        if not ledger.affords(traffic):
            return after, Outcome.alone(world.n, Rest.BUDGET, overdrawn=True)
        size = center_weights(world, self.weighting).numpy().astype(np.float64)
        heard = Heard(receiver, sender, outdegree_weights(size, receiver, sender))
        arrived = self.wire.deliver(world, trained[:, : self.wire.shared(world)], t)
        mixed = graphs.combine(trained, arrived, receiver, sender, heard.weight)
        state = State(mixed, confidence, loss, best, best_loss, heard)
        return state, Outcome(traffic, np.bincount(receiver, minlength=world.n), rest)

    def train(self, world: World, state: State, t: int) -> tuple[Tensor, Floats, Floats]:
        """Trained models, their losses, and the change of loss each center saw; ruined ones roll back."""
        rows = world.data.train if self.loss == "train" else world.data.validation

        def measure(models: Tensor) -> Floats:
            found = log_loss(world.learner.logits(models, rows), labels_of(rows))
            return np.where(rows.sizes > 0, found, 0.0)  # without rows there is nothing to judge by

        trained = world.learner.train(state.models, t)
        loss = measure(trained)
        first = ~np.isfinite(state.loss)
        change = np.where(first, 0.0, loss - np.where(first, 0.0, state.loss))
        ruined = ~np.isfinite(loss) | (loss > self.rollback * state.loss)
        if ruined.any():
            back = torch.from_numpy(ruined)[:, None]
            # Everybody's backup is trained, the ruined ones' is used: rare enough.
            trained = torch.where(back, world.learner.train(state.best, t), trained)
            loss = np.where(ruined, measure(trained), loss)
            change = np.where(ruined, self.penalty, change)
        return trained, loss, change

    def draw(self, world: World, confidence: Floats, t: int) -> tuple[Ints, Ints, NDArray[np.int8], Traffic]:
        """(receiver, sender) of this round's transfers, why centers rest, and the bytes."""
        n, payload = world.n, self.wire.payload(world)
        ranking = self.rankings(world, confidence, t)
        if self.links == "pull":
            chosen = [listed[: self.peers] for listed in ranking]
            receiver = np.repeat(np.arange(n), [len(c) for c in chosen])
            sender = np.array([j for c in chosen for j in c], dtype=np.int64)
            touching = len({(min(a, b), max(a, b)) for a, b in zip(receiver.tolist(), sender.tolist())})
            rest = np.where([len(c) > 0 for c in chosen], Rest.NOT, Rest.NO_CANDIDATES).astype(np.int8)
            # A request each, and every sender tells its listeners its outdegree.
            control = 2 * len(sender) * CONTROL_MESSAGE
            return receiver, sender, rest, Traffic(touching * payload, len(sender) * payload, control)
        turns = np.argsort(streams.bits(world.seed, "proposal-order", t, world.ids), kind="stable")
        plan = propose(turns.tolist(), ranking, lambda peer, proposer: Answer.ACCEPTED, self.peers)
        receiver, sender = graphs.both_ways(plan.pairs)
        outdegrees = Traffic(control=len(sender) * CONTROL_MESSAGE)
        traffic = bytes_of.pairs(len(plan.pairs), payload, len(plan.center)) + outdegrees
        return receiver, sender, plan.rest, traffic

    def rankings(self, world: World, confidence: Floats, t: int) -> list[list[int]]:
        """Every center's known peers in the order of a draw without replacement from its trust."""
        n = world.n
        known = ~np.eye(n, dtype=bool)
        if self.pool is not None and self.pool < n - 1:
            lot = streams.uniforms(world.seed, "graph", 0, world.ids[:, None], world.ids[None, :])
            lot[~known] = 2.0
            known &= np.argsort(np.argsort(lot, axis=1), axis=1) < self.pool
        u = streams.uniforms(world.seed, "policy", t, world.ids[:, None], world.ids[None, :])
        # The largest of log-probability plus Gumbel noise is a draw; in descending order, draws in turn.
        noisy = crelu(confidence, self.slope) - np.log(-np.log(np.maximum(u, 1e-300)))
        order = np.argsort(np.where(known, -noisy, np.inf), axis=1, kind="stable")
        return [order[i, : int(known[i].sum())].tolist() for i in range(n)]


def crelu(x: Floats, slope: float) -> Floats:
    """Distrust as it is, trust flattened."""
    return np.where(x > 0, slope * x, x)


def outdegree_weights(size: Floats, receiver: Ints, sender: Ints) -> Floats:
    """(transfers,) weight of each model received: N_j / d_j over the sum of these, own model included.

    d_j counts those who hear j, itself too.
    """
    n = len(size)
    say = size / (1.0 + np.bincount(sender, minlength=n))
    total = say + np.bincount(receiver, weights=say[sender], minlength=n)
    return say[sender] / total[receiver]


def judge(confidence: Floats, heard: Heard | None, change: Floats) -> Floats:
    """Confidence (n, n) after the centers saw their losses change by (n,): c_ij falls by weight * change."""
    if heard is None:
        return confidence
    judged = confidence.copy()
    judged[heard.receiver, heard.sender] -= heard.weight * change[heard.receiver]
    return judged
