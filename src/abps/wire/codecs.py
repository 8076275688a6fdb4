"""Codecs: how weights travel, and what is left of them on arrival.

A codec turns a vector of float32 into bytes and back. ``arrive`` gives, for many senders at once, exactly
what decoding each sender's bytes would give: simulation uses it, a hospital sends the bytes. The integer
codecs are meant for differences from a reference that both sides know: blocks of 64 with one scale each,
rounded up or down at random, by the message's own stream, so that nothing is lost on average.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError
from abps.registry import Registry

Singles = NDArray[np.float32]
Keys = NDArray[np.uint64]


@runtime_checkable
class Codec(Protocol):
    """How a vector of weights is written."""

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int:
        """The number that identifies the codec in a frame: below 128 for ours, 128 to 255 for others."""

    def size(self, count: int) -> int:
        """Bytes that ``count`` weights take."""

    def encode(self, weights: Singles, key: int = 0) -> bytes:
        """(count,) to bytes; ``key`` is the message's random stream."""

    def decode(self, data: bytes, count: int) -> Singles:
        """Bytes to (count,)."""

    def arrive(self, weights: Singles, keys: Keys | None = None, out: Singles | None = None) -> Singles:
        """(senders, count) as the receivers see them, into ``out``; keys: (senders,) the messages'
        streams."""


@dataclass(frozen=True)
class Float32:
    """Weights as they are."""

    name: str = "fp32"
    number: int = 1

    def size(self, count: int) -> int:
        return 4 * count

    def encode(self, weights: Singles, key: int = 0) -> bytes:
        return weights.astype("<f4").tobytes()

    def decode(self, data: bytes, count: int) -> Singles:
        return np.frombuffer(data, dtype="<f4", count=count).astype(np.float32)

    def arrive(self, weights: Singles, keys: Keys | None = None, out: Singles | None = None) -> Singles:
        out = np.empty(weights.shape, dtype=np.float32) if out is None else out
        out[:] = weights
        return out


@dataclass(frozen=True)
class BFloat16:
    """The upper half of a float32, rounded to nearest, ties to even."""

    name: str = "bf16"
    number: int = 2

    def size(self, count: int) -> int:
        return 2 * count

    def encode(self, weights: Singles, key: int = 0) -> bytes:
        return _upper_half(weights).astype("<u2").tobytes()

    def decode(self, data: bytes, count: int) -> Singles:
        half = np.frombuffer(data, dtype="<u2", count=count)
        return (half.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def arrive(self, weights: Singles, keys: Keys | None = None, out: Singles | None = None) -> Singles:
        out = np.empty(weights.shape, dtype=np.float32) if out is None else out
        for k, row in enumerate(weights):  # one sender at a time: its weights stay in the cache
            out[k] = round_bfloat16(row)
        return out


def round_bfloat16(weights: Singles) -> Singles:
    """Float32 with the lower half of their bits rounded away, to nearest, ties to even. A NaN stays a (quiet)
    NaN: rounding must not carry it into infinity."""
    bits = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32)
    rounded = (bits >> np.uint32(16)) & np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits  # 32-bit integers wrap around
    rounded &= np.uint32(0xFFFF0000)
    nan = np.isnan(weights)
    if nan.any():
        rounded[nan] = (bits[nan] & np.uint32(0xFFFF0000)) | np.uint32(0x400000)
    return rounded.view(np.float32)


