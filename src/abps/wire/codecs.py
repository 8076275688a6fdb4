"""Codecs: how weights travel, and what is left of them on arrival.

A codec turns a vector of float32 into bytes and back. ``arrive`` gives, for many senders at once, exactly
what decoding each sender's bytes would give: simulation uses it, a hospital sends the bytes.

The integer codecs are meant for differences from a reference that both sides know: small numbers, cut
into blocks of 64 with one scale each, rounded up or down at random so that nothing is lost on average.
The random numbers come from the message's own stream, whose key the caller gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError, nearest

Singles = NDArray[np.float32]
Keys = NDArray[np.uint64]


class Codec(Protocol):
    """How a vector of weights is written."""

    @property
    def name(self) -> str:
        """The name used in configurations."""

    @property
    def number(self) -> int:
        """The number that identifies the codec in a frame."""

    def size(self, count: int) -> int:
        """Bytes that ``count`` weights take."""

    def encode(self, weights: Singles, key: int = 0) -> bytes:
        """(count,) to bytes; ``key`` is the message's random stream."""

    def decode(self, data: bytes, count: int) -> Singles:
        """Bytes to (count,)."""

    def arrive(self, weights: Singles, keys: Keys | None = None) -> Singles:
        """(senders, count) as the receivers see them; ``keys``: (senders,) the messages' streams."""


@dataclass(frozen=True)
class Float32:
    """Weights as they are."""

    name: str = "fp32"
    number: int = 1

    def size(self, count: int) -> int:
        """Four bytes each."""
        return 4 * count

    def encode(self, weights: Singles, key: int = 0) -> bytes:
        """Little-endian float32."""
        return weights.astype("<f4").tobytes()

    def decode(self, data: bytes, count: int) -> Singles:
        """The same numbers back."""
        return np.frombuffer(data, dtype="<f4", count=count).astype(np.float32)

    def arrive(self, weights: Singles, keys: Keys | None = None) -> Singles:
        """Unchanged."""
        return weights


