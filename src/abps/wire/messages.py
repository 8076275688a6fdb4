"""The small messages of a round as bytes: proposals and their answers, a center's metadata vector, alarms.

A control message is sixteen bytes, the unit the ledger counts:

    0  kind     u8
    1  reason   u8
    2  attempt  u16
    4  round    u32
    8  sender   u64   the sender's stream number

A vector is a control message of kind ``VECTOR`` whose attempt is the number of entries, followed by
the entries as little-endian float32. An alarm is a control message of kind ``ALARM`` whose round is the one
it was raised in. A request for weights is one of kind ``REQUEST``. A note, which goes with weights, is one of
kind ``NOTE`` that has a number (float64) in the place of the sender. What a roll call takes, an answer to the
board or the board's notice, is one of kind ``ANSWER`` or ``NOTICE`` whose reason is the number of the
question, followed by what was said.
The head of a log is one of kind ``HEAD`` whose attempt is the length of its signature, followed by the number
of rows (u64), a digest (32 bytes) and the signature.
An address is one of kind ``ADDRESS``, followed by it in ASCII.
The question for a place is one of kind ``PLACE``, followed by the number of the partner it is about (u64).
"""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from abps.core.ledger import CONTROL_MESSAGE
from abps.core.protocol import Kind, Message

_LAYOUT = struct.Struct("<BBHIQ")
_NUMBER = struct.Struct("<BBHId")
_PARTNER = struct.Struct("<Q")
assert _LAYOUT.size == _NUMBER.size == CONTROL_MESSAGE

_KINDS = {1: Kind.PROPOSE, 2: Kind.ACCEPT, 3: Kind.REFUSE, 4: Kind.CONFIRM, 5: Kind.RELEASE}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_VECTOR = 32
_ALARM = 33
_REQUEST = 34
_NOTE = 35
_ANSWER = 36
_NOTICE = 37
_HEAD = 38
_PLACE = 39
_ADDRESS = 40
_REASONS = (
    "", "full", "declined", "filtered", "busy", "sealed", "crossed", "unreachable", "released",
)  # fmt: skip

#: The largest attempt number, and the longest vector, that a message can carry.
MOST = 0xFFFF


class MessageError(ValueError):
    """The bytes are not a message that this version understands."""


def pack_message(message: Message, sender: int) -> bytes:
    """A message of the matching protocol, in sixteen bytes."""
    return _LAYOUT.pack(
        _NUMBERS[message.kind], _REASONS.index(message.reason), message.attempt, message.round, sender
    )


def unpack_message(data: bytes) -> tuple[Message, int]:
    """The message and the stream number its sender claims, or :class:`MessageError`."""
    if len(data) != CONTROL_MESSAGE:
        raise MessageError(f"{len(data)} bytes, a message has {CONTROL_MESSAGE}")
    number, reason, attempt, round, sender = _LAYOUT.unpack(data)
    if number not in _KINDS:
        raise MessageError(f"unknown kind {number}")
    if reason >= len(_REASONS):
        raise MessageError(f"unknown reason {reason}")
    if attempt < 1:
        raise MessageError("attempts count from 1")
    return Message(_KINDS[number], round, attempt, _REASONS[reason]), sender


def vector_size(entries: int) -> int:
    """Bytes of a published vector."""
    return CONTROL_MESSAGE + 4 * entries


def pack_vector(vector: NDArray[np.float64], round: int, sender: int) -> bytes:
    """A metadata vector (k,) as a center publishes it."""
    return _LAYOUT.pack(_VECTOR, 0, len(vector), round, sender) + vector.astype("<f4").tobytes()


def unpack_vector(data: bytes) -> tuple[NDArray[np.float64], int, int]:
    """The vector, its round and the stream number its sender claims, or :class:`MessageError`."""
    if len(data) < CONTROL_MESSAGE:
        raise MessageError(f"{len(data)} bytes are shorter than a header of {CONTROL_MESSAGE}")
    number, _, entries, round, sender = _LAYOUT.unpack_from(data)
    if number != _VECTOR:
        raise MessageError(f"kind {number} is not a vector")
    if len(data) != vector_size(entries):
        raise MessageError(f"{len(data)} bytes for a vector of {entries} entries")
    return np.frombuffer(data, "<f4", offset=CONTROL_MESSAGE).astype(np.float64), round, sender


def pack_alarm(round: int, sender: int) -> bytes:
    """The word that a center noticed drift at its own in a round, in sixteen bytes."""
    return _LAYOUT.pack(_ALARM, 0, 0, round, sender)


def unpack_alarm(data: bytes) -> tuple[int, int]:
    """The round of an alarm and the stream number its sender claims, or :class:`MessageError`."""
    return _unpack_word(data, _ALARM, "an alarm")


def pack_request(round: int, sender: int) -> bytes:
    """The wish to hear a peer in a round, in sixteen bytes."""
    return _LAYOUT.pack(_REQUEST, 0, 0, round, sender)


def unpack_request(data: bytes) -> tuple[int, int]:
    """The round of a request and the stream number its sender claims, or :class:`MessageError`."""
    return _unpack_word(data, _REQUEST, "a request")


