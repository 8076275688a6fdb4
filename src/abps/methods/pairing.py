"""Partners: how centers propose to each other, mix each other's models, and credit what partners contributed.

All centers at once. A center's coalition is a subset of its partners; its model is the average of its own
trained weights (exact) and its partners' weights as they arrived, on the shared columns; the private layers
are its own. Also the audit trail of a round of proposals: who asked whom, and on which numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from abps.core import credit, selection, streams
from abps.core.arrays import Weights
from abps.core.beliefs import Beliefs
from abps.core.goals import Candidates
from abps.core.matching import MatchingPlan, Rest
from abps.core.selection import RoundKeys, Selection
from abps.methods.base import Context, Decisions, Floats, Ints, Words
from abps.methods.large_matching import match_many
from abps.methods.peers import Preferences
from abps.models.metrics import Segments, labels_of
from abps.models.mixtures import mixtures

#: A utility of models on the rows of their owners: (logits, labels) -> (models,), larger is better.
Score = Callable[[Segments, Segments], Floats]


def flat(lists: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Lists side by side, and the length of each."""
    counts = np.array([len(each) for each in lists], dtype=np.int64)
    return np.concatenate([np.zeros(0, dtype=np.int64), *lists]), counts


def coalition(peers: Ints, mask: int) -> Ints:
    """The peers whose bit is set."""
    return peers[[p for p in range(len(peers)) if mask >> p & 1]]


def coalitions(who: Ints, partners: Ints) -> tuple[Ints, Ints, Ints]:
    """All coalitions but the whole of centers (c,) with k partners each (c, k), by mask: (owner, members,
    counts)."""
    k = partners.shape[1]
    inside, counts = flat([coalition(np.arange(k), mask) for mask in range((1 << k) - 1)])
    return np.repeat(who, (1 << k) - 1), partners[:, inside].ravel(), np.tile(counts, len(who))


@dataclass(frozen=True, eq=False)
class MixResult:
    """models: (r, P) every center's average with all of its partners.  validation, test: the predictions of
    these for their owners' rows."""

    models: Weights
    validation: Segments
    test: Segments


@dataclass(frozen=True, eq=False)
class PartnerExchange:
    """What the centers here have to mix in a round.

    trained: (r, P) own models.  arrived: (n, shared) what each member's partners received from it.
    weights: (n,) of the members in averages.  partners: of every center here, by member index.
    """

    context: Context
    trained: Weights
    arrived: Weights
    weights: Weights
    partners: Sequence[Ints]

    def mix(self) -> MixResult:
        """Average every center here with its partners."""
        data, own = self.context.data, self.weights[self.context.local_index]
        parts = mixtures(np.arange(self.context.r), *flat(self.partners), self.weights, own_weights=own)
        models, answers = self.context.learner.settle(self.trained, self.arrived, parts, data.held_out)
        return MixResult(models, *answers.split(data.validation.sizes))

    def utility(self, score: Score, owner: Ints, members: Ints, counts: Ints) -> Floats:
        """U_i(S): the score of every owner's average with a coalition, on the owner's validation rows."""
        rows, own = self.context.data.validation, self.weights[self.context.local_index]
        parts = mixtures(owner, members, counts, self.weights, own_weights=own)
        answers = self.context.learner.mixture_logits(self.trained, self.arrived, parts, rows)
        return score(answers, labels_of(rows, owner))


