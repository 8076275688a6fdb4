"""Proposals by beliefs: the same plans as from full tables, and what is kept at scale."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.core import goals, streams
from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError
from abps.core.goals import TABLE_UP_TO, Candidates, candidates
from abps.core.selection import RoundKeys, Selection
from abps.methods.proposals import match_by_beliefs
from core.dense_selection import select


def nearest_last(centers, peers):
    return -np.abs(centers[:, None, -1] - peers[None, :, -1])


def metadata(n, rng, coarse):
    v = rng.random((n, 4)) + 0.1
    return np.round(v, 1) if coarse else v  # coarse: many pairs of one score


@st.composite
def federations(draw):
    n = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    vectors = metadata(n, rng, draw(st.booleans()))
    kind = draw(st.sampled_from(["none", "homogeneity", "diversity", "alignment", "own", "mixed"]))
    known = [goals.homogeneity, goals.diversity, goals.alignment, goals.anybody, nearest_last]
    chosen = {
        "none": None,
        "own": [nearest_last] * n,
        "mixed": [known[k] for k in rng.integers(5, size=n)],
    }.get(kind, [goals.GOALS.builtin.get(kind)] * n)
    group = rng.integers(3, size=n) if draw(st.booleans()) else None
    keep = draw(st.sampled_from([0.05, 0.25, 1.0]))
    scope = draw(st.sampled_from(["global_pairs", "per_center"]))
    prior = draw(st.sampled_from([(1.0, 1.0), (0.5, 2.0), (3.0, 1.0)]))
    beliefs = Beliefs(n, prior)
    met = draw(st.integers(0, 6 * n)) if n > 1 else 0
    for _ in range(3):
        i, j = rng.integers(n, size=met), rng.integers(n, size=met)
        value = rng.choice([0.0, 0.5, 1.0, 0.3], size=met)
        beliefs = beliefs.observe(i[i != j], j[i != j], value[i != j])
    config = Selection(
        kappa=draw(st.integers(1, 4)),
        gamma=draw(st.sampled_from([0.0, 0.05, 0.3, np.sqrt(2), 1000.0])),
        epsilon=draw(st.sampled_from([0.0, 0.1, 0.7, 1.0])),
        tau_acc=draw(st.sampled_from([0.5, 0.45, 0.6, 0.9])),
        prior=prior,
        proposer_check=draw(st.booleans()),
        tie_break=draw(st.sampled_from(["random", "random", "index"])),
        order=draw(st.sampled_from(["random", "index"])),
        policy=draw(st.sampled_from(["ucb", "ucb", "random"])),
    )
    mutual, t, seed = draw(st.booleans()), draw(st.integers(1, 60)), draw(st.integers(0, 9))
    return n, (vectors, chosen, keep, scope, group), config, beliefs, mutual, seed, t


def both(n, sets, config, beliefs, mutual, seed, t):
    ids = streams.center_ids([f"c{i}" for i in range(n)])
    vectors, chosen, keep, scope, group = sets
    own = Candidates() if chosen is None else candidates(vectors, chosen, keep, scope)
    table = ~np.eye(n, dtype=bool) if own.table is None else own.table
    if group is not None:
        table = table & (group[:, None] == group[None, :])
    consent = table if mutual else np.ones((n, n), dtype=bool)
    dense = select(config, beliefs, table, consent, ids, seed, t, 50)
    keys = RoundKeys(ids, seed, t, 50)
    return dense, match_by_beliefs(config, beliefs, replace(own, group=group), mutual, keys)


def agree(dense, sparse):
    for name in ("pairs", "rest", "asked", "center", "peer", "answer"):
        assert getattr(sparse, name).tolist() == getattr(dense, name).tolist()


@settings(max_examples=120, deadline=None)
@given(federations())
def test_the_same_plan_as_from_full_tables(federation):
    agree(*both(*federation))


LARGE = [
    ("homogeneity", {}, True),
    ("homogeneity", {"kappa": 3, "gamma": 0.3, "epsilon": 0.5}, True),
    ("diversity", {"tau_acc": 0.55, "gamma": 0.05}, False),
    ("mixed", {"kappa": 2, "epsilon": 1.0}, True),
    ("mixed", {"gamma": 0.1, "proposer_check": True, "tau_acc": 0.52}, True),
    (None, {"policy": "random"}, True),
]


@pytest.mark.parametrize(("goal", "settings_", "mutual"), LARGE)
def test_many_centers_round_after_round(goal, settings_, mutual):
    n, rng = 300, np.random.default_rng(7)
    vectors = metadata(n, rng, coarse=False)
    known = [goals.homogeneity, goals.diversity, goals.alignment, goals.anybody]
    chosen = None if goal is None else [goals.GOALS.builtin.get(goal, known[k % 4]) for k in range(n)]
    config, beliefs = Selection(**{"kappa": 1} | settings_), Beliefs(n)
    for t in range(1, 6):
        sets = (vectors, chosen, 0.1, "per_center" if t % 2 else "global_pairs", None)
        dense, sparse = both(n, sets, config, beliefs, mutual, 3, t)
        agree(dense, sparse)
        i, j = np.concatenate([dense.pairs, dense.pairs[:, ::-1]]).T
        beliefs = beliefs.observe(i, j, rng.random(len(i)))


def test_goals_need_a_table_of_pairs():
    many = np.ones((TABLE_UP_TO + 1, 2))
    with pytest.raises(RequestError, match="up to 4,096 centers, not 4,097"):
        candidates(many, [goals.homogeneity] * len(many), 0.25, "global_pairs")


def test_two_centers_agree_whether_they_are_alike():
    vectors = metadata(300, np.random.default_rng(5), coarse=True)
    score = goals.homogeneity(vectors, vectors)
    assert (score == score.T).all()
    assert (score[10:20, 50:51] == goals.homogeneity(vectors[10:20], vectors[50:51])).all()


def test_memory_does_not_grow_with_pairs():
    """12,000 centers: a table of pairs with one byte each would be 144 MB."""
    import tracemalloc

    n = 12_000
    ids = streams.bits(0, "generate", 0, np.arange(n))
    tracemalloc.start()
    plan = match_by_beliefs(Selection(kappa=1), Beliefs(n), Candidates(), True, RoundKeys(ids, 1, 1, 50))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(plan.pairs) == n // 2 and len(plan.center) == len(plan.pairs)
    assert peak < 70e6
