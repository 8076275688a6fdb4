"""The messages of a round as bytes: uploads to a coordinator and its broadcasts, requests for missed ones,
heads of logs. Each begins with sixteen bytes, the unit the ledger counts:

    0  kind     u8
    1  detail   u8    of a head, how often its store was restored
    2  count    u16   of a head, the bytes of its signature; of a request, the last round that is known
    4  round    u32
    8  sender   u64   the number that names the sender

The body of an upload or a broadcast is its content, that of a head the number of rows (u64), a digest
(32 bytes) and the signature. A study speaks exactly one version of this, that of its signed proposal: nobody
can talk a site into an older one.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from abps.core.ledger import CONTROL_MESSAGE

#: (major, minor) of this abps. 4.0: a masked sum takes one step, with keys of the job.
VERSION = (4, 0)

_LAYOUT = struct.Struct("<BBHIQ")
_HEAD_BODY = struct.Struct("<Q32s")
assert _LAYOUT.size == CONTROL_MESSAGE

#: The longest signature of a head; more restores than these cannot be written into a message.
LONGEST_SIGNATURE, MOST_RESTORES = 1024, 0xFF


class MessageKind(IntEnum):
    REQUEST = 34
    UPLOAD = 36
    BROADCAST = 37
    HEAD = 38


class MessageError(ValueError):
    """The bytes are not a message that this version understands."""


@dataclass(frozen=True)
class Message:
    round: int
    sender: int
    body: bytes
    detail: int
    count: int


@dataclass(frozen=True)
class Head:
    """A signed head of a log: how many rows, the digest of the last, and the owner's signature.  site: the
    owner, which is not sent.  restores: how often the store had been restored when the head was signed."""

    site: str
    rows: int
    round: int
    digest: bytes
    signature: bytes = b""
    restores: int = 0


def pack(
    kind: MessageKind, round: int, sender: int, body: bytes = b"", detail: int = 0, count: int = 0
) -> bytes:
    return _LAYOUT.pack(kind, detail, count, round, sender) + body


def unpack(data: bytes, kind: MessageKind) -> Message:
    """The parts of a message of one kind, or :class:`MessageError`."""
    what = kind.name.lower()
    if len(data) < CONTROL_MESSAGE or (kind is MessageKind.REQUEST and len(data) != CONTROL_MESSAGE):
        raise MessageError(f"{len(data)} bytes are no {what}")
    number, detail, count, round, sender = _LAYOUT.unpack_from(data)
    if number != kind:
        raise MessageError(f"kind {number} is no {what}")
    if kind is not MessageKind.HEAD and (detail or (count and kind is not MessageKind.REQUEST)):
        raise MessageError(f"detail {detail} and count {count} are not those of a {what}")
    return Message(round, sender, data[CONTROL_MESSAGE:], detail, count)


def pack_upload(content: bytes, round: int, sender: int) -> bytes:
    return pack(MessageKind.UPLOAD, round, sender, content)


def pack_broadcast(content: bytes, round: int, sender: int) -> bytes:
    return pack(MessageKind.BROADCAST, round, sender, content)


def pack_request(after: int, round: int, sender: int) -> bytes:
    return pack(MessageKind.REQUEST, round, sender, count=after)


def pack_head(head: Head, sender: int) -> bytes:
    body, signed = _HEAD_BODY.pack(head.rows, head.digest) + head.signature, len(head.signature)
    return pack(MessageKind.HEAD, head.round, sender, body, min(head.restores, MOST_RESTORES), signed)


def unpack_head(data: bytes, site: str) -> tuple[Head, int]:
    """The head, taken for one of ``site``'s log, and the number that its sender claims; or an error."""
    parts = unpack(data, MessageKind.HEAD)
    if parts.count > LONGEST_SIGNATURE or len(parts.body) != _HEAD_BODY.size + parts.count:
        raise MessageError(f"{len(data)} bytes for a head with a signature of {parts.count}")
    rows, digest = _HEAD_BODY.unpack_from(parts.body)
    signature = parts.body[_HEAD_BODY.size :]
    return Head(site, rows, parts.round, digest, signature, parts.detail), parts.sender


def sender_ids(study: str, job: str) -> Callable[[str], int]:
    """The number by which a site's messages name their sender, bound to study and job: what belongs to one
    cannot be passed off as part of another."""

    def bound(name: str) -> int:
        text = "\0".join((study, job, name)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    return bound
