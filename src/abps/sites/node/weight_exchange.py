"""The weights of a round: a site sends its own to its partners, and receives theirs.

A parcel is the frame of the shared layers and the signed head of the sender's log.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from abps.core.protocol import Kind, Message, Stage
from abps.sites.node.context import SiteContext
from abps.sites.node.gate import Gate
from abps.sites.node.negotiation import PairNegotiation
from abps.sites.node.publishing import Publishing, head_of
from abps.sites.node.transport import AuditedTransport, Part, UnreachableError
from abps.sites.store.rows import EntryKind
from abps.wire import admission
from abps.wire.admission import Reason, Refusal
from abps.wire.frames import frame_size, unpack


class WeightExchange:
    """A site's exchange of weights with its partners."""

    def __init__(
        self,
        context: SiteContext,
        transport: AuditedTransport,
        gate: Gate,
        negotiation: PairNegotiation,
        publishing: Publishing,
    ) -> None:
        self.context, self.transport, self.gate = context, transport, gate
        self._negotiation, self._publishing = negotiation, publishing
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self._fetched: dict[str, int] = {}  # by peer: how often it got this round's weights

    def exchange(self, round: int) -> int:
        """Exchange weights with the partners that this site proposed to. Returns how many were reached."""
        now = self.context.round
        reached = 0
        if now.resting:
            return reached
        self.context.need(round, now.frames or None, "a trained model")
        for peer, link in sorted(now.talks.mine.items()):
            if link.stage is not Stage.MATCHED:
                continue
            try:
                parcel = self._parcel(round)
                parts = self._parts(parcel, round)
                reply = self.transport.carry_parts(peer, parcel, parts, self.transport.retries.repeats)
                self._accept(peer, reply, round)
                reached += 1
            except UnreachableError:
                now.silent.add(peer)
            except Refusal as refused:
                self.gate.note(refused)
        return reached

    def receive(self, peer: str, data: bytes) -> bytes:
        """A partner's weights; the answer is this site's own."""
        context, now = self.context, self.context.round
        round = now.number
        with context.lock:
            held = now.talks.theirs.get(peer)
            if held is not None and held.stage is Stage.HELD:
                # Who sends its weights has confirmed: only its confirmation was lost.
                self._negotiation.handle(peer, Message(Kind.CONFIRM, round, held.attempt))
            self._fetched[peer] = self._fetched.get(peer, 0) + 1
            if self._fetched[peer] > context.limits.fetches:
                raise Refusal(peer, Reason.RATE, f"more than {context.limits.fetches} times in a round")
            self._accept(peer, data, round)
            parcel = self._parcel(round)
            self.transport.log_parts(peer, self._parts(parcel, round))
        return parcel

    def _accept(self, peer: str, data: bytes, round: int) -> None:
        context, now = self.context, self.context.round
        weights, head = self.split(data)
        origin = context.origin(peer, now.talks.partners, round)
        arrived = admission.admit_weights(weights, origin, context.codec, context.shared) + context.base
        self.gate.check_distance(peer, arrived, self._own(peer))
        with context.lock:
            now.arrived[peer] = arrived
        parts = [(EntryKind.WEIGHTS, len(weights), f"its shared layers, partner of round {round}")]
        if head:
            known = head_of(peer, admission.admit_head(head, context.origin(peer)))
            context.store.keep_head(known)
            parts.append((EntryKind.HEAD, len(head), f"the head of its log: {known.rows} rows"))
        self.transport.log_parts(peer, parts, sent=False)

    def _own(self, peer: str) -> NDArray[np.float32]:
        """(shared,) what this site's partners get of it in this round."""
        context = self.context
        if not context.round.frames:
            raise Refusal(peer, Reason.PROTOCOL, "weights before this site has trained")
        return unpack(context.round.frames[0], context.codec).weights + context.base

    def _parcel(self, round: int) -> bytes:
        return self.context.round.frames[0] + self._publishing.sign_log(round)

    def split(self, parcel: bytes) -> tuple[bytes, bytes]:
        """The weights and the head of a parcel."""
        size = frame_size(self.context.codec, self.context.shared)
        return parcel[:size], parcel[size:]

    def _parts(self, parcel: bytes, round: int) -> list[Part]:
        """The rows of the log for a parcel that leaves."""
        weights, head = self.split(parcel)
        why = f"shared layers of our model, for our partner of round {round}"
        rows = [(EntryKind.WEIGHTS, len(weights), why)]
        if head:
            rows.append((EntryKind.HEAD, len(head), f"the head of our log in round {round}"))
        return rows
