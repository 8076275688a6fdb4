"""How two centers agree to be partners when messages get lost: reserve, confirm, release.

One :class:`Negotiation` is one center's view of one round. It is a value: every function takes one
and returns the next one with the messages to send, so that the same code runs under a test's hostile
network and at a hospital. It reads no clock and sends nothing itself.

An *attempt* is one try of a proposer with one peer in one round; its number grows with every new try.
Five messages concern an attempt::

    proposer                          receiver
    reserve a slot    -- PROPOSE -->  reserve a slot, or REFUSE with a reason
    matched           <-- ACCEPT --   held
                      -- CONFIRM -->  matched
    (or gave up)      -- RELEASE -->  free again

Why no half match survives:

* Whoever waits has a slot reserved, so that partners + reservations never exceed ``kappa``.
* The proposer alone decides an attempt. A receiver that holds a slot never drops it by itself: it
  repeats its ACCEPT until it hears CONFIRM or RELEASE, in a later round if need be.
* A proposer without a record of an attempt has not confirmed it and never will, so it answers RELEASE.
* What was promised is written down (``records``) before the message that promises it leaves; a center
  that comes back from a crash is *sealed*: it settles what is open and starts nothing new in that round.
* Two proposals that cross are a match: that of the smaller name stands, the other one yields.

Two parties that can lose every message cannot agree by a fixed hour (the two generals), so a pair may
be *in doubt* at one end when a round closes. It then keeps its slot, is never counted as a partner by
guess, and is settled with the next message that gets through. What never happens, under any schedule,
is that one end says partner and the other says not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Kind(StrEnum):
    """What a message says about an attempt."""

    PROPOSE = "propose"
    ACCEPT = "accept"
    REFUSE = "refuse"
    CONFIRM = "confirm"
    RELEASE = "release"


class Stage(StrEnum):
    """How far an attempt is, at one end."""

    OUT = "out"  # proposer: proposed, slot reserved, no answer yet
    HELD = "held"  # receiver: accepted, slot reserved, waits for confirm or release
    MATCHED = "matched"
    CLOSED = "closed"


#: Why an attempt ended without a match. The first three are a receiver's answers in Algorithm 1.
FULL: Final = "full"
DECLINED: Final = "declined"
FILTERED: Final = "filtered"
BUSY: Final = "busy"  # no free slot, but one is only reserved: asking again may help
SEALED: Final = "sealed"  # the receiver takes no more proposals in this round
CROSSED: Final = "crossed"  # the peer's own proposal took the place of this one
UNREACHABLE: Final = "unreachable"  # the proposer gave up waiting
RELEASED: Final = "released"
#: What a message may carry as its reason.
REASONS: Final = frozenset(
    {"", FULL, DECLINED, FILTERED, BUSY, SEALED, CROSSED, UNREACHABLE, RELEASED},
)
#: Refusals after which a new attempt in the same round can end otherwise.
PASSING: Final = frozenset({BUSY, UNREACHABLE})


@dataclass(frozen=True)
class Message:
    """One message; the channel, not the message, identifies its sender."""

    kind: Kind
    round: int
    attempt: int
    reason: str = ""


@dataclass(frozen=True)
class Link:
    """One end of the latest attempt between this center and a peer, in one direction."""

    stage: Stage
    attempt: int
    reason: str = ""


@dataclass(frozen=True)
class Record:
    """A promise that must outlive a crash; mine: this center proposed."""

    peer: str
    mine: bool
    attempt: int
    stage: Stage


def _nothing() -> Mapping[str, Link]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Negotiation:
    """One center's view of one round: its own attempts, and those of its peers with it."""

    me: str
    round: int
    kappa: int
    mine: Mapping[str, Link] = field(default_factory=_nothing)
    theirs: Mapping[str, Link] = field(default_factory=_nothing)
    sealed: bool = False

    @property
    def partners(self) -> frozenset[str]:
        """The peers with whom this center is matched."""
        return _at(self.mine, Stage.MATCHED) | _at(self.theirs, Stage.MATCHED)

    @property
    def in_doubt(self) -> frozenset[str]:
        """The peers that were accepted and have neither confirmed nor released."""
        return _at(self.theirs, Stage.HELD)

    @property
    def waiting(self) -> frozenset[str]:
        """The peers that have not answered this center's proposal."""
        return _at(self.mine, Stage.OUT)

    @property
    def taken(self) -> int:
        """Slots in use: partners and reservations. Never more than ``kappa``."""
        return len(self.partners) + len(self.in_doubt) + len(self.waiting)


@dataclass(frozen=True)
class ProtocolStep:
    """What a message led to: the next state, the replies to its sender, and what happened in a word."""

    state: Negotiation
    replies: tuple[Message, ...] = ()
    event: str = ""


#: How a receiver judges a proposer: "" to accept, else DECLINED or FILTERED.
Judge = Callable[[str], str]


