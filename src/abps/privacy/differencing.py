"""Which members a differencing attack would isolate.

An attacker who knows the sums over two lists of members knows their difference, and with more lists every
linear combination. Members that appear in the same lists cannot be separated. So no sum over few members can
be derived as long as every such group is large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

#: The fewest members that published sums may separate from the others.
FEWEST = 3


def smallest_group(lists: Iterable[Collection[str]]) -> int:
    """The size of the smallest group of members that appear in the same lists; 0 without lists.

    >>> smallest_group(["abcdef", "abc"]), smallest_group(["abcdef", "abcde"])
    (3, 1)
    """
    known = [frozenset(each) for each in lists]
    names = frozenset[str]().union(*known)
    groups = Counter(tuple(name in each for each in known) for name in names)
    return min(groups.values(), default=0)


def may_be_opened(before: Iterable[Collection[str]], names: Collection[str]) -> bool:
    """Whether the sum over ``names``, beside the sums over earlier lists, isolates no small group."""
    return smallest_group([*before, names]) >= FEWEST
