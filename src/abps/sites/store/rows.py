"""What a site writes down: the rows of its store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class EntryKind(StrEnum):
    """What a row of the log is about. The first seven are also what a site may send to a peer."""

    MESSAGE = "message"
    WEIGHTS = "weights"
    VECTOR = "vector"
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


@dataclass(frozen=True)
class Evidence:
    """What was observed of a peer: for it, against it, and how often (decayed alike)."""

    gain: float
    loss: float
    count: float


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
class Head:
    """A signed head of a log: how many rows, the digest of the last, and the owner's signature.

    restores: how often the store had been brought back from a backup when the head was signed.
    """

    site: str
    rows: int
    round: int
    digest: bytes
    signature: bytes = b""
    restores: int = 0


@dataclass(frozen=True)
class Restore:
    """A signed restore: the row of the log that records it, the digest of that row, and the signature.

    number: the first restore of a store is 1.
    """

    number: int
    row: int
    digest: bytes
    signature: bytes = b""


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """Everything that one round changes, written together.

    state: the method's, without the model (:mod:`abps.methods.state_bytes`).  members: whom it refers to.
    observations: each partner's utility in [0, 1].  beliefs: evidence after the round.  Both are for the
    site's owner.  errors: standard errors of observations, from methods that know them.
    broadcasts: what coordinators sent to all, by exchange: the state is what they led to.
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
    errors: Mapping[str, float] = field(default_factory=dict)
    broadcasts: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundRow:
    """A finished round as it was written down."""

    number: int
    partners: tuple[str, ...]
    rest: str
    validation: float | None
