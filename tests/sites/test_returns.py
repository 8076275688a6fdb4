"""k of n: a round goes on without the late and the absent, who come back in a later one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from abps.engine.simulate import simulate
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.coordinator.steps import enough
from abps.sites.protocol.commands import Command, SiteState, Timeouts

from .loopback import LoopbackNetwork
from .network import LINEAR, close, open_site

QUICK = Timeouts(poll=1.0, grace=10.0)


class Late(LoopbackNetwork):
    """One site that is busy with its training for so many seconds in one round; pauses move the clock on."""

    def __init__(self, name: str, round: int, seconds: float) -> None:
        super().__init__()
        self.late, self.round, self.seconds, self.clock = name, round, seconds, 0.0
        self.until: float | None = None
        self.work: tuple = ()

    def now(self) -> float:
        return self.clock

    def pause(self, seconds: float) -> None:
        self.clock += seconds

    def ask(self, sites, what, *arguments, seconds):
        self.clock += (what, *arguments[:1]) == ("start", "contribute")  # a round takes a second
        busy = self.until is not None and self.clock < self.until
        if what == "start" and self.late in sites and arguments[:2] == ("contribute", self.round):
            self.until, self.work = self.clock + self.seconds, arguments
            said, failed = super().ask(
                [s for s in sites if s != self.late], what, *arguments, seconds=seconds
            )
            return said | {self.late: ["busy", None]}, failed
        if self.late in sites and busy:
            rest = [s for s in sites if s != self.late]
            said, failed = super().ask(rest, what, *arguments, seconds=seconds)
            return said | {self.late: SiteState.BUSY if what == "ping" else ["busy", None]}, failed
        if self.work and not busy:
            done, self.work, self.until = self.work, (), None
            said = super().ask([self.late], Command.START, *done, seconds=seconds)[0]
            if what == "poll" and list(sites) == [self.late]:
                return said, {}
        return super().ask(sites, what, *arguments, seconds=seconds)


def opened(given, agreement, folder, network, **more):
    for name in given.names:
        open_site(given, name, agreement, folder, network, **more)
    return network


def test_more_than_half_are_enough():
    assert [enough(n) for n in (1, 2, 3, 4, 5, 8)] == [1, 2, 2, 3, 3, 5]


def test_a_round_goes_on_without_a_late_site_which_joins_a_later_one(six, tmp_path):
    agreement, slow = six.agreement("abps-plus", rounds=5, **LINEAR), six.names[1]
    network = opened(six, agreement, tmp_path, Late(slow, 2, 12.0))
    report = Scheduler(network, agreement, 5, QUICK).run(six.names)
    rounds = {r.round: r for r in report.rounds}
    assert slow in rounds[1].present and not rounds[1].missing
    assert rounds[2].missing == {slow: "it was 10 s later than the others with contribute"}
    assert all("still busy" in rounds[t].missing[slow] for t in (3,) if slow in rounds[t].missing)
    assert slow in rounds[5].present and not rounds[5].missing
    stores = {name: site.store for name, site in network.sites.items()}
    assert [r.number for r in stores[slow].rounds()] == [
        t for t, r in rounds.items() if slow in r.present and slow not in r.missing
    ]
    assert len({str(store.broadcasts()) for store in stores.values()}) == 1
    close(network)


def test_a_site_that_is_slow_within_the_grace_is_waited_for(six, tmp_path):
    agreement, slow = six.agreement("abps-plus", rounds=2, **LINEAR), six.names[1]
    network = opened(six, agreement, tmp_path / "late", Late(slow, 1, 8.0))
    report = Scheduler(network, agreement, 2, QUICK).run(six.names)
    assert all(slow in r.present and not r.missing for r in report.rounds)
    other = opened(six, agreement, tmp_path / "plain", LoopbackNetwork())
    Scheduler(other, agreement, 2, QUICK).run(six.names)
    for name in six.names:
        np.testing.assert_array_equal(network.sites[name].store.model(), other.sites[name].store.model())
    close(network)
    close(other)


def test_a_site_that_was_gone_is_back_in_the_next_job(six, tmp_path):
    """It missed exchanges, asks other members for their results, and takes part again; so does a newcomer."""
    agreement, gone = six.agreement("abps-plus", rounds=7, **LINEAR), six.names[3]
    network = opened(six, agreement, tmp_path, LoopbackNetwork())
    Scheduler(network, agreement, 2, QUICK).run(six.names)
    network.sites.pop(gone).store.close()
    report = Scheduler(network, agreement, 2, QUICK).run(six.names)
    assert report.left_out == {gone: "it does not answer"} and report.first == 3
    open_site(six, gone, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 3, QUICK).run(six.names)
    assert report.first == 5 and not report.left_out and all(gone in r.present for r in report.rounds)
    stores = {name: site.store for name, site in network.sites.items()}
    assert [r.number for r in stores[gone].rounds()] == [1, 2, 5, 6, 7]
    assert len({str(store.broadcasts()) for store in stores.values()}) == 1
    close(network)


def test_the_report_names_who_the_others_waited_for(six, tmp_path):
    agreement, slow = six.agreement("abps-plus", rounds=2, **LINEAR), six.names[1]
    network = opened(six, agreement, tmp_path, Late(slow, 1, 8.0))
    said: list[str] = []
    report = Scheduler(network, agreement, 2, QUICK, said.append).run(six.names)
    assert list(report.rounds[0].late) == [slow] and 5 <= report.rounds[0].late[slow] <= 9
    assert report.rounds[1].late == {} and any(f"for {slow}" in line for line in said)
    assert report.rounds[1].scored == len(report.validation)
    close(network)


class Parallel(LoopbackNetwork):
    """All sites at once, as in a real network."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def ask(self, sites, what, *arguments, seconds):
        if what == "start":
            self.steps.append(arguments[0])
        with ThreadPoolExecutor(max(1, len(sites))) as pool:
            ask = super().ask
            found = list(pool.map(lambda name: ask([name], what, *arguments, seconds=seconds), sites))
        answers: dict = {}
        failures: dict = {}
        for said, failed in found:
            answers |= said
            failures |= failed
        return answers, failures


