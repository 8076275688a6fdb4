"""Peer methods: what centers tell a driver about whom they want to hear, and what they make of what arrives.

How centers are linked (:attr:`Method.kind`):

* ``mutual``: a center ranks peers and says how it answers them (``opine``); partners hear each other;
* ``pull``: a center names those it wants to hear, its ranking cut at its capacity; they do not ask back;
* ``graph``: who hears whom follows from the seed: all can work it out (``transfers``), and nobody asks.

What travels are the shared layers of the trained models through the method's wire, and, if it has any, one
number of a center's own beside them (``note``). The driver sends, encodes, decodes and counts.
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
from abps.methods.base import Alarm, Context, Decisions, Floats, Ints, Method, Wire
from abps.models.metrics import Segments


def accept(row: int, peer: int) -> Answer:
    """Whoever asks is welcome."""
    return Answer.ACCEPTED


@dataclass(frozen=True, eq=False)
class Preferences:
    """What r centers think of the members before anybody has asked anybody.

    rankings: for every center here, the members (by their places) that it would ask, best first.
    answer: (row, place) how a center here answers a member while it has a place left.
    wanted: (r,) whether there was anybody to want: a center that had candidates and asks none declines.
    plan: how all centers' opinions come to a plan, where there are too many to list them.
    trail: the audit trail of a plan, or of pulls, which are all granted.
    announcing: how many centers tell all others something (an alarm).  publishing: entries that every center
    tells all others in this round.
    """

    rankings: Sequence[Any] = ()
    answer: Callable[[int, int], Answer] = accept
    wanted: NDArray[np.bool_] | None = None
    plan: Callable[[], MatchingPlan] | None = None
    trail: Callable[[MatchingPlan], Decisions] | None = None
    announcing: int = 0
    publishing: int = 0


@dataclass(frozen=True, eq=False)
class Received:
    """What arrived in a round.

    to, by: (transfers,) the row of the receiver, which is here, and the place of the sender.
    arrived: (n, shared) what each sender's receivers got of it (undefined where nobody here heard it).
    notes: (n,) its number beside.  opinion: what had been thought before.
    refused: (receivers, senders) of what was no model, and was not let in.
    """

    to: Ints
    by: Ints
    arrived: Weights
    notes: Floats
    preferences: Any = None
    refused: tuple[Ints, Ints] = field(default_factory=lambda: (np.zeros(0, np.int64), np.zeros(0, np.int64)))

    def partners(self, r: int) -> list[Ints]:
        """Whom each of the r centers here heard, ascending."""
        by = self.by[np.lexsort((self.by, self.to))]
        ends = np.cumsum(np.bincount(self.to, minlength=r)).tolist()
        return [by[a:b] for a, b in zip([0, *ends], ends)]


@dataclass(frozen=True, eq=False)
class PeerUtility:
    """What peers were worth: to whom (a row), who (a place), how much in [0, 1], and its error."""

    center: Ints
    peer: Ints
    value: Floats
    error: Floats


@dataclass(frozen=True, eq=False)
class StepResult:
    """The state after an exchange, and what else there is to tell.

    worth: for a site's record.  alarms: raised in this round.
    answers: the new models' predictions for their owners' validation and test rows, where these were made.
    """

    state: Any
    worth: PeerUtility | None = None
    alarms: tuple[Alarm, ...] = ()
    answers: tuple[Segments, Segments] | None = None


@dataclass(frozen=True)
class PeerMethod(Method, ABC):
    """wire: codec and private layers of what centers send each other."""

    wire: Wire = field(default_factory=Wire)

    #: Whether a number of its own travels with a center's weights.
    noted: ClassVar[bool] = False

    @property
    def line(self) -> Wire:
        """The wire."""
        return self.wire

    @property
    def capacity(self) -> int:
        """How many partners a center may have, or how many it hears."""
        return 1

    def exchanges(self, t: int) -> bool:
        """Whether centers meet in round t."""
        return True

    def turns(self, seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
        """(n,) the members in the order in which they propose."""
        return turns_of.turns(Selection(), seed, t, ids)

    def rank_peers(self, context: Context, state: Any, trained: Callable[[], Any], t: int) -> Preferences:
        """Whom the centers here want to hear; ``trained()`` waits for their training, if that matters."""
        raise NotImplementedError

    def transfers(self, context: Context, t: int) -> tuple[Ints, Ints]:
        """(receivers, senders) by their places, of a graph: the same wherever it is worked out."""
        raise NotImplementedError

    def sent(self, state: Any, trained: Any) -> Weights:
        """(r, P) the models whose shared layers travel."""
        models: Weights = trained.models
        return models

    def note(self, context: Context, trained: Any, listeners: Ints) -> Floats:
        """(r,) the number that goes with a center's weights; listeners: (r,) how many hear it."""
        return np.zeros(context.r)

    @abstractmethod
    def learn(self, context: Context, state: Any, trained: Any, received: Received, t: int) -> StepResult:
        """What the centers here make of what arrived."""

    def cost(self, context: Context, to: Ints, by: Ints) -> Traffic:
        """Bytes of weights, and of notes, over links from places ``by`` to places ``to``."""
        pairs = np.unique(np.minimum(to, by) * context.n + np.maximum(to, by))
        payload = self.wire.payload(context)
        control = len(to) * bytes_of.CONTROL_MESSAGE * self.noted
        return Traffic(len(pairs) * payload, len(to) * payload, control)

    def evidence(self, context: Context, state: Any) -> tuple[Ints, Floats, Floats, Floats]:
        """(place, for, against, count) of the members that the first center here has observed."""
        return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0)

    def hear(self, state: Any, alarms: tuple[Alarm, ...]) -> Any:
        """The state with the alarms that the coming round has to reckon with."""
        return state


def agree(method: PeerMethod, context: Context, preferences: Preferences, t: int) -> MatchingPlan:
    """Who becomes whose partner when all centers are here."""
    if preferences.plan is not None:
        return preferences.plan()
    order = method.turns(context.seed, t, context.ids).tolist()
    plan = propose(order, preferences.rankings, preferences.answer, method.capacity)
    return plan if preferences.wanted is None else unwanted(plan, preferences.rankings, preferences.wanted)
