"""Heads of logs between sites: a site gives the signed head of its log to every coordinator, and returns at
the beginning of a job what it holds of the others.

A site that learns of a head that it signed itself, and that its log does not have, knows that its log was
rolled back or changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from abps.sites.consent.keys import Signer
from abps.sites.node.context import SiteContext
from abps.sites.node.transport import AuditedTransport, UnreachableError
from abps.sites.protocol.commands import DeclineCode, DeclineError
from abps.sites.store import audit
from abps.sites.store.rows import EntryKind, Head
from abps.wire import admission
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import HeadMessage, pack_head


class Heads:
    """What a site gives of its own log, and keeps of others'."""

    def __init__(self, context: SiteContext, transport: AuditedTransport, signer: Signer | None) -> None:
        self.context, self.transport, self._signer = context, transport, signer
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
        """Sign the head of this site's log, keep it, and give it to the coordinator of the round; nothing in
        a rehearsal without keys."""
        if self._signer is None:
            return
        head = audit.sign_head(self.context.store, round, self._signer)
        if coordinator != self.context.name:
            self._send(coordinator, head, "the head of our log, signed", round)
            audit.sign_head(self.context.store, round, self._signer)  # with the row about this

    def _send(self, peer: str, head: Head, why: str, round: int) -> None:
        message = HeadMessage(head.rows, head.digest, head.signature, head.round, head.restores)
        with contextlib.suppress(UnreachableError):
            data = pack_head(message, self.context.id)
            self.transport.carry(peer, EntryKind.HEAD, data, why, round=round)

    def check(self) -> None:
        """Take no part with a log that is not the one that partners know."""
        if self._contradicted:
            raise DeclineError(
                DeclineCode.LOG,
                f"{self.context.store.path} is older than what this site sent to its partners, or was "
                "changed; look with `abps site verify`, and bring back the latest backup with "
                "`abps site restore`",
            )

    def receive(self, peer: str, data: bytes) -> bytes:
        """The head of this site's own log, or of the peer's: this site's key tells which."""
        context = self.context
        m = admission.admit_head(data, context.origin(peer))
        head = Head(context.name, m.rows, m.round, m.digest, m.signature, m.restores)
        if self._signer is not None and audit.is_own(context.store, head, self._signer):
            why = "the head of our log, as it knows it"
            self.transport.log(peer, EntryKind.HEAD, len(data), why, sent=False)
            if audit.contradicts(context.store, head, self._signer):
                self._contradicted = True
                self.transport.log_decision(
                    f"our log is not the one that {peer} knows: it had {head.rows} rows in round {head.round}"
                )
            return b""
        if peer in self._given:
            raise Refusal(peer, Reason.PROTOCOL, "a second head in this round")
        self._given.add(peer)
        context.store.keep_head(Head(peer, m.rows, m.round, m.digest, m.signature, m.restores))
        self.transport.log(peer, EntryKind.HEAD, len(data), "the head of its log", sent=False)
        return b""
