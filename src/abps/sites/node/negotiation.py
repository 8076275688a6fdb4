"""A site's negotiation with its peers about who is whose partner: its turn to propose, its answers, doubts.

The rules are :mod:`abps.core.protocol`, which knows no network. Here they meet one: messages that get lost,
peers that are gone, and promises that are on disk before they are given.
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
from abps.sites.node.transport import AuditedTransport, UnreachableError
from abps.sites.store.rows import EntryKind
from abps.wire import admission
from abps.wire.admission import Reason, Refusal
from abps.wire.messages import pack_message

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

#: What the log says of a message.
_WORDS = {
    Kind.PROPOSE: "proposal to be partners",
    Kind.ACCEPT: "acceptance",
    Kind.REFUSE: "refusal",
    Kind.CONFIRM: "confirmation that we are partners",
    Kind.RELEASE: "withdrawal of the proposal",
}

#: How many earlier rounds in doubt a site clears up when a job begins, the latest first.
_CATCH_UP = 10

#: In how many rounds of a job a peer may be accepted and not confirm, before it is not accepted any more.
_UNCONFIRMED = 2


class PairNegotiation:
    """A site's part in the matching protocol."""

    def __init__(self, context: SiteContext, transport: AuditedTransport, gate: Gate) -> None:
        self.context, self.transport, self.gate = context, transport, gate
        self._unconfirmed: dict[str, set[int]] = {}  # by peer: rounds in which it was accepted in vain

    # Asked by the scheduler

    def catch_up(self) -> None:
        """Settle the latest of what earlier jobs left in doubt; a peer that does not answer is asked once."""
        silent: set[str] = set()
        for past in sorted(self.context.store.in_doubt(), reverse=True)[:_CATCH_UP]:
            for peer, message in protocol.overdue(self.context.past(past)):
                if peer in self.context.others - silent and not self._try(past, peer, message):
                    silent.add(peer)

    def propose(self, round: int, gone: Sequence[str] = ()) -> int:
        """Go down the ranking and propose, until kappa partners are found or nobody is left.

        gone: members that were there when the round began and are not any more.
        Returns the number of proposals made.
        """
        context, now = self.context, self.context.round
        now.silent |= set(gone) - {context.name}
        if now.resting:
            return self.transport.report(0, "how many proposals we made", round)
        preferences = context.need(round, now.preferences, "a ranking")
        now.turned = True
        ranking = [context.members[k] for k in preferences.rankings[0]]
        until = self.transport.now() + self.transport.retries.turn_seconds
        made = 0
        while self.transport.now() < until:
            with context.lock:
                asked = [p for p in ranking if p not in now.silent and not self.gate.quarantined(p)]
                peer = protocol.next_candidate(now.talks, asked)
                if peer is None:
                    break
                now.talks, message = protocol.propose(now.talks, peer)
            made += 1
            if not self._try(round, peer, message):
                now.silent.add(peer)
                with context.lock:
                    now.talks, farewell = protocol.give_up(now.talks, peer)
                for message in farewell:
                    self._try(round, peer, message)
            now.answers.append(now.talks.mine[peer].reason or "accepted")
        return self.transport.report(made, "how many proposals we made", round)

    def settle(self, round: int, gone: Sequence[str] = ()) -> int:
        """Accept no more proposals, and clear up what is in doubt. Returns the number of partners."""
        context, now = self.context, self.context.round
        now.silent |= set(gone) - {context.name}
        with context.lock:
            before = protocol.records(now.talks)
            now.talks, farewells = protocol.seal(now.talks)
            if protocol.records(now.talks) != before:
                self._promise(now.talks)
        for peer, message in farewells:
            self._try(round, peer, message)
        self._clear_up(round)
        with context.lock:
            for peer in now.talks.in_doubt:
                self._in_vain(peer, round)
        return self.transport.report(len(now.talks.partners), "how many partners we have", round)

    # Asked by a peer

    def receive(self, peer: str, data: bytes) -> bytes:
        """A message of the protocol, and what there is to answer."""
        message = admission.admit_message(data, self.context.origin(peer))
        self.transport.log(
            peer, EntryKind.MESSAGE, len(data), _why(message, False), sent=False, round=message.round
        )
        replies = self.handle(peer, message)
        for reply in replies:
            self.transport.log(peer, EntryKind.MESSAGE, CONTROL_MESSAGE, _why(reply, True), round=reply.round)
        return b"".join(pack_message(reply, self.context.id) for reply in replies)

    def handle(self, peer: str, message: Message) -> tuple[Message, ...]:
        """Take a message of this round, or of a past one from the record; write promises down first."""
        with self.context.lock:
            now = self.context.round
            current = message.round == now.number
            before = now.talks if current else self.context.past(message.round)
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
        context, preferences = self.context, self.context.round.preferences
        if preferences is None or proposer not in context.members:
            return protocol.FILTERED
        if self._early(proposer):
            return protocol.BUSY
        if self.owes(proposer) or self.gate.quarantined(proposer):
            return protocol.FILTERED
        place = context.members.index(proposer)
        if not context.method_context.known[place]:
            return protocol.FILTERED
        return _ANSWERS[preferences.answer(0, place)]

    def _early(self, proposer: str) -> bool:
        """Whether a peer proposes before its turn, as far as this site knows: its own comes first."""
        context = self.context
        if context.round.turned or proposer not in context.roster:
            return False
        ids = center_ids(context.roster)
        order = context.peer_method.turns(context.agreement.seed, context.round.number, ids)
        turns = [context.roster[k] for k in order]
        return turns.index(context.name) < turns.index(proposer)

    def owes(self, proposer: str) -> bool:
        """Whether a peer was accepted before and neither confirmed nor released, or did so too often."""
        if len(self._unconfirmed.get(proposer, ())) >= _UNCONFIRMED:
            return True
        return proposer in self.context.store.debtors()

    def _in_vain(self, peer: str, round: int) -> None:
        self._unconfirmed.setdefault(peer, set()).add(round)

    def _promise(self, state: Negotiation) -> None:
        self.context.store.promise(state.round, protocol.records(state))

    # Talks that this site begins

    def _clear_up(self, round: int) -> None:
        """Ask the proposers of what is in doubt, in this round or a past one."""
        context = self.context
        for _ in range(1 + self.transport.retries.repeats):
            with context.lock:
                state = context.round.talks if round == context.round.number else context.past(round)
                open_ = [(peer, m) for peer, m in protocol.overdue(state) if peer in context.others]
            if not open_:
                return
            for peer, message in open_:
                self._try(round, peer, message)

    def _try(self, round: int, peer: str, message: Message) -> bool:
        """Say something that may get lost; True if it was not, and what came back was in order."""
        try:
            self._talk(round, peer, message)
        except UnreachableError:
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
            data = pack_message(saying, self.context.id)
            repeats = self.transport.retries.repeats if saying.kind is Kind.PROPOSE else 0
            reply = self.transport.carry(peer, EntryKind.MESSAGE, data, _why(saying, True), repeats, round)
            saying = self._answered(peer, saying, reply) if reply else None

    def _answered(self, peer: str, said: Message, reply: bytes) -> Message | None:
        """What to say next, after a peer's answer to what was said; or refused, if that is none."""
        answer = admission.admit_message(reply, self.context.origin(peer))
        fits = answer.round == said.round and answer.kind in _ANSWERED_BY.get(said.kind, ())
        if answer.kind is Kind.PROPOSE:  # two proposals have crossed: that of the smaller name stands
            fits = fits and peer < self.context.name
        else:
            fits = fits and answer.attempt == said.attempt
        if not fits:
            detail = (
                f"{answer.kind} of attempt {answer.attempt} is no answer to {said.kind} of {said.attempt}"
            )
            raise Refusal(peer, Reason.PROTOCOL, detail)
        self.transport.log(
            peer, EntryKind.MESSAGE, len(reply), _why(answer, False), sent=False, round=answer.round
        )
        replies = self.handle(peer, answer)
        return replies[0] if replies else None


def _why(message: Message, own: bool) -> str:
    """A message of the protocol for the audit log."""
    reason = f" ({message.reason})" if message.reason else ""
    return f"{'our' if own else 'its'} {_WORDS[message.kind]}{reason} in round {message.round}"
