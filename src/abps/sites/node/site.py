"""One site of a real federation: it trains on its own table and decides for itself with whom to work.

A site never sends its rows. Everything that leaves it is written to its audit log first. Here are the table
of what the scheduler (the clock at the relay) may ask of a site, and the table of what peers may send. The
work is done by the other modules of this package: they share :mod:`.context`, send through
:mod:`.transport`, and accept what passes :mod:`.gate`.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.core.protocol import Negotiation
from abps.data.prepare import Prepared
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.approval import Consent
from abps.sites.consent.keys import Signer
from abps.sites.node.context import Round, SiteContext, is_round, may_score
from abps.sites.node.exchanges import Exchanges
from abps.sites.node.gate import Gate
from abps.sites.node.learning import Learning
from abps.sites.node.masked_sums import MaskedSums
from abps.sites.node.negotiation import PairNegotiation
from abps.sites.node.publishing import Publishing
from abps.sites.node.star_client import StarClient
from abps.sites.node.transport import OPERATOR, RELAY, AuditedTransport, Retries, Send, utc
from abps.sites.node.weight_exchange import WeightExchange
from abps.sites.protocol.commands import Command
from abps.sites.protocol.decline_codes import DeclineCode, DeclineError
from abps.sites.store.rows import EntryKind, LogEntry
from abps.sites.store.store import Store
from abps.wire import versions
from abps.wire.admission import Limits, Reason, Refusal
from abps.wire.frames import frame_size

#: Kinds of what leaves that are no part of the method itself: the ledger does not count them as control.
_NOT_CONTROL = (EntryKind.WEIGHTS, EntryKind.HEAD, EntryKind.REPORT)


class Site:
    """A site's part in a job."""

    def __init__(
        self,
        name: str,
        agreement: Agreement,
        data: Prepared,
        store: Store,
        send: Send,
        limits: Limits | None = None,
        retries: Retries | None = None,
        now: Callable[[], float] = time.monotonic,
        stamp: Callable[[], str] = utc,
        another_table: bool = False,
        consent: Consent | None = None,
        secret: int = 0,
        signer: Signer | None = None,
        job: str = "",
    ) -> None:
        """another_table: the rows may be others than those of the study's earlier jobs.

        consent: asked before a job and before each of its rounds; none: nobody is asked (a rehearsal).
        secret: a number that nobody else knows, for draws that hide rows; 0: they follow from the seed.
        signer: the key that signs the site's log; none: a rehearsal.
        job: its name, the same at all sites.
        """
        self.name, self.agreement, self.store, self.consent = name, agreement, store, consent
        self.context = SiteContext(
            name, agreement, data, store, limits or Limits(), job, another_table, secret
        )
        context = self.context
        self.transport = AuditedTransport(context, send, retries or Retries(), now, stamp)
        transport, self.gate = self.transport, Gate(self.context, now)
        self.negotiation = PairNegotiation(context, transport, self.gate)
        self.publishing = Publishing(context, transport, signer)
        self.weights = WeightExchange(context, transport, self.gate, self.negotiation, self.publishing)
        self.star = StarClient(context, transport, self.gate)
        self.sums = MaskedSums(context, transport, signer, None if consent is None else consent.authority)
        self.exchanges = Exchanges(context, transport, self.gate, self.sums)
        self.learning = Learning(context, self.star, self.sums, self.exchanges)
        self._begun = store.round
        #: What the scheduler may ask for.
        self.commands: dict[Command, Callable[..., Any]] = {
            Command.HELLO: self.hello,
            Command.JOIN: self.join,
            Command.CATCH_UP: self.negotiation.catch_up,
            Command.INTRODUCE: self.publishing.introduce,
            Command.BEGIN: self.begin,
            Command.TRAIN: self.train,
            Command.PROPOSE: self.negotiation.propose,
            Command.SETTLE: self.negotiation.settle,
            Command.EXCHANGE: self.weights.exchange,
            Command.CONTRIBUTE: self.exchanges.contribute,
            Command.COORDINATE: self.exchanges.coordinate,
            Command.UPLOAD: self.star.upload,
            Command.DOWNLOAD: self.star.download,
            Command.LAST_ANSWER: self.star.last_answer,
            Command.CONCLUDE: self.conclude,
            Command.KEEP_BEST: store.keep_best,
            **self.sums.commands(),
        }
        #: What peers may send, and who handles it, by how the method links sites.
        takers: dict[str, dict[EntryKind, Callable[[str, bytes], bytes]]] = {
            "mutual": {
                EntryKind.MESSAGE: self.negotiation.receive,
                EntryKind.WEIGHTS: self.weights.receive,
            },
            "coordinated": {
                EntryKind.UPLOAD: self.exchanges.receive_upload,
                EntryKind.BROADCAST: self.exchanges.receive_broadcast,
                EntryKind.REQUEST: self.exchanges.receive_request,
            },
        }
        self._takers = {
            **takers.get(self.context.method.kind, {}),
            EntryKind.VECTOR: self.publishing.receive_vector,
            EntryKind.HEAD: self.publishing.receive_head,
        }

    @property
    def models(self) -> Weights:
        """(1, P) the model."""
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
        asked = self.context.method.stop.patience and self._scored
        seen = {r.number: r.validation for r in store.rounds()} if asked else {}
        facts = {
            "round": store.round,
            "agreement": self.agreement.digest(),
            "rows": int(self.context.data.train.sizes[0]),
            "validation": {str(t): value for t, value in seen.items() if value is not None},
            "wire": list(versions.VERSION),
            "finished": bool(store.round and self.context.method.finished(self.context.state)),
        }
        return self.transport.report(facts, "how far we are, and our training rows", store.round + 1)

    def join(self, members: Sequence[str], first: int, rows: Mapping[str, int], wire: Sequence[int]) -> None:
        """Learn who is in this job, with which round it begins, and how many training rows all have.

        wire: the version of the wire format that the job speaks. A member of an earlier job stays one.
        """
        if self.name not in members:
            raise RequestError(f"{self.name} is not among the members of this job")
        if not is_round(first) or first > self.agreement.rounds:
            raise RequestError(
                f"the study has {self.agreement.rounds} rounds; a job cannot begin with round {first}"
            )
        self._check_version(wire)
        if self.consent is not None:
            self.consent.members(members)
            self._ask_consent(first)
        with self.context.lock:
            self.context.join(members, first, rows)
            if first == 1 and all(e.kind is not EntryKind.STATISTICS for e in self.store.traffic(1)):
                self._log_statistics()

    def _check_version(self, wire: Sequence[int]) -> None:
        """Hold to the version of the approved proposal, which is the one that this site speaks."""
        agreed = versions.VERSION if self.consent is None else self.consent.proposal.wire
        if not tuple(wire) == tuple(agreed) == versions.VERSION:
            job, here = (".".join(map(str, each)) for each in (wire, versions.VERSION))
            raise DeclineError(
                DeclineCode.VERSION,
                f"the job speaks version {job} of the wire format, the proposal "
                f"{'.'.join(map(str, agreed))}, and this site {here}; bring all to the same abps",
            )

    def _log_statistics(self) -> None:
        """Write down what was passed on with the codebook, before this site knew of the study."""
        took = self.agreement.book.statistics_source
        outcome = self.agreement.book.outcome
        common = self.context.method.training.standardise == "common"
        if (common or outcome.grid or outcome.scale) and took is not None and self.name in took.spent:
            why = "counts, means and groups of our numeric columns in our codebook, and the common scales"
            why += "" if outcome.binary else "; the same of the outcome"
            self.transport.log(OPERATOR, EntryKind.STATISTICS, took.spent[self.name], why, round=1)

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
                raise RequestError(
                    f"{self.name} has finished round {self.store.round}; round {round} is over"
                )
            if round <= self._begun:
                raise RequestError(f"{self.name} has begun round {self._begun}; no round begins twice")
            self._ask_consent(round)
            self.publishing.check_log()
            self._begun = round
            absent = set(context.roster) - set(live) - {self.name}
            context.round = Round(Negotiation(self.name, round, context.capacity), absent)
            for part in (self.gate, self.weights, self.exchanges, self.star, self.sums):
                part.begin()
            budget = context.budget
            context.round.resting = budget is not None and not budget.pays(context.method_context, round)

    def train(self, round: int, live: Sequence[str]) -> None:
        """Begin a round with the members that are there, and run its local epochs."""
        self.begin(round, live)
        self.learning.train(round)

    def conclude(self, round: int, rest: int = Rest.NOT) -> list[Any]:
        """Finish the round: [validation score, sums of the round, whether the method is done].

        rest: why nothing was exchanged, if the scheduler knows.
        """
        with self.store.together():
            value = self.learning.finish(round, Rest(rest))
            measure = self.context.data.outcome.measure
            if self._scored:
                finite = value if math.isfinite(value) else None
                self.transport.report(finite, f"our validation {measure}", round)
            else:
                value = math.nan
                why = f"no validation {measure}: too few patients with or without the event"
                self.transport.report(None, why, round)
            done = self.context.method.finished(self.context.state)
            result = [value, self._sums_of(round), done]
            self.publishing.sign_log(round)
        return result

    @functools.cached_property
    def _scored(self) -> bool:
        """Whether enough patients are behind a score of the validation rows that it may leave."""
        data = self.context.data
        return may_score(data.validation.y, data.validation.patient, data.outcome, data.min_cell)

    def _sums_of(self, round: int) -> dict[str, int]:
        """What the scheduler gets of a round: sums, no names."""
        entries = self.store.traffic(round)
        weights = [e.bytes for e in entries if e.kind is EntryKind.WEIGHTS and (e.sent or e.peer == RELAY)]
        control = (
            e.bytes for e in entries if e.kind is EntryKind.MASK or (e.sent and e.kind not in _NOT_CONTROL)
        )
        sums = {
            "edges": self._edges(entries),
            "directed": sum(weights),
            "control": sum(control),
            "partners": len(self.learning.received()),
            "in_doubt": len(self.context.round.talks.in_doubt),
        }
        return self.transport.report(sums, "sums of the round: bytes, partners, matches in doubt", round)

    def _edges(self, entries: Sequence[LogEntry]) -> int:
        """Bytes of this site's ends of edges: a payload per peer and round; with a server, both ways."""
        weights = [e for e in entries if e.kind is EntryKind.WEIGHTS]
        if not self.context.pairs:
            return max(2 * sum(e.bytes for e in weights if e.sent), sum(e.bytes for e in weights))
        edges = {(e.round, e.peer) for e in weights}
        return len(edges) * frame_size(self.context.codec, self.context.shared)
