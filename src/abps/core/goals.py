"""Goals: whom a center wants to consider at all, judged on small public metadata vectors.

A goal gives every ordered pair a score f_i(v_i, v_j); peer j is a candidate of center i when the
score reaches a threshold, calibrated so that a fixed share of pairs remains. Every center may have
a goal of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.errors import RequestError
from abps.registry import Registry

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A goal scores centers' vectors (a, k) against peers' vectors (b, k): the result is (a, b).
Goal = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Pairwise:
    """A goal that can be asked of single pairs as well as of blocks, with the same number for the same pair.

    name: what it is called in a configuration.  ready: vectors (n, k) as the goal needs them.
    score: of ready vectors, over the last axis.
    """

    name: str
    ready: Callable[[Floats], Floats]
    score: Callable[[Floats, Floats], Floats]

    def __call__(self, centers: Floats, peers: Floats) -> Floats:
        """(a, b) scores of all pairs."""
        a, b = self.ready(centers), self.ready(peers)
        scores = np.empty((len(a), len(b)))
        step = max(1, BLOCK // max(1, len(b)))
        for at in range(0, len(a), step):
            scores[at : at + step] = self.score(a[at : at + step, None], b[None])
        return scores


#: Pairs that are scored at a time: their vectors fit into a core's cache.
BLOCK: Final = 8192


def inner(a: Floats, b: Floats) -> Floats:
    """Inner products over the last axis, added in one fixed order.

    A matrix product adds in an order that depends on the shape and on the machine. The threshold is itself a
    pair's score, so that a last digit decides; and two centers must agree on whether they admit each other.
    """
    product = a * b
    total = product[..., 0].copy()
    for k in range(1, product.shape[-1]):
        total += product[..., k]
    return total


def unit(v: Floats) -> Floats:
    """(n, k) rows of length 1; a zero row stays."""
    length = np.sqrt(inner(v, v))[:, None]
    return np.asarray(v / np.where(length > 0, length, 1.0))


#: cos(v_i, v_j): like with like. A zero vector is like nobody (0).
homogeneity: Final = Pairwise("homogeneity", unit, inner)

#: -cos(v_i, v_j): the unlike.
diversity: Final = Pairwise("diversity", unit, lambda a, b: -inner(a, b))

#: -|v_i0 - v_j0|: the same outcome rate, the paper's marker of a shared KPI.
alignment: Final = Pairwise("alignment", lambda v: v[:, :1], lambda a, b: -np.abs(a[..., 0] - b[..., 0]))

#: The goal of a center that has none: all peers are equal, and ties stay in.
anybody: Final = Pairwise(
    "anybody", lambda v: v[:, :1], lambda a, b: np.zeros(np.broadcast(a[..., 0], b[..., 0]).shape)
)


#: How compiled code computes a goal: the multiple of the inner product of unit vectors; 2: the difference of
#: outcome rates; 0: nothing.
KINDS: Final = {"homogeneity": 1, "diversity": -1, "alignment": 2, "anybody": 0}


def _goal(found: Any) -> Goal | None:
    return found if callable(found) and not isinstance(found, type) else None


GOALS: Final = Registry[Goal](
    "goal",
    "abps.goals",
    {known.name: known for known in (homogeneity, diversity, alignment)},
    _goal,
    "a function of vectors (a, k) and (b, k) that gives scores (a, b)",
)


def goal(name: str) -> Goal:
    """A goal by its name: ours, an entry point's, or ``package.module:NAME``."""
    return GOALS.find(name)


def scaled(vectors: Floats, how: str) -> Floats:
    """Metadata as it stands (``raw``, the paper) or standardised over the centers (``zscore``)."""
    if how == "raw":
        return vectors
    if how == "zscore":
        spread = vectors.std(axis=0)
        return np.asarray((vectors - vectors.mean(axis=0)) / np.where(spread > 0, spread, 1.0))
    raise RequestError(f"meta_scale={how!r}: choose raw or zscore")


def pair_scores(vectors: Floats, goals: Sequence[Goal]) -> Floats:
    """(n, n) score of every ordered pair under the goal of its first center; the diagonal is -inf."""
    n = len(vectors)
    if len(goals) != n:
        raise RequestError(f"{len(goals)} goals for {n} centers; give one per center")
    scores = np.empty((n, n))
    for rows in same_goal(goals):  # centers that share a goal are scored together
        block = np.asarray(goals[rows[0]](vectors[rows], vectors), dtype=np.float64)
        if block.shape != (len(rows), n) or np.isnan(block).any():
            raise RequestError(
                f"the goal {getattr(goals[rows[0]], '__name__', 'given')!r} must return an array of "
                f"({len(rows)}, {n}) scores without NaN, one row per center and one column per peer"
            )
        scores[rows] = block
    np.fill_diagonal(scores, -np.inf)
    return scores


