"""Rankings and answers from beliefs, for methods whose centers become partners by mutual proposals.

Also the audit trail of a round of proposals: who asked whom, how the peer answered, and on which numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from abps.core import selection
from abps.core.beliefs import Beliefs
from abps.core.candidates import Candidates
from abps.core.matching import MatchingPlan, Rest
from abps.core.selection import RoundKeys, Selection
from abps.methods.base import Context, Decisions, Floats, Ints, Words
from abps.methods.large_matching import match_many
from abps.methods.peers import Preferences

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

    by_table = config.tie_break == "similarity" and found.table is not None
    if context.member_index is None and found.n > LISTED_UP_TO and not by_table:
        keys = RoundKeys(context.ids, context.seed, t, context.horizon)

        def plan() -> MatchingPlan:
            return match_many(config, beliefs, found, mutual, keys)

        return RankedPreferences(plan=plan, trail=trail, beliefs=beliefs)
    known = np.flatnonzero(context.known)
    mine = np.searchsorted(known, context.local_index)
    candidate, similarity = np.zeros((context.r, context.n), dtype=bool), None
    candidate[:, known] = found.rows(mine)
    if config.tie_break == "similarity":
        similarity = np.zeros((context.r, context.n))
        similarity[:, known] = found.similarity[mine]
    seen = selection.views(
        config,
        beliefs.rows(context.local_index),
        candidate,
        candidate if mutual else np.ones_like(candidate),
        similarity,
        RoundKeys(context.ids[context.local_index], context.seed, t, context.horizon),
    )
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
