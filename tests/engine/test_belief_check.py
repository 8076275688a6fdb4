"""Belief against truth in a simulated study: recomputed from the run itself, written, and read back."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from abps.core.peer_effects import PeerEffects
from abps.data.prepare import prepare
from abps.data.synthetic.builtin import further_patients
from abps.data.table import load
from abps.engine.belief_check import Effect, checked, looked_at, truth_rows
from abps.engine.result import Run
from abps.engine.simulate import simulate
from abps.methods.kindred import Kindred, Roll

DATA = "icu-synthetic:centers=16,groups=2,heterogeneity=6,stays=6400"
SHORT = Kindred(roll=Roll(first=2, again=(4,), quiet=0), last=())


@pytest.fixture(scope="module")
def run():
    return simulate(load(DATA), SHORT, seed=7, rounds=9)


def test_what_is_believed_of_partners_is_in_the_result(run):
    check = run.belief_check
    assert check.pairs > 60 and check.against == "further patients of the center, by their true chances"
    assert 0.8 < check.cover <= 1.0 and sum(check.counts) == check.pairs
    met = run.decisions.filter(run.decisions["decision"] == "accepted")
    pairs = {frozenset(pair) for pair in met.select("center", "peer").rows()}
    for name, peers in check.per_center.items():
        for peer, (mean, low, high, helps, meetings) in peers.items():
            assert frozenset((name, peer)) in pairs and meetings >= 1
            assert (low < mean < high and (helps > 0.5) == (mean > 0)) or abs(helps - 0.5) < 0.01
    content = json.loads(json.dumps(run.to_json()))
    assert content["beliefs"]["pairs"] == check.pairs and "belief_check" not in content
    again = Run.from_json(content).belief_check
    assert np.array_equal(again.told, check.told, equal_nan=True)
    assert np.array_equal(again.helped, check.helped, equal_nan=True)
    assert replace(again, told=(), helped=()) == replace(check, told=(), helped=())


def test_looking_changes_nothing(run, monkeypatch):
    monkeypatch.setattr("abps.engine.rounds.looked_at", lambda *_: False)
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
    federation = load(DATA)
    data = prepare(federation, 7, standardise="common", splines=True)
    rows, what = truth_rows(data)
    assert (rows.sizes == 400).all() and "true chances" in what
    # Other patients of the same centers, and chances that are as many as events.
    before, after = data.train.x.mean(axis=0), rows.x.mean(axis=0)
    assert np.abs(before - after).max() < 0.3
    known = {tuple(row) for part in (data.train, data.validation, data.test) for row in part.x.tolist()}
    assert np.mean([tuple(row) in known for row in rows.x.tolist()]) < 0.01
    assert rows.y.min() > 0 and rows.y.max() < 1
    assert rows.y.mean() == pytest.approx(federation.label.mean(), abs=0.01)
    # Of others the truth is what test rows tell.
    theirs = prepare(replace(federation, name="theirs"), 7, standardise="common", splines=True)
    assert truth_rows(theirs) == (theirs.test, "own test rows")


def test_chances_are_as_often_right_as_they_say():
    frame, _, chance = further_patients("icu-synthetic:centers=40,heterogeneity=4,aligned=false", 1500)
    died = frame["died"].to_numpy()
    for low, high in ((0.0, 0.02), (0.02, 0.1), (0.1, 0.3), (0.3, 0.7), (0.7, 1.0)):
        here = (chance >= low) & (chance < high)
        error = 4 * np.sqrt(chance[here].mean() * (1 - chance[here].mean()) / here.sum())
        assert died[here].mean() == pytest.approx(chance[here].mean(), abs=error)
    assert further_patients("survival-synthetic", 5) is None and further_patients("stays.csv", 5) is None


def test_rounds_that_are_looked_at():
    assert [t for t in range(1, 51) if looked_at(t, 400, 50)] == [10, 20, 30, 40, 50]
    assert all(looked_at(t, 20, 50) for t in range(1, 51))