def pack_place(partner: int, round: int, sender: int) -> bytes:
    """The question to a witness whether a partner, by its number, still has a place: twenty-four bytes."""
    return _LAYOUT.pack(_PLACE, 0, 0, round, sender) + _PARTNER.pack(partner)


def unpack_place(data: bytes) -> tuple[int, int, int]:
    """The partner's number, the round, and the number that the sender claims; or :class:`MessageError`."""
    if len(data) != CONTROL_MESSAGE + _PARTNER.size:
        raise MessageError(f"{len(data)} bytes, a question for a place has {CONTROL_MESSAGE + _PARTNER.size}")
    round, sender = _unpack_word(data[:CONTROL_MESSAGE], _PLACE, "a question for a place")
    (partner,) = _PARTNER.unpack_from(data, CONTROL_MESSAGE)
    return partner, round, sender


def _unpack_word(data: bytes, kind: int, what: str) -> tuple[int, int]:
    if len(data) != CONTROL_MESSAGE:
        raise MessageError(f"{len(data)} bytes, {what} has {CONTROL_MESSAGE}")
    number, reason, attempt, round, sender = _LAYOUT.unpack(data)
    if (number, reason, attempt) != (kind, 0, 0):
        raise MessageError(f"kind {number} is not {what}")
    return round, sender


def pack_note(value: float, round: int) -> bytes:
    """The number that goes with a center's weights, in sixteen bytes."""
    return _NUMBER.pack(_NOTE, 0, 0, round, value)


def unpack_note(data: bytes) -> tuple[float, int]:
    """The number and its round, or :class:`MessageError`."""
    if len(data) != CONTROL_MESSAGE:
        raise MessageError(f"{len(data)} bytes, a note has {CONTROL_MESSAGE}")
    number, reason, attempt, round, value = _NUMBER.unpack(data)
    if (number, reason, attempt) != (_NOTE, 0, 0) or not math.isfinite(value):
        raise MessageError(f"kind {number} with {value:g} is not a note")
    return value, round


def pack_answer(said: bytes, round: int, question: int, sender: int) -> bytes:
    """A center's answer to a roll call."""
    return _LAYOUT.pack(_ANSWER, question, 0, round, sender) + said


def pack_notice(said: bytes, round: int, question: int, sender: int) -> bytes:
    """What a board tells a center after a roll call."""
    return _LAYOUT.pack(_NOTICE, question, 0, round, sender) + said


def unpack_answer(data: bytes) -> tuple[bytes, int, int, int]:
    """What was said, the round, the question and the stream number its sender claims, or
    :class:`MessageError`."""
    return _unpack_said(data, _ANSWER, "an answer")


def unpack_notice(data: bytes) -> tuple[bytes, int, int, int]:
    """The same of a board's notice."""
    return _unpack_said(data, _NOTICE, "a notice")


def pack_address(address: str, round: int, sender: int) -> bytes:
    """Where a center listens."""
    return _LAYOUT.pack(_ADDRESS, 0, 0, round, sender) + address.encode("ascii")


def unpack_address(data: bytes) -> tuple[str, int]:
    """The address and the number that the sender claims, or :class:`MessageError`."""
    said, _, question, sender = _unpack_said(data, _ADDRESS, "an address")
    if question or not said.isascii():
        raise MessageError("not an address")
    return said.decode("ascii"), sender


def _unpack_said(data: bytes, kind: int, what: str) -> tuple[bytes, int, int, int]:
    if len(data) < CONTROL_MESSAGE:
        raise MessageError(f"{len(data)} bytes are shorter than a header of {CONTROL_MESSAGE}")
    number, question, attempt, round, sender = _LAYOUT.unpack_from(data)
    if (number, attempt) != (kind, 0):
        raise MessageError(f"kind {number} is not {what}")
    return data[CONTROL_MESSAGE:], round, question, sender


#: The longest signature of a head.
LONGEST_SIGNATURE = 1024

_HEAD_BODY = struct.Struct("<Q32s")


def pack_head(rows: int, digest: bytes, signature: bytes, round: int, sender: int) -> bytes:
    """The signed head of a log: how many rows it has, and the digest of the last."""
    head = _LAYOUT.pack(_HEAD, 0, len(signature), round, sender)
    return head + _HEAD_BODY.pack(rows, digest) + signature


def unpack_head(data: bytes) -> tuple[int, bytes, bytes, int, int]:
    """Rows, digest, signature, round, and the number that the sender claims; or :class:`MessageError`."""
    least = CONTROL_MESSAGE + _HEAD_BODY.size
    if len(data) < least:
        raise MessageError(f"{len(data)} bytes are shorter than a head of {least}")
    number, reason, length, round, sender = _LAYOUT.unpack_from(data)
    if (number, reason) != (_HEAD, 0):
        raise MessageError(f"kind {number} is not a head")
    if length > LONGEST_SIGNATURE or len(data) != least + length:
        raise MessageError(f"{len(data)} bytes for a head with a signature of {length}")
    rows, digest = _HEAD_BODY.unpack_from(data, CONTROL_MESSAGE)
    return rows, digest, data[least:], round, sender
