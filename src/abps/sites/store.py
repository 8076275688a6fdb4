"""What a site remembers between jobs: its beliefs, its model, its promises, and what it sent to whom.

One SQLite file in write-ahead mode, at the site, never shipped. A round changes it in one transaction,
so that a site killed at any moment has either all of a round or nothing of it: no observation is lost
and none is counted twice. What was promised to a peer (:mod:`abps.core.protocol`) is on disk before the
promise leaves.

A file that is damaged, of a newer version, or not a store at all is refused and left as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps import files
from abps.core.errors import RequestError
from abps.core.protocol import Record, Stage
from abps.sites import chain

try:
    import fcntl
except ImportError:  # not a Unix: the check against a second writer is left out
    fcntl = None  # type: ignore[assignment]

#: "ABPS" as SQLite's application id.
APPLICATION = 0x41425053

#: One script per schema version; a store of version v is brought up to date by the scripts after the v-th.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE belief (
        peer TEXT PRIMARY KEY, gain REAL NOT NULL, loss REAL NOT NULL, count REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE observation (
        round INTEGER NOT NULL, peer TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (round, peer)
    ) WITHOUT ROWID;
    CREATE TABLE model (
        which TEXT PRIMARY KEY, round INTEGER NOT NULL, weights BLOB NOT NULL, digest BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE round (
        number INTEGER PRIMARY KEY, partners TEXT NOT NULL, rest TEXT NOT NULL, validation REAL
    );
    CREATE TABLE promise (
        round INTEGER NOT NULL, peer TEXT NOT NULL, mine INTEGER NOT NULL, attempt INTEGER NOT NULL,
        stage TEXT NOT NULL, PRIMARY KEY (round, peer, mine)
    ) WITHOUT ROWID;
    CREATE TABLE traffic (
        number INTEGER PRIMARY KEY, at TEXT NOT NULL, round INTEGER NOT NULL, peer TEXT NOT NULL,
        sent INTEGER NOT NULL, kind TEXT NOT NULL, bytes INTEGER NOT NULL, why TEXT NOT NULL
    );
    CREATE TABLE refusal (
        peer TEXT NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL, latest TEXT NOT NULL,
        PRIMARY KEY (peer, reason)
    ) WITHOUT ROWID;
    """,
    # Forgetting after alarms: those raised here or told by peers, with the round whose beliefs first reckon
    # with them; whom the own ones were told to; and what the watch carries along.
    """
    CREATE TABLE alarm (
        round INTEGER NOT NULL, site TEXT NOT NULL, statistic TEXT NOT NULL, p REAL, reckoned INTEGER,
        PRIMARY KEY (round, site, statistic)
    ) WITHOUT ROWID;
    CREATE TABLE told (round INTEGER NOT NULL, peer TEXT NOT NULL, PRIMARY KEY (round, peer)) WITHOUT ROWID;
    CREATE TABLE watch (only INTEGER PRIMARY KEY CHECK (only = 1), state TEXT NOT NULL);
    """,
    # Observations that have an error of their own.
    "ALTER TABLE observation ADD COLUMN se REAL;",
    # The method's own state, whatever it is, and the members that it speaks of (``watch`` is of old).
    """
    CREATE TABLE state (
        only INTEGER PRIMARY KEY CHECK (only = 1), members TEXT NOT NULL, content BLOB NOT NULL,
        digest BLOB NOT NULL
    );
    """,
    # The log as a chain of digests: of every row and all before it. The site's own signed heads of it, and
    # the heads of partners' logs as they told them. What was put aside into files, and its sums.
    """
    ALTER TABLE traffic ADD COLUMN chain BLOB;
    CREATE TABLE head (
        site TEXT NOT NULL, rows INTEGER NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL,
        signature BLOB NOT NULL, PRIMARY KEY (site, rows)
    ) WITHOUT ROWID;
    CREATE TABLE aside (
        file TEXT PRIMARY KEY, rows INTEGER NOT NULL, chain BLOB NOT NULL, sums TEXT NOT NULL
    ) WITHOUT ROWID;
    """,
)

#: A log with more rows than this puts those of finished rounds aside, into files beside the store.
MOST_ROWS = 100_000

#: Kinds of what leaves that tell nothing of patients: on disk with the next that does.
_SMALL = ("message", "place")

_COLUMNS = "at, round, peer, sent, kind, bytes, why"


