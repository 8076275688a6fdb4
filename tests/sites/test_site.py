"""Real sites in one process: the simulation's answers without trouble, and no harm with it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.engine.simulate import simulate
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Command, Timeouts
from abps.wire.messages import pack_broadcast, pack_request, pack_upload
from abps.wire.number_lists import Field, NumberList

from .loopback import LoopbackNetwork
from .network import LINEAR, close, join, open_site

QUICK = Timeouts(poll=0.0)


def job(given, agreement, folder, rounds=5, network=None, **more):
    """Open every site, run a job, and leave the sites open."""
    network = network or LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network, **more)
    return network, Scheduler(network, agreement, rounds, QUICK).run(given.names)


@pytest.mark.parametrize("setting", [{"patience": "2"}, {"restore_best": "yes"}])
def test_sites_run_all_rounds(six, setting):
    with pytest.raises(RequestError, match="for simulations"):
        six.agreement("fedavg", rounds=12, secure="yes", **setting).config()


def test_several_short_jobs_are_one_long_one(six, tmp_path):
    """Sites are closed and opened again between jobs: nothing but the store remembers."""
    agreement = six.agreement("abps-plus", rounds=12, **LINEAR)
    for rounds in (2, 1, 2, 9):
        network, _ = job(six, agreement, tmp_path, rounds)
        close(network)
    network = LoopbackNetwork()
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    run = simulate(six.together, "abps-plus", seed=11, rounds=12, settings=LINEAR)
    models = np.stack([network.sites[name].models[0] for name in six.names])
    np.testing.assert_allclose(models, run.models, atol=1e-4)
    with pytest.raises(RequestError, match="nothing is left to do"):
        Scheduler(network, agreement, 1, QUICK).run(six.names)
    close(network)


def test_the_ledger_counts_the_bytes_that_were_carried(six, tmp_path):
    network, report = job(six, six.agreement("abps-plus", **LINEAR), tmp_path, 3)
    for name in six.names:
        carried: dict[str, int] = {}
        for sender, _, kind, size in network.carried:
            if sender == name:
                carried[kind] = carried.get(kind, 0) + size
        store = network.sites[name].store
        assert {k: v for k, v in store.sent_bytes().items() if k != "report"} == carried
        arrived = sum(size for _, receiver, _, size in network.carried if receiver == name)
        assert sum(entry.bytes for entry in store.traffic() if not entry.sent) == arrived
    assert sum(size for *_, size in network.carried) == report.to_json()["bytes"]
    words = [entry.why for entry in network.sites["site-1"].store.traffic() if entry.sent]
    assert any("our upload of round 1" in why for why in words)
    close(network)


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_get_lost_leave_all_with_the_same_exchanges(six, tmp_path, seed):
    """Payloads and answers get lost at random; with a working line, all arrive at one common model."""
    rng = random.Random(seed)
    network = LoopbackNetwork(lambda sender, receiver, kind, back: rng.random() < 0.35)
    agreement = six.agreement("abps-plus", rounds=20, **LINEAR)
    network, _ = job(six, agreement, tmp_path, rounds=4, network=network)
    assert network.carried and all(site.store.round == 4 for site in network.sites.values())
    network.trouble = lambda sender, receiver, kind, back: False
    report = Scheduler(network, agreement, 16, QUICK).run(six.names)
    assert report.stopped_early and all(r.missing == {} for r in report.rounds)
    assert len({site.context.state.fit.point.tobytes() for site in network.sites.values()}) == 1
    known = [site.store.broadcasts() for site in network.sites.values()]
    assert all(each == known[0] for each in known)
    close(network)


@pytest.mark.parametrize("seed", range(5))
def test_a_site_that_dies_at_any_moment_comes_back_whole(six, tmp_path, seed):
    """A site vanishes in the middle of a round; the others finish, and it is there in the next job."""
    rng = random.Random(100 + seed)
    agreement = six.agreement("abps-plus", rounds=20, **LINEAR)
    victim = rng.choice(six.names)
    network = LoopbackNetwork()
    left = rng.randrange(0, 12)

    def dies(sender: str, receiver: str, kind: str, back: bool) -> bool:
        nonlocal left
        if victim in (sender, receiver) and victim in network.sites:
            left -= 1
            if left < 0:
                dead = network.sites.pop(victim)
                dead.store.close()
        if victim not in network.sites and sender == victim:
            raise SiteIsGone  # nothing that the dead site was doing goes on
        return victim not in network.sites and receiver == victim

    network.trouble = dies
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 4, QUICK).run(six.names)
    others = [name for name in six.names if name != victim]
    assert all(network.sites[name].store.round == 4 for name in others)
    if victim not in network.sites:
        network.trouble = lambda sender, receiver, kind, back: False
        open_site(six, victim, agreement, tmp_path, network)
    again = Scheduler(network, agreement, 2, QUICK).run(six.names)
    assert again.first == 5 and all(r.missing == {} for r in again.rounds), report
    known = [site.store.broadcasts() for site in network.sites.values()]
    assert all(each == known[0] for each in known) and max(known[0]) == 6
    close(network)


class SiteIsGone(Exception):
    """What the scheduler learns of a site that died."""


class Waiting(LoopbackNetwork):
    """Time passes only while the scheduler waits for a site that is gone."""

    clock = 0.0

    def __init__(self, victim: str, dies_at: str) -> None:
        super().__init__()
        self.victim, self.dies_at = victim, dies_at

    def ask(self, sites, command, *arguments, seconds):
        if command is Command.START and arguments[:2] == (self.dies_at, 2) and self.victim in sites:
            self.sites.pop(self.victim).store.close()
        if self.victim in sites and self.victim not in self.sites:
            self.clock += seconds
        return super().ask(sites, command, *arguments, seconds=seconds)

    def now(self) -> float:
        return self.clock


@pytest.mark.parametrize("dies_at", [Command.CONTRIBUTE, Command.CONCLUDE])
def test_a_dead_site_is_waited_for_once_in_a_round(six, tmp_path, dies_at):
    """Whatever it was asked when it died: the seconds of a sign of life, not those of work or talk."""
    network = Waiting(six.names[2], dies_at)
    agreement = six.agreement("abps-plus", rounds=3, **LINEAR)
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 3, Timeouts(sign=5.0, poll=0.0)).run(six.names)
    assert [r.seconds for r in report.rounds] == [0.0, 5.0, 5.0]
    assert [set(r.missing) for r in report.rounds] == [set(), {network.victim}, {network.victim}]
    close(network)


def test_a_site_with_a_problem_is_left_out_and_named(six, tmp_path):
    agreement = six.agreement("abps-plus", **LINEAR)
    network = LoopbackNetwork()
    for name in six.names[:-1]:
        open_site(six, name, agreement, tmp_path, network)
    other = six.agreement("abps-plus", seed=12, **LINEAR)
    open_site(six, six.names[-1], other, tmp_path / "other", network)
    report = Scheduler(network, agreement, 1, QUICK).run([*six.names, "site-9"])
    assert set(report.left_out) == {six.names[-1], "site-9"}
    assert "another agreement" in report.left_out[six.names[-1]]
    assert six.names[-1] not in report.rounds[0].present
    close(network)
    with pytest.raises(RequestError, match="0 of 2 sites can take part"):
        Scheduler(LoopbackNetwork(), agreement, 1, QUICK).run(["a", "b"])


@pytest.fixture
def pair(six, tmp_path):
    """Two sites in the middle of round 1; the first does what the tests tell it to."""
    network = LoopbackNetwork()
    agreement = six.agreement("abps-plus", **LINEAR)
    sites = [open_site(six, name, agreement, tmp_path, network) for name in six.names[:2]]
    for site in sites:
        join(site, six.names[:2])
    for site in sites:
        site.begin(1, six.names[:2])
    yield sites
    close(network)


def test_what_an_unruly_peer_sends_is_refused_and_counted(pair):
    bad, good = pair
    me = bad.context.id
    numbers = NumberList.of(np.zeros(3), (Field("single", 3),)).data
    for kind, data, reason in (
        ("upload", b"x", "malformed"),
        ("upload", pack_upload(numbers, 9, me), "wrong round"),
        ("upload", pack_upload(numbers, 1, me + 1), "wrong sender"),
        ("upload", pack_upload(bytes(1 << 23), 1, me), "wrong size"),
        ("broadcast", pack_request(0, 1, me), "malformed"),
        ("request", pack_broadcast(numbers, 1, me), "malformed"),
        ("weights", b"...", "against the protocol"),
        ("pickle", b"...", "against the protocol"),
    ):
        before = good.store.refusals().get((bad.name, reason), 0)
        assert good.receive(bad.name, kind, data) == b""
        assert good.store.refusals()[(bad.name, reason)] == before + 1
    assert good.receive("eve", "upload", b"") == b"" and ("eve", "not a member") in good.store.refusals()


def test_a_flood_of_messages_is_cut_off(pair):
    bad, good = pair
    for _ in range(good.context.terms.limits.per_round + 50):
        good.receive(bad.name, "upload", b"")
    assert good.store.refusals()[(bad.name, "too many messages")] >= 50


def test_a_peer_that_is_refused_too_often_is_not_heard_any_more(pair):
    bad, good = pair
    for _ in range(good.context.terms.limits.refusals):
        good.receive(bad.name, "upload", b"x")
    assert good.receive(bad.name, "request", pack_request(0, 1, bad.context.id)) == b""
    assert good.store.refusals()[(bad.name, "in quarantine")] == 1


def test_a_scheduler_out_of_step_gets_an_error_not_a_guess(pair):
    site = pair[0]
    for call in (site.exchanges.contribute, site.exchanges.coordinate, site.conclude):
        with pytest.raises(RequestError, match="out of step"):
            call(2)
    with pytest.raises(RequestError, match="not among the members"):
        join(site, ["a", "b"])
    with pytest.raises(RequestError, match=r"version 1\.3 of the wire format"):
        site.join(["site-1", "site-2"], 1, {}, [1, 3])


def test_a_finished_round_does_not_begin_again(pair):
    site = pair[0]
    site.conclude(1)
    with pytest.raises(RequestError, match="round 1 is over"):
        site.begin(1, ["site-1"])


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("abps-plus", {"budget": "400000"}, "does not run between sites: .*budget"),
        ("abps-plus", {"stepps": 3}, "did you mean 'steps'"),
        ("abpss", {}, "no method 'abpss'"),
    ],
)
def test_an_agreement_that_cannot_be_run(six, method, settings, words):
    with pytest.raises(RequestError, match=words):
        six.agreement(method, **settings).config()


def test_an_agreement_survives_the_journey(six):
    agreement = six.agreement("abps-plus", seed=3, steps=4)
    back = type(agreement).from_json(agreement.to_json())
    assert back == agreement and back.digest() == agreement.digest()
    assert agreement.digest() != six.agreement("abps-plus", seed=4, steps=4).digest()
    for broken in (None, {}, {"schema": "abps.agreement/2"}, agreement.to_json() | {"seed": "x"}):
        with pytest.raises(RequestError):
            type(agreement).from_json(broken)
