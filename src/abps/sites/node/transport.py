"""What leaves a site and what arrives: written into the site's log first, then sent.

Which engine carries the bytes does not matter here: ``send`` is given. Nothing leaves while people of the
site do not want it (``closed``).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from abps.sites.node.context import SiteContext
from abps.sites.store.chain import canonical
from abps.sites.store.rows import EntryKind, LogEntry

T = TypeVar("T")

#: The engine's name for the relay, where the scheduler and a star's server run.
RELAY = "server"

#: Who merges the codebooks.
OPERATOR = "operator"


class UnreachableError(Exception):
    """A peer did not answer in time."""


#: Send bytes to a peer and return its answer: (peer, kind, data) -> reply, or UnreachableError.
Send = Callable[[str, EntryKind, bytes], bytes]

#: A row of the log without time and peer: kind, bytes, why.
Part = tuple[EntryKind, int, str]


@dataclass(frozen=True)
class Retries:
    """How often a site repeats an unanswered message, and the seconds for its whole turn to propose."""

    repeats: int = 2
    turn_seconds: float = 60.0


def utc() -> str:
    """The time now, as it is written into logs."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class AuditedTransport:
    """A site's line to its peers, and the log of what goes over it."""

    def __init__(
        self,
        context: SiteContext,
        send: Send,
        retries: Retries,
        now: Callable[[], float],
        stamp: Callable[[], str],
    ) -> None:
        self.context, self.retries, self.now = context, retries, now
        self.send, self._stamp = send, stamp
        self.closed = False  # whether consent was missing when a round should begin

    def log(
        self, peer: str, kind: EntryKind, size: int, why: str, sent: bool = True, round: int | None = None
    ) -> None:
        """Write down something that leaves or has come, in this round unless said otherwise."""
        self.log_parts(peer, [(kind, size, why)], sent, round)

    def log_parts(
        self, peer: str, parts: Sequence[Part], sent: bool = True, round: int | None = None
    ) -> None:
        """The same for things that go together."""
        number = self.context.round.number if round is None else round
        at = self._stamp()
        self.context.store.log(*(LogEntry(at, number, peer, sent, *part) for part in parts))

    def log_decision(self, what: str, round: int | None = None) -> None:
        """Write down what people of this site decided about the study, or must know of it."""
        self.log(self.context.name, EntryKind.DECISION, 0, what, sent=False, round=round)

    def report(self, answer: T, why: str, round: int) -> T:
        """Write down what the scheduler gets, before it gets it."""
        self.log(RELAY, EntryKind.REPORT, len(canonical(answer)), why, round=round)
        return answer

    def carry(
        self, peer: str, kind: EntryKind, data: bytes, why: str, repeats: int = 0, round: int | None = None
    ) -> bytes:
        """Write down, send, and return the answer; where one is due, an empty answer is none."""
        return self.carry_parts(peer, data, [(kind, len(data), why)], repeats, round)

    def carry_parts(
        self, peer: str, data: bytes, parts: Sequence[Part], repeats: int = 0, round: int | None = None
    ) -> bytes:
        """The same for bytes that consist of several things; the first says what they are."""
        if self.closed:
            raise UnreachableError(peer)
        kind = parts[0][0]
        for attempt in range(1 + repeats):
            again = " (repeated)" if attempt else ""
            self.log_parts(peer, [(each, size, f"{why}{again}") for each, size, why in parts], round=round)
            if kind is not EntryKind.MESSAGE:
                self.context.store.sync()
            try:
                reply = self.send(peer, kind, data)
            except UnreachableError:
                continue
            if reply or not _expects_answer(kind, data):
                return reply
        raise UnreachableError(peer)


def _expects_answer(kind: EntryKind, data: bytes) -> bool:
    # Of the messages of a negotiation, a proposal (1) and an accept (2).
    return kind is EntryKind.WEIGHTS or (kind is EntryKind.MESSAGE and data[0] in (1, 2))
