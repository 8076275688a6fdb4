"""Exchanges of a coordinated method: every member uploads, one of them aggregates, all apply its broadcast.

The coordinator follows from the seed: the first in the draw that is present. Exchanges that need nothing but
sums can run under masked sums: every member gets the total, checks it, and does for itself what the
coordinator would do. The state is what the broadcasts of all exchanges led to: a site that missed some asks
other members for them and applies them, before it uploads.
"""

import contextlib
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.methods.base import Floats
from abps.methods.coordinated import Broadcast, Upload, coordinators
from abps.methods.sum_study import SumStudy
from abps.privacy.secure_sum import Member
from abps.sites.node.context import SiteContext
from abps.sites.node.differencing import revealing_members
from abps.sites.node.transport import RELAY, REPEATS, AuditedTransport, Gate, UnreachableError
from abps.sites.protocol.commands import Command
from abps.sites.protocol.masking import MaskedSums
from abps.sites.store.rows import EntryKind
from abps.wire import admission
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import pack_broadcast, pack_request, pack_upload
from abps.wire.number_lists import NumberList, NumberListError

_PART = struct.Struct("<II")  # before each broadcast in the answer to a request: its round, and its length


class Exchanges:
    """A site's part in the exchanges of a coordinated method; round t is exchange t."""

    def __init__(self, context: SiteContext, transport: AuditedTransport, gate: Gate) -> None:
        self.context, self.transport, self.gate = context, transport, gate
        self.method = context.method
        self.sums: MaskedSums | None = None
        if context.method.privacy.secure:
            member = Member(context.name, f"{context.digest}/{context.terms.job}")
            self.sums = MaskedSums(member, context.store, self.log_sum, self._summand, EntryKind.UPLOAD)
            self.sums.signer, self.sums.authority = context.terms.signer, context.terms.authority
            self.sums.objection = self._objection
        self._busy = threading.RLock()  # one computation at a time: they share buffers
        self.begin()

    def begin(self) -> None:
        self._own: Upload | None = None
        self.summand: Floats | None = None  # what this site adds to the sum of this round
        self._uploads: dict[str, NumberList] = {}  # by peer, to this site as the coordinator
        self._state: Any = None  # after the broadcast
        self._taken_from = ""  # whose broadcast that was
        self._closed = False
        self._synced = 0  # up to which exchange the state is known to follow from all
        #: Broadcasts that were applied since the last finished round.
        self.applied: dict[int, bytes] = {}

    def commands(self) -> dict[Command, Callable[..., Any]]:
        found: dict[Command, Callable[..., Any]] = {
            Command.CONTRIBUTE: self.contribute, Command.COORDINATE: self.coordinate,
        }  # fmt: skip
        if self.sums is None:
            return found
        return found | self.sums.commands() | {Command.SUM_TOTAL: self.take_total}

    def _summand(self, round: int, names: Sequence[str]) -> Floats:
        """What this site adds; a sum is of more than two thirds of the job's roster, and of nobody else."""
        summand = self.context.need(round, self.summand, "anything to add to a sum")
        roster = self.context.roster
        if not set(names) <= set(roster) or len(names) < 2 * len(roster) // 3 + 1:
            why = f"the relay names {len(names)} sites for a sum, and the job has {len(roster)}"
            raise RequestError(f"{why}; a sum of few members, or of others, is refused")
        self.summand = None  # it leaves once
        return summand

    def _objection(self, names: list[str], first: bool) -> str:
        """Why a sum of these members is not opened, besides that earlier ones had others."""
        absent = sorted(set(self.context.roster) - set(names))
        if absent and self.method.if_absent()[0]:
            return f"is without {', '.join(absent)}, and the study waits for everybody"
        if first and isinstance(self.method, SumStudy):
            return revealing_members(self.context.store, names)
        return ""

    def log_sum(self, kind: EntryKind, size: int, why: str, number: int, sent: bool = True) -> None:
        self.transport.log(self.transport.relay, kind, size, why, sent, number)

    def masked(self, round: int) -> bool:
        return self.method.privacy.secure and self.method.sums_only(round)

    def close(self, ask: bool) -> Any:
        """The state after the exchange, or None if there is none; nothing is applied any more.  ask: there
        was an exchange: a site that has not got its result asks other members."""
        with self.context.lock:
            self._closed = True
        round = self.context.round.number
        if self._state is None and ask and self._in_step(round + 1) and round in self.applied:
            self._state = self.context.state
        return self._state

    # Asked by the scheduler

    def contribute(self, round: int, gone: Sequence[str] = ()) -> int:
        """Upload to the coordinator. Returns how many numbers an upload has; 0 if this site cannot upload.
        gone: members that fell away since the round began; with the coordinator among them, the site uploads
        to the next in the draw."""
        context, now = self.context, self.context.round
        context.need(round, self.method, "begun")
        now.silent |= set(gone) - {context.name}
        if now.resting or not self._in_step(round):
            return 0
        if self._taken_from not in ("", self.coordinator()):
            # It fell away before all had its broadcast: all take that of the next in the draw.
            self._state, self._taken_from = None, ""
            self.applied.pop(round, None)
        sums = self.sums if self.masked(round) else None
        if sums is not None and sums.members is None and (self.applied or context.store.broadcasts()):
            return 0  # it came after the first sum, and gets the model; a sum with it would show what it adds
        if self._own is None:
            with self._busy:
                self._own = self.method.upload(context.method_context, context.state, round)
        entries, coordinator = self._own.values.shape[1], self.coordinator()
        if sums is not None:
            self.summand = self._own.values[0].astype(np.float64)
        elif coordinator != context.name:
            data = pack_upload(self._own.messages[0].data, round, context.id)
            why = f"our upload of round {round}, for its coordinator"
            try:
                self.transport.carry(coordinator, EntryKind.UPLOAD, data, why, REPEATS)
            except UnreachableError:
                return 0
        return entries

    def coordinate(self, round: int) -> int:
        """Aggregate, and broadcast the result. Returns how many members' uploads are in it."""
        context = self.context
        own = context.need(round, self._own, "an upload of its own")
        if self.coordinator() != context.name or self.masked(round):
            raise RequestError(f"{context.name} is not the coordinator of round {round}")
        uploads, count = self._gathered(own)
        if count < 2:
            return count
        broadcast = self._aggregated(uploads, round)
        for peer in (name for name in context.roster if name not in context.round.silent):
            own_part = broadcast.own.get(context.members.index(peer))
            content = broadcast.common.data + (b"" if own_part is None else own_part.data)
            if peer == context.name:
                self._take(peer, content, round)
                continue
            data = pack_broadcast(content, round, context.id)
            why = f"the result of exchange {round}, which we coordinate"
            with contextlib.suppress(UnreachableError):
                self.transport.carry(peer, EntryKind.BROADCAST, data, why, REPEATS)
        return count

    def take_total(self, round: int, data: bytes) -> bool:
        """Check and apply the total of an exchange under masks, as the relay says it."""
        context = self.context
        context.need(round, True, "begun")
        due = self.masked(round) and self._state is None and not self._closed and self._in_step(round)
        if self.sums is None or not due:
            raise RequestError(f"{context.name} waits for no total of round {round}")
        own = context.need(round, self._own, "a summand of its own")
        values = self.sums.total(round, data)
        if values.shape != own.values[0].shape:
            raise RequestError(f"the relay's total of round {round} is not a sum of our uploads")
        why = f"the total of round {round}, under masks"
        self.transport.log(self.transport.relay, EntryKind.UPLOAD, len(data), why, sent=False)
        try:
            self._take(RELAY, self._aggregated(values[None], round).common.data, round)
        except Refusal as refused:
            raise RequestError(f"the total of round {round} cannot be used: {refused.detail}") from refused
        return True

    def _aggregated(self, uploads: Floats, round: int) -> Broadcast:
        with self._busy:
            return self.method.aggregate(self.context.method_context, self.context.state, uploads, round)

    def _take(self, peer: str, content: bytes, round: int) -> None:
        """Apply a broadcast, and keep what it says to all."""
        self._state, self._taken_from = self._after(peer, self.context.state, content, round), peer
        self.applied[round] = NumberList.read(content)[0].data

    def _gathered(self, own: Upload) -> tuple[Floats, int]:
        """(n, entries) the uploads of the members, NaN where there is none; and how many there are."""
        context = self.context
        found = {context.name: own.messages[0]}
        more = self.method.accepted_forms(context.method_context, context.round.number)
        with context.lock:
            for peer, upload in self._uploads.items():
                if upload.form in (own.messages[0].form, *more):
                    found[peer] = upload
                else:
                    self.gate.note(Refusal(peer, Reason.SHAPE, "its upload has another form than ours"))
        uploads = np.full((len(context.members), max(len(each.values) for each in found.values())), np.nan)
        for peer, each in found.items():
            uploads[context.members.index(peer), : len(each.values)] = each.values
        return uploads, len(found)

    def coordinator(self) -> str:
        """The first member in the draw of this round that is present."""
        context = self.context
        order = coordinators(context.agreement.seed, context.round.number, center_ids(context.roster))
        return next(context.roster[k] for k in order if context.roster[k] not in context.round.silent)

    # Asked by a peer

    def receive_upload(self, peer: str, data: bytes) -> bytes:
        context = self.context
        content = admission.admit_upload(data, context.origin(peer))
        if self.masked(context.round.number):
            raise Refusal(peer, Reason.PROTOCOL, "uploads of this exchange are masked")
        try:
            upload, rest = NumberList.read(content)
        except NumberListError as error:
            raise Refusal(peer, Reason.MALFORMED, str(error)) from error
        if rest:
            raise Refusal(peer, Reason.SHAPE, "its upload has more than one list of numbers")
        if not np.isfinite(upload.values).all():
            raise Refusal(peer, Reason.NOT_FINITE, "its upload has values that are not finite")
        with context.lock:
            self._uploads[peer] = upload
        self.transport.log(peer, EntryKind.UPLOAD, len(data), "its upload", sent=False)
        return b""

    def receive_broadcast(self, peer: str, data: bytes) -> bytes:
        context, round = self.context, self.context.round.number
        content = admission.admit_broadcast(data, context.origin(peer))
        if self.masked(round):
            raise Refusal(peer, Reason.PROTOCOL, "everybody adds up for itself in this exchange")
        if peer != self.coordinator():
            raise Refusal(peer, Reason.PROTOCOL, f"{self.coordinator()} coordinates this exchange")
        with context.lock:
            if self._state is not None or self._closed or not self._in_step(round, ask=False):
                raise Refusal(peer, Reason.ROUND, "no broadcast is due")
            self._take(peer, content, round)
        self.transport.log(peer, EntryKind.BROADCAST, len(data), "the result of the exchange", sent=False)
        return b""

    def receive_request(self, peer: str, data: bytes) -> bytes:
        after = admission.admit_request(data, self.context.origin(peer))
        self.transport.log(peer, EntryKind.REQUEST, len(data), f"its request, after {after}", sent=False)
        kept = {t: each for t, each in (self.context.store.broadcasts() | self.applied).items() if t > after}
        reply = b"".join(_PART.pack(t, len(content)) + content for t, content in kept.items())
        why = f"{len(kept)} broadcasts that it has missed"
        self.transport.log(peer, EntryKind.BROADCAST, len(reply), why)
        return reply

    # Broadcasts

    def _after(self, coordinator: str, state: Any, content: bytes, round: int) -> Any:
        context = self.context
        try:
            common, rest = NumberList.read(content)
            own, rest = NumberList.read(rest) if rest else (None, b"")
            me = int(context.method_context.local_index[0])
            if rest or not all(np.isfinite(each.values).all() for each in (common, own) if each is not None):
                raise ValueError("values that are not finite, or too many")
            broadcast = Broadcast(common, {} if own is None else {me: own})
            with self._busy:
                return self.method.apply_broadcast(context.method_context, state, broadcast, round)
        except ValueError as error:
            raise Refusal(coordinator, Reason.MALFORMED, f"its broadcast: {error}") from error

    def _in_step(self, round: int, ask: bool = True) -> bool:
        """Whether the state follows from all exchanges before a round.  ask: ask members for missed ones."""
        context = self.context
        last = max((*context.store.broadcasts(), *self.applied), default=0)
        if self._synced >= round - 1 or last >= round - 1:
            return True
        missed = self._ask_for_missed(last, round) if ask else None
        if missed is None:
            return False
        state = context.state
        try:
            for number, (peer, content) in sorted(missed.items()):
                state = self._after(peer, state, content, number)
        except Refusal as refused:
            self.gate.note(refused)
            return False
        with context.lock:
            context.state = state
            self.applied |= {number: content for number, (_, content) in missed.items()}
            self._synced = round - 1
        return True

    def _ask_for_missed(self, last: int, round: int) -> dict[int, tuple[str, bytes]] | None:
        """The broadcasts after one round and before another, as two members (or the only one) have them
        alike."""
        context = self.context
        peers = sorted(context.others - context.round.silent)
        data = pack_request(last, context.round.number, context.id)
        seen: list[Mapping[int, bytes]] = []
        for peer in peers:
            try:
                why = f"we ask for broadcasts after exchange {last}"
                reply = self.transport.carry(peer, EntryKind.REQUEST, data, why)
                found = self._parse_missed(peer, reply, last, round)
            except UnreachableError:
                continue
            except Refusal as refused:
                self.gate.note(refused)
                continue
            self.transport.log(peer, EntryKind.BROADCAST, len(reply), "broadcasts that we missed", sent=False)
            if len(peers) == 1 or found in seen:
                return {number: (peer, content) for number, content in found.items()}
            seen.append(found)
        return None

    def _parse_missed(self, peer: str, reply: bytes, last: int, round: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        while reply:
            if len(reply) < _PART.size:
                raise Refusal(peer, Reason.MALFORMED, "broadcasts that are cut short")
            number, size = _PART.unpack_from(reply)
            content, reply = reply[_PART.size : _PART.size + size], reply[_PART.size + size :]
            whole = len(content) == size <= self.context.terms.limits.said
            if not whole or not last < number <= self.context.round.number:
                raise Refusal(peer, Reason.MALFORMED, "broadcasts that are not those that it was asked for")
            found[number] = content
        return {number: content for number, content in found.items() if number < round}
