"""The journal of a site's decisions, and of what left it outside of any study's store: chained and signed.

A study's store is made when its first job is let in. What comes before (a proposal arrives, somebody approves
it, a decline code leaves) is recorded here, in ``journal.jsonl`` beside the stores. A line is on disk before
what it records leaves.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.keys import Signer
from abps.sites.store import rows as chain

try:
    import fcntl
except ImportError:  # not a Unix: two commands at once are not kept apart
    fcntl = None  # type: ignore[assignment]

FILE = "journal.jsonl"

#: What signatures of lines are for.
PURPOSE = "journal"

_START = bytes(32)


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
    """at: when (UTC).  what: an event (journals of earlier versions know others).

    digest: of this line and all before it.  signature: hex, or none.
    """

    at: str
    what: str
    facts: Mapping[str, Any]
    digest: bytes
    signature: str = ""


class Journal:
    """The lines of one site's journal."""

    def __init__(self, folder: Path, signer: Signer | None = None) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        self.signer = signer

    def lines(self) -> list[JournalLine]:
        """All lines, oldest first; a journal that was changed is refused."""
        before, found = _START, []
        text = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
        for number, each in enumerate(text.splitlines(), 1):
            line = self._read(each, before)
            if line is None:
                raise RequestError(
                    f"{self.path}, line {number}: it does not follow from the lines before, or its signature "
                    "is not this site's; the journal was changed"
                )
            found.append(line)
            before = line.digest
        return found

    def write(self, what: JournalEvent, **facts: Any) -> JournalLine:
        """Add a line; it is on disk when this returns."""
        files.folder(self.folder)
        with self._alone():
            lines = self.lines()
            before = lines[-1].digest if lines else _START
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            digest = chain.link(before, {"at": at, "what": str(what), **facts})
            signature = "" if self.signer is None else self.signer.sign(PURPOSE, digest).hex()
            row = {"at": at, "what": str(what), **facts, "digest": digest.hex(), "signature": signature}
            with self.path.open("ab") as stream:
                stream.write(chain.canonical(row) + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        return JournalLine(at, str(what), facts, digest, signature)

    def _read(self, text: str, before: bytes) -> JournalLine | None:
        """A line that follows the one before and is signed by this site's key, if it has one."""
        try:
            row: dict[str, Any] = json.loads(text)
            digest, signature = bytes.fromhex(row.pop("digest")), str(row.pop("signature"))
            if chain.link(before, row) != digest:
                return None
            if self.signer and not self.signer.signed(PURPOSE, digest, bytes.fromhex(signature)):
                return None
            at, what = str(row.pop("at")), str(row.pop("what"))
        except (ValueError, KeyError, AttributeError, TypeError):
            return None
        return JournalLine(at, what, row, digest, signature)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One writer at a time: a job and a command may run at once."""
        handle = os.open(self.folder / f"{FILE}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
