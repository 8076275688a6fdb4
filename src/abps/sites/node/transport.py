"""What leaves a site and what arrives: written into the site's log first, then sent; and who is let in.

Which engine carries the bytes does not matter here: ``send`` is given. Nothing leaves while people of the
site do not want it (``closed``). What a single message may say is checked by :mod:`abps.wire.admission`; here
are a peer's rate, and its refusals so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from abps.sites.node.context import SiteContext
from abps.sites.store.rows import EntryKind, LogEntry, canonical, utc
from abps.wire.admission import RateLimit, Reason, Refusal

T = TypeVar("T")

#: The engine's name for the relay, where the scheduler runs.
RELAY = "server"

#: How often an unanswered message is repeated.
REPEATS = 2


class UnreachableError(Exception):
    """A peer did not answer in time."""


#: Send bytes to a peer and return its answer: (peer, kind, data) -> reply, or UnreachableError.
Send = Callable[[str, EntryKind, bytes], bytes]


class AuditedTransport:
    """A site's line to its peers, and the log of what goes over it."""

    def __init__(self, context: SiteContext, send: Send) -> None:
        self.context, self.send = context, send
        self.closed = False  # whether consent was missing when a round should begin
        self.relay = RELAY  # who gets reports and carries masked sums; without a relay, all members

    def log(
        self, peer: str, kind: EntryKind, size: int, why: str, sent: bool = True, round: int | None = None
    ) -> None:
        """Write down something that leaves or has come, in this round unless said otherwise."""
        number = self.context.round.number if round is None else round
        self.context.store.log(LogEntry(utc(), number, peer, sent, kind, size, why))

    def log_decision(self, what: str, round: int | None = None) -> None:
        """Write down what people of this site decided about the study, or must know of it."""
        self.log(self.context.name, EntryKind.DECISION, 0, what, sent=False, round=round)

    def report(self, answer: T, why: str, round: int) -> T:
        """Write down what the scheduler gets, before it gets it."""
        self.log(self.relay, EntryKind.REPORT, len(canonical(answer)), why, round=round)
        return answer

    def carry(
        self, peer: str, kind: EntryKind, data: bytes, why: str, repeats: int = 0, round: int | None = None
    ) -> bytes:
        """Write down, send, and return the answer."""
        for attempt in range(0 if self.closed else 1 + repeats):
            again = " (repeated)" if attempt else ""
            self.log(peer, kind, len(data), f"{why}{again}", round=round)
            self.context.store.sync()
            try:
                return self.send(peer, kind, data)
            except UnreachableError:
                continue
        raise UnreachableError(peer)


#: Refusals that no honest site causes: after some of them a peer is ignored.
_HOSTILE = frozenset(Reason) - {Reason.STRANGER, Reason.ROUND, Reason.RATE, Reason.QUARANTINE}


class Gate:
    """A site's limits for each of its peers, in one job."""

    def __init__(self, context: SiteContext, now: Callable[[], float]) -> None:
        self.context, self._now = context, now
        self._meters: dict[str, RateLimit] = {}
        self._hostile: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        self._messages: dict[str, int] = {}  # by peer: messages of this round

    def pass_on(self, peer: str) -> None:
        """Admit one more message of a peer, or refuse it, whatever it says."""
        limits = self.context.limits
        with self.context.lock:
            now = self._now()
            level = self._meters.get(peer) or RateLimit.full(limits, now)
            self._meters[peer] = level.take(peer, now, limits)
            self._messages[peer] = self._messages.get(peer, 0) + 1
            if self._messages[peer] > limits.per_round:
                raise Refusal(peer, Reason.RATE, f"more than {limits.per_round} messages in a round")
            if self._hostile.get(peer, 0) >= limits.refusals:
                raise Refusal(peer, Reason.QUARANTINE, "it was refused too often in this job")

    def note(self, refused: Refusal) -> None:
        """Count a refusal against its peer, and write it down."""
        if refused.reason in _HOSTILE:
            with self.context.lock:
                self._hostile[refused.peer] = self._hostile.get(refused.peer, 0) + 1
        self.context.store.refused(refused.peer, str(refused.reason), refused.detail)
