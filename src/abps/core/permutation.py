"""Random orders that can be asked at single places.

Ties between peers of equal score are broken at random. A shuffled list would cost O(n) numbers per
center and round; this keyed permutation of 0..n-1 answers "who is at place k?" and "at which place is
peer j?" one by one, for many centers at once, so that a center can look at the first few of 100,000
equals without listing them.

It is a Feistel network on the next even power of two, walked until it lands inside 0..n-1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_U64 = np.uint64


def _rounds(half: int) -> int:
    """Small domains need more rounds before pairs of places are balanced (tested by chi-square)."""
    return 10 if half < 8 else 6


def _round_function(half: NDArray[np.uint64], key: NDArray[np.uint64], k: int) -> NDArray[np.uint64]:
    x = half * _U64(0x9E3779B97F4A7C15) + key + _U64((k + 1) * 0xD1B54A32D192ED03 & (2**64 - 1))
    x = (x ^ (x >> _U64(32))) * _U64(0xBF58476D1CE4E5B9)
    return x ^ (x >> _U64(29))


def _half_bits(n: int) -> int:
    return max(1, (max(2, n) - 1).bit_length() + 1 >> 1)


def _walk(value: ArrayLike, key: ArrayLike, n: int, forward: bool) -> NDArray[np.int64]:
    half = _half_bits(n)
    mask = _U64((1 << half) - 1)
    shift = _U64(half)
    x, k = np.broadcast_arrays(np.asarray(value, dtype=np.uint64), np.asarray(key, dtype=np.uint64))
    shape, x, k = x.shape, x.ravel().copy(), k.ravel()
    todo = np.arange(x.size)
    order = range(_rounds(half)) if forward else range(_rounds(half) - 1, -1, -1)
    with np.errstate(over="ignore"):
        while todo.size:
            keys = k[todo]
            left, right = x[todo] >> shift, x[todo] & mask
            for r in order:
                if forward:
                    left, right = right, left ^ (_round_function(right, keys, r) & mask)
                else:
                    left, right = right ^ (_round_function(left, keys, r) & mask), left
            x[todo] = left << shift | right
            todo = todo[x[todo] >= n]
    return x.astype(np.int64).reshape(shape)


def peer_at(place: ArrayLike, key: ArrayLike, n: int) -> NDArray[np.int64]:
    """Who stands at ``place`` in the order of ``key``; places and keys broadcast."""
    return _walk(place, key, n, forward=True)


def place_of(peer: ArrayLike, key: ArrayLike, n: int) -> NDArray[np.int64]:
    """At which place ``peer`` stands in the order of ``key``: the inverse of :func:`peer_at`."""
    return _walk(peer, key, n, forward=False)
