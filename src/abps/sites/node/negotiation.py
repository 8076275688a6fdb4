"""A site's talks with its peers about who is whose partner: its turn, its answers, what is left in doubt.

The rules are :mod:`abps.core.protocol`, which knows no network. Here they meet one: messages that get lost,
peers that are gone, and promises that are on the disk before they are given.
"""

from __future__ import annotations

from collections.abc import Sequence

from abps.core import protocol
from abps.core.ledger import CONTROL_MESSAGE
from abps.core.matching import Answer
from abps.core.protocol import Kind, Message, Negotiation
from abps.core.streams import center_ids
from abps.sites.node.context import SiteContext
from abps.sites.node.gate import Gate
from abps.sites.node.transport import AuditedTransport, Unreachable
from abps.sites.node.witnessing import Witnessing
from abps.wire import admission
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import pack_message, pack_request

#: How a site refuses a proposal in the words of the protocol; nothing is yes.
_ANSWERS = {
    Answer.ACCEPTED: "",
    Answer.FULL: protocol.FULL,
    Answer.FILTERED: protocol.FILTERED,
    Answer.DECLINED: protocol.DECLINED,
}

#: What may come back when a site has said something; nothing else is an answer.
_ANSWERED_BY = {
    Kind.PROPOSE: frozenset({Kind.ACCEPT, Kind.REFUSE, Kind.PROPOSE}),
    Kind.ACCEPT: frozenset({Kind.CONFIRM, Kind.RELEASE}),
}

#: How many earlier rounds in doubt a site clears up when a job begins, the latest first.
_CATCH_UP = 10

#: In how many rounds of a job a peer may be accepted and not confirm, before it is not accepted any more.
_UNCONFIRMED = 2


