"""Codecs: how weights travel, and what is left of them on arrival.

A codec turns a vector of float32 into bytes and back. ``arrive`` gives, for many senders at once, exactly
what decoding each sender's bytes would give: simulation uses it, a hospital sends the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError, nearest

Singles = NDArray[np.float32]


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

    def encode(self, weights: Singles) -> bytes:
        """(count,) to bytes."""

    def decode(self, data: bytes, count: int) -> Singles:
        """Bytes to (count,)."""

    def arrive(self, weights: Singles) -> Singles:
        """(senders, count) as the receivers see them."""


@dataclass(frozen=True)
class Float32:
    """Weights as they are."""

    name: str = "fp32"
    number: int = 1

    def size(self, count: int) -> int:
        """Four bytes each."""
        return 4 * count

    def encode(self, weights: Singles) -> bytes:
        """Little-endian float32."""
        return weights.astype("<f4").tobytes()

    def decode(self, data: bytes, count: int) -> Singles:
        """The same numbers back."""
        return np.frombuffer(data, dtype="<f4", count=count).astype(np.float32)

    def arrive(self, weights: Singles) -> Singles:
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

    def encode(self, weights: Singles) -> bytes:
        """Little-endian upper halves."""
        return _upper_half(weights).astype("<u2").tobytes()

    def decode(self, data: bytes, count: int) -> Singles:
        """Upper halves with zeros below."""
        half = np.frombuffer(data, dtype="<u2", count=count)
        return (half.astype(np.uint32) << np.uint32(16)).view(np.float32)

    def arrive(self, weights: Singles) -> Singles:
        """Rounded to eight bits of precision."""
        return (_upper_half(weights).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _upper_half(weights: Singles) -> NDArray[np.uint16]:
    raw = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32)
    rounded = raw + np.uint32(0x7FFF) + ((raw >> np.uint32(16)) & np.uint32(1))
    # Rounding must not carry a NaN into infinity: keep it a (quiet) NaN.
    nan = (raw & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, (raw >> np.uint32(16)) | np.uint32(0x40), rounded >> np.uint32(16)).astype(np.uint16)


CODECS: Final[dict[str, Codec]] = {"fp32": Float32(), "bf16": BFloat16()}


def codec(name: str) -> Codec:
    """A codec by its name."""
    if name not in CODECS:
        raise RequestError(f"codec={name!r} is not one of {', '.join(CODECS)}{nearest(name, CODECS)}")
    return CODECS[name]
