"""One round of proposals from tables of all pairs: the oracle of selection without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.beliefs import BetaPosterior
from abps.core.matching import Answer, MatchingPlan, Rest
from abps.core.selection import RoundKeys, Selection, epsilon, peer_scores, turns
from core.single_places import place_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Verdict = Callable[[int, int], Answer]


def select(config, beliefs, candidate, consent, ids, seed, t, horizon) -> MatchingPlan:
    """candidate, consent: (n, n)."""
    everyone = np.arange(beliefs.n)
    belief = beliefs.posterior(everyone[:, None], everyone[None, :])
    found = views(config, belief, candidate, consent, RoundKeys(ids, seed, t, horizon))
    order = turns(config, seed, t, ids).tolist()
    plan = propose(order, [ranking.tolist() for ranking in found.rankings], found.answer, config.kappa)
    return unwanted(plan, found.rankings, found.wanted)


def all_places(key: NDArray[np.uint64], n: int) -> Ints:
    """(keys, n) the place of every center in the order of each key."""
    return place_of(np.arange(n)[None, :], key[:, None], n)


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
        places = all_places(streams.bits(seed, "tie-break", t, ids), n)
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
        drawn = all_places(streams.bits(seed, "explore-peer", t, ids)[explorers], n)
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


def propose(
    order: Sequence[int], rankings: Sequence[Sequence[int]], verdict: Verdict, kappa: int
) -> MatchingPlan:
    """One greedy pass.

    order: the centers in the order of their turns.  rankings: for every center, the peers it is ready to
    ask, best first.  verdict: asked only of peers with a place left, and never for a pair already made.
    """
    n = len(rankings)
    load = [0] * n
    mine: list[set[int]] = [set() for _ in range(n)]
    proposer: list[int] = []
    asked: list[int] = []
    answers: list[int] = []
    pairs: list[tuple[int, int]] = []
    turned_down = [Rest.NO_CANDIDATES] * n
    for i in order:
        if load[i] >= kappa:  # whom it would have asked need not be worked out
            continue
        worst = Rest.NO_CANDIDATES
        for j in rankings[i]:
            if load[i] >= kappa:
                break
            if j in mine[i]:
                continue
            if load[j] >= kappa:
                answer = Answer.FULL
                worst = max(worst, Rest.ALL_FULL)
            else:
                answer = verdict(j, i)
                if answer == Answer.ACCEPTED:
                    mine[i].add(j)
                    mine[j].add(i)
                    load[i] += 1
                    load[j] += 1
                    pairs.append((i, j))
                elif answer == Answer.DECLINED:
                    worst = Rest.DECLINED
            proposer.append(i)
            asked.append(j)
            answers.append(answer)
        turned_down[i] = worst
    rest = [Rest.NOT if load[i] else turned_down[i] for i in range(n)]
    center, received = np.array(proposer, dtype=np.int64), np.array(answers, dtype=np.int8)
    return MatchingPlan(
        n=n,
        pairs=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        center=center,
        peer=np.array(asked, dtype=np.int64),
        answer=received,
        rest=np.array(rest, dtype=np.int8),
        asked=np.bincount(4 * center + received, minlength=4 * n).reshape(n, 4).astype(np.int64),
    )


def unwanted(plan: MatchingPlan, rankings: Sequence[Sized], wanted: NDArray[np.bool_]) -> MatchingPlan:
    """The plan, in which a center that had candidates and asked none rests because it declined them all.

    wanted: (n,) whether a center had anybody to want.
    """
    idle = wanted & np.array([not len(listed) for listed in rankings], dtype=bool)
    rest = np.where((plan.rest == Rest.NO_CANDIDATES) & idle, Rest.DECLINED, plan.rest)
    return replace(plan, rest=rest.astype(np.int8))
