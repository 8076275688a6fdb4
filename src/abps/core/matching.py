"""Propose and reject: who works with whom this round, who rests, and why.

One greedy pass as in Algorithm 1: centers take turns; each goes down its ranking and proposes until it has κ
partners or nobody is left. A peer that is asked answers ``full`` if it already has κ partners, ``filtered``
if its own goal does not admit the proposer, ``declined`` if its score of the proposer is below its threshold,
and ``accepted`` otherwise: the two are partners from then on. :mod:`abps.methods.proposals` does so by
beliefs; :func:`propose` is for methods that accept everybody. Partner sets are cleared once, before the pass:
clearing them inside the loop, as the printed algorithm does, would erase links already granted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Answer(IntEnum):
    ACCEPTED = 0
    FULL = 1
    FILTERED = 2
    DECLINED = 3


class Rest(IntEnum):
    """Why a center has no partner this round; ``words`` is the one place that spells it out."""

    NOT = 0  # it has one
    NO_CANDIDATES = 1  # nobody passes the filter, its own or the other side's
    ALL_FULL = 2  # whoever it asked had no place left
    DECLINED = 3  # somebody with a place left did not want it, or it did not want anybody
    BUDGET = 4  # the byte budget is spent
    UNREACHABLE = 5  # whoever it asked did not answer (between sites)
    QUIET = 6  # the method exchanges nothing in this round
    PRIVACY = 7  # the privacy account is spent

    @property
    def words(self) -> str:
        words = {Rest.NOT: "", Rest.QUIET: "no exchange in this round", Rest.PRIVACY: "privacy account spent"}
        return words.get(self, self.key.replace("_", " "))

    @property
    def key(self) -> str:
        return self.name.lower()


#: The causes that a simulated round can have, as results list them.
CAUSES = (Rest.NO_CANDIDATES, Rest.ALL_FULL, Rest.DECLINED, Rest.BUDGET, Rest.QUIET, Rest.PRIVACY)


@dataclass(frozen=True, eq=False)
class MatchingPlan:
    """The outcome of one round's proposals.  pairs: (e, 2) partners, each pair once, proposer first, in the
    order of acceptance.  center, peer, answer: (p,) the proposals made and how the peer answered, in order
    (the accepted ones alone where there are too many to list).  rest: (n,) a :class:`Rest` per center.
    asked: (n, 4) how many proposals each center made, by :class:`Answer`."""

    n: int
    pairs: Ints
    center: Ints
    peer: Ints
    answer: NDArray[np.int8]
    rest: NDArray[np.int8]
    asked: Ints

    @property
    def proposals(self) -> int:
        return int(self.asked.sum())


def propose(order: Sequence[int], rankings: Sequence[Sequence[int]], kappa: int) -> MatchingPlan:
    """One greedy pass in which everybody accepts while a place is left.  order: the centers in the order of
    their turns.  rankings: for every center, the peers it is ready to ask, best first."""
    n = len(rankings)
    mine: list[set[int]] = [set() for _ in range(n)]
    made: list[tuple[int, int, Answer]] = []
    for i in order:
        for j in rankings[i]:
            if len(mine[i]) >= kappa:
                break
            if j in mine[i]:
                continue
            answer = Answer.FULL if len(mine[j]) >= kappa else Answer.ACCEPTED
            if answer == Answer.ACCEPTED:
                mine[i].add(j)
                mine[j].add(i)
            made.append((i, j, answer))
    center, peer, answers = np.array(made, dtype=np.int64).reshape(-1, 3).T
    asked = np.bincount(4 * center + answers, minlength=4 * n).reshape(n, 4).astype(np.int64)
    rest = np.where(asked[:, Answer.FULL] > 0, Rest.ALL_FULL, Rest.NO_CANDIDATES)
    rest[[len(partners) > 0 for partners in mine]] = Rest.NOT
    pairs = np.stack([center, peer], axis=1)[answers == Answer.ACCEPTED]
    return MatchingPlan(n, pairs, center, peer, answers.astype(np.int8), rest.astype(np.int8), asked)


def both_ways(edges: Ints) -> tuple[Ints, Ints]:
    """(receivers, senders) of an exchange over every edge."""
    return np.concatenate([edges[:, 0], edges[:, 1]]), np.concatenate([edges[:, 1], edges[:, 0]])