def propose(state: Negotiation, peer: str) -> tuple[Negotiation, Message]:
    """Reserve a slot and propose to ``peer``.

    Raises ValueError if there is nothing to propose: no free slot, sealed, or the pair is not free.
    """
    link = state.mine.get(peer)
    if peer == state.me or state.sealed or state.taken >= state.kappa:
        raise ValueError(f"{state.me} has no slot to offer {peer} in round {state.round}")
    if peer in state.partners or peer in state.in_doubt or peer in state.waiting:
        raise ValueError(f"{state.me} and {peer} are already in touch in round {state.round}")
    attempt = 1 if link is None else link.attempt + 1
    return _mine(state, peer, Link(Stage.OUT, attempt)), _say(state, Kind.PROPOSE, attempt)


def next_candidate(state: Negotiation, ranking: Sequence[str], retries: int = 0) -> str | None:
    """The next peer to propose to: the first of ``ranking`` not yet tried, then those to try again.

    With ``retries=0`` every peer is asked at most once: the greedy pass of Algorithm 1.
    """
    if state.sealed or state.taken >= state.kappa:
        return None
    free = [peer for peer in ranking if peer not in state.partners and peer not in state.in_doubt]
    for peer in free:
        if peer not in state.mine:
            return peer
    for peer in free:
        link = state.mine[peer]
        if link.stage is Stage.CLOSED and link.reason in PASSING and link.attempt <= retries:
            return peer
    return None


def handle(state: Negotiation, sender: str, message: Message, judge: Judge) -> ProtocolStep:
    """Take one message of this round from ``sender``; the replies go back to ``sender``.

    Messages may be repeated, late or out of order: an attempt that is over stays over, and the same
    message gets the same answer.
    """
    if message.round != state.round:
        raise ValueError(f"a message of round {message.round} reached the state of round {state.round}")
    if sender == state.me:
        return ProtocolStep(state, event="violation")
    if message.kind is Kind.PROPOSE:
        return _proposed(state, sender, message.attempt, judge)
    if message.kind is Kind.ACCEPT:
        return _accepted(state, sender, message.attempt)
    if message.kind is Kind.REFUSE:
        return _refused(state, sender, message)
    if message.kind is Kind.CONFIRM:
        return _confirmed(state, sender, message.attempt)
    return _released(state, sender, message.attempt)


def give_up(state: Negotiation, peer: str) -> tuple[Negotiation, tuple[Message, ...]]:
    """Stop waiting for ``peer``'s answer: free the slot, and release the peer's."""
    link = state.mine.get(peer)
    if link is None or link.stage is not Stage.OUT:
        return state, ()
    closed = replace(link, stage=Stage.CLOSED, reason=UNREACHABLE)
    return _mine(state, peer, closed), (_say(state, Kind.RELEASE, link.attempt),)


def seal(state: Negotiation) -> tuple[Negotiation, tuple[tuple[str, Message], ...]]:
    """Close the round for new partners: give up what is open, keep what was promised."""
    farewells: list[tuple[str, Message]] = []
    for peer in sorted(state.waiting):
        state, messages = give_up(state, peer)
        farewells.extend((peer, message) for message in messages)
    return replace(state, sealed=True), tuple(farewells)


def overdue(state: Negotiation) -> tuple[tuple[str, Message], ...]:
    """What to send again while no answer has come: open proposals and unconfirmed accepts."""
    proposals = [(peer, Kind.PROPOSE, state.mine[peer].attempt) for peer in sorted(state.waiting)]
    accepts = [(peer, Kind.ACCEPT, state.theirs[peer].attempt) for peer in sorted(state.in_doubt)]
    return tuple((peer, _say(state, kind, attempt)) for peer, kind, attempt in proposals + accepts)


def records(state: Negotiation) -> tuple[Record, ...]:
    """What must be on disk before any message that ``state`` gave rise to is sent."""
    promised = (Stage.HELD, Stage.MATCHED)
    return tuple(
        Record(peer, mine, link.attempt, link.stage)
        for mine, links in ((True, state.mine), (False, state.theirs))
        for peer, link in sorted(links.items())
        if link.stage in promised
    )


def restore(me: str, round: int, kappa: int, kept: Iterable[Record]) -> Negotiation:
    """The state after a crash, or of a round long past: it settles promises and makes none."""
    mine: dict[str, Link] = {}
    theirs: dict[str, Link] = {}
    for record in kept:
        (mine if record.mine else theirs)[record.peer] = Link(record.stage, record.attempt)
    return Negotiation(me, round, kappa, MappingProxyType(mine), MappingProxyType(theirs), sealed=True)


