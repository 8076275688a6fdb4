"""Goals: whom a center wants to consider at all, judged on small public metadata vectors.

A goal gives every ordered pair a score f_i(v_i, v_j); peer j is a candidate of center i when the
score reaches a threshold, calibrated so that a fixed share of pairs remains. Every center may have
a goal of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError, nearest

Floats = NDArray[np.float64]

#: A goal scores centers' vectors (a, k) against peers' vectors (b, k): the result is (a, b).
Goal = Callable[[Floats, Floats], Floats]


def homogeneity(centers: Floats, peers: Floats) -> Floats:
    """cos(v_i, v_j): like with like. A zero vector is like nobody (0)."""
    return _unit(centers) @ _unit(peers).T


def diversity(centers: Floats, peers: Floats) -> Floats:
    """-cos(v_i, v_j): the unlike."""
    return -homogeneity(centers, peers)


def alignment(centers: Floats, peers: Floats) -> Floats:
    """-|v_i0 - v_j0|: the same outcome rate, the paper's marker of a shared KPI."""
    return -np.abs(centers[:, None, 0] - peers[None, :, 0])


def _unit(v: Floats) -> Floats:
    length = np.linalg.norm(v, axis=1, keepdims=True)
    return np.asarray(v / np.where(length > 0, length, 1.0))


GOALS: Final[dict[str, Goal]] = {
    "homogeneity": homogeneity,
    "diversity": diversity,
    "alignment": alignment,
}


def goal(name: str) -> Goal:
    """A goal by its name."""
    if name not in GOALS:
        raise RequestError(f"goal={name!r} is not one of {', '.join(GOALS)}{nearest(name, GOALS)}")
    return GOALS[name]


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


def same_goal(goals: Sequence[Goal]) -> list[NDArray[np.int64]]:
    """The centers of each distinct goal."""
    return [np.array([k for k, other in enumerate(goals) if other is g]) for g in dict.fromkeys(goals)]


def thresholds(scores: Floats, goals: Sequence[Goal], keep: float, scope: str) -> Floats:
    """(n,) the score that a peer must reach so that the share ``keep`` of pairs remains.

    ``global_pairs``: one threshold per goal, over all pairs of the centers that have it (Sec. 4.1: goals
    live on different scales). ``per_center``: every center keeps that share of its own peers (Sec. 6.5).
    Ties at the threshold stay in.
    """
    n = len(scores)
    if not 0 < keep <= 1:
        raise RequestError(f"keep={keep}: the share of pairs to keep must be above 0 and at most 1")
    if scope not in ("global_pairs", "per_center"):
        raise RequestError(f"tau_scope={scope!r}: choose global_pairs or per_center")
    if n < 2:
        return np.full(n, -np.inf)
    if scope == "per_center":
        ranked = np.sort(scores, axis=1)[:, ::-1]
        return np.asarray(ranked[:, max(1, round(keep * (n - 1))) - 1])
    threshold = np.empty(n)
    for rows in same_goal(goals):
        pairs = np.sort(scores[rows][scores[rows] > -np.inf])[::-1]
        threshold[rows] = pairs[max(1, round(keep * len(pairs))) - 1]
    return threshold


def admitted(scores: Floats, threshold: Floats) -> NDArray[np.bool_]:
    """(n, n) does center i's goal admit peer j? These are the candidate sets C_i."""
    mask = scores >= threshold[:, None]
    np.fill_diagonal(mask, False)
    return mask
