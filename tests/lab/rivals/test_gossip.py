"""Gossip learning."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abps.core.ledger import CONTROL_MESSAGE
from abps.lab.rivals.gossip import Gossip, merge
from abps.models.training import Training


@given(st.integers(1, 8), st.integers(0, 30), st.integers(0, 10_000))
def test_merge_against_one_message_at_a_time(n: int, messages: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = rng.normal(size=(n, 5)).astype(np.float32)
    age = rng.integers(1, 500, n).astype(np.float64)
    by, to = rng.integers(0, n, messages), rng.integers(0, n, messages)
    place = rng.random(messages)
    wanted, old = models.copy().astype(np.float64), age.copy()
    for k in np.argsort(place):
        a, b = to[k], by[k]
        mine, theirs = old[a], age[b]
        wanted[a, :3] = (mine * wanted[a, :3] + theirs * models[b, :3]) / (mine + theirs)
        old[a] = max(mine, theirs)
    merged, ages = merge(models, age, models[:, :3], age, by, to, place)
    np.testing.assert_allclose(merged, wanted, atol=1e-5)
    np.testing.assert_array_equal(ages, old)


def test_ages_count_rows_and_travel_with_models(context, play) -> None:
    here = context(Training())
    method = Gossip()
    first = play(method, here, 1)[-1]
    seen = 2.0 * here.data.train.sizes
    to = method.receivers(here, 1)
    for i in range(6):
        assert first.age[i] == max([seen[i], *seen[to == i]])


def test_nobody_sends_to_itself_and_all_are_reached(context) -> None:
    here = context(Training())
    drawn = np.stack([Gossip().receivers(here, t) for t in range(1, 601)])
    assert (drawn != np.arange(6)).all()
    for i in range(6):
        share = np.bincount(drawn[:, i], minlength=6)[np.arange(6) != i] / 600
        np.testing.assert_allclose(share, 0.2, atol=0.06)


def test_messages_go_one_way(context) -> None:
    here = context(Training())
    method = Gossip()
    payload = method.wire.payload(here)
    spent = method.cost(here, np.array([1, 0, 4]), np.array([0, 1, 2]))
    assert spent.control == 3 * CONTROL_MESSAGE  # a model's age travels with it
    assert spent.directed == 3 * payload
    assert spent.edge == 2 * payload  # 0 and 1 sent to each other
