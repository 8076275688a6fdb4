"""Whether a site's log can be trusted: its chain, its signed heads, and what partners know of them.

A row that was changed, removed or moved breaks the chain. A log cut short or made anew contradicts a head
that the site signed before or, if its key was stolen, the heads that partners hold. A restored backup lacks
rows that partners know: only a restore whose row the site signed explains that, and only for heads from
before it (every head counts the restores before it).
"""

import contextlib
import datetime
import json
import shutil
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.keys import Signer
from abps.sites.store.rows import EntryKind, LogEntry, canonical, link, utc
from abps.sites.store.store import Store, single_writer, unlock
from abps.wire.messages import Head

PURPOSE = "head"  # what signatures of heads are for


@dataclass(frozen=True)
class Verification:
    rows: int  # of the log
    heads: int  # of the site's own
    partner_heads: int
    faults: tuple[str, ...]


def is_signed(head: Head, agreement: str, signer: Signer) -> bool:
    """Whether this site signed a head of this study's log; anybody could have made another one up."""
    return signer.signed(PURPOSE, signed_content(head, agreement), head.signature)


def signed_content(head: Head, agreement: str) -> bytes:
    return canonical([agreement, head.site, head.rows, head.round, head.digest.hex(), head.restores])


def sign_head(store: Store, round: int, signer: Signer) -> Head:
    """The log as it is now, signed and kept."""
    facts = store.facts()
    restores = len(store.traffic(None, EntryKind.RESTORED))
    rows, digest = store.log_head()
    bare = Head(facts["site"], rows, round, digest, restores=restores)
    head = replace(bare, signature=signer.sign(PURPOSE, signed_content(bare, facts["agreement"])))
    store.keep_head(head)
    return head


def verify(store: Store, signer: Signer | None, partner_heads: Collection[Head] = ()) -> Verification:
    """Check a site's log.  signer: the site's own key.  partner_heads: its heads as partners hold them."""
    facts = store.facts()
    before = store.digest_at(0) or b""
    digests = {0: before}
    faults: list[str] = []
    for number, *row, digest in store.log_rows():
        expected = len(digests)
        if number != expected:
            faults.append(f"row {expected} of the log is missing (row {number} stands there)")
            break
        if link(before, (number, *row)) != digest:
            faults.append(f"row {number} of the log was changed, or a row before it")
            break
        before = digests[number] = bytes(digest)
    own = store.heads(facts["site"])
    if not faults:
        marked, signed = _restores(store, signer)
        unsigned = [row for row in marked if row not in signed]
        faults = [f"row {row} claims a restore that nobody here signed" for row in unsigned]
        mine = {head: signer is None or is_signed(head, facts["agreement"], signer) for head in own}
        faults += [
            f"the head of round {head.round} that this site signed is not signed by this site's key"
            for head, good in mine.items()
            if not good
        ]
        # A head without this site's signature proves nothing: anybody could have made it up.
        theirs = [h for h in partner_heads if signer is None or is_signed(h, facts["agreement"], signer)]
        for who, heads in (("this site signed", [h for h in own if mine[h]]), ("a partner holds", theirs)):
            for head in heads:
                if digests.get(head.rows) != head.digest and not _lost_by_restore(head, signed):
                    why = "is cut short" if head.rows not in digests else "is another one"
                    said = f"the head of round {head.round} that {who} is of a log with {head.rows} rows"
                    faults.append(f"{said}; this log {why}")
        faults += [f"{what} is not what the log says that was kept" for what in store.altered()]
    return Verification(len(digests) - 1, len(own), len(partner_heads), tuple(faults))


def _restores(store: Store, signer: Signer | None) -> tuple[list[int], dict[int, int]]:
    """The rows of the log that claim a restore; and of those that this site signed, which restore each is,
    from 1. Without a key (a rehearsal) all count."""
    marked = [int(row[0]) for row in store.log_rows() if row[5] == EntryKind.RESTORED]
    facts = store.facts()
    proven = {
        head.rows: head.restores
        for head in store.heads(facts["site"])
        if signer is not None
        and head.rows in marked
        and store.digest_at(head.rows) == head.digest
        and is_signed(head, facts["agreement"], signer)
    }
    numbered = {row: number for number, row in enumerate(marked, 1)}
    return marked, {row: n for row, n in numbered.items() if signer is None or proven.get(row) == n}


def _lost_by_restore(head: Head, restores: dict[int, int]) -> bool:
    """Whether a later restore explains that the log lacks the rows of a head."""
    return any(number > head.restores and row <= head.rows for row, number in restores.items())


def contradicts(store: Store, head: Head, signer: Signer) -> bool:
    """Whether a head that this site signed shows that its log is older now or was changed."""
    if store.digest_at(head.rows) == head.digest:
        return False
    return not _lost_by_restore(head, _restores(store, signer)[1])


@dataclass(frozen=True)
class HeadsFile:
    """The heads that a site holds, its own and those of partners, for others to check theirs against."""

    schema: Literal["abps.heads/3"]
    by: str
    agreement: str
    heads: tuple[Head, ...]


def heads_json(store: Store) -> dict[str, Any]:
    facts = store.facts()
    found = HeadsFile("abps.heads/3", facts["site"], facts["agreement"], tuple(store.heads()))
    return dict(msgspec.to_builtins(found))


