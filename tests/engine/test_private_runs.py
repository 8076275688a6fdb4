"""Private runs: the account that ends them, the file that a reviewer computes again, and no trace without."""

from __future__ import annotations

import json

import numpy as np
import pytest

import abps
from abps.core.errors import RequestError
from abps.engine.result import PRIVACY, save
from abps.privacy.budget import PrivacyLedger, noisy, recount, sensitivity
from federations import tiny

SMALL = {"model": "linear", "standardise": "own", "epochs": 1}


def run(method="fedavg", rounds=4, **settings):
    data = tiny(sizes=(120, 90, 60, 40), width=6)
    return abps.simulate(data, method, seed=3, rounds=rounds, settings=SMALL | settings)


def test_without_a_limit_a_run_is_the_plain_one_to_the_last_bit():
    plain, endless = run(), run(dp_epsilon=float("inf"))
    assert np.array_equal(plain.models, endless.models) and endless.privacy is None
    assert plain.history.auroc == endless.history.auroc


def test_the_noise_is_chosen_so_that_the_budget_lasts_for_all_rounds():
    made = run(dp_epsilon=3.0, clip=1.0)
    noise = made.config["training"]["noise_multiplier"]
    assert noise > 0 and made.rest.share == 0
    for account in made.privacy.accounts.values():
        assert 2.5 < account.spent() <= 3.0
        assert [r.what for r in account.releases] == ["training"] * 4  # fedavg publishes nothing
        assert all(r.noise == noise for r in account.releases)
    more = run(dp_epsilon=3.0, clip=1.0, sampling=0.3, optimizer="sgd")
    assert [r.times for r in more.privacy.accounts["c0"].releases] == [3] * 4


@pytest.mark.parametrize("method", ["fedavg", "random-k1", "local"])
def test_a_spent_account_ends_in_rest_with_that_reason(method):
    made = run(method, rounds=8, dp_epsilon=2.0, clip=1.0, noise_multiplier=4.0)
    spent = made.privacy.accounts["c0"]
    done = len([r for r in spent.releases if r.what == "training"])
    assert 0 < done < 8 and spent.spent() <= 2.0
    assert not spent.affords(spent.releases[-1])  # one round more would have been too much
    assert made.rest.privacy == pytest.approx((8 - done) / 8)
    assert set(made.center_history().filter(round=8)["rest"]) == {"privacy"}
    shorter = run(method, rounds=done, dp_epsilon=2.0, clip=1.0, noise_multiplier=4.0)
    assert np.array_equal(made.models, shorter.models)  # nothing more was learned from rows


def test_a_reviewer_computes_epsilon_again_from_the_file(tmp_path):
    made = run("abps-pq-k1-hom", dp_epsilon=5.0, clip=1.0)
    save(made, tmp_path)
    content = json.loads((tmp_path / PRIVACY).read_text())
    assert recount(content).wrong == () and 0 < recount(content).most <= 5.0
    first = next(iter(content["centers"].values()))
    assert [r["what"] for r in first["releases"]] == ["metadata"] + ["training"] * 4
    first["epsilon"] = 1.0  # a nicer number
    assert recount(content).wrong == (next(iter(content["centers"])),)
    assert PrivacyLedger.from_json(content).not_covered
    with pytest.raises(RequestError, match="ledger"):
        PrivacyLedger.from_json({"schema": "x"})


def test_what_is_published_gets_noise_by_its_sensitivity():
    names = ("positive rate", "log training rows", "mean year / 2030", "prevalence of dm")
    random = np.random.default_rng(0)
    vector = np.array([0.5, np.log(400), 1.0, 0.4])
    told = np.stack([noisy(names, vector, 400, 2.0, random) for _ in range(4000)])
    expected = 2.0 * 2.0 * sensitivity(names) / 400  # noise, the root of four entries
    np.testing.assert_allclose(told.std(axis=0), expected, rtol=0.06)
    # One row more or less moves the vector, in units of the sensitivities, by at most root four.
    n, rows = 400, 200
    for change in (1, 0):
        other = np.array(
            [(rows + change) / (n + 1), np.log(n + 1), (n * 1.0 + 1900 / 2030) / (n + 1), 161 / (n + 1)]
        )
        base = np.array([rows / n, np.log(n), 1.0, 160 / n])
        assert np.linalg.norm((other - base) / (sensitivity(names) / n)) <= 2.0


def test_methods_that_cannot_be_accounted_are_refused():
    with pytest.raises(RequestError, match="set clip"):
        run(dp_epsilon=1.0)
    with pytest.raises(RequestError, match="once"):
        run("ditto", dp_epsilon=4.0, clip=1.0)
