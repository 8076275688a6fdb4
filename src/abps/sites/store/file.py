"""The file of a site's store: made whole, and checked before it is trusted.

One SQLite file in write-ahead mode with an application id, a schema version and a digest of its content. One
process writes at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from abps.core.errors import RequestError

try:
    import fcntl
except ImportError:  # not a Unix: the check against a second writer is left out
    fcntl = None  # type: ignore[assignment]

#: "ABPS" as SQLite's application id.
APPLICATION = 0x41425053

#: The version of the schema below.
SCHEMA_VERSION = 8

_SCHEMA = """
    CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE model (
        only INTEGER PRIMARY KEY CHECK (only = 1), round INTEGER NOT NULL, weights BLOB NOT NULL,
        digest BLOB NOT NULL
    );
    CREATE TABLE state (
        only INTEGER PRIMARY KEY CHECK (only = 1), members TEXT NOT NULL, content BLOB NOT NULL,
        digest BLOB NOT NULL
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
    CREATE TABLE restore (
        number INTEGER PRIMARY KEY, row INTEGER NOT NULL, digest BLOB NOT NULL, signature BLOB NOT NULL
    );
    CREATE TABLE broadcast (round INTEGER PRIMARY KEY, content BLOB NOT NULL);
"""


def content_digest(db: sqlite3.Connection) -> str:
    """A digest of what must not change by itself: facts, rounds, models and state."""
    digest = hashlib.blake2b(digest_size=16)
    for query in (
        "SELECT key, value FROM fact WHERE key <> 'digest' ORDER BY key",
        "SELECT * FROM round ORDER BY number",
        "SELECT * FROM broadcast ORDER BY round",
    ):
        for row in db.execute(query):
            digest.update(repr(row).encode())
        digest.update(b"|")
    # Large content is hashed once, when it is written; here it must still have that hash.
    for which, number, content, written in (
        *db.execute("SELECT * FROM model"),
        *db.execute("SELECT 'state', members, content, digest FROM state"),
    ):
        intact = content_hash(content) == written
        digest.update(repr((which, number, written if intact else b"damaged")).encode())
    return digest.hexdigest()


def content_hash(blob: bytes) -> bytes:
    """The hash that is kept beside large content."""
    return hashlib.blake2b(blob, digest_size=16).digest()


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into one sentence; the file stays as it is."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, RequestError | sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        advice = "try again" if busy else "restore it from a backup or move it away to start anew"
        raise RequestError(f"{path} cannot be used ({error}); it was left as it is, {advice}") from error


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """Open an existing store after checking that it is one."""
    header = path.read_bytes()[:100] if path.is_file() else b""
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise RequestError(f"{path} is not a site's store, or cut short; it was left as it is, move it away")
    if int.from_bytes(header[68:72], "big") != APPLICATION:
        raise RequestError(f"{path} is a database of something else; left as it is, choose another path")
    mode = "rw" if write else "ro"
    with readable(path):
        db = sqlite3.connect(
            f"file:{path.absolute().as_posix().replace('?', '%3f').replace('#', '%23')}?mode={mode}",
            uri=True, timeout=10.0, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
    try:
        with readable(path):
            if write:
                db.execute("PRAGMA synchronous = NORMAL")  # the store syncs itself before anything leaves
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise RequestError(f"{path} is damaged ({verdict}); it was left as it is, restore a backup")
            (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise RequestError(
                f"{path} was written by a newer version of abps (schema {version}, this one knows "
                f"{SCHEMA_VERSION}); update abps at this site"
            )
        if version < SCHEMA_VERSION:
            raise RequestError(
                f"{path} was written by an older version of abps (schema {version}); end the study with that "
                "version, or begin a new study under another name"
            )
    except BaseException:
        db.close()
        raise
    return db


def make(path: Path, facts: Mapping[str, str]) -> None:
    """A new store, complete before it has its name: a file with the name is never half made."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"BEGIN;\n{_SCHEMA}\nPRAGMA user_version = {SCHEMA_VERSION};\nCOMMIT;")
            db.executemany("INSERT INTO fact VALUES (?, ?)", list(facts.items()))
            db.execute("INSERT INTO fact VALUES ('digest', ?)", (content_digest(db),))
        part.replace(path)  # closing wrote the journal back, so the one file is all of it
    finally:
        for rest in (part, Path(f"{name}-wal"), Path(f"{name}-shm")):
            rest.unlink(missing_ok=True)


class StoreInUse(RequestError):
    """Another process of the site has the store open."""


def single_writer(path: Path) -> int | None:
    """Hold a lock for as long as the store is open; :class:`StoreInUse` if another process has it."""
    if fcntl is None:
        return None
    handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreInUse(f"{path} is in use by another process of this site; wait for its end") from error
    return handle


def unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)
