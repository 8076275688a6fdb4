"""Selection without tables of pairs: the same plans as from full tables, and what it keeps at scale."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.core import goals, streams
from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError
from abps.core.goals import TABLE_UP_TO, candidates
from abps.core.selection import RoundKeys, Selection
from abps.methods.large_matching import match_many
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
    table, pairwise = candidates(*sets), candidates(*sets, table_up_to=0)
    assert table.table is not None and pairwise.table is None
    consent = table.table if mutual else np.ones((n, n), dtype=bool)
    dense = select(config, beliefs, table.table, consent, ids, seed, t, 50)
    own = sets[1] is not None and nearest_last in sets[1]  # needs the table
    return dense, [
        match_many(config, beliefs, c, mutual, RoundKeys(ids, seed, t, 50))
        for c in ((table,) if own else (pairwise, table))
    ]


def agree(dense, sparse):
    assert sparse.pairs.tolist() == dense.pairs.tolist()
    assert sparse.rest.tolist() == dense.rest.tolist()
    assert sparse.asked.tolist() == dense.asked.tolist()
    assert sparse.proposals == len(dense.center)


@settings(max_examples=120, deadline=None)
@given(federations())
def test_the_same_plan_as_from_full_tables(federation):
    dense, plans = both(*federation)
    for sparse in plans:
        agree(dense, sparse)


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
        dense, plans = both(
            n,
            (vectors, chosen, 0.1, "per_center" if t % 2 else "global_pairs"),
            config,
            beliefs,
            mutual,
            3,
            t,
        )
        for sparse in plans:
            agree(dense, sparse)
        i, j = np.concatenate([dense.pairs, dense.pairs[:, ::-1]]).T
        beliefs = beliefs.observe(i, j, rng.random(len(i)))


def test_thresholds_from_a_sample_keep_nearly_the_share(monkeypatch):
    rng = np.random.default_rng(2)
    vectors = metadata(900, rng, coarse=False)
    chosen = [goals.homogeneity if k % 3 else goals.alignment for k in range(900)]
    scores = goals.pair_scores(vectors, chosen)
    monkeypatch.setattr(goals, "SAMPLED_PEERS", 450)
    for scope, tolerance in (("global_pairs", 0.002), ("per_center", 0.1)):  # four standard errors and more
        sampled = goals.sampled_thresholds(vectors, chosen, 0.25, scope)
        kept = goals.admitted(scores, sampled).mean(axis=1)
        share = [kept[rows].mean() for rows in goals.same_goal(chosen)] if scope == "global_pairs" else kept
        assert np.abs(np.array(share) - 0.25).max() < tolerance
        again = goals.sampled_thresholds(vectors, chosen, 0.25, scope)
        assert (sampled == again).all()


def test_rows_without_a_table_are_those_of_the_table():
    rng = np.random.default_rng(4)
    vectors = metadata(150, rng, coarse=True)
    group = rng.integers(2, size=150)
    for goal in (*goals.GOALS.builtin.values(), goals.anybody, nearest_last):
        table = candidates(vectors, [goal] * 150, 0.3, "per_center", group)
        pairwise = candidates(vectors, [goal] * 150, 0.3, "per_center", group, table_up_to=0)
        some = np.arange(0, 150, 7)
        assert (pairwise.rows(some) == table.table[some]).all()


def test_own_goals_need_the_table():
    many = np.ones((TABLE_UP_TO + 1, 2))
    with pytest.raises(RequestError, match="up to 4,096 centers, not 4,097"):
        candidates(many, [nearest_last] * len(many), 0.25, "global_pairs")


def test_two_centers_agree_whether_they_are_alike():
    vectors = metadata(300, np.random.default_rng(5), coarse=True)
    score = goals.homogeneity(vectors, vectors)
    assert (score == score.T).all()
    assert (score[10:20, 50:51] == goals.homogeneity(vectors[10:20], vectors[50:51])).all()


def test_memory_does_not_grow_with_pairs():
    """12,000 centers: a table of pairs with one byte each would be 144 MB."""
    import tracemalloc

    n = 12_000
    vectors = metadata(n, np.random.default_rng(6), coarse=False)
    ids = streams.bits(0, "generate", 0, np.arange(n))
    tracemalloc.start()
    sets = candidates(vectors, [goals.homogeneity] * n, 0.25, "global_pairs")
    plan = match_many(Selection(kappa=1), Beliefs(n), sets, True, RoundKeys(ids, 1, 1, 50))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sets.table is None and len(plan.pairs) > 0.49 * n
    assert peak < 70e6
    kept = sets.rows(np.arange(0, n, 100)).sum() / (120 * (n - 1))
    assert abs(kept - 0.25) < 0.02  # the mean of 200 centers' own shares
