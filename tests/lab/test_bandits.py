"""The vectorised bandits against a plain loop, and what they must respect."""

from __future__ import annotations

import math

import numpy as np
import pytest

from abps.core.beliefs import Beliefs
from abps.core.selection import ucb
from abps.lab.guarantees import GAMMA, Bandit, Epsilon, checkpoints, play, regret_bound

NONE = Epsilon("constant", 0.0)


def plain(means: tuple[float, ...], horizon: int, slots: int, gamma: float) -> tuple[float, list[int]]:
    """One center with certain utilities (0 or 1), no swaps, by the method's own beliefs and score."""
    n = len(means)
    beliefs = Beliefs(n + 1)
    peers = np.arange(1, n + 1)
    best, regret, pulls = sum(sorted(means)[-slots:]), 0.0, [0] * n
    for t in range(1, horizon + 1):
        score = ucb(beliefs.posterior(0, peers), t, gamma)
        chosen = np.argsort(-score, kind="stable")[:slots]
        regret += best - sum(means[c] for c in chosen)
        beliefs = beliefs.observe(np.zeros(slots, int), peers[chosen], np.array(means)[chosen])
        for c in chosen:
            pulls[c] += 1
    return regret, pulls


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("gamma", [0.3, GAMMA])
def test_certain_utilities_give_what_the_methods_own_beliefs_and_score_give(slots: int, gamma: float) -> None:
    """With utilities 0 and 1 nothing is random but the order of equals, which regret does not see."""
    means = (1.0, 1.0, 1.0, 0.0, 0.0)
    (outcome,) = play([Bandit(means, 400, slots, gamma, NONE)], 3, seed=1, name="test")
    totals = [plain(order, 400, slots, gamma)[0] for order in (means, means[::-1], (0.0, 1.0, 0.0, 1.0, 1.0))]
    assert (outcome.pulls.sum(axis=1) == 400 * slots).all()
    # equals may be met in any order, which shifts regret by at most one round per peer
    assert outcome.regret[:, -1].min() >= min(totals) - 2 * slots
    assert outcome.regret[:, -1].max() <= max(totals) + 2 * slots


def test_two_certain_peers_are_played_exactly_like_the_plain_loop() -> None:
    (outcome,) = play([Bandit((1.0, 0.0), 300, 1, GAMMA, NONE)], 6, seed=2, name="test")
    expected = {plain(order, 300, 1, GAMMA)[0] for order in ((1.0, 0.0), (0.0, 1.0))}
    assert set(outcome.regret[:, -1].tolist()) <= expected


def test_regret_is_the_pulls_times_the_gaps() -> None:
    bandit = Bandit((0.8, 0.5, 0.1), 500, 1, 1.0, Epsilon("constant", 0.2))
    (outcome,) = play([bandit], 5, seed=3, name="test")
    np.testing.assert_allclose(
        outcome.regret[:, -1], outcome.pulls @ (0.8 - np.array(bandit.means)), rtol=1e-9
    )
    assert (np.diff(outcome.regret, axis=1) >= -1e-9).all()


def test_pure_exploration_is_uniform() -> None:
    (outcome,) = play(
        [Bandit((0.9, 0.6, 0.3, 0.1), 4000, 1, 1.0, Epsilon("constant", 1.0))], 4, seed=4, name="test"
    )
    share = outcome.pulls / 4000
    assert np.abs(share - 0.25).max() < 4 * math.sqrt(0.25 * 0.75 / 4000)


def test_a_bandit_is_the_same_alone_and_ends_at_its_own_horizon() -> None:
    bandits = [Bandit((0.9, 0.1), h, 1, 1.0, NONE) for h in (50, 400, 100)]
    outcomes = play(bandits, 3, seed=5, name="test")
    assert [int(o.at[-1]) for o in outcomes] == [50, 400, 100]
    assert [int(o.pulls.sum(axis=1)[0]) for o in outcomes] == [50, 400, 100]
    again = play(bandits, 3, seed=5, name="test")
    assert all((a.regret == b.regret).all() for a, b in zip(outcomes, again, strict=True))
    other = play(bandits, 3, seed=6, name="test")
    assert any((a.regret != b.regret).any() for a, b in zip(outcomes, other, strict=True))


def test_a_peer_that_never_accepts_is_never_met() -> None:
    bandit = Bandit((0.9, 0.4, 0.3), 200, 1, GAMMA, NONE, accepts=(0.0, 1.0, 1.0))
    (outcome,) = play([bandit], 4, seed=7, name="test")
    assert (outcome.pulls[:, 0] == 0).all()


def test_the_corrected_bound_holds_and_half_the_regret_would_not_hide_it() -> None:
    bandit = Bandit((0.9, 0.1), 3000, 1, 3.0, NONE)
    (outcome,) = play([bandit], 8, seed=8, name="test")
    mean = outcome.regret.mean(axis=0)
    assert (mean <= regret_bound(bandit.means, outcome.at, gamma=3.0, epsilon=NONE).total).all()
    printed = regret_bound(bandit.means, outcome.at, gamma=3.0, epsilon=NONE, constant="printed").total
    assert (mean > printed).any()  # gamma = 3 pays more than a constant that does not know gamma allows


def test_checkpoints_start_at_ten_and_end_at_the_horizon() -> None:
    marks = checkpoints(5000)
    assert marks[0] == 10 and marks[-1] == 5000
    assert (np.diff(marks) > 0).all()
