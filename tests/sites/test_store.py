"""The site's store: whole rounds or nothing, also when the process is killed; damage is refused."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.sites.store.rows import EntryKind, LogEntry, RoundRow
from abps.sites.store.store import Store


def finished(t=1, **changes):
    row = RoundRow(t, ("bea",), "", changes.pop("validation", 0.6))
    return {"row": row, "weights": np.arange(6, dtype=np.float32) + t} | changes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site.sqlite"


def fresh(path):
    return Store.open(path, "ada", "one")


def test_what_is_written_is_read_back_after_reopening(path):
    store = fresh(path)
    assert store.round == 0 and store.model() is None
    assert store.finish(**finished(1))
    assert store.finish(**finished(2, validation=None))
    entry = LogEntry("2026-01-01T00:00:00", 2, "bea", True, EntryKind.UPLOAD, 123, "partner of round 2")
    store.log(entry)
    store.refused("eve", "wrong round", "round 9")
    store.refused("eve", "wrong round", "round 10")
    store.close()
    store = fresh(path)
    assert store.round == 2
    np.testing.assert_array_equal(store.model(), np.arange(6, dtype=np.float32) + 2)
    assert store.traffic() == [entry] and store.sent_bytes() == {"upload": 123}
    assert store.refusals() == {("eve", "wrong round"): 2}
    assert [r.validation for r in store.rounds()] == [0.6, None]
    store.close()


def test_a_round_is_counted_once(path):
    store = fresh(path)
    assert store.finish(**finished(1))
    before = store.rounds()
    assert not store.finish(**finished(1, weights=np.zeros(6, dtype=np.float32), validation=0.1))
    assert store.rounds() == before and store.model()[0] == 1.0
    store.close()


def test_a_round_that_fails_halfway_leaves_nothing(path):
    store = fresh(path)
    store.finish(**finished(1))
    with pytest.raises((TypeError, sqlite3.Error)):
        store.finish(**finished(2, broadcasts={2: None}))
    assert store.round == 1 and len(store.rounds()) == 1 and store.model()[0] == 1.0
    assert store.finish(**finished(2))
    store.close()


def test_one_writer_at_a_time_and_any_reader(path):
    store = fresh(path)
    store.finish(**finished(1))
    with pytest.raises(RequestError, match="in use by another process"):
        fresh(path)
    reader = Store.look(path)
    assert reader.round == 1
    store.finish(**finished(2))
    assert reader.round == 2
    with pytest.raises(RequestError, match="readonly"):
        reader.finish(**finished(3))
    reader.close()
    store.close()
    fresh(path).close()


@pytest.mark.parametrize(("site", "agreement"), [("bea", "one"), ("ada", "two")])
def test_a_store_of_something_else_is_refused(path, site, agreement):
    fresh(path).close()
    with pytest.raises(RequestError, match="not"):
        Store.open(path, site, agreement)
    fresh(path).close()  # untouched


def refused_and_untouched(path, match):
    before = path.read_bytes()
    for open_ in (lambda: fresh(path), lambda: Store.look(path)):
        with pytest.raises(RequestError, match=match):
            open_()
    assert path.read_bytes() == before


def test_files_that_are_no_store_are_refused_and_kept(path):
    for content in (
        b"",
        b"hello",
        b"SQLite format 3\0",
        b"SQLite format 3\0" + b"\0" * 200,
        os.urandom(5000),
    ):
        path.write_bytes(content)
        refused_and_untouched(path, "left as it is")


def test_somebody_elses_database_is_refused(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE patients (name TEXT)")
    db.close()
    refused_and_untouched(path, "something else")


@pytest.mark.parametrize(("version", "words"), [(99, "newer version"), (6, "older version")])
def test_another_schema_is_refused(path, version, words):
    fresh(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {version}")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    refused_and_untouched(path, words)


def test_a_cut_off_store_is_refused(path):
    store = fresh(path)
    for t in range(1, 20):
        store.finish(**finished(t, weights=np.zeros(2000, dtype=np.float32)))
    store.close()
    path.write_bytes(path.read_bytes()[:-6000])
    refused_and_untouched(path, "damaged|cannot be used")


def test_flipped_bits_are_noticed_or_harmless(path):
    """Whatever byte is damaged: the store is refused, or all it says of rounds is still right."""

    def all_of(store):
        kept = (store.rounds(), store.broadcasts(), store.state())
        return store.round, store.model().tolist(), kept

    store = fresh(path)
    for t in range(1, 6):
        state = f"what was seen until round {t}".encode()
        weights = np.full(300, t, dtype=np.float32)
        kept = {t: f"broadcast {t}".encode()}
        store.finish(**finished(t, weights=weights, state=state, members=("ada", "bea"), broadcasts=kept))
    told = all_of(store)
    store.close()
    whole = path.read_bytes()
    rng = random.Random(5)
    refused = 0
    for _ in range(300):
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :])
        damaged = path.read_bytes()
        try:
            store = Store.look(path)
        except RequestError:
            refused += 1
            assert path.read_bytes() == damaged
            continue
        now = all_of(store)
        store.close()
        assert now == told
    assert refused > 10


def test_broadcasts_are_part_of_their_round(path):
    store = fresh(path)
    store.finish(**finished(1, broadcasts={1: b"one"}))
    assert not store.finish(**finished(1, broadcasts={1: b"another"}))
    store.finish(**finished(4, broadcasts={2: b"two", 4: b"four"}))
    store.close()
    store = fresh(path)
    assert store.broadcasts() == {1: b"one", 2: b"two", 4: b"four"} and store.broadcasts(1) == {
        2: b"two",
        4: b"four",
    }
    store.close()


def test_no_store_yet(tmp_path):
    with pytest.raises(RequestError, match="no store here"):
        Store.look(tmp_path / "nothing.sqlite")


def finish_rounds_until_killed(path, pipe):
    """The life of a site's process that does nothing but finish rounds and report them."""
    store = fresh(path)
    os.write(pipe, f"open {store.round}\n".encode())
    while True:
        t = store.round + 1
        store.log(LogEntry("now", t, "bea", True, EntryKind.UPLOAD, 100, "upload of this round"))
        weights = np.full(5000, t, dtype=np.float32)
        store.finish(RoundRow(t, ("bea",), "", 0.5), weights, broadcasts={t: bytes([t % 256])})
        os.write(pipe, f"done {t}\n".encode())


def test_killed_at_random_moments_nothing_is_lost_or_doubled(path):
    """Twelve SIGKILLs: every round that was reported is there, whole, and once."""
    rng = random.Random(7)
    last = 0
    for _ in range(12):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                finish_rounds_until_killed(path, writing)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert pipe.readline() == f"open {last}\n"
            done = [int(pipe.readline().split()[1])]
            time.sleep(rng.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            done += [int(line.split()[1]) for line in pipe if line.endswith("\n")]
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        reported = max([last, *done])

        store = fresh(path)
        last = store.round
        assert last in (reported, reported + 1)  # the last one may have been written and not reported
        assert store.broadcasts() == {t: bytes([t % 256]) for t in range(1, last + 1)}
        assert [row.number for row in store.rounds()] == list(range(1, last + 1))
        if last:
            assert set(store.model().tolist()) == {float(last)}
        assert {entry.round for entry in store.traffic()} >= set(range(1, last + 1))
        store.close()
    assert last >= 12
