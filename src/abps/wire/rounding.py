"""Rounding weights to what fits into few bits, and back: many senders in one compiled pass over memory.

``flat`` holds the senders' weights, sender k's from ``k * stride`` on; ``out`` (senders, count) is filled
with what their receivers see. ``base`` (count,), or (0,) for none, is subtracted before and added after.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.jit import compiled, compiled_or
from abps.wire import rounding_numpy

Singles = NDArray[np.float32]
Words = NDArray[np.uint32]


@compiled
def _upper_half(bits: np.uint32) -> np.uint32:
    """Bits of a float32 with the lower half rounded away, to nearest, ties to even.

    A NaN stays a (quiet) NaN: rounding must not carry it into infinity.
    """
    upper = np.uint32(0xFFFF0000)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    nearest = np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + odd)
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint32(np.uint32(bits & upper) | np.uint32(0x400000))
    return np.uint32(nearest & upper)


@compiled_or(rounding_numpy.through_upper_halves)
def through_upper_halves(flat: Singles, stride: int, base: Singles, out: Singles) -> None:
    """Weights that travel as the upper halves of float32 (bfloat16)."""
    count = out.shape[1]
    for k in range(len(out)):
        mine, here = flat[k * stride : k * stride + count], out[k]
        seen = here.view(np.uint32)
        if len(base):
            for p in range(count):
                here[p] = mine[p] - base[p]
            for p in range(count):
                seen[p] = _upper_half(seen[p])
            for p in range(count):
                here[p] += base[p]
        else:
            raw = mine.view(np.uint32)
            for p in range(count):
                seen[p] = _upper_half(raw[p])


@compiled
def _draw(key: np.uint64, place: Words, words: Words) -> None:
    """Random words: a place, shifted by one half of the key, folded, times the other half, folded again."""
    low = np.uint32(key & np.uint64(0xFFFFFFFF))
    odd = np.uint32(np.uint32(key >> np.uint64(32)) | np.uint32(1))
    for p in range(len(place)):
        mixed = np.uint32(place[p] + low)
        mixed = np.uint32(np.uint32(mixed ^ np.uint32(mixed >> np.uint32(15))) * odd)
        words[p] = np.uint32(mixed ^ np.uint32(mixed >> np.uint32(16)))


@compiled
def _code(piece: Singles, chance: NDArray[np.uint16], top: int, code: Singles) -> np.float32:
    """A block of weights as whole numbers from -top to top; returns their scale.

    chance: 16 random bits for each weight: how far it is rounded up.

    The scale is rounded up to a bfloat16, so that no weight falls outside the codes. A block with anything
    that is not a number, or too large for a scale, is zero.
    """
    high, unit = np.float32(top), np.float32(2.0**-16)
    # Without their sign, the bits of floats are ordered as the floats are; infinity and NaN come last.
    raw, most = piece.view(np.uint32), np.uint32(0)
    for p in range(len(raw)):
        most = max(most, np.uint32(raw[p] & np.uint32(0x7FFFFFFF)))
    largest = np.empty(1, dtype=np.float32)
    bits = largest.view(np.uint32)
    bits[0] = most
    largest[0] /= high
    bits[0] = np.uint32(np.uint32(bits[0] + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000))
    step = np.float32(largest[0])
    if not (most < np.uint32(0x7F800000) and np.float32(0.0) < step < np.float32(np.inf)):
        code[:] = np.float32(0.0)
        return np.float32(0.0)
    for p in range(len(piece)):
        value = np.floor(piece[p] / step + np.float32(chance[p]) * unit)
        code[p] = min(max(value, -high), high)
    return step


@compiled_or(rounding_numpy.to_codes)
def to_codes(
    weights: Singles, key: np.uint64, places: Words, block: int, top: int, code: Singles, scale: Singles
) -> None:
    """One sender's codes (count,) and the scale of every ``block`` of them; both are filled.

    key: of the message's random words.  places: (count / 2,) a well-mixed number for every word.
    """
    words = np.empty(block // 2, dtype=np.uint32)
    for b in range(len(scale)):
        some = slice(b * block, (b + 1) * block)
        _draw(key, places[b * block // 2 : (b + 1) * block // 2], words)
        scale[b] = _code(weights[some], words.view(np.uint16), top, code[some])


@compiled_or(rounding_numpy.through_codes)
def through_codes(
    flat: Singles,
    stride: int,
    base: Singles,
    keys: NDArray[np.uint64],
    places: Words,
    block: int,
    top: int,
    out: Singles,
) -> None:
    """Weights that travel as codes; keys: (senders,) of the messages' random words."""
    count = out.shape[1]
    words = np.empty(block // 2, dtype=np.uint32)
    chance = words.view(np.uint16)
    change = np.empty(block, dtype=np.float32)
    for k in range(len(out)):
        mine = flat[k * stride : k * stride + count]
        for at in range(0, count, block):
            piece, here = mine[at : at + block], out[k, at : at + block]
            _draw(keys[k], places[at // 2 : (at + block) // 2], words)
            if len(base):
                common, differs = base[at : at + block], change[: len(piece)]
                for p in range(len(piece)):
                    differs[p] = piece[p] - common[p]
                step = _code(differs, chance, top, here)
                for p in range(len(here)):
                    here[p] = here[p] * step + common[p]
            else:
                step = _code(piece, chance, top, here)
                for p in range(len(here)):
                    here[p] *= step
