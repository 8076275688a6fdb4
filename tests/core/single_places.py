"""The keyed permutation at single places: the oracle of the table and of compiled code."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abps.core import streams

_U64 = np.uint64


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


def _step(value: NDArray[np.uint64], key: NDArray[np.uint64], n: int, forward: bool) -> NDArray[np.uint64]:
    """Through the network once; the key broadcasts against the values."""
    high, low, count = streams.shape(n)
    masks = _U64((1 << high) - 1), _U64((1 << low) - 1)
    half = [value >> _U64(low), value & masks[1]]
    for k in range(count) if forward else range(count - 1, -1, -1):
        _stir(half[k % 2], half[1 - k % 2], key, k, masks[k % 2])
    half[0] <<= _U64(low)
    half[0] |= half[1]
    return half[0]


def _walk(value: ArrayLike, key: ArrayLike, n: int, forward: bool) -> NDArray[np.int64]:
    x, k = np.asarray(value, dtype=np.uint64), np.asarray(key, dtype=np.uint64)
    shape = np.broadcast_shapes(x.shape, k.shape)
    with np.errstate(over="ignore"):
        y = _step(np.broadcast_to(x, shape), k, n, forward).ravel()
        outside = np.flatnonzero(y >= n)
        keys = np.broadcast_to(k, shape).ravel()[outside] if outside.size else k
        while outside.size:
            again = _step(y[outside], keys, n, forward)
            y[outside] = again
            still = again >= n
            outside, keys = outside[still], keys[still]
    return y.view(np.int64).reshape(shape)


def peer_at(place: ArrayLike, key: ArrayLike, n: int) -> NDArray[np.int64]:
    """Who stands at ``place`` in the order of ``key``; places and keys broadcast."""
    return _walk(place, key, n, forward=True)


def place_of(peer: ArrayLike, key: ArrayLike, n: int) -> NDArray[np.int64]:
    """At which place ``peer`` stands in the order of ``key``: the inverse of :func:`peer_at`."""
    return _walk(peer, key, n, forward=False)