@pytest.mark.parametrize("secure", ["no", "yes"])
def test_sites_that_work_at_once_are_the_simulation(six, tmp_path, secure):
    agreement = six.agreement("abps-plus", rounds=10, **LINEAR, secure=secure)
    network = opened(six, agreement, tmp_path, Parallel())
    Scheduler(network, agreement, 10, Timeouts(poll=0.0)).run(six.names)
    assert network.steps.count("coordinate" if secure == "no" else "sum_total") == 8
    run = simulate(six.together, "abps-plus", seed=11, rounds=10, settings={**LINEAR, "secure": secure})
    models = np.stack([network.sites[name].store.model() for name in six.names])
    np.testing.assert_allclose(models, run.models, atol=1e-4)
    close(network)


def test_what_leaves_is_on_the_disk_before(six, tmp_path):
    """Every row of the log that tells of something sent to a peer was synced when it was sent."""
    agreement = six.agreement("abps-plus", rounds=2, **LINEAR)
    network = Parallel()
    synced: dict[str, int] = {}
    seen: list[str] = []

    class Watched:
        """A site's database, which notes the last row of the log that a full commit has put on the disk."""

        def __init__(self, site):
            self.site, self.real, self.full = site, site.store._db, False

        def __getattr__(self, name):
            return getattr(self.real, name)

        def execute(self, query, *values):
            done = self.real.execute(query, *values)
            if query.startswith("PRAGMA synchronous"):
                self.full = query.endswith("FULL")
            elif query == "COMMIT" and self.full:
                found = self.real.execute("SELECT MAX(number) FROM traffic").fetchone()
                synced[self.site.name] = found[0]
            return done

    def watch(site):
        store, carry = site.store, site.transport.send
        store._db = Watched(site)

        def send(peer, what, data):
            mine = store._rows(
                "SELECT MAX(number) FROM traffic WHERE sent AND peer = ? AND kind = ?", peer, what
            )
            assert mine[0][0] <= synced[site.name]
            seen.append(what)
            return carry(peer, what, data)

        site.transport.send = send

    for name in six.names:
        watch(open_site(six, name, agreement, tmp_path, network))
    report = Scheduler(network, agreement, 2, Timeouts(poll=0.0)).run(six.names)
    assert all(len(r.present) == 6 for r in report.rounds) and {"upload", "broadcast"} <= set(seen)
    for name, site in network.sites.items():  # what the scheduler was told, too
        assert synced[name] >= site.store._rows("SELECT MAX(number) FROM traffic WHERE sent")[0][0]
    close(network)


