"""The studies of the guarantees: exact probabilities, known answers, and checks that can fail."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from abps.lab import guarantees as theory
from abps.lab import theory as studies
from abps.lab.guarantees import GAMMA, Bandit, Epsilon


@pytest.fixture(scope="module")
def covered() -> list[studies.Coverage]:
    return studies.coverage(seed=3, replicates=2_000)


def test_simulated_coverage_agrees_with_exact_probabilities(covered: list[studies.Coverage]) -> None:
    known = [c for c in covered if c.exact is not None]
    assert len(known) > len(covered) / 2
    for c in known:
        assert c.exact is not None and c.exact <= c.delta
        spread = 5 * np.sqrt(max(c.exact * (1 - c.exact), 1e-4) / 2_000)
        assert abs(c.violations - c.exact) <= spread
    assert any(c.violations > 0 for c in covered)
    assert {c.shape for c in covered} == {"up", "down", "ramp"}


def test_the_verdict_on_theorem_1_can_be_otherwise(covered: list[studies.Coverage]) -> None:
    watched = [studies.Monitoring(0.1, 10, 0.05, 0.01)]
    assert [c.verdict for c in studies.about_beliefs(covered, watched)] == ["holds", "holds"]
    spoiled = [dataclasses.replace(covered[0], violations=covered[0].delta * 1.01), *covered[1:]]
    assert studies.about_beliefs(spoiled, watched)[0].verdict == "fails"


def test_a_monitor_needs_the_bound_for_all_times() -> None:
    rows = studies.monitoring(seed=3, replicates=400, horizon=3_000)
    for m in rows:
        assert m.at_all_times <= m.delta
    assert sum(m.fixed > m.delta for m in rows) >= 2
    covered = [studies.Coverage(1, 0.1, 0.0, (1.0, 1.0), 0.5, "up", 0.0, None, 0.5)]
    assert studies.about_beliefs(covered, rows)[1].verdict == "fails"


def test_slopes_and_crossings_are_read_off_correctly() -> None:
    at = np.array([10, 31, 100, 316, 1000, 3162, 10_000])
    bandit = Bandit((0.9, 0.1), 10_000, 1, 1.0, Epsilon("constant", 0.0))
    square = studies._regret("test", bandit, at, np.stack([np.sqrt(at), np.sqrt(at)]), np.zeros(2))
    assert square.slope == pytest.approx(0.5, abs=1e-6)
    assert square.crossed["printed"] is None or square.crossed["printed"] >= 100
    linear = studies._regret("test", bandit, at, np.stack([1.0 * at, 1.0 * at]), np.zeros(2))
    first = linear.crossed["printed"]
    bound = linear.bounds["printed"]
    assert first == int(at[np.argmax(at > bound)])
    assert linear.worst["printed"] == pytest.approx((at / bound).max())


def test_the_transition_is_at_the_threshold_minus_the_radius() -> None:
    rows = {(m.gamma, m.rounds): m for m in studies.transition(seed=3, replicates=4)}
    assert rows[GAMMA, 50].half is None  # nobody can be rejected
    assert (rows[GAMMA, 50].rested == 0).all()
    for (gamma, t), m in rows.items():
        assert (np.diff(m.would_rest) <= 1e-9).all()
        if m.half is not None:
            radius = float(theory.radius(t - 1, t, gamma))
            assert m.half == pytest.approx(0.5 - radius, abs=0.03)


def test_the_filter_loses_the_best_peer_when_usefulness_is_not_similarity() -> None:
    lost = {f.relation: f.lost for f in studies.filter_losses(seed=3, replicates=200, centers=101)}
    assert lost["useful because similar"] == 0
    assert lost["useful because different"] == 1
    assert 0.6 < lost["useful for a reason of its own"] < 0.9


def test_statements_about_resting() -> None:
    found = studies.about_resting(studies.transition(seed=3, replicates=4))
    assert [claim.verdict for claim in found] == ["fails"] * 5
    assert "E[φ] = -0.10 and μ* = 0.60" in found[0].found
