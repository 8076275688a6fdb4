"""Secrets in shares: any ``threshold`` of them give the secret back, fewer give nothing (Shamir 1979)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

#: The smallest prime above 2^256: a secret of 32 bytes is one element of its field.
PRIME = 2**256 + 297


def split(secret: bytes, places: int, threshold: int) -> dict[int, int]:
    """Shares of a secret of 32 bytes for the places 1..places."""
    if len(secret) != 32:
        raise ValueError(f"a secret of {len(secret)} bytes; 32 are shared")
    if not 1 <= threshold <= places:
        raise ValueError(f"threshold {threshold} of {places} places")
    constant = int.from_bytes(secret, "big")
    coefficients = [constant, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {x: _at(coefficients, x) for x in range(1, places + 1)}


def _at(coefficients: list[int], x: int) -> int:
    value = 0
    for c in reversed(coefficients):
        value = (value * x + c) % PRIME
    return value


def join(shares: Mapping[int, int]) -> bytes:
    """The secret from at least ``threshold`` shares by place (Lagrange's polynomial at zero).

    From fewer comes a number that has nothing to do with it, or ValueError.
    """
    total = 0
    for x, y in shares.items():
        above = below = 1
        for other in shares:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        total = (total + y * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2**256:
        raise ValueError("these shares do not belong together")
    return total.to_bytes(32, "big")
