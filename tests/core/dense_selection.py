"""One round of proposals from tables of all pairs: the oracle of selection without them."""

from __future__ import annotations

from abps.core.matching import MatchingPlan, propose, unwanted
from abps.core.selection import RoundKeys, turns, views


def select(config, beliefs, candidate, consent, ids, seed, t, horizon) -> MatchingPlan:
    """candidate, consent: (n, n)."""
    belief = beliefs.all_pairs()
    found = views(config, belief, candidate, consent, RoundKeys(ids, seed, t, horizon))
    order = turns(config, seed, t, ids).tolist()
    plan = propose(order, [ranking.tolist() for ranking in found.rankings], found.answer, config.kappa)
    return unwanted(plan, found.rankings, found.wanted)
