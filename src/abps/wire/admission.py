"""What a center lets in: every message of a peer passes these checks before anything is done with it, the
cheap ones first. A check returns the content, or raises :class:`Refusal` with a reason from a fixed list."""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from abps.core.streams import center_id
from abps.wire.messages import Head, Message, MessageError, MessageKind, unpack, unpack_head


class Reason(StrEnum):
    STRANGER = "not a member"
    SENDER = "wrong sender"
    ROUND = "wrong round"
    MALFORMED = "malformed"
    SIZE = "wrong size"
    SHAPE = "wrong shape"
    NOT_FINITE = "not finite"
    RATE = "too many messages"
    PROTOCOL = "against the protocol"
    QUARANTINE = "in quarantine"
    REVOKED = "no member any more"


class Refusal(Exception):
    """A peer's message that was not let in."""

    def __init__(self, peer: str, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason} from {peer}: {detail}")
        self.peer, self.reason, self.detail = peer, reason, detail


@dataclass(frozen=True)
class Limits:
    """What a center tolerates of one peer.  per_round: messages of a round.  rows: its training rows count
    for at most so many times one's own.  said: bytes of an upload to a coordinator, or of its broadcast.
    refusals: hostile messages in a job after which the peer is ignored until the next."""

    rows: float = 10.0
    per_round: int = 500
    said: int = 1 << 22
    refusals: int = 10


def capped_rows(reported: Mapping[str, int]) -> dict[str, int]:
    """The training rows that count, by center: rows weigh in averages, and nobody can check what a center
    says of its own."""
    most = int(Limits().rows * statistics.median(reported.values()))
    return {name: min(rows, most) for name, rows in reported.items()}


SenderId = Callable[[str], int]  # the number by which a peer's messages must name their sender


@dataclass(frozen=True)
class Origin:
    """Where something came from, and what is let in from there.  peer: the sender that the channel
    authenticated.  received: who may send such a message at all.  round: the current one here.  sender_id:
    the number by which a peer must name itself."""

    peer: str
    received: Collection[str]
    round: int = 0
    limits: Limits = Limits()
    sender_id: SenderId = center_id

    def check_member(self) -> None:
        if self.peer not in self.received:
            raise Refusal(self.peer, Reason.STRANGER, "it is not in this federation")

    def check_sender(self, sender: int) -> None:
        """The claimed sender must be the one that the channel authenticated, in this study and job."""
        if sender != self.sender_id(self.peer):
            why = f"it speaks for another center, study or job ({sender:#x})"
            raise Refusal(self.peer, Reason.SENDER, why)


def admit_head(data: bytes, origin: Origin) -> Head:
    origin.check_member()
    with _readable(origin.peer):
        head, sender = unpack_head(data, origin.peer)  # it does not say whose log: taken for the peer's own
    origin.check_sender(sender)
    return head


def admit_request(data: bytes, origin: Origin) -> int:
    """The round after which a member asks for broadcasts, in this round."""
    return _admit(data, origin, MessageKind.REQUEST).count


def admit_upload(data: bytes, origin: Origin) -> bytes:
    return _admit(data, origin, MessageKind.UPLOAD).body


def admit_broadcast(data: bytes, origin: Origin) -> bytes:
    return _admit(data, origin, MessageKind.BROADCAST).body


def _admit(data: bytes, origin: Origin, kind: MessageKind) -> Message:
    """A message of one kind that belongs to the current round."""
    origin.check_member()
    if len(data) > origin.limits.said:
        raise Refusal(origin.peer, Reason.SIZE, f"{len(data)} bytes, at most {origin.limits.said}")
    with _readable(origin.peer):
        found = unpack(data, kind)
    origin.check_sender(found.sender)
    if found.round != origin.round:
        raise Refusal(origin.peer, Reason.ROUND, f"sent in round {found.round}, here it is {origin.round}")
    return found


@contextmanager
def _readable(peer: str) -> Iterator[None]:
    try:
        yield
    except MessageError as error:
        raise Refusal(peer, Reason.MALFORMED, str(error)) from error
