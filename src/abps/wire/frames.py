"""Frames: the bytes that go from one center to another. No pickle, nothing executable.

A frame is a fixed header of 32 bytes, then the codec's payload:

    0  magic      4 bytes "ABPS"
    4  version    u8
    5  codec      u8
    6  reserved   u16, zero
    8  round      u32
    12 count      u32   weights in the payload
    16 sender     u64   the sender's stream number
    24 length     u32   payload bytes
    28 checksum   u32   CRC-32 of header (without it) and payload
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from abps.wire.codecs import CODECS, Codec

_HEADER = struct.Struct("<4sBBHIIQII")
_MAGIC = b"ABPS"
VERSION = 1
HEADER_SIZE = _HEADER.size


class FrameError(ValueError):
    """The bytes are not a frame that this version understands."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A decoded frame."""

    round: int
    sender: int
    codec: str
    weights: NDArray[np.float32]


def frame_size(codec: Codec, count: int) -> int:
    """Bytes of a frame with ``count`` weights."""
    return HEADER_SIZE + codec.size(count)


def pack(weights: NDArray[np.float32], codec: Codec, round: int, sender: int, key: int = 0) -> bytes:
    """Weights (count,) to a frame; ``key``: of the message's own random stream, for codecs that need one."""
    payload = codec.encode(weights, key)
    head = _HEADER.pack(_MAGIC, VERSION, codec.number, 0, round, len(weights), sender, len(payload), 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


def unpack(data: bytes, expected: Codec | None = None) -> Frame:
    """A frame to weights, or :class:`FrameError` with the reason; ``expected``: a codec that is not ours."""
    if len(data) < HEADER_SIZE:
        raise FrameError(f"{len(data)} bytes are shorter than a header of {HEADER_SIZE}")
    magic, version, number, _, round, count, sender, length, checksum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise FrameError("not an ABPS frame")
    if version != VERSION:
        raise FrameError(f"frame version {version}, this is version {VERSION}")
    known = {codec.number: codec for codec in (*CODECS.builtin.values(), *([expected] if expected else []))}
    if number not in known:
        raise FrameError(f"unknown codec number {number}")
    codec = known[number]
    payload = data[HEADER_SIZE:]
    if len(payload) != length or length != codec.size(count):
        raise FrameError(f"{len(payload)} payload bytes for {count} weights in {codec.name}")
    if zlib.crc32(payload, zlib.crc32(data[: HEADER_SIZE - 4])) != checksum:
        raise FrameError("checksum does not match")
    return Frame(round, sender, codec.name, codec.decode(payload, count))