class PairNegotiation:
    """A site's part in the matching protocol."""

    def __init__(
        self, site_context: SiteContext, post: AuditedTransport, gate: Gate, witnessing: Witnessing
    ) -> None:
        self.site_context, self.post, self.gate, self.witnessing = site_context, post, gate, witnessing
        self._unconfirmed: dict[str, set[int]] = {}  # by peer: rounds in which it was accepted in vain

    # At the conductor's word

    def catch_up(self) -> None:
        """Settle the latest of what earlier jobs left in doubt; who does not answer is asked once."""
        silent: set[str] = set()
        for past in sorted(self.site_context.store.in_doubt(), reverse=True)[:_CATCH_UP]:
            for peer, message in protocol.overdue(self.site_context.past(past)):
                if peer in self.site_context.others - silent and not self._try(past, peer, message):
                    silent.add(peer)

    def turn(self, round: int, gone: Sequence[str] = ()) -> int:
        """Go down the ranking and propose, until kappa partners are found or nobody is left.

        gone: who was there when the round began, and is not any more. Returns the number of proposals made.
        """
        site_context, now = self.site_context, self.site_context.round
        now.silent |= set(gone) - {site_context.name}
        if now.resting:
            return self.post.tell(0, "how many proposals we made", round)
        preferences = site_context.need(round, now.preferences, "an opinion")
        now.turned = True
        ranking = [site_context.members[k] for k in preferences.rankings[0]]
        if site_context.method.kind == "pull":
            return self._request(round, ranking[: site_context.capacity])
        until = self.post.now() + self.post.patience.turn_seconds
        made = 0
        while self.post.now() < until:
            with site_context.lock:
                asked = [p for p in ranking if p not in now.silent and not self.gate.quarantined(p)]
                peer = protocol.next_candidate(now.talks, asked)
                if peer is None:
                    break
                now.talks, message = protocol.propose(now.talks, peer)
            made += 1
            if not self._try(round, peer, message):
                now.silent.add(peer)
                with site_context.lock:
                    now.talks, farewell = protocol.give_up(now.talks, peer)
                for message in farewell:
                    self._try(round, peer, message)
            now.answers.append(now.talks.mine[peer].reason or "accepted")
        return self.post.tell(made, "how many proposals we made", round)

    def settle(self, round: int) -> int:
        """Take no more proposals, and clear up what is in doubt. Returns the number of peers in touch."""
        site_context, now = self.site_context, self.site_context.round
        if not site_context.mutual:
            touched = len((set(now.asked) | now.listeners) - now.silent)
            return self.post.tell(touched, "how many peers we are in touch with", round)
        with site_context.lock:
            before = protocol.records(now.talks)
            now.talks, farewells = protocol.seal(now.talks)
            if protocol.records(now.talks) != before:
                self._promise(now.talks)
        for peer, message in farewells:
            self._try(round, peer, message)
        self._clear_up(round)
        with site_context.lock:
            for peer in now.talks.in_doubt:
                self._in_vain(peer, round)
        for peer in sorted(now.talks.partners):
            self.witnessing.has_place(peer, round)
        return self.post.tell(len(now.talks.partners), "how many partners we have", round)

    def _request(self, round: int, wanted: list[str]) -> int:
        """Ask peers for their weights. Returns how many were asked."""
        for peer in wanted:
            data = pack_request(round, self.site_context.id)
            try:
                self.post.carry(peer, "request", data, f"wish to hear it in round {round}")
                self.site_context.round.asked.append(peer)
            except Unreachable:
                self.site_context.round.silent.add(peer)
        return len(wanted)

    # At a peer's word

    def receive(self, peer: str, data: bytes) -> bytes:
        """A message of the protocol, and what there is to answer."""
        message = admission.admit_message(data, self.site_context.origin(peer))
        self.post.log(peer, "message", len(data), _heard(message), sent=False, round=message.round)
        replies = self.handle(peer, message)
        for reply in replies:
            self.post.log(peer, "message", CONTROL_MESSAGE, _words(reply), round=reply.round)
        return b"".join(pack_message(reply, self.site_context.id) for reply in replies)

    def receive_request(self, peer: str, data: bytes) -> bytes:
        """A peer wants to hear this site in this round."""
        if self.site_context.method.kind != "pull":
            raise Refusal(peer, Reason.PROTOCOL, "requests are no part of this study")
        admission.admit_request(data, self.site_context.origin(peer))
        with self.site_context.lock:
            self.site_context.round.listeners.add(peer)
        self.post.log(peer, "request", len(data), "its wish to hear us", sent=False)
        return b""

    def handle(self, peer: str, message: Message) -> tuple[Message, ...]:
        """Take a message of this round, or of a past one from the record; write promises down first."""
        with self.site_context.lock:
            now = self.site_context.round
            current = message.round == now.number
            before = now.talks if current else self.site_context.past(message.round)
            step = protocol.handle(before, peer, message, self._judge)
            if protocol.records(step.state) != protocol.records(before):
                self._promise(step.state)
            if current:
                if peer in before.in_doubt and peer not in step.state.in_doubt | step.state.partners:
                    self._in_vain(peer, message.round)
                now.talks = step.state
        if step.event == "violation":
            raise Refusal(peer, Reason.PROTOCOL, f"{message.kind} of attempt {message.attempt}")
        return step.replies

    def _judge(self, proposer: str) -> str:
        site_context, preferences = self.site_context, self.site_context.round.preferences
        if preferences is None or proposer not in site_context.members:
            return protocol.FILTERED
        if self._early(proposer):
            return protocol.BUSY
        if self.owes(proposer) or self.gate.quarantined(proposer):
            return protocol.FILTERED
        place = site_context.members.index(proposer)
        if not site_context.context.known[place]:
            return protocol.FILTERED
        return _ANSWERS[preferences.answer(0, place)]

    def _early(self, proposer: str) -> bool:
        """Whether a peer proposes before its turn, as far as this site knows: its own comes first."""
        site_context = self.site_context
        if site_context.round.turned or proposer not in site_context.roster:
            return False
        ids = center_ids(site_context.roster)
        order = site_context.peer_method.turns(site_context.agreement.seed, site_context.round.number, ids)
        turns = [site_context.roster[k] for k in order]
        return turns.index(site_context.name) < turns.index(proposer)

    def owes(self, proposer: str) -> bool:
        """Whether a peer was accepted before and has not said what came of it, or did so too often, or takes
        more partners than it may."""
        if len(self._unconfirmed.get(proposer, ())) >= _UNCONFIRMED:
            return True
        return self.witnessing.harvests(proposer) or proposer in self.site_context.store.debtors()

    def _in_vain(self, peer: str, round: int) -> None:
        self._unconfirmed.setdefault(peer, set()).add(round)

    def _promise(self, state: Negotiation) -> None:
        self.site_context.store.promise(state.round, protocol.records(state))

    # Talks that this site begins

    def _clear_up(self, round: int) -> None:
        """Ask the proposers of what is in doubt, in this round or a past one."""
        site_context = self.site_context
        for _ in range(1 + self.post.patience.repeats):
            with site_context.lock:
                state = (
                    site_context.round.talks
                    if round == site_context.round.number
                    else site_context.past(round)
                )
                open_ = [(peer, m) for peer, m in protocol.overdue(state) if peer in site_context.others]
            if not open_:
                return
            for peer, message in open_:
                self._try(round, peer, message)

    def _try(self, round: int, peer: str, message: Message) -> bool:
        """Say something that may get lost; True if it was not, and what came back was in order."""
        try:
            self._talk(round, peer, message)
        except Unreachable:
            return False
        except Refusal as refused:
            self.gate.note(refused)
            return False
        return True

    def _talk(self, round: int, peer: str, message: Message) -> None:
        """Send a message, and go on talking until there is nothing left to say.

        Every message has at most one answer, of few kinds, about the same attempt: no talk is drawn out.
        """
        saying: Message | None = message
        while saying is not None:
            data = pack_message(saying, self.site_context.id)
            repeats = self.post.patience.repeats if saying.kind is Kind.PROPOSE else 0
            reply = self.post.carry(peer, "message", data, _words(saying), repeats, round)
            saying = self._answered(peer, saying, reply) if reply else None

    def _answered(self, peer: str, said: Message, reply: bytes) -> Message | None:
        """What to say next, after a peer's answer to what was said; or refused, if that is none."""
        answer = admission.admit_message(reply, self.site_context.origin(peer))
        fits = answer.round == said.round and answer.kind in _ANSWERED_BY.get(said.kind, ())
        if answer.kind is Kind.PROPOSE:  # two proposals have crossed: that of the smaller name stands
            fits = fits and peer < self.site_context.name
        else:
            fits = fits and answer.attempt == said.attempt
        if not fits:
            detail = (
                f"{answer.kind} of attempt {answer.attempt} is no answer to {said.kind} of {said.attempt}"
            )
            raise Refusal(peer, Reason.PROTOCOL, detail)
        self.post.log(peer, "message", len(reply), _heard(answer), sent=False, round=answer.round)
        replies = self.handle(peer, answer)
        return replies[0] if replies else None


def _words(message: Message) -> str:
    """A message of the protocol in plain words, for the audit log."""
    said = {
        Kind.PROPOSE: "proposal to be partners",
        Kind.ACCEPT: "we accept its proposal",
        Kind.REFUSE: f"we refuse its proposal ({message.reason})",
        Kind.CONFIRM: "confirmation that we are partners",
        Kind.RELEASE: "our proposal no longer stands",
    }
    return f"{said[message.kind]} in round {message.round}"


def _heard(message: Message) -> str:
    """The same, said by the other one."""
    said = {
        Kind.PROPOSE: "its proposal to be partners",
        Kind.ACCEPT: "it accepts our proposal",
        Kind.REFUSE: f"it refuses our proposal ({message.reason})",
        Kind.CONFIRM: "its confirmation that we are partners",
        Kind.RELEASE: "its proposal no longer stands",
    }
    return f"{said[message.kind]} in round {message.round}"
