"""Versions of what travels between sites: which one a job speaks.

1.0  frames and messages name their sender.
1.1  what names the sender is bound to study and job, and weights bring the head of the sender's log.

Sites of one major version understand each other; a job speaks the newest minor version that all its sites
know. A site may refuse to speak an old one.
"""

from __future__ import annotations

from collections.abc import Iterable

#: (major, minor)
NEWEST = (1, 1)

Version = tuple[int, int]


def spoken(known: Iterable[Version]) -> Version:
    """The version of a job between sites of one major version that know these."""
    return min([NEWEST, *known])


def fits(version: Version) -> bool:
    """Whether a site of that version can work with this one."""
    return version[0] == NEWEST[0]
