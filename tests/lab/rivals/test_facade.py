"""Facade: trunks and heads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.core.errors import RequestError
from abps.lab.rivals import choosing
from abps.lab.rivals.clusters import Facade
from abps.methods.base import Wire


@given(st.integers(2, 14), st.integers(1, 6))
def test_regular_graphs(n: int, degree: int) -> None:
    edges = choosing.regular(np.random.default_rng(n).permutation(n), degree)
    assert (edges[:, 0] != edges[:, 1]).all()
    assert len(np.unique(np.sort(edges, axis=1), axis=0)) == len(edges)
    found = np.bincount(edges.ravel(), minlength=n)
    wanted = min(degree, n - 1)
    odd = wanted % 2 and n % 2  # there is no such graph: one has a neighbour less
    assert sorted(found) == [wanted - 1] + [wanted] * (n - 1) if odd else (found == wanted).all()


def test_one_head_is_gossip_of_pairs(context, play, one_step) -> None:
    method, place = Facade(training=one_step, clusters=1, degree=1, spread=0.0), context(one_step)
    states = play(method, place, 2)
    models = states[0].models
    for t in (1, 2):
        trained = place.learner.train(models, t)
        to, by = method.transfers(place, t)
        models = trained.copy()
        for i, j in zip(to, by):
            models[i] = (trained[i] + trained[j]) / 2
        np.testing.assert_allclose(states[t].models, models, atol=1e-6, rtol=1e-5)


def test_a_round_by_hand(context, play, one_step) -> None:
    method, place = Facade(training=one_step, clusters=3, degree=2, spread=0.5), context(one_step)
    before, after = play(method, place, 1)
    at = method.trunk(place)
    trained = place.learner.train(before.models, 1)
    to, by = method.transfers(place, 1)
    heads = before.heads.copy()
    for i in range(6):
        heads[i, before.cluster[i]] = trained[i, at:]
    for i in range(6):
        received = by[to == i]
        trunk = (trained[i, :at] + sum(trained[j, :at] for j in received)) / 3
        np.testing.assert_allclose(after.models[i, :at], trunk, atol=1e-6, rtol=1e-5)
        for k in range(3):
            same = [trained[j, at:] for j in received if before.cluster[j] == k]
            wanted = (heads[i, k] + sum(same)) / (1 + len(same)) if same else heads[i, k]
            np.testing.assert_allclose(after.heads[i, k], wanted, atol=1e-6, rtol=1e-5)
        np.testing.assert_allclose(after.models[i, at:], after.heads[i, after.cluster[i]])
    assert len(set(before.cluster)) > 1


def test_bad_settings() -> None:
    with pytest.raises(RequestError, match="heads are those of clusters"):
        Facade(wire=Wire(private_layers=1))
    with pytest.raises(RequestError, match="at least 1"):
        Facade(degree=0)
