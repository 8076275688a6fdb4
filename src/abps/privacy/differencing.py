"""Whom the sums of several lists of members tell apart.

Who knows the sums of two lists knows their difference, and of more lists every combination. Members that
are on the same lists stay together in all of them. So nothing of a few follows as long as every such group
is large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

#: The fewest members that sums may tell apart from the others.
FEWEST = 3


def smallest_group(lists: Iterable[Collection[str]]) -> int:
    """How many members the smallest group has that is on the same lists; 0 without lists.

    >>> smallest_group(["abcdef", "abc"]), smallest_group(["abcdef", "abcde"])
    (3, 1)
    """
    known = [frozenset(each) for each in lists]
    names = frozenset[str]().union(*known)
    groups = Counter(tuple(name in each for each in known) for name in names)
    return min(groups.values(), default=0)


def may_be_opened(before: Iterable[Collection[str]], names: Collection[str]) -> bool:
    """Whether the sum of a list, beside those that were opened before, tells nobody apart from all but a few
    others."""
    return smallest_group([*before, names]) >= FEWEST
