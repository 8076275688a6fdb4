"""Proposals: who works with whom by beliefs, and the audit trail of a round of proposals.

Compiled code evaluates a pair when a center comes to it: peers that were never observed share the prior's
score and follow each other in the order of the tie-break, a keyed permutation that can be evaluated at single
places. A round takes about n log n looks, and no more memory than the observed pairs.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from abps.core import streams
from abps.core.beliefs import Beliefs, BetaPosterior
from abps.core.goals import Candidates
from abps.core.matching import Answer, MatchingPlan, Rest
from abps.core.selection import RoundKeys, Selection, epsilon, peer_scores, turns
from abps.machine import compiled
from abps.methods.base import Context, Decisions, Floats, Ints, Words
from abps.methods.peers import Preferences

#: Centers up to which every proposal is listed in the audit trail; above, rejected ones are counted.
LISTED_UP_TO = 512

_NOBODY: Final = -1
_ACCEPTED, _FULL, _FILTERED, _DECLINED = (int(answer) for answer in Answer)


class _View(NamedTuple):
    """What the preferences of all centers follow from, as compiled code takes it.

    table: (n, n) candidates, or (0, 0): everybody is one; group: (n,) or (0,): only peers of the same group.
    start, peer, score: the observed pairs of center i are start[i] to start[i + 1].
    ties, draws: (n,) keys of the orders of the tie-break and of exploration; explores: (n,).
    """

    table: NDArray[np.bool_]
    group: Ints
    start: Ints
    peer: Ints
    score: Floats
    prior_score: float
    tau: float
    mutual: bool
    proposer_check: bool
    ties: NDArray[np.uint64]
    draws: NDArray[np.uint64]
    by_index: bool
    explores: NDArray[np.bool_]
    shape: tuple[int, int, int]


@compiled
def _round_function(value: np.uint64, key: np.uint64, k: int) -> np.uint64:
    """What round k of the network adds: see :mod:`abps.core.streams`."""
    x = value * np.uint64(0x9E3779B97F4A7C15) + key + np.uint64(k + 1) * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(29))


@compiled
def _permute(value: int, key: np.uint64, n: int, shape: tuple[int, int, int], forward: bool) -> np.int64:
    """Who stands at a place (forward), or the place of a peer, in the order of a key."""
    high, low, rounds = shape
    masks = (np.uint64((1 << high) - 1), np.uint64((1 << low) - 1))
    x = np.uint64(value)
    while True:
        a, b = x >> np.uint64(low), x & masks[1]
        for step in range(rounds):
            k = step if forward else rounds - 1 - step
            if k % 2 == 0:
                a ^= _round_function(b, key, k) & masks[0]
            else:
                b ^= _round_function(a, key, k) & masks[1]
        x = (a << np.uint64(low)) | b
        if x < np.uint64(n):
            return np.int64(x)


@compiled
def _admits(table: NDArray[np.bool_], group: Ints, i: int, j: int) -> bool:
    """Is j a candidate of i? Arrays one by one: this is the innermost loop, and views are large to pass."""
    if i == j or (len(group) and group[i] != group[j]):
        return False
    return not len(table) or table[i, j]


@compiled
def _find(start: Ints, peer: Ints, i: int, j: int) -> int:
    """Where the pair stands among the observed ones, or -1."""
    low, high = start[i], start[i + 1]
    while low < high:
        middle = (low + high) // 2
        if peer[middle] < j:
            low = middle + 1
        else:
            high = middle
    return low if low < start[i + 1] and peer[low] == j else -1


@compiled
def _score(view: _View, i: int, j: int) -> float:
    at = _find(view.start, view.peer, i, j)
    return view.prior_score if at < 0 else view.score[at]


@compiled
def _eligible(view: _View, i: int, j: int) -> bool:
    if view.proposer_check and _score(view, i, j) < view.tau:
        return False
    return _admits(view.table, view.group, i, j)


@compiled
def _place(view: _View, i: int, j: int) -> np.int64 | int:
    return j if view.by_index else _permute(j, view.ties[i], len(view.ties), view.shape, False)


@compiled
def _apart(view: _View, i: int, better: bool) -> Ints:
    """The observed peers of i with a score above (or below) the prior's, as they stand in its ranking."""
    found = np.empty(view.start[i + 1] - view.start[i], dtype=np.int64)
    size = 0
    for at in range(view.start[i], view.start[i + 1]):
        aside = view.score[at] > view.prior_score if better else view.score[at] < view.prior_score
        if not aside or not _eligible(view, i, view.peer[at]):
            continue
        j, k = view.peer[at], size
        mine, place = view.score[at], _place(view, i, view.peer[at])
        while k > 0:  # insert by score, then by place
            other = found[k - 1]
            theirs = _score(view, i, other)
            if theirs > mine or (theirs == mine and _place(view, i, other) < place):
                break
            found[k] = other
            k -= 1
        found[k] = j
        size += 1
    return found[:size]


