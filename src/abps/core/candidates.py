"""Candidates: which peers each center considers.

Up to :data:`TABLE_UP_TO` centers the answers for all pairs are kept as a table. Above, a pair is evaluated
when needed, and thresholds come from a sample of pairs (:func:`goals.sampled_thresholds`). Either way the
same pair gets the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from abps.core import goals as goals_of
from abps.core.errors import RequestError
from abps.core.goals import BLOCK, Floats, Goal, Ints, Pairwise

Mask = NDArray[np.bool_]

#: Centers up to which all pairs are scored and the answers kept.
TABLE_UP_TO: Final = 4096

#: Inner products of unit vectors in single precision and any order are right to about 1e-6: enough to decide
#: all pairs but those closer than this to a threshold, which are scored again in double and in a fixed order.
_MARGIN: Final = 4e-6

#: Pairs of a tile of rows: its arrays stay in a core's cache.
_TILE: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidate sets C_i of n centers.

    vectors: (n, k) public metadata.  rules: the distinct goals; rule: (n,) which of them a center has, and
    threshold: (n,) the score that it asks for; no rules: everybody is a candidate.
    group: (n,) only peers of the same group are candidates, or none.  table: (n, n) the answers, or none.
    """

    vectors: Floats
    rules: tuple[Goal, ...] = ()
    rule: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    threshold: Floats = field(default_factory=lambda: np.zeros(0))
    group: Ints | None = None
    table: Mask | None = None

    @property
    def n(self) -> int:
        """The number of centers."""
        return len(self.vectors)

    @cached_property
    def _ready(self) -> list[Floats]:
        """For every rule the vectors as it needs them (empty where it is a user's own)."""
        return [
            np.ascontiguousarray(goal.ready(self.vectors)) if isinstance(goal, Pairwise) else np.zeros(0)
            for goal in self.rules
        ]

    @cached_property
    def _single(self) -> list[NDArray[np.float32]]:
        """The same in single precision, filled up with zeros to whole cache lines."""
        return [
            np.ascontiguousarray(np.pad(r, ((0, 0), (0, -r.shape[1] % 16))), dtype=np.float32)
            if r.ndim == 2
            else np.zeros(0, dtype=np.float32)
            for r in self._ready
        ]

    @cached_property
    def symmetric(self) -> bool:
        """Whether i admits j exactly when j admits i."""
        if self.table is not None:
            return bool((self.table == self.table.T).all())
        if not self.rules:
            return True
        one = len(self.rules) == 1 and len(np.unique(self.threshold)) == 1
        return one and isinstance(self.rules[0], Pairwise)

    def admits(self, center: Ints, peer: Ints) -> Mask:
        """(p,) does ``center[p]`` consider ``peer[p]``?"""
        if self.table is not None:
            return np.asarray(self.table[center, peer])
        answer: Mask = center != peer
        if self.group is not None:
            answer &= self.group[center] == self.group[peer]
        for k, goal in enumerate(self.rules):
            at = np.flatnonzero(answer if len(self.rules) == 1 else answer & (self.rule[center] == k))
            answer[at] = self._reaches(k, goal, center[at], peer[at])
        return answer

    def _reaches(self, k: int, goal: Goal, center: Ints, peer: Ints) -> Mask:
        if not isinstance(goal, Pairwise):
            score = goals_of.pair_list_scores(self.vectors, goal, center, peer)
            return np.asarray(score >= self.threshold[center])
        ready, single, answer = self._ready[k], self._single[k], np.empty(len(center), dtype=bool)
        for at in range(0, len(center), BLOCK):
            i, j = center[at : at + BLOCK], peer[at : at + BLOCK]
            asked = self.threshold[i]
            if not goal.sign:
                answer[at : at + BLOCK] = goal.score(ready[i], ready[j]) >= asked
                continue
            distance = goal.sign * np.einsum("pk,pk->p", single[i], single[j]) - asked
            part = distance >= 0
            close = np.flatnonzero(np.abs(distance) < _MARGIN)
            part[close] = goal.score(ready[i[close]], ready[j[close]]) >= asked[close]
            answer[at : at + BLOCK] = part
        return answer

    def rows(self, centers: Ints, peers: Ints) -> Mask:
        """(a, b) does ``centers[a]`` consider ``peers[b]``?"""
        if self.table is not None:
            return np.asarray(self.table[np.ix_(centers, peers)])
        answer = np.ones((len(centers), len(peers)), dtype=bool)
        for k, goal in enumerate(self.rules):
            mine = np.flatnonzero(self.rule[centers] == k)
            step = max(64, _TILE // max(1, len(mine)))
            for at in range(0, len(peers) if len(mine) else 0, step):
                answer[mine, at : at + step] = self._row_block(k, goal, centers[mine], peers[at : at + step])
        if self.group is not None:
            answer &= self.group[centers][:, None] == self.group[peers][None, :]
        order = np.argsort(peers, kind="stable")
        found = np.minimum(np.searchsorted(peers, centers, sorter=order), max(0, len(peers) - 1))
        itself = np.flatnonzero(peers[order[found]] == centers) if len(peers) else order
        answer[itself, order[found[itself]]] = False
        return answer

    def _row_block(self, k: int, goal: Goal, centers: Ints, peers: Ints) -> Mask:
        threshold = self.threshold[centers][:, None]
        if not isinstance(goal, Pairwise):
            scores = np.stack([goal(self.vectors[[i]], self.vectors[peers])[0] for i in centers.tolist()])
            return np.asarray(scores >= threshold)
        ready, single = self._ready[k], self._single[k]
        if not goal.sign:
            return np.asarray(goal.score(ready[centers][:, None], ready[peers][None]) >= threshold)
        distance = (goal.sign * single[centers]) @ single[peers].T
        distance -= threshold.astype(np.float32)
        answer = distance >= 0
        r, c = np.nonzero(np.abs(distance, out=distance) < _MARGIN)
        answer[r, c] = goal.score(ready[centers[r]], ready[peers[c]]) >= threshold[r, 0]
        return answer

    def sizes(self, centers: Ints) -> Ints:
        """(a,) how many candidates some centers have; counted once for each center and remembered."""
        unknown = centers[self._counted[centers] < 0]
        everyone = np.arange(self.n)
        for part in np.array_split(unknown, max(1, len(unknown) // 64)):
            count = np.zeros(len(part), dtype=np.int64)
            for at in range(0, self.n, BLOCK):
                count += np.count_nonzero(self.rows(part, everyone[at : at + BLOCK]), axis=1)
            self._counted[part] = count
        return self._counted[centers]

    @cached_property
    def _counted(self) -> Ints:
        return np.full(self.n, -1)

    @property
    def similarity(self) -> Floats:
        """(n, n) cosine of the metadata vectors."""
        return goals_of.homogeneity(self.vectors, self.vectors)


def group_numbers(groups: Sequence[str] | None) -> Ints:
    """(n,) the number of every center's declared group."""
    if groups is None:
        raise RequestError("partners inside a declared group need groups; name the column with group=COL")
    return np.unique(np.array(groups), return_inverse=True)[1]


def candidates(
    vectors: Floats,
    goals: Sequence[Goal] | None,
    keep: float,
    scope: str,
    group: Ints | None = None,
    table_up_to: int = TABLE_UP_TO,
) -> Candidates:
    """The candidate sets of centers with these vectors (n, k) and goals (one per center, or none)."""
    n = len(vectors)
    if goals is None:
        if n > table_up_to:
            return Candidates(vectors, group=group)
        table = ~np.eye(n, dtype=bool)
        if group is not None:
            table &= group[:, None] == group[None, :]
        return Candidates(vectors, group=group, table=table)
    rules = tuple(dict.fromkeys(goals))
    number = {g: k for k, g in enumerate(rules)}
    rule = np.array([number[g] for g in goals], dtype=np.int64)
    if n > TABLE_UP_TO:
        threshold = goals_of.sampled_thresholds(vectors, goals, keep, scope)
        return Candidates(vectors, rules, rule, threshold, group)
    scores = goals_of.pair_scores(vectors, goals)
    threshold = goals_of.thresholds(scores, goals, keep, scope)
    if n > table_up_to:
        return Candidates(vectors, rules, rule, threshold, group)
    table = goals_of.admitted(scores, threshold)
    if group is not None:
        table &= group[:, None] == group[None, :]
    return Candidates(vectors, rules, rule, threshold, group, table)
