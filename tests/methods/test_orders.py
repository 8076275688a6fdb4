"""Whom centers ask first: worked out for many at once, and the same as one by one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.core import permutation, streams
from abps.core.matching import Plan
from abps.core.usefulness import Experience
from abps.methods.base import World
from abps.methods.kindred import Kindred, Orders, Standing
from abps.methods.pace import Pace
from abps.methods.peers import agree


def made_up(seed: int, n: int, alone: float = 0.4) -> tuple[World, Standing]:
    """Centers with random kin, each other's; some take anybody."""
    rng = np.random.default_rng(seed)
    everybody = rng.random(n) < alone
    kin = np.triu(rng.random((n, n)) < 0.3, 1)
    kin = (kin | kin.T) & ~everybody[:, None]
    peers = [rng.permutation(np.flatnonzero(row)) for row in kin]
    nothing = torch.zeros(0)
    listed = np.concatenate(peers).astype(np.int64)
    start = np.concatenate([[0], np.cumsum([len(each) for each in peers])])
    state = Standing(
        nothing,
        everybody,
        start,
        listed,
        rng.random(len(listed)),
        Experience.none(),
        nothing,
        nothing,
        np.zeros((n, 2)),
        np.zeros(4),
        nothing,
        Pace().start(0, 0, 0),
    )
    return World(None, SimpleNamespace(size=n), streams.bits(seed, "generate", 0, np.arange(n)), 7, 50), state


def one_by_one(world: World, state: Standing, row: int, t: int, turn, refused) -> list[int]:
    """Every peer's place in the center's random order, sorted; who asks later and is not refused."""
    key = streams.bits(world.seed, "tie-break", t, world.ids[world.here])[row]
    peers = np.arange(world.n) if state.everybody[row] else state.kin(row)
    order = peers[np.argsort(permutation.place_of(peers, key, world.n), kind="stable")]
    own = int(world.here[row])
    return [int(j) for j in order if turn[j] > turn[own] and (row, int(j)) not in refused]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 9), st.integers(1, 40))
def test_orders_are_those_of_each_center_alone(seed, n, together, ahead):
    world, state = made_up(seed, n)
    rng = np.random.default_rng(seed)
    turn = rng.permutation(n)
    refused = {(int(i), int(j)) for i, j in rng.integers(0, n, (n, 2))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Orders, "TOGETHER", together)
        patch.setattr(Orders, "AHEAD", ahead)
        orders = Orders(world, state, 3, turn, refused)
        for row in rng.permutation(n).tolist():
            assert list(orders.of(row)) == one_by_one(world, state, row, 3, turn, refused)


def test_who_is_cast_out_keeps_to_others_that_are():
    world, state = made_up(4, 40)
    out = np.array([3, 7, 21])
    orders = Orders(world, replace(state, outcast=out), 3, np.arange(40), set())
    for row in range(40):
        alike = np.isin(np.arange(40), out) == (row in out)
        plain = one_by_one(world, state, row, 3, np.arange(40), set())
        assert list(orders.of(row)) == [j for j in plain if alike[j]]


def test_a_round_of_many_is_that_of_the_plain_loop():
    n, t = 300, 5
    world, state = made_up(3, n, 0.2)
    method = Kindred()
    rng = np.random.default_rng(1)
    center, peer = rng.integers(0, n, (2, 400))
    harm = np.where(rng.random(400) < 0.5, -1.0, 0.0)
    state = Standing(
        *(getattr(state, name) for name in ("models", "everybody", "start", "peer", "same")),
        Experience.none().observe(center, peer, 2, harm, np.full(400, 0.01)),
        *(getattr(state, name) for name in ("reference", "kindred", "place", "test", "tilt", "stride")),
    )
    opinion = method.opine(world, state, lambda: None, t)
    plan = agree(method, world, opinion, t)
    known = method.effects(state.experience, t)
    bad = method.harmful(known)
    no = {(int(i), int(j)) for i, j in zip(known.center[bad], known.peer[bad])}
    order = method.turns(world.seed, t, world.ids)
    turn = np.empty(n, dtype=np.int64)
    turn[order] = np.arange(n)
    partner: dict[int, int] = {}
    for i in order.tolist():
        if i in partner:
            continue
        for j in one_by_one(world, state, i, t, turn, no):
            welcome = (state.everybody[j] or i in state.kin(j)) and (j, i) not in no
            if j not in partner and welcome:
                partner[i], partner[j] = j, i
                break
    assert {(int(a), int(b)) for a, b in plan.pairs} <= set(partner.items())
    assert 2 * len(plan.pairs) == len(partner) and bad.any()
    numbers_of_the_trail(opinion.trail, plan, state, known)


def numbers_of_the_trail(trail, plan: Plan, state: Standing, known) -> None:
    """Each decision stands on the kinship and the effect that are known of the pair."""
    told = trail(plan)
    effect = {
        (int(i), int(j)): (m, c) for i, j, m, c in zip(known.center, known.peer, known.mean, known.count)
    }
    rows = np.flatnonzero(told.peer >= 0)
    assert len(rows) == 2 * plan.proposals
    for k in rows.tolist():
        i, j = int(told.center[k]), int(told.peer[k])
        mean, count = effect.get((i, j), (np.nan, 0.0))
        np.testing.assert_equal((told.mean[k], told.count[k]), (mean, count))
        at = np.flatnonzero(state.kin(i) == j)
        same = 1.0 if state.everybody[i] else float(state.same[state.start[i] + at[0]]) if len(at) else 0.0
        assert told.score[k] == same
