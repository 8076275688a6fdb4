"""Masked sums without their cryptography: real numbers as integers modulo 2^64, and the bytes of a sum.

A masked sum needs a finite ring, in which sums are exact whatever their order. The plain sum uses the same
ring, so that a simulation and a federation of hospitals arrive at the same bits.
"""

from __future__ import annotations

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


#: Two public keys and a signature; a sealed pair of shares with 32 bytes for checks; a signature; one share;
#: a masked number.
KEYS, SEALED, SIGNATURE, SHARE, NUMBER = 2 * 32 + 64, 98 + 16, 64, 33, 8


def protocol_bytes(members: int) -> int:
    """Bytes of all messages of one sum except the masked vectors, both ways, if no member drops out.

    Every member sends its keys and gets those of all; sends and gets a share for each other member; signs the
    presence list and gets all signatures; sends a share of every member's seed.
    """
    others = members - 1
    each = KEYS * (1 + members) + 2 * SEALED * others + SIGNATURE * (1 + members) + SHARE * members
    return members * each


def masked_bytes(members: int, entries: int) -> int:
    """All bytes of one sum of vectors with so many entries, and a check of each, without the result.

    >>> masked_bytes(3, 10) - protocol_bytes(3)
    264
    """
    return protocol_bytes(members) + members * NUMBER * (entries + 1)
