"""What a masked sum takes on the wire (:mod:`abps.privacy.secure_sum`), for ledgers that do not send one."""

from __future__ import annotations

#: Two public keys and a signature; a sealed pair of shares; a signature; one share; a masked number.
KEYS, SEALED, SIGNATURE, SHARE, NUMBER = 2 * 32 + 64, 66 + 16, 64, 33, 8


def protocol_bytes(members: int) -> int:
    """Bytes of all messages of one sum but the masked vectors, both ways, nobody falling away.

    Everybody sends its keys and gets those of all; sends and gets a share for each other; signs the list of
    who is there and gets all signatures; gives a share of everybody's seed.
    """
    others = members - 1
    each = KEYS * (1 + members) + 2 * SEALED * others + SIGNATURE * (1 + members) + SHARE * members
    return members * each


def masked_bytes(members: int, entries: int) -> int:
    """All bytes of one sum of vectors with so many entries, without the answer.

    >>> masked_bytes(3, 10) - protocol_bytes(3)
    240
    """
    return protocol_bytes(members) + members * NUMBER * entries
