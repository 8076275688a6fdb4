"""Versions of what travels between sites: which one a job speaks.

1.0  frames and messages name their sender.
1.1  what names the sender is bound to study and job, and weights bring the head of the sender's log.
1.2  before weights leave, a partner's witness is asked whether it still has a place.
1.3  a site that can be reached directly publishes its address.

Sites of one major version understand each other; a job speaks the newest minor version that all its sites
know. A site may refuse to speak an old one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from abps.core.streams import center_id

#: (major, minor)
NEWEST = (1, 3)

Version = tuple[int, int]

#: The first version in which weights bring the head of the sender's log.
WITH_HEADS = (1, 1)

#: The first in which weights leave only if the partner's witness says that it has a place.
WITH_WITNESSES = (1, 2)

#: The first in which sites may publish their addresses.
WITH_ADDRESSES = (1, 3)

#: What is spoken by a site that does not say what it speaks.
OLDEST = (1, 0)


def spoken(known: Iterable[Version]) -> Version:
    """The version of a job between sites of one major version that know these."""
    return min([NEWEST, *known])


def sender_ids(version: Version, study: str, job: str) -> Callable[[str], int]:
    """The number by which a site's messages name their sender: its stream number, or bound to study and job.

    What is bound to a study and a job cannot be passed off as part of another.
    """
    if version < WITH_HEADS:
        return center_id

    def bound(name: str) -> int:
        text = "\0".join((study, job, name)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    return bound


def fits(version: Version) -> bool:
    """Whether a site of that version can work with this one."""
    return version[0] == NEWEST[0]
