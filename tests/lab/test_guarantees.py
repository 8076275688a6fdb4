"""The guarantees against closed forms, brute force and exact probabilities."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from abps.core import selection
from abps.lab import guarantees as theory

means_of = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8)


def exact_violation(k: int, delta: float, mu: float, shift: float, prior: tuple[float, float]) -> float:
    """P(|posterior mean - mu| > bound) when all K observations are Bernoulli(mu + shift), exactly."""
    s = np.arange(k + 1)
    error = np.abs(theory.posterior_mean(s, k, prior) - mu)
    bound = theory.concentration(k, delta, drift=abs(shift), prior=prior).total
    return float(stats.binom.pmf(s, k, mu + shift)[error > bound].sum())


@pytest.mark.parametrize("k", [1, 2, 5, 13, 50, 200, 1000])
@pytest.mark.parametrize("delta", [0.01, 0.05, 0.2, 0.5])
def test_theorem_1_holds_exactly_for_bernoulli_utilities(k: int, delta: float) -> None:
    for mu, shift, prior in itertools.product(
        (0.05, 0.3, 0.5, 0.9), (-0.05, 0.0, 0.1), ((1, 1), (0.1, 0.1), (5, 1))
    ):
        assert exact_violation(k, delta, mu, shift, prior) <= delta


def test_the_exact_check_can_fail() -> None:
    """A bound of half the size is crossed: the check above is not empty."""
    k, mu, s = 50, 0.5, np.arange(51)
    half = theory.concentration(k, 0.05, prior=(1e-6, 1e-6)).total / 2
    error = np.abs(theory.posterior_mean(s, k, (1e-6, 1e-6)) - mu)
    assert stats.binom.pmf(s, k, mu)[error > half].sum() > 0.05


def test_theorem_1_terms_are_the_printed_ones() -> None:
    terms = theory.concentration([10, 40], 0.1, drift=0.02, prior=(2.0, 3.0))
    assert terms.noise == pytest.approx([math.sqrt(math.log(20) / 20), math.sqrt(math.log(20) / 80)])
    assert terms.prior == pytest.approx([5 / 15, 5 / 45])
    assert terms.drift == pytest.approx([0.02, 0.02])
    assert terms.total == pytest.approx(terms.noise + terms.prior + terms.drift)
    assert np.isinf(theory.concentration(0, 0.1).total)


def test_at_all_times_spends_delta_over_all_counts() -> None:
    k = np.arange(1, 100_000)
    wide = theory.concentration(k, 0.1, at_all_times=True).noise
    spent = 2 * np.exp(-2 * k * wide**2)  # Hoeffding's failure probability at each K
    assert spent.sum() <= 0.1
    assert (wide > theory.concentration(k, 0.1).noise).all()


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=40), st.floats(0.01, 0.9))
def test_a_discounted_count_is_never_too_narrow(weights: list[float], delta: float) -> None:
    w = np.array(weights)
    weighted = math.sqrt(math.log(2 / delta) * (w**2).sum() / 2) / w.sum()  # Hoeffding with weights
    assert float(theory.concentration(w.sum(), delta).noise) >= weighted * (1 - 1e-12)


# --------------------------------------------------------------------------- the score


def test_the_score_cannot_reject_within_fifty_rounds() -> None:
    lows = [theory.lowest_ucb(t) for t in range(1, 74)]
    assert lows[49] == pytest.approx(0.579, abs=5e-4)
    assert min(lows[:72]) >= 0.5 > lows[72]


@pytest.mark.parametrize(
    ("gamma", "prior", "value", "first"),
    [
        (theory.GAMMA, (1.0, 1.0), 0.0, 73),
        (theory.GAMMA, (0.5, 0.5), 0.0, 70),
        (theory.GAMMA, (2.0, 2.0), 0.0, 78),
        (1.0, (1.0, 1.0), 0.0, 32),
        (0.5, (1.0, 1.0), 0.0, 7),
        (theory.GAMMA, (1.0, 1.0), 0.4, 3237),
    ],
)
def test_first_rejection(gamma: float, prior: tuple[float, float], value: float, first: int) -> None:
    assert theory.first_rejection(gamma, prior, value=value) == first
    assert theory.lowest_ucb(first, gamma, prior, value) < 0.5
    assert theory.lowest_ucb(first - 1, gamma, prior, value) >= 0.5


def test_a_good_peer_is_never_rejected() -> None:
    assert theory.first_rejection(value=0.5) is None


@given(st.integers(2, 60), st.data())
def test_no_history_scores_below_the_lowest(t: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, t - 1))
    total = data.draw(st.floats(0, n))
    assert theory.score(total, n, t) >= theory.lowest_ucb(t) - 1e-12


def test_an_untried_peer_outscores_every_tried_one_for_fifty_rounds() -> None:
    assert all(theory.untried_wins(t, n) for t in range(2, 51) for n in range(1, t))
    assert not theory.untried_wins(2, 1, gamma=0.1)


# --------------------------------------------------------------------------- Theorem 2


def test_the_constant_is_sixteen_at_the_gamma_in_use_and_eight_at_one() -> None:
    assert theory.leading_constant(math.sqrt(2)) == pytest.approx(16)
    assert theory.leading_constant(1.0) == pytest.approx(8)
    assert theory.leading_constant(math.sqrt(2), "printed") == 8


def test_the_tail_constant_is_a_zeta_value_and_diverges_for_a_small_gamma() -> None:
    assert theory.tail_constant(1.0) == pytest.approx(1 + math.pi**2 / 3)
    assert theory.tail_constant(0.95) == pytest.approx(1 + 2 * special.zeta(4 * 0.95**2 - 2), rel=1e-7)
    assert theory.tail_constant(0.88) == pytest.approx(1 + 2 * special.zeta(4 * 0.88**2 - 2), rel=1e-7)
    assert math.isinf(theory.tail_constant(0.86))
    assert np.isinf(theory.regret_bound([0.6, 0.4], 100, gamma=0.5).total)


def test_the_bound_is_the_printed_formula() -> None:
    mu, t, kappa, eps = np.array([0.9, 0.7, 0.4]), 500, 2, 0.1
    d = np.array([0.2, 0.5])
    printed = kappa * (8 * math.log(t) / d + d * (1 + math.pi**2 / 3)).sum() + eps * t * (0.7 / 3)
    bound = theory.regret_bound(
        mu, t, slots=kappa, epsilon=theory.Epsilon("constant", eps), constant="printed"
    )
    assert float(bound.total) == pytest.approx(printed)
    corrected = theory.regret_bound(mu, t, slots=kappa, epsilon=theory.Epsilon("constant", eps))
    assert float(corrected.greedy - bound.greedy) == pytest.approx(kappa * 8 * math.log(t) * (1 / d).sum())
    assert float(corrected.explore) == pytest.approx(float(bound.explore))


@given(means_of)
def test_one_slot_has_one_set_of_gaps(means: list[float]) -> None:
    mu = np.round(means, 3)  # gaps that are zero or not tiny
    assert theory.slot_gaps(mu, 1, "best") == pytest.approx(theory.slot_gaps(mu, 1, "slots"))


@given(means_of, st.integers(1, 8))
def test_slot_gaps_against_the_staircase(means: list[float], slots: int) -> None:
    """The factor is the area of a staircase: regret per pull is the largest gap still confusable."""
    mu = np.sort(np.round(means, 2))[::-1]
    slots = min(slots, mu.size)
    leading, tail = theory.slot_gaps(mu, slots, "slots")
    area = 0.0
    for low in mu[slots:]:
        d = [g for g in mu[:slots] - low if g > 0]
        pulls = np.linspace(0, 1 / min(d) ** 2, 200_001)[1:] if d else np.array([])
        if d:
            # after x (units of 4 c ln T) pulls, a gap g can still be mistaken if g^2 x <= 1
            worst = np.max([np.where(g * g * pulls <= 1 + 1e-12, g, 0) for g in d], axis=0)
            area += float(worst.sum() * (pulls[1] - pulls[0]))
            assert leading <= 2 * sum(
                1 / min(g for g in mu[:slots] - each if g > 0)
                for each in mu[slots:]
                if (mu[:slots] > each).any()
            ) * (1 + 1e-9)
    assert leading == pytest.approx(area, rel=2e-3, abs=1e-9)
    assert tail == pytest.approx(
        sum(max(top - low, 0) for top in mu[:slots] for low in mu[slots:]), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize("schedule", ["constant", "inv_sqrt_horizon", "c_over_t"])
@pytest.mark.parametrize("horizon", [1, 3, 10, 999, 1000, 5000])
@pytest.mark.parametrize("value", [0.1, 0.9, 3.5])
def test_epsilon_total_is_the_sum_over_rounds(schedule: str, horizon: int, value: float) -> None:
    if schedule == "constant" and value > 1:
        return
    eps = theory.Epsilon(schedule, value)  # type: ignore[arg-type]
    each = eps.at(np.arange(1, horizon + 1), horizon)
    assert ((each >= 0) & (each <= 1)).all()
    assert eps.total(horizon) == pytest.approx(each.sum(), rel=1e-9)
    in_use = [selection.epsilon(schedule, value, t, horizon) for t in range(1, horizon + 1)]
    assert each.tolist() == in_use  # the same schedules as the method's own


def test_only_c_over_t_leaves_a_logarithm() -> None:
    """Ten thousand times the rounds: the swaps grow 10^4, 10^2 and like the logarithm."""
    grow = {
        s: theory.Epsilon(s, 0.9).total(10**8) / theory.Epsilon(s, 0.9).total(10**4)
        for s in ("constant", "inv_sqrt_horizon", "c_over_t")
    }
    assert grow["constant"] == pytest.approx(1e4)
    assert grow["inv_sqrt_horizon"] == pytest.approx(1e2)
    assert grow["c_over_t"] == pytest.approx(math.log(1e8) / math.log(1e4), rel=0.05)


def test_the_bound_says_nothing_in_the_published_experiment() -> None:
    peers = np.linspace(0.4, 0.6, 229)
    first = theory.first_informative_round(peers)
    assert first is not None and first > 10**6
    trivial = (peers.max() - peers.min()) * 50
    assert theory.regret_bound(peers, 50).total > 1000 * trivial
    two = theory.first_informative_round([0.9, 0.1], epsilon=theory.Epsilon("c_over_t", 1.0))
    assert two is not None
    for t in (two - 1, two):
        bound = theory.regret_bound([0.9, 0.1], t, epsilon=theory.Epsilon("c_over_t", 1.0)).total
        assert (bound < 0.8 * t) == (t == two)


# --------------------------------------------------------------------------- Lemma 1


def test_c_neg() -> None:
    assert theory.negative_transfer_threshold() == pytest.approx(0.5)
    assert theory.negative_transfer_threshold(-0.1, 0.3) == pytest.approx(0.25)


@given(
    st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=6),
    st.lists(st.floats(0.01, 1), min_size=6, max_size=6),
)
def test_without_clipping_the_threshold_is_exact(values: list[float], raw: list[float]) -> None:
    w = np.array(raw[: len(values)]) / sum(raw[: len(values)])
    mean, belief = theory.clipped_mean(values, w)
    assert belief == pytest.approx(theory.negative_transfer_threshold() + mean / 0.2)


def test_clipping_breaks_it_in_both_directions() -> None:
    mean, belief = theory.clipped_mean(*theory.HARMFUL_YET_ACCEPTED)
    assert mean < -0.09 and belief > 0.59
    mean, belief = theory.clipped_mean(*theory.HELPFUL_YET_REJECTED)
    assert mean > 0.09 and belief < 0.41


def test_rest_with_estimated_shapley_values_needs_the_slack() -> None:
    assert theory.rest_dominates([-0.01, -0.02])
    assert not theory.rest_dominates([-0.01, 0.001])
    slack = 0.02
    half = [-slack / 2, -slack / 2]  # every mu* < c_neg, yet an error of +slack each turns the sign
    assert theory.rest_dominates(half) and not theory.rest_dominates(half, slack)
    assert sum(half) + slack * len(half) > 0
    assert not theory.rest_dominates([])
