"""What a site remembers between jobs: its model, the method's state, and what it sent to whom.

One SQLite file in write-ahead mode, at the site, never shipped. A round is one transaction: a site killed at
any moment has all of it or nothing. The log fixes by digests what the other tables hold; a file that does not
match its log, is of another version, or is no store is refused and left as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps import files
from abps.core.errors import RequestError
from abps.sites.store.rows import EntryKind, LogEntry, RoundRow, canonical, digest, digest_of, link, utc
from abps.wire.messages import Head

try:
    import fcntl
except ImportError:  # not a Unix: the check against a second writer is left out
    fcntl = None  # type: ignore[assignment]

APPLICATION = 0x41425053  # "ABPS" as SQLite's application id
SCHEMA_VERSION = 10
_SCHEMA = """
    CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE model (
        only INTEGER PRIMARY KEY CHECK (only = 1), members TEXT NOT NULL, weights BLOB NOT NULL,
        state BLOB NOT NULL
    );
    CREATE TABLE round (
        number INTEGER PRIMARY KEY, partners TEXT NOT NULL, rest TEXT NOT NULL, validation REAL
    );
    CREATE TABLE traffic (
        number INTEGER PRIMARY KEY, at TEXT NOT NULL, round INTEGER NOT NULL, peer TEXT NOT NULL,
        sent INTEGER NOT NULL, kind TEXT NOT NULL, bytes INTEGER NOT NULL, why TEXT NOT NULL,
        chain BLOB NOT NULL
    );
    CREATE TABLE head (
        site TEXT NOT NULL, rows INTEGER NOT NULL, restores INTEGER NOT NULL, round INTEGER NOT NULL,
        digest BLOB NOT NULL, signature BLOB NOT NULL, PRIMARY KEY (site, rows, restores)
    ) WITHOUT ROWID;
    CREATE TABLE broadcast (round INTEGER PRIMARY KEY, content BLOB NOT NULL);
