"""Real sites in one process: the simulation's answers without trouble, and no harm with it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from abps.core.usefulness import Usefulness

from abps.core.errors import RequestError
from abps.core.protocol import Kind, Message
from abps.core.streams import center_id
from abps.engine.simulate import simulate
from abps.lab.forgetting import Memory as Forgetting
from abps.lab.forgetting import Observed, Watch
from abps.methods.state_bytes import freeze, thaw
from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.node.transport import Patience, Unreachable
from abps.sites.protocol.steps import Timeouts
from abps.wire.codecs import codec
from abps.wire.frames import pack
from abps.wire.messages import pack_alarm, pack_message, pack_vector, vector_size

from .network import (
    agree_about_partners,
    close,
    counted_once,
    open_site,
    replayed,
    same_beliefs,
    same_usefulness,
)

QUICK = Timeouts(poll=0.0)


def job(given, agreement, folder, rounds=5, network=None, **more):
    """Open every site, run a job, and leave the sites open."""
    network = network or LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network, **more)
    return network, Scheduler(network, agreement, rounds, QUICK).run(given.names)


PARITY = [
    ("abps", {}),
    ("abps-pq-k1", {"gamma": "0.1"}),
    ("abps-pq-k1-div", {"discount": "0.9"}),
    ("abps-pq-k1-align", {"mutual_filter": "no", "tie_break": "similarity"}),
    ("abps-x", {"tau_scope": "per_center"}),
    ("abps", {"kappa": "6", "adopt": "if_helpful", "weighting": "uniform"}),
    ("abps-pq-k1", {"goals": "homogeneity,diversity,none,alignment,none,none,diversity,none"}),
    ("abps-pq-k1", {"proposer_check": "yes", "gamma": "0.05", "order": "index"}),
    ("abps-pq-k1", {"budget": "400000"}),
    ("abps-pq-k1", {"codec": "int4", "reference": "start"}),
    ("abps-plus-v1", {}),
    ("abps-plus-v1", {"kappa": "3", "codec": "fp32", "policy": "gumbel"}),
    ("abps-plus-v1-shapley", {"association": "no", "warm_up": "1", "every": "2"}),
    ("fedavg", {}),
    ("fedavg", {"codec": "int8", "reference": "start"}),
    ("fedavg-x", {}),
]


@pytest.mark.parametrize(("method", "settings"), PARITY)
def test_sites_do_what_the_simulation_does(eight, tmp_path, method, settings):
    agreement = eight.agreement(method, **settings)
    network, report = job(eight, agreement, tmp_path)
    run = simulate(eight.together, method, seed=11, rounds=5, settings=settings)
    told = report.to_json()["bytes"]
    assert (told["edge"], told["directed"], told["control"]) == (
        run.bytes.edge, run.bytes.directed, run.bytes.control,
    )  # fmt: skip
    assert told["edge"] > 0
    models = np.stack([network.sites[name].models[0] for name in eight.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    stores = {name: network.sites[name].store for name in eight.names}
    if isinstance(run.beliefs, Usefulness):
        same_usefulness(stores, run.beliefs)
    elif run.beliefs is not None:
        same_beliefs(stores, run.beliefs)
    rows = run.decisions.filter(run.decisions["decision"] == "accepted")
    partners = {name: {t: set() for t in range(1, 6)} for name in eight.names}
    for t, center, peer in rows.select("round", "center", "peer").iter_rows():
        partners[center][t].add(peer)
        partners[peer][t].add(center)
    for name in eight.names:
        done = network.sites[name].store.rounds()
        assert {r.number: set(r.partners) for r in done} == partners[name]
    means = [r.validation for r in report.rounds]
    np.testing.assert_allclose(means, run.history.validation_auroc, atol=1e-9)
    shares = run.history.rest
    rests = [[r[t].rest for r in (store.rounds() for store in stores.values())] for t in range(5)]
    assert [np.mean([r != "" for r in row]) for row in rests] == pytest.approx(list(shares))
    for cause, word in (
        ("no_candidates", "no candidates"), ("all_full", "all full"), ("budget", "budget"),
        ("quiet", "no exchange in this round"),
    ):  # fmt: skip
        told = [np.mean([r == word for r in row]) for row in rests]
        assert told == pytest.approx(list(run.history.rest_causes[cause])), cause
    close(network)


def test_early_stopping_at_the_same_round(eight, tmp_path):
    settings = {"patience": "2", "min_delta": "0.02", "restore_best": "yes"}
    agreement = eight.agreement("abps-pq-k1", rounds=12, **settings)
    network, report = job(eight, agreement, tmp_path, rounds=12)
    run = simulate(eight.together, "abps-pq-k1", seed=11, rounds=12, settings=settings)
    assert report.stopped_early and len(report.rounds) == run.rounds < 12
    best = np.stack([network.sites[name].store.model("best") for name in eight.names])
    np.testing.assert_allclose(best, run.models, atol=1e-5)
    close(network)


@pytest.mark.parametrize(("method", "settings"), [("abps", {"discount": "0.8"}), ("abps-plus-v1", {})])
def test_several_short_jobs_are_one_long_one(six, tmp_path, method, settings):
    """Sites are closed and opened again between jobs: nothing but the store remembers."""
    agreement = six.agreement(method, rounds=5, **settings)
    for rounds in (2, 1, 2):
        network, _ = job(six, agreement, tmp_path, rounds)
        close(network)
    network = LoopbackNetwork()
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    run = simulate(six.together, method, seed=11, rounds=5, settings=settings)
    same = same_usefulness if method == "abps-plus-v1" else same_beliefs
    same({name: network.sites[name].store for name in six.names}, run.beliefs)
    models = np.stack([network.sites[name].models[0] for name in six.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    with pytest.raises(RequestError, match="has had its 5 rounds"):
        Scheduler(network, agreement, 1, QUICK).run(six.names)
    close(network)


LOUD = {"forget": "alarm", "watch": "utility", "kappa": "5", "block": "2", "alarm_level": "0.9"}


@pytest.mark.parametrize(
    "settings",
    [LOUD, LOUD | {"announce": "no", "discount": "0.9", "kept": "0.5"}, {"forget": "window", "recall": "2"}],
)
def test_sites_forget_as_in_the_simulation(eight, tmp_path, settings):
    """In three jobs, with the sites closed in between: the watch and the alarms are in the store."""
    agreement = eight.agreement("abps", rounds=8, **settings)
    spent = dict.fromkeys(("edge", "directed", "control"), 0)
    for rounds in (3, 4, 1):
        network, report = job(eight, agreement, tmp_path, rounds)
        spent = {kind: spent[kind] + size for kind, size in report.to_json()["bytes"].items()}
        close(network)
    network = LoopbackNetwork()
    for name in eight.names:
        open_site(eight, name, agreement, tmp_path, network)
    stores = {name: network.sites[name].store for name in eight.names}
    run = simulate(eight.together, "abps", seed=11, rounds=8, settings=settings)
    same_beliefs(stores, run.beliefs)
    models = np.stack([network.sites[name].models[0] for name in eight.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    # The audit trail has an alarm in the round that reckons with it, the store in the one that raised it.
    rows = run.decisions.filter(run.decisions["decision"] == "alarm").select("round", "center").rows()
    own = {
        (a.round + 1, name)
        for name, s in stores.items()
        for a in s.alarms()
        if a.site == name and a.round < 8
    }
    assert own == set(rows) and (len(own) > 2 or settings["forget"] == "window")
    announced = settings["forget"] == "alarm" and settings.get("announce") != "no"
    for name, store in stores.items():
        received = {(a.round + 1, a.site) for a in store.alarms() if a.site != name}
        assert received == ({row for row in rows if row[1] != name} if announced else set())
    # Every job introduces its members anew, and the simulation is one job.
    anew = 2 * 8 * 7 * vector_size(3)
    assert spent == {
        "edge": run.bytes.edge, "directed": run.bytes.directed, "control": run.bytes.control + anew,
    }  # fmt: skip
    close(network)


def test_an_alarm_is_told_until_it_is_known_and_counts_once(six, tmp_path):
    """Alarms to one site get lost in one round and are told in the next; answers get lost, too."""
    agreement = six.agreement("abps", rounds=9, **LOUD)
    rng, deaf = random.Random(4), six.names[1]

    def trouble(sender: str, receiver: str, what: str, back: bool) -> bool:
        return what == "alarm" and (rng.random() < 0.5 if back else receiver == deaf and rng.random() < 0.7)

    network, report = job(six, agreement, tmp_path, rounds=9, network=LoopbackNetwork(trouble))
    assert all(r.missing == {} for r in report.rounds)
    stores = {name: site.store for name, site in network.sites.items()}
    sent = [(sender, receiver) for sender, receiver, what, _ in network.carried if what == "alarm"]
    raised = {(a.round, name) for name, s in stores.items() for a in s.alarms() if a.site == name}
    assert len(raised) > 4 and len(sent) > 5 * len(raised)  # some were told more than once
    for name, store in stores.items():
        replayed(store, agreement)
        received = {(a.round, a.site) for a in store.alarms() if a.site != name}
        assert received <= raised
        for peer, other in stores.items():
            assert {(t, peer) for t, told in other.told() if told == name} <= received
    site, other = network.sites[deaf], six.names[2]
    for data, reason in (
        (pack_alarm(99, site.site_context.sender_id(other)), "wrong round"),
        (b"x" * 16, "malformed"),
    ):
        site.receive(other, "alarm", data)
        assert site.store.refusals()[(other, reason)] == 1
    late = [a.reckoned - a.round for a in stores[deaf].alarms() if a.site != deaf and a.reckoned]
    assert max(late) > 1
    close(network)


def test_what_is_watched_is_the_same_after_a_journey_through_the_store():
    rng = np.random.default_rng(8)
    values = np.concatenate([rng.normal(0.0, 0.05, 60), rng.normal(0.3, 0.05, 40)]).reshape(50, 2)
    for detector in ("t-test", "page-hinkley"):
        memory = Forgetting(forget="alarm", watch=("utility",), detector=detector)
        straight, stored, fired = Watch(), freeze(Watch()), []
        for t, pair in enumerate(values):
            nobody = np.zeros(2, dtype=np.int64)
            observed = Observed(nobody, nobody, np.full(2, 0.5), pair)
            keys = np.array([7], dtype=np.uint64)
            straight, raised = memory.surprises(straight, observed, keys)
            through, again = memory.surprises(thaw(Watch, stored), observed, keys)
            assert raised == again or (len(raised), len(again)) == (1, 1)
            fired += [t] if raised else []
            straight, through = memory.clear(straight, raised), memory.clear(through, again)
            stored = freeze(through)
            assert freeze(straight) == stored
        assert fired and fired[0] >= 30


def test_the_ledger_counts_the_bytes_that_were_carried(six, tmp_path):
    network, report = job(six, six.agreement("abps"), tmp_path)
    for name in six.names:
        carried: dict[str, int] = {}
        for sender, _, what, size in network.carried:
            if sender == name:
                carried[what] = carried.get(what, 0) + size
        store = network.sites[name].store
        assert {k: v for k, v in store.sent_bytes().items() if k != "told"} == carried
        arrived = sum(size for _, receiver, _, size in network.carried if receiver == name)
        assert sum(entry.bytes for entry in store.traffic() if not entry.sent) == arrived
    # Witnesses, like heads, are in the log and not in the ledger, which counts the method's bytes.
    assert (
        sum(size for *_, what, size in network.carried if what != "place")
        == report.to_json()["bytes"]["directed"] + (report.to_json()["bytes"]["control"])
    )
    words = [entry.why for entry in network.sites["site-1"].store.traffic() if entry.sent]
    assert any("metadata vector" in why for why in words) and any("shared layers" in why for why in words)
    close(network)


@pytest.mark.parametrize("seed", range(6))
def test_messages_that_get_lost_leave_no_half_match(six, tmp_path, seed):
    """Payloads and answers get lost at random; afterwards, with a working line, all is settled."""
    rng = random.Random(seed)
    network = LoopbackNetwork(lambda sender, receiver, what, back: rng.random() < 0.25)
    agreement = six.agreement("abps", kappa=2)
    network, _ = job(six, agreement, tmp_path, rounds=4, network=network, patience=Patience(repeats=1))
    stores = {name: site.store for name, site in network.sites.items()}
    assert all(site.store.round == 4 for site in network.sites.values())
    agree_about_partners(stores, kappa=2, doubt=True)
    network.trouble = lambda sender, receiver, what, back: False
    for site in network.sites.values():  # the next job begins with settling
        site.join(six.names, 5)
    for site in network.sites.values():
        site.catch_up()
    agree_about_partners(stores, kappa=2, doubt=False)
    observed = sum(len(s.observations()) for s in stores.values())
    assert observed > 0
    for store in stores.values():
        counted_once(store)
    close(network)


@pytest.mark.parametrize("seed", range(10))
def test_a_site_that_dies_at_any_moment_comes_back_whole(six, tmp_path, seed):
    """A site vanishes in the middle of a round; the others finish, and it is there in the next job."""
    rng = random.Random(100 + seed)
    agreement = six.agreement("abps", kappa=2, rounds=20)
    victim = rng.choice(six.names)
    network = LoopbackNetwork()
    left = rng.randrange(0, 70)

    def dies(sender: str, receiver: str, what: str, back: bool) -> bool:
        nonlocal left
        if victim in (sender, receiver) and victim in network.sites:
            left -= 1
            if left < 0:
                dead = network.sites.pop(victim)
                dead.store.close()
        if victim not in network.sites and sender == victim:
            raise Died  # nothing that the dead site was doing goes on
        return victim not in network.sites and receiver == victim

    network.trouble = dies
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network, patience=Patience(repeats=1))
    report = Scheduler(network, agreement, 4, QUICK).run(six.names)
    others = [name for name in six.names if name != victim]
    assert all(network.sites[name].store.round == 4 for name in others)
    if victim not in network.sites:
        network.trouble = lambda sender, receiver, what, back: False
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


class Died(Exception):
    """What the conductor gets to know of a site that is gone."""


class Waiting(LoopbackNetwork):
    """Time passes only while the conductor waits for a site that is gone."""

    clock = 0.0

    def __init__(self, victim: str, dies_at: str) -> None:
        super().__init__()
        self.victim, self.dies_at = victim, dies_at

    def ask(self, sites, what, *arguments, seconds):
        if what == "start" and arguments[:2] == (self.dies_at, 2) and self.victim in sites:
            self.sites.pop(self.victim).store.close()
        if self.victim in sites and self.victim not in self.sites:
            self.clock += seconds
        return super().ask(sites, what, *arguments, seconds=seconds)

    def now(self) -> float:
        return self.clock


@pytest.mark.parametrize("dies_at", ["train", "turn", "settle", "swap", "conclude"])
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
        site.join(six.names[:2], 1)
    for site in sites:
        site.introduce(1)
    for site in sites:
        site.begin(1, six.names[:2])
        site.train(1)
    yield sites
    close(network)


def test_what_an_unruly_peer_sends_is_refused_and_counted(pair):
    bad, good = pair
    frame = pack(np.zeros(good.site_context.shared, dtype=np.float32), codec("bf16"), 1, center_id(bad.name))
    vector = pack_vector(np.full(3, 7.0), 1, center_id(bad.name))
    for what, data, reason in (
        ("weights", frame, "not a partner"),
        ("message", b"x", "malformed"),
        ("message", pack_message(Message(Kind.PROPOSE, 9, 1), center_id(bad.name)), "wrong round"),
        ("message", pack_message(Message(Kind.PROPOSE, 1, 1), center_id("eve")), "wrong sender"),
        ("message", pack_message(Message(Kind.CONFIRM, 1, 1), center_id(bad.name)), "against the protocol"),
        ("vector", vector, "implausible metadata"),
        ("alarm", pack_alarm(1, center_id(bad.name)), "against the protocol"),
        ("pickle", b"...", "malformed"),
    ):
        before = good.store.refusals().get((bad.name, reason), 0)
        assert good.receive(bad.name, what, data) == b""
        assert good.store.refusals()[(bad.name, reason)] == before + 1
    assert good.receive("eve", "message", b"") == b"" and ("eve", "not a member") in good.store.refusals()
    assert not good.talks.partners and not good.site_context.round.arrived and not good.store.alarms()


def test_a_partner_that_sends_nonsense_is_not_mixed_in(pair):
    bad, good = pair
    assert bad.turn(1) == 1 and good.talks.partners == {bad.name}
    weights = np.zeros(good.site_context.shared, dtype=np.float32)
    weights[3] = np.nan
    assert good.receive(bad.name, "weights", pack(weights, codec("bf16"), 1, center_id(bad.name))) == b""
    assert good.store.refusals() == {(bad.name, "not finite"): 1}
    good.settle(1)
    good.finish(1)
    assert good.store.observations() == {}
    np.testing.assert_array_equal(good.store.model(), good.trained[0])


def test_a_flood_of_messages_is_cut_off(pair):
    bad, good = pair
    good.gate._now = lambda: 0.0
    for _ in range(good.site_context.limits.burst + 50):
        good.receive(bad.name, "message", b"")
    assert good.store.refusals()[(bad.name, "too many messages")] >= 50


def test_a_vector_cannot_change_within_a_job(pair):
    bad, good = pair
    vector = good.site_context.vectors[bad.name].copy()
    vector[0] += 0.01
    good.receive(bad.name, "vector", pack_vector(vector, 1, center_id(bad.name)))
    assert ("site-1", "implausible metadata") in good.store.refusals()


def test_a_conductor_out_of_step_gets_an_error_not_a_guess(pair):
    site = pair[0]
    for call in (lambda: site.turn(2), lambda: site.swap(2), lambda: site.finish(2)):
        with pytest.raises(RequestError, match="out of step"):
            call()
    with pytest.raises(RequestError, match="not among the members"):
        site.join(["a", "b"], 1)


def test_a_finished_round_does_not_begin_again(pair):
    site = pair[0]
    site.settle(1)
    site.finish(1)
    with pytest.raises(RequestError, match="round 1 is over"):
        site.begin(1, ["site-1"])


def test_weights_are_a_confirmation(pair):
    """The confirmation got lost, the weights did not: the match stands at both ends."""
    proposer, receiver = pair
    send = proposer.post.send

    def losing_confirmations(peer, what, data):
        if what == "message" and data[0] == 4:
            raise Unreachable(peer)
        return send(peer, what, data)

    proposer.post.send = losing_confirmations
    proposer.turn(1)
    assert proposer.talks.partners == {receiver.name} and receiver.talks.in_doubt == {proposer.name}
    assert proposer.swap(1) == 1
    assert receiver.talks.partners == {proposer.name} and set(receiver.site_context.round.arrived) == {
        proposer.name
    }


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("centralized", {}, "does not run between sites: it pools all rows"),
        ("wpfed", {}, "does not run between sites"),
        ("group-oracle-k1", {}, "declared group"),
        ("abps-plus-v1-flat", {}, "number of rows"),
        ("abps-plus-v1", {"noise": 0.5}, "would hide nothing"),
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
