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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abps.core import ledger as bytes_of
from abps.core import selection as turns_of
from abps.core import streams
from abps.core.ledger import Traffic
from abps.core.matching import Answer, Plan, propose, unwanted
from abps.core.peer_effects import PeerEffects
from abps.core.selection import Selection
from abps.data.prepare import Rows
from abps.methods.base import Alarm, Decisions, Floats, Ints, Method, Wire, World
from abps.models.metrics import Segments
from abps.tensors import Tensor
from abps.wire.numerals import Form, Numerals


def accept(row: int, peer: int) -> Answer:
    """Whoever asks is welcome."""
    return Answer.ACCEPTED


@dataclass(frozen=True, eq=False)
class Opinion:
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
    plan: Callable[[], Plan] | None = None
    trail: Callable[[Plan], Decisions] | None = None
    announcing: int = 0
    publishing: int = 0


@dataclass(frozen=True, eq=False)
class Heard:
    """What arrived in a round.

    to, by: (transfers,) the row of the receiver, which is here, and the place of the sender.
    arrived: (n, shared) what each sender's receivers got of it (undefined where nobody here heard it).
    notes: (n,) its number beside.  opinion: what had been thought before.
    refused: (receivers, senders) of what was no model, and was not let in.
    """

    to: Ints
    by: Ints
    arrived: Tensor
    notes: Floats
    opinion: Any = None
    refused: tuple[Ints, Ints] = field(default_factory=lambda: (np.zeros(0, np.int64), np.zeros(0, np.int64)))

    def partners(self, r: int) -> list[Ints]:
        """Whom each of the r centers here heard, ascending."""
        by = self.by[np.lexsort((self.by, self.to))]
        ends = np.cumsum(np.bincount(self.to, minlength=r)).tolist()
        return [by[a:b] for a, b in zip([0, *ends], ends)]


@dataclass(frozen=True, eq=False)
class Worth:
    """What peers were worth: to whom (a row), who (a place), how much in [0, 1], and its error."""

    center: Ints
    peer: Ints
    value: Floats
    error: Floats


@dataclass(frozen=True, eq=False)
class Learned:
    """The state after an exchange, and what else there is to tell.

    worth: for a site's record.  alarms: raised in this round.
    answers: the new models' predictions for their owners' validation and test rows, where these were made.
    """

    state: Any
    worth: Worth | None = None
    alarms: tuple[Alarm, ...] = ()
    answers: tuple[Segments, Segments] | None = None


@dataclass(frozen=True, eq=False)
class Reply:
    """What r centers answer to a roll call: values (r, entries) as the board reads them, and the bytes that
    one answer takes.  told: each answer as it is sent; none: they are shared weights, and travel as these
    do.  weights: from which entry to before which there are shared weights."""

    values: Floats
    size: int
    told: tuple[Numerals, ...] = ()
    weights: tuple[int, int] = (0, 0)

    @staticmethod
    def of(values: Floats, form: Form, weights: tuple[int, int] = (0, 0)) -> Reply:
        """Numbers that are written in this form."""
        told = tuple(Numerals.of(row, form) for row in values)
        return Reply(np.stack([each.values for each in told]), told[0].size, told, weights)


@dataclass(frozen=True, eq=False)
class Notice:
    """What the board tells after a roll call: the same to all, and something to a member by its place."""

    common: Numerals
    own: Mapping[int, Numerals] = field(default_factory=dict)

    def only(self, place: int) -> Floats:
        """What member ``place`` alone is told."""
        return self.own[place].values if place in self.own else np.zeros(0)

    def size(self, place: int) -> int:
        """Bytes of telling a member."""
        return self.common.size + (self.own[place].size if place in self.own else 0)