@compiled
def _swap(view: _View, i: int, better: Ints, worse: Ints) -> tuple[int, int]:
    """(first, drawn) the two peers that exploration exchanges in a ranking, or nobody."""
    n = len(view.ties)
    drawn = first = _NOBODY
    if not view.explores[i]:
        return first, drawn
    for place in range(n):
        j = _permute(place, view.draws[i], n, view.shape, True)
        if _eligible(view, i, j):
            drawn = j
            break
    if drawn == _NOBODY or len(better):
        return (better[0] if drawn != _NOBODY else first), drawn
    for place in range(n):
        j = place if view.by_index else _permute(place, view.ties[i], n, view.shape, True)
        if _score(view, i, j) == view.prior_score and _eligible(view, i, j):
            return j, drawn
    return worse[0], drawn


@compiled
def _has_candidate(view: _View, i: int) -> bool:
    for j in range(len(view.ties)):
        if _admits(view.table, view.group, i, j):
            return True
    return False


@compiled
def _join(i: int, j: int, load: Ints, partner: Ints) -> None:
    partner[i, load[i]], partner[j, load[j]] = j, i
    load[i] += 1
    load[j] += 1


@compiled
def _play(
    view: _View, order: Ints, kappa: int, load: Ints, partner: Ints, made: Ints, asked: Ints, idle: Ints
) -> int:
    """All turns; returns the number of rows in ``made``. Fills load (n,), partner (n, kappa), asked (n, 4),
    idle (n,): a center had candidates and asked nobody, and made (rows, 3): center, peer and answer of every
    proposal, or, if it has fewer than n * n rows, of the accepted ones."""
    table, group, start, peer, score = view.table, view.group, view.start, view.peer, view.score
    ties, shape = view.ties, view.shape
    prior, tau, mutual = view.prior_score, view.tau, view.mutual
    usual_asked = prior >= tau or not view.proposer_check
    rows, n = 0, len(order)
    listed = len(made) >= n * n
    aside = np.full(n, _NOBODY)  # whose turn it was when a peer had another score than the prior's
    for i in order:
        if load[i] >= kappa:
            continue
        better, worse = _apart(view, i, True), _apart(view, i, False)
        for at in range(start[i], start[i + 1]):
            if score[at] != prior:
                aside[peer[at]] = i
        first, drawn = _swap(view, i, better, worse)
        for k in range(len(better) + n + len(worse)):
            if load[i] >= kappa:
                break
            place = k - len(better)
            if place < 0:
                j = better[k]
            elif place >= n:
                j = worse[place - n]
            else:
                j = place if view.by_index else _permute(place, ties[i], n, shape, True)
                if aside[j] == i or not usual_asked or not _admits(table, group, i, j):
                    continue
            if j == first:
                j = drawn
            elif j == drawn:
                j = first
            if (partner[i, : load[i]] == j).any():
                continue
            answer = _FULL
            if load[j] < kappa:
                at = _find(start, peer, j, i)
                if mutual and not _admits(table, group, j, i):
                    answer = _FILTERED
                elif (prior if at < 0 else score[at]) < tau:
                    answer = _DECLINED
                else:
                    answer = _ACCEPTED
                    _join(i, j, load, partner)
            asked[i, answer] += 1
            if listed or answer == _ACCEPTED:
                made[rows, 0], made[rows, 1], made[rows, 2] = i, j, answer
                rows += 1
        idle[i] = view.proposer_check and asked[i].sum() == 0 and _has_candidate(view, i)
    return rows


def match_by_beliefs(
    config: Selection, beliefs: Beliefs, candidates: Candidates, mutual: bool, keys: RoundKeys
) -> MatchingPlan:
    """One round of proposals among all centers; mutual: the receiver's goal must admit the proposer too.
    Above :data:`LISTED_UP_TO` centers the plan lists accepted proposals only; ``asked`` counts all."""
    n, kappa = beliefs.n, config.kappa
    view = _view(config, beliefs, candidates, mutual, keys)
    load, partner = np.zeros(n, dtype=np.int64), np.full((n, kappa), _NOBODY)
    asked, idle = np.zeros((n, 4), np.int64), np.zeros(n, np.int64)
    made = np.zeros((n * n if n <= LISTED_UP_TO else n * kappa, 3), np.int64)
    order = turns(config, keys.seed, keys.t, keys.ids)
    made = made[: _play(view, order, kappa, load, partner, made, asked, idle)]
    rest = np.full(n, Rest.NO_CANDIDATES, dtype=np.int8)
    rest[asked[:, Answer.FULL] > 0] = Rest.ALL_FULL
    rest[(asked[:, Answer.DECLINED] > 0) | (idle > 0)] = Rest.DECLINED
    rest[load > 0] = Rest.NOT
    center, peer, answer = made.T
    pairs = made[answer == Answer.ACCEPTED, :2]
    return MatchingPlan(n, pairs, center, peer, answer.astype(np.int8), rest, asked)


