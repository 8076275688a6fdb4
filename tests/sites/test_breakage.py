"""What breaks around a site: clocks that jump, disks that are full or closed, and many rounds."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Timeouts
from abps.sites.store import audit
from abps.sites.store.rows import LogEntry, RoundRow
from abps.sites.store.store import Store

from .loopback import LoopbackNetwork
from .network import close, open_site

QUICK = Timeouts(poll=0.0)
LINEAR = {"model": "linear", "standardise": "own", "epochs": 1}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")


def job(given, agreement, folder, rounds, network=None, **more):
    network = network or LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network, **more)
    return network, Scheduler(network, agreement, rounds, QUICK).run(given.names)


def test_clocks_that_jump_change_nothing(four, tmp_path, monkeypatch):
    """The wall clock, by decades at every message: models and the log are in order. (Waiting and
    rates follow a clock that only goes forward.)"""
    agreement = four.agreement("federated_mean:ENDLESS", rounds=3, **LINEAR)
    days = itertools.cycle(["2026-11-17", "1970-01-01", "2099-12-31"])
    plain, _ = job(four, agreement, tmp_path / "plain", 3)
    monkeypatch.setattr("abps.sites.node.transport.utc", lambda: f"{next(days)}T00:00:00.000+00:00")
    jumping, report = job(four, agreement, tmp_path / "jumping", 3)
    assert not any(r.missing for r in report.rounds)
    for name in four.names:
        one, other = plain.sites[name], jumping.sites[name]
        assert np.array_equal(one.models, other.models)
        assert one.store.broadcasts() == other.store.broadcasts()
        assert audit.verify(other.store, None).faults == ()
        assert not other.store.refusals()
    close(plain)
    close(jumping)


def test_a_disk_that_is_closed_leaves_one_site_out_and_nothing_half_written(four, tmp_path):
    agreement = four.agreement("federated_mean:ENDLESS", rounds=4, **LINEAR)
    broken = four.names[1]

    class Closing(LoopbackNetwork):
        def ask(self, sites, what, *arguments, seconds):
            if what == "start" and arguments[:2] == ("contribute", 2):
                self.sites[broken].store._db.execute("PRAGMA query_only = 1")
            return super().ask(sites, what, *arguments, seconds=seconds)

    network, report = job(four, agreement, tmp_path, 3, Closing())
    assert [r.round for r in report.rounds] == [1, 2, 3]
    assert broken in report.rounds[1].missing and broken in report.rounds[2].missing
    others = {name: network.sites[name].store for name in four.names if name != broken}
    assert all([r.number for r in store.rounds()] == [1, 2, 3] for store in others.values())
    close(network)
    with (
        closing(Store.look(tmp_path / f"{broken}.sqlite")) as seen,
        pytest.raises(RequestError, match="left"),
    ):
        seen.log(LogEntry("now", 1, "x", True, "upload", 1, "y"))
    # When there is room again it goes on where it was.
    network, report = job(four, agreement, tmp_path, 1)
    store = network.sites[broken].store
    assert [r.number for r in store.rounds()] == [1, 4] and audit.verify(store, None).faults == ()
    assert list(store.broadcasts()) == [1, 2, 3, 4]
    close(network)


def test_a_full_disk_leaves_the_last_round_whole(tmp_path):
    path = tmp_path / "full.sqlite"
    store = Store.open(path, "a", "agreement")

    def finish(t, weights):
        return store.finish(RoundRow(t, (), "", 0.5), np.ones(weights, np.float32), ("a",), b"state")

    assert finish(1, 10)
    store._db.execute("PRAGMA max_page_count = 1")  # as many as there are
    with pytest.raises(RequestError, match=r"full.*left as it is"):
        finish(2, 1_000_000)
    with pytest.raises(RequestError, match="full"):
        store.log(*[LogEntry("now", 2, "b", True, "upload", 1, "y" * 1000) for _ in range(2000)])
    assert store.round == 1 and store.traffic() == [] and len(store.model()) == 10
    store.close()
    store = Store.open(path, "a", "agreement")  # there is room again
    assert finish(2, 1_000_000) and store.round == 2
    store.close()


def test_many_rounds_need_no_more_memory(four, tmp_path):
    """Thirty rounds here."""
    agreement = four.agreement("federated_mean:ENDLESS", rounds=40, **LINEAR)
    network = LoopbackNetwork()
    for name in four.names:
        open_site(four, name, agreement, tmp_path, network)
    scheduler = Scheduler(network, agreement, 10, QUICK)
    held = []
    tracemalloc.start()
    try:
        for _ in range(3):
            scheduler.run(four.names)
            network.carried.clear()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[2] - held[1] < 300_000, held  # what the report of ten rounds and caches take
    close(network)
