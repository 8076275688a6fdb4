"""The studies of the guarantees: exact probabilities, known answers, and checks that can fail."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from abps.lab import guarantees as theory
from abps.lab import theory as studies
from abps.lab.bandits import Bandit
from abps.lab.guarantees import GAMMA, Epsilon


def test_binomial_against_scipy() -> None:
    p = np.array([0.0, 0.2, 0.5, 1.0])
    for n in (1, 7, 200):
        want = stats.binom.pmf(np.arange(n + 1)[None], n, p[:, None])
        np.testing.assert_allclose(studies.binomial(n, p), want, atol=1e-12)


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
    assert studies.theorem_1(covered).verdict == "holds"
    spoiled = [dataclasses.replace(covered[0], violations=covered[0].delta * 1.01), *covered[1:]]
    assert studies.theorem_1(spoiled).verdict == "fails"


def test_a_monitor_needs_the_bound_for_all_times() -> None:
    rows = studies.monitoring(seed=3, replicates=400, horizon=3_000)
    for m in rows:
        assert m.at_all_times <= m.delta
    assert sum(m.fixed > m.delta for m in rows) >= 2
    assert studies.theorem_1_in_every_round(rows).verdict == "fails"


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


def test_statements_without_simulation() -> None:
    assert studies.clipping().verdict == "fails"
    assert studies.estimated_shapley().verdict == "fails"
    assert studies.never_ranks().verdict == "fails"
    assert studies.published_experiment().verdict == "fails"
