"""DeceFL, D-PSGD and the graphs they run on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.core import matching
from abps.core.arrays import repeated
from abps.lab.rivals import choosing
from abps.lab.rivals.gossip import DeceFL
from abps.methods.catalog import CATALOG
from abps.methods.fedavg import FedAvg
from abps.models.training import Training


def matrix(method: DeceFL, here) -> np.ndarray:
    """M, read off by mixing unit vectors."""
    edges = method.edges(here, 1)
    to, by = matching.both_ways(edges)
    weight = np.full(len(to), 1.0 / (np.bincount(edges.ravel(), minlength=here.n).max() + 1))
    unit = np.eye(here.n, dtype=np.float32)
    return choosing.combine(unit, unit, to, by, weight).astype(np.float64)


@pytest.mark.parametrize("graph", ["ring", "changing-ring", "complete"])
def test_mixing_is_symmetric_doubly_stochastic_and_connected(context, graph) -> None:
    here = context(Training())
    m = matrix(DeceFL(graph=graph), here)
    np.testing.assert_allclose(m, m.T, atol=1e-7)
    np.testing.assert_allclose(m.sum(1), 1, atol=1e-6)
    assert m.min() >= -1e-7
    assert (np.linalg.matrix_power(m, here.n) > 0).all()
    if graph == "ring":
        assert sorted(np.round(m[0], 6)) == sorted(np.round([1 / 3, 1 / 3, 1 / 3, 0, 0, 0], 6))


def test_on_a_complete_graph_one_step_is_averaged_descent(context, play, one_step) -> None:
    """Adapt-then-combine is gradient descent on the mean loss; the method's own order has that mean."""
    here = context(one_step)
    w = here.learner.start
    for _ in range(3):
        w = w - 0.1 * here.learner.gradient(repeated(w, here.n), here.data.train).mean(0)
    combined = play(DeceFL(training=one_step, graph="complete", order="adapt-then-combine"), here, 3)[-1]
    np.testing.assert_allclose(combined.models, repeated(w, here.n), rtol=1e-4, atol=1e-6)
    states = play(DeceFL(training=one_step, graph="complete"), here, 3)
    for before, after in itertools.pairwise(states):
        slope = here.learner.gradient(before.models, here.data.train)
        wanted = before.models.mean(0) - 0.1 * slope  # the mean of all, and the own step only
        np.testing.assert_allclose(after.models, wanted, rtol=1e-4, atol=1e-6)


def test_combining_trained_models_on_a_complete_graph_is_uniform_fedavg(context, play) -> None:
    here = context(Training())
    np.testing.assert_allclose(
        play(DeceFL(graph="complete", order="adapt-then-combine"), here, 1)[-1].models,
        play(FedAvg(weighting="uniform"), here, 1)[-1].models,
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("graph", ["ring", "changing-ring", "complete"])
@pytest.mark.parametrize("name", ["decefl", "dpsgd"])
def test_the_mean_moves_by_the_mean_displacement_only(context, play, name, graph) -> None:
    config = CATALOG[name].config
    here = context(config.training)
    before, after = play(DeceFL(training=config.training, graph=graph), here, 2)[-2:]
    moved = here.learner.train(before.models, 2) - before.models
    np.testing.assert_allclose(after.models.mean(0), (before.models + moved).mean(0), rtol=1e-5, atol=1e-6)


def test_what_a_neighbour_learns_arrives_a_round_later(context, play) -> None:
    """In round 1 all models are equal, so mixing changes nothing: every center has its own training."""
    here = context(Training())
    trained = here.learner.train(here.common_start(), 1)
    np.testing.assert_allclose(play(DeceFL(), here, 1)[-1].models, trained, rtol=1e-5, atol=1e-6)


def test_dpsgd_is_decefl_with_one_epoch() -> None:
    assert CATALOG["dpsgd"].config == DeceFL(training=Training(epochs=1))


def test_a_ring_stays_or_changes(context) -> None:
    here = context(Training())
    still, turning = DeceFL(), DeceFL(graph="changing-ring")
    assert np.array_equal(still.edges(here, 1), still.edges(here, 2))
    drawn = {tuple(sorted(map(tuple, np.sort(turning.edges(here, t), axis=1).tolist()))) for t in range(1, 9)}
    assert len(drawn) > 1


@given(n=st.integers(1, 40))
def test_a_ring_has_as_many_edges_as_centers(n: int) -> None:
    edges = choosing.ring(np.random.default_rng(n).permutation(n))
    assert len(edges) == (n if n > 2 else n - 1)
    assert len({tuple(sorted(e)) for e in edges.tolist()}) == len(edges)
