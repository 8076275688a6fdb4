"""Selection without tables of pairs: the same plans as from full tables, and what it keeps at scale."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.core import candidates as sets_of
from abps.core import goals, streams
from abps.core.beliefs import Beliefs
from abps.core.candidates import Candidates, candidates
from abps.core.errors import RequestError
from abps.core.selection import Selection, select
from abps.core.sparse_selection import select_sparsely


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
    }.get(kind, [goals.GOALS.get(kind)] * n)
    group = rng.integers(3, size=n) if draw(st.booleans()) else None
    keep, scope = draw(st.sampled_from([0.05, 0.25, 1.0])), draw(st.sampled_from(["global_pairs", "per_center"]))
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
        tie_break=draw(st.sampled_from(["random", "random", "index", "similarity"])),
        order=draw(st.sampled_from(["random", "index"])),
        explore_pool=draw(st.sampled_from(["all", "unproven"])),
        policy=draw(st.sampled_from(["ucb", "ucb", "random"])),
    )
    mutual, t, seed = draw(st.booleans()), draw(st.integers(1, 60)), draw(st.integers(0, 9))
    return n, (vectors, chosen, keep, scope, group), config, beliefs, mutual, seed, t


def both(n, sets, config, beliefs, mutual, seed, t):
    ids = streams.center_ids([f"c{i}" for i in range(n)])
    table, pairwise = candidates(*sets), candidates(*sets, table_up_to=0)
    assert table.table is not None and pairwise.table is None
    consent = table.table if mutual else np.ones((n, n), dtype=bool)
    dense = select(config, beliefs, table.table, consent, table.similarity, ids, seed, t, 50).plan
    return dense, [select_sparsely(config, beliefs, c, mutual, ids, seed, t, 50) for c in (pairwise, table)]


def agree(dense, sparse):
    assert sparse.pairs.tolist() == dense.pairs.tolist()
    assert sparse.rest.tolist() == dense.rest.tolist()
    assert sparse.asked.tolist() == dense.asked.tolist()
    assert sparse.proposals == len(dense.center)


@settings(max_examples=250, deadline=None)
@given(federations())
def test_the_same_plan_as_from_full_tables(federation):
    dense, plans = both(*federation)
    for sparse in plans:
        agree(dense, sparse)