"""

_COLUMNS = "at, round, peer, sent, kind, bytes, why"

_NOTES = (EntryKind.KEPT, EntryKind.REFUSED)  # rows of the log that are about the store itself
_ANEW = "restore it from a backup or move it away to start anew"
_STUDY, _MODEL = "study", "model"  # what the log calls the facts that a new store has, and its model


class StoreInUse(RequestError):
    """Another process of the site has the store open."""


class Store:
    """A site's own memory. One process writes at a time; reading alongside is always possible."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None = None) -> None:
        self.path = path
        self._db = connection
        self._file_lock = lock
        self._lock = threading.RLock()
        self._more: Counter[tuple[str, str]] = Counter()  # refusals since the last row about them
        self._refused: set[tuple[str, str]] = set()  # peers and reasons with such a row

    # Opening

    @staticmethod
    def open(
        path: Path, site: str, agreement: str, notes: Mapping[str, str] | None = None, wait: float = 0.0
    ) -> Store:
        """The store of ``site`` for one agreement; made, with ``notes``, if there is none. A store of another
        site or agreement is refused: its state is about something else.  wait: seconds, if it is in use."""
        path = Path(path)
        files.folder(path.parent)
        lock = single_writer(path, wait)
        try:
            if not path.exists():
                _make(path, {**(notes or {}), "site": site, "agreement": agreement})
            store = Store(_connect(path, write=True), path, lock)
        except BaseException:
            unlock(lock)
            raise
        store._check_or_close({"site": site, "agreement": agreement})
        return store

    @staticmethod
    def look(path: Path, check: bool = True) -> Store:
        """A store to read from, whoever else has it open.  check: whether it matches its log."""
        if not Path(path).exists():
            raise RequestError(f"{path}: no store here; it is made when the site's first job starts")
        store = Store(_connect(Path(path), write=False), Path(path))
        if check:
            store._check_or_close({})
        return store

    def close(self) -> None:
        """Close the file; every change was written when it was made, but for repeated refusals."""
        with self._lock:
            with contextlib.suppress(RequestError, sqlite3.Error):  # a disk that is full, or closed before
                self.log(*self._repeated())
            self._db.close()
            unlock(self._file_lock)
            self._file_lock = None

    def _check_or_close(self, expected: Mapping[str, str]) -> None:
        try:
            facts = self.facts()
            for key, wanted in expected.items():
                if facts.get(key) != wanted:
                    why = f"{self.path} is of the {key} {facts.get(key)!r}, not {wanted!r}"
                    raise RequestError(f"{why}; give this study a store of its own or move the file away")
            for what in self.altered():
                why = f"{self.path} is damaged or was changed: {what} is not what the log says that was kept"
                raise RequestError(f"{why}; it was left as it is, {_ANEW}")
        except BaseException:
            self.close()
            raise

    def altered(self) -> list[str]:
        """What the store holds otherwise than its log says."""
        with self._lock, _readable(self.path):
            self._db.execute("BEGIN")  # as it is at one moment, whoever writes meanwhile
            try:
                said = {e.why[:-66]: e.why[-64:] for e in self.traffic(None, EntryKind.KEPT)}
                held: dict[str, Any] = {f"round {r.number}": _plain(r) for r in self.rounds()}
                held |= {f"fact {key}": value for key, value in self.facts().items()}
                first = [key for key in held if key.startswith("fact ") and key not in said]
                held[_STUDY] = {key: held.pop(key) for key in first}
                if _MODEL in said or self.model() is not None:
                    held[_MODEL] = self._model_digests()
            finally:
                self._db.execute("COMMIT")
        found = {what: digest_of(value) for what, value in held.items()}
        return sorted(what for what in {*found, *said} if found.get(what) != said.get(what))

    # Reading

    def facts(self) -> dict[str, str]:
        return dict(self._rows("SELECT key, value FROM fact"))

    @property
    def round(self) -> int:
        """The last round that was finished; 0 before the first."""
        return int(self._rows("SELECT COALESCE(MAX(number), 0) FROM round")[0][0])

    def state(self) -> tuple[tuple[str, ...], bytes] | None:
        """The members that the method's state refers to, and the state; None before the first round."""
        rows = self._rows("SELECT members, state FROM model")
        return None if not rows else (tuple(json.loads(rows[0][0])), bytes(rows[0][1]))

    def model(self) -> NDArray[np.float32] | None:
        """(P,) the model after the last round; None before the first."""
        rows = self._rows("SELECT weights FROM model")
        return None if not rows else np.frombuffer(rows[0][0], dtype="<f4").astype(np.float32)

    def rounds(self) -> list[RoundRow]:
        return [
            RoundRow(number, tuple(json.loads(partners)), rest, validation)
            for number, partners, rest, validation in self._rows("SELECT * FROM round ORDER BY number")
        ]

    def traffic(self, round: int | None = None, *kinds: EntryKind) -> list[LogEntry]:
        """Every payload and decision (of a round), or the rows of some kinds, in the order of the log."""
        wanted = kinds or [kind for kind in EntryKind if kind not in _NOTES]
        which = f"kind IN ({', '.join('?' * len(wanted))}) AND (? IS NULL OR round = ?)"
        query = f"SELECT {_COLUMNS} FROM traffic WHERE {which} ORDER BY number"
        return [
            LogEntry(at, r, peer, bool(sent), EntryKind(kind), size, why)
            for at, r, peer, sent, kind, size, why in self._rows(query, *map(str, wanted), round, round)
        ]

    def sent_bytes(self) -> dict[str, int]:
        return dict(self._rows("SELECT kind, SUM(bytes) FROM traffic WHERE sent GROUP BY kind ORDER BY kind"))

    def broadcasts(self, after: int = 0) -> dict[int, bytes]:
        """The applied broadcasts of coordinators after a round, in order."""
        rows = self._rows("SELECT round, content FROM broadcast WHERE round > ? ORDER BY round", after)
        return {number: bytes(content) for number, content in rows}

    def refusals(self) -> dict[tuple[str, str], int]:
        """How often each peer's messages were refused, by (peer, reason)."""
        found = Counter(self._more)
        for entry in self.traffic(None, EntryKind.REFUSED):
            found[entry.peer, entry.why.partition(":")[0]] += entry.bytes
        return dict(found)

    # The log

    def log_rows(self) -> list[tuple[Any, ...]]:
        """The log as it is stored: number, the columns of an entry, and the digest; oldest first."""
        return self._rows(f"SELECT number, {_COLUMNS}, chain FROM traffic ORDER BY number")

    def digest_at(self, number: int) -> bytes | None:
        """The digest of a row of the log, or none if there is no such row; of row 0, what it begins with."""
        if number == 0:
            facts = self.facts()
            return digest(canonical(["abps.audit/1", facts["site"], facts["agreement"]]))
        rows = self._rows("SELECT chain FROM traffic WHERE number = ?", number)
        return bytes(rows[0][0]) if rows else None

    def log_head(self) -> tuple[int, bytes]:
        """How many rows the log has, and the digest of the last."""
        for number, last in self._rows("SELECT number, chain FROM traffic ORDER BY number DESC LIMIT 1"):
            return int(number), bytes(last)
        return 0, self.digest_at(0) or b""

    def heads(self, site: str | None = None) -> list[Head]:
        """The signed heads of logs (of one site's), oldest first."""
        which, values = ("1", ()) if site is None else ("site = ?", (site,))
        columns = "site, rows, round, digest, signature, restores"
        rows = self._rows(f"SELECT {columns} FROM head WHERE {which} ORDER BY site, restores, rows", *values)
        return [Head(*row) for row in rows]

    def log(self, *entries: LogEntry) -> None:
        """Write down payloads. What leaves is on disk before it does; what came, with the next that leaves or
        at the end of the round."""
        if entries:
            with self.change(power=any(e.sent for e in entries)) as db:
                self._append(db, *entries)

    def _append(self, db: sqlite3.Connection, *entries: LogEntry) -> None:
        number, before = self.log_head()
        for e in entries:
            number += 1
            row = (number, e.at, e.round, e.peer, int(e.sent), str(e.kind), e.bytes, e.why)
            before = link(before, row)
            db.execute(
                f"INSERT INTO traffic (number, {_COLUMNS}, chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, before),
            )

    def _append_kept(self, db: sqlite3.Connection, content: Mapping[str, Any]) -> None:
        """Fix in the log what other tables hold."""
        at, round, site = utc(), self.round, self.facts()["site"]
        for what, value in content.items():
            why = f"{what}: {digest_of(value)}"
            self._append(db, LogEntry(at, round, site, False, EntryKind.KEPT, 0, why))

    def _repeated(self) -> list[LogEntry]:
        """Refusals that were counted since the last row about them."""
        more, self._more = self._more, Counter()
        return [
            LogEntry(utc(), 0, peer, False, EntryKind.REFUSED, count, f"{reason}: as before")
            for (peer, reason), count in sorted(more.items())
        ]

    def keep_head(self, head: Head) -> None:
        """Keep a signed head: the site's own, or what a partner says of its log."""
        with self.change(power=False) as db:
            db.execute(
                "INSERT OR IGNORE INTO head VALUES (?, ?, ?, ?, ?, ?)",
                (head.site, head.rows, head.restores, head.round, head.digest, head.signature),
            )

    # Writing

    def keep_table(self, fingerprint: str, another: bool = False) -> None:
        """Write down which table the study is about; another one is refused unless the site allows it."""
        known = self.facts().get("table")
        if known == fingerprint:
            return
        if known is not None and not another:
            what = 'put the table back, or say "another_table": true in the site\'s own file for one job'
            raise RequestError(f"{self.path} is of a study on another table than the site has now; {what}")
        self.keep(table=fingerprint)

    def keep(self, **facts: str) -> None:
        """Write down facts of the study, on disk before anything that follows from them leaves."""
        with self.change() as db:
            db.executemany("INSERT OR REPLACE INTO fact VALUES (?, ?)", list(facts.items()))
            self._append_kept(db, {f"fact {key}": value for key, value in facts.items()})

    def refused(self, peer: str, reason: str, detail: str) -> None:
        """Count a refused message against its sender: the first in a round has a row of its own, the others
        one row when the round or the job ends: nobody can fill the log."""
        with self._lock:
            repeated = (peer, reason) in self._refused
            self._refused.add((peer, reason))
            self._more[peer, reason] += repeated
        if not repeated:
            self.log(LogEntry(utc(), 0, peer, False, EntryKind.REFUSED, 1, f"{reason}: {detail}"))

    def finish(
        self,
        row: RoundRow,
        weights: NDArray[np.float32],
        members: Sequence[str] = (),
        state: bytes = b"",
        broadcasts: Mapping[int, bytes] | None = None,
    ) -> bool:
        """Write a round, whole. False if it had been finished before: nothing is counted twice.  state: the
        method's, without the model.  members: whom it refers to.  broadcasts: what coordinators sent to all,
        by exchange: the state is what they led to."""
        with self.change() as db:
            if row.number <= self.round:
                return False
            values = (json.dumps(list(members)), weights.astype("<f4").tobytes(), state)
            db.execute("INSERT OR REPLACE INTO model VALUES (1, ?, ?, ?)", values)
            kept = (row.number, json.dumps(row.partners), row.rest, row.validation)
            db.execute("INSERT INTO round VALUES (?, ?, ?, ?)", kept)
            db.executemany("INSERT INTO broadcast VALUES (?, ?)", sorted((broadcasts or {}).items()))
            self._append(db, *self._repeated())
            self._append_kept(db, {f"round {row.number}": _plain(row), _MODEL: self._model_digests()})
            self._refused.clear()
        return True

    def _model_digests(self) -> list[str]:
        """Of the current model, of the method's state and its members, and of all applied broadcasts."""
        rows = self._rows("SELECT weights, state, members FROM model") + self._rows("SELECT * FROM broadcast")
        return [digest_of([each.hex() if isinstance(each, bytes) else each for each in row]) for row in rows]

    # Transactions

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, _readable(self.path):
            return self._db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def change(self, power: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or nothing, whenever the process is killed; inside another, part of it.
        power: it also outlives a power cut at once; else, from the next one that does."""
        with self._lock, _readable(self.path):
            if self._db.in_transaction:
                yield self._db
                return
            # In write-ahead mode a full commit waits until all commits before it are on the disk, too.
            self._db.execute(f"PRAGMA synchronous = {'FULL' if power else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk ends some transactions by itself
                    self._db.execute("ROLLBACK")
                raise


def _plain(row: RoundRow) -> list[Any]:
    return [row.number, list(row.partners), row.rest, row.validation]


# The file


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into one sentence; the file stays as it is."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, RequestError | sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        advice = "try again" if busy else _ANEW
        raise RequestError(f"{path} cannot be used ({error}); it was left as it is, {advice}") from error


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    header = b""
    if path.is_file():
        with path.open("rb") as stream:
            header = stream.read(100)
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise RequestError(f"{path} is not a site's store, or cut short; it was left as it is, move it away")
    if int.from_bytes(header[68:72], "big") != APPLICATION:
        raise RequestError(f"{path} is a database of something else; left as it is, choose another path")
    with _readable(path):
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'rw' if write else 'ro'}",
            uri=True, timeout=10.0, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
    try:
        with _readable(path):
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise RequestError(f"{path} is damaged ({verdict}); it was left as it is, restore a backup")
            (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            which, remedy = "an older", "end the study with that version, or begin one under another name"
            if version > SCHEMA_VERSION:
                which, remedy = "a newer", "update abps at this site"
            known = f"(schema {version}, this one knows {SCHEMA_VERSION})"
            raise RequestError(f"{path} was written by {which} version of abps {known}; {remedy}")
    except BaseException:
        db.close()
        raise
    return db


def _make(path: Path, facts: Mapping[str, str]) -> None:
    """A new store, complete before it has its name: a file with the name is never half made."""
    with files.replacing(path) as part, contextlib.closing(sqlite3.connect(part, isolation_level=None)) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"BEGIN;\n{_SCHEMA}\nPRAGMA user_version = {SCHEMA_VERSION};\nCOMMIT;")
        db.executemany("INSERT INTO fact VALUES (?, ?)", list(facts.items()))
        Store(db, part)._append_kept(db, {_STUDY: {f"fact {key}": v for key, v in facts.items()}})
        # Closing writes the journal back, so that the one file is all of it.


def single_writer(path: Path, wait: float = 0.0) -> int | None:
    """Hold a lock while the store is open; :class:`StoreInUse` if another process keeps it too long."""
    if fcntl is None:
        return None
    handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError as error:
            if time.monotonic() >= until:
                os.close(handle)
                raise StoreInUse(f"{path} is in use by another process of this site; wait for it") from error
        time.sleep(0.02)


def unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)
