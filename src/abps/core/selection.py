"""Selection: from beliefs to scores (upper confidence bounds), rankings and answers to proposals.

The same functions serve the simulation (all centers' rows at once) and a hospital (its own row).
A "row" below is one center's view of its n possible peers; arrays carry rows on their first axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from abps.core import streams
from abps.core.beliefs import BetaPosterior
from abps.core.errors import RequestError, nearest, validate
from abps.core.matching import Answer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


#: Exploration schedules: the constant of the experiments, and the two of the regret proof.
EpsilonSchedule = Literal["constant", "inv_sqrt_horizon", "c_over_t"]
EPSILON_SCHEDULES: tuple[str, ...] = get_args(EpsilonSchedule)


@dataclass(frozen=True)
class Selection:
    """How partners are chosen (defaults: the paper's settings, read literally).

    kappa: how many partners a center may have.  gamma: weight of the confidence radius.
    epsilon, eps_schedule: exploration (constant, inv_sqrt_horizon or c_over_t).
    tau_acc: the score from which a proposal is accepted.  prior: Beta(alpha0, beta0).
    proposer_check: a center also asks only peers whose score reaches tau_acc (Lemma 1's reading).
    tie_break, order of turns: random or index.
    policy: ucb, or random (the control: every candidate is as good as any other).
    """

    kappa: int = 3
    gamma: float = math.sqrt(2.0)
    epsilon: float = 0.1
    eps_schedule: EpsilonSchedule = "constant"
    tau_acc: float = 0.5
    prior: tuple[float, float] = (1.0, 1.0)
    proposer_check: bool = False
    tie_break: Literal["random", "index"] = "random"
    order: Literal["random", "index"] = "random"
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


def radius(count: ArrayLike, t: int, gamma: float) -> Floats:
    """Confidence radius gamma * sqrt(2 ln t / (count + 1)); zero in the first round (ln 1 = 0)."""
    return gamma * np.sqrt(2.0 * math.log(t) / (np.asarray(count, dtype=np.float64) + 1.0))


def ucb(belief: BetaPosterior, t: int, gamma: float) -> Floats:
    """Eq. (7): posterior mean plus radius, at round t = 1, 2, …"""
    return belief.mean + radius(belief.count, t, gamma)


def epsilon(schedule: str, c: float, t: int, horizon: int) -> float:
    """The probability of exploring in round t.

    ``constant``: c. ``inv_sqrt_horizon``: c / sqrt(horizon). ``c_over_t``: min(1, c / t).
    """
    if schedule == "constant":
        return min(1.0, c)
    if schedule == "inv_sqrt_horizon":
        return min(1.0, c / math.sqrt(max(1, horizon)))
    if schedule == "c_over_t":
        return min(1.0, c / t)
    raise RequestError(
        f"eps_schedule={schedule!r} is not one of {', '.join(EPSILON_SCHEDULES)}"
        f"{nearest(schedule, EPSILON_SCHEDULES)}"
    )


@dataclass(frozen=True, eq=False)
class RoundKeys:
    """What the random draws of some centers in a round depend on; ids: (r,) their stream numbers."""

    ids: NDArray[np.uint64]
    seed: int
    t: int
    horizon: int


def turns(config: Selection, seed: int, t: int, ids: NDArray[np.uint64]) -> Ints:
    """(n,) the centers in the order of their turns this round."""
    if config.order == "index":
        return np.arange(len(ids))
    return np.argsort(streams.bits(seed, "proposal-order", t, ids), kind="stable")


def peer_scores(config: Selection, belief: BetaPosterior, t: int) -> Floats:
    """The scores of peers, by which they are ranked and accepted."""
    if config.policy == "random":
        return np.ones_like(belief.alpha)
    return ucb(belief, t, config.gamma)


def rank(
    config: Selection,
    score: Floats,
    candidate: Mask,
    keys: RoundKeys,
) -> list[Ints]:
    """Rankings of r centers over n peers: best score first, ties broken, then the ε swap.

    score, candidate: (r, n).
    """
    ids, seed, t = keys.ids, keys.seed, keys.t
    r, n = score.shape
    row = (np.arange(r) * n)[:, None]
    everyone = np.broadcast_to(np.arange(n), (r, n))
    if config.tie_break == "random":
        places = streams.all_places(streams.bits(seed, "tie-break", t, ids), n)
        order = np.empty((r, n), dtype=np.int64)
        order.ravel()[places + row] = everyone
    else:
        order = everyone
    eligible = candidate & (score >= config.tau_acc) if config.proposer_check else candidate
    # In the order of ties, then stably by score: most scores are equal, which costs such a sort nothing.
    by_score = np.take(np.where(eligible, -score, np.inf), order + row)
    best_first = np.take(order, np.argsort(by_score, axis=1, kind="stable") + row)
    rankings = [best_first[k, :length] for k, length in enumerate(eligible.sum(axis=1).tolist())]
    if config.policy != "random":
        chance = epsilon(config.eps_schedule, config.epsilon, t, keys.horizon)
        explorers = np.flatnonzero(streams.uniforms(seed, "explore", t, ids) < chance)
        # A random order of all centers for each that explores: the first candidate in that order moves to
        # the front, so that candidates need not be counted.
        drawn = streams.all_places(streams.bits(seed, "explore-peer", t, ids)[explorers], n)
        for k, place in zip(explorers.tolist(), drawn, strict=True):
            listed = rankings[k]
            if len(listed):
                at = int(np.argmin(place[listed]))
                listed[[0, at]] = listed[[at, 0]]
    return rankings


def verdict(config: Selection, admits: bool, score: float) -> Answer:
    """The answer of a center with a place left: does it admit the proposer, and is the score enough?"""
    if not admits:
        return Answer.FILTERED
    return Answer.ACCEPTED if score >= config.tau_acc else Answer.DECLINED


@dataclass(frozen=True, eq=False)
class Views:
    """The preferences of r centers over n peers in a round, from tables of all their pairs.

    rankings: the peers that each would ask, best first.  score, consent: (r, n) its score of a peer, and
    whether it admits the peer when asked.  wanted: (r,) whether it had any candidate.
    """

    config: Selection
    rankings: list[Ints]
    score: Floats
    consent: Mask
    wanted: Mask

    def answer(self, row: int, peer: int) -> Answer:
        """The answer of a center with a place left to a peer."""
        return verdict(self.config, bool(self.consent[row, peer]), float(self.score[row, peer]))


def views(
    config: Selection,
    belief: BetaPosterior,
    candidate: Mask,
    consent: Mask,
    keys: RoundKeys,
) -> Views:
    """belief, candidate, consent: (r, n).

    candidate: may it ask the peer?  consent: does it admit the peer when asked?
    """
    score = peer_scores(config, belief, keys.t)
    rankings = rank(config, score, candidate, keys)
    return Views(config, rankings, score, consent, np.asarray(candidate.any(axis=1)))
