"""Selection among very many centers: the same plan as from full tables, without a table of all pairs.

The plan of :func:`abps.core.selection.views` and :func:`abps.core.matching.propose` from n × n arrays follows
from four facts:

* All peers that a center never observed have the prior's score. They are adjacent in its ranking, in the
  order of its tie-break, which can be evaluated at single places. Only observed peers with another score (the
  *odd* ones) stand elsewhere: few, and listed.
* Whether two centers would agree does not change during a round; only the set of centers with a free slot
  does, and it shrinks. So the first free and willing peers of many centers are looked up at once, and the
  turns run one after the other on these short lists. A list that runs out is looked up again.
* With few centers free, it is cheaper to look through them than through a ranking in which almost everybody
  is full. So the number of looks grows like n log n where centers find partners. (A center that rests has to
  look at every free center: k such centers cost k times the free ones.)
* The answers to proposals follow afterwards from the turn in which each peer became full.

The ε swap exchanges two peers in a ranking: the chosen one and the first. It is kept as that pair.
Ties are broken at random or by index: breaking them by similarity needs the table.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from abps.core import permutation, streams
from abps.core.beliefs import Beliefs, BetaPosterior
from abps.core.candidates import Candidates, Mask
from abps.core.errors import RequestError
from abps.core.matching import Answer, MatchingPlan, Rest
from abps.core.selection import Selection, epsilon, peer_scores, turns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Pairs that are looked at in one go: arrays of this size stay in a core's cache.
_AT_ONCE: Final = 1 << 14

#: Pairs of a block of rows against all centers.
_ROWS_AT_ONCE: Final = 1 << 20

#: Costs, in looks at a place of a ranking: of a free center in a block of them, and of one that agrees and
#: has to be put in order.
_FREE_COST: Final = 0.03
_AGREES_COST: Final = 1.6

#: Nobody: in place of a center's number.
_NOBODY: Final = -1


@dataclass(frozen=True, eq=False)
class _View:
    """The preferences of all centers in one round.

    tie: (n,) the keys of the random tie-break.  usual: the score of whoever was never observed.
    odd, odd_score: sorted pair numbers ``center * n + peer`` of observed pairs with another score, and it.
    chosen, first: (n,) the two peers that the ε swap exchanges, or nobody.
    """

    config: Selection
    candidates: Candidates
    mutual: bool
    tie: NDArray[np.uint64]
    usual: float
    odd: Ints
    odd_score: Floats
    chosen: Ints
    first: Ints

    @property
    def n(self) -> int:
        return self.candidates.n

    def score(self, center: Ints, peer: Ints) -> Floats:
        """(p,) the score of ``peer`` at ``center``."""
        result = np.full(len(center), self.usual)
        if len(self.odd):
            pair = center * self.n + peer
            at = np.minimum(np.searchsorted(self.odd, pair), len(self.odd) - 1)
            known = self.odd[at] == pair
            result[known] = self.odd_score[at[known]]
        return result

    @property
    def all_wanted(self) -> bool:
        """Whether every score reaches the threshold."""
        tau = self.config.tau_acc
        return self.usual >= tau and (not len(self.odd) or float(self.odd_score.min()) >= tau)

    def eligible(self, center: Ints, peer: Ints) -> Mask:
        """(p,) is ``peer`` in the ranking of ``center``?"""
        answer = self.candidates.admits(center, peer)
        if self.config.proposer_check and not self.all_wanted:
            answer &= self.score(center, peer) >= self.config.tau_acc
        return answer

    def usual_place(self, center: Ints, peer: Ints) -> Mask:
        """(p,) does ``peer`` stand among those with the usual score?"""
        return np.asarray(self.score(center, peer) == self.usual)

    def consents(self, center: Ints, peer: Ints) -> Mask:
        """(p,) does ``peer`` admit ``center``, which considers it?"""
        if not self.mutual or self.candidates.symmetric:
            return np.ones(len(center), dtype=bool)
        return self.candidates.admits(peer, center)

    def accepts(self, center: Ints, peer: Ints) -> Mask:
        """(p,) would ``peer`` accept ``center``, which considers it, if it had a place?"""
        answer = self.consents(center, peer)
        if not self.all_wanted:
            answer &= self.score(peer, center) >= self.config.tau_acc
        return answer

    def swapped(self, center: Ints, peer: Ints) -> Ints:
        """Who stands where ``peer`` would stand without exploration; broadcasts. Its own inverse."""
        chosen, first = self.chosen[center], self.first[center]
        if not (chosen >= 0).any():
            return peer
        return np.where(peer == chosen, first, np.where(peer == first, chosen, peer))

    def at(self, center: Ints, place: Ints) -> Ints:
        """Who stands at ``place`` in the tie-break's order of ``center``; broadcasts."""
        if self.config.tie_break == "random":
            return permutation.peer_at(place, self.tie[center], self.n)
        return np.broadcast_to(place, np.broadcast_shapes(center.shape, place.shape))

    def place(self, center: Ints, peer: Ints) -> Ints:
        """(p,) where ``peer`` stands in the tie-break's order of ``center``."""
        if self.config.tie_break == "random":
            return permutation.place_of(peer, self.tie[center], self.n)
        return peer

    def better(self, center: Ints) -> tuple[Ints, Ints]:
        """(center, peer) the peers above the usual score in the rankings of some centers, before any swap."""
        above = np.flatnonzero(self.odd_score > self.usual)
        wanted = np.zeros(self.n, dtype=bool)
        wanted[center] = True
        above = above[wanted[self.odd[above] // self.n]]
        i, j = np.divmod(self.odd[above], self.n)
        in_ranking = self.eligible(i, j)
        i, j, score = i[in_ranking], j[in_ranking], self.odd_score[above[in_ranking]]
        order = np.lexsort((self.place(i, j), -score, i))
        return i[order], j[order]

    def listed(self, who: Ints, pool: Ints, willing: bool = True, ordered: bool = True) -> tuple[Ints, Ints]:
        """(index into who, peer) everybody of ``pool`` in the rankings of ``who``.

        willing: only those who would accept.  ordered: best first.
        """
        index, peer = [], []
        for part in _parts(len(who), max(1, _ROWS_AT_ONCE // max(1, len(pool)))):
            r, c = np.nonzero(self.candidates.rows(who[part], pool))
            i, j = who[part][r], pool[c]
            if self.config.proposer_check and not self.all_wanted:
                keep = self.score(i, j) >= self.config.tau_acc
                r, i, j = r[keep], i[keep], j[keep]
            if willing:
                keep = self.accepts(i, j)
                r, i, j = r[keep], i[keep], j[keep]
            if ordered:
                natural = self.swapped(i, j)
                order = np.lexsort((self.place(i, natural), -self.score(i, natural), r))
                r, j = r[order], j[order]
            index.append(r + part.start)
            peer.append(j)
        return _joined(index), _joined(peer)


def select_sparsely(
    config: Selection,
    beliefs: Beliefs,
    candidates: Candidates,
    mutual: bool,
    ids: NDArray[np.uint64],
    seed: int,
    t: int,
    horizon: int,
) -> MatchingPlan:
    """One round of proposals among all centers; mutual: the receiver's goal must admit the proposer too.

    The plan lists the accepted proposals only; ``asked`` counts all of them.
    """
    if config.tie_break == "similarity":
        raise RequestError(
            f"tie_break=similarity compares all pairs and is not available for {beliefs.n:,} centers; "
            "choose random or index"
        )
    view = _view(config, beliefs, candidates, mutual, ids, seed, t)
    if config.policy != "random":
        chance = epsilon(config.eps_schedule, config.epsilon, t, horizon)
        explorers = np.flatnonzero(streams.uniforms(seed, "explore", t, ids) < chance)
        keys = streams.bits(seed, "explore-peer", t, ids)
        view = _explored(view, beliefs, explorers, keys)
    return _played(view, turns(config, seed, t, ids))


def _view(
    config: Selection,
    beliefs: Beliefs,
    candidates: Candidates,
    mutual: bool,
    ids: NDArray[np.uint64],
    seed: int,
    t: int,
) -> _View:
    prior = BetaPosterior(*(np.array([float(p)]) for p in (*beliefs.prior, 0.0)))
    usual = float(peer_scores(config, prior, t)[0])
    seen = BetaPosterior(beliefs.prior[0] + beliefs.gain, beliefs.prior[1] + beliefs.loss, beliefs.count)
    score = peer_scores(config, seen, t)
    odd = np.flatnonzero(score != usual)
    nobody = np.full(beliefs.n, _NOBODY)
    tie = streams.bits(seed, "tie-break", t, ids)
    return _View(config, candidates, mutual, tie, usual, beliefs.key[odd], score[odd], nobody, nobody)


def _explored(view: _View, beliefs: Beliefs, who: Ints, keys: NDArray[np.uint64]) -> _View:
    """The view with the swaps of the exploring centers: the first of its ranking and one drawn from it.

    Drawn is the first of the ranking (or of its unproven peers) in a random order of all centers.
    """
    n = view.n
    unproven = view.config.explore_pool == "unproven"

    def in_pool(i: Ints, j: Ints) -> Mask:
        answer = view.eligible(i, j)
        if unproven:
            answer &= beliefs.posterior(i, j).count == 0
        return answer

    drawn = _first(view, who, lambda i, place: permutation.peer_at(place, keys[i], n), in_pool)
    for k in np.flatnonzero(drawn == _UNKNOWN):
        j = view.listed(who[k : k + 1], np.arange(n), willing=False)[1]
        j = j[in_pool(np.full(len(j), who[k]), j)]
        drawn[k] = j[np.argmin(permutation.place_of(j, keys[who[k]], n))] if len(j) else _NOBODY
    who, drawn = who[drawn != _NOBODY], drawn[drawn != _NOBODY]

    def usual_and_eligible(i: Ints, j: Ints) -> Mask:
        return view.usual_place(i, j) & view.eligible(i, j)

    first = _first(view, who, view.at, usual_and_eligible)
    for k in np.flatnonzero(first == _UNKNOWN):
        first[k] = view.listed(who[k : k + 1], np.arange(n), willing=False)[1][0]
    i, j = view.better(who)
    head = np.flatnonzero(np.diff(i, prepend=-1))
    first[np.searchsorted(who, i[head])] = j[head]
    swaps = [np.full(n, _NOBODY), np.full(n, _NOBODY)]
    swaps[0][who], swaps[1][who] = drawn, first
    return replace(view, chosen=swaps[0], first=swaps[1])


#: Not found among the places that were looked at.
_UNKNOWN: Final = -2


def _first(
    view: _View, who: Ints, at: Callable[[Ints, Ints], Ints], test: Callable[[Ints, Ints], Mask]
) -> Ints:
    """(a,) the first peer in the order ``at`` that passes the test, among the first few hundred places."""
    n = view.n
    found = np.full(len(who), _UNKNOWN)
    start, width = 0, 8
    while start < min(n, 500) and (found == _UNKNOWN).any():
        todo = np.flatnonzero(found == _UNKNOWN)
        places = np.arange(start, min(n, start + width))
        for part in _parts(len(todo), max(1, _AT_ONCE // len(places))):
            rows = todo[part]
            i = np.repeat(who[rows], len(places))
            j = at(who[rows][:, None], places[None, :]).ravel()
            passes = test(i, j).reshape(len(rows), len(places))
            some = passes.any(axis=1)
            peers = j.reshape(passes.shape)[np.arange(len(rows)), passes.argmax(axis=1)]
            found[rows[some]] = peers[some]
        start, width = start + width, 2 * width
    return found


def _played(view: _View, order: Ints) -> MatchingPlan:
    """All turns, one after the other, on lists of free and willing peers that are made for many at once."""
    n, kappa = view.n, view.config.kappa
    load = array("q", bytes(8 * n))
    loads = np.frombuffer(load, dtype=np.int64)
    full_at = array("q", [n]) * n
    last = array("q", [_NOBODY]) * n  # with whom a center filled up in its own turn
    turn_of = np.empty(n, dtype=np.int64)
    turn_of[order] = np.arange(n)
    together: set[tuple[int, int]] = set()
    pairs: list[tuple[int, int]] = []
    had_turn = np.zeros(n, dtype=bool)
    share = 1.0  # of free peers who agree, as last seen

    def swap_places(i: int, listed: list[int], turn: int) -> None:
        for j in listed:
            if load[i] >= kappa:
                return
            if load[j] >= kappa or (i, j) in together:
                continue
            if kappa > 1:  # with one place, a partner is full and not asked again
                together.update(((i, j), (j, i)))
            pairs.append((i, j))
            for k in (i, j):
                load[k] += 1
                if load[k] == kappa:
                    full_at[k] = turn
            if load[i] == kappa:
                last[i] = j

    at = 0
    while at < n:
        free = loads < kappa
        room = np.flatnonzero(free)
        ahead = at + np.flatnonzero(free[order[at:]])[: max(32, len(room) // 16)]
        if not len(ahead):
            break
        who = order[ahead]
        lists, complete, share = _lists(view, who, free, room, share)
        for i, listed, whole in zip(who.tolist(), lists, complete.tolist()):
            if load[i] >= kappa:
                continue
            had_turn[i] = True
            swap_places(i, listed, int(turn_of[i]))
            while load[i] < kappa and not whole:
                free = loads < kappa
                (again,), (whole,), _ = _lists(view, np.array([i]), free, np.flatnonzero(free), share)
                swap_places(i, again, int(turn_of[i]))
        at = int(ahead[-1]) + 1
    made = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    asked = _asked(view, made, had_turn, turn_of, np.array(full_at), np.array(last))
    return MatchingPlan(
        n=n,
        pairs=made,
        center=made[:, 0],
        peer=made[:, 1],
        answer=np.full(len(made), Answer.ACCEPTED, dtype=np.int8),
        rest=_rest(view, loads, asked),
        asked=asked,
    )


def _lists(
    view: _View, who: Ints, free: Mask, room: Ints, share: float
) -> tuple[list[list[int]], Mask, float]:
    """For each of ``who`` the first peers of its ranking that are free and willing; whether these are all of
    them; and the share of free peers who are willing."""
    need = view.config.kappa + 1
    width = int(1.3 * need * view.n / (len(room) * share)) + 1
    complete = np.zeros(len(who), dtype=bool)
    usual_asked = view.usual >= view.config.tau_acc or not view.config.proposer_check
    limit = min(view.n, int(len(room) * (_FREE_COST + _AGREES_COST * share)))
    if width < limit and usual_asked:
        patience = int(2 * _FREE_COST * len(room))
        index, peer, short, share = _scanned(view, who, free, need, width, limit, patience)
    else:
        index = peer = np.zeros(0, dtype=np.int64)
        short = np.arange(len(who))
    if len(short):
        more, those = view.listed(who[short], room)
        total = np.bincount(more, minlength=len(short))
        starts = np.cumsum(total) - total
        # Only the first few are ever needed; a list that was not cut is known to be complete.
        kept = np.arange(len(more)) - starts[more] < need
        complete[short] = total <= need
        if len(short) == len(who):
            share = max(len(more) / (len(who) * len(room)), 1.0 / view.n)
        gone = np.isin(index, short)
        index = np.concatenate([index[~gone], short[more[kept]]])
        peer = np.concatenate([peer[~gone], those[kept]])
        order = np.argsort(index, kind="stable")
        index, peer = index[order], peer[order]
    ends = np.cumsum(np.bincount(index, minlength=len(who))).tolist()
    flat = peer.tolist()
    return [flat[a:b] for a, b in zip([0, *ends], ends)], complete, share


def _scanned(
    view: _View, who: Ints, free: Mask, need: int, width: int, limit: int, patience: int
) -> tuple[Ints, Ints, Ints, float]:
    """Look down the rankings until enough are found: (index, peer, who found too few, share of the willing).

    The better-than-usual peers come first, then the places of the tie-break: up to ``limit``, and up to
    ``patience`` for whoever found nobody.
    """
    number = np.empty(view.n, dtype=np.int64)
    number[who] = np.arange(len(who))
    i, natural = view.better(who)
    j = view.swapped(i, natural)
    ok = free[j]
    ok[ok] = view.accepts(i[ok], j[ok])
    index, peer = [number[i[ok]]], [j[ok]]
    count = np.bincount(index[0], minlength=len(who))
    todo = np.flatnonzero(count < need)
    start, looked, hits = 0, 0, 0
    while len(todo) and start < limit:
        stop = min(limit, start + width)
        places = np.arange(start, stop)
        for part in _parts(len(todo), max(1, _AT_ONCE // len(places))):
            rows = todo[part]
            centers = who[rows][:, None]
            x = view.at(centers, places[None, :])
            y = view.swapped(centers, x)
            r, c = np.nonzero(free[y])
            i, natural, j = who[rows[r]], x[r, c], y[r, c]
            looked += len(i)
            ok = view.eligible(i, natural)
            r, i, natural, j = r[ok], i[ok], natural[ok], j[ok]
            ok = view.usual_place(i, natural) & view.accepts(i, j)
            hits += int(ok.sum())
            index.append(rows[r[ok]])
            peer.append(j[ok])
            count += np.bincount(index[-1], minlength=len(who))
        missing = np.flatnonzero(count < need)
        start, width = stop, 2 * width
        todo = missing[(count[missing] > 0) | (start < patience)]
    index_, peer_ = _joined(index), _joined(peer)
    order = np.argsort(index_, kind="stable")  # better ones first, then place by place
    share = max(hits, 1) / max(looked, 1)
    return index_[order], peer_[order], np.flatnonzero(count < need), share


def _asked(view: _View, made: Ints, had_turn: Mask, turn_of: Ints, full_at: Ints, last: Ints) -> Ints:
    """(n, 4) how many proposals each center made, by :class:`Answer`, derived from who was full when."""
    n = view.n
    asked = np.zeros(4 * n, dtype=np.int64)
    exhausted = np.flatnonzero(had_turn & (last == _NOBODY))
    in_vain = np.zeros(0, dtype=np.int64)
    if view.all_wanted and (view.candidates.symmetric or not view.mutual):
        # Any free candidate would have accepted: whoever was asked in vain was full.
        exhausted, in_vain = in_vain, exhausted
    agreed = np.sort(made[:, 0] * n + made[:, 1])
    for i, j in _proposals(view, np.flatnonzero(last != _NOBODY), last, exhausted):
        if view.config.kappa > 1:
            granted = _contains(agreed, j * n + i) & (turn_of[j] < turn_of[i])  # a partner already: not asked
            i, j = i[~granted], j[~granted]
        answer = np.full(len(i), int(Answer.FULL))
        there = np.flatnonzero(full_at[j] >= turn_of[i])
        answer[there] = np.where(view.consents(i[there], j[there]), Answer.DECLINED, Answer.FILTERED)
        answer[there[_contains(agreed, i[there] * n + j[there])]] = Answer.ACCEPTED
        asked += np.bincount(4 * i + answer, minlength=4 * n)
    table = asked.reshape(n, 4)
    table[in_vain, Answer.ACCEPTED] = np.bincount(made[:, 0], minlength=n)[in_vain]
    table[in_vain, Answer.FULL] = (
        view.candidates.sizes(in_vain) - _partners_by_then(view, made, turn_of)[in_vain]
    )
    return table


def _proposals(view: _View, filled: Ints, last: Ints, exhausted: Ints) -> Iterator[tuple[Ints, Ints]]:
    """(center, peer) whom centers asked: down to the last partner that filled them up, or everybody."""
    n = view.n
    stop = view.swapped(filled, last[filled])
    level, place = view.score(filled, stop), view.place(filled, stop)
    # Near the top: look at the places up to there. Far down: go through the whole row.
    near = (level > view.usual) | ((level == view.usual) & (place < n // 4))
    yield from _near(view, filled[near], stop[near], np.where(level[near] > view.usual, -1, place[near]))
    everyone = np.arange(n)
    far = filled[~near]
    step = max(1, _ROWS_AT_ONCE // max(1, n))
    for part in _parts(len(far), step):
        k, j = view.listed(far[part], everyone, willing=False)
        end = np.flatnonzero(j == last[far[part]][k])
        ahead = np.arange(len(k)) <= end[k]
        yield far[part][k[ahead]], j[ahead]
    for part in _parts(len(exhausted), step):
        k, j = view.listed(exhausted[part], everyone, willing=False, ordered=False)
        yield exhausted[part][k], j


def _near(view: _View, who: Ints, stop: Ints, place: Ints) -> Iterator[tuple[Ints, Ints]]:
    """(center, peer) the rankings of ``who`` down to the peers ``stop``, which stand at ``place`` of the
    tie-break, or at -1 among the better-than-usual."""
    number = np.full(view.n, -1)
    number[who] = np.arange(len(who))
    i, natural = view.better(who)
    at_stop = np.flatnonzero(natural == stop[number[i]])
    end = np.full(len(who), len(i))
    end[number[i[at_stop]]] = at_stop
    ahead = np.arange(len(i)) <= end[number[i]]
    yield i[ahead], view.swapped(i[ahead], natural[ahead])
    who, length = who[place >= 0], place[place >= 0] + 1
    ends = np.cumsum(length)
    for part in _runs(ends, 4 * _AT_ONCE):
        centers = np.repeat(who[part], length[part])
        starts = np.repeat(ends[part] - length[part], length[part])
        places = np.arange(len(centers)) + (ends[part.start] - length[part.start]) - starts
        natural = view.at(centers, places)
        inside = view.eligible(centers, natural)
        i, natural = centers[inside], natural[inside]
        inside = view.usual_place(i, natural)
        i, natural = i[inside], natural[inside]
        yield i, view.swapped(i, natural)


def _partners_by_then(view: _View, made: Ints, turn_of: Ints) -> Ints:
    """(n,) how many of its candidates were a center's partners when its own turn ended."""
    asker, other = made[:, 0], made[:, 1]
    before = (turn_of[asker] < turn_of[other]) & view.candidates.admits(other, asker)
    return np.bincount(asker, minlength=view.n) + np.bincount(other[before], minlength=view.n)


def _rest(view: _View, load: Ints, asked: Ints) -> NDArray[np.int8]:
    """(n,) why a center has no partner, from the answers that it got."""
    rest = np.full(view.n, Rest.NO_CANDIDATES, dtype=np.int8)
    rest[asked[:, Answer.FULL] > 0] = Rest.ALL_FULL
    rest[asked[:, Answer.DECLINED] > 0] = Rest.DECLINED
    if view.config.proposer_check:
        idle = np.flatnonzero((load == 0) & (asked.sum(axis=1) == 0))
        rest[idle[view.candidates.sizes(idle) > 0]] = Rest.DECLINED  # it wanted none of its candidates
    rest[load > 0] = Rest.NOT
    return rest


def _contains(ordered: Ints, wanted: Ints) -> Mask:
    """(p,) is ``wanted[p]`` among the sorted numbers?"""
    if not len(ordered):
        return np.zeros(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.asarray(ordered[at] == wanted)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _parts(count: int, step: int) -> Iterator[slice]:
    """0..count in slices of at most ``step``."""
    return (slice(at, min(count, at + step)) for at in range(0, count, step))


def _runs(ends: Ints, size: int) -> Iterator[slice]:
    """Slices of items whose lengths, with these running totals, add up to about ``size``."""
    at, done = 0, 0
    while at < len(ends):
        stop = max(at + 1, int(np.searchsorted(ends, done + size, side="right")))
        yield slice(at, stop)
        at, done = stop, int(ends[stop - 1])
