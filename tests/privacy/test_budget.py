"""The account of privacy: closed forms, another accountant, and what a reviewer computes from the file."""

import io
import json
import math
import sys

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from abps.core.errors import RequestError
from abps.privacy import budget as spending
from abps.privacy.budget import Account, Release, epsilon_of, noise_for


def exact_gaussian_delta(epsilon: float, sigma: float) -> float:
    """Balle and Wang 2018: the δ of one Gaussian mechanism of sensitivity 1, exactly."""
    return float(
        norm.cdf(1 / (2 * sigma) - epsilon * sigma)
        - np.exp(epsilon) * norm.cdf(-1 / (2 * sigma) - epsilon * sigma)
    )


@pytest.mark.parametrize("sigma", [0.8, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("times", [1, 20])
def test_epsilon_bounds_the_exact_one_from_above_and_not_by_much(sigma, times):
    # Gaussians compose to a Gaussian with sigma / sqrt(times).
    together = sigma / math.sqrt(times)
    exact = brentq(lambda e: exact_gaussian_delta(e, together) - 1e-5, 1e-9, 400)
    ours = epsilon_of([Release(1, "scores", sigma, times=times)], 1e-5)
    assert exact <= ours <= 1.2 * exact + 0.05


def test_sampled_steps_agree_with_another_accountant():
    import dp_accounting
    from dp_accounting import pld

    other = pld.PLDAccountant()
    other.compose(dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(1.5)), 200)
    exact = other.get_epsilon(1e-5)
    ours = epsilon_of([Release(t, "training", 1.5, 0.2, 4) for t in range(1, 51)], 1e-5)
    assert exact <= ours * (1 + 1e-6)
    assert ours <= 1.25 * exact


def test_an_account_ends_where_its_budget_does():
    account = Account(epsilon=1.0)
    step = Release(1, "training", 4.0, 0.3, 4)
    rounds = 0
    while account.affords(step):
        account = account.spend(step)
        rounds += 1
    assert rounds > 1
    assert account.spent() <= 1.0 < epsilon_of((*account.releases, step), account.delta)


def test_no_noise_is_no_privacy_and_an_infinite_budget_pays_for_it():
    account = Account()
    assert account.affords(Release(1, "training", 0.0))
    assert math.isinf(account.spend(Release(1, "training", 0.0)).spent())
    assert not Account(epsilon=3.0).affords(Release(1, "training", 0.0))


def test_a_reviewer_computes_epsilon_from_the_written_account():
    account = Account(2.0).spend(Release(0, "statistics", 3.0), Release(1, "training", 2.0, 0.5, 4))
    written = json.loads(json.dumps(account.to_json()))
    written["epsilon"] = 0.001  # what stands there is not believed
    again = Account.from_json(written)
    assert again == account
    assert again.spent() == pytest.approx(account.to_json()["epsilon"], rel=1e-12)


def test_order_and_grouping_of_releases_change_nothing():
    a, b = Release(1, "training", 2.0, 0.5, 4), Release(2, "scores", 3.0)
    assert epsilon_of([a, b], 1e-5) == epsilon_of([b, a], 1e-5)
    one_by_one = [Release(t, "training", 2.0, 0.5) for t in range(4)]
    assert epsilon_of(one_by_one, 1e-5) == epsilon_of([a], 1e-5)


def test_the_noise_of_a_plan_spends_what_it_may_and_no_more():
    plan = {"statistics": (1.0, 1), "training": (0.2, 200)}
    sigma = noise_for(2.0, 1e-5, plan)
    spent = epsilon_of([Release(0, w, sigma, q, k) for w, (q, k) in plan.items()], 1e-5)
    assert 1.95 < spent <= 2.0


@pytest.mark.parametrize(
    "bad", [{"noise": -1.0}, {"noise": 1.0, "sampling": 0.0}, {"noise": 1.0, "times": 0}]
)
def test_what_is_no_release_is_refused(bad):
    with pytest.raises(RequestError, match="is no release"):
        Release(1, "scores", **bad)


def test_what_is_no_account_is_refused():
    with pytest.raises(RequestError, match="not a privacy account"):
        Account.from_json({"schema": "abps.privacy/1"})


def test_accounting_leaves_standard_error_open(monkeypatch, tmp_path):
    """Whoever stands in for standard error while ε is computed is not closed when logging is set up later."""
    # Imported here: on import the library keeps what stands in for standard error, and pytest's own stand-in
    # of the collection would be closed by whichever test sets up logging next.
    from absl import logging as absl_logging

    with (tmp_path / "errors").open("w") as first:
        monkeypatch.setattr(sys, "stderr", first)
        absl_logging.get_absl_handler().python_handler.setStream(first)  # as on its import
        spending._epsilon.cache_clear()
        assert 0 < epsilon_of([Release(0, "weights", 1.0, 1.0, 1)], 1e-5) < math.inf
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        absl_logging.get_absl_handler().close()  # what logging.config does to every handler
        assert not first.closed
