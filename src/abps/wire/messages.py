"""The messages of a round as bytes: uploads to a coordinator and its broadcasts, requests for missed ones,
heads of logs. Each begins with sixteen bytes, the unit the ledger counts:

    0  kind     u8
    1  detail   u8    of a head, how often its store was restored
    2  count    u16   of a head, the bytes of its signature; of a request, the last round whose broadcast is
                      known
    4  round    u32
    8  sender   u64   the number that names the sender

Most have a body after it: an upload or a broadcast its content, the head of a log the number of rows (u64), a
digest (32 bytes) and the signature.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from abps.core.ledger import CONTROL_MESSAGE

_LAYOUT = struct.Struct("<BBHIQ")
_HEAD_BODY = struct.Struct("<Q32s")
assert _LAYOUT.size == CONTROL_MESSAGE

_REQUEST, _UPLOAD, _BROADCAST, _HEAD = 34, 36, 37, 38
_WORDS = {
    _REQUEST: "a request for broadcasts",
    _UPLOAD: "an upload",
    _BROADCAST: "a broadcast",
    _HEAD: "the head of a log",
}

#: The longest signature of a head.
LONGEST_SIGNATURE = 1024


class MessageError(ValueError):
    """The bytes are not a message that this version understands."""


@dataclass(frozen=True)
class _Parts:
    detail: int
    count: int
    round: int
    sender: int
    body: bytes


def _pack(kind: int, round: int, sender: int, body: bytes = b"", detail: int = 0, count: int = 0) -> bytes:
    return _LAYOUT.pack(kind, detail, count, round, sender) + body


def _unpack(data: bytes, kind: int, body: int | None = 0) -> _Parts:
    """The parts of a message of one kind, or :class:`MessageError`; body: its length, none for any."""
    if len(data) < CONTROL_MESSAGE or (body is not None and len(data) != CONTROL_MESSAGE + body):
        raise MessageError(f"{len(data)} bytes are not {_WORDS[kind]}")
    number, detail, count, round, sender = _LAYOUT.unpack_from(data)
    parts = _Parts(detail, count, round, sender, data[CONTROL_MESSAGE:])
    if number != kind:
        raise MessageError(f"kind {number} is not {_WORDS[kind]}")
    if (parts.detail and kind != _HEAD) or (parts.count and kind not in (_REQUEST, _HEAD)):
        raise MessageError(f"detail {parts.detail} and count {parts.count} are not those of {_WORDS[kind]}")
    return parts


def pack_upload(content: bytes, round: int, sender: int) -> bytes:
    """What a member sends to the coordinator of a round."""
    return _pack(_UPLOAD, round, sender, content)


def unpack_upload(data: bytes) -> tuple[bytes, int, int]:
    """Content, round and the number that the sender claims, or :class:`MessageError`."""
    parts = _unpack(data, _UPLOAD, None)
    return parts.body, parts.round, parts.sender


def pack_broadcast(content: bytes, round: int, sender: int) -> bytes:
    """What the coordinator of a round sends to a member."""
    return _pack(_BROADCAST, round, sender, content)


def unpack_broadcast(data: bytes) -> tuple[bytes, int, int]:
    """Content, round and the number that the sender claims, or :class:`MessageError`."""
    parts = _unpack(data, _BROADCAST, None)
    return parts.body, parts.round, parts.sender


def pack_request(after: int, round: int, sender: int) -> bytes:
    """A member asks for the broadcasts after a round."""
    return _pack(_REQUEST, round, sender, count=after)


def unpack_request(data: bytes) -> tuple[int, int, int]:
    """The last round that is known, the present one, and the number that the sender claims."""
    parts = _unpack(data, _REQUEST)
    return parts.count, parts.round, parts.sender


@dataclass(frozen=True)
class HeadMessage:
    """The signed head of a log.  restores: how often its store had been brought back from a backup."""

    rows: int
    digest: bytes
    signature: bytes
    round: int
    restores: int = 0


#: More restores than this cannot be written into a message.
MOST_RESTORES = 0xFF


def pack_head(head: HeadMessage, sender: int) -> bytes:
    """The signed head of a log as a message."""
    body = _HEAD_BODY.pack(head.rows, head.digest) + head.signature
    detail = min(head.restores, MOST_RESTORES)
    return _pack(_HEAD, head.round, sender, body, detail=detail, count=len(head.signature))


def unpack_head(data: bytes) -> tuple[HeadMessage, int]:
    """The head and the number that the sender claims; or :class:`MessageError`."""
    parts = _unpack(data, _HEAD, None)
    if parts.count > LONGEST_SIGNATURE or len(parts.body) != _HEAD_BODY.size + parts.count:
        raise MessageError(f"{len(data)} bytes for a head with a signature of {parts.count}")
    rows, digest = _HEAD_BODY.unpack_from(parts.body)
    head = HeadMessage(rows, digest, parts.body[_HEAD_BODY.size :], parts.round, parts.detail)
    return head, parts.sender
