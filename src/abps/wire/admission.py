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

import numpy as np
from numpy.typing import NDArray

from abps.core.protocol import Message
from abps.core.streams import center_id
from abps.wire.codecs import Codec
from abps.wire.frames import FrameError, frame_size, unpack
from abps.wire.messages import (
    HeadMessage,
    MessageError,
    unpack_broadcast,
    unpack_head,
    unpack_message,
    unpack_request,
    unpack_upload,
    unpack_vector,
)


class Reason(StrEnum):
    """Why something was refused."""

    STRANGER = "not a member"
    NOT_PARTNER = "not a partner"
    SENDER = "wrong sender"
    ROUND = "wrong round"
    MALFORMED = "malformed"
    SIZE = "wrong size"
    CODEC = "wrong codec"
    SHAPE = "wrong shape"
    NOT_FINITE = "not finite"
    TOO_LARGE = "implausibly large"
    METADATA = "implausible metadata"
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

    burst, per_second: messages at once, and in the long run.  weight: the largest absolute weight.
    rounds_back: how old a round may be whose proposal is still being settled.
    rows: a peer's training rows count for at most so many times one's own.
    per_round, fetches: messages of a round, and among them those that are answered with weights.
    said: bytes of an upload to a coordinator, or of its broadcast.
    refusals: hostile messages in a job after which the peer is ignored until the next.
    """

    burst: int = 400
    per_second: float = 50.0
    weight: float = 1e6
    rounds_back: int = 10_000
    rows: float = 10.0
    per_round: int = 500
    fetches: int = 5
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


def admit_message(data: bytes, origin: Origin) -> Message:
    """A message of the matching protocol from a member, of this round or an earlier one."""
    origin.member()
    with _readable(origin.peer):
        message, sender = unpack_message(data)
    origin.sent_by(sender)
    if not max(1, origin.round - origin.limits.rounds_back) <= message.round <= origin.round:
        raise Refusal(origin.peer, Reason.ROUND, f"round {message.round}, here it is {origin.round}")
    return message


def admit_weights(data: bytes, origin: Origin, codec: Codec, count: int) -> NDArray[np.float32]:
    """(count,) the weights of a frame for this round, from a partner."""
    peer, limits = origin.peer, origin.limits
    if peer not in origin.received:
        raise Refusal(peer, Reason.NOT_PARTNER, f"no partner in round {origin.round}")
    wanted = frame_size(codec, count)
    if len(data) > wanted:
        raise Refusal(peer, Reason.SIZE, f"{len(data)} bytes, expected {wanted}")
    try:
        frame = unpack(data)
    except FrameError as error:
        raise Refusal(peer, Reason.MALFORMED, str(error)) from error
    origin.sent_by(frame.sender)
    if frame.round != origin.round:
        raise Refusal(peer, Reason.ROUND, f"round {frame.round}, here it is {origin.round}")
    if frame.codec != codec.name:
        raise Refusal(peer, Reason.CODEC, f"{frame.codec}, agreed is {codec.name}")
    if frame.weights.shape != (count,):
        raise Refusal(peer, Reason.SHAPE, f"{frame.weights.shape[0]} weights, expected {count}")
    if not np.isfinite(frame.weights).all():
        bad = int((~np.isfinite(frame.weights)).sum())
        raise Refusal(peer, Reason.NOT_FINITE, f"{bad} of {count} weights are NaN or infinite")
    largest = float(np.abs(frame.weights).max(initial=0.0))
    if largest > limits.weight:
        raise Refusal(peer, Reason.TOO_LARGE, f"a weight of {largest:.3g}, at most {limits.weight:g}")
    return frame.weights


@dataclass(frozen=True)
class PlausibleRange:
    """The values that an entry of a metadata vector can plausibly have."""

    low: float
    high: float


#: A share of rows; the logarithm of one to a hundred million rows; the year 1900 to 2300 over 2030
#: (published data sets shift dates into the future).
SHARE = PlausibleRange(0.0, 1.0)
LOG_ROWS = PlausibleRange(0.0, 18.5)
YEAR = PlausibleRange(1900 / 2030, 2300 / 2030)


def plausible(names: tuple[str, ...]) -> tuple[PlausibleRange, ...]:
    """The range of every entry, by the entry's name."""
    known = {"log training rows": LOG_ROWS, "mean year / 2030": YEAR}
    return tuple(known.get(name, SHARE) for name in names)


def admit_vector(data: bytes, origin: Origin, names: tuple[str, ...]) -> NDArray[np.float64]:
    """(k,) a member's metadata vector, every entry within its plausible range."""
    origin.member()
    with _readable(origin.peer):
        vector, _, sender = unpack_vector(data)
    origin.sent_by(sender)
    if len(vector) != len(names):
        raise Refusal(origin.peer, Reason.SHAPE, f"{len(vector)} entries, expected {len(names)}")
    for name, value, allowed in zip(names, vector.tolist(), plausible(names)):
        # Published as float32: the ends of a range may be off by its last digit.
        if not allowed.low - 1e-6 <= value <= allowed.high + 1e-6:
            raise Refusal(
                origin.peer,
                Reason.METADATA,
                f"{name} is {value:g}, plausible is {allowed.low:g} to {allowed.high:g}",
            )
    return vector


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
