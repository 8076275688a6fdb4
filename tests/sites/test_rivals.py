"""Every method that can: between real sites it is what it is in the simulation."""

from __future__ import annotations

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.engine.simulate import simulate
from abps.methods.catalog import CATALOG
from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.steps import Timeouts

from .network import close, open_site

QUICK = Timeouts(poll=0.0)

STAR = ["fedprox", "fedavg-p", "fedavgm", "feddyn", "moon", "bnn", "scaffold", "fedrep", "ditto"]
CASES = [(name, {}) for name in STAR] + [
    ("local", {}),
    ("fedprox", {"mu": "0.5", "weighting": "uniform", "codec": "int8", "reference": "start"}),
    ("scaffold", {"codec": "bf16", "server_lr": "0.7"}),
    ("fedavgm", {"budget": "1000000"}),
    ("ditto", {"evaluate": "global"}),
    ("decefl", {}),
    ("decefl", {"graph": "random", "order": "adapt-then-combine", "codec": "bf16", "private_layers": "1"}),
    ("dpsgd", {"graph": "changing-ring", "budget": "1500000"}),
    ("gossip", {"codec": "int4", "reference": "start"}),
    ("gossip", {}),
    ("defta", {}),
    ("defta", {"links": "pull"}),
    ("defta", {"links": "pull", "pool": "3", "budget": "2000000"}),
    ("random-k1", {}),
    ("pfedgraph", {"lam": "0.05"}),
    ("pfedgraph", {"codec": "int8", "reference": "start", "private_layers": "1"}),
    ("dac", {"two_hop": "false", "peers": "2"}),
    ("dac-k1", {"two_hop": "false", "mix": "score"}),
    ("pens", {"sampled": "3", "best": "1", "first": "2", "later": "2"}),
    ("ifca", {"clusters": "2", "warmup": "2", "spread": "0.1", "codec": "int8"}),
    ("ifca-trunk", {"clusters": "3", "warmup": "0"}),
    ("facade", {"clusters": "2", "spread": "0.1"}),
    ("dfca", {"clusters": "2", "most": "3", "private_layers": "1"}),
    ("fedfomo", {"links": "pull", "peers": "2"}),
    ("ehrfl", {"warmup": "1", "near": "3"}),
    ("dpfl", {"candidates": "2"}),
    ("abps", {"policy": "random", "adopt": "if_helpful"}),
]


def job(given, agreement, folder, rounds, memory=None):
    network = LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network)
    return network, Scheduler(network, agreement, rounds, QUICK, memory=memory).run(given.names)


def same_models(network, names, run):
    models = np.stack([network.sites[name].models[0] for name in names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_sites_do_what_the_simulation_does(eight, tmp_path, method, settings):
    network, report = job(eight, eight.agreement(method, rounds=4, **settings), tmp_path, 4)
    run = simulate(eight.together, method, seed=11, rounds=4, settings=settings)
    told = report.to_json()["bytes"]
    assert (told["edge"], told["directed"], told["control"]) == (
        run.bytes.edge, run.bytes.directed, run.bytes.control,
    )  # fmt: skip
    assert told["edge"] > 0 or method == "local"
    same_models(network, eight.names, run)
    means = [r.validation for r in report.rounds]
    np.testing.assert_allclose(means, run.history.validation_auroc, atol=1e-9)
    stores = [network.sites[name].store for name in eight.names]
    for cause in (Rest.NO_CANDIDATES, Rest.ALL_FULL, Rest.BUDGET):
        shares = [np.mean([s.rounds()[t].rest == cause.words for s in stores]) for t in range(4)]
        assert shares == pytest.approx(list(run.history.rest_causes[cause.key])), cause
    if CATALOG[method].family not in ("star", "reference"):
        partners = np.mean([len(row.partners) for s in stores for row in s.rounds()])
        assert partners == pytest.approx(run.partners_mean)
    beside = ("told", "place")  # what the log has and the ledger has not
    sent = sum(size for s in stores for kind, size in s.sent_bytes().items() if kind not in beside)
    down = sum(e.bytes for s in stores for e in s.traffic() if not e.sent and e.peer == "server")
    assert sent + down == told["directed"] + told["control"]
    close(network)


@pytest.mark.parametrize(
    "method", ["scaffold", "fedavgm", "feddyn", "ditto", "moon", "gossip", "defta", "pens", "ifca"]
)
def test_several_short_jobs_are_one_long_one(six, tmp_path, method):
    """Sites and server are closed between jobs: nothing but what they wrote down is remembered."""
    agreement = six.agreement(method, rounds=4)
    for rounds in (1, 2, 1):
        network, _ = job(six, agreement, tmp_path, rounds, tmp_path / "server")
        same = network
        close(network)
    same_models(same, six.names, simulate(six.together, method, seed=11, rounds=4))


def test_a_server_that_lost_its_memory_says_so(six, tmp_path):
    agreement = six.agreement("fedavgm", rounds=4)
    network, _ = job(six, agreement, tmp_path, 1, tmp_path / "server")
    close(network)
    with pytest.raises(RequestError, match="what its server remembered of the round before is not here"):
        job(six, agreement, tmp_path, 1, tmp_path / "another")


def test_a_member_that_joins_later_and_one_that_left(six, tmp_path):
    """What is remembered of a member that is away stays; who comes anew is a stranger."""
    agreement = six.agreement("abps", rounds=9, kappa="2")
    network = LoopbackNetwork()
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    first, late, gone = six.names[0], six.names[-1], six.names[1]
    Scheduler(network, agreement, 3, QUICK).run(six.names[:-1])
    before = network.sites[first].store.beliefs()
    assert late not in before and network.sites[first].site_context.members == six.names[:-1]
    Scheduler(network, agreement, 3, QUICK).run([name for name in six.names if name != gone])
    after = network.sites[first].store.beliefs()
    assert network.sites[first].site_context.members == six.names
    assert all(after[peer].count >= evidence.count for peer, evidence in before.items())
    assert after.get(gone) == before.get(gone) and before.get(gone) is not None
    close(network)


def test_a_store_of_the_old_form_is_refused_in_a_sentence(six, tmp_path):
    agreement = six.agreement("abps", rounds=3)
    network, _ = job(six, agreement, tmp_path, 1)
    store = network.sites[six.names[0]].store
    with store._change() as db:
        db.execute("DELETE FROM state")
        db.execute("INSERT OR REPLACE INTO fact VALUES ('digest', ?)", (store._digest(),))
    close(network)
    with pytest.raises(RequestError, match="older abps"):
        open_site(six, six.names[0], agreement, tmp_path, LoopbackNetwork())
