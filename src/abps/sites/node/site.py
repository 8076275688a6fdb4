"""One site of a real federation: it computes on its own table, and takes part in exchanges; it never sends
its rows, and everything that leaves it is in its audit log first. Here are the tables of what the scheduler
(the clock at the relay) may ask of a site, and of what peers may send."""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.data.prepare import Prepared
from abps.methods.accounting import not_covered, releases
from abps.methods.coordinated import Broadcast
from abps.methods.state_bytes import freeze
from abps.models.metrics import labels_of, main_score
from abps.release import VERSION
from abps.sites.consent.agreement import Agreement
from abps.sites.node.context import JobTerms, Round, SiteContext, is_round, may_score, pay
from abps.sites.node.exchanges import Exchanges
from abps.sites.node.transport import AuditedTransport, Gate, Heads, Send
from abps.sites.protocol.commands import Command, DeclineCode, DeclineError
from abps.sites.store.rows import EntryKind, RoundRow
from abps.sites.store.store import Store
from abps.wire import messages
from abps.wire.admission import Reason, Refusal
from abps.wire.number_lists import NumberList

#: Kinds of what leaves that are no part of the method itself.
_NOT_COUNTED = (EntryKind.HEAD, EntryKind.REPORT)


class Site:
    """A site's part in a job.  terms: how it takes part; none: as in a rehearsal."""

    def __init__(
        self,
        name: str,
        agreement: Agreement,
        data: Prepared,
        store: Store,
        send: Send,
        terms: JobTerms | None = None,
    ) -> None:
        terms = terms or JobTerms()
        self.name, self.agreement, self.store, self.consent = name, agreement, store, terms.consent
        self.context = context = SiteContext(name, agreement, data, store, terms)
        self.transport = AuditedTransport(context, send)
        self.gate, self.heads = Gate(context), Heads(context, self.transport)
        self.exchanges = Exchanges(context, self.transport, self.gate)
        self._begun = store.round
        #: What the scheduler may ask for.
        self.commands: dict[Command, Callable[..., Any]] = {
            Command.HELLO: self.hello,
            Command.JOIN: self.join,
            # Return to every other member the head of its own log that this site holds.
            Command.INTRODUCE: lambda round: self.heads.give_back(round, sorted(context.others)),
            Command.BEGIN: self.begin,
            Command.CONCLUDE: self.conclude,
            **self.exchanges.commands(),
        }
        #: What peers may send, and who handles it.
        self._takers = {
            EntryKind.UPLOAD: self.exchanges.receive_upload,
            EntryKind.BROADCAST: self.exchanges.receive_broadcast,
            EntryKind.REQUEST: self.exchanges.receive_request,
            EntryKind.HEAD: self.heads.receive,
        }

    @property
    def models(self) -> Weights:
        models: Weights = self.context.state.models
        return models

    # Called by peers

    def receive(self, peer: str, kind: str, data: bytes) -> bytes:
        """A peer's bytes. An empty answer says nothing, not even why."""
        if self.transport.closed:
            return b""
        try:
            self.gate.pass_on(peer)
            if kind not in self._takers:
                raise Refusal(peer, Reason.PROTOCOL, f"{kind[:20]!r} is no part of this study")
            return self._takers[EntryKind(kind)](peer, data)
        except Refusal as refused:
            self.gate.note(refused)
            return b""

    # Called by the scheduler: before the rounds

    def hello(self) -> dict[str, Any]:
        """How far this site is, and what the scheduler needs to keep the study's rules."""
        store = self.store
        facts = {
            "round": store.round,
            "agreement": self.agreement.digest(),
            "rows": int(self.context.data.train.sizes[0]),
            "wire": list(messages.VERSION),
            "abps": VERSION,
            "finished": bool(store.round and self.context.method.finished(self.context.state)),
        }
        return self.transport.report(facts, "how far we are, and our training rows", store.round + 1)

    def join(self, members: Sequence[str], first: int, rows: Mapping[str, int], wire: Sequence[int]) -> None:
        """Learn who is in this job, with which round it begins, and how many training rows all have.  wire:
        the version of the wire format that the job speaks."""
        if self.name not in members:
            raise RequestError(f"{self.name} is not among the members of this job")
        if not is_round(first) or first > self.agreement.rounds:
            raise RequestError(f"the study has {self.agreement.rounds} rounds; round {first} is none of them")
        self._check_version(wire)
        if self.consent is not None:
            self.consent.members(members)
            self._ask_consent(first)
        self.context.join(members, first, rows)

    def _check_version(self, wire: Sequence[int]) -> None:
        """Hold to the version of the approved proposal, which is the one that this site speaks."""
        agreed = messages.VERSION if self.consent is None else self.consent.proposal.wire
        if not tuple(wire) == tuple(agreed) == messages.VERSION:
            job, asked, here = (".".join(map(str, each)) for each in (wire, agreed, messages.VERSION))
            why = f"the job speaks version {job} of the wire format, the proposal {asked}, this site {here}"
            raise DeclineError(DeclineCode.VERSION, f"{why}; bring all to the same abps")

    def _ask_consent(self, round: int) -> None:
        """Take no part in a round that this site's people do not want any more; nobody is answered then."""
        if self.consent is None:
            return
        try:
            self.consent.round(sum(self.store.sent_bytes().values()))
            self.transport.closed = False
        except DeclineError as declined:
            if not self.transport.closed:
                self.transport.log_decision(str(declined), round)
            self.transport.closed = True
            raise

    # Called by the scheduler: a round

    def begin(self, round: int, live: Sequence[str]) -> None:
        """Start a round with the members that are there."""
        context = self.context
        with context.lock:
            if not is_round(round) or round > self.agreement.rounds:
                raise RequestError(f"the study has {self.agreement.rounds} rounds; {round} is none of them")
            if round <= self.store.round:
                raise RequestError(f"{self.name} is at round {self.store.round}: round {round} is over")
            if round <= self._begun:
                raise RequestError(f"{self.name} has begun round {self._begun}; no round begins twice")
            self._ask_consent(round)
            self.heads.check()
            self._begun = round
            context.round = Round(round, set(context.roster) - set(live) - {self.name})
            for part in (self.gate, self.heads, self.exchanges):
                part.begin()
            if context.method.privacy.budget is not None:
                # Where the budget does not afford the round, nothing more is learned from rows.
                gaps = not_covered(context.method, context.method_context)
                due = releases(context.method, round)
                context.round.resting = not pay(self.store, context.method, due, gaps)

    def conclude(self, round: int, rest: int = Rest.NOT) -> list[Any]:
        """Finish the round: [validation score, bytes sent in the round, whether the method is done].  rest:
        why nothing was exchanged, if the scheduler knows."""
        value = self.finish(round, Rest(rest))
        why = f"our validation {self.context.data.outcome.measure}"
        if not self._scored:
            value, why = math.nan, f"no {why[4:]}: too few patients with or without the event"
        sent = [e for e in self.store.traffic(round) if e.sent and e.kind not in _NOT_COUNTED]
        size = sum(entry.bytes for entry in sent)
        said = [value if math.isfinite(value) else None, size]
        self.transport.report(said, f"{why}; how many bytes we sent in the round", round)
        self.heads.give(round, self.exchanges.coordinator())
        return [value, size, self.context.method.finished(self.context.state)]

    def finish(self, round: int, rest: Rest) -> float:
        """Update the state, and write the round down; the validation score."""
        context, now, method = self.context, self.context.round, self.context.method
        context.need(round, True, "begun")
        after = self.exchanges.close(ask=rest is Rest.NOT and not now.resting)
        world, before = context.method_context, context.state
        state = method.rest(world, before, before, round) if after is None else after
        partners = tuple(peer for peer in context.roster if peer in context.others - now.silent)
        if after is None:
            partners, rest = (), Rest.PRIVACY if now.resting else rest or Rest.UNREACHABLE
        else:
            rest = Rest(int(method.resting(world, state)[0]))
        value = self.score(state, context.data.validation)
        row = RoundRow(round, partners, rest.words, value if math.isfinite(value) else None)
        kept = freeze(state, ("models",)), self.exchanges.applied
        if self.store.finish(row, state.models[0], context.members, *kept):
            context.state = state
            if after is not None and method.finished(state):
                self.store.keep(weights=json.dumps(self._weights(state, round)))
        return value

    def _weights(self, state: Any, round: int) -> dict[str, float]:
        """Where this site's model comes from at the end, by the method's audit trail: the shares of its own
        rows, of cluster peers by name, of all members."""
        context = self.context
        broadcast = Broadcast(NumberList.read(self.exchanges.applied[round])[0])
        found = context.method.decisions(context.method_context, state, broadcast, round)
        if found is None:
            return {}
        rows = zip(found.peer.tolist(), found.decision, found.score.tolist(), found.reason)
        said = {
            context.members[peer] if why == "cluster peer" else str(why): score
            for peer, decision, score, why in rows
            if decision == "weight"
        }
        rest = 1.0 - sum(said.values())  # a site knows its cluster, and not who else is in it
        return {**said, "its cluster": rest} if said and rest > 1e-6 else said

    def score(self, state: Any, rows: Any) -> float:
        """The outcome's main score; at least -1, which is enough to know of an R²."""
        logits = self.context.method.logits(self.context.method_context, state, rows)
        return float(np.maximum(main_score(logits, labels_of(rows))[0], -1.0))

    @functools.cached_property
    def _scored(self) -> bool:
        data = self.context.data
        return may_score(data.validation.y, data.validation.patient, data.outcome, data.min_cell)
