"""A site asks the witnesses of its partners whether these have a place, and is a witness itself.

Who stands witness for whom, and why: :mod:`abps.sites.node.witness`.
"""

from __future__ import annotations

from abps.core import protocol
from abps.core.ledger import CONTROL_MESSAGE
from abps.core.protocol import Kind, Message
from abps.core.streams import center_id
from abps.sites.node.context import SiteContext
from abps.sites.node.gate import Gate
from abps.sites.node.transport import AuditedTransport, Unreachable
from abps.sites.node.witness import ENOUGH, Places, witnesses
from abps.wire import admission, versions
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import pack_attestation, pack_message


class Witnessing:
    """A site's questions to witnesses, and its answers as one."""

    def __init__(self, site_context: SiteContext, post: AuditedTransport, gate: Gate) -> None:
        self.site_context, self.post, self.gate = site_context, post, gate
        self.denied: dict[str, set[str]] = {}  # by peer: witnesses by whom it had no place for this site
        self.begin()

    def begin(self) -> None:
        """A round begins."""
        self.places = Places()  # as a witness: who has a place with whom
        self._given: dict[str, bool] = {}  # by partner: whether it has a place for this site

    def harvests(self, peer: str) -> bool:
        """Whether a peer takes more partners than it may, by enough witnesses."""
        return len(self.denied.get(peer, ())) >= ENOUGH

    def has_place(self, partner: str, round: int) -> bool:
        """Whether a partner has a place for this site, by its witness; without a witness, it has none."""
        if self.site_context.wire < versions.WITH_WITNESSES:
            return True
        if partner not in self._given:
            self._given[partner] = self._ask(partner, round)
        return self._given[partner]

    def _ask(self, partner: str, round: int) -> bool:
        site_context, post = self.site_context, self.post
        for witness in witnesses(site_context.agreement.seed, round, site_context.roster, partner):
            if witness == site_context.name:
                with site_context.lock:
                    return self.places.give(partner, site_context.name, site_context.capacity)
            if witness in site_context.round.silent:
                continue
            data = pack_attestation(center_id(partner), round, site_context.id)
            why = f"whether {partner}, for which it stands witness, has a place for us in round {round}"
            try:
                reply = post.carry(witness, "place", data, why, post.patience.repeats, round)
                said = admission.admit_message(reply, site_context.origin(witness, round=round))
            except Unreachable:
                continue
            except Refusal as refused:
                self.gate.note(refused)
                continue
            post.log(witness, "place", len(reply), f"as the witness of {partner}: {said.kind}", sent=False)
            if said.kind is not Kind.ACCEPT:
                with site_context.lock:
                    self.denied.setdefault(partner, set()).add(witness)
            return said.kind is Kind.ACCEPT
        return False

    def receive(self, peer: str, data: bytes) -> bytes:
        """A member asks this site, as a witness, whether its partner still has a place."""
        site_context = self.site_context
        round = site_context.round.number
        number = admission.admit_attestation(data, site_context.origin(peer))
        partner = next((name for name in site_context.roster if center_id(name) == number), peer)
        standing = witnesses(site_context.agreement.seed, round, site_context.roster, partner)
        if partner == peer or site_context.name not in standing:
            raise Refusal(peer, Reason.PROTOCOL, "this site is not the witness that it asks for")
        with site_context.lock:
            free = self.places.give(partner, peer, site_context.capacity)
        verdict = f"{'a' if free else 'no'} place with {partner} in round {round}"
        asked = f"asks us, as a witness, for a place with {partner}"
        with site_context.store.together():  # on the disk before the answer leaves
            self.post.log(peer, "place", len(data), asked, sent=False)
            self.post.log(peer, "place", CONTROL_MESSAGE, f"as a witness: {verdict}")
        said = Message(Kind.ACCEPT, round, 1) if free else Message(Kind.REFUSE, round, 1, protocol.FULL)
        return pack_message(said, site_context.id)
