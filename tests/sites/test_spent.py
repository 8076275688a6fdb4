"""The privacy account at a site: paid before anything leaves, and computed anew by a reviewer."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest

from abps.cli.main import main
from abps.core.errors import RequestError
from abps.engine.simulate import simulate
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.node import status
from abps.sites.node.context import account_of
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.store import Store

from .loopback import LoopbackNetwork
from .network import close, join, open_site

QUICK = Timeouts(poll=0.0)
SMALL = {"model": "linear", "standardise": "own", "epochs": 1, "clip": 1.0, "secure": "yes"}
#: Two rounds are affordable, a third is not.
SHORT = SMALL | {"dp_epsilon": 2.0, "noise_multiplier": 4.0}


def opened(given, agreement, folder):
    network = LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network)
    return network


def job(given, agreement, folder, rounds):
    network = opened(given, agreement, folder)
    return network, Scheduler(network, agreement, rounds, QUICK).run(given.names)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_sites_spend_what_the_simulation_spends(four, tmp_path, method):
    settings = SMALL | {"dp_epsilon": 5.0}
    network, _ = job(four, four.agreement(method, rounds=2, **settings), tmp_path, 2)
    run = simulate(four.together, method, 11, 2, settings)
    for k, name in enumerate(four.names):
        site = network.sites[name]
        np.testing.assert_allclose(site.models[0], run.models[k], atol=1e-5)
        assert account_of(site.store) == run.privacy.accounts[name]
        assert status.summary(site.store)["epsilon"] == pytest.approx(account_of(site.store).spent())
        assert account_of(site.store).spent() <= 5.0
    close(network)


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_a_spent_account_ends_in_rest_with_that_reason(four, tmp_path, method):
    run = simulate(four.together, method, 11, 6, SHORT)
    done = round(6 * (1 - run.rest.privacy))
    assert 0 < done < 6
    network, report = job(four, four.agreement(method, rounds=6, **SHORT), tmp_path, 6)
    assert len(report.rounds) == 6 and not any(r.missing for r in report.rounds)
    for k, name in enumerate(four.names):
        store = network.sites[name].store
        rests = [row.rest for row in store.rounds()]
        assert rests[done:] == ["privacy account spent"] * (6 - done)
        assert "privacy account spent" not in rests[:done]
        assert account_of(store).spent() <= 2.0
        np.testing.assert_allclose(network.sites[name].models[0], run.models[k], atol=1e-5)
        sent = [e for e in store.traffic() if e.sent and e.kind == "upload"]
        assert all(e.round <= done for e in sent)
    close(network)


def test_an_account_goes_on_from_job_to_job(four, tmp_path):
    agreement = four.agreement("fedavg", rounds=3, **(SMALL | {"dp_epsilon": 5.0}))
    for _ in range(2):
        network, _ = job(four, agreement, tmp_path, 1)
        close(network)
    with closing(Store.look(tmp_path / f"{four.names[0]}.sqlite")) as store:
        assert [(r.round, r.what) for r in account_of(store).releases] == [(1, "training"), (2, "training")]


def test_a_round_that_is_begun_again_is_paid_again(four, tmp_path):
    """A site that was killed after it had trained may have sent something: the noise of both counts."""
    agreement = four.agreement("fedavg", rounds=3, **(SMALL | {"dp_epsilon": 5.0}))
    for _ in range(2):
        network = opened(four, agreement, tmp_path)
        site = network.sites[four.names[0]]
        join(site, four.names)
        site.begin(1, four.names)
        with closing(Store.look(site.store.path)) as seen:  # on disk before it trains
            paid = [r.round for r in account_of(seen).releases]
        site.exchanges.contribute(1)
        close(network)
    assert paid == [1, 1]


def test_a_reviewer_computes_epsilon_again_from_an_export(four, tmp_path, capsys):
    network, _ = job(four, four.agreement("fedavg", rounds=2, **SHORT), tmp_path / "stores", 2)
    for name in four.names[:2]:
        status.export(network.sites[name].store, tmp_path / "exports" / name)
    close(network)

    def audit():
        with pytest.raises(SystemExit) as stop:
            main(["audit-privacy", str(tmp_path / "exports")])
        return stop.value.code

    assert audit() == 0
    said = capsys.readouterr().out
    assert said.count("as it is written") == 2
    path = tmp_path / "exports" / four.names[0] / "privacy.json"
    ledger = json.loads(path.read_text())
    ledger["centers"][four.names[0]]["releases"][0]["noise"] = 1.0
    path.write_text(json.dumps(ledger))
    assert audit() == 2 and "does not follow" in capsys.readouterr().err


def test_without_a_limit_nothing_is_kept(four, tmp_path):
    endless = four.agreement("fedavg", rounds=1, **(SMALL | {"clip": None, "dp_epsilon": float("inf")}))
    plain = four.agreement("fedavg", rounds=1, **(SMALL | {"clip": None}))
    models = []
    for k, agreement in enumerate((endless, plain)):
        network, _ = job(four, agreement, tmp_path / str(k), 1)
        assert all(account_of(site.store) is None for site in network.sites.values())
        models.append(np.stack([site.models[0] for site in network.sites.values()]))
        close(network)
    assert np.array_equal(*models)


def test_a_budget_without_private_training_is_refused(four):
    with pytest.raises(RequestError, match="set clip"):
        four.agreement("fedavg", rounds=1, **(SMALL | {"clip": None, "dp_epsilon": 2.0})).config()