def test_a_full_disk_costs_a_site_its_round_and_nothing_else(six, tmp_path):
    """A commit that fails leaves no open transaction: the next round is written again."""
    agreement = six.agreement("abps-plus", rounds=3, **LINEAR)
    network = opened(six, agreement, tmp_path, LoopbackNetwork())
    victim = network.sites[six.names[2]]
    real = victim.store._db

    class Full:
        """A database whose commits fail, as those of a full disk do."""

        def __getattr__(self, name):
            return getattr(real, name)

        def execute(self, query, *values):
            if query == "COMMIT":
                import sqlite3

                raise sqlite3.OperationalError("database or disk is full")
            return real.execute(query, *values)

    finish = victim.conclude

    def conclude(round, rest=0):
        victim.store._db = Full() if round == 2 else real
        try:
            return finish(round, rest)
        finally:
            victim.store._db = real

    victim.commands[Command.CONCLUDE] = conclude
    report = Scheduler(network, agreement, 3, Timeouts(poll=0.0)).run(six.names)
    assert [victim.name in r.missing for r in report.rounds] == [False, True, False]
    assert [r.number for r in victim.store.rounds()] == [1, 3]
    stores = {name: site.store for name, site in network.sites.items()}
    assert len({str(store.broadcasts()) for store in stores.values()}) == 1
    close(network)


@pytest.mark.parametrize(("answer", "begins"), [(("a", "b", "c"), True), (("a",), True), ((), False)])
def test_a_job_begins_without_sites_that_stand_still(monkeypatch, answer, begins):
    """More than half are waited for; who is not there is asked no more, and the engine does not end the job.
    The scheduler says how many have to be there."""
    controller = pytest.importorskip("nvflare.collab.runtime.controller")
    from types import SimpleNamespace

    from abps.sites.flare import process

    monkeypatch.setattr(  # given back after the test
        controller.CollabController, "broadcast_and_wait", controller.CollabController.broadcast_and_wait
    )
    process.begin_without()
    made = object.__new__(controller.CollabController)
    names = ("a", "b", "c", "still")
    made.client_info, made.client_setup_status = dict.fromkeys(names), dict.fromkeys(names, False)
    asked = []

    def broadcast_and_wait(task, fl_ctx, targets, least, grace, signal):
        asked.append((task.name, tuple(targets), least, grace))
        for name in set(targets) & set(answer):
            if task.name == "sync":
                made.client_info[name] = f"what {name} publishes"
            else:
                made.client_setup_status[name] = True

    made.communicator = SimpleNamespace(broadcast_and_wait=broadcast_and_wait)
    made.broadcast_and_wait(SimpleNamespace(name="sync"), None, min_responses=4)
    assert asked == [("sync", names, 3, process.START_GRACE)]
    if not begins:
        assert made.client_info["c"] is None and made.client_info["still"] is None
        return
    assert made.client_info["still"] == "what a publishes"
    made.broadcast_and_wait(SimpleNamespace(name="setup"), None, min_responses=4)
    assert asked[1][1] == answer and all(made.client_setup_status.values())


@pytest.mark.parametrize(("code", "goes_on"), [(101, True), (104, True), (9, True), (102, True), (0, False)])
def test_a_site_whose_process_fails_does_not_end_the_job_for_all(monkeypatch, caplog, code, goes_on):
    """One site could end everybody's job by an error of its own."""
    pytest.importorskip("nvflare")
    from types import SimpleNamespace

    from nvflare.private.defs import JobFailureMsgKey
    from nvflare.private.fed.server.fed_server import FederatedServer

    from abps.sites.flare import process

    judged = []
    monkeypatch.setattr(
        FederatedServer, "process_job_failure", lambda self, request: judged.append(request.payload)
    )
    process.go_on()
    server = SimpleNamespace(client_manager=SimpleNamespace(clients={"token": SimpleNamespace(name="b")}))
    sent = {JobFailureMsgKey.JOB_ID: "job", JobFailureMsgKey.CODE: code}
    request = SimpleNamespace(payload=sent, get_header=lambda key: "token")
    FederatedServer.process_job_failure(server, request)
    assert judged == [{JobFailureMsgKey.JOB_ID: "job", JobFailureMsgKey.CODE: 0}]
    assert ("goes on without b" in caplog.text) == goes_on