def boards(seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
    """(n,) the members in the order in which they are asked to be the board of round t: the first that is
    there is. Everybody can work it out."""
    return np.argsort(streams.bits(seed, "board", t, ids), kind="stable")


@dataclass(frozen=True)
class PeerMethod(Method, ABC):
    """wire: codec and private layers of what centers send each other."""

    wire: Wire = field(default_factory=Wire)

    #: Whether a number of its own travels with a center's weights.
    noted: ClassVar[bool] = False

    #: Whether it says what mixes with peers take off a center's loss (``mixed``, ``peer_effects``).
    believing: ClassVar[bool] = False

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

    def questions(self, t: int, horizon: int) -> int:
        """How many roll calls come before round t. In each all members answer to a board, which works out
        something from all answers and tells it. The board is one of them, another one in every round, and
        needs no data for it."""
        return 0

    def scored(self, t: int) -> bool:
        """Whether an answer to a roll call before round t holds sums over training rows."""
        return False

    def reply(self, world: World, state: Any, t: int, question: int) -> Reply:
        """What the centers here answer; world: of the members that are asked."""
        raise NotImplementedError

    def board(self, answers: Floats, sizes: Floats, t: int, question: int) -> Notice:
        """What follows from all answers (n, entries), NaN where a member gave none; sizes: (n,) rows."""
        raise NotImplementedError

    def informed(self, world: World, state: Any, notice: Notice, t: int, question: int) -> Any:
        """The state after the board has told what it found; ``ValueError`` if that cannot be."""
        return state

    def opine(self, world: World, state: Any, trained: Callable[[], Any], t: int) -> Opinion:
        """Whom the centers here want to hear; ``trained()`` waits for their training, if that matters."""
        raise NotImplementedError

    def transfers(self, world: World, t: int) -> tuple[Ints, Ints]:
        """(receivers, senders) by their places, of a graph: the same wherever it is worked out."""
        raise NotImplementedError

    def sent(self, state: Any, trained: Any) -> Tensor:
        """(r, P) the models whose shared layers travel."""
        models: Tensor = trained.models
        return models

    def note(self, world: World, trained: Any, listeners: Ints) -> Floats:
        """(r,) the number that goes with a center's weights; listeners: (r,) how many hear it."""
        return np.zeros(world.r)

    @abstractmethod
    def learn(self, world: World, state: Any, trained: Any, heard: Heard, t: int) -> Learned:
        """What the centers here make of what arrived."""

    def cost(self, world: World, to: Ints, by: Ints) -> Traffic:
        """Bytes of weights, and of notes, over links from places ``by`` to places ``to``."""
        pairs = np.unique(np.minimum(to, by) * world.n + np.maximum(to, by))
        payload = self.wire.payload(world)
        control = len(to) * bytes_of.CONTROL_MESSAGE * self.noted
        return Traffic(len(pairs) * payload, len(to) * payload, control)

    def mixed(
        self, world: World, trained: Any, heard: Heard, rows: Rows
    ) -> tuple[Ints, Ints, Segments, Segments] | None:
        """Who mixes with whom (rows here, places), and the logits on some rows, a part for each center here,
        of the models before and after; nothing for methods whose beliefs are about something else."""
        return None

    def peer_effects(self, world: World, state: Any) -> PeerEffects | None:
        """What centers believe that mixes with their peers take off their loss, where they do."""
        return None

    def evidence(self, world: World, state: Any) -> tuple[Ints, Floats, Floats, Floats]:
        """(place, for, against, count) of the members that the first center here has observed."""
        return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0)

    def hear(self, state: Any, alarms: tuple[Alarm, ...]) -> Any:
        """The state with the alarms that the coming round has to reckon with."""
        return state


def agree(method: PeerMethod, world: World, opinion: Opinion, t: int) -> Plan:
    """Who becomes whose partner when all centers are here."""
    if opinion.plan is not None:
        return opinion.plan()
    order = method.turns(world.seed, t, world.ids).tolist()
    plan = propose(order, opinion.rankings, opinion.answer, method.capacity)
    return plan if opinion.wanted is None else unwanted(plan, opinion.rankings, opinion.wanted)