def shapley_credit(
    exchange: PartnerExchange, mixed: MixResult, score: Score, t: int, permutations: int, tolerance: float
) -> tuple[Ints, Ints, Floats]:
    """(center, peer, phi) the Shapley value of every partner for the score of a center's model.

    center: rows.  peer: member indices. Exact up to five partners; sampled above, with so many permutations
    per center, each cut off within ``tolerance`` of the whole.
    """
    partners = exchange.partners
    whole = score(mixed.validation, labels_of(exchange.context.data.validation))
    degree = np.array([len(mine) for mine in partners], dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    center, peer, phi = [none], [none], [np.zeros(0)]
    for k in np.unique(degree[(degree > 0) & (degree <= credit.EXACT_UP_TO)]).tolist():
        who = np.flatnonzero(degree == k)
        mine = np.stack([partners[i] for i in who.tolist()])
        parts = exchange.utility(score, *coalitions(who, mine)).reshape(len(who), -1)
        center.append(np.repeat(who, k))
        peer.append(mine.ravel())
        phi.append(credit.shapley(np.concatenate([parts, whole[who, None]], axis=1)).ravel())
    many = np.flatnonzero(degree > credit.EXACT_UP_TO)
    center.append(np.repeat(many, degree[many]))
    peer += [partners[i] for i in many.tolist()]
    phi += _sampled(exchange, many, score, t, permutations, tolerance)
    return np.concatenate(center), np.concatenate(peer), np.concatenate(phi)


def _sampled(
    exchange: PartnerExchange, many: Ints, score: Score, t: int, permutations: int, tolerance: float
) -> list[Floats]:
    """Sampled Shapley values of the partners of each center in ``many``."""
    context, found = exchange.context, [np.zeros(0)] * len(many)

    def sample(k: int) -> None:
        i = int(many[k])
        mine = exchange.partners[i]
        rng = streams.generator(context.seed, "permutations", t, int(context.ids[context.local_index[i]]))
        orders = np.stack([rng.permutation(len(mine)) for _ in range(permutations)])

        def ask(masks: list[int]) -> Floats:
            some = flat([coalition(mine, mask) for mask in masks])
            return exchange.utility(score, np.full(len(masks), i), *some)

        found[k] = credit.sampled_shapley(orders, ask, tolerance)

    context.learner.each(sample, len(many))
    return found


# ---------------------------------------------------------------- proposals


#: Centers up to which every proposal is listed in the audit trail; above, rejected ones are counted.
LISTED_UP_TO = 512


@dataclass(frozen=True, eq=False)
class RankedPreferences(Preferences):
    """Preferences, and the beliefs that they follow from."""

    beliefs: Beliefs = field(default_factory=lambda: Beliefs(0))


def rank_by_beliefs(
    context: Context, config: Selection, beliefs: Beliefs, mutual: bool, t: int
) -> RankedPreferences:
    """The preferences of the centers here; ``context.derived`` has the candidate sets.

    mutual: the receiver's goal must admit the proposer, too.
    """
    found: Candidates = context.derived

    def trail(plan: MatchingPlan) -> Decisions:
        def numbers(center: Ints, peer: Ints) -> tuple[Floats, Floats, Floats]:
            belief = beliefs.posterior(center, peer)
            return selection.peer_scores(config, belief, t), belief.mean, belief.count

        return _unlisted(plan).after(trail_of(plan, numbers))

    keys = RoundKeys(context.ids, context.seed, t, context.horizon)
    if found.n > LISTED_UP_TO:

        def plan() -> MatchingPlan:
            return match_many(config, beliefs, found, mutual, keys)

        return RankedPreferences(plan=plan, trail=trail, beliefs=beliefs)
    candidate = found.rows(np.arange(found.n))
    consent = candidate if mutual else np.ones_like(candidate)
    seen = selection.views(config, beliefs.all_pairs(), candidate, consent, keys)
    # Memory views hand out their numbers one by one: few turns look beyond the first of n.
    rankings = [listed.data for listed in seen.rankings]
    return RankedPreferences(rankings, seen.answer, seen.wanted, trail=trail, beliefs=beliefs)


#: An :class:`Answer` in words.
_ANSWERS = np.array(["accepted", "full", "filtered", "declined"], dtype=object)

#: A :class:`Rest` in words.
_REASONS = np.array([rest.words or None for rest in Rest], dtype=object)


def repeat_word(word: str | None, count: int) -> Words:
    """(count,) one word."""
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
