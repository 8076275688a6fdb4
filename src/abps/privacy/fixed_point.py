"""Masked sums without their cryptography: real numbers as integers modulo 2^64, and the bytes of a sum. In a
finite ring sums are exact whatever their order, so a simulation and a federation arrive at the same bits."""

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError

Ring = NDArray[np.uint64]  # arrays of these add modulo 2^64
DIGITS = 20  # binary digits after the point: a millionth is kept, and sums may reach nine million million


def encode(values: NDArray[np.float64], summands: int) -> Ring:
    """Numbers as elements of the ring, with room for the sum of so many of them.

    >>> decode(encode(np.array([1.5, -0.25]), summands=3))
    array([ 1.5 , -0.25])
    """
    values = np.asarray(values, dtype=np.float64)
    most = 2.0 ** (62 - DIGITS) / max(summands, 1)
    if not np.all(np.abs(values) <= most):  # NaN fails, too
        why = f"a number to be summed is not finite, or beyond {most:.3g}, which each of {summands} may add"
        raise RequestError(f"{why}; scale the column or leave it out")
    return np.rint(values * 2.0**DIGITS).astype(np.int64).view(np.uint64)


def decode(total: Ring) -> NDArray[np.float64]:
    return total.view(np.int64) / 2.0**DIGITS


def exact_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(k,) the sum of (centers, k), as masked centers would arrive at it."""
    return decode(encode(values, len(values)).sum(axis=0, dtype=np.uint64))


NUMBER = 8  # bytes of a masked number


def masked_bytes(members: int, entries: int) -> int:
    """Bytes of the masked vectors of one sum, each with a check; keys are exchanged once in a study.

    >>> masked_bytes(3, 10)
    264
    """
    return members * NUMBER * (entries + 1)
