"""Selection: from beliefs to a ranking, a verdict and a plan.

The same functions serve the simulation (all centers' rows at once) and a hospital (its own row).
A "row" below is one center's view of its n possible peers; arrays carry rows on their first axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from abps.core import permutation, scores, streams
from abps.core.beliefs import Beliefs, Posterior
from abps.core.choices import validate
from abps.core.errors import RequestError
from abps.core.matching import Answer, Plan, propose, unwanted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Selection:
    """How partners are chosen (defaults: the paper's settings, read literally).

    kappa: how many partners a center may have.  gamma: weight of the confidence radius.
    epsilon, eps_schedule: exploration (constant, inv_sqrt_horizon or c_over_t).
    tau_acc: the score from which a proposal is accepted.  prior: Beta(alpha0, beta0).
    proposer_check: a center also asks only peers whose score reaches tau_acc (Lemma 1's reading).
    tie_break: random, index, or similarity of the metadata.  order: random or index turns.
    explore_pool: exploration draws from all candidates, or from the unproven (never observed) ones.
    policy: ucb, or random (the control: every candidate is as good as any other).
    """

    kappa: int = 3
    gamma: float = math.sqrt(2.0)
    epsilon: float = 0.1
    eps_schedule: scores.EpsilonSchedule = "constant"
    tau_acc: float = 0.5
    prior: tuple[float, float] = (1.0, 1.0)
    proposer_check: bool = False
    tie_break: Literal["random", "index", "similarity"] = "random"
    order: Literal["random", "index"] = "random"
    explore_pool: Literal["all", "unproven"] = "all"
    policy: Literal["ucb", "random"] = "ucb"

    def __post_init__(self) -> None:
        if self.kappa < 1:
            raise RequestError(f"kappa={self.kappa}: a center needs room for at least 1 partner")
        if not 0 <= self.epsilon <= 1 and self.eps_schedule == "constant":
            raise RequestError(f"epsilon={self.epsilon}: a probability, choose 0 to 1")
        if self.gamma < 0:
            raise RequestError(f"gamma={self.gamma}: the exploration weight must not be negative")
        if min(self.prior) <= 0:
            raise RequestError(f"prior={self.prior}: both Beta parameters must be above 0")
        validate(self)


def turns(config: Selection, seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
    """(n,) the centers in the order of their turns this round."""
    if config.order == "index":
        return np.arange(len(ids))
    return np.argsort(streams.bits(seed, "proposal-order", t, ids), kind="stable")


def peer_scores(config: Selection, belief: Posterior, t: int) -> Floats:
    """What a center thinks of peers: the number that ranks them and that acceptance is decided on."""
    if config.policy == "random":
        return np.ones_like(belief.alpha)
    return scores.ucb(belief, t, config.gamma)


def rank(
    config: Selection,
    score: Floats,
    count: Floats,
    candidate: Mask,
    similarity: Floats | None,
    ids: NDArray[np.uint64],
    seed: int,
    t: int,
    horizon: int,
) -> list[Ints]:
    """Rankings of r centers over n peers: best score first, ties broken, then the ε swap.

    score, count, candidate, similarity: (r, n).  ids: (r,) the centers' stream numbers.
    """
    r, n = score.shape
    row = (np.arange(r) * n)[:, None]
    everyone = np.broadcast_to(np.arange(n), (r, n))
    if config.tie_break == "random":
        places = permutation.all_places(streams.bits(seed, "tie-break", t, ids), n)
        order = np.empty((r, n), dtype=np.int64)
        order.ravel()[places + row] = everyone
    elif config.tie_break == "similarity" and similarity is not None:
        order = np.argsort(-similarity, axis=1, kind="stable")
    else:
        order = everyone
    eligible = candidate & (score >= config.tau_acc) if config.proposer_check else candidate
    # In the order of ties, then stably by score: most scores are equal, which costs such a sort nothing.
    by_score = np.take(np.where(eligible, -score, np.inf), order + row)
    best_first = np.take(order, np.argsort(by_score, axis=1, kind="stable") + row)
    rankings = [best_first[k, :length] for k, length in enumerate(eligible.sum(axis=1).tolist())]
    if config.policy != "random":
        epsilon = scores.epsilon(config.eps_schedule, config.epsilon, t, horizon)
        explorers = np.flatnonzero(streams.uniforms(seed, "explore", t, ids) < epsilon)
        # A random order of all centers for each that explores: the first of its pool in it is swapped to the
        # front, so that nobody has to count the pool.
        drawn = permutation.all_places(streams.bits(seed, "explore-peer", t, ids)[explorers], n)
        for k, place in zip(explorers.tolist(), drawn, strict=True):
            listed = rankings[k]
            pool = listed[count[k, listed] == 0] if config.explore_pool == "unproven" else listed
            if len(pool):
                at = int(np.argmax(listed == pool[np.argmin(place[pool])]))
                listed[[0, at]] = listed[[at, 0]]
    return rankings


def verdict(config: Selection, admits: bool, score: float) -> Answer:
    """How a center with a place left answers: does it admit the proposer, and is its score enough?"""
    if not admits:
        return Answer.FILTERED
    return Answer.ACCEPTED if score >= config.tau_acc else Answer.DECLINED


@dataclass(frozen=True, eq=False)
class Views:
    """What r centers think of n peers in a round, from tables of all their pairs.

    rankings: whom each would ask, best first.  score, consent: (r, n) what it thinks of a peer, and whether
    it admits it when asked.  wanted: (r,) whether it had any candidate.
    """

    config: Selection
    rankings: list[Ints]
    score: Floats
    consent: Mask
    wanted: Mask

    def answer(self, row: int, peer: int) -> Answer:
        """How a center answers a peer, while it has a place left."""
        return verdict(self.config, bool(self.consent[row, peer]), float(self.score[row, peer]))


def views(
    config: Selection,
    belief: Posterior,
    candidate: Mask,
    consent: Mask,
    similarity: Floats | None,
    ids: NDArray[np.uint64],
    seed: int,
    t: int,
    horizon: int,
) -> Views:
    """belief, candidate, consent, similarity: (r, n): of the centers with the stream numbers ids (r,).

    candidate: may it ask the peer?  consent: does it admit the peer when asked?
    """
    score = peer_scores(config, belief, t)
    rankings = rank(config, score, belief.count, candidate, similarity, ids, seed, t, horizon)
    return Views(config, rankings, score, consent, np.asarray(candidate.any(axis=1)))


def agree(views: Views, order: Ints) -> Plan:
    """One round of proposals among all centers, whose views these are, in the order of their turns."""
    # Views hand out their numbers one by one: few turns look beyond the first of n.
    rankings = [ranking.data for ranking in views.rankings]
    plan = propose(order.tolist(), rankings, views.answer, views.config.kappa)
    return unwanted(plan, views.rankings, views.wanted)


def select(
    config: Selection,
    beliefs: Beliefs,
    candidate: Mask,
    consent: Mask,
    similarity: Floats | None,
    ids: NDArray[np.uint64],
    seed: int,
    t: int,
    horizon: int,
) -> Plan:
    """One round of proposals among all centers, from tables (n, n) of all pairs; see :func:`views`."""
    found = views(config, beliefs.table(), candidate, consent, similarity, ids, seed, t, horizon)
    return agree(found, turns(config, seed, t, ids))
