"""Random streams: one per (seed, center, round, purpose), and nothing else is random.

Every draw is a pure function of those four: results do not depend on the order in which centers are
processed, on the number of processes, or on where a run was interrupted; and a hospital that runs alone draws
exactly what the simulation draws for it. ``generator`` gives a NumPy generator (SFC64) for one center;
``uniforms`` hashes whole arrays of (center, index) at once, as selection over many pairs needs.
"""

import hashlib
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: The purposes of streams, and the number of each in every key. Numbers never change (append at the end), so
#: that a new purpose leaves the draws of all others as they are. A user's own method names its purposes
#: ``package:purpose``; their numbers are digests in the upper half of 64 bits, where ours never are.
PURPOSES: Final = {purpose: k for k, purpose in enumerate((
    "initial-weights", "split", "batches", "dropout", "proposal-order", "tie-break", "explore",
    "explore-peer", "random-pairing", "permutations", "codec", "policy", "accept", "graph",
    "sample-weights", "sketch", "generate", "bootstrap", "partition", "words", "calibration", "drift-test",
    "null", "attack", "coordinator", "clusters", "private-sample", "private-noise", "attestation",
    "participation",
))} | {"fold": 40}  # fmt: skip

_MASK: Final = (1 << 64) - 1
_U64 = np.uint64


def center_id(name: str) -> int:
    """A center's stable number: its streams stay the same when other centers join or leave."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def center_ids(names: list[str] | tuple[str, ...]) -> NDArray[np.uint64]:
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


@cache
def number(purpose: str) -> int:
    """The number of a purpose: one of ours, or ``package:purpose``."""
    if purpose in PURPOSES:
        return PURPOSES[purpose]
    package, _, own = purpose.partition(":")
    if not package or not own:
        raise ValueError(f"there is no random purpose {purpose!r}; name one of your own 'package:purpose'")
    return center_id(purpose) | 1 << 63


def _prefix(seed: int, purpose: str, round: int) -> int:
    return _mix(_mix(_mix(seed & _MASK) ^ number(purpose)) ^ (round & _MASK))


def key(seed: int, purpose: str, round: int = 0, center: int = 0) -> int:
    return _mix(_prefix(seed, purpose, round) ^ (int(center) & _MASK))


def generator(seed: int, purpose: str, round: int = 0, center: int = 0) -> np.random.Generator:
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
    """(streams, count) random words, good in all their bits. The place is shifted by one half of a stream's
    key, by the other between two rounds of mixing (multipliers and shifts: C. Wellons' hash-prospector for 32
    bits)."""
    low = (keys & _U64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    high = (keys >> _U64(32)).astype(np.uint32)[:, None]
    x = places(count) + low
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = ((x ^ (x >> np.uint32(15))) + high) * np.uint32(0x846CA68B)
    return np.asarray(x ^ (x >> np.uint32(16)))


# ---------------------------------------------------------------- keyed orders


def shape(n: int) -> tuple[int, int, int]:
    """The bits of the high and of the low half of the domain, and the rounds of the network, for n centers.
    Small domains have halves of one size, which mixes better, and need more rounds before pairs of places are
    balanced (tested by chi-square). In large ones halves may differ by a bit, so that hardly anything falls
    outside 0..n-1 and has to walk on."""
    bits = max(2, (max(1, n) - 1).bit_length())
    high, low = bits + (bits < 16) >> 1, bits + 1 >> 1
    return high, low, 10 if low < 8 else 6