def read_heads(path: Path, site: str, agreement: str | None, signer: Signer | None = None) -> list[Head]:
    """The heads of a site's log in a partner's export.  agreement: of the site's store; none: it has no such
    store, and only heads that its key signed count."""
    try:
        data = msgspec.json.decode(Path(path).read_bytes(), type=HeadsFile)
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}; name a partner's heads.json") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not a partner's heads.json ({error})") from error
    found = [head for head in data.heads if head.site == site]
    if agreement is None:
        return [head for head in found if signer is not None and is_signed(head, data.agreement, signer)]
    if data.agreement != agreement:
        raise RequestError(f"{path} is of another study than this store")
    return found


def check_not_gone(path: Path, site: str, signer: Signer | None, partner: Collection[Path]) -> None:
    """Refuse a store that is not there, and of whose log partners hold heads: it was deleted."""
    known = [] if path.is_file() else [h for p in partner for h in read_heads(p, site, None, signer)]
    if known:
        last = max(known, key=lambda head: head.rows)
        why = f"a partner holds the head of its log with {last.rows} rows, signed here in round {last.round}"
        raise RequestError(f"{path} is gone: {why}; bring a backup back with `abps site restore`")


def backup(path: Path, out: Path) -> Path:
    """Copy a study's store into a folder; a job may run meanwhile. Returns the file."""
    Store.look(path).close()  # a damaged store is not worth a copy
    written = files.folder(out) / path.name
    with files.replacing(written) as part:
        part.unlink()
        with (
            contextlib.closing(sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)) as live,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            live.backup(copy)
    return written


def restore(path: Path, source: Path, by: str, signer: Signer | None) -> Verification:
    """Bring a study's store back from a backup whose log can be believed; what was there is kept beside
    it."""
    if not by.strip():
        raise RequestError("a restored store needs the name of the person who restores it")
    found = source / path.name if source.is_dir() else source
    with contextlib.closing(Store.look(found, check=False)) as copy:
        faults, facts = verify(copy, signer).faults, copy.facts()
    if faults:
        raise RequestError(f"{found} cannot be believed: {faults[0]}")
    now = datetime.datetime.now(datetime.UTC)
    if path.exists():
        unlock(single_writer(path))  # no job must have it open
        path.rename(path.with_name(f"{path.name}.before-{now:%Y%m%dT%H%M%S}"))
        for rest in ("-wal", "-shm"):
            Path(f"{path}{rest}").unlink(missing_ok=True)
    with files.replacing(path) as part:
        shutil.copyfile(found, part)
    with contextlib.closing(Store.open(path, facts["site"], facts["agreement"])) as store:
        why = f"restored from a backup of round {store.round}, by {by.strip()}"
        at = now.isoformat(timespec="milliseconds")
        store.log(LogEntry(at, store.round, facts["site"], False, EntryKind.RESTORED, 0, why))
        if signer is not None:
            sign_head(store, store.round, signer)
        return verify(store, signer)


# The journal has a site's decisions, and what left it before its first job made a study's store: a store of
# its own beside the others, whose log alone is used.

#: The file's name, and what its store is called in place of a site and of an agreement.
JOURNAL, NAME = "site.journal", "journal"

SECONDS = 20.0  # seconds that another process gets to write its line: a job and a command may run at once


class JournalEvent(StrEnum):
    PROPOSED = "proposed"
    APPROVED = "approved"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    SENT = "sent"
    RELEASED = "released"


@dataclass(frozen=True)
class JournalLine:
    at: str  # UTC
    what: str  # an event
    facts: Mapping[str, Any]
    digest: bytes  # of this line and all before it


class Journal:
    def __init__(self, folder: Path, signer: Signer | None = None) -> None:
        self.path = Path(folder) / JOURNAL
        self.signer = signer

    def lines(self) -> list[JournalLine]:
        """All lines, oldest first; a journal that was changed is refused."""
        old = self.path.with_name("journal.jsonl")
        if old.is_file() and not self.path.is_file():
            what = "move it and the folder of proposals away, and decide again on what is still asked for"
            raise RequestError(f"{old} was written by an older version of abps; {what}")
        if not self.path.is_file():
            return []
        with contextlib.closing(Store.look(self.path, check=False)) as store:
            rows, heads = store.log_rows(), store.heads(NAME)
            faults = verify(store, self.signer).faults
        if self.signer is not None and rows[1:] and (not heads or heads[-1].rows != rows[-1][0]):
            faults = (*faults, "its last line is not signed")
        if faults:
            raise RequestError(f"{self.path}: the journal was changed: {faults[0]}")
        found = []
        for _, at, *_, why, digest in rows[1:]:  # the first is about the store itself
            facts = json.loads(why)
            found.append(JournalLine(at, facts.pop("what"), facts, bytes(digest)))
        return found

    def write(self, what: JournalEvent, **facts: Any) -> JournalLine:
        """Add a line; it is on disk when this returns."""
        self.lines()  # nothing is added to what was changed
        at, text = utc(), canonical({"what": str(what), **facts}).decode()
        with contextlib.closing(Store.open(self.path, NAME, NAME, wait=SECONDS)) as store, store.change():
            store.log(LogEntry(at, 0, NAME, False, EntryKind.DECISION, 0, text))
            if self.signer is not None:
                sign_head(store, 0, self.signer)
            return JournalLine(at, str(what), facts, store.log_head()[1])
