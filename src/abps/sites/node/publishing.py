"""What a site sends to every member, once per job: its metadata vector, and the last head it holds of theirs.

A site that learns from a peer of a head that it signed itself, and that its log does not have, knows that its
log was rolled back or changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from abps.sites.consent.keys import Signer
from abps.sites.node.context import SiteContext
from abps.sites.node.transport import AuditedTransport, UnreachableError
from abps.sites.protocol.decline_codes import DeclineCode, DeclineError
from abps.sites.store import audit
from abps.sites.store.rows import EntryKind, Head
from abps.wire import admission
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import HeadMessage, pack_head, pack_vector, unpack_vector


class Publishing:
    """What a site publishes, and receives of what others publish."""

    def __init__(self, context: SiteContext, transport: AuditedTransport, signer: Signer | None) -> None:
        self.context, self.transport, self._signer = context, transport, signer
        self._contradicted = False  # whether a partner knows another log of this site

    def introduce(
        self, round: int, to: Sequence[str] | None = None, rows: Mapping[str, int] | None = None
    ) -> None:
        """Publish the metadata vector to every other member, before the first round of a job, or to those
        that have joined since.  rows: how many training rows these have.

        And return to each the last head of its own log: so a site learns if its log was rolled back.
        """
        context = self.context
        peers = sorted(context.others if to is None else context.others & set(to))
        with context.lock:
            context.rows |= {name: int(count) for name, count in (rows or {}).items() if name in peers}
            if rows:
                context.changed()
        self._return_heads(round, peers)
        if not context.published.names:
            return
        data = pack_vector(context.vectors[context.name], round, context.id)
        why = "metadata vector, so that peers can judge how similar we are"
        for peer in peers:
            with contextlib.suppress(UnreachableError):
                self.transport.carry(peer, EntryKind.VECTOR, data, why, self.transport.retries.repeats, round)

    def _return_heads(self, round: int, peers: Sequence[str]) -> None:
        for peer in peers:
            for head in self.context.store.heads(peer)[-1:]:
                why = f"the head of its own log, as we got it in round {head.round}"
                with contextlib.suppress(UnreachableError):
                    self.transport.carry(
                        peer, EntryKind.HEAD, packed_head(head, self.context.id), why, round=round
                    )

    def sign_log(self, round: int) -> bytes:
        """The head of this site's log, signed, kept and packed; nothing in a rehearsal without keys."""
        if self._signer is None:
            return b""
        return packed_head(audit.sign_head(self.context.store, round, self._signer), self.context.id)

    def check_log(self) -> None:
        """Take no part with a log that is not the one that partners know."""
        if self._contradicted:
            raise DeclineError(
                DeclineCode.LOG,
                f"{self.context.store.path} is older than what this site sent to its partners, or was "
                "changed; look with `abps site verify`, and bring back the latest backup with "
                "`abps site restore`",
            )

    def receive_vector(self, peer: str, data: bytes) -> bytes:
        """A member's metadata vector, the same throughout a job."""
        context = self.context
        vector = admission.admit_vector(data, context.origin(peer), context.published.names)
        with context.lock:
            known = context.vectors.get(peer)
            if known is not None and not np.array_equal(known, vector):
                raise Refusal(peer, Reason.METADATA, "its vector is not the one it sent before in this job")
            context.vectors[peer] = vector
            context.changed()
        _, round, _ = unpack_vector(data)
        self.transport.log(peer, EntryKind.VECTOR, len(data), "its metadata vector", sent=False, round=round)
        return b""

    def receive_head(self, peer: str, data: bytes) -> bytes:
        """What a partner knows of this site's own log: if this site signed it, its log must have it."""
        context = self.context
        head = head_of(context.name, admission.admit_head(data, context.origin(peer)))
        why = "the head of our log, as it knows it"
        self.transport.log(peer, EntryKind.HEAD, len(data), why, sent=False)
        if self._signer is not None and audit.contradicts(context.store, head, self._signer):
            self._contradicted = True
            self.transport.log_decision(
                f"our log is not the one that {peer} knows: it had {head.rows} rows in round {head.round}"
            )
        return b""


def packed_head(head: Head, sender: int) -> bytes:
    """A head as a message."""
    message = HeadMessage(head.rows, head.digest, head.signature, head.round, head.restores)
    return pack_head(message, sender)


def head_of(site: str, message: HeadMessage) -> Head:
    """A message as the head of a site's log."""
    return Head(site, message.rows, message.round, message.digest, message.signature, message.restores)
