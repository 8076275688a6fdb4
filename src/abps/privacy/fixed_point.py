"""Real numbers as integers modulo 2^64, so that sums are exact, whatever their order.

A masked sum needs a finite ring. The plain sum uses the same one: a simulation and a federation of hospitals
that never saw each other's summands then arrive at the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError

Ring = NDArray[np.uint64]

#: Binary digits after the point: a millionth is kept, and sums may reach nine million million.
DIGITS = 20


def encode(values: NDArray[np.float64], summands: int, digits: int = DIGITS) -> Ring:
    """Numbers as elements of the ring, with room for the sum of so many of them.

    >>> decode(encode(np.array([1.5, -0.25]), summands=3))
    array([ 1.5 , -0.25])
    """
    values = np.asarray(values, dtype=np.float64)
    most = 2.0 ** (62 - digits) / max(summands, 1)
    if not np.all(np.abs(values) <= most):  # NaN fails, too
        raise RequestError(
            f"a number to be summed is not finite or beyond {most:.3g}, the most each of {summands} centers "
            "may add; scale the column or leave it out"
        )
    return np.rint(values * 2.0**digits).astype(np.int64).view(np.uint64)


def decode(total: Ring, digits: int = DIGITS) -> NDArray[np.float64]:
    """A sum in the ring as numbers."""
    return total.view(np.int64) / 2.0**digits


def add(first: Ring, second: Ring) -> Ring:
    """Sum modulo 2^64."""
    with np.errstate(over="ignore"):
        return first + second


def exact_sum(values: NDArray[np.float64], digits: int = DIGITS) -> NDArray[np.float64]:
    """(k,) the sum of (centers, k), as masked centers would arrive at it."""
    with np.errstate(over="ignore"):
        return decode(encode(values, len(values), digits).sum(axis=0, dtype=np.uint64), digits)
