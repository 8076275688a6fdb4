"""Masked sums without their cryptography: real numbers as integers modulo 2^64, and the bytes of a sum.

A masked sum needs a finite ring, in which sums are exact whatever their order. The plain sum uses the same
ring, so that a simulation and a federation of hospitals arrive at the same bits.
"""

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError

#: Arrays of these add modulo 2^64.
Ring = NDArray[np.uint64]

#: Binary digits after the point: a millionth is kept, and sums may reach nine million million.
DIGITS = 20


def encode(values: NDArray[np.float64], summands: int) -> Ring:
    """Numbers as elements of the ring, with room for the sum of so many of them.

    >>> decode(encode(np.array([1.5, -0.25]), summands=3))
    array([ 1.5 , -0.25])
    """
    values = np.asarray(values, dtype=np.float64)
    most = 2.0 ** (62 - DIGITS) / max(summands, 1)
    if not np.all(np.abs(values) <= most):  # NaN fails, too
        raise RequestError(
            f"a number to be summed is not finite or beyond {most:.3g}, the most each of {summands} centers "
            "may add; scale the column or leave it out"
        )
    return np.rint(values * 2.0**DIGITS).astype(np.int64).view(np.uint64)


def decode(total: Ring) -> NDArray[np.float64]:
    """A sum in the ring as numbers."""
    return total.view(np.int64) / 2.0**DIGITS


def exact_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(k,) the sum of (centers, k), as masked centers would arrive at it."""
    return decode(encode(values, len(values)).sum(axis=0, dtype=np.uint64))


#: Bytes of a masked number.
NUMBER = 8


def masked_bytes(members: int, entries: int) -> int:
    """Bytes of the masked vectors of one sum, each with a check; keys are exchanged once in a study.

    >>> masked_bytes(3, 10)
    264
    """
    return members * NUMBER * (entries + 1)
