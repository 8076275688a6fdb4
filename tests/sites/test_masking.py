"""Masked sums between sites: the simulation's models, and a relay that sees no summand and cannot lie."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.engine.simulate import simulate
from abps.sites.consent.approval import Consent
from abps.sites.consent.journal import Journal
from abps.sites.consent.keys import read_signer
from abps.sites.consent.proposal import Proposal, SignedProposal
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Command, Timeouts
from abps.sites.protocol.decline_codes import DeclineCode, DeclineError, Failure
from abps.sites.protocol.masking import Masking

from .loopback import LoopbackNetwork
from .network import OPEN, close, open_site

QUICK = Timeouts(poll=0.0)


class Relay(LoopbackNetwork):
    """Keeps everything that goes through the relay, and may change or lose it."""

    def __init__(self, change=lambda name, what, value: value):
        super().__init__()
        self.seen, self.change = [], change

    def ask(self, sites, what, *arguments, seconds):
        said, failed = super().ask(sites, what, *arguments, seconds=seconds)
        self.seen += [(what, name, value) for name, value in said.items()]
        changed = {name: self.change(name, what, value) for name, value in said.items()}
        lost = {name for name, value in changed.items() if value is LOST}
        kept = {name: value for name, value in changed.items() if name not in lost}
        return kept, failed | dict.fromkeys(lost, Failure(DeclineCode.UNREACHABLE, "lost"))


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


@pytest.mark.parametrize(("method", "settings"), [("fedavg", {}), ("scaffold", {})])
def test_sites_do_what_the_simulation_does(four, tmp_path, method, settings):
    agreement = four.agreement(method, rounds=2, secure="yes", **settings)
    network, report = job(four, agreement, tmp_path, 2)
    run = simulate(four.together, method, 11, 2, {"secure": "yes", **settings})
    models = np.stack([network.sites[name].models[0] for name in four.names])
    np.testing.assert_allclose(models, run.models, atol=2e-5)
    told = report.to_json()["bytes"]
    assert told == {"edge": run.bytes.edge, "directed": run.bytes.directed, "control": run.bytes.control}
    close(network)


def test_the_relay_gets_no_summand_and_no_upload(four, tmp_path):
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
            site.star.upload(1)
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
def test_a_relay_that_alters_what_it_carries_gets_no_sum(four, tmp_path, what):
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
    Scheduler(network, agreement, 1, QUICK, log=words.append).run(four.names)
    assert any("no sum" in line for line in words)
    rests = [site.store.rounds()[0].rest for site in network.sites.values()]
    assert all(rest for rest in rests)
    close(network)


def test_no_sum_is_begun_twice_and_strangers_have_no_part():
    names = ("a", "b", "c")
    sites = {name: Masking(name, "study/job") for name in names}
    introductions = {name: site.introduction() for name, site in sites.items()}
    assert all(site.meet(introductions) == [] for site in sites.values())
    sites["a"].keys(2, names)
    for round, group in ((2, names), (1, names), (3, ("b", "c")), (3, ("a", "b"))):
        with pytest.raises(RequestError):
            sites["a"].keys(round, group)
    with pytest.raises(RequestError, match="no sum of round 5"):
        sites["a"].shares(5, {})
    again = Masking("b", "study/job")  # it was away, and comes back with another key
    assert sites["a"].meet({"b": again.introduction()}) == []
    own = sites["a"].keys(4, ("a", "b", "c", "stranger"))
    stranger = Masking("stranger", "study/job")
    stranger.meet(introductions)
    keys = {"a": own, "stranger": stranger.keys(4, ("a", "b", "c", "stranger"))}
    with pytest.raises(RequestError, match="not signed"):  # it never introduced itself
        sites["a"].shares(4, keys | {"b": again.keys(4, ("a", "b", "c", "stranger"))})


@pytest.mark.parametrize("group", [("site-1", "site-5", "site-6"), ("site-1", "site-2", "site-3", "site-4")])
def test_a_relay_with_two_members_opens_no_sum_of_its_own_choice(six, tmp_path, group):
    """It names a group of its friends and one victim: once, their sum showed the victim's numbers."""

    class Choosing(Relay):
        def ask(self, sites, command, *arguments, seconds):
            if command is Command.SUM_KEYS:
                sites, arguments = [n for n in sites if n in group], (arguments[0], list(group))
            return super().ask(sites, command, *arguments, seconds=seconds)

    words = []
    network = Choosing()
    agreement = six.agreement("fedavg", rounds=1, secure="yes")
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    Scheduler(network, agreement, 1, QUICK, log=words.append).run(six.names)
    assert any("no sum" in line for line in words)
    assert not any(command == "sum_masked" for command, _, _ in network.seen)
    close(network)


@pytest.mark.parametrize("named", [2, 5, 6])
def test_a_site_joins_no_job_with_a_few_of_the_approved_members(six, tmp_path, named):
    signed = SignedProposal(Proposal("test", six.agreement("fedavg", rounds=1), six.names))
    consent = Consent(tmp_path, Journal(tmp_path / "journal"), OPEN, signed, None)
    roster = six.names[:named]
    if named >= 5:  # more than two thirds: members may have been revoked since
        consent.members(roster)
        return
    with pytest.raises(DeclineError, match="2 of the 6 members"):
        consent.members(roster)


def test_a_relay_cannot_stand_in_for_a_site(four, tmp_path):
    """With certificates, a key that the site's own kit has not signed is not taken."""
    kits = pytest.importorskip("abps.sites.flare.kits")
    network = kits.provision(tmp_path / "kits", four.names, "localhost", 18997)
    root = (network.sites[four.names[0]] / "startup" / "rootCA.pem").read_bytes()
    sites = {name: Masking(name, "study/job", read_signer(network.sites[name]), root) for name in four.names}
    introductions = {name: site.introduction() for name, site in sites.items()}
    first, second = four.names[:2]
    for site in sites.values():
        assert site.meet(introductions) == []
    forged = Masking(second, "study/job").introduction()
    for lie in (
        forged,  # a key of its own, unsigned
        [
            forged[0],
            introductions[second][1],
            introductions[second][2],
        ],  # with its certificate
        introductions[four.names[2]],  # another member's
        Masking(
            second, "another/job", read_signer(network.sites[second]), root
        ).introduction(),  # of another job
    ):
        fresh = Masking(first, "study/job", read_signer(network.sites[first]), root)
        assert fresh.meet({**introductions, second: lie}) == [second]
        keys = {name: site.keys(1, four.names) for name, site in sites.items() if name != first}
        keys |= {first: fresh.keys(1, four.names)}
        with pytest.raises(RequestError, match="not signed"):  # no sum with it
            fresh.shares(1, keys)
        for name, site in sites.items():
            sites[name] = Masking(name, "study/job", site.signer, root, site._identity)
            sites[name].meet(introductions)


@pytest.mark.parametrize("method", ["abps-pq-k1"])
def test_an_agreement_whose_sums_are_none_is_refused(four, method):
    agreement = replace(four.agreement(method, rounds=1), settings={"secure": "yes"})
    with pytest.raises(RequestError, match="secure=yes"):
        agreement.config()
    assert json.dumps(agreement.to_json())
