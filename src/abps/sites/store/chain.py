"""A chain of digests: every row of a log fixes all rows before it.

Who changes, takes out or reorders a row has to change the digest of every later row, and with them the head,
which is signed and known to others.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

#: Bytes of a digest.
SIZE = 32


def canonical(value: Any) -> bytes:
    """Plain data as bytes, the same for equal data; there is no NaN in it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def link(before: bytes, row: Any) -> bytes:
    """The digest of a row after those that end in ``before``."""
    return digest(before + canonical(row))
