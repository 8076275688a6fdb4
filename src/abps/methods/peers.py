"""Peer methods: how centers rank peers, and what they do with the models that arrive.

How centers are linked (:attr:`Method.kind`):

* ``mutual``: a center ranks peers and answers their proposals (``rank_peers``); partners exchange models;
* ``pull``: a center requests the models of the first peers in its ranking, up to its capacity;
* ``graph``: the transfers follow from the seed (``transfers``), and every center can compute them.

Centers send the shared layers of their trained models through the method's wire and, optionally, one number
(``note``). The driver sends, encodes, decodes and counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import ledger as bytes_of
from abps.core import selection as turns_of
from abps.core.arrays import Weights
from abps.core.ledger import Traffic
from abps.core.matching import Answer, MatchingPlan, propose, unwanted
from abps.core.selection import Selection
from abps.methods.base import Context, Decisions, Floats, Ints, Method, Wire
from abps.models.metrics import Segments


def accept(row: int, peer: int) -> Answer:
    """Accept every proposal."""
    return Answer.ACCEPTED


@dataclass(frozen=True, eq=False)
class Preferences:
    """The preferences of r centers over the members, before any proposal.

    rankings: for every center here, the member indices that it would ask, best first.
    answer: (row, member) the answer of a center here to a member's proposal while it has a place left.
    wanted: (r,) whether it had any candidate: a center that had some and asks none declines them all.
    plan: computes the matching directly, where there are too many centers to list their rankings.
    trail: the audit trail of a matching, or of pulls, which are all granted.
    publishing: entries that every center publishes in this round.
    """

    rankings: Sequence[Any] = ()
    answer: Callable[[int, int], Answer] = accept
    wanted: NDArray[np.bool_] | None = None
    plan: Callable[[], MatchingPlan] | None = None
    trail: Callable[[MatchingPlan], Decisions] | None = None
    publishing: int = 0


@dataclass(frozen=True, eq=False)
class Received:
    """What arrived in a round.

    receiver, sender: (transfers,) the row of the receiver, which is here, and the sender's member index.
    arrived: (n, shared) each sender's model as its receivers decode it (undefined where no center here
    received it).  notes: (n,) the senders' notes.  preferences: those that led to the transfers.
    refused: (receivers, senders) of implausible models that were not admitted.
    """

    receiver: Ints
    sender: Ints
    arrived: Weights
    notes: Floats
    preferences: Any = None
    refused: tuple[Ints, Ints] = field(default_factory=lambda: (np.zeros(0, np.int64), np.zeros(0, np.int64)))

    def partners(self, r: int) -> list[Ints]:
        """The senders that each of the r centers here received from, ascending."""
        sender = self.sender[np.lexsort((self.sender, self.receiver))]
        ends = np.cumsum(np.bincount(self.receiver, minlength=r)).tolist()
        return [sender[a:b] for a, b in zip([0, *ends], ends)]


@dataclass(frozen=True, eq=False)
class PeerUtility:
    """The utility of peers: for which row, of which member, its value in [0, 1] and standard error."""

    center: Ints
    peer: Ints
    value: Floats
    error: Floats


@dataclass(frozen=True, eq=False)
class StepResult:
    """The state after an exchange.

    utility: of the peers, for a site's record.
    answers: the new models' predictions for their owners' validation and test rows, if they were computed.
    """

    state: Any
    utility: PeerUtility | None = None
    answers: tuple[Segments, Segments] | None = None


@dataclass(frozen=True)
class PeerMethod(Method, ABC):
    """wire: codec and private layers of what centers send each other."""

    wire: Wire = field(default_factory=Wire)

    #: Whether a note travels with a center's weights.
    noted: ClassVar[bool] = False

    @property
    def capacity(self) -> int:
        """How many partners a center may have, or how many models it requests."""
        return 1

    def exchanges(self, t: int) -> bool:
        """Whether centers exchange models in round t."""
        return True

    def turns(self, seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
        """(n,) the members in the order in which they propose."""
        return turns_of.turns(Selection(), seed, t, ids)

    def rank_peers(self, context: Context, state: Any, trained: Callable[[], Any], t: int) -> Preferences:
        """The preferences of the centers here; ``trained()`` waits for their training, if these need it."""
        raise NotImplementedError

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        """(receivers, senders) by member index, of a graph: the same wherever it is computed."""
        raise NotImplementedError

    def sent(self, state: Any, trained: Any) -> Weights:
        """(r, P) the models whose shared layers travel."""
        models: Weights = trained.models
        return models

    def note(self, context: Context, trained: Any, listeners: Ints) -> Floats:
        """(r,) the notes; listeners: (r,) how many members receive each center's model."""
        return np.zeros(context.r)

    @abstractmethod
    def learn(self, context: Context, state: Any, trained: Any, received: Received, t: int) -> StepResult:
        """The state after what arrived."""

    def cost(self, context: Context, to: Ints, by: Ints) -> Traffic:
        """Bytes of weights and notes over links from members ``by`` to members ``to``."""
        pairs = np.unique(np.minimum(to, by) * context.n + np.maximum(to, by))
        payload = self.wire.payload(context)
        control = len(to) * bytes_of.CONTROL_MESSAGE * self.noted
        return Traffic(len(pairs) * payload, len(to) * payload, control)


def agree(method: PeerMethod, context: Context, preferences: Preferences, t: int) -> MatchingPlan:
    """The matching when all centers are here."""
    if preferences.plan is not None:
        return preferences.plan()
    order = method.turns(context.seed, t, context.ids).tolist()
    plan = propose(order, preferences.rankings, preferences.answer, method.capacity)
    return plan if preferences.wanted is None else unwanted(plan, preferences.rankings, preferences.wanted)
