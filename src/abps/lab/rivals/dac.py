"""DAC (Zec et al. 2022): peers drawn by how well their models do on a center's own rows.

A center draws ``peers`` others from softmax(tau s_i), s_ij = 1 / loss of j's model on i's rows, 0 for those
it knows nothing of; receives them; records their scores; and averages its model with all of theirs.
Two-hop: of members that it has never drawn it takes over the score that the best of these has for them;
a row of n numbers travels with every model, and is booked as control bytes.

``standardise`` compares z-scores of the scores a center has seen, the unknown counting as average: losses of
hospitals differ by hundredths, and with tau = 30 raw scores leave one choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import FROM_0, FROM_1
from abps.core.ledger import Traffic
from abps.lab.rivals.choosing import by_size, combine, drawn, losses, trail_with
from abps.methods.base import Context, Floats, Ints, Models, tried
from abps.methods.peers import PeerMethod, Preferences, Received, StepResult

#: A loss of zero has no inverse.
LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class State(Models):
    """models: (r, P).  score: (r, n), 0 where nothing is known.  count: (r, n) how often it was measured."""

    score: Floats
    count: Floats


@dataclass(frozen=True)
class DAC(PeerMethod):
    """peers: how many a center hears.  tau: how much scores decide.

    two_hop: whether scores are passed on.  standardise: as above.
    """

    peers: int = 5
    tau: float = 30.0
    two_hop: bool = True
    standardise: bool = False

    limits: ClassVar = {"peers": FROM_1, "tau": FROM_0}

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        """The learning rate and tau, by the scale of scores."""
        return tried(self, tau=(1.0, 4.0) if self.standardise else (3.0, 30.0))

    kind = "pull"

    @property
    def capacity(self) -> int:
        """The number of pulls."""
        return self.peers

    def init(self, context: Context) -> State:
        """The common start; nothing is known of anybody."""
        nothing = np.zeros((context.r, context.n))
        return State(context.common_start(), nothing, nothing)

    def rank_peers(self, context: Context, state: State, trained: Callable[[], Any], t: int) -> Preferences:
        """Peers in the order of draws by their scores."""
        scaled = zscores(state.score) if self.standardise else state.score
        rankings = drawn(context, self.tau * scaled, t)
        return Preferences(rankings, trail=trail_with(state.score, state.count))

    def cost(self, context: Context, to: Ints, by: Ints) -> Traffic:
        """Models, and a row of scores with each."""
        rows = len(to) * 4 * context.n * self.two_hop
        return super().cost(context, to, by) + Traffic(control=rows)

    def learn(self, context: Context, state: State, trained: State, received: Received, t: int) -> StepResult:
        """Look at what arrived, and average with all of it."""
        to, by = received.receiver, received.sender
        measured = inverse(losses(context, trained.models, received.arrived, to, by, "train"))
        score, count = state.score.copy(), state.count.copy()
        score[to, by] = measured
        count[to, by] += 1
        if self.two_hop:
            sent = state.score[by]  # as it was when the model was sent
            score = passed_on(score, count > 0, to, by, sent, context.self_mask)
        mixed = combine(trained.models, received.arrived, to, by, by_size(context, to, by))
        return StepResult(State(mixed, score, count))


def inverse(loss: Floats) -> Floats:
    """1 / loss; 0, that is unknown, where there were no rows to measure it on."""
    return np.where(loss > 0, 1.0 / np.maximum(loss, LEAST), 0.0)


def zscores(score: Floats) -> Floats:
    """(r, n) every center's scores about their mean, in deviations; 0 for members it knows nothing of."""
    seen = score != 0
    many = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    about = np.where(seen, score - score.sum(axis=1, keepdims=True) / many, 0.0)
    deviation = np.sqrt((about**2).sum(axis=1, keepdims=True) / many)
    return about / np.where(deviation > 0, deviation, 1.0)


def passed_on(
    score: Floats, measured: NDArray[np.bool_], to: Ints, by: Ints, sent: Floats, self_mask: NDArray[np.bool_]
) -> Floats:
    """Scores (r, n) with those that the best of the senders has, for members that were never measured.

    sent: (transfers, n) the sender's own scores.
    """
    after, open_ = score.copy(), ~measured & ~self_mask
    # The best sender last: it overwrites what others said.
    for k in np.lexsort((by, score[to, by])).tolist():
        row = to[k]
        takes = open_[row] & (sent[k] > 0)
        after[row, takes] = sent[k, takes]
    return after
