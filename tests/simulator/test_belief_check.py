"""Belief against truth in a simulated study: recomputed from the run itself, written, and read back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from abps.core.peer_effects import PeerEffects
from abps.data.prepare import prepare
from abps.data.table import load
from abps.methods.kindred import Kindred, Roll
from abps.simulator.belief_check import Effect, checked, looked_at, truth_rows
from abps.simulator.result import Run
from abps.simulator.simulate import simulate

DATA = "icu-synthetic:centers=16,groups=2,heterogeneity=6,stays=6400"
SHORT = Kindred(roll=Roll(first=2, again=(4,), quiet=0), last=())


@pytest.fixture(scope="module")
def run():
    return simulate(load(DATA), SHORT, seed=7, rounds=9)


def test_what_is_believed_of_partners_is_in_the_result(run):
    check = run.belief_check
    assert check.pairs > 60 and check.against == "test rows of all centers of the group"
    assert 0.8 < check.cover <= 1.0 and sum(check.counts) == check.pairs
    met = run.decisions.filter(run.decisions["decision"] == "accepted")
    pairs = {frozenset(pair) for pair in met.select("center", "peer").rows()}
    for name, peers in check.per_center.items():
        for peer, (mean, low, high, helps, meetings) in peers.items():
            assert frozenset((name, peer)) in pairs and meetings >= 1
            assert (low < mean < high and (helps > 0.5) == (mean > 0)) or abs(helps - 0.5) < 0.01
    content = json.loads(json.dumps(run.to_json()))
    assert content["beliefs"]["pairs"] == check.pairs and "belief_check" not in content
    assert Run.from_json(content).belief_check == check


def test_looking_changes_nothing(run, monkeypatch):
    monkeypatch.setattr("abps.simulator.rounds.looked_at", lambda *_: False)
    blind = simulate(load(DATA), SHORT, seed=7, rounds=9)
    assert torch.equal(blind.models, run.models) and blind.belief_check.pairs == 0
    assert blind.belief_check.per_center == run.belief_check.per_center


def test_methods_without_such_beliefs_say_nothing():
    plain = simulate(load(DATA), "random-k1", seed=7, rounds=2)
    assert plain.belief_check.pairs == 0 and "beliefs" not in plain.to_json()


def test_counts_and_shares_by_hand():
    belief = PeerEffects(
        np.array([0, 1, 1]),
        np.array([1, 0, 2]),
        np.array([4, 4, 5]),
        np.array([0.1, -0.1, 0.0]),
        np.full(3, 0.05),
    )
    truth = [
        Effect(np.array([0, 1]), np.array([1, 0]), np.array([4, 4]), np.array([0.1, 0.05]), np.full(2, 0.01)),
        Effect(np.array([1, 2]), np.array([2, 1]), np.array([5, 5]), np.array([0.01, 9.0]), np.full(2, 0.01)),
    ]
    found = checked(belief, truth, ("a", "b", "c"), "rows")
    # P(helps): .977, .023, .5; the second truth is three deviations off; of the last nothing was believed.
    assert found.pairs == 3 and found.cover == pytest.approx(2 / 3)
    assert found.counts == (1, 0, 1, 0, 1) and found.helped[0] == 1.0 and found.helped[4] == 1.0
    assert found.told[0] == pytest.approx(0.0228, abs=1e-3)
    assert found.per_center["b"]["a"][:1] == (-0.1,) and set(found.per_center) == {"a", "b"}


def test_rows_that_the_truth_is_measured_on():
    data = prepare(load(DATA), 7)
    own, pooled = truth_rows(data, False), truth_rows(data, True)
    assert own is data.test and (pooled.sizes >= np.minimum(own.sizes, 400)).all()
    group = np.array(data.groups)
    whole = {
        tuple(row) for k in np.flatnonzero(group == group[3]) for row in data.test.only(int(k)).x.tolist()
    }
    assert {tuple(row) for row in pooled.only(3).x.tolist()} <= whole
    assert [t for t in range(1, 51) if looked_at(t, 400, 50)] == [10, 20, 30, 40, 50]
    assert all(looked_at(t, 20, 50) for t in range(1, 51))
