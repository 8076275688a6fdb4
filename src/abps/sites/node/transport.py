"""What leaves a site and what arrives: written into the site's log first, then sent; and who is let in.

Nothing leaves while people of the site do not want it (``closed``). What a single message may say is checked
by :mod:`abps.wire.admission`; here are how many messages a peer may send, and its refusals. A site gives the
signed head of its log to every coordinator, and returns at the beginning of a job what it holds of the
others: one that learns of a head that it signed, and that its log does not have, knows that its log was
rolled back or changed.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from abps.sites.node.context import SiteContext
from abps.sites.protocol.commands import DeclineCode, DeclineError
from abps.sites.store import audit
from abps.sites.store.rows import EntryKind, LogEntry, canonical, utc
from abps.wire import admission
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import Head, pack_head

T = TypeVar("T")

RELAY = "server"  # the engine's name for the relay, where the scheduler runs
REPEATS = 2  # how often an unanswered message is repeated


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
            try:
                return self.send(peer, kind, data)
            except UnreachableError:
                continue
        raise UnreachableError(peer)


#: Refusals that no honest site causes: after some of them a peer is ignored.
_HOSTILE = frozenset(Reason) - {Reason.STRANGER, Reason.ROUND, Reason.RATE, Reason.QUARANTINE}


class Gate:
    """A site's limits for each of its peers, in one job."""

    def __init__(self, context: SiteContext) -> None:
        self.context = context
        self._hostile: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        self._messages: Counter[str] = Counter()  # of this round, by peer

    def pass_on(self, peer: str) -> None:
        """Admit one more message of a peer, or refuse it, whatever it says."""
        limits = self.context.terms.limits
        with self.context.lock:
            self._messages[peer] += 1
            if self._messages[peer] > limits.per_round:
                raise Refusal(peer, Reason.RATE, f"more than {limits.per_round} messages in a round")
            if self._hostile[peer] >= limits.refusals:
                raise Refusal(peer, Reason.QUARANTINE, "it was refused too often in this job")

    def note(self, refused: Refusal) -> None:
        """Count a refusal against its peer, and write it down."""
        with self.context.lock:
            self._hostile[refused.peer] += refused.reason in _HOSTILE
        self.context.store.refused(refused.peer, str(refused.reason), refused.detail)


class Heads:
    """What a site gives of its own log, and keeps of others'."""

    def __init__(self, context: SiteContext, transport: AuditedTransport) -> None:
        self.context, self.transport, self._signer = context, transport, context.terms.signer
        self._contradicted = False  # whether a partner knows another log of this site
        self.begin()

    def begin(self) -> None:
        self._given: set[str] = set()  # peers that have given their head in this round

    def give_back(self, round: int, peers: Sequence[str]) -> None:
        """Return to each peer the last head of its own log that this site holds."""
        for peer in peers:
            for head in self.context.store.heads(peer)[-1:]:
                self._send(peer, head, f"the head of its own log, as we got it in round {head.round}", round)

    def give(self, round: int, coordinator: str) -> None:
        """Sign the head of this site's log, keep it, and give it to the round's coordinator (not in a
        rehearsal without keys)."""
        if self._signer is None:
            return
        head = audit.sign_head(self.context.store, round, self._signer)
        if coordinator != self.context.name:
            self._send(coordinator, head, "the head of our log, signed", round)
            audit.sign_head(self.context.store, round, self._signer)  # with the row about this

    def _send(self, peer: str, head: Head, why: str, round: int) -> None:
        with contextlib.suppress(UnreachableError):
            self.transport.carry(peer, EntryKind.HEAD, pack_head(head, self.context.id), why, round=round)

    def check(self) -> None:
        if self._contradicted:
            path = self.context.store.path
            why = f"{path} is older than what this site sent to its partners, or was changed"
            what = "look with `abps site verify`, and bring back the latest backup with `abps site restore`"
            raise DeclineError(DeclineCode.LOG, f"{why}; {what}")

    def receive(self, peer: str, data: bytes) -> bytes:
        """The head of this site's own log, or of the peer's: this site's key tells which."""
        context, why = self.context, "the head of its log"
        head = admission.admit_head(data, context.origin(peer))
        own, signer = replace(head, site=context.name), self._signer
        if signer is not None and audit.is_signed(own, context.store.facts()["agreement"], signer):
            why = "the head of our log, as it knows it"
            if audit.contradicts(context.store, own, signer):
                self._contradicted = True
                had = f"{head.rows} rows in round {head.round}"
                self.transport.log_decision(f"our log is not the one that {peer} knows: it had {had}")
        elif peer in self._given:
            raise Refusal(peer, Reason.PROTOCOL, "a second head in this round")
        else:
            self._given.add(peer)
            context.store.keep_head(head)
        self.transport.log(peer, EntryKind.HEAD, len(data), why, sent=False)
        return b""