def _upper_half(weights: Singles) -> NDArray[np.uint16]:
    return (round_bfloat16(weights).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


BLOCK = 64  # weights that share one scale


@dataclass(frozen=True)
class Integers:
    """Whole numbers of a few bits, blocks of 64 with a bfloat16 scale each, rounded at random. A code is
    between -top and top; a weight's error is below its block's scale, which is at most the block's largest
    weight over top, rounded up to bfloat16 (less than 1 % more)."""

    name: str
    number: int
    bits: int

    @property
    def top(self) -> int:
        return (1 << self.bits - 1) - 1

    def size(self, count: int) -> int:
        return -(-count * self.bits // 8) + 2 * -(-count // BLOCK)

    def encode(self, weights: Singles, key: int = 0) -> bytes:
        """Scales, then codes (offset to be positive), most significant bit first."""
        codes, scale = self._round(np.asarray(weights, dtype=np.float32), key)
        offset = (codes + self.top).astype(np.uint8)
        spread = np.unpackbits(offset[:, None], axis=1)[:, 8 - self.bits :]
        return _upper_half(scale).astype("<u2").tobytes() + np.packbits(spread.ravel()).tobytes()

    def decode(self, data: bytes, count: int) -> Singles:
        blocks = -(-count // BLOCK)
        scale = BFloat16().decode(data[: 2 * blocks], blocks)
        flat = np.unpackbits(np.frombuffer(data[2 * blocks :], dtype=np.uint8))[: count * self.bits]
        codes = flat.reshape(count, self.bits) @ (1 << np.arange(self.bits - 1, -1, -1))
        return (codes - self.top).astype(np.float32) * np.repeat(scale, BLOCK)[:count]

    def arrive(self, weights: Singles, keys: Keys | None = None, out: Singles | None = None) -> Singles:
        if keys is None:
            raise ValueError(f"{self.name} rounds at random and needs the messages' keys")
        out = np.empty(weights.shape, dtype=np.float32) if out is None else out
        for k, row in enumerate(weights):
            codes, scale = self._round(row, int(keys[k]))
            out[k] = codes * np.repeat(scale, BLOCK)[: len(row)]
        return out

    def _round(self, weights: Singles, key: int) -> tuple[Singles, Singles]:
        """(count,) codes as whole numbers, and the scale of every block. A block with anything that is not
        finite, or too large for a scale, is zero."""
        count, blocks = len(weights), -(-len(weights) // BLOCK)
        table, chance = np.zeros((2, blocks, BLOCK), dtype=np.float32)
        table.ravel()[:count] = weights
        chance.ravel()[:count] = _random_halves(key, count)
        top, infinite = np.float32(self.top), np.uint32(0x7F800000)
        # Without their sign, the bits of floats are ordered as the floats are; infinity and NaN come last.
        largest = (table.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1, initial=0)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # Rounded up to a bfloat16, so that no weight falls outside the codes.
            bits = (largest.view(np.float32) / top).view(np.uint32)
            scale = ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
            fits = (largest < infinite) & (scale > 0) & (scale < np.float32(np.inf))
            codes = np.floor(table / scale[:, None] + chance * np.float32(2.0**-16))
            codes = np.where(fits[:, None], np.minimum(np.maximum(codes, -top), top), np.float32(0.0))
        return codes.ravel()[:count], np.where(fits, scale, np.float32(0.0))


def _random_halves(key: int, count: int) -> NDArray[np.uint16]:
    """(count,) 16 random bits for each weight, which decide whether it is rounded up: a word for every two
    weights, its place, shifted by one half of the message's key, folded, times the other half, folded
    again."""
    low, odd = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32 | 1)
    mixed = streams.places(-(-count // 2)) + low
    mixed = (mixed ^ (mixed >> np.uint32(15))) * odd
    return (mixed ^ (mixed >> np.uint32(16))).view(np.uint16)[:count]


def _codec(found: Any) -> Codec | None:
    if not isinstance(found, Codec) or isinstance(found, type):
        return None
    if not 128 <= found.number <= 255:
        raise RequestError(f"codec {found.name!r} has the number {found.number}; choose one from 128 to 255")
    return found


_OURS: tuple[Codec, ...] = (
    Float32(), BFloat16(), Integers("int8", 3, 8), Integers("int4", 4, 4), Integers("int3", 5, 3),
)  # fmt: skip

CODECS: Final = Registry[Codec](
    "codec",
    "abps.codecs",
    {known.name: known for known in _OURS},
    _codec,
    "an object with name, number, size, encode, decode and arrive as in abps.wire.codecs.Codec",
)


#: Bytes before a message's weights: magic, version, codec, round, count, sender, length, checksum.
HEADER_SIZE: Final = 32


def frame_size(codec: Codec, count: int) -> int:
    """Bytes of a message with ``count`` weights."""
    return HEADER_SIZE + codec.size(count)


def codec(name: str) -> Codec:
    """A codec by its name: ours, an entry point's, or ``package.module:NAME``."""
    return CODECS.find(name)