def _proposed(state: Negotiation, sender: str, attempt: int, judge: Judge) -> ProtocolStep:
    link = state.theirs.get(sender)
    if link is not None:
        if attempt < link.attempt:
            return ProtocolStep(state, event="stale")
        if attempt == link.attempt:  # asked again: the same answer again
            if link.stage is Stage.CLOSED:
                return ProtocolStep(state, (_say(state, Kind.REFUSE, attempt, link.reason),), "repeated")
            return ProtocolStep(state, (_say(state, Kind.ACCEPT, attempt),), "repeated")
        if link.stage is Stage.MATCHED:  # an honest peer does not ask for what it has confirmed
            return ProtocolStep(state, (_say(state, Kind.REFUSE, attempt, SEALED),), "violation")
    own = state.mine.get(sender)
    if own is not None and own.stage is Stage.MATCHED:
        return ProtocolStep(state, (_say(state, Kind.REFUSE, attempt, CROSSED),), "stale")
    if own is not None and own.stage is Stage.OUT:
        if state.me < sender:  # my own proposal stands: answer that one
            return ProtocolStep(state, (_say(state, Kind.PROPOSE, own.attempt),), "crossed")
        state = _mine(state, sender, replace(own, stage=Stage.CLOSED, reason=CROSSED))
        return _hold(state, sender, attempt)
    if state.sealed:
        return _turn_down(state, sender, attempt, SEALED)
    if link is not None and link.stage is Stage.HELD:  # a newer try; the slot is already reserved
        return _hold(state, sender, attempt)
    if state.taken >= state.kappa:
        return _turn_down(state, sender, attempt, FULL if len(state.partners) >= state.kappa else BUSY)
    reason = judge(sender)
    return _turn_down(state, sender, attempt, reason) if reason else _hold(state, sender, attempt)


def _hold(state: Negotiation, sender: str, attempt: int) -> ProtocolStep:
    held = _theirs(state, sender, Link(Stage.HELD, attempt))
    return ProtocolStep(held, (_say(state, Kind.ACCEPT, attempt),), "held")


def _turn_down(state: Negotiation, sender: str, attempt: int, reason: str) -> ProtocolStep:
    closed = _theirs(state, sender, Link(Stage.CLOSED, attempt, reason))
    return ProtocolStep(closed, (_say(state, Kind.REFUSE, attempt, reason),), reason)


def _accepted(state: Negotiation, sender: str, attempt: int) -> ProtocolStep:
    link = state.mine.get(sender)
    if link is None or link.attempt != attempt or link.stage is Stage.CLOSED:
        # Not confirmed, and never will be: the peer may free its slot.
        return ProtocolStep(state, (_say(state, Kind.RELEASE, attempt),), "too late")
    event = "repeated" if link.stage is Stage.MATCHED else "matched"
    matched = _mine(state, sender, Link(Stage.MATCHED, attempt))
    return ProtocolStep(matched, (_say(state, Kind.CONFIRM, attempt),), event)


def _refused(state: Negotiation, sender: str, message: Message) -> ProtocolStep:
    link = state.mine.get(sender)
    if link is None or link.stage is not Stage.OUT or link.attempt != message.attempt:
        return ProtocolStep(state, event="stale")
    closed = replace(link, stage=Stage.CLOSED, reason=message.reason)
    return ProtocolStep(_mine(state, sender, closed), event=f"refused: {message.reason}")


def _confirmed(state: Negotiation, sender: str, attempt: int) -> ProtocolStep:
    link = state.theirs.get(sender)
    if link is None or link.attempt != attempt or link.stage is Stage.CLOSED:
        return ProtocolStep(state, event="violation")  # nobody confirms what was not accepted
    event = "repeated" if link.stage is Stage.MATCHED else "matched"
    return ProtocolStep(_theirs(state, sender, Link(Stage.MATCHED, attempt)), event=event)


def _released(state: Negotiation, sender: str, attempt: int) -> ProtocolStep:
    link = state.theirs.get(sender)
    if link is not None and link.stage is Stage.MATCHED:
        return ProtocolStep(state, event="stale" if attempt < link.attempt else "violation")
    if link is not None and attempt < link.attempt:
        return ProtocolStep(state, event="stale")
    # Remembered even if the proposal has not come yet: it may be the slower of the two.
    return ProtocolStep(_theirs(state, sender, Link(Stage.CLOSED, attempt, RELEASED)), event="released")


def _at(links: Mapping[str, Link], stage: Stage) -> frozenset[str]:
    return frozenset(peer for peer, link in links.items() if link.stage is stage)


def _say(state: Negotiation, kind: Kind, attempt: int, reason: str = "") -> Message:
    return Message(kind, state.round, attempt, reason)


def _mine(state: Negotiation, peer: str, link: Link) -> Negotiation:
    return replace(state, mine=MappingProxyType({**state.mine, peer: link}))


def _theirs(state: Negotiation, peer: str, link: Link) -> Negotiation:
    return replace(state, theirs=MappingProxyType({**state.theirs, peer: link}))
