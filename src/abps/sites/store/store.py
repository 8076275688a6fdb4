"""What a site remembers between jobs: its model, the method's state, and what it sent to whom.

One SQLite file in write-ahead mode, at the site, never shipped. A round changes it in one transaction, so
that a site killed at any moment has either all of a round or nothing of it.

A file that is damaged, of another version, or not a store at all is refused and left as it is.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps import files
from abps.core.errors import RequestError
from abps.sites.store import file as store_file
from abps.sites.store.rows import (
    EntryKind,
    Head,
    LogEntry,
    Restore,
    RoundRecord,
    RoundRow,
    canonical,
    digest,
    link,
    short_digest,
    utc,
)

_COLUMNS = "at, round, peer, sent, kind, bytes, why"

#: Rows of the log that are about the store itself.
_NOTES = (EntryKind.KEPT, EntryKind.REFUSED)


class Store:
    """A site's own memory. One process writes at a time; reading alongside is always possible."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None) -> None:
        self.path = path
        self._db = connection
        self._file_lock = lock
        self._lock = threading.RLock()
        self._batch = threading.local()  # how deep a thread is in blocks of ``together``
        self._more: Counter[tuple[str, str]] = Counter()  # refusals since the last row about them
        self._refused: set[tuple[str, str]] = set()  # peers and reasons with such a row
        self._pending = False  # whether something was written that may not be on the disk yet

    # Opening

    @staticmethod
    def open(path: Path, site: str, agreement: str, notes: Mapping[str, str] | None = None) -> Store:
        """The store of ``site`` for one agreement (method, seed, columns); made if there is none.

        A store of another site or another agreement is refused: its state is about something else.
        notes: what else a new store says about itself.
        """
        path = Path(path)
        files.folder(path.parent)
        lock = store_file.single_writer(path)
        try:
            if not path.exists():
                store_file.make(path, {**(notes or {}), "site": site, "agreement": agreement, "round": "0"})
            store = Store(store_file.connect(path, write=True), path, lock)
        except BaseException:
            store_file.unlock(lock)
            raise
        store._check_or_close(site, agreement)
        return store

    @staticmethod
    def look(path: Path) -> Store:
        """A store to read from, whoever else has it open."""
        if not Path(path).exists():
            raise RequestError(f"{path}: no store here; it is made when the site's first job starts")
        store = Store(store_file.connect(Path(path), write=False), Path(path), None)
        store._check_or_close(None, None)
        return store

    def close(self) -> None:
        """Close the file; every change was written when it was made, but for repeated refusals."""
        with self._lock:
            with contextlib.suppress(RequestError, sqlite3.Error):  # a disk that is full, or closed before
                self.log(*self._repeated())
            self._db.close()
            store_file.unlock(self._file_lock)
            self._file_lock = None

    def _check_or_close(self, site: str | None, agreement: str | None) -> None:
        try:
            self._check(site, agreement)
        except BaseException:
            self.close()
            raise

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
        with store_file.readable(self.path):
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

    def state(self) -> tuple[tuple[str, ...], bytes] | None:
        """The members that the method's state refers to, and the state; None before the first round."""
        rows = self._rows("SELECT members, content FROM state")
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
        which = "1" if round is None else f"round = {int(round)}"
        rows = self._rows(f"SELECT {_COLUMNS} FROM traffic WHERE {which} ORDER BY number")
        entries = [
            LogEntry(at, r, peer, bool(sent), EntryKind(kind), size, why)
            for at, r, peer, sent, kind, size, why in rows
        ]
        return [e for e in entries if (e.kind in kinds if kinds else e.kind not in _NOTES)]

    def sent_bytes(self) -> dict[str, int]:
        """Bytes sent so far, by kind."""
        return dict(self._rows("SELECT kind, SUM(bytes) FROM traffic WHERE sent GROUP BY kind ORDER BY kind"))

    def broadcasts(self, after: int = 0) -> dict[int, bytes]:
        """The applied broadcasts of coordinators after a round, in order."""
        rows = self._rows("SELECT round, content FROM broadcast WHERE round > ? ORDER BY round", after)
        return {number: bytes(content) for number, content in rows}

    def refusals(self) -> dict[tuple[str, str], int]:
        """How often each peer's messages were refused, by reason."""
        found = Counter(self._more)
        for entry in self.traffic(None, EntryKind.REFUSED):
            found[entry.peer, entry.why.partition(":")[0]] += entry.bytes
        return dict(found)

    def unbound(self) -> list[str]:
        """What the store holds otherwise than the log, which is signed, says that it was kept."""
        said = {e.why.rpartition(": ")[0]: e.why[-32:] for e in self.traffic(None, EntryKind.KEPT)}
        facts = self.facts()
        held: dict[str, Any] = {key: facts.get(key) for key in said if not key.startswith("round ")}
        held |= {f"round {r.number}": _plain(r) for r in self.rounds()}
        if "model" in said:
            held["model"] = self._model_hashes(self._db)
        wrong = [key for key, value in held.items() if said.get(key) != short_digest(value)]
        return sorted({*wrong, *(key for key in said if key not in held)})

    # The log

    def log_rows(self) -> list[tuple[Any, ...]]:
        """The log as it is stored: number, the columns of an entry, and the digest; oldest first."""
        return self._rows(f"SELECT number, {_COLUMNS}, chain FROM traffic ORDER BY number")

    def log_start(self) -> bytes:
        """What the chain of this log begins with."""
        facts = self.facts()
        return digest(canonical(["abps.audit/1", facts["site"], facts["agreement"]]))

    def log_head(self) -> tuple[int, bytes]:
        """How many rows the log has, and the digest of the last."""
        with self._lock, store_file.readable(self.path):
            return self._head(self._db)

    def digest_at(self, number: int) -> bytes | None:
        """The digest of a row of the log, or none if there is no such row."""
        if number == 0:
            return self.log_start()
        rows = self._rows("SELECT chain FROM traffic WHERE number = ?", number)
        return bytes(rows[0][0]) if rows else None

    def heads(self, site: str | None = None) -> list[Head]:
        """The signed heads of logs (of one site's), oldest first."""
        which, values = ("1", ()) if site is None else ("site = ?", (site,))
        columns = "site, rows, round, digest, signature, restores"
        rows = self._rows(f"SELECT {columns} FROM head WHERE {which} ORDER BY site, restores, rows", *values)
        return [Head(*row) for row in rows]

    def restores(self) -> list[Restore]:
        """The recorded restores, oldest first."""
        return [Restore(*row) for row in self._rows("SELECT * FROM restore ORDER BY number")]

    def log(self, *entries: LogEntry) -> None:
        """Write down payloads. What leaves is on disk before it does (in a block of :meth:`together` by
        :meth:`sync`); what came is with the next that leaves, at the latest at the end of the round."""
        if entries:
            with self._change(power=any(e.sent for e in entries)) as db:
                self._append(db, *entries)

    def _append(self, db: sqlite3.Connection, *entries: LogEntry) -> None:
        number, before = self._head(db)
        for e in entries:
            number += 1
            row = (number, e.at, e.round, e.peer, int(e.sent), str(e.kind), e.bytes, e.why)
            before = link(before, row)
            db.execute(
                f"INSERT INTO traffic (number, {_COLUMNS}, chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, before),
            )

    def _kept(self, content: Mapping[str, Any]) -> list[LogEntry]:
        """Rows of the log that fix what other tables hold."""
        facts = self.facts()
        return [
            LogEntry(
                utc(), int(facts["round"]), facts["site"], False, EntryKind.KEPT, 0,
                f"{what}: {short_digest(value)}",
            )
            for what, value in content.items()
        ]  # fmt: skip

    def _repeated(self) -> list[LogEntry]:
        """Refusals that were counted since the last row about them."""
        more, self._more = self._more, Counter()
        return [
            LogEntry(utc(), 0, peer, False, EntryKind.REFUSED, count, f"{reason}: as before")
            for (peer, reason), count in sorted(more.items())
        ]

    def keep_head(self, head: Head) -> None:
        """Keep a signed head: the site's own, or what a partner says of its log."""
        with self._change(power=False) as db:
            db.execute(
                "INSERT OR IGNORE INTO head VALUES (?, ?, ?, ?, ?, ?)",
                (head.site, head.rows, head.restores, head.round, head.digest, head.signature),
            )

    def keep_restore(self, restore: Restore) -> None:
        with self._change() as db:
            values = (restore.number, restore.row, restore.digest, restore.signature)
            db.execute("INSERT INTO restore VALUES (?, ?, ?, ?)", values)

    # Writing

    def keep_table(self, fingerprint: str, another: bool = False) -> None:
        """Write down which table the study is about; another one is refused unless the site allows it."""
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
            self._append(db, *self._kept(facts))
            self._seal(db)

    def refused(self, peer: str, reason: str, detail: str) -> None:
        """Count a refused message against its sender: the first in a round has a row of its own, the others
        one row when the round or the job ends: nobody can fill the log."""
        with self._lock:
            repeated = (peer, reason) in self._refused
            self._refused.add((peer, reason))
            self._more[peer, reason] += repeated
        if not repeated:
            self.log(LogEntry(utc(), 0, peer, False, EntryKind.REFUSED, 1, f"{reason}: {detail}"))

    def finish(self, done: RoundRecord) -> bool:
        """Write a round, whole. False if it had been finished before: nothing is counted twice."""
        blob = done.weights.astype("<f4").tobytes()
        validation = done.validation if math.isfinite(done.validation) else None
        with self._change() as db:
            if done.round <= self.round:
                return False
            db.execute(
                "INSERT OR REPLACE INTO model VALUES (1, ?, ?, ?)",
                (done.round, blob, store_file.content_hash(blob)),
            )
            db.execute(
                "INSERT INTO round VALUES (?, ?, ?, ?)",
                (done.round, json.dumps(sorted(done.partners)), done.rest, validation),
            )
            db.execute(
                "INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?)",
                (json.dumps(list(done.members)), done.state, store_file.content_hash(done.state)),
            )
            db.executemany("INSERT INTO broadcast VALUES (?, ?)", sorted(done.broadcasts.items()))
            db.execute("UPDATE fact SET value = ? WHERE key = 'round'", (str(done.round),))
            row = RoundRow(done.round, tuple(sorted(done.partners)), done.rest, validation)
            kept = {f"round {done.round}": _plain(row), "model": self._model_hashes(db)}
            self._append(db, *self._repeated(), *self._kept(kept))
            self._refused.clear()
            self._seal(db)
        return True

    def _model_hashes(self, db: sqlite3.Connection) -> list[str]:
        """Of the current model, of the method's state, and of all applied broadcasts."""
        content = [*db.execute("SELECT weights FROM model")]
        content += [*db.execute("SELECT content FROM state"), *db.execute("SELECT content FROM broadcast")]
        return [digest(bytes(blob)).hex() for (blob,) in content]

    # Transactions

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, store_file.readable(self.path):
            return self._db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _change(self, power: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing, whenever the process is killed.

        power: it also outlives a power cut from the moment it is made; else, from the next one that does.
        """
        with self._lock, store_file.readable(self.path):
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
            # In write-ahead mode all changes since the last checkpoint, which syncs, are in this file.
            journal = Path(f"{self.path}-wal")
            try:
                handle = os.open(journal if journal.exists() else self.path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
            except OSError as error:
                raise RequestError(f"{self.path} cannot be synced ({error.strerror})") from error
            self._pending = False

    def _digest(self) -> str:
        return store_file.content_digest(self._db)

    def _seal(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT OR REPLACE INTO fact VALUES ('digest', ?)", (self._digest(),))

    def _head(self, db: sqlite3.Connection) -> tuple[int, bytes]:
        for number, last in db.execute("SELECT number, chain FROM traffic ORDER BY number DESC LIMIT 1"):
            return int(number), bytes(last)
        return 0, self.log_start()


def _plain(row: RoundRow) -> list[Any]:
    return [row.number, list(row.partners), row.rest, row.validation]