def _view(
    config: Selection, beliefs: Beliefs, candidates: Candidates, mutual: bool, keys: RoundKeys
) -> _View:
    ids, seed, t = keys.ids, keys.seed, keys.t
    n, prior = beliefs.n, BetaPosterior(*(np.array([float(p)]) for p in (*beliefs.prior, 0.0)))
    seen = BetaPosterior(beliefs.prior[0] + beliefs.gain, beliefs.prior[1] + beliefs.loss, beliefs.count)
    explores = np.zeros(n, dtype=bool)
    if config.policy != "random":
        chance = epsilon(config.eps_schedule, config.epsilon, t, keys.horizon)
        explores = streams.uniforms(seed, "explore", t, ids) < chance
    return _View(
        table=np.zeros((0, 0), dtype=bool) if candidates.table is None else candidates.table,
        group=np.zeros(0, dtype=np.int64) if candidates.group is None else candidates.group.astype(np.int64),
        start=np.searchsorted(beliefs.key, np.arange(n + 1) * n).astype(np.int64),
        peer=beliefs.key % max(n, 1),
        score=peer_scores(config, seen, t),
        prior_score=float(peer_scores(config, prior, t)[0]),
        tau=float(config.tau_acc),
        mutual=mutual,
        proposer_check=config.proposer_check,
        ties=streams.bits(seed, "tie-break", t, ids),
        draws=streams.bits(seed, "explore-peer", t, ids),
        by_index=config.tie_break == "index",
        explores=explores,
        shape=streams.shape(n),
    )


def rank_by_beliefs(
    context: Context, config: Selection, beliefs: Beliefs, mutual: bool, t: int
) -> Preferences:
    """The matching by beliefs; ``context.derived`` has the candidate sets."""
    keys = RoundKeys(context.ids, context.seed, t, context.horizon)

    def trail(plan: MatchingPlan) -> Decisions:
        def numbers(center: Ints, peer: Ints) -> tuple[Floats, Floats, Floats]:
            belief = beliefs.posterior(center, peer)
            return peer_scores(config, belief, t), belief.mean, belief.count

        return _unlisted(plan).after(trail_of(plan, numbers))

    return Preferences(plan=match_by_beliefs(config, beliefs, context.derived, mutual, keys), trail=trail)


#: An :class:`Answer` in words.
_ANSWERS = np.array(["accepted", "full", "filtered", "declined"], dtype=object)

#: A :class:`Rest` in words.
_REASONS = np.array([rest.words or None for rest in Rest], dtype=object)


def repeat_word(word: str | None, count: int) -> Words:
    return np.full(count, word, dtype=object)


def trail_of(plan: MatchingPlan, numbers: Callable[[Ints, Ints], tuple[Floats, Floats, Floats]]) -> Decisions:
    """Each proposal, each answer, each rest; numbers: (center, peer) -> score, mean, count."""
    resting = np.flatnonzero(plan.rest != Rest.NOT)
    # A proposal is the center's decision, its answer the peer's: two rows, in that order.
    center = np.stack([plan.center, plan.peer], axis=1).ravel()
    peer = np.stack([plan.peer, plan.center], axis=1).ravel()
    what = np.stack([repeat_word("proposed", len(plan.answer)), _ANSWERS[plan.answer]], axis=1).ravel()
    nothing = np.full(len(resting), np.nan)
    score, mean, count = (np.concatenate([column, nothing]) for column in numbers(center, peer))
    return Decisions(
        center=np.concatenate([center, resting]),
        peer=np.concatenate([peer, np.full(len(resting), -1)]),
        decision=np.concatenate([what, repeat_word("rested", len(resting))]),
        score=score,
        mean=mean,
        count=count,
        reason=np.concatenate([repeat_word(None, len(what)), _REASONS[plan.rest[resting]]]),
    )


def _unlisted(plan: MatchingPlan) -> Decisions:
    """Proposals that a plan counts and does not list: one row per center and answer, with their number."""
    listed = np.bincount(4 * plan.center + plan.answer, minlength=4 * plan.n).reshape(plan.n, 4)
    more = plan.asked - listed
    center, answer = np.nonzero(more)
    nothing = np.full(len(center), np.nan)
    return Decisions(
        center=center,
        peer=np.full(len(center), -1),
        decision=_ANSWERS[answer],
        score=nothing,
        mean=nothing,
        count=nothing,
        reason=np.array([f"{number} proposals" for number in more[center, answer].tolist()], dtype=object),
    )
