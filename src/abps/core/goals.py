"""Goals: whom a center wants to consider at all, judged on small public metadata vectors. A goal gives every
ordered pair a score f_i(v_i, v_j); peer j is a candidate of center i when the score reaches a threshold,
calibrated so that a fixed share of pairs remains. Every center may have a goal of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.registry import Registry

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A goal scores centers' vectors (a, k) against peers' vectors (b, k): the result is (a, b).
Goal = Callable[[Floats, Floats], Floats]


def inner(a: Floats, b: Floats) -> Floats:
    """(a, b) inner products of all rows (a, k) and (b, k), added in one fixed order, unlike a matrix product:
    the threshold is itself a pair's score, so that a last digit decides."""
    total = np.zeros((len(a), len(b)))
    for k in range(a.shape[1]):
        total += a[:, None, k] * b[None, :, k]
    return total


def unit(v: Floats) -> Floats:
    """(n, k) rows of length 1; a zero row stays."""
    length = np.sqrt(np.cumsum(v * v, axis=1)[:, -1:])
    return np.asarray(v / np.where(length > 0, length, 1.0))


def homogeneity(centers: Floats, peers: Floats) -> Floats:
    """cos(v_i, v_j): like with like. A zero vector is like nobody (0)."""
    return inner(unit(centers), unit(peers))


def diversity(centers: Floats, peers: Floats) -> Floats:
    """-cos(v_i, v_j): the unlike."""
    return -homogeneity(centers, peers)


def alignment(centers: Floats, peers: Floats) -> Floats:
    """-|v_i0 - v_j0|: the same outcome rate, the paper's marker of a shared KPI."""
    return -np.abs(centers[:, None, 0] - peers[None, :, 0])


def anybody(centers: Floats, peers: Floats) -> Floats:
    """The goal of a center that has none: all peers are equal, and ties stay in."""
    return np.zeros((len(centers), len(peers)))


def _goal(found: Any) -> Goal | None:
    return found if callable(found) and not isinstance(found, type) else None


GOALS: Final = Registry[Goal](
    "goal",
    "abps.goals",
    {known.__name__: known for known in (homogeneity, diversity, alignment)},
    _goal,
    "a function of vectors (a, k) and (b, k) that gives scores (a, b)",
)


def scaled(vectors: Floats, how: str) -> Floats:
    """Metadata as it stands (``raw``, the paper) or standardised over the centers (``zscore``)."""
    if how == "raw":
        return vectors
    spread = vectors.std(axis=0)
    return np.asarray((vectors - vectors.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def pair_scores(vectors: Floats, goals: Sequence[Goal]) -> Floats:
    """(n, n) score of every ordered pair under the goal of its first center; the diagonal is -inf."""
    n = len(vectors)
    if len(goals) != n:
        raise RequestError(f"{len(goals)} goals for {n} centers; give one per center")
    scores = np.empty((n, n))
    for rows in same_goal(goals):  # centers that share a goal are scored together
        block = np.asarray(goals[rows[0]](vectors[rows], vectors), dtype=np.float64)
        if block.shape != (len(rows), n) or np.isnan(block).any():
            name = getattr(goals[rows[0]], "__name__", "given")
            wanted = f"an array of ({len(rows)}, {n}) scores without NaN, a row per center, a column per peer"
            raise RequestError(f"the goal {name!r} must return {wanted}")
        scores[rows] = block
    np.fill_diagonal(scores, -np.inf)
    return scores


def same_goal(goals: Sequence[Any]) -> list[NDArray[np.int64]]:
    number = {g: k for k, g in enumerate(dict.fromkeys(goals))}
    of = np.array([number[g] for g in goals], dtype=np.int64)
    return [np.flatnonzero(of == k) for k in range(len(number))]


def thresholds(scores: Floats, goals: Sequence[Goal], keep: float, scope: str) -> Floats:
    """(n,) the score that a peer must reach so that the share ``keep`` of pairs remains; ties stay in.
    ``global_pairs``: one threshold per goal, over all pairs of the centers that have it (Sec. 4.1: goals live
    on different scales). ``per_center``: every center keeps that share of its own peers (Sec. 6.5)."""
    n = len(scores)
    if not 0 < keep <= 1:
        raise RequestError(f"keep={keep}: the share of pairs to keep must be above 0 and at most 1")
    if n < 2:
        return np.full(n, -np.inf)
    if scope == "per_center":
        return _reached_by(scores, keep, n - 1)
    threshold = np.empty(n)
    for rows in same_goal(goals):
        pairs = scores[rows][scores[rows] > -np.inf]
        threshold[rows] = _reached_by(pairs, keep, len(pairs))
    return threshold


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


TABLE_UP_TO: Final = 4096  # centers up to which all pairs are scored


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidate sets C_i of centers.  table: (n, n) who is a candidate of whom; none: everybody is.
    group: (n,) and then only peers of the same group; none: of any."""

    table: NDArray[np.bool_] | None = None
    group: Ints | None = None


def group_numbers(groups: Sequence[str] | None) -> Ints:
    if groups is None:
        raise RequestError("partners inside a declared group need groups; name the column with group=COL")
    return np.unique(np.array(groups), return_inverse=True)[1]


def candidates(vectors: Floats, goals: Sequence[Goal], keep: float, scope: str) -> Candidates:
    """The candidate sets of centers with these vectors (n, k) and goals, one per center."""
    if len(vectors) > TABLE_UP_TO:
        why = f"a goal scores all pairs and serves up to {TABLE_UP_TO:,} centers, not {len(vectors):,}"
        raise RequestError(f"{why}; choose goal=none")
    scores = pair_scores(vectors, goals)
    return Candidates(admitted(scores, thresholds(scores, goals, keep, scope)))
