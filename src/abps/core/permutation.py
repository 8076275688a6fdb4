"""Random orders of all centers, by which ties between peers of equal score are broken.

A keyed permutation of 0..n-1: a Feistel network on a power of two, walked until it lands inside 0..n-1. It
can be evaluated at single places, so that a simulation of 100,000 centers looks at the first few without
listing all (:mod:`abps.methods.large_matching`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_U64 = np.uint64


def _halves(n: int) -> tuple[int, int]:
    """Bits of the high and of the low half of the domain.

    Small domains have halves of one size, which mixes better; in large ones they may differ by a bit, so that
    hardly anything falls outside 0..n-1 and has to walk on.
    """
    bits = max(2, (max(1, n) - 1).bit_length())
    return (bits + 1 >> 1, bits + 1 >> 1) if bits < 16 else (bits >> 1, bits + 1 >> 1)


def _rounds(half: int) -> int:
    """Small domains need more rounds before pairs of places are balanced (tested by chi-square)."""
    return 10 if half < 8 else 6


def _stir(
    target: NDArray[np.uint64], other: NDArray[np.uint64], key: NDArray[np.uint64], k: int, mask: np.uint64
) -> None:
    """target ^= F(other, key, k), in place."""
    x = other * _U64(0x9E3779B97F4A7C15)
    x += key + _U64((k + 1) * 0xD1B54A32D192ED03 & (2**64 - 1))
    x ^= x >> _U64(32)
    x *= _U64(0xBF58476D1CE4E5B9)
    x ^= x >> _U64(29)
    x &= mask
    target ^= x


def shape(n: int) -> tuple[int, int, int]:
    """The bits of both halves and the rounds of the network for n centers."""
    high, low = _halves(n)
    return high, low, _rounds(low)


def all_places(key: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
    """(keys, n) the place of every center in the order of each key.

    What a round of the network adds depends on half of a value only, so it is looked up in short tables.
    """
    high, low = _halves(n)
    wide, rows, size = max(high, low), len(key), 1 << high + low
    value = np.broadcast_to(np.arange(size), (rows, size))
    # Above each half stands its row's number, so that it is a place in all rows' tables side by side.
    row = (np.arange(rows) << wide)[:, None]
    half = [(value >> low) + row, (value & (1 << low) - 1) + row]
    inputs = np.broadcast_to(np.arange(1 << wide, dtype=np.uint64), (rows, 1 << wide))
    looked_up = np.empty((rows, size), dtype=np.int64)
    with np.errstate(over="ignore"):
        for k in range(_rounds(low) - 1, -1, -1):
            added = np.zeros(inputs.shape, dtype=np.uint64)
            _stir(added, inputs, key[:, None], k, _U64((1 << (low if k % 2 else high)) - 1))
            # All places exist; "clip" only spares the check.
            np.take(added.ravel().view(np.int64), half[1 - k % 2], out=looked_up, mode="clip")
            half[k % 2] ^= looked_up
    half[0] -= row
    half[0] <<= low
    half[1] -= row
    half[0] |= half[1]
    whole = half[0].ravel()  # (keys * size,) the network as a table
    place = half[0][:, :n].copy()
    flat = place.ravel()
    outside = np.flatnonzero(flat >= n)
    first = outside // n * size
    while len(outside):
        again = whole[first + flat[outside]]
        flat[outside] = again
        still = again >= n
        outside, first = outside[still], first[still]
    return place
