"""Rounding weights as :mod:`abps.wire.rounding` does, bit for bit, in NumPy: where nothing is compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]
Words = NDArray[np.uint32]


def _upper_halves(weights: Singles) -> Singles:
    """Float32 with the lower half of their bits rounded away, to nearest, ties to even; NaN stays NaN."""
    bits = weights.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    nearest = bits + np.uint32(0x7FFF) + odd  # whole numbers of 32 bits: they wrap around
    upper = np.uint32(0xFFFF0000)
    nothing = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nothing, (bits & upper) | np.uint32(0x400000), nearest & upper).view(np.float32)


def through_upper_halves(flat: Singles, stride: int, base: Singles, out: Singles) -> None:
    """Weights that travel as the upper halves of float32 (bfloat16)."""
    count = out.shape[1]
    for k in range(len(out)):
        mine = flat[k * stride : k * stride + count]
        if len(base):
            out[k] = _upper_halves(mine - base) + base
        else:
            out[k] = _upper_halves(np.ascontiguousarray(mine))


def _chances(key: np.uint64, places: Words, count: int) -> NDArray[np.uint16]:
    """(count,) 16 random bits for each weight."""
    low = np.uint32(key & np.uint64(0xFFFFFFFF))
    odd = np.uint32(key >> np.uint64(32)) | np.uint32(1)
    mixed = places + low
    mixed = (mixed ^ (mixed >> np.uint32(15))) * odd
    return (mixed ^ (mixed >> np.uint32(16))).view(np.uint16)[:count]


def to_codes(
    weights: Singles, key: np.uint64, places: Words, block: int, top: int, code: Singles, scale: Singles
) -> None:
    """One sender's codes (count,) and the scale of every ``block`` of them; both are filled."""
    count, blocks = len(weights), len(scale)
    padded = np.zeros(blocks * block, dtype=np.float32)
    padded[:count] = weights
    table = padded.reshape(blocks, block)
    high, unit = np.float32(top), np.float32(2.0**-16)
    most = (table.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1, initial=0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        step = (most.view(np.float32) / high).view(np.uint32)
        step = ((step + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
        fits = (most < np.uint32(0x7F800000)) & (step > 0) & (step < np.float32(np.inf))
        chance = np.zeros(blocks * block, dtype=np.float32)
        chance[:count] = _chances(key, places, count).astype(np.float32)
        codes = np.floor(table / step[:, None] + chance.reshape(blocks, block) * unit)
        codes = np.minimum(np.maximum(codes, -high), high)
    code[:] = np.where(fits[:, None], codes, np.float32(0.0)).ravel()[:count]
    scale[:] = np.where(fits, step, np.float32(0.0))


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
    scale, code = np.empty(-(-count // block), dtype=np.float32), np.empty(count, dtype=np.float32)
    for k in range(len(out)):
        mine = flat[k * stride : k * stride + count]
        to_codes(mine - base if len(base) else mine, keys[k], places, block, top, code, scale)
        seen = code * np.repeat(scale, block)[:count]
        out[k] = seen + base if len(base) else seen
