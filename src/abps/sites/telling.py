"""What a site tells every member, once: its metadata vector, the last head it knows of theirs, its alarms,
and where it listens, if it can be reached directly.

A site that learns from a peer of a head that it signed itself and that its log does not have knows that its
log is not what it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from abps.sites import audit
from abps.sites.excuses import Declined, Excuse
from abps.sites.outlook import Outlook
from abps.sites.post import Post, Unreachable
from abps.sites.signing import Signer
from abps.sites.store_rows import Head
from abps.wire import admission, versions
from abps.wire.admission import Reason, Refused
from abps.wire.messages import pack_address, pack_alarm, pack_head, pack_vector, unpack_vector


class Telling:
    """What a site tells all others, and hears of them."""

    def __init__(self, outlook: Outlook, post: Post, signer: Signer | None) -> None:
        self.outlook, self.post, self._signer = outlook, post, signer
        self._contradicted = False  # whether a partner knows another log of this site

    def introduce(self, round: int, to: Sequence[str] | None, rows: Mapping[str, int] | None) -> None:
        """Publish the metadata vector to every other member, before the first round of a job, or to those
        that have come since.  rows: how many training rows these have.

        And tell each the last head of its own log that it gave us: so a site learns if its log is not what it
        was.
        """
        outlook = self.outlook
        peers = sorted(outlook.others if to is None else outlook.others & set(to))
        with outlook.lock:
            outlook.rows |= {name: int(count) for name, count in (rows or {}).items() if name in peers}
            if rows:
                outlook.changed()
        self._tell_heads(round, peers)
        self._tell_address(round, peers)
        if not outlook.published.names:
            return
        data = pack_vector(outlook.vectors[outlook.name], round, outlook.id)
        more = any(name.startswith(admission.ASSOCIATION) for name in outlook.published.names)
        what = "metadata vector and how our columns go with the outcome" if more else "metadata vector"
        why = f"{what}, so that peers can tell whether we are alike"
        for peer in peers:
            with contextlib.suppress(Unreachable):
                self.post.carry(peer, "vector", data, why, self.post.patience.repeats, round)

    def _tell_heads(self, round: int, peers: Sequence[str]) -> None:
        outlook = self.outlook
        for peer in peers if outlook.wire >= versions.WITH_HEADS else ():
            known = outlook.store.heads(peer)
            if known:
                head = known[-1]
                data = pack_head(head.rows, head.digest, head.signature, head.round, outlook.id)
                why = f"the head of its own log, as it gave it to us in round {head.round}"
                with contextlib.suppress(Unreachable):
                    self.post.carry(peer, "head", data, why, round=round)

    def _tell_address(self, round: int, peers: Sequence[str]) -> None:
        outlook = self.outlook
        if not outlook.address or outlook.wire < versions.WITH_ADDRESSES:
            return
        data = pack_address(outlook.address, round, outlook.id)
        for peer in peers:
            with contextlib.suppress(Unreachable):
                self.post.carry(peer, "address", data, "where it can talk to us directly", round=round)

    def announce(self, round: int, live: Sequence[str]) -> int:
        """Tell the members that are there of this site's alarms, as far as they do not know.

        Before a round begins, so that all reckon with them in it. Returns how many messages were answered.
        """
        outlook = self.outlook
        mine = sorted({alarm.round for alarm in outlook.store.alarms() if alarm.site == outlook.name})
        known = outlook.store.told()
        why = "what peers bring us has changed, so what you believe of us may be out of date"
        told = 0
        for peer in sorted(outlook.others & set(live)):
            for raised in mine:
                if (raised, peer) in known:
                    continue
                data = pack_alarm(raised, outlook.id)
                try:
                    self.post.carry(peer, "alarm", data, f"alarm of round {raised}: {why}", round=round)
                except Unreachable:
                    break  # it is told when it is there again
                outlook.store.tell(raised, peer)
                told += 1
        return told

    def decided(self, what: str, round: int | None = None) -> None:
        """Write down what people of this site decided about the study, or must know of it."""
        self.post.log(self.outlook.name, "decision", 0, what, sent=False, round=round)

    def close_log(self, round: int) -> None:
        """Sign the log at the end of a round, so that its last rows cannot be cut off unnoticed either."""
        if self._signer is not None:
            audit.sign_head(self.outlook.store, round, self._signer)

    def check_log(self) -> None:
        """Take no part with a log that is not the one that partners know."""
        if self._contradicted:
            raise Declined(
                Excuse.LOG,
                f"{self.outlook.store.path} is older than what this site told its partners, or was changed; "
                "look with `abps site verify`, and bring back the latest backup with `abps site restore`",
            )

    def receive_vector(self, peer: str, data: bytes) -> bytes:
        """A member's metadata vector, the same throughout a job."""
        outlook = self.outlook
        vector = admission.admit_vector(data, outlook.origin(peer), outlook.published.names)
        with outlook.lock:
            known = outlook.vectors.get(peer)
            if known is not None and not np.array_equal(known, vector):
                raise Refused(peer, Reason.METADATA, "its vector is not the one it sent before in this job")
            outlook.vectors[peer] = vector
            outlook.changed()
        _, round, _ = unpack_vector(data)
        self.post.log(peer, "vector", len(data), "its metadata vector", sent=False, round=round)
        return b""

    def receive_alarm(self, peer: str, data: bytes) -> bytes:
        """A member's alarm, counted once however often it is told."""
        outlook = self.outlook
        if not outlook.method.announces:
            raise Refused(peer, Reason.PROTOCOL, "alarms are no part of this study")
        raised = admission.admit_alarm(data, outlook.origin(peer), outlook.agreement.rounds)
        new = outlook.store.hear(peer, raised)
        why = "its alarm of drift" if new else "its alarm of drift, known already"
        self.post.log(peer, "alarm", len(data), f"{why} (raised in round {raised})", sent=False)
        return b""

    def receive_address(self, peer: str, data: bytes) -> bytes:
        """Where a member listens."""
        address = admission.admit_address(data, self.outlook.origin(peer))
        with self.outlook.lock:
            self.outlook.addresses[peer] = address
        self.post.log(peer, "address", len(data), "where we can talk to it directly", sent=False)
        return b""

    def receive_head(self, peer: str, data: bytes) -> bytes:
        """What a partner knows of this site's own log: if this site signed it, its log must have it."""
        outlook = self.outlook
        rows, digest, signature, round = admission.admit_head(data, outlook.origin(peer))
        self.post.log(peer, "head", len(data), "the head of our log, as it knows it", sent=False)
        head = Head(outlook.name, rows, round, digest, signature)
        if self._signer is not None and audit.contradicts(outlook.store, head, self._signer):
            self._contradicted = True
            self.decided(f"our log is not the one that {peer} knows: it had {rows} rows in round {round}")
        return b""
