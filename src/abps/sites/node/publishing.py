"""What a site tells every member, once: its metadata vector, the last head it knows of theirs, its alarms,
and where it listens, if it can be reached directly.

A site that learns from a peer of a head that it signed itself and that its log does not have knows that its
log is not what it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from abps.sites.consent.keys import Signer
from abps.sites.node.context import SiteContext
from abps.sites.node.transport import AuditedTransport, Unreachable
from abps.sites.protocol.decline_codes import DeclineCode, DeclineError
from abps.sites.store import audit
from abps.sites.store.rows import Head
from abps.wire import admission, versions
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import pack_address, pack_alarm, pack_head, pack_vector, unpack_vector


class Publishing:
    """What a site tells all others, and hears of them."""

    def __init__(self, site_context: SiteContext, post: AuditedTransport, signer: Signer | None) -> None:
        self.site_context, self.post, self._signer = site_context, post, signer
        self._contradicted = False  # whether a partner knows another log of this site

    def introduce(self, round: int, to: Sequence[str] | None, rows: Mapping[str, int] | None) -> None:
        """Publish the metadata vector to every other member, before the first round of a job, or to those
        that have come since.  rows: how many training rows these have.

        And tell each the last head of its own log that it gave us: so a site learns if its log is not what it
        was.
        """
        site_context = self.site_context
        peers = sorted(site_context.others if to is None else site_context.others & set(to))
        with site_context.lock:
            site_context.rows |= {name: int(count) for name, count in (rows or {}).items() if name in peers}
            if rows:
                site_context.changed()
        self._tell_heads(round, peers)
        self._tell_address(round, peers)
        if not site_context.published.names:
            return
        data = pack_vector(site_context.vectors[site_context.name], round, site_context.id)
        why = "metadata vector, so that peers can judge how similar we are"
        for peer in peers:
            with contextlib.suppress(Unreachable):
                self.post.carry(peer, "vector", data, why, self.post.patience.repeats, round)

    def _tell_heads(self, round: int, peers: Sequence[str]) -> None:
        site_context = self.site_context
        for peer in peers if site_context.wire >= versions.WITH_HEADS else ():
            known = site_context.store.heads(peer)
            if known:
                head = known[-1]
                data = pack_head(head.rows, head.digest, head.signature, head.round, site_context.id)
                why = f"the head of its own log, as it gave it to us in round {head.round}"
                with contextlib.suppress(Unreachable):
                    self.post.carry(peer, "head", data, why, round=round)

    def _tell_address(self, round: int, peers: Sequence[str]) -> None:
        site_context = self.site_context
        if not site_context.address or site_context.wire < versions.WITH_ADDRESSES:
            return
        data = pack_address(site_context.address, round, site_context.id)
        for peer in peers:
            with contextlib.suppress(Unreachable):
                self.post.carry(peer, "address", data, "where it can talk to us directly", round=round)

    def announce(self, round: int, live: Sequence[str]) -> int:
        """Tell the members that are there of this site's alarms, as far as they do not know.

        Before a round begins, so that all reckon with them in it. Returns how many messages were answered.
        """
        site_context = self.site_context
        mine = sorted(
            {alarm.round for alarm in site_context.store.alarms() if alarm.site == site_context.name}
        )
        known = site_context.store.told()
        why = "what peers bring us has changed, so what you believe of us may be out of date"
        told = 0
        for peer in sorted(site_context.others & set(live)):
            for raised in mine:
                if (raised, peer) in known:
                    continue
                data = pack_alarm(raised, site_context.id)
                try:
                    self.post.carry(peer, "alarm", data, f"alarm of round {raised}: {why}", round=round)
                except Unreachable:
                    break  # it is told when it is there again
                site_context.store.tell(raised, peer)
                told += 1
        return told

    def decided(self, what: str, round: int | None = None) -> None:
        """Write down what people of this site decided about the study, or must know of it."""
        self.post.log(self.site_context.name, "decision", 0, what, sent=False, round=round)

    def close_log(self, round: int) -> None:
        """Sign the log at the end of a round, so that its last rows cannot be cut off unnoticed either."""
        if self._signer is not None:
            audit.sign_head(self.site_context.store, round, self._signer)

    def check_log(self) -> None:
        """Take no part with a log that is not the one that partners know."""
        if self._contradicted:
            raise DeclineError(
                DeclineCode.LOG,
                f"{self.site_context.store.path} is older than what this site told its partners, or was "
                "changed; look with `abps site verify`, and bring back the latest backup with "
                "`abps site restore`",
            )

    def receive_vector(self, peer: str, data: bytes) -> bytes:
        """A member's metadata vector, the same throughout a job."""
        site_context = self.site_context
        vector = admission.admit_vector(data, site_context.origin(peer), site_context.published.names)
        with site_context.lock:
            known = site_context.vectors.get(peer)
            if known is not None and not np.array_equal(known, vector):
                raise Refusal(peer, Reason.METADATA, "its vector is not the one it sent before in this job")
            site_context.vectors[peer] = vector
            site_context.changed()
        _, round, _ = unpack_vector(data)
        self.post.log(peer, "vector", len(data), "its metadata vector", sent=False, round=round)
        return b""

    def receive_alarm(self, peer: str, data: bytes) -> bytes:
        """A member's alarm, counted once however often it is told."""
        site_context = self.site_context
        if not site_context.method.announces:
            raise Refusal(peer, Reason.PROTOCOL, "alarms are no part of this study")
        raised = admission.admit_alarm(data, site_context.origin(peer), site_context.agreement.rounds)
        new = site_context.store.hear(peer, raised)
        why = "its alarm of drift" if new else "its alarm of drift, known already"
        self.post.log(peer, "alarm", len(data), f"{why} (raised in round {raised})", sent=False)
        return b""

    def receive_address(self, peer: str, data: bytes) -> bytes:
        """Where a member listens."""
        address = admission.admit_address(data, self.site_context.origin(peer))
        with self.site_context.lock:
            self.site_context.addresses[peer] = address
        self.post.log(peer, "address", len(data), "where we can talk to it directly", sent=False)
        return b""

    def receive_head(self, peer: str, data: bytes) -> bytes:
        """What a partner knows of this site's own log: if this site signed it, its log must have it."""
        site_context = self.site_context
        rows, digest, signature, round = admission.admit_head(data, site_context.origin(peer))
        self.post.log(peer, "head", len(data), "the head of our log, as it knows it", sent=False)
        head = Head(site_context.name, rows, round, digest, signature)
        if self._signer is not None and audit.contradicts(site_context.store, head, self._signer):
            self._contradicted = True
            self.decided(f"our log is not the one that {peer} knows: it had {rows} rows in round {round}")
        return b""
