"""The weights of a round: a site brings its own to its partners, and takes theirs in.

A parcel is the frame of the shared layers, the number that goes with them, if the method has one, and the
head of the sender's log, signed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.core.ledger import CONTROL_MESSAGE
from abps.core.protocol import Kind, Message, Stage
from abps.sites.consent.keys import Signer
from abps.sites.node.context import SiteContext
from abps.sites.node.gate import Gate
from abps.sites.node.negotiation import PairNegotiation
from abps.sites.node.transport import AuditedTransport, Part, Unreachable
from abps.sites.store import audit
from abps.sites.store.rows import Head
from abps.wire import admission, versions
from abps.wire.admission import Reason, Refusal
from abps.wire.frames import frame_size, unpack
from abps.wire.messages import pack_head, pack_note


class WeightExchange:
    """A site's exchange of weights with its peers."""

    def __init__(
        self,
        site_context: SiteContext,
        post: AuditedTransport,
        gate: Gate,
        negotiating: PairNegotiation,
        signer: Signer | None,
    ) -> None:
        self.site_context, self.post, self.gate, self.negotiating = site_context, post, gate, negotiating
        self._signer = signer
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self._fetched: dict[str, int] = {}  # by peer: how often it got this round's weights
        self._served: set[str] = set()  # who brought weights, or tried to, and was answered

    def swap(self, round: int) -> int:
        """Exchange weights with the partners that this site proposed to, or send them to those who hear it.

        Returns how many were reached.
        """
        site_context, now = self.site_context, self.site_context.round
        reached = 0
        if now.resting:
            return reached
        site_context.need(round, now.frames or None, "a trained model")
        proposed = {peer for peer, link in now.talks.mine.items() if link.stage is Stage.MATCHED}
        for peer in sorted(proposed if site_context.mutual else now.listeners - now.silent):
            if site_context.mutual and not self.negotiating.witnessing.has_place(peer, round):
                continue
            try:
                parcel = self._parcel(round)
                rows = self._written(parcel, round)
                reply = self.post.carry_parts(peer, "weights", parcel, rows, self.post.patience.repeats)
                if site_context.mutual:
                    self._accept(peer, reply, round)
                reached += 1
            except Unreachable:
                now.silent.add(peer)
            except Refusal as refused:
                self.gate.note(refused)
        return reached

    def wait(self) -> None:
        """Until everybody who is to bring weights has, or is gone, or the time is up."""
        clock, until = self.post.now, self.post.now() + self.post.patience.swap_seconds
        now = self.site_context.round

        def awaited() -> set[str]:
            if self.site_context.mutual:
                bringing = {p for p, link in now.talks.theirs.items() if link.stage is Stage.MATCHED}
            else:
                bringing = set(now.asked)
            return bringing - now.silent - self._served

        with self.site_context.lock:
            while awaited() and clock() < until:
                self.site_context.lock.wait(timeout=min(1.0, max(0.0, until - clock())))

    def receive(self, peer: str, data: bytes) -> bytes:
        """A peer's weights; between partners the answer is this site's own."""
        try:
            return self._take(peer, data)
        finally:  # whatever came of it, nobody waits for this peer any more
            with self.site_context.lock:
                self._served.add(peer)
                self.site_context.lock.notify_all()

    def _take(self, peer: str, data: bytes) -> bytes:
        site_context, now = self.site_context, self.site_context.round
        round = now.number
        if not site_context.mutual:
            self._accept(peer, data, round)
            return b""
        with site_context.lock:
            held = now.talks.theirs.get(peer)
            if held is not None and held.stage is Stage.HELD:
                # Who sends its weights has confirmed: only its confirmation was lost.
                self.negotiating.handle(peer, Message(Kind.CONFIRM, round, held.attempt))
            self._fetched[peer] = self._fetched.get(peer, 0) + 1
            if self._fetched[peer] > site_context.limits.fetches:
                raise Refusal(peer, Reason.RATE, f"more than {site_context.limits.fetches} times in a round")
        if peer in now.talks.partners and not self.negotiating.witnessing.has_place(peer, round):
            raise Refusal(peer, Reason.PLACE, f"by its witness of round {round} it has other partners")
        with site_context.lock:  # who waits for these weights goes on when the answer is written down, too
            self._accept(peer, data, round)
            parcel = self._parcel(round)
            self.post.log_parts(peer, self._written(parcel, round))
        return parcel

    def _accept(self, peer: str, data: bytes, round: int) -> None:
        site_context, now = self.site_context, self.site_context.round
        data, note, head = self.parts(data)
        partners = now.talks.partners if site_context.mutual else now.asked
        weights = admission.admit_weights(
            data, site_context.origin(peer, partners, round), site_context.codec, site_context.shared
        )
        noted = site_context.peer_method.noted
        value = admission.admit_note(note, site_context.origin(peer, round=round)) if noted else 0.0
        arrived = weights + site_context.base
        self.gate.check_distance(peer, arrived, self._own(peer))
        with site_context.lock:
            now.arrived[peer], now.notes[peer] = arrived, value
        self.post.log(peer, "weights", len(data), f"its shared layers, partner of round {round}", sent=False)
        if note:
            self.post.log(peer, "note", len(note), f"its number beside: {value:g}", sent=False)
        if head:
            rows, digest, signature, at = admission.admit_head(head, site_context.origin(peer))
            site_context.store.keep_head(Head(peer, rows, at, digest, signature))
            self.post.log(peer, "head", len(head), f"the head of its log: {rows} rows", sent=False)

    def _own(self, peer: str) -> NDArray[np.float32]:
        """(shared,) what this site's partners get of it in this round."""
        site_context = self.site_context
        with site_context.lock:
            if not site_context.round.frames:
                raise Refusal(peer, Reason.PROTOCOL, "weights before this site has trained")
            return unpack(site_context.round.frames[0], site_context.codec).weights + site_context.base

    # Parcels

    def _parcel(self, round: int) -> bytes:
        """This site's weights, the number that goes with them, if there is one, and the head of its log."""
        site_context, now = self.site_context, self.site_context.round
        head = self._signed_head(round)
        if not site_context.peer_method.noted:
            return now.frames[0] + head
        listeners = now.talks.partners if site_context.mutual else now.listeners
        value = site_context.peer_method.note(site_context.context, now.trained, np.array([len(listeners)]))[
            0
        ]
        return now.frames[0] + pack_note(float(value), round) + head

    def _signed_head(self, round: int) -> bytes:
        """The head of this site's log, signed; nothing in a trial without keys."""
        if self._signer is None or self.site_context.wire < versions.WITH_HEADS:
            return b""
        head = audit.sign_head(self.site_context.store, round, self._signer)
        return pack_head(head.rows, head.digest, head.signature, round, self.site_context.id)

    def parts(self, parcel: bytes) -> tuple[bytes, bytes, bytes]:
        """Weights, note and head of a parcel; what is too long stays with the weights, and is refused."""
        site_context = self.site_context
        weights, noted = frame_size(site_context.codec, site_context.shared), site_context.peer_method.noted
        note = weights + CONTROL_MESSAGE * noted
        if len(parcel) > note and site_context.wire < versions.WITH_HEADS:
            return parcel, b"", b""
        if noted and len(parcel) < note:
            return parcel[:-CONTROL_MESSAGE], parcel[-CONTROL_MESSAGE:], b""
        return parcel[:weights], parcel[weights:note], parcel[note:]

    def _written(self, parcel: bytes, round: int) -> list[Part]:
        """The rows of the log for a parcel that leaves."""
        weights, note, head = (len(part) for part in self.parts(parcel))
        rows = [("weights", weights, f"shared layers of our model, for our partner of round {round}")]
        if note:
            rows.append(("note", note, f"the number beside them in round {round}"))
        if head:
            rows.append(("head", head, f"the head of our log in round {round}"))
        return rows