@dataclass(frozen=True)
class Evidence:
    """What was observed of a peer: for it, against it, and how often (decayed alike)."""

    gain: float
    loss: float
    count: float

    def times(self, share: float) -> Evidence:
        """What is left when only a share of it counts."""
        return Evidence(self.gain * share, self.loss * share, self.count * share)


@dataclass(frozen=True)
class AlarmRow:
    """An alarm of drift, raised at a site in a round.

    statistic, p: what it was raised on, and its p-value where there is one; a peer does not tell.
    reckoned: the first round whose beliefs reckon with it; None until then.
    """

    round: int
    site: str
    statistic: str = ""
    p: float | None = None
    reckoned: int | None = None


@dataclass(frozen=True)
class Entry:
    """One payload that left the site or came in: what, to or from whom, how many bytes, why."""

    at: str
    round: int
    peer: str
    sent: bool
    kind: str  # weights, message, vector, alarm, request, note, answer, notice, head, place, told or decision
    bytes: int
    why: str


@dataclass(frozen=True)
class Head:
    """A log as its owner stood for it: how many rows, the digest of the last, the owner's signature."""

    site: str
    rows: int
    round: int
    digest: bytes
    signature: bytes = b""


@dataclass(frozen=True, eq=False)
class Finished:
    """Everything that one round changes, written together.

    state: the method's, without the model (:mod:`abps.methods.memory`).  members: of whom it speaks.
    observations: what each partner was worth, in [0, 1].  beliefs: evidence after the round; both for the
    site's owner to look at.  errors: standard errors of observations, from methods that know them.
    alarms: raised in this round.  reckoned: earlier alarms that this state is the first to reckon with.
    """

    round: int
    weights: NDArray[np.float32]
    beliefs: Mapping[str, Evidence]
    observations: Mapping[str, float]
    partners: tuple[str, ...]
    rest: str
    validation: float
    members: tuple[str, ...] = ()
    state: bytes = b""
    alarms: tuple[AlarmRow, ...] = ()
    reckoned: tuple[AlarmRow, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundRow:
    """A finished round as it was written down."""

    number: int
    partners: tuple[str, ...]
    rest: str
    validation: float | None


class Store:
    """A site's own memory. One process writes at a time; reading alongside is always possible."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None) -> None:
        self.path = path
        self._db = connection
        self._file_lock = lock
        self._lock = threading.RLock()
        self._batch = threading.local()  # how deep a thread is in blocks of ``together``
        self._pending = False  # whether something was written that may not be on the disk yet

    # Opening

    @staticmethod
    def open(path: Path, site: str, agreement: str, notes: Mapping[str, str] | None = None) -> Store:
        """The store of ``site`` for one agreement (method, seed, columns); made if there is none.

        A store of another site or another agreement is refused: its beliefs are about something else.
        notes: what else a new store shall say about itself.
        """
        path = Path(path)
        files.folder(path.parent)
        lock = _single_writer(path)
        try:
            if not path.exists():
                _make(path, {**(notes or {}), "site": site, "agreement": agreement, "round": "0"})
            store = Store(_connect(path, write=True), path, lock)
        except BaseException:
            _unlock(lock)
            raise
        try:
            store._check(site, agreement)
            store._chain_old()
        except BaseException:
            store.close()
            raise
        return store

    @staticmethod
    def look(path: Path) -> Store:
        """A store to read from, whoever else has it open."""
        if not Path(path).exists():
            raise RequestError(f"{path}: no store here; it is made when the site's first job starts")
        store = Store(_connect(Path(path), write=False), Path(path), None)
        try:
            store._check(None, None)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the file; nothing is pending, every change was written when it was made."""
        with self._lock:
            self._db.close()
            _unlock(self._file_lock)
            self._file_lock = None

    def _check(self, site: str | None, agreement: str | None) -> None:
        facts = self.facts()
        for key, wanted, words in (
            ("site", site, "belongs to the site"),
            ("agreement", agreement, "was made under the agreement"),
        ):
            if wanted is not None and facts.get(key) != wanted:
                raise RequestError(
                    f"{self.path} {words} {facts.get(key)!r}, not {wanted!r}; "
                    "give this study a store of its own or move the file away"
                )
        with _refusing(self.path):
            if facts.get("digest", "") != self._digest():
                raise RequestError(
                    f"{self.path} is damaged: its content does not match its own digest; "
                    "it was left as it is, restore it from a backup or move it away to start anew"
                )

    # Reading

    def facts(self) -> dict[str, str]:
        """Site, agreement, round, digest, and the notes of the one who made the store."""
        return dict(self._rows("SELECT key, value FROM fact"))

    @property
    def round(self) -> int:
        """The last round that was finished; 0 before the first."""
        return int(self.facts()["round"])

    def beliefs(self) -> dict[str, Evidence]:
        """The evidence about every peer observed so far."""
        return {peer: Evidence(*rest) for peer, *rest in self._rows("SELECT * FROM belief")}

    def observations(self) -> dict[tuple[int, str], float]:
        """Every observation ever made, by round and peer."""
        rows = self._rows("SELECT round, peer, value FROM observation")
        return {(r, peer): value for r, peer, value in rows}

    def state(self) -> tuple[tuple[str, ...], bytes] | None:
        """The members of whom the method's state speaks, and the state; None before the first round."""
        rows = self._rows("SELECT members, content FROM state")
        return None if not rows else (tuple(json.loads(rows[0][0])), bytes(rows[0][1]))

    def model(self, which: str = "current") -> NDArray[np.float32] | None:
        """(P,) the model after the last round, or the ``best`` one; None before the first round."""
        rows = self._rows("SELECT weights FROM model WHERE which = ?", which)
        return None if not rows else np.frombuffer(rows[0][0], dtype="<f4").astype(np.float32)

    def rounds(self) -> list[RoundRow]:
        """The finished rounds, in order."""
        return [
            RoundRow(number, tuple(json.loads(partners)), rest, validation)
            for number, partners, rest, validation in self._rows("SELECT * FROM round ORDER BY number")
        ]

    def promises(self, round: int) -> tuple[Record, ...]:
        """What was promised in a round, for :func:`abps.core.protocol.restore`."""
        rows = self._rows("SELECT peer, mine, attempt, stage FROM promise WHERE round = ?", round)
        return tuple(Record(peer, bool(mine), attempt, Stage(stage)) for peer, mine, attempt, stage in rows)

    def in_doubt(self) -> list[int]:
        """The rounds in which an accepted proposal was neither confirmed nor released."""
        rows = self._rows(
            "SELECT DISTINCT round FROM promise WHERE stage = ? ORDER BY round", str(Stage.HELD)
        )
        return [number for (number,) in rows]

    def debtors(self) -> frozenset[str]:
        """The peers whose proposal was accepted and neither confirmed nor released, in finished rounds."""
        rows = self._rows(
            "SELECT DISTINCT peer FROM promise WHERE stage = ? AND mine = 0 AND round <= ?",
            str(Stage.HELD), self.round,
        )  # fmt: skip
        return frozenset(peer for (peer,) in rows)

    def partners(self) -> dict[int, frozenset[str]]:
        """The matched peers of every round."""
        found: dict[int, set[str]] = {}
        for number, peer in self._rows("SELECT round, peer FROM promise WHERE stage = ?", str(Stage.MATCHED)):
            found.setdefault(number, set()).add(peer)
        return {number: frozenset(peers) for number, peers in found.items()}

    def traffic(self, round: int | None = None) -> list[Entry]:
        """Every payload (of a round that was not put aside), in the order it was written down."""
        which = "1" if round is None else f"round = {int(round)}"
        rows = self._rows(f"SELECT {_COLUMNS} FROM traffic WHERE {which} ORDER BY number")
        old = [row[1:-1] for row in self._aside()] if round is None else []
        return [
            Entry(at, r, peer, bool(sent), kind, size, why)
            for at, r, peer, sent, kind, size, why in (*old, *rows)
        ]

    def sent_bytes(self) -> dict[str, int]:
        """Bytes sent so far, by kind."""
        found = dict(self._rows("SELECT kind, SUM(bytes) FROM traffic WHERE sent GROUP BY kind"))
        for sums in self._sums():
            for kind, size in sums["sent"].items():
                found[kind] = found.get(kind, 0) + size
        return dict(sorted(found.items()))

    def links(self) -> int:
        """How many times weights went to or came from a peer: once for each peer and round."""
        ((count,),) = self._rows(
            "SELECT COUNT(*) FROM (SELECT DISTINCT round, peer FROM traffic WHERE kind = 'weights')"
        )
        return int(count) + sum(int(sums["links"]) for sums in self._sums())

    def weight_bytes(self) -> int:
        """Bytes of weights that left or came."""
        ((size,),) = self._rows("SELECT COALESCE(SUM(bytes), 0) FROM traffic WHERE kind = 'weights'")
        return int(size) + sum(int(sums["weights"]) for sums in self._sums())

    def log_rows(self) -> Iterator[tuple[Any, ...]]:
        """The log as it lies there: number, the columns of an entry, and the digest; oldest first."""
        yield from self._aside()
        yield from self._rows(f"SELECT number, {_COLUMNS}, chain FROM traffic ORDER BY number")

    def log_start(self) -> bytes:
        """What the chain of this log begins with."""
        facts = self.facts()
        return chain.digest(chain.canonical(["abps.audit/1", facts["site"], facts["agreement"]]))

    def log_head(self) -> tuple[int, bytes]:
        """How many rows the log has, and the digest of the last."""
        with self._lock, _refusing(self.path):
            return self._head(self._db)

    def heads(self, site: str | None = None) -> list[Head]:
        """The signed heads of logs (of one site's), oldest first."""
        which, values = ("1", ()) if site is None else ("site = ?", (site,))
        rows = self._rows(
            f"SELECT site, rows, round, digest, signature FROM head WHERE {which} ORDER BY site, rows",
            *values,
        )
        return [Head(*row) for row in rows]

    def digest_at(self, number: int) -> bytes | None:
        """The digest of a row of the log, or none if there is no such row."""
        if number == 0:
            return self.log_start()
        rows = self._rows("SELECT chain FROM traffic WHERE number = ?", number)
        if rows:
            return bytes(rows[0][0])
        return next((bytes(row[-1]) for row in self._aside() if row[0] == number), None)

    def refusals(self) -> dict[tuple[str, str], int]:
        """How often each peer's messages were refused, by reason."""
        return {(peer, why): n for peer, why, n in self._rows("SELECT peer, reason, count FROM refusal")}

    def alarms(self) -> list[AlarmRow]:
        """Every alarm that was raised here or told by a peer, oldest first."""
        rows = self._rows("SELECT round, site, statistic, p, reckoned FROM alarm ORDER BY round, site")
        return [AlarmRow(*row) for row in rows]

    def told(self) -> set[tuple[int, str]]:
        """Which of its alarms (by their round) the site has told to whom."""
        return set(self._rows("SELECT round, peer FROM told"))

    # Writing

    def hear(self, peer: str, round: int) -> bool:
        """Write down an alarm that a peer tells; False if it is known: told twice, it counts once."""
        with self._change() as db:
            found = db.execute("INSERT OR IGNORE INTO alarm VALUES (?, ?, '', NULL, NULL)", (round, peer))
            if found.rowcount:
                db.execute("INSERT OR REPLACE INTO fact VALUES ('digest', ?)", (self._digest(),))
        return bool(found.rowcount)

    def keep_table(self, fingerprint: str, another: bool = False) -> None:
        """Write down which table the study is about; a swapped one is refused unless it may be another."""
        known = self.facts().get("table")
        if known == fingerprint:
            return
        if known is not None and not another:
            raise RequestError(
                f"{self.path} is of a study on another table than the one that the site has now; "
                'put the table back, or say "another_table": true in the site\'s own file for one job'
            )
        self.keep(table=fingerprint)

    def keep(self, **facts: str) -> None:
        """Write down facts of the study, on disk before anything that follows from them leaves."""
        with self._change() as db:
            db.executemany("INSERT OR REPLACE INTO fact VALUES (?, ?)", list(facts.items()))
            db.execute("INSERT OR REPLACE INTO fact VALUES ('digest', ?)", (self._digest(),))

    def tell(self, round: int, peer: str) -> None:
        """Write down that a peer knows of this site's alarm of a round."""
        with self._change(power=False) as db:
            db.execute("INSERT OR IGNORE INTO told VALUES (?, ?)", (round, peer))

    def promise(self, round: int, kept: Iterable[Record]) -> None:
        """Write down a round's promises in the place of what was written for it before."""
        rows = [(round, r.peer, int(r.mine), r.attempt, str(r.stage)) for r in kept]
        with self._change() as db:
            db.execute("DELETE FROM promise WHERE round = ?", (round,))
            db.executemany("INSERT INTO promise VALUES (?, ?, ?, ?, ?)", rows)

    def log(self, *entries: Entry) -> None:
        """Write down payloads.

        What leaves is on disk before it does (in a block of :meth:`together` by :meth:`sync`); what came, and
        the sixteen bytes of a negotiation, which tell nothing of patients, are with the next that does, at
        the latest at the end of the round.
        """
        with self._change(power=any(e.sent and e.kind not in _SMALL for e in entries)) as db:
            number, digest = self._head(db)
            for e in entries:
                number += 1
                row = (number, e.at, e.round, e.peer, int(e.sent), e.kind, e.bytes, e.why)
                digest = chain.link(digest, row)
                db.execute(
                    f"INSERT INTO traffic (number, {_COLUMNS}, chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, digest),
                )

    def keep_head(self, head: Head) -> None:
        """Keep a signed head: the site's own, or what a partner says of its log."""
        with self._change(power=False) as db:
            db.execute(
                "INSERT OR IGNORE INTO head VALUES (?, ?, ?, ?, ?)",
                (head.site, head.rows, head.round, head.digest, head.signature),
            )

    def put_aside(self, most: int = MOST_ROWS) -> Path | None:
        """Move the log's rows of finished rounds into a file beside the store, if there are too many."""
        ((count,),) = self._rows("SELECT COUNT(*) FROM traffic")
        if count <= most:
            return None
        ((last,),) = self._rows("SELECT MAX(number) FROM traffic WHERE round < ?", self.round)
        if last is None:
            return None
        rows = self._rows(
            f"SELECT number, {_COLUMNS}, chain FROM traffic WHERE number <= ? ORDER BY number", last
        )
        ((before,),) = self._rows("SELECT COUNT(*) FROM aside")
        path = self.path.with_name(f"{self.path.stem}.audit-{before + 1:04}.jsonl")
        text = "".join(
            json.dumps([*row[:-1], bytes(row[-1]).hex()], ensure_ascii=False) + "\n" for row in rows
        )
        files.write_text(path, text)
        sent: dict[str, int] = {}
        for row in rows:
            if row[4]:
                sent[row[5]] = sent.get(row[5], 0) + row[6]
        weights = [row for row in rows if row[5] == "weights"]
        links = {(row[2], row[3]) for row in weights}
        sums = json.dumps({"sent": sent, "links": len(links), "weights": sum(row[6] for row in weights)})
        with self._change() as db:
            db.execute("INSERT INTO aside VALUES (?, ?, ?, ?)", (path.name, last, bytes(rows[-1][-1]), sums))
            db.execute("DELETE FROM traffic WHERE number <= ?", (last,))
        return path

    def refused(self, peer: str, reason: str, detail: str) -> None:
        """Count a refused message against its sender."""
        with self._change(power=False) as db:
            db.execute(
                "INSERT INTO refusal VALUES (?, ?, 1, ?) ON CONFLICT (peer, reason) "
                "DO UPDATE SET count = count + 1, latest = excluded.latest",
                (peer, reason, detail),
            )

    def finish(self, done: Finished) -> bool:
        """Write a round, whole. False if it had been finished before: nothing is counted twice."""
        blob = done.weights.astype("<f4").tobytes()
        with self._change() as db:
            if done.round <= self.round:
                return False
            db.executemany(
                "INSERT INTO observation VALUES (?, ?, ?, ?)",
                [
                    (done.round, peer, float(value), done.errors.get(peer))
                    for peer, value in sorted(done.observations.items())
                ],
            )
            db.execute("DELETE FROM belief")
            db.executemany(
                "INSERT INTO belief VALUES (?, ?, ?, ?)",
                [(peer, e.gain, e.loss, e.count) for peer, e in sorted(done.beliefs.items())],
            )
            db.execute(
                "INSERT OR REPLACE INTO model VALUES ('current', ?, ?, ?)", (done.round, blob, _hash(blob))
            )
            validation = done.validation if math.isfinite(done.validation) else None
            db.execute(
                "INSERT INTO round VALUES (?, ?, ?, ?)",
                (done.round, json.dumps(sorted(done.partners)), done.rest, validation),
            )
            db.executemany(
                "INSERT INTO alarm VALUES (?, ?, ?, ?, NULL)",
                [(a.round, a.site, a.statistic, a.p) for a in done.alarms],
            )
            db.executemany(
                "UPDATE alarm SET reckoned = ? WHERE round = ? AND site = ? AND statistic = ?",
                [(done.round, a.round, a.site, a.statistic) for a in done.reckoned],
            )
            db.execute(
                "INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?)",
                (json.dumps(list(done.members)), done.state, _hash(done.state)),
            )
            db.execute("UPDATE fact SET value = ? WHERE key = 'round'", (str(done.round),))
            db.execute("INSERT OR REPLACE INTO fact VALUES ('digest', ?)", (self._digest(),))
        return True

    def keep_best(self) -> None:
        """Keep the model of the last round apart, as the best so far."""
        with self._change() as db:
            db.execute(
                "INSERT OR REPLACE INTO model "
                "SELECT 'best', round, weights, digest FROM model WHERE which = 'current'"
            )
            db.execute("INSERT OR REPLACE INTO fact VALUES ('digest', ?)", (self._digest(),))

    # Inside

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, _refusing(self.path):
            return self._db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _change(self, power: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing, whenever the process is killed.

        power: it also outlives a power cut from the moment it is made; else, from the next one that does.
        """
        with self._lock, _refusing(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk ends some transactions by itself
                    self._db.execute("ROLLBACK")
                raise
            self._pending = True
        if power and not getattr(self._batch, "depth", 0):
            self.sync()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What this thread writes in the block is written as it comes, and outlives a power cut when the
        block ends: one wait for the disk instead of many. Whoever sends something in it calls :meth:`sync`
        before.
        """
        self._batch.depth = getattr(self._batch, "depth", 0) + 1
        try:
            yield
        finally:
            self._batch.depth -= 1
            if not self._batch.depth:
                self.sync()

    def sync(self) -> None:
        """Wait until everything that was written is on the disk."""
        with self._lock:
            if not self._pending:
                return
            try:
                # In write-ahead mode all changes since the last checkpoint, which syncs, are in this file.
                handle = os.open(f"{self.path}-wal", os.O_RDONLY)
            except FileNotFoundError:
                handle = os.open(self.path, os.O_RDONLY)
            except OSError as error:
                raise RequestError(f"{self.path} cannot be synced ({error.strerror})") from error
            try:
                os.fsync(handle)
            except OSError as error:
                raise RequestError(f"{self.path} cannot be synced ({error.strerror})") from error
            finally:
                os.close(handle)
            self._pending = False

    def _digest(self) -> str:
        return _digest(self._db)

    def _head(self, db: sqlite3.Connection) -> tuple[int, bytes]:
        for query in (
            "SELECT number, chain FROM traffic ORDER BY number DESC LIMIT 1",
            "SELECT rows, chain FROM aside ORDER BY rows DESC LIMIT 1",
        ):
            for number, digest in db.execute(query):
                return int(number), bytes(digest)
        return 0, self.log_start()

    def _aside(self) -> Iterator[tuple[Any, ...]]:
        """The rows that were put aside, oldest first."""
        for (name,) in self._rows("SELECT file FROM aside ORDER BY rows"):
            path = self.path.with_name(name)
            if not path.is_file():
                raise RequestError(f"{path} is missing: rows of the log were put aside there; bring it back")
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    *row, digest = json.loads(line)
                    yield (*row, bytes.fromhex(digest))
                except ValueError as error:
                    raise RequestError(
                        f"{path} is damaged ({error}); bring back the file as it was"
                    ) from error

    def _sums(self) -> list[dict[str, Any]]:
        return [json.loads(sums) for (sums,) in self._rows("SELECT sums FROM aside")]

    def _chain_old(self) -> None:
        """Chain the rows of a store that an older version wrote; from now on they are fixed."""
        if not self._rows("SELECT 1 FROM traffic WHERE chain IS NULL LIMIT 1"):
            return
        digest, links = self.log_start(), []
        for number, *row, _ in self._rows(f"SELECT number, {_COLUMNS}, chain FROM traffic ORDER BY number"):
            digest = chain.link(digest, (number, *row))
            links.append((digest, number))
        with self._change() as db:
            db.executemany("UPDATE traffic SET chain = ? WHERE number = ?", links)


def _digest(db: sqlite3.Connection) -> str:
    """A digest of what must not change by itself: round, beliefs, observations, alarms, models and state."""
    digest = hashlib.blake2b(digest_size=16)
    for query in (
        "SELECT key, value FROM fact WHERE key <> 'digest' ORDER BY key",
        "SELECT * FROM belief ORDER BY peer",
        "SELECT round, peer, value FROM observation ORDER BY round, peer",
        "SELECT * FROM round ORDER BY number",
    ):
        for row in db.execute(query):
            digest.update(repr(row).encode())
        digest.update(b"|")
    # Of later versions: nothing in them is the digest of a store that never had them.
    for query in (
        "SELECT * FROM alarm ORDER BY round, site, statistic",
        "SELECT state FROM watch",
        "SELECT round, peer, se FROM observation WHERE se IS NOT NULL ORDER BY round, peer",
    ):
        rows = db.execute(query).fetchall()
        if rows:
            digest.update(repr((query, rows)).encode())
    # What is large is hashed once, when written; here it must still have that hash.
    for which, number, content, written in (
        *db.execute("SELECT * FROM model ORDER BY which"),
        *db.execute("SELECT 'state', members, content, digest FROM state"),
    ):
        intact = _hash(content) == written
        digest.update(repr((which, number, written if intact else b"damaged")).encode())
    return digest.hexdigest()


def _hash(blob: bytes) -> bytes:
    return hashlib.blake2b(blob, digest_size=16).digest()


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """SQLite's complaints in our words; the file stays as it is."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, RequestError | sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        advice = "try again" if busy else "restore it from a backup or move it away to start anew"
        raise RequestError(f"{path} cannot be used ({error}); it was left as it is, {advice}") from error


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    """Open an existing store after looking whether it is one; bring it up to date if we may write."""
    header = path.read_bytes()[:100] if path.is_file() else b""
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise RequestError(
            f"{path} is not a site's store (or is cut short); it was left as it is, move it away"
        )
    if int.from_bytes(header[68:72], "big") != APPLICATION:
        raise RequestError(
            f"{path} is a database of something else; it was left as it is, choose another path"
        )
    mode = "rw" if write else "ro"
    with _refusing(path):
        db = sqlite3.connect(
            f"file:{path.absolute().as_posix().replace('?', '%3f').replace('#', '%23')}?mode={mode}",
            uri=True, timeout=10.0, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
    if write:
        with _refusing(path):
            db.execute("PRAGMA synchronous = NORMAL")  # the store syncs by itself, when something is to leave
    try:
        with _refusing(path):
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise RequestError(f"{path} is damaged ({verdict}); it was left as it is, restore a backup")
            (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise RequestError(
                f"{path} was written by a newer version of abps (schema {version}, this one knows "
                f"{len(MIGRATIONS)}); update abps at this site"
            )
        if version < len(MIGRATIONS):
            if not write:
                raise RequestError(f"{path} has the older schema {version}; the site's next job updates it")
            _migrate(db, path, version)
    except BaseException:
        db.close()
        raise
    return db


def _migrate(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Bring a store of an older version up to date, keeping a copy of what it was."""
    copy = path.with_name(f"{path.name}.schema{version}")
    with files.replacing(copy) as part, contextlib.closing(sqlite3.connect(part)) as backup:
        db.backup(backup)
    with _refusing(path):
        steps = "\n".join(MIGRATIONS[version:])
        db.executescript(f"BEGIN IMMEDIATE;\n{steps}\nPRAGMA user_version = {len(MIGRATIONS)};\nCOMMIT;")


def _make(path: Path, facts: Mapping[str, str]) -> None:
    """A new store, complete before it has its name: a file with the name is never half made."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute("PRAGMA journal_mode = WAL")
            steps = "\n".join(MIGRATIONS)
            db.executescript(f"BEGIN;\n{steps}\nPRAGMA user_version = {len(MIGRATIONS)};\nCOMMIT;")
            db.executemany("INSERT INTO fact VALUES (?, ?)", list(facts.items()))
            db.execute("INSERT INTO fact VALUES ('digest', ?)", (_digest(db),))
        part.replace(path)  # closing wrote the journal back, so the one file is all of it
    finally:
        for rest in (part, Path(f"{name}-wal"), Path(f"{name}-shm")):
            rest.unlink(missing_ok=True)


def _single_writer(path: Path) -> int | None:
    """Hold a lock for as long as the store is open, or say that another job has it."""
    if fcntl is None:
        return None
    handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise RequestError(
            f"{path} is in use by another process of this site; wait for its job to end"
        ) from error
    return handle


def _unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)
