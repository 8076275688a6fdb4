"""The version of what travels between sites.

A study speaks exactly one version: the one of its signed proposal. Nobody can talk a site into an older one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

Version = tuple[int, int]

#: (major, minor) of this abps. 3.0: exchanges with a coordinator alone; masked sums carry a check.
VERSION: Version = (3, 0)


def sender_ids(study: str, job: str) -> Callable[[str], int]:
    """The number by which a site's messages name their sender, bound to study and job: what belongs to one
    cannot be passed off as part of another."""

    def bound(name: str) -> int:
        text = "\0".join((study, job, name)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    return bound
