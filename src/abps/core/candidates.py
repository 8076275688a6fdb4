"""Candidates: which peers each center considers.

Up to :data:`TABLE_UP_TO` centers the answers for all pairs are kept as a table. Above, rows are computed when
needed, and thresholds come from a sample of pairs (:func:`goals.sampled_thresholds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from abps.core import goals as goals_of
from abps.core.errors import RequestError
from abps.core.goals import KINDS, Floats, Goal, Ints, Pairwise

Mask = NDArray[np.bool_]

#: Centers up to which all pairs are scored and the answers kept.
TABLE_UP_TO: Final = 4096


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidate sets C_i of n centers.

    vectors: (n, k) public metadata.  rules: the distinct goals; rule: (n,) which of them a center has, and
    threshold: (n,) the score that it requires; no rules: everybody is a candidate.
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

    def rows(self, centers: Ints) -> Mask:
        """(a, n) the candidates of some centers."""
        if self.table is not None:
            return np.asarray(self.table[centers])
        answer = np.ones((len(centers), self.n), dtype=bool)
        for k, i in enumerate(centers.tolist()):
            if self.rules:
                score = self.rules[self.rule[i]](self.vectors[[i]], self.vectors)[0]
                answer[k] = score >= self.threshold[i]
            if self.group is not None:
                answer[k] &= self.group == self.group[i]
            answer[k, i] = False
        return answer

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
        known = [g for g in goals if isinstance(g, Pairwise) and g.name in KINDS]
        if len(known) < n:
            raise RequestError(
                f"a goal function of one's own scores all pairs and serves up to {TABLE_UP_TO:,} centers, "
                f"not {n:,}; choose {', '.join(KINDS)}"
            )
        threshold = goals_of.sampled_thresholds(vectors, known, keep, scope)
        return Candidates(vectors, rules, rule, threshold, group)
    scores = goals_of.pair_scores(vectors, goals)
    threshold = goals_of.thresholds(scores, goals, keep, scope)
    if n > table_up_to:
        return Candidates(vectors, rules, rule, threshold, group)
    table = goals_of.admitted(scores, threshold)
    if group is not None:
        table &= group[:, None] == group[None, :]
    return Candidates(vectors, rules, rule, threshold, group, table)
