"""What a center lets in: every message of a peer passes these checks before anything is done with it.

A check returns the content, or raises :class:`Refusal` with a reason from a fixed list; the caller counts
refusals per peer and logs them. Checks are pure: the rate limit takes the time as an argument. Cheap checks
come first: the sender, the number of bytes, and only then the content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from abps.core.streams import center_id
from abps.wire.messages import (
    HeadMessage,
    MessageError,
    unpack_broadcast,
    unpack_head,
    unpack_request,
    unpack_upload,
)


class Reason(StrEnum):
    """Why something was refused."""

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
        self.peer = peer
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Limits:
    """What a center tolerates of one peer.

    burst, per_second: messages at once, and in the long run.  per_round: messages of a round.
    rows: a peer's training rows count for at most so many times one's own.
    said: bytes of an upload to a coordinator, or of its broadcast.
    refusals: hostile messages in a job after which the peer is ignored until the next.
    """

    burst: int = 400
    per_second: float = 50.0
    rows: float = 10.0
    per_round: int = 500
    said: int = 1 << 22
    refusals: int = 10


@dataclass(frozen=True)
class RateLimit:
    """A token bucket: how many messages a peer may still send. It fills with time."""

    left: float
    at: float

    @staticmethod
    def full(limits: Limits, now: float) -> RateLimit:
        """A full bucket at the time ``now`` (seconds, any origin)."""
        return RateLimit(float(limits.burst), now)

    def take(self, peer: str, now: float, limits: Limits) -> RateLimit:
        """The bucket after one message at the time ``now``; raises :class:`Refusal` if it is empty."""
        left = min(float(limits.burst), self.left + max(0.0, now - self.at) * limits.per_second)
        if left < 1.0:
            raise Refusal(peer, Reason.RATE, f"more than {limits.per_second:g} messages per second")
        return replace(self, left=left - 1.0, at=now)


#: The number by which a peer's messages must name their sender.
SenderId = Callable[[str], int]


@dataclass(frozen=True)
class Origin:
    """Where something came from, and what is let in from there.

    peer: the sender that the channel authenticated.  received: who may send such a message at all.
    round: the current round here.  sender_id: the number by which a peer must name itself.
    """

    peer: str
    received: Collection[str]
    round: int = 0
    limits: Limits = Limits()
    sender_id: SenderId = center_id

    def member(self) -> None:
        """Only members of the federation may send."""
        if self.peer not in self.received:
            raise Refusal(self.peer, Reason.STRANGER, "it is not in this federation")

    def sent_by(self, sender: int) -> None:
        """The claimed sender must be the one that the channel authenticated, in this study and job."""
        if sender != self.sender_id(self.peer):
            raise Refusal(
                self.peer, Reason.SENDER, f"it speaks for another center, study or job ({sender:#x})"
            )

    def same_round(self, round: int, what: str) -> None:
        """What belongs to a round must belong to the current one."""
        if round != self.round:
            raise Refusal(self.peer, Reason.ROUND, f"{what} round {round}, here it is {self.round}")


def admit_head(data: bytes, origin: Origin) -> HeadMessage:
    """The head of a log from a member. It does not say whose."""
    origin.member()
    with _readable(origin.peer):
        head, sender = unpack_head(data)
    origin.sent_by(sender)
    return head


def admit_request(data: bytes, origin: Origin) -> int:
    """The round after which a member asks for broadcasts, in this round."""
    origin.member()
    with _readable(origin.peer):
        after, round, sender = unpack_request(data)
    origin.sent_by(sender)
    origin.same_round(round, "asked in")
    return after


def admit_upload(data: bytes, origin: Origin) -> bytes:
    """The content of a member's upload in this round."""
    return _admit_content(data, origin, unpack_upload)


def admit_broadcast(data: bytes, origin: Origin) -> bytes:
    """The content of the coordinator's broadcast in this round."""
    return _admit_content(data, origin, unpack_broadcast)


def _admit_content(data: bytes, origin: Origin, unpack: Callable[[bytes], tuple[bytes, int, int]]) -> bytes:
    origin.member()
    if len(data) > origin.limits.said:
        raise Refusal(origin.peer, Reason.SIZE, f"{len(data)} bytes, at most {origin.limits.said}")
    with _readable(origin.peer):
        content, round, sender = unpack(data)
    origin.sent_by(sender)
    origin.same_round(round, "sent in")
    return content


@contextmanager
def _readable(peer: str) -> Iterator[None]:
    """Refuse what cannot be decoded."""
    try:
        yield
    except MessageError as error:
        raise Refusal(peer, Reason.MALFORMED, str(error)) from error
