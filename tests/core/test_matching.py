"""Propose and reject: invariants for any rankings, and what beliefs do to the matching."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abps.core import streams
from abps.core.beliefs import Beliefs
from abps.core.goals import Candidates
from abps.core.matching import Answer, Rest, propose
from abps.core.selection import RoundKeys, Selection
from abps.methods.proposals import match_by_beliefs
from core import dense_selection


@st.composite
def worlds(draw):
    n = draw(st.integers(1, 9))
    rankings = [draw(st.permutations([j for j in range(n) if j != i]).map(lambda p: p)) for i in range(n)]
    rankings = [r[: draw(st.integers(0, len(r)))] for r in rankings]
    return n, rankings, draw(st.permutations(range(n))), draw(st.integers(1, 4))


@given(worlds())
def test_plans_are_symmetric_within_capacity_and_explained(world):
    n, rankings, order, kappa = world
    plan = propose(order, rankings, kappa)
    degree = np.bincount(plan.pairs.ravel(), minlength=n)
    assert (degree <= kappa).all() and (plan.pairs[:, 0] != plan.pairs[:, 1]).all()
    assert len({frozenset(pair) for pair in plan.pairs.tolist()}) == len(plan.pairs)
    for i in range(n):
        received = {Answer(a) for c, a in zip(plan.center, plan.answer) if c == i}
        full = Rest.ALL_FULL if Answer.FULL in received else Rest.NO_CANDIDATES
        assert plan.rest[i] == (Rest.NOT if degree[i] else full)
        for j in rankings[i]:  # nobody who could be matched is left
            met = [i, j] in plan.pairs.tolist() or [j, i] in plan.pairs.tolist()
            assert met or degree[i] == kappa or degree[j] == kappa


@given(worlds())
def test_the_same_plan_as_the_oracle(world):
    _, rankings, order, kappa = world
    plan = propose(order, rankings, kappa)
    want = dense_selection.propose(order, rankings, lambda j, i: Answer.ACCEPTED, kappa)
    for name in ("pairs", "center", "peer", "answer", "rest", "asked"):
        assert getattr(plan, name).tolist() == getattr(want, name).tolist()


def everyone(n):
    return ~np.eye(n, dtype=bool)


def run(config, beliefs, t=5, seed=1, table=None):
    ids = streams.center_ids([f"c{i}" for i in range(beliefs.n)])
    return match_by_beliefs(config, beliefs, Candidates(table), True, RoundKeys(ids, seed, t, 50))


def test_without_a_filter_one_partner_each_is_a_perfect_matching():
    for n in (10, 11):
        plan = run(Selection(kappa=1), Beliefs(n))
        assert len(plan.pairs) == n // 2


def test_three_partners_each_fill_all_places():
    plan = run(Selection(kappa=3), Beliefs(40))
    assert 2 * len(plan.pairs) / 40 > 2.9


def test_a_harmful_peer_is_declined_at_small_gamma_and_never_at_the_papers():
    n = 4
    i, j = np.nonzero(everyone(n))
    beliefs = Beliefs(n)
    for _ in range(10):
        beliefs = beliefs.observe(i, j, np.where(j == 0, 0.0, 0.6))
    bold = run(Selection(kappa=1, gamma=0.1, epsilon=0.0, order="index"), beliefs)
    assert Answer.DECLINED in bold.answer.tolist()
    literal = run(Selection(kappa=1, gamma=math.sqrt(2), order="index"), beliefs)
    assert Answer.DECLINED not in literal.answer.tolist()


def test_a_center_prefers_what_it_believes_in():
    n = 6
    beliefs = Beliefs(n)
    i, j = np.nonzero(everyone(n))
    for _ in range(30):
        beliefs = beliefs.observe(i, j, np.where((i // 2) == (j // 2), 0.9, 0.5))
    plan = run(Selection(kappa=1, gamma=0.05, epsilon=0.0), beliefs)
    assert sorted(tuple(sorted(p)) for p in plan.pairs.tolist()) == [(0, 1), (2, 3), (4, 5)]


def test_proposer_check_rests_rather_than_asking():
    beliefs = Beliefs(2)
    for _ in range(20):
        beliefs = beliefs.observe([0, 1], [1, 0], [0.0, 1.0])
    plan = run(Selection(kappa=1, gamma=0.05, epsilon=0.0, proposer_check=True, order="index"), beliefs)
    assert plan.rest[0] == Rest.DECLINED and len(plan.pairs) == 0
    assert plan.answer.tolist() == [Answer.DECLINED]  # center 1 asked center 0 and was declined


def test_consent_is_the_receivers():
    table = everyone(3)
    table[2] = False
    plan = run(Selection(kappa=2, order="index"), Beliefs(3), table=table)
    assert not any(j == 2 and a == Answer.ACCEPTED for j, a in zip(plan.peer, plan.answer))
    assert Answer.FILTERED in plan.answer.tolist()


def test_exploration_swaps_the_first_with_a_random_candidate():
    n = 50
    i, j = np.nonzero(everyone(n))
    beliefs = Beliefs(n).observe(i, j, np.where(j == (i + 1) % n, 1.0, 0.5))
    firsts = []
    for seed in range(40):
        plan = run(Selection(kappa=1, gamma=0.0, epsilon=1.0, order="index"), beliefs, seed=seed)
        firsts.append(int(plan.peer[0]))
    assert len(set(firsts)) > 15
    plan = run(Selection(kappa=1, gamma=0.0, epsilon=0.0, order="index"), beliefs)
    assert plan.peer[0] == 1


def test_ties_by_index_and_turns_by_index_are_plain():
    plan = run(Selection(kappa=1, tie_break="index", order="index", epsilon=0.0), Beliefs(4))
    assert plan.pairs.tolist() == [[0, 1], [2, 3]]
