"""Propose and reject: invariants for any rankings and any tempers."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abps.core import streams
from abps.core.beliefs import Beliefs
from abps.core.matching import Answer, Rest, propose
from abps.core.selection import Selection
from core.dense_selection import select


@st.composite
def worlds(draw):
    n = draw(st.integers(1, 9))
    rankings = [draw(st.permutations([j for j in range(n) if j != i]).map(lambda p: p)) for i in range(n)]
    rankings = [r[: draw(st.integers(0, len(r)))] for r in rankings]
    tempers = {
        (j, i): draw(st.sampled_from([Answer.ACCEPTED, Answer.ACCEPTED, Answer.DECLINED, Answer.FILTERED]))
        for i in range(n)
        for j in range(n)
    }
    return n, rankings, tempers, draw(st.permutations(range(n))), draw(st.integers(1, 4))


@given(worlds())
def test_plans_are_symmetric_within_capacity_and_explained(context):
    n, rankings, tempers, order, kappa = context
    plan = propose(order, rankings, lambda j, i: tempers[j, i], kappa)
    partners = plan.partners()
    for i in range(n):
        assert len(partners[i]) <= kappa
        assert len(set(partners[i].tolist())) == len(partners[i])
        assert all(i in partners[j] for j in partners[i])
        assert i not in partners[i]
    assert (plan.degrees() == [len(p) for p in partners]).all()
    # Every pair was accepted by the side that was asked; every rest has a true reason.
    accepted = [(i, j) for i, j, a in zip(plan.center, plan.peer, plan.answer) if a == Answer.ACCEPTED]
    assert [tuple(p) for p in plan.pairs.tolist()] == accepted
    for i in range(n):
        received = {Answer(a) for c, a in zip(plan.center, plan.answer) if c == i}
        if len(partners[i]):
            assert plan.rest[i] == Rest.NOT
        elif Answer.DECLINED in received:
            assert plan.rest[i] == Rest.DECLINED
        elif Answer.FULL in received:
            assert plan.rest[i] == Rest.ALL_FULL
        else:
            assert plan.rest[i] == Rest.NO_CANDIDATES
            assert received <= {Answer.FILTERED}


@given(worlds())
def test_nobody_who_could_be_matched_is_left_while_willing(context):
    n, rankings, tempers, order, kappa = context
    plan = propose(order, rankings, lambda j, i: tempers[j, i], kappa)
    load, partners = plan.degrees(), plan.partners()
    for i in range(n):
        for j in rankings[i]:
            open_pair = load[i] < kappa and load[j] < kappa and j not in partners[i]
            assert not (open_pair and tempers[j, i] == Answer.ACCEPTED)


def everyone(n):
    return ~np.eye(n, dtype=bool)


def run(config, beliefs, t=5, seed=1, candidate=None, consent=None):
    n = beliefs.n
    ids = streams.center_ids([f"c{i}" for i in range(n)])
    mask = everyone(n) if candidate is None else candidate
    return select(config, beliefs, mask, mask if consent is None else consent, ids, seed, t, 50)


def test_without_a_filter_one_partner_each_is_a_perfect_matching():
    for n in (10, 11):
        plan = run(Selection(kappa=1), Beliefs(n))
        assert len(plan.pairs) == n // 2


def test_three_partners_each_fill_all_places():
    plan = run(Selection(kappa=3), Beliefs(40))
    assert plan.degrees().mean() > 2.9


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
    n = 3
    candidate = everyone(n)
    consent = everyone(n)
    consent[2] = False
    plan = run(Selection(kappa=2, order="index"), Beliefs(n), candidate=candidate, consent=consent)
    assert not any(j == 2 and a == Answer.ACCEPTED for j, a in zip(plan.peer, plan.answer))


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
