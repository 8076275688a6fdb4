"""Masked sums between sites: the simulation's models, and a conductor that sees no summand and cannot lie."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.engine.simulate import simulate
from abps.sites.consent.keys import read_signer
from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.masking import Masking
from abps.sites.protocol.steps import Timeouts

from .network import close, open_site

QUICK = Timeouts(poll=0.0)


class Relay(LoopbackNetwork):
    """Keeps everything that goes through the conductor, and may change or lose it."""

    def __init__(self, change=lambda name, what, value: value):
        super().__init__()
        self.seen, self.change = [], change

    def ask(self, sites, what, *arguments, seconds):
        said, failed = super().ask(sites, what, *arguments, seconds=seconds)
        self.seen += [(what, name, value) for name, value in said.items()]
        changed = {name: self.change(name, what, value) for name, value in said.items()}
        lost = {name for name, value in changed.items() if value is LOST}
        kept = {name: value for name, value in changed.items() if name not in lost}
        return kept, failed | dict.fromkeys(lost, "lost")


LOST = object()


class Looking(Relay):
    """Also keeps the summands as they were before they were masked, which only sites see."""

    def __init__(self, change=lambda name, what, value: value):
        super().__init__(change)
        self.taken = {}

    def ask(self, sites, what, *arguments, seconds):
        if what == "sum_masked":
            self.taken.update({name: self.sites[name].sums.summand.copy() for name in sites})
        return super().ask(sites, what, *arguments, seconds=seconds)


def job(given, agreement, folder, rounds, network=None, **more):
    network = network or Relay()
    for name in given.names:
        open_site(given, name, agreement, folder, network, **more.get(name, {}))
    return network, Scheduler(network, agreement, rounds, QUICK).run(given.names)


@pytest.mark.parametrize(("method", "settings"), [("fedavg", {}), ("scaffold", {}), ("feddyn", {})])
def test_sites_do_what_the_simulation_does(four, tmp_path, method, settings):
    agreement = four.agreement(method, rounds=2, secure="yes", **settings)
    network, report = job(four, agreement, tmp_path, 2)
    run = simulate(four.together, method, 11, 2, {"secure": "yes", **settings})
    models = np.stack([network.sites[name].models[0] for name in four.names])
    np.testing.assert_allclose(models, run.models, atol=2e-5)
    told = report.to_json()["bytes"]
    assert told == {"edge": run.bytes.edge, "directed": run.bytes.directed, "control": run.bytes.control}
    close(network)


def test_the_conductor_gets_no_summand_and_no_upload(four, tmp_path):
    agreement = four.agreement("fedavg", rounds=1, secure="yes")
    network, _ = job(four, agreement, tmp_path, 1, Looking())
    taken = network.taken
    masked = {name: np.frombuffer(value, "<u8") for what, name, value in network.seen if what == "sum_masked"}
    assert set(masked) == set(taken) == set(four.names)
    for name, words in masked.items():
        plain = np.rint(taken[name] * 2.0**20).astype(np.int64).view(np.uint64)
        assert not np.any(words == plain)
        # A summand is small: its words begin with zeros or ones. Masked ones do not.
        assert np.mean((words >> np.uint64(56)) % np.uint64(255) == 0) < 0.05
        assert np.mean((plain >> np.uint64(56)) % np.uint64(255) == 0) > 0.95
    for site in network.sites.values():
        with pytest.raises(RequestError, match="out of step"):
            site.upload(1)
        assert {e.kind for e in site.store.traffic(1)} >= {"mask", "weights"}
    close(network)


def test_a_site_that_falls_away_is_left_out_of_the_sum(six, tmp_path):
    gone = six.names[3]
    agreement = six.agreement("fedavg", rounds=1, secure="yes")

    def lose(name, what, value):
        return LOST if (name, what) == (gone, "sum_masked") else value

    network, report = job(six, agreement, tmp_path, 1, Looking(lose))
    taken = network.taken
    assert report.rounds[0].missing == {gone: "lost"}
    rest = np.stack([taken[name] for name in six.names if name != gone])
    mean = rest.sum(axis=0)[:-1] / rest.sum(axis=0)[-1]
    for name in set(six.names) - {gone}:
        np.testing.assert_allclose(network.sites[name].models[0], mean, atol=1e-5)
    close(network)


@pytest.mark.parametrize("what", ["sum_keys", "sum_shares", "sum_present", "sum_open"])
def test_a_conductor_that_alters_what_it_carries_gets_no_sum(four, tmp_path, what):
    agreement = four.agreement("fedavg", rounds=1, secure="yes")

    def alter(name, step, value):
        if step != what or name != four.names[0]:
            return value
        if step == "sum_shares":
            return {k: v[:-1] + bytes([v[-1] ^ 1]) for k, v in value.items()}
        if step == "sum_open":
            return [{k: bytes(33) for k in value[0]}, value[1]]
        return value[:-1] + bytes([value[-1] ^ 1]) if isinstance(value, bytes) else [bytes(32), *value[1:]]

    words = []
    network = Relay(alter)
    for name in four.names:
        open_site(four, name, agreement, tmp_path, network)
    Scheduler(network, agreement, 1, QUICK, tell=words.append).run(four.names)
    assert any("no sum" in line for line in words)
    rests = [site.store.rounds()[0].rest for site in network.sites.values()]
    assert all(rest for rest in rests)
    close(network)


def test_no_sum_is_begun_twice_and_strangers_have_no_part():
    names = ("a", "b", "c")
    sites = {name: Masking(name, "study/job") for name in names}
    told = {name: site.introduction() for name, site in sites.items()}
    assert all(site.meet(told) == [] for site in sites.values())
    sites["a"].keys(2, names)
    for round, who in ((2, names), (1, names), (3, ("a", "b", "stranger")), (3, ("b", "c")), (3, ("a", "b"))):
        with pytest.raises(RequestError):
            sites["a"].keys(round, who)
    with pytest.raises(RequestError, match="no sum of round 5"):
        sites["a"].shares(5, {})
    again = Masking("b", "study/job")  # it was away, and comes back with another key
    assert (
        sites["a"].meet({"b": again.introduction()}) == []
        and again.meet(told | {"b": again.introduction()}) == []
    )
    sites["a"].keys(4, names)


def test_a_relay_cannot_stand_in_for_a_site(four, tmp_path):
    """With certificates, a key that the site's own kit has not signed is not taken."""
    kits = pytest.importorskip("abps.sites.flare.kits")
    network = kits.provision(tmp_path / "kits", four.names, "localhost", 18997)
    root = (network.sites[four.names[0]] / "startup" / "rootCA.pem").read_bytes()
    sites = {name: Masking(name, "study/job", read_signer(network.sites[name]), root) for name in four.names}
    told = {name: site.introduction() for name, site in sites.items()}
    first, second = four.names[:2]
    assert sites[first].meet(told) == []
    forged = Masking(second, "study/job").introduction()
    for lie in (
        forged,  # a key of its own, unsigned
        [forged[0], told[second][1], told[second][2]],  # with the site's certificate and signature
        told[four.names[2]],  # another member's
        Masking(
            second, "another/job", read_signer(network.sites[second]), root
        ).introduction(),  # of another job
    ):
        fresh = Masking(first, "study/job", read_signer(network.sites[first]), root)
        assert fresh.meet({**told, second: lie}) == [second]
        with pytest.raises(RequestError, match="no member of the sum"):
            fresh.keys(1, four.names)


@pytest.mark.parametrize("method", ["abps-pq-k1", "ifca"])
def test_an_agreement_whose_sums_are_none_is_refused(four, method):
    agreement = replace(four.agreement(method, rounds=1), settings={"secure": "yes"})
    with pytest.raises(RequestError, match="secure=yes"):
        agreement.config()
    assert json.dumps(agreement.to_json())
