"""Coordinated exchanges: the simulation's models, whoever coordinates, drops out or joins late."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.data.prepare import prepare
from abps.engine.simulate import simulate
from abps.methods.coordinated import coordinators
from abps.models import interactions
from abps.sites.coordinator.scheduler import Scheduler, StudyFinished
from abps.sites.protocol.commands import Command, Timeouts
from abps.wire.messages import pack_broadcast, pack_upload
from abps.wire.number_lists import Field, NumberList

from .loopback import LoopbackNetwork
from .network import close, hospitals, join, open_site

QUICK = Timeouts(poll=0.0)
MEAN = "federated_mean:MEAN"
LINEAR = {"model": "linear", "standardise": "own", "secure": "yes"}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")


def opened(given, agreement, folder, network=None, names=None):
    network = network or LoopbackNetwork()
    for name in names or given.names:
        open_site(given, name, agreement, folder, network)
    return network


def models(network, names):
    return np.stack([network.sites[name].models[0] for name in names])


def drawn(given, t):
    """The members in the order in which they coordinate exchange t."""
    return [given.names[k] for k in coordinators(11, t, center_ids(given.names))]


@pytest.mark.parametrize(
    ("method", "rounds", "pairs"), [(MEAN, 6, False), ("abps-plus", 12, False), ("abps-plus", 12, True)]
)
def test_sites_do_what_the_simulation_does(six, tmp_path, monkeypatch, method, rounds, pairs):
    """Two jobs, the sites closed in between; the study ends when the method is done."""
    if pairs:  # every candidate earns its place
        monkeypatch.setattr(interactions, "FALSE_SHARE", 1.1)
        monkeypatch.setattr(interactions, "LEAST_INFORMATION", 0.0)
    agreement = six.agreement(method, rounds=rounds)
    spent = 0
    for job in (6 if pairs else 2, rounds):
        network = opened(six, agreement, tmp_path)
        report = Scheduler(network, agreement, job, QUICK).run(six.names)
        spent += report.to_json()["bytes"]
        if job < rounds:
            close(network)
    run = simulate(six.together, method, seed=11, rounds=rounds)
    assert report.rounds[-1].round == run.rounds and report.stopped_early == (run.rounds < rounds)
    np.testing.assert_allclose(models(network, six.names), run.models, atol=1e-4)
    np.testing.assert_allclose(report.rounds[-1].validation, run.history.validation_auroc[-1], atol=1e-6)
    assert (run.models.shape[1] > network.sites[six.names[0]].context.learner.layout.size) == pairs
    # Scales are in the codebook here; in the simulation centers publish them.
    scales = prepare(six.together, 11, standardise="common", splines=method == "abps-plus").agreed
    assert spent + scales == run.bytes.control + run.bytes.edge
    with pytest.raises(StudyFinished):
        Scheduler(network, agreement, 1, QUICK).run(six.names)
    close(network)


def test_another_member_coordinates_every_exchange_and_holds_no_more(six, tmp_path):
    agreement = six.agreement(MEAN, rounds=4)
    network = opened(six, agreement, tmp_path)
    Scheduler(network, agreement, 4, QUICK).run(six.names)
    for t in range(1, 5):
        first = drawn(six, t)[0]
        sent = {(s, r) for s, r, kind, _ in network.carried if kind == "upload"}
        assert {(name, first) for name in six.names if name != first} <= sent
    stores = [network.sites[name].store for name in six.names]
    assert all(store.broadcasts() == stores[0].broadcasts() for store in stores)
    assert [list(store.broadcasts()) for store in stores] == [[1, 2, 3, 4]] * 6
    close(network)


@pytest.mark.parametrize(("method", "settings", "rounds"), [(MEAN, {}, 2), ("abps-plus", LINEAR, 10)])
def test_sums_under_masks_are_the_simulations(six, tmp_path, method, settings, rounds):
    agreement = six.agreement(method, rounds=rounds, **(settings | {"secure": "yes"}))
    network = opened(six, agreement, tmp_path)
    Scheduler(network, agreement, rounds, QUICK).run(six.names)
    run = simulate(six.together, method, seed=11, rounds=rounds, settings=settings)
    np.testing.assert_allclose(models(network, six.names), run.models, atol=1e-4)
    assert not any(kind == "upload" for *_, kind, _ in network.carried)
    site = network.sites[six.names[0]]
    assert {"mask", "upload"} <= {e.kind for e in site.store.traffic() if e.peer == "server"}
    close(network)


class Dying(LoopbackNetwork):
    """A site vanishes when it is asked something in an exchange."""

    def __init__(self, victim: str, command: Command, t: int) -> None:
        super().__init__()
        self.victim, self.command, self.t, self.gone = victim, command, t, None

    def ask(self, sites, command, *arguments, seconds):
        if self.victim in sites and (command, arguments[:2]) == (Command.START, (self.command, self.t)):
            self.gone = self.sites.pop(self.victim, self.gone)
        return super().ask(sites, command, *arguments, seconds=seconds)


@pytest.mark.parametrize("command", [Command.CONTRIBUTE, Command.COORDINATE])
def test_the_next_in_the_draw_replaces_a_coordinator_that_is_gone(six, tmp_path, command):
    agreement = six.agreement(MEAN, rounds=4)
    first, second = drawn(six, 2)[:2]
    network = opened(six, agreement, tmp_path, Dying(first, command, 2))
    words = []
    report = Scheduler(network, agreement, 3, QUICK, log=words.append).run(six.names)
    assert any(f"uploaded to {second}" in line for line in words if line.startswith("round 2"))
    assert set(report.rounds[1].missing) == {first}
    assert len(network.sites[second].store.rounds()[2].partners) == 4
    others = [name for name in six.names if name != first]
    assert len({network.sites[name].models.tobytes() for name in others}) == 1
    # It comes back, and catches up by what two members have alike.
    network.gone.store.close()
    open_site(six, first, agreement, tmp_path, network)
    again = Scheduler(network, agreement, 1, QUICK).run(six.names)
    assert again.rounds[0].missing == {}
    assert len({network.sites[name].models.tobytes() for name in six.names}) == 1
    assert list(network.sites[first].store.broadcasts()) == [1, 2, 3, 4]
    close(network)


@pytest.mark.parametrize("method", [MEAN, "abps-plus"])
def test_a_hospital_that_joins_later_gets_its_model_in_one_exchange(six, tmp_path, method):
    agreement = six.agreement(method, rounds=12)
    late = six.names[3]
    network = opened(six, agreement, tmp_path, names=[name for name in six.names if name != late])
    Scheduler(network, agreement, 3, QUICK).run(six.names)
    site = open_site(six, late, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 1, QUICK).run(six.names)
    assert late in report.rounds[0].present and list(site.store.broadcasts()) == [1, 2, 3, 4]
    if method == MEAN:
        assert len({network.sites[name].models.tobytes() for name in six.names}) == 1
    else:
        points = {network.sites[name].context.state.fit.point.tobytes() for name in six.names}
        assert len(points) == 1
    close(network)


def test_a_late_site_does_not_believe_a_single_member(six, tmp_path):
    """One member answers with a broadcast of its own: it takes two that agree."""
    agreement = six.agreement(MEAN, rounds=4)
    late, liar = six.names[5], six.names[0]

    class Forging(LoopbackNetwork):
        def sender(self, name):
            send = super().sender(name)

            def carry(peer, kind, data):
                reply = send(peer, kind, data)
                if name == late and peer == liar and kind == "request":
                    numbers = NumberList.of(np.full(9, 5.0), (Field("single", 9),))
                    part = pack_broadcast(numbers.data, 1, self.sites[liar].context.id)
                    return len(part).to_bytes(4, "little") + part
                return reply

            return carry

    network = opened(six, agreement, tmp_path, Forging(), [name for name in six.names if name != late])
    Scheduler(network, agreement, 2, QUICK).run(six.names)
    open_site(six, late, agreement, tmp_path, network)
    Scheduler(network, agreement, 1, QUICK).run(six.names)
    assert len({network.sites[name].models.tobytes() for name in six.names}) == 1
    close(network)


@pytest.fixture
def begun(six, tmp_path):
    """Sites in the middle of exchange 1, all uploads at its coordinator."""
    network = opened(six, six.agreement(MEAN, rounds=4), tmp_path)
    sites = {name: network.sites[name] for name in six.names}
    for site in sites.values():
        join(site, six.names)
    for site in sites.values():
        site.begin(1, six.names)
    for site in sites.values():
        assert site.exchanges.contribute(1) == 1 + site.models.shape[1]
    yield sites, drawn(six, 1)
    close(network)


def step(site, value):
    size = site.models.shape[1]
    return NumberList.of(np.full(size, value), (Field("single", size),)).data


@pytest.mark.parametrize(("which", "value"), [(0, 7.0), (2, -1e6)])
def test_the_second_in_the_draw_does_not_override_a_present_coordinator(begun, which, value):
    sites, (first, second, *others) = begun
    site = sites[others[which]]
    false = pack_broadcast(step(site, value), 1, sites[second].context.id)
    assert sites[first].exchanges.coordinate(1) == 6
    before = site.exchanges._state
    for _ in range(2):  # neither after the coordinator's broadcast, nor instead of it
        site.receive(second, "broadcast", false)
        assert site.store.refusals()[(second, "against the protocol")] >= 1
        assert site.exchanges._state is before
    with pytest.raises(RequestError, match="is not the coordinator"):
        sites[second].exchanges.coordinate(1)


@pytest.mark.parametrize("value", [7.0, 0.0])
def test_a_coordinator_broadcasts_once(begun, value):
    sites, (first, *others) = begun
    assert sites[first].exchanges.coordinate(1) == 6
    site = sites[others[1]]
    before = site.exchanges._state
    site.receive(first, "broadcast", pack_broadcast(step(site, value), 1, sites[first].context.id))
    assert site.exchanges._state is before and site.store.refusals() == {(first, "wrong round"): 1}


def test_uploads_and_broadcasts_that_are_none_are_refused(begun):
    sites, (first, second, third, *_) = begun
    coordinator, me = sites[first], sites[second].context.id
    size = coordinator.models.shape[1]
    other_form = NumberList.of(np.zeros(3), (Field("half", 3),)).data
    longer = NumberList.of(np.ones(size + 3), (Field("single", size + 1), Field("single", 2))).data
    nan = NumberList.of(np.full(size + 1, np.nan), (Field("single", size + 1),)).data
    for data, reason in (
        (b"x", "malformed"),
        (pack_upload(b"", 1, me), "malformed"),
        (pack_upload(nan, 1, me), "not finite"),
        (pack_upload(step(coordinator, 1.0), 2, me), "wrong round"),
        (pack_upload(step(coordinator, 1.0), 1, me + 1), "wrong sender"),
    ):
        coordinator.receive(second, "upload", data)
        assert coordinator.store.refusals()[(second, reason)] >= 1
    coordinator.receive(second, "upload", pack_upload(other_form, 1, me))
    coordinator.receive(third, "upload", pack_upload(longer, 1, sites[third].context.id))
    site = sites[third]
    for content in (other_form, step(site, np.nan), step(site, 0.0) * 3):
        site.receive(first, "broadcast", pack_broadcast(content, 1, coordinator.context.id))
    assert site.store.refusals()[(first, "malformed")] == 3 and site.exchanges._state is None
    assert coordinator.exchanges.coordinate(1) == 4  # without the uploads of other forms
    assert all(coordinator.store.refusals()[(name, "wrong shape")] == 1 for name in (second, third))
    assert site.exchanges._state is not None


def test_members_that_a_job_does_not_have_change_nothing(tmp_path, six):
    """A network of two: a site that missed an exchange believes the only other one."""
    two = hospitals(tmp_path / "two", 2, stays=200)
    agreement = two.agreement(MEAN, rounds=4)
    network = opened(two, agreement, tmp_path)
    Scheduler(network, agreement, 2, QUICK).run(two.names)
    assert len({network.sites[name].models.tobytes() for name in two.names}) == 1
    close(network)
