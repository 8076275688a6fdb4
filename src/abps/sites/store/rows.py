"""What a site writes down: the rows of its store, and the chain of digests over them. Who changes, takes out
or reorders a row has to change the digest of every later row, and the head, which is signed and known to
others."""

import datetime
import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


def utc() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def canonical(value: Any) -> bytes:
    """Plain data as bytes, the same for equal data; there is no NaN in it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def digest_of(value: Any) -> str:
    return digest(canonical(value)).hex()


def link(before: bytes, row: Any) -> bytes:
    """The digest of a row after those that end in ``before``."""
    return digest(before + canonical(row))


class EntryKind(StrEnum):
    """What a row of the log is about. The first four are also what a site may send to a peer."""

    HEAD = "head"
    UPLOAD = "upload"
    BROADCAST = "broadcast"
    REQUEST = "request"
    #: To the relay: sums, scores, codes; steps of masked sums; statistics of columns.
    REPORT = "report"
    MASK = "mask"
    STATISTICS = "statistics"
    #: Nothing left or came: people decided something, or brought a backup back.
    DECISION = "decision"
    RESTORED = "restored"
    #: What the store keeps in other tables, by its digest; messages that were refused (``bytes``: how many).
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True)
class LogEntry:
    """One payload that left the site or came in: what, to or from whom, how many bytes, why."""

    at: str
    round: int
    peer: str
    sent: bool
    kind: EntryKind
    bytes: int
    why: str


@dataclass(frozen=True)
class RoundRow:
    number: int
    partners: tuple[str, ...]  # who else was in its exchange
    rest: str  # why there was none, in words
    validation: float | None
