"""Who has a place with whom: members stand witness for each other, so that nobody collects everybody's model.

A site sees its own talks alone. A peer that keeps to the protocol with every single site could be the partner
of all of them at once and receive every model of a round. So, before its weights leave, a site asks the
witness of its partner whether that one still has a place; a witness gives out as many places in a round as a
site may have partners. Witnesses of a partner are drawn from the seed, others in every round, and nobody is
its own. Who is denied a place by two different witnesses in a job is not accepted any more; one witness that
lies can cost a pair a round, and not more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from abps.core import streams
from abps.core.streams import center_id, center_ids

#: How many members are tried as the witness of a partner, one after the other, if they do not answer.
TRIED = 3

#: How many different witnesses must have denied a peer a place before it is not accepted any more.
ENOUGH = 2


def witnesses(seed: int, round: int, members: Sequence[str], peer: str) -> list[str]:
    """The members that stand witness for a peer in a round, in the order in which they are asked."""
    others = tuple(name for name in members if name != peer)
    drawn = streams.bits(seed, "attestation", round, center_ids(others), np.uint64(center_id(peer)))
    return [others[k] for k in np.argsort(drawn, kind="stable")[:TRIED]]


@dataclass
class Places:
    """What a witness remembers of one round: who has a place with whom.

    >>> places = Places()
    >>> [places.give("eve", asker, 1) for asker in ("ann", "bob", "ann")]
    [True, False, True]
    """

    held: dict[str, set[str]] = field(default_factory=dict)

    def give(self, peer: str, asker: str, capacity: int) -> bool:
        """Whether the asker has one of the peer's places; asked twice, it has it once."""
        mine = self.held.setdefault(peer, set())
        if asker not in mine and len(mine) >= capacity:
            return False
        mine.add(asker)
        return True
