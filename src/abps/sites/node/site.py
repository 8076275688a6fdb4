"""One site of a real federation: it trains on its own table and decides for itself whom to work with.

A site never shows its rows. What leaves it is its metadata vector, sixteen-byte messages of the matching
protocol and of alarms, and the shared layers of its model to the partners of the round, each written to its
audit log before it leaves.

Here is what the scheduler (the clock at the relay) may ask of a site, and the table of what peers may bring.
The work is done by its parts, the other modules of this package: they share :mod:`.context`, send through
:mod:`.transport`, and let in what passes :mod:`.gate`.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.core.protocol import Negotiation
from abps.data.prepare import Prepared
from abps.methods.base import Context
from abps.privacy.small_counts import most_patients
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.approval import Consent
from abps.sites.consent.keys import Signer
from abps.sites.node.context import Round, SiteContext, counts, may_score
from abps.sites.node.exchanges import Exchanges
from abps.sites.node.gate import Gate
from abps.sites.node.learning import Learning, finite
from abps.sites.node.masked_sums import MaskedSums
from abps.sites.node.negotiation import PairNegotiation
from abps.sites.node.publishing import Publishing
from abps.sites.node.star_client import StarClient
from abps.sites.node.transport import OPERATOR, RELAY, AuditedTransport, Patience, Send, utc
from abps.sites.node.weight_exchange import WeightExchange
from abps.sites.node.witnessing import Witnessing
from abps.sites.protocol.decline_codes import DeclineCode, DeclineError
from abps.sites.store.rows import Entry
from abps.sites.store.store import Store
from abps.wire import versions
from abps.wire.admission import Limits, Reason, Refusal
from abps.wire.frames import frame_size

#: Kinds of what leaves that are no part of the method's own talk: the ledger does not count them as control.
_NOT_CONTROL = ("weights", "head", "told", "place", "address")


class Site:
    """A site's part in a job. Its methods are called by the conductor (the clock) and by peers."""

    def __init__(
        self,
        name: str,
        agreement: Agreement,
        data: Prepared,
        store: Store,
        send: Send,
        limits: Limits | None = None,
        patience: Patience | None = None,
        now: Callable[[], float] = time.monotonic,
        stamp: Callable[[], str] = utc,
        another_table: bool = False,
        consent: Consent | None = None,
        secret: int = 0,
        signer: Signer | None = None,
        job: str = "",
        ahead: bool = False,
        address: str = "",
    ) -> None:
        """another_table: the rows may be others than those of the study's earlier jobs.

        consent: asked before a job and before each of its rounds; none: a trial, in which nobody is asked.
        secret: a number that nobody else knows, for draws that hide rows; 0: they follow from the seed.
        signer: the key that stands for the site's log; none: a trial, whose log nobody stands for.
        job: its name, the same at all sites.
        ahead: train for the next round while the others are still busy with this one.
        address: where peers can reach this site directly, if they can.
        """
        self._ahead = ahead
        self._lost = False  # whether the loss of a trial was told
        self.name, self.agreement, self.store, self.consent = name, agreement, store, consent
        site_context = SiteContext(
            name, agreement, data, store, limits or Limits(), job, another_table, secret
        )
        post = AuditedTransport(site_context, send, patience or Patience(), now, stamp)
        gate = Gate(site_context, now)
        self.site_context, self.post, self.gate = site_context, post, gate
        site_context.address = address
        self.witnessing = Witnessing(site_context, post, gate)
        self.negotiating = PairNegotiation(site_context, post, gate, self.witnessing)
        self.swapping = WeightExchange(site_context, post, gate, self.negotiating, signer)
        self.roll_calls = Exchanges(site_context, post, gate)
        self.telling = Publishing(site_context, post, signer)
        self.server = StarClient(site_context, post, gate)
        authority = None if consent is None else consent.authority
        self.sums = MaskedSums(site_context, post, self.telling, signer, authority)
        self.learning = Learning(site_context, self.server, self.sums)
        self._begun = store.round
        #: What peers may bring, and who takes it in.
        self._takers: dict[str, Callable[[str, bytes], bytes]] = {
            "message": self.negotiating.receive,
            "request": self.negotiating.receive_request,
            "weights": self.swapping.receive,
            "place": self.witnessing.receive,
            "vector": self.telling.receive_vector,
            "alarm": self.telling.receive_alarm,
            "head": self.telling.receive_head,
            "address": self.telling.receive_address,
            "answer": self.roll_calls.receive_answer,
            "notice": self.roll_calls.receive_notice,
        }

    @property
    def models(self) -> Weights:
        """(1, P) the model."""
        models: Weights = self.site_context.state.models
        return models

    @property
    def trained(self) -> Weights | None:
        """(1, P) the model after the local epochs of this round."""
        trained = self.site_context.round.trained
        return None if trained is None else trained.models

    @property
    def state(self) -> Any:
        """What the method remembers here."""
        return self.site_context.state

    @property
    def context(self) -> Context:
        """The world as this site sees it."""
        return self.site_context.context

    @property
    def talks(self) -> Negotiation:
        """Who is whose partner in this round, as far as this site knows."""
        return self.site_context.round.talks

    # Called by peers

    def receive(self, peer: str, what: str, data: bytes) -> bytes:
        """A peer's bytes. An answer that is empty says nothing, not even why."""
        if self.post.shut:
            return b""
        try:
            self.gate.pass_on(peer)
            if what not in self._takers:
                raise Refusal(peer, Reason.MALFORMED, f"nothing here is called {what[:20]!r}")
            return self._takers[what](peer, data)
        except Refusal as refused:
            self.gate.note(refused)
            return b""

    # Called by the conductor: before the rounds

    def hello(self) -> dict[str, Any]:
        """First words to the conductor: how far this site is, and what it needs to keep the study's rules."""
        store = self.store
        asked = self.site_context.method.stop.patience and self._scored
        seen = {r.number: r.validation for r in store.rounds()} if asked else {}
        facts = {
            "round": store.round,
            "agreement": self.agreement.digest(),
            "rows": int(self.site_context.data.train.sizes[0]),
            "edges": self._edges_so_far(),
            "validation": {str(t): value for t, value in seen.items() if value is not None},
            "wire": list(versions.NEWEST),
        }
        return self.post.tell(facts, "how far we are, our training rows, and sums of bytes", store.round + 1)

    def join(
        self,
        members: Sequence[str],
        first: int,
        rows: Mapping[str, int] | None = None,
        wire: Sequence[int] = versions.OLDEST,
    ) -> None:
        """Learn who is in this job, with which round it begins, and how many training rows all have.

        wire: the version of the wire format that all of them speak.

        Who was a member in an earlier job stays one: what is remembered of it is not forgotten.
        """
        if self.name not in members:
            raise RequestError(f"{self.name} is not among the members of this job")
        if not counts(first) or first > self.agreement.rounds:
            raise RequestError(
                f"the study has {self.agreement.rounds} rounds; a job cannot begin with round {first}"
            )
        if self.consent is not None:
            self.consent.members(members)
            self._ask_consent(first)
        self._understands(wire)
        self.site_context.speak(wire)
        with self.site_context.lock:
            self.site_context.join(members, first, rows or {})
            if first == 1 and all(entry.kind != "statistics" for entry in self.store.traffic(1)):
                self._log_statistics()

    def _log_statistics(self) -> None:
        """Write down what was passed on with the codebook, before this site knew of the study."""
        took = self.agreement.book.statistics_source
        outcome = self.agreement.book.outcome
        common = self.site_context.method.training.standardise == "common"
        if (common or outcome.grid or outcome.scale) and took is not None and self.name in took.spent:
            why = "counts, means and groups of our numeric columns in our codebook, and the common scales"
            why += "" if outcome.binary else "; the same of the outcome"
            self.post.log(OPERATOR, "statistics", took.spent[self.name], why, round=1)

    def _understands(self, wire: Sequence[int]) -> None:
        """Take no part in a job whose version this site does not know, or does not want to speak any more."""
        version = (int(wire[0]), int(wire[1]))
        least = 0 if self.consent is None else self.consent.policy.wire
        if not versions.fits(version) or version > versions.NEWEST or version[1] < least:
            raise DeclineError(
                DeclineCode.VERSION,
                f"the job speaks version {version[0]}.{version[1]} of the wire format; this site speaks "
                f"{versions.NEWEST[0]}.{least} to {versions.NEWEST[0]}.{versions.NEWEST[1]}",
            )

    def catch_up(self) -> None:
        """Settle what earlier jobs left in doubt."""
        self.negotiating.catch_up()

    def introduce(
        self, round: int, to: Sequence[str] | None = None, rows: Mapping[str, int] | None = None
    ) -> None:
        """Publish the metadata vector to the other members, or to those that have come since."""
        self.telling.introduce(round, to, rows)

    def announce(self, round: int, live: Sequence[str]) -> int:
        """Tell the members that are there of this site's alarms. Returns how many messages were answered."""
        return self.telling.announce(round, live)

    def loss(self) -> float:
        """The mean loss on this site's validation rows, by which a penalty is chosen: four bytes, once in a
        trial, and of enough patients."""
        if not self.agreement.trying or self._lost:
            raise RequestError("a loss is told once, in a trial of a penalty; this is none")
        self._lost = True
        rows = self.site_context.data.validation
        judged = most_patients(np.ones(len(rows.y), bool), np.zeros(len(rows.y), int), rows.patient, 1)
        value = self.learning.loss() if judged >= self.site_context.data.min_cell else math.nan
        why = "our mean validation loss, to choose a penalty"
        self.post.log(RELAY, "told", 4, why, round=self.store.round)
        self.store.sync()
        return value

    def decided(self, what: str, round: int | None = None) -> None:
        """Write down what people of this site decided about the study."""
        self.telling.decided(what, round)

    def _ask_consent(self, round: int) -> None:
        """Take no part in a round that this site's people do not want any more; nobody is answered then."""
        if self.consent is None:
            return
        try:
            self.consent.round(sum(self.store.sent_bytes().values()))
            self.post.shut = False
        except DeclineError as declined:
            if not self.post.shut:
                self.decided(str(declined), round)
            self.post.shut = True
            raise

    # The round

    def begin(self, round: int, live: Sequence[str]) -> None:
        """Start a round with the members that are there."""
        site_context = self.site_context
        with site_context.lock:
            if not counts(round) or round > self.agreement.rounds:
                raise RequestError(f"the study has {self.agreement.rounds} rounds; {round} is none of them")
            if round <= self.store.round:
                raise RequestError(
                    f"{self.name} has finished round {self.store.round}; round {round} is over"
                )
            if round <= self._begun:
                raise RequestError(f"{self.name} has begun round {self._begun}; no round begins twice")
            self._ask_consent(round)
            self.telling.check_log()
            self._begun = round
            site_context.round = Round(
                Negotiation(self.name, round, site_context.capacity),
                set(site_context.roster) - set(live),
                tuple(alarm for alarm in self.store.alarms() if alarm.reckoned is None),
            )
            for part in (self.gate, self.witnessing, self.swapping, self.roll_calls, self.server, self.sums):
                part.begin()
            purse = site_context.purse
            site_context.round.resting = purse is not None and not purse.pays(site_context.context, round)

    def reply(self, round: int, question: int, attempt: int = 0) -> bool:
        """Answer a question of a roll call to the board; False if this site cannot."""
        return self.roll_calls.reply(round, question, attempt)

    def preside(self, round: int, question: int) -> int:
        """Be the board of a roll call. Returns how many answered."""
        return self.roll_calls.preside(round, question)

    def train(self, round: int, alone: bool = False, live: Sequence[str] | None = None) -> None:
        """The local epochs of a round, and then an opinion of the members.

        alone: nothing will be exchanged any more.  live: the members that are there, if the round is to begin
        with this (else it has begun).
        """
        if live is not None:
            self.begin(round, live)
        self.learning.train(round, alone)

    def turn(self, round: int, gone: Sequence[str] = ()) -> int:
        """Propose to peers, until kappa partners are found or nobody is left. Returns how many proposals."""
        return self.negotiating.turn(round, gone)

    def settle(self, round: int, gone: Sequence[str] = ()) -> int:
        """Take no more proposals, and clear up what is in doubt. Returns the number of peers in touch."""
        self.lost(gone)
        return self.negotiating.settle(round)

    def lost(self, gone: Sequence[str]) -> None:
        """Who is gone while this site works: nobody waits for them."""
        with self.site_context.lock:
            self.site_context.round.silent |= set(gone) - {self.name}
            self.site_context.lock.notify_all()

    def swap(self, round: int) -> int:
        """Exchange weights with peers. Returns how many were reached."""
        return self.swapping.swap(round)

    def finish(self, round: int, rest: str = "") -> float:
        """Mix, give credit, update the beliefs, and write the round down. Returns the validation AUROC.

        rest: why nothing was exchanged (the budget), if so.
        """
        value = self.learning.finish(round, rest)
        measure = self.site_context.data.outcome.measure
        if not self._scored:
            self.post.tell(None, f"no validation {measure}, of which too few patients have a part", round)
            return math.nan
        self.post.tell(finite(value), f"our validation {measure}", round)
        return value

    @functools.cached_property
    def _scored(self) -> bool:
        """Whether enough patients are in a score of the validation rows that it may be told."""
        data = self.site_context.data
        return may_score(data.validation.y, data.validation.patient, data.outcome, data.min_cell)

    def conclude(self, round: int, rest: str = "") -> list[Any]:
        """Finish the round, and tell the validation AUROC and the sums of the round."""
        with self.store.together():
            told = [self.finish(round, rest), self.report(round)]
            self.telling.close_log(round)
        if self._ahead and not self.post.shut:
            self.learning.look_ahead(round + 1)
        return told

    def exchange(self, round: int, gone: Sequence[str] = ()) -> list[Any]:
        """All that follows the turns, in one go: settle, swap, wait for what partners bring, and conclude.

        Returns the number of peers in touch, and what ``conclude`` tells.
        """
        with self.store.together():
            touching = self.settle(round, gone)
            self.swap(round)
            self.swapping.wait()
            return [touching, *self.conclude(round)]

    def keep_best(self) -> None:
        """The round just finished is the best so far: keep its model apart."""
        self.store.keep_best()

    def test_auroc(self) -> float:
        """The current model on this site's own test rows; it stays at the site."""
        return self.learning.score(self.state, self.site_context.data.test)

    # Sums of a round, of a study with or without a server

    def report(self, round: int) -> dict[str, int]:
        """What the conductor is told of a round: sums, no names."""
        entries = self.store.traffic(round)
        weights = [e.bytes for e in entries if e.kind == "weights" and (e.sent or e.peer == RELAY)]
        sums = {
            "edges": self._edges(entries),
            "directed": sum(weights),
            "control": sum(
                e.bytes for e in entries if e.kind == "mask" or (e.sent and e.kind not in _NOT_CONTROL)
            ),
            "partners": len(self.learning.received()),
            "in_doubt": len(self.talks.in_doubt),
        }
        return self.post.tell(sums, "sums of the round: bytes, partners, matches in doubt", round)

    def _edges_so_far(self) -> int:
        """The same of all rounds that are written down."""
        if not self.site_context.by_peers:
            return max(2 * self.store.sent_bytes().get("weights", 0), self.store.weight_bytes())
        return self.store.links() * frame_size(self.site_context.codec, self.site_context.shared)

    def _edges(self, entries: Sequence[Entry]) -> int:
        """Bytes of this site's ends of edges: a payload per peer and round; with a server, both ways."""
        weights = [e for e in entries if e.kind == "weights"]
        if not self.site_context.by_peers:
            return max(2 * sum(e.bytes for e in weights if e.sent), sum(e.bytes for e in weights))
        edges = {(e.round, e.peer) for e in weights}
        return len(edges) * frame_size(self.site_context.codec, self.site_context.shared)

    # A study with a server

    def upload(self, round: int) -> list[bytes]:
        """What this site sends to the server, once in a round."""
        return self.server.upload(round)

    def download(self, round: int, frames: list[bytes]) -> None:
        """What the server sends back."""
        self.server.download(round, frames)

    def taken_in(self, round: int) -> int:
        """The round of the server's last answer that this site has, where it has to be asked in step."""
        return self.server.taken_in(round)

    def sum_introduce(self) -> list[bytes]:
        """This site's key for masked sums."""
        return self.sums.introduce()

    def sum_meet(self, introductions: Mapping[str, Sequence[bytes]]) -> None:
        """Everybody's keys for masked sums."""
        self.sums.meet(introductions)

    def sum_keys(self, round: int, names: Sequence[str]) -> list[bytes]:
        """Step 1 of a masked sum."""
        return self.sums.keys(round, names)

    def sum_shares(self, round: int, keys: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Step 2 of a masked sum."""
        return self.sums.shares(round, keys)

    def sum_masked(self, round: int, sealed: Mapping[str, bytes]) -> bytes:
        """Step 3 of a masked sum."""
        return self.sums.masked(round, sealed)

    def sum_present(self, round: int, names: Sequence[str]) -> bytes:
        """Step 4 of a masked sum."""
        return self.sums.present(round, names)

    def sum_open(self, round: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5 of a masked sum."""
        return self.sums.open(round, names, signatures)
