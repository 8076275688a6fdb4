"""UCB in numbers: what the paper's settings can and cannot do."""

import math

import numpy as np
import pytest

from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError
from abps.core.selection import Selection, epsilon, ucb


def worst_case(t: int, gamma: float = math.sqrt(2), prior=(1.0, 1.0)) -> float:
    """UCB at round t of a peer met in every earlier round and useless each time."""
    beliefs = Beliefs(2, prior)
    if t > 1:
        beliefs = beliefs.observe([0] * (t - 1), [1] * (t - 1), [0.0] * (t - 1))
    return float(ucb(beliefs.posterior(0, 1), t, gamma))


def test_the_first_round_accepts_everybody():
    assert worst_case(1) == 0.5


def test_ucb_cannot_reject_within_fifty_rounds():
    assert worst_case(50) == pytest.approx(0.579, abs=5e-4)
    assert min(worst_case(t) for t in range(1, 51)) >= 0.5


@pytest.mark.parametrize(("prior", "first"), [((1, 1), 73), ((0.5, 0.5), 70), ((2, 2), 78)])
def test_the_first_round_of_a_possible_rejection(prior, first):
    assert worst_case(first, prior=prior) < 0.5
    assert all(worst_case(t, prior=prior) >= 0.5 for t in range(1, first))


@pytest.mark.parametrize(("gamma", "first"), [(1.0, 32), (0.5, 7)])
def test_a_smaller_gamma_can_reject_sooner(gamma, first):
    assert worst_case(first, gamma) < 0.5
    assert all(worst_case(t, gamma) >= 0.5 for t in range(1, first))


def test_an_untried_peer_always_outranks_a_tried_one():
    for t in range(2, 51):
        for count in range(1, t):
            tried = Beliefs(2).observe([0] * count, [1] * count, [1.0] * count).posterior(0, 1)
            untried = Beliefs(2).posterior(0, 1)
            if count == 1:
                assert ucb(untried, t, math.sqrt(2)) > ucb(tried, t, math.sqrt(2))


def test_schedules():
    assert epsilon("constant", 0.1, 7, 50) == 0.1
    assert epsilon("inv_sqrt_horizon", 1.0, 7, 100) == 0.1
    assert epsilon("c_over_t", 5.0, 3, 50) == 1.0
    assert epsilon("c_over_t", 5.0, 50, 50) == 0.1
    with pytest.raises(RequestError, match="eps_schedule='konstant': choose constant"):
        Selection(eps_schedule="konstant")


def test_ucb_is_the_printed_formula():
    beliefs = Beliefs(3, (2.0, 1.0)).observe([0, 0], [1, 1], [0.25, 0.5])
    got = ucb(beliefs.posterior([0, 0], [1, 2]), 9, 0.7)
    want = [2.75 / 5 + 0.7 * math.sqrt(2 * math.log(9) / 3), 2 / 3 + 0.7 * math.sqrt(2 * math.log(9))]
    np.testing.assert_allclose(got, want)
