"""The journal of a site's decisions, and of what left it outside of any study's store: chained and signed.

A study's store is made when its first job is let in. What comes before (a proposal arrives, somebody approves
it, a decline code leaves) is recorded here, in a store of its own beside the others, whose log alone is used.
A line is on disk before what it records leaves.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError
from abps.sites.consent.keys import Signer
from abps.sites.store import audit
from abps.sites.store.rows import EntryKind, LogEntry, canonical, utc
from abps.sites.store.store import Store, StoreInUse

#: The file's name, and what its store is called in place of a site and of an agreement.
FILE, NAME = "site.journal", "journal"

#: Seconds that another process gets to write its line: a job and a command may run at once.
SECONDS = 20.0


class JournalEvent(StrEnum):
    """What a line records."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    SENT = "sent"
    RELEASED = "released"


@dataclass(frozen=True)
class JournalLine:
    """at: when (UTC).  what: an event.  digest: of this line and all before it."""

    at: str
    what: str
    facts: Mapping[str, Any]
    digest: bytes


class Journal:
    """The lines of one site's journal."""

    def __init__(self, folder: Path, signer: Signer | None = None) -> None:
        self.path = Path(folder) / FILE
        self.signer = signer

    def lines(self) -> list[JournalLine]:
        """All lines, oldest first; a journal that was changed is refused."""
        old = self.path.with_name("journal.jsonl")
        if old.is_file() and not self.path.is_file():
            raise RequestError(
                f"{old} was written by an older version of abps; move it and the folder of proposals away, "
                "and decide again on what is still asked for"
            )
        if not self.path.is_file():
            return []
        with contextlib.closing(Store.look(self.path, check=False)) as store:
            rows, heads = store.log_rows(), store.heads(NAME)
            faults = audit.verify(store, self.signer).faults
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
        until = time.monotonic() + SECONDS
        while True:
            try:
                store = Store.open(self.path, NAME, NAME)
                break
            except StoreInUse:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
        at, text = utc(), canonical({"what": str(what), **facts}).decode()
        with contextlib.closing(store), store.change():
            store.log(LogEntry(at, 0, NAME, False, EntryKind.DECISION, 0, text))
            if self.signer is not None:
                audit.sign_head(store, 0, self.signer)
            return JournalLine(at, str(what), facts, store.log_head()[1])