@dataclass(frozen=True)
class BFloat16:
    """The upper half of a float32, rounded to nearest, ties to even."""

    name: str = "bf16"
    number: int = 2

    def size(self, count: int) -> int:
        """Two bytes each."""
        return 2 * count

    def encode(self, weights: Singles, key: int = 0) -> bytes:
        """Little-endian upper halves."""
        return _upper_half(weights).astype("<u2").tobytes()

    def decode(self, data: bytes, count: int) -> Singles:
        """Upper halves with zeros below."""
        half = np.frombuffer(data, dtype="<u2", count=count)
        return (half.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def arrive(self, weights: Singles, keys: Keys | None = None) -> Singles:
        """Rounded to eight bits of precision."""
        return _rounded(weights)


def _upper_half(weights: Singles) -> NDArray[np.uint16]:
    return (_rounded(weights).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _rounded(weights: Singles) -> Singles:
    """Float32 whose lower half is zero; a few rows at a time, which stay in the cache."""
    raw = np.ascontiguousarray(weights, dtype=np.float32).reshape(-1).view(np.uint32)
    out = np.empty_like(raw)
    for at in range(0, len(raw), _PIECE):
        piece, here = raw[at : at + _PIECE], out[at : at + _PIECE]
        np.right_shift(piece, np.uint32(16), out=here)
        np.bitwise_and(here, np.uint32(1), out=here)
        np.add(here, np.uint32(0x7FFF), out=here)
        np.add(here, piece, out=here)
        np.bitwise_and(here, np.uint32(0xFFFF0000), out=here)
        nan = np.isnan(piece.view(np.float32))
        if nan.any():  # rounding must not carry a NaN into infinity: keep it a (quiet) NaN
            here[nan] = piece[nan] & np.uint32(0xFFFF0000) | np.uint32(0x400000)
    return out.view(np.float32).reshape(weights.shape)


#: Numbers that are rounded at once: half of a core's fast cache.
_PIECE: Final = 1 << 15


#: Weights that share one scale.
BLOCK = 64


@dataclass(frozen=True)
class Integers:
    """Whole numbers of a few bits, blocks of 64 with a bfloat16 scale each, rounded at random.

    A code is between -top and top, top = 2**(bits-1) - 1; a weight's error is below its block's scale, which
    is at most the block's largest weight over top, rounded up to bfloat16 (less than 1 % more).
    """

    name: str
    number: int
    bits: int

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits - 1) - 1

    def size(self, count: int) -> int:
        """Packed codes, and two bytes of scale for every block."""
        return -(-count * self.bits // 8) + 2 * -(-count // BLOCK)

    def encode(self, weights: Singles, key: int = 0) -> bytes:
        """Scales, then codes (offset to be positive), most significant bit first."""
        codes, scale = self._codes(weights[None], np.array([key], dtype=np.uint64))
        offset = (codes[0, : len(weights)] + self.top).astype(np.uint8)
        spread = np.unpackbits(offset[:, None], axis=1)[:, 8 - self.bits :]
        return _upper_half(scale[0]).astype("<u2").tobytes() + np.packbits(spread.ravel()).tobytes()

    def decode(self, data: bytes, count: int) -> Singles:
        """Codes times scales."""
        blocks = -(-count // BLOCK)
        scale = BFloat16().decode(data[: 2 * blocks], blocks)
        flat = np.unpackbits(np.frombuffer(data[2 * blocks :], dtype=np.uint8))[: count * self.bits]
        codes = flat.reshape(count, self.bits) @ (1 << np.arange(self.bits - 1, -1, -1))
        return (codes - self.top).astype(np.float32) * np.repeat(scale, BLOCK)[:count]

    def arrive(self, weights: Singles, keys: Keys | None = None) -> Singles:
        """Rounded at random to the codes of their block."""
        if keys is None:
            raise ValueError(f"{self.name} rounds at random and needs the messages' keys")
        codes, scale = self._codes(weights, keys)
        count = weights.shape[1]
        blocks = codes.reshape(len(weights), -1, BLOCK) * scale[:, :, None]
        return np.ascontiguousarray(blocks.reshape(len(weights), -1)[:, :count])

    def _codes(self, weights: Singles, keys: Keys) -> tuple[Singles, Singles]:
        """(senders, padded count) codes as floats, and (senders, blocks) scales."""
        senders, count = weights.shape
        padded = -(-count // BLOCK) * BLOCK
        values = np.zeros((senders, padded), dtype=np.float32)
        values[:, :count] = weights
        blocks = values.reshape(senders, -1, BLOCK)
        with np.errstate(invalid="ignore"):
            scale = _rounded_up(np.abs(blocks).max(axis=2) / np.float32(self.top))
        usable = (scale > 0) & np.isfinite(scale)
        scale = np.where(usable, scale, np.float32(0))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            blocks /= np.where(usable, scale, np.float32(np.inf))[:, :, None]
        blocks = np.where(np.isfinite(blocks), blocks, np.float32(0))
        values = np.floor(blocks.reshape(senders, padded) + _fractions(keys, padded))
        return np.clip(values, -self.top, self.top), scale


def _rounded_up(scale: Singles) -> Singles:
    """Up to the next bfloat16, so that no weight of a block falls outside the codes."""
    raw = np.ascontiguousarray(scale, dtype=np.float32).view(np.uint32)
    return ((raw + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


def _fractions(keys: Keys, count: int) -> Singles:
    """(senders, count) uniform numbers in [0, 1) with 16 bits, from each message's key."""
    words = streams.words(keys, -(-count // 2))
    return words.view(np.uint16)[:, :count].astype(np.float32) * np.float32(2.0**-16)


CODECS: Final[dict[str, Codec]] = {
    "fp32": Float32(),
    "bf16": BFloat16(),
    "int8": Integers("int8", 3, 8),
    "int4": Integers("int4", 4, 4),
    "int3": Integers("int3", 5, 3),
}


def codec(name: str) -> Codec:
    """A codec by its name."""
    if name not in CODECS:
        raise RequestError(f"codec={name!r} is not one of {', '.join(CODECS)}{nearest(name, CODECS)}")
    return CODECS[name]
