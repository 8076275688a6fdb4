"""Real sites in one process: the simulation's answers without trouble, and no harm with it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.core.protocol import Kind, Message
from abps.engine.simulate import simulate
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.node.transport import Retries, UnreachableError
from abps.sites.protocol.commands import Command, Timeouts
from abps.wire.codecs import codec
from abps.wire.frames import pack
from abps.wire.messages import pack_message, pack_vector

from .loopback import LoopbackNetwork
from .network import agree_about_partners, close, counted_once, join, open_site, same_beliefs

QUICK = Timeouts(poll=0.0)


def job(given, agreement, folder, rounds=5, network=None, **more):
    """Open every site, run a job, and leave the sites open."""
    network = network or LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network, **more)
    return network, Scheduler(network, agreement, rounds, QUICK).run(given.names)


#: One case per mechanism of an exchange: pairs (capacity, goals and proposer's own check, codec and private
#: layers, abstaining), a star with one and with several messages, with the server's memory; nobody at all.
PARITY = [
    ("abps", {"kappa": "3", "adopt": "if_helpful", "weighting": "uniform"}),
    ("abps-pq-k1", {"goals": "homogeneity,diversity,none,alignment,none,none", "proposer_check": "yes"}),
    ("abps-pq-k1", {"codec": "int4", "reference": "start", "private_layers": "1", "gamma": "0.05"}),
    ("abps-x", {"tau_scope": "per_center"}),
    ("random-k1", {}),
    ("fedavg", {"codec": "int8", "reference": "start"}),
    ("feddyn", {}),
    ("local", {}),
]


@pytest.mark.parametrize(("method", "settings"), PARITY)
def test_sites_do_what_the_simulation_does(six, tmp_path, method, settings):
    agreement = six.agreement(method, rounds=4, **settings)
    network, report = job(six, agreement, tmp_path, 4)
    run = simulate(six.together, method, seed=11, rounds=4, settings=settings)
    spent = report.to_json()["bytes"]
    assert (spent["edge"], spent["directed"], spent["control"]) == (
        run.bytes.edge, run.bytes.directed, run.bytes.control,
    )  # fmt: skip
    assert spent["edge"] > 0 or method == "local"
    models = np.stack([network.sites[name].models[0] for name in six.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    means = [r.validation for r in report.rounds]
    np.testing.assert_allclose(means, run.history.validation_auroc, atol=1e-9)
    stores = {name: network.sites[name].store for name in six.names}
    for cause in (Rest.NO_CANDIDATES, Rest.ALL_FULL, Rest.DECLINED):
        shares = [np.mean([s.rounds()[t].rest == cause.words for s in stores.values()]) for t in range(4)]
        assert shares == pytest.approx(list(run.history.rest_causes[cause.key])), cause
    if run.beliefs is not None:
        same_beliefs(stores, run.beliefs)
    if agreement.config().kind == "mutual":
        rows = run.decisions.filter(run.decisions["decision"] == "accepted")
        partners = {name: {t: set() for t in range(1, 5)} for name in six.names}
        for t, center, peer in rows.select("round", "center", "peer").iter_rows():
            partners[center][t].add(peer)
            partners[peer][t].add(center)
        for name, store in stores.items():
            assert {r.number: set(r.partners) for r in store.rounds()} == partners[name]
    close(network)


def test_early_stopping_at_the_same_round(six, tmp_path):
    settings = {"patience": "2", "min_delta": "0.02", "restore_best": "yes"}
    agreement = six.agreement("abps-pq-k1", rounds=12, **settings)
    network, report = job(six, agreement, tmp_path, rounds=12)
    run = simulate(six.together, "abps-pq-k1", seed=11, rounds=12, settings=settings)
    assert report.stopped_early and len(report.rounds) == run.rounds < 12
    best = np.stack([network.sites[name].store.model("best") for name in six.names])
    np.testing.assert_allclose(best, run.models, atol=1e-5)
    close(network)


def test_several_short_jobs_are_one_long_one(six, tmp_path):
    """Sites are closed and opened again between jobs: nothing but the store remembers."""
    settings = {"discount": "0.8"}
    agreement = six.agreement("abps", rounds=5, **settings)
    for rounds in (2, 1, 2):
        network, _ = job(six, agreement, tmp_path, rounds)
        close(network)
    network = LoopbackNetwork()
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    run = simulate(six.together, "abps", seed=11, rounds=5, settings=settings)
    same_beliefs({name: network.sites[name].store for name in six.names}, run.beliefs)
    models = np.stack([network.sites[name].models[0] for name in six.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    with pytest.raises(RequestError, match="has had its 5 rounds"):
        Scheduler(network, agreement, 1, QUICK).run(six.names)
    close(network)


def test_the_ledger_counts_the_bytes_that_were_carried(six, tmp_path):
    network, report = job(six, six.agreement("abps"), tmp_path, 3)
    for name in six.names:
        carried: dict[str, int] = {}
        for sender, _, kind, size in network.carried:
            if sender == name:
                carried[kind] = carried.get(kind, 0) + size
        store = network.sites[name].store
        assert {k: v for k, v in store.sent_bytes().items() if k != "report"} == carried
        arrived = sum(size for _, receiver, _, size in network.carried if receiver == name)
        assert sum(entry.bytes for entry in store.traffic() if not entry.sent) == arrived
    spent = report.to_json()["bytes"]
    assert sum(size for *_, size in network.carried) == spent["directed"] + spent["control"]
    words = [entry.why for entry in network.sites["site-1"].store.traffic() if entry.sent]
    assert any("metadata vector" in why for why in words) and any("shared layers" in why for why in words)
    close(network)


@pytest.mark.parametrize("seed", range(3))
def test_messages_that_get_lost_leave_no_half_match(six, tmp_path, seed):
    """Payloads and answers get lost at random; afterwards, with a working line, all is settled."""
    rng = random.Random(seed)
    network = LoopbackNetwork(lambda sender, receiver, kind, back: rng.random() < 0.25)
    agreement = six.agreement("abps", kappa=2)
    network, _ = job(six, agreement, tmp_path, rounds=4, network=network, retries=Retries(repeats=1))
    stores = {name: site.store for name, site in network.sites.items()}
    assert all(site.store.round == 4 for site in network.sites.values())
    agree_about_partners(stores, kappa=2, doubt=True)
    network.trouble = lambda sender, receiver, kind, back: False
    for site in network.sites.values():  # the next job begins with settling
        join(site, six.names, 5)
    for site in network.sites.values():
        site.negotiation.catch_up()
    agree_about_partners(stores, kappa=2, doubt=False)
    assert sum(len(s.observations()) for s in stores.values()) > 0
    for store in stores.values():
        counted_once(store)
    close(network)


@pytest.mark.parametrize("seed", range(5))
def test_a_site_that_dies_at_any_moment_comes_back_whole(six, tmp_path, seed):
    """A site vanishes in the middle of a round; the others finish, and it is there in the next job."""
    rng = random.Random(100 + seed)
    agreement = six.agreement("abps", kappa=2, rounds=20)
    victim = rng.choice(six.names)
    network = LoopbackNetwork()
    left = rng.randrange(0, 70)

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
        open_site(six, name, agreement, tmp_path, network, retries=Retries(repeats=1))
    report = Scheduler(network, agreement, 4, QUICK).run(six.names)
    others = [name for name in six.names if name != victim]
    assert all(network.sites[name].store.round == 4 for name in others)
    if victim not in network.sites:
        network.trouble = lambda sender, receiver, kind, back: False
        open_site(six, victim, agreement, tmp_path, network)
    before = network.sites[victim].store.beliefs()
    again = Scheduler(network, agreement, 2, QUICK).run(six.names)
    assert again.first == 5 and all(r.missing == {} for r in again.rounds), report
    stores = {name: site.store for name, site in network.sites.items()}
    agree_about_partners(stores, kappa=2, doubt=False)
    for peer, evidence in before.items():
        assert stores[victim].beliefs()[peer].count >= evidence.count
    for store in stores.values():
        counted_once(store)
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


@pytest.mark.parametrize(
    "dies_at", [Command.TRAIN, Command.PROPOSE, Command.SETTLE, Command.EXCHANGE, Command.CONCLUDE]
)
def test_a_dead_site_is_waited_for_once_in_a_round(six, tmp_path, dies_at):
    """Whatever it was asked when it died: the seconds of a sign of life, not those of work or talk."""
    network = Waiting(six.names[2], dies_at)
    agreement = six.agreement("abps", rounds=3)
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 3, Timeouts(sign=5.0, poll=0.0)).run(six.names)
    assert [r.seconds for r in report.rounds] == [0.0, 5.0, 5.0]
    assert [set(r.missing) for r in report.rounds] == [set(), {network.victim}, {network.victim}]
    close(network)


def test_a_site_with_a_problem_is_left_out_and_named(six, tmp_path):
    agreement = six.agreement("abps")
    network = LoopbackNetwork()
    for name in six.names[:-1]:
        open_site(six, name, agreement, tmp_path, network)
    other = six.agreement("abps", seed=12)
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
    agreement = six.agreement("abps-pq-k1")
    sites = [open_site(six, name, agreement, tmp_path, network) for name in six.names[:2]]
    for site in sites:
        join(site, six.names[:2])
    for site in sites:
        site.publishing.introduce(1)
    for site in sites:
        site.train(1, six.names[:2])
    yield sites
    close(network)


def test_what_an_unruly_peer_sends_is_refused_and_counted(pair):
    bad, good = pair
    me = bad.context.id
    frame = pack(np.zeros(good.context.shared, dtype=np.float32), codec("bf16"), 1, me)
    vector = pack_vector(np.full(3, 7.0), 1, me)
    for kind, data, reason in (
        ("weights", frame, "not a partner"),
        ("message", b"x", "malformed"),
        ("message", pack_message(Message(Kind.PROPOSE, 9, 1), me), "wrong round"),
        ("message", pack_message(Message(Kind.PROPOSE, 1, 1), me + 1), "wrong sender"),
        ("message", pack_message(Message(Kind.CONFIRM, 1, 1), me), "against the protocol"),
        ("vector", vector, "implausible metadata"),
        ("upload", b"...", "against the protocol"),
        ("pickle", b"...", "against the protocol"),
    ):
        before = good.store.refusals().get((bad.name, reason), 0)
        assert good.receive(bad.name, kind, data) == b""
        assert good.store.refusals()[(bad.name, reason)] == before + 1
    assert good.receive("eve", "message", b"") == b"" and ("eve", "not a member") in good.store.refusals()
    assert not good.context.round.talks.partners and not good.context.round.arrived


def test_a_partner_that_sends_nonsense_is_not_mixed_in(pair):
    bad, good = pair
    assert bad.negotiation.propose(1) == 1 and good.context.round.talks.partners == {bad.name}
    weights = np.zeros(good.context.shared, dtype=np.float32)
    weights[3] = np.nan
    assert good.receive(bad.name, "weights", pack(weights, codec("bf16"), 1, bad.context.id)) == b""
    assert good.store.refusals() == {(bad.name, "not finite"): 1}
    good.negotiation.settle(1)
    trained = good.context.round.trained.models[0]
    good.conclude(1)
    assert good.store.observations() == {}
    np.testing.assert_array_equal(good.store.model(), trained)


def test_a_flood_of_messages_is_cut_off(pair):
    bad, good = pair
    good.gate._now = lambda: 0.0
    for _ in range(good.context.limits.burst + 50):
        good.receive(bad.name, "message", b"")
    assert good.store.refusals()[(bad.name, "too many messages")] >= 50


def test_a_vector_cannot_change_within_a_job(pair):
    bad, good = pair
    vector = good.context.vectors[bad.name].copy()
    vector[0] += 0.01
    good.receive(bad.name, "vector", pack_vector(vector, 1, bad.context.id))
    assert ("site-1", "implausible metadata") in good.store.refusals()


def test_a_scheduler_out_of_step_gets_an_error_not_a_guess(pair):
    site = pair[0]
    for call in (site.negotiation.propose, site.weights.exchange, site.conclude):
        with pytest.raises(RequestError, match="out of step"):
            call(2)
    with pytest.raises(RequestError, match="not among the members"):
        join(site, ["a", "b"])
    with pytest.raises(RequestError, match=r"version 1\.3 of the wire format"):
        site.join(["site-1", "site-2"], 1, {}, [1, 3])


def test_a_finished_round_does_not_begin_again(pair):
    site = pair[0]
    site.negotiation.settle(1)
    site.conclude(1)
    with pytest.raises(RequestError, match="round 1 is over"):
        site.begin(1, ["site-1"])


def test_weights_are_a_confirmation(pair):
    """The confirmation got lost, the weights did not: the match stands at both ends."""
    proposer, receiver = pair
    send = proposer.transport.send

    def losing_confirmations(peer, kind, data):
        if kind == "message" and data[0] == 4:
            raise UnreachableError(peer)
        return send(peer, kind, data)

    proposer.transport.send = losing_confirmations
    proposer.negotiation.propose(1)
    assert proposer.context.round.talks.partners == {receiver.name}
    assert receiver.context.round.talks.in_doubt == {proposer.name}
    assert proposer.weights.exchange(1) == 1
    assert receiver.context.round.talks.partners == {proposer.name}
    assert set(receiver.context.round.arrived) == {proposer.name}


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("centralized", {}, "does not run between sites: it pools all rows"),
        ("group-oracle-k1", {}, "declared group"),
        ("gossip", {}, "does not run between sites: sites form pairs"),
        ("ifca", {}, "does not run between sites: a number"),
        ("abps-pq-k1", {"budget": "400000"}, "does not run between sites: .*budget"),
        ("abps", {"kapa": 3}, "did you mean 'kappa'"),
        ("abpss", {}, "no method 'abpss'"),
    ],
)
def test_an_agreement_that_cannot_be_run(six, method, settings, words):
    with pytest.raises(RequestError, match=words):
        six.agreement(method, **settings).config()


def test_an_agreement_survives_the_journey(six):
    agreement = six.agreement("abps-x", seed=3, gamma=0.5)
    back = type(agreement).from_json(agreement.to_json())
    assert back == agreement and back.digest() == agreement.digest()
    assert agreement.digest() != six.agreement("abps-x", seed=4, gamma=0.5).digest()
    for broken in (None, {}, {"schema": "abps.agreement/2"}, agreement.to_json() | {"seed": "x"}):
        with pytest.raises(RequestError):
            type(agreement).from_json(broken)
