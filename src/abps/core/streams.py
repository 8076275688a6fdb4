"""Random streams: one per (seed, center, round, purpose), and nothing else is random.

Every draw in a run is a pure function of those four, so results do not depend on the order in
which centers are processed, on the number of processes, or on where a run was interrupted; and a
hospital that runs alone draws exactly what the simulation draws for it.

Two forms of one idea:

* ``generator`` gives a NumPy generator (SFC64) for one center: shuffles, masks.
* ``uniforms`` hashes whole arrays of (center, index) at once: what selection over many pairs needs.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: What a stream is for. A purpose of its own keeps two uses from ever sharing numbers.
PURPOSES: Final = (
    "initial-weights",
    "split",
    "batches",
    "dropout",
    "proposal-order",
    "tie-break",
    "explore",
    "explore-peer",
    "random-pairing",
    "permutations",
    "codec",
    "policy",
    "accept",
    "graph",
    "sample-weights",
    "sketch",
    "generate",
    "bootstrap",
    "partition",
    "words",
    "calibration",
    "watch",
)

_MASK: Final = (1 << 64) - 1
_U64 = np.uint64


def center_id(name: str) -> int:
    """A center's stable number: its streams stay the same when other centers join or leave."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def center_ids(names: list[str] | tuple[str, ...]) -> NDArray[np.uint64]:
    """(n,) the stable number of every center."""
    return np.array([center_id(name) for name in names], dtype=np.uint64)


def _mix(x: int) -> int:
    """splitmix64's finaliser on Python integers."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mix_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same finaliser on an array (wraps modulo 2**64)."""
    x = x + _U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def _prefix(seed: int, purpose: str, round: int) -> int:
    return _mix(_mix(_mix(seed & _MASK) ^ PURPOSES.index(purpose)) ^ (round & _MASK))


def key(seed: int, purpose: str, round: int = 0, center: int = 0) -> int:
    """The 64-bit key of one stream."""
    return _mix(_prefix(seed, purpose, round) ^ (int(center) & _MASK))


def generator(seed: int, purpose: str, round: int = 0, center: int = 0) -> np.random.Generator:
    """The stream of one (seed, center, round, purpose) as a NumPy generator."""
    return np.random.Generator(np.random.SFC64(key(seed, purpose, round, center)))


def bits(seed: int, purpose: str, round: int, centers: ArrayLike, index: ArrayLike = 0) -> NDArray[np.uint64]:
    """64 random bits for every (center, index); the two arrays broadcast against each other."""
    c = np.asarray(centers, dtype=np.uint64)
    i = np.asarray(index, dtype=np.uint64)
    with np.errstate(over="ignore"):  # wrapping modulo 2**64 is the point
        k = _mix_array(_U64(_prefix(seed, purpose, round)) ^ c)
        return np.asarray(_mix_array(k ^ _mix_array(i)))


def uniforms(
    seed: int, purpose: str, round: int, centers: ArrayLike, index: ArrayLike = 0
) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) for every (center, index)."""
    return (bits(seed, purpose, round, centers, index) >> _U64(11)).astype(np.float64) / (1 << 53)


@cache
def places(count: int) -> NDArray[np.uint32]:
    """(count,) a well-mixed number for every place."""
    mixed = bits(0, "words", 0, 0, np.arange(count, dtype=np.uint64))
    return (mixed >> _U64(32)).astype(np.uint32)


def words(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint32]:
    """(streams, count) random words, good in all their bits.

    The place is shifted by one half of a stream's key, by the other between two rounds of mixing (the
    multipliers and shifts are those of C. Wellons' hash-prospector for 32 bits).
    """
    low = (keys & _U64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    high = (keys >> _U64(32)).astype(np.uint32)[:, None]
    x = places(count) + low
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = ((x ^ (x >> np.uint32(15))) + high) * np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)))