def same_goal(goals: Sequence[Any]) -> list[NDArray[np.int64]]:
    """The centers of each distinct goal."""
    number = {g: k for k, g in enumerate(dict.fromkeys(goals))}
    of = np.array([number[g] for g in goals], dtype=np.int64)
    return [np.flatnonzero(of == k) for k in range(len(number))]


def thresholds(scores: Floats, goals: Sequence[Goal], keep: float, scope: str) -> Floats:
    """(n,) the score that a peer must reach so that the share ``keep`` of pairs remains.

    ``global_pairs``: one threshold per goal, over all pairs of the centers that have it (Sec. 4.1: goals
    live on different scales). ``per_center``: every center keeps that share of its own peers (Sec. 6.5).
    Ties at the threshold stay in.
    """
    n = len(scores)
    _check(keep, scope)
    if n < 2:
        return np.full(n, -np.inf)
    if scope == "per_center":
        return _reached_by(scores, keep, n - 1)
    threshold = np.empty(n)
    for rows in same_goal(goals):
        pairs = scores[rows][scores[rows] > -np.inf]
        threshold[rows] = _reached_by(pairs, keep, len(pairs))
    return threshold


#: Pairs per goal, and peers per center, on which thresholds are calibrated where all pairs are too many.
SAMPLED_PAIRS: Final = 1 << 20
SAMPLED_PEERS: Final = 1 << 11


def sampled_thresholds(vectors: Floats, goals: Sequence[Pairwise], keep: float, scope: str) -> Floats:
    """:func:`thresholds` from a sample, for federations with too many pairs to score them all.

    The sample is the same for everybody, so every center finds the same thresholds. The share that remains
    differs from ``keep`` by a standard error of sqrt(keep (1 - keep) / sample): at keep = 0.25, 0.04 % of the
    pairs (``global_pairs``) and 1 % of a center's peers (``per_center``).
    """
    n = len(vectors)
    _check(keep, scope)
    rng = streams.generator(0, "calibration")
    threshold = np.empty(n)
    few = np.sort(rng.permutation(n)[:SAMPLED_PEERS])
    for rows in same_goal(goals):
        goal = goals[rows[0]]
        if scope == "per_center":
            for part in np.array_split(rows, max(1, len(rows) * len(few) // (1 << 20))):
                block = np.array(goal(vectors[part], vectors[few]), dtype=np.float64)
                block[part[:, None] == few[None, :]] = -np.inf  # oneself is no peer
                threshold[part] = _reached_by(block, keep, len(few))
            continue
        center = rows[rng.integers(len(rows), size=SAMPLED_PAIRS)]
        peer = rng.integers(n - 1, size=SAMPLED_PAIRS)
        peer += peer >= center
        threshold[rows] = _reached_by(pair_list_scores(vectors, goal, center, peer), keep, SAMPLED_PAIRS)
    return threshold


def pair_list_scores(vectors: Floats, goal: Pairwise, center: Ints, peer: Ints) -> Floats:
    """(p,) the goal's score of every pair."""
    scores, ready = np.empty(len(center)), goal.ready(vectors)
    for at in range(0, len(center), BLOCK):
        part = slice(at, at + BLOCK)
        scores[part] = goal.score(ready[center[part]], ready[peer[part]])
    return scores


def _check(keep: float, scope: str) -> None:
    if not 0 < keep <= 1:
        raise RequestError(f"keep={keep}: the share of pairs to keep must be above 0 and at most 1")
    if scope not in ("global_pairs", "per_center"):
        raise RequestError(f"tau_scope={scope!r}: choose global_pairs or per_center")


def _reached_by(scores: Floats, keep: float, of: int) -> Floats:
    """The value that the best ``keep`` of the last axis reach."""
    last = scores.shape[-1]
    at = last - max(1, round(keep * of))
    return np.asarray(np.partition(scores, at, axis=-1)[..., at])


def admitted(scores: Floats, threshold: Floats) -> NDArray[np.bool_]:
    """(n, n) does center i's goal admit peer j? These are the candidate sets C_i."""
    mask = scores >= threshold[:, None]
    np.fill_diagonal(mask, False)
    return mask


# ---------------------------------------------------------------- candidate sets


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
        threshold = sampled_thresholds(vectors, known, keep, scope)
        return Candidates(vectors, rules, rule, threshold, group)
    scores = pair_scores(vectors, goals)
    threshold = thresholds(scores, goals, keep, scope)
    if n > table_up_to:
        return Candidates(vectors, rules, rule, threshold, group)
    table = admitted(scores, threshold)
    if group is not None:
        table &= group[:, None] == group[None, :]
    return Candidates(vectors, rules, rule, threshold, group, table)
