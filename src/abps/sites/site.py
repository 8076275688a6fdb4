"""One site of a real federation: it trains on its own table and decides for itself whom to work with.

A site never shows its rows. What leaves it is its metadata vector, sixteen-byte messages of the matching
protocol and of alarms, and the shared layers of its model to the partners of the round, each written to its
audit log before it leaves. Which engine carries the bytes does not matter here: ``send`` is given.

What it thinks and learns is its mind's (:mod:`abps.sites.mind`): rankings, verdicts, mixing and credit are
the simulation's functions on the site's own row.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import protocol, streams
from abps.core.errors import RequestError
from abps.core.ledger import CONTROL_MESSAGE
from abps.core.protocol import Kind, Message, Negotiation, Stage
from abps.core.streams import center_id
from abps.data.prepare import Prepared
from abps.learn.batched import StackedLearner
from abps.learn.metrics import auroc, labels_of
from abps.methods.base import World
from abps.sites.agreement import Agreement
from abps.sites.mind import Lesson, Mind, View, announces, mind
from abps.sites.store import Entry, Finished, Store
from abps.wire import admission
from abps.wire.admission import Limits, Meter, Reason, Refused
from abps.wire.codecs import codec
from abps.wire.frames import pack
from abps.wire.messages import pack_alarm, pack_message, pack_vector, unpack_vector

T = TypeVar("T")

#: The name under which the conductor sends (only FedAvg's average does come from there).
CONDUCTOR = "server"


class Unreachable(Exception):
    """A peer did not answer in time."""


#: Carry bytes to a peer and bring back its answer: (peer, what, data) -> reply, or Unreachable.
Send = Callable[[str, str, bytes], bytes]


@dataclass(frozen=True)
class Patience:
    """How long a site tries: repetitions of an unanswered message, seconds for its whole turn."""

    repeats: int = 2
    turn_seconds: float = 60.0


def _utc() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


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
        stamp: Callable[[], str] = _utc,
    ) -> None:
        self.name = name
        self.agreement = agreement
        self.config = agreement.config()
        self.store = store
        self.limits = limits or Limits()
        self.patience = patience or Patience()
        self._send, self._now, self._stamp = send, now, stamp
        self._lock = threading.RLock()
        self.learner = StackedLearner(data, self.config.training, self.config.training.model, agreement.seed)
        self.world = World(
            self.learner, data, np.array([center_id(name)], dtype=np.uint64), agreement.seed, agreement.rounds
        )
        self.codec = codec(self.config.wire.codec)
        self.shared = self.config.wire.shared(self.world)
        self.base = self.config.wire.base(self.learner.start, self.shared)
        kept = store.model()
        if kept is not None and len(kept) != self.learner.layout.size:
            raise RequestError(
                f"{store.path} holds a model of {len(kept)} weights and this study's has "
                f"{self.learner.layout.size}; give the study a store of its own"
            )
        self.models = self.world.common_start() if kept is None else torch.from_numpy(kept)[None]
        self.roster: tuple[str, ...] = (name,)
        self.mind: Mind | None = mind(name, self.config, self.world, store)
        self.vectors: dict[str, NDArray[np.float64]] = {name: self.mind.vector} if self.mind else {}
        self._meters: dict[str, Meter] = {}
        self._silent: set[str] = set()
        self.talks = self._past(store.round)
        self.view: View | None = None
        self.trained: Tensor | None = None
        self._frame: bytes | None = None
        self.arrived: dict[str, Tensor] = {}
        self._answers: list[str] = []

    @property
    def _kappa(self) -> int:
        return self.mind.kappa if self.mind else 1

    # Called by the conductor

    def hello(self) -> dict[str, Any]:
        """First words to the conductor: how far this site is, and what it needs to keep the study's rules."""
        sent = sum(e.bytes for e in self.store.traffic() if e.sent and e.kind == "weights")
        seen = {r.number: r.validation for r in self.store.rounds()} if self.config.stop.patience else {}
        return {
            "round": self.store.round,
            "agreement": self.agreement.digest(),
            "rows": int(self.world.data.train.sizes[0]),
            "sent": sent,
            "validation": {str(t): value for t, value in seen.items() if value is not None},
        }

    def join(self, members: Sequence[str], first: int) -> None:
        """Learn who is in this job, and with which round it begins."""
        if self.name not in members:
            raise RequestError(f"{self.name} is not among the members of this job")
        with self._lock:
            self.roster = tuple(sorted(members))
            # Others may have gone further than this site: what they ask about is past for it, too.
            self.talks = self._past(first - 1)

    def catch_up(self) -> None:
        """Settle what earlier jobs left in doubt."""
        for past in self.store.in_doubt():
            self._settle(past)

    def introduce(self, round: int) -> None:
        """Publish the metadata vector to every other member, before the first round of a job."""
        data = pack_vector(self.vectors[self.name], round, center_id(self.name))
        more = any(name.startswith(admission.ASSOCIATION) for name in self.mind.names) if self.mind else False
        what = "metadata vector and how our columns go with the outcome" if more else "metadata vector"
        why = f"{what}, so that peers can tell whether we are alike"
        for peer in sorted(self._others):
            with contextlib.suppress(Unreachable):
                self._carry(peer, "vector", data, why, self.patience.repeats, round)

    def announce(self, round: int, live: Sequence[str]) -> int:
        """Tell the members that are there of this site's alarms, as far as they do not know.

        Before a round begins, so that all reckon with them in it. Returns how many messages were answered.
        """
        mine = sorted({alarm.round for alarm in self.store.alarms() if alarm.site == self.name})
        known = self.store.told()
        why = "what peers bring us has changed, so what you believe of us may be out of date"
        told = 0
        for peer in sorted(self._others & set(live)):
            for raised in mine:
                if (raised, peer) in known:
                    continue
                data = pack_alarm(raised, center_id(self.name))
                try:
                    self._carry(peer, "alarm", data, f"alarm of round {raised}: {why}", round=round)
                except Unreachable:
                    break  # it is told when it is there again
                self.store.tell(raised, peer)
                told += 1
        return told

    def begin(self, round: int, live: Sequence[str]) -> None:
        """Start a round with the members that are there."""
        with self._lock:
            if round <= self.store.round:
                raise RequestError(
                    f"{self.name} has finished round {self.store.round}; round {round} is over"
                )
            self.talks = Negotiation(self.name, round, self._kappa)
            self._silent = set(self.roster) - set(live)
            self.trained, self._frame, self.arrived, self._answers = None, None, {}, []
            self.view = None
            if self.mind:
                self.mind.begin(round)

    def train(self, round: int) -> None:
        """The local epochs of a round, and then an opinion of the members."""
        trained = self.learner.train(self.models, round)
        key = int(streams.bits(self.world.seed, "codec", round, self.world.ids)[0])
        sent = (trained[0, : self.shared] - self.base).numpy()
        frame = pack(sent, self.codec, round, center_id(self.name), key)
        view = self.mind.opinion(round, self.roster, self.vectors, trained) if self.mind else None
        with self._lock:
            self.trained, self._frame, self.view = trained, frame, view

    def turn(self, round: int) -> int:
        """Go down the ranking and propose, until kappa partners are found or nobody is left.

        Returns the number of proposals made.
        """
        view = self._need(round, self.view, "an opinion")
        until = self._now() + self.patience.turn_seconds
        made = 0
        while self._now() < until:
            with self._lock:
                asked = [peer for peer in view.ranking if peer not in self._silent]
                peer = protocol.next_candidate(self.talks, asked)
                if peer is None:
                    break
                self.talks, message = protocol.propose(self.talks, peer)
            made += 1
            if not self._try(round, peer, message):
                self._silent.add(peer)
                with self._lock:
                    self.talks, farewell = protocol.give_up(self.talks, peer)
                for message in farewell:
                    self._try(round, peer, message)
            self._answers.append(self.talks.mine[peer].reason or "accepted")
        return made

    def settle(self, round: int) -> int:
        """Take no more proposals, and clear up what is in doubt. Returns the number of partners."""
        with self._lock:
            self.talks, farewells = protocol.seal(self.talks)
            self._promise(self.talks)
        for peer, message in farewells:
            self._try(round, peer, message)
        self._settle(round)
        return len(self.talks.partners)

    def swap(self, round: int) -> int:
        """Exchange weights with the partners that this site proposed to. Returns how many answered."""
        answered = 0
        frame = self._need(round, self._frame, "a trained model")
        proposed = [peer for peer, link in self.talks.mine.items() if link.stage is Stage.MATCHED]
        for peer in sorted(proposed):
            try:
                reply = self._carry(
                    peer, "weights", frame, self._why_weights(round), repeats=self.patience.repeats
                )
                self._accept_weights(peer, reply, round)
                answered += 1
            except Unreachable:
                self._silent.add(peer)
            except Refused as refused:
                self._note(refused)
        return answered

    def finish(self, round: int, rest: str = "") -> float:
        """Mix, give credit, update the beliefs, and write the round down. Returns the validation AUROC.

        rest: why nothing was exchanged (the budget), if so.
        """
        trained = self._need(round, self.trained, "a trained model")
        with self._lock:
            self.talks, _ = protocol.seal(self.talks)
            partners = () if rest else tuple(p for p in self.roster if p in self.talks.partners)
        lesson = self._lesson(round, trained, partners, bool(rest))
        value = self._validation(lesson.mixed)
        rest = rest or ("" if partners else self._why_rest())
        done = Finished(
            round,
            lesson.mixed[0].numpy(),
            lesson.beliefs,
            lesson.observations,
            partners,
            rest,
            value,
            lesson.watch,
            lesson.alarms,
            lesson.reckoned,
            lesson.errors,
        )
        if self.store.finish(done):
            self.models = lesson.mixed
        return value

    def _lesson(self, round: int, trained: Tensor, partners: tuple[str, ...], alone: bool) -> Lesson:
        if self.mind and alone:
            return self.mind.alone(round, self.roster, trained)
        if self.mind:
            arrived = {p: self.arrived[p] for p in partners if p in self.arrived}
            return self.mind.learn(round, self.roster, self.vectors, (self.models, trained), arrived)
        mixed = trained.clone()
        if CONDUCTOR in self.arrived and not alone:
            mixed[0, : self.shared] = self.arrived[CONDUCTOR]
        return Lesson(mixed, {}, {})

    def keep_best(self) -> None:
        """The round just finished is the best so far: keep its model apart."""
        self.store.keep_best()

    def upload(self, round: int) -> bytes:
        """FedAvg: the shared layers for the conductor to average."""
        frame = self._need(round, self._frame, "a trained model")
        self._log(
            CONDUCTOR, "weights", len(frame), f"shared layers of our model, to be averaged in round {round}"
        )
        return frame

    def trunk(self, round: int) -> bytes:
        """FedAvg: the shared layers as the last round left them (all sites have the same)."""
        frame = pack(self.models[0, : self.shared].numpy(), codec("fp32"), round, center_id(self.name))
        self._log(CONDUCTOR, "weights", len(frame), f"the average that round {round} starts from")
        return frame

    def download(self, round: int, data: bytes) -> None:
        """FedAvg: the average comes back."""
        try:
            weights = admission.admit_weights(
                data, CONDUCTOR, (CONDUCTOR,), round, self.codec, self.shared, self.limits
            )
            self.arrived[CONDUCTOR] = torch.from_numpy(weights) + self.base
            self._log(CONDUCTOR, "weights", len(data), f"average of round {round}", sent=False)
        except Refused as refused:
            self._note(refused)

    def report(self, round: int) -> dict[str, float | int]:
        """What the conductor is told of a round: sums, no names."""
        sent = [e for e in self.store.traffic(round) if e.sent]
        weights = sum(e.bytes for e in sent if e.kind == "weights")
        return {
            "weights": weights,
            "control": sum(e.bytes for e in sent) - weights,
            "partners": len(self.talks.partners),
            "in_doubt": len(self.talks.in_doubt),
        }

    # Called by peers

    def receive(self, peer: str, what: str, data: bytes) -> bytes:
        """A peer's bytes. An answer that is empty says nothing, not even why."""
        try:
            self._within_rate(peer)
            if what == "message":
                return self._receive_message(peer, data)
            if what == "weights":
                return self._receive_weights(peer, data)
            if what == "vector":
                self._receive_vector(peer, data)
                return b""
            if what == "alarm":
                self._receive_alarm(peer, data)
                return b""
            raise Refused(peer, Reason.MALFORMED, f"nothing here is called {what[:20]!r}")
        except Refused as refused:
            self._note(refused)
            return b""

    def _receive_vector(self, peer: str, data: bytes) -> None:
        names = self.mind.names if self.mind else ()
        vector = admission.admit_vector(data, peer, self._others, names)
        with self._lock:
            known = self.vectors.get(peer)
            if known is not None and not np.array_equal(known, vector):
                raise Refused(peer, Reason.METADATA, "its vector is not the one it sent before in this job")
            self.vectors[peer] = vector
        _, round, _ = unpack_vector(data)
        self._log(peer, "vector", len(data), "its metadata vector", sent=False, round=round)

    def _receive_alarm(self, peer: str, data: bytes) -> None:
        if not announces(self.config):
            raise Refused(peer, Reason.PROTOCOL, "alarms are no part of this study")
        raised = admission.admit_alarm(data, peer, self._others, self.agreement.rounds)
        why = "its alarm of drift" if self.store.hear(peer, raised) else "its alarm of drift, known already"
        self._log(peer, "alarm", len(data), f"{why} (raised in round {raised})", sent=False)

    def _receive_message(self, peer: str, data: bytes) -> bytes:
        message = admission.admit_message(data, peer, self._others, self.talks.round, self.limits)
        self._log(peer, "message", len(data), _heard(message), sent=False, round=message.round)
        replies = self._handle(peer, message)
        for reply in replies:
            self._log(peer, "message", CONTROL_MESSAGE, _words(reply), round=reply.round)
        return b"".join(pack_message(reply, center_id(self.name)) for reply in replies)

    def _receive_weights(self, peer: str, data: bytes) -> bytes:
        round = self.talks.round
        with self._lock:
            held = self.talks.theirs.get(peer)
            if held is not None and held.stage is Stage.HELD:
                # Who sends its weights has confirmed: only its confirmation was lost.
                self._handle(peer, Message(Kind.CONFIRM, round, held.attempt))
            frame = self._frame
            if frame is None:
                raise Refused(peer, Reason.PROTOCOL, "weights before this site has trained")
        self._accept_weights(peer, data, round)
        self._log(peer, "weights", len(frame), self._why_weights(round))
        return frame

    # Inside

    @property
    def _others(self) -> frozenset[str]:
        return frozenset(self.roster) - {self.name}

    def _need(self, round: int, value: T | None, what: str) -> T:
        if round != self.talks.round or value is None:
            raise RequestError(f"{self.name} has not {what} for round {round}; the conductor is out of step")
        return value

    def _judge(self, proposer: str) -> str:
        return protocol.FILTERED if self.view is None else self.view.answers.get(proposer, protocol.FILTERED)

    def _validation(self, models: Tensor) -> float:
        rows = self.world.data.validation
        return float(auroc(self.learner.logits(models, rows), labels_of(rows))[0])

    def test_auroc(self) -> float:
        """The current model on this site's own test rows; it stays at the site."""
        rows = self.world.data.test
        return float(auroc(self.learner.logits(self.models, rows), labels_of(rows))[0])

    def _why_rest(self) -> str:
        if self.mind is None:
            return ""
        if protocol.DECLINED in self._answers:
            return "declined"
        if {protocol.FULL, protocol.BUSY} & set(self._answers):
            return "all full"
        if protocol.UNREACHABLE in self._answers:
            return "unreachable"
        if self.view is not None and self.view.wanted and not self.view.ranking:
            return "declined"  # it wanted none of its candidates
        return "no candidates"

    def _handle(self, peer: str, message: Message) -> tuple[Message, ...]:
        """Take a message of this round, or of a past one from the record; write promises down first."""
        with self._lock:
            current = message.round == self.talks.round
            before = self.talks if current else self._past(message.round)
            step = protocol.handle(before, peer, message, self._judge)
            if protocol.records(step.state) != protocol.records(before):
                self._promise(step.state)
            if current:
                self.talks = step.state
        if step.event == "violation":
            raise Refused(peer, Reason.PROTOCOL, f"{message.kind} of attempt {message.attempt}")
        return step.replies

    def _past(self, round: int) -> Negotiation:
        return protocol.restore(self.name, round, self._kappa, self.store.promises(round))

    def _promise(self, state: Negotiation) -> None:
        self.store.promise(state.round, protocol.records(state))

    def _settle(self, round: int) -> None:
        """Ask the proposers of what is in doubt, in this round or a past one."""
        for _ in range(1 + self.patience.repeats):
            with self._lock:
                state = self.talks if round == self.talks.round else self._past(round)
                open_ = [(peer, m) for peer, m in protocol.overdue(state) if peer in self._others]
            if not open_:
                return
            for peer, message in open_:
                self._try(round, peer, message)

    def _talk(self, round: int, peer: str, message: Message) -> None:
        """Send a message, and go on talking until there is nothing left to say."""
        waiting = [message]
        while waiting:
            saying = waiting.pop(0)
            data = pack_message(saying, center_id(self.name))
            repeats = self.patience.repeats if saying.kind is Kind.PROPOSE else 0
            reply = self._carry(peer, "message", data, _words(saying), repeats, round)
            for answer in self._answers_in(peer, reply):
                waiting.extend(self._handle(peer, answer))

    def _answers_in(self, peer: str, reply: bytes) -> Iterable[Message]:
        pieces = [reply[at : at + CONTROL_MESSAGE] for at in range(0, len(reply), CONTROL_MESSAGE)]
        for piece in pieces[:4]:
            answer = admission.admit_message(piece, peer, self._others, self.talks.round, self.limits)
            self._log(peer, "message", len(piece), _heard(answer), sent=False, round=answer.round)
            yield answer

    def _try(self, round: int, peer: str, message: Message) -> bool:
        """Say something that may get lost; True if it was not, and what came back was in order."""
        try:
            self._talk(round, peer, message)
        except Unreachable:
            return False
        except Refused as refused:
            self._note(refused)
            return False
        return True

    def _carry(
        self, peer: str, what: str, data: bytes, why: str, repeats: int = 0, round: int | None = None
    ) -> bytes:
        """Write down, send, and bring back the answer; an answer that says nothing is none."""
        for attempt in range(1 + repeats):
            self._log(peer, what, len(data), why if not attempt else f"{why} (repeated)", round=round)
            try:
                reply = self._send(peer, what, data)
            except Unreachable:
                continue
            if reply or not self._expects_answer(what, data):
                return reply
        raise Unreachable(peer)

    @staticmethod
    def _expects_answer(what: str, data: bytes) -> bool:
        return what == "weights" or (what == "message" and data[0] in (1, 2))  # a proposal, an accept

    def _accept_weights(self, peer: str, data: bytes, round: int) -> None:
        weights = admission.admit_weights(
            data, peer, self.talks.partners, round, self.codec, self.shared, self.limits
        )
        with self._lock:
            self.arrived[peer] = torch.from_numpy(weights) + self.base
        self._log(peer, "weights", len(data), f"its shared layers, partner of round {round}", sent=False)

    def _within_rate(self, peer: str) -> None:
        with self._lock:
            now = self._now()
            level = self._meters.get(peer) or admission.meter(self.limits, now)
            self._meters[peer] = level.take(peer, now, self.limits)

    def _note(self, refused: Refused) -> None:
        self.store.refused(refused.peer, str(refused.reason), refused.detail)

    def _log(
        self, peer: str, what: str, size: int, why: str, sent: bool = True, round: int | None = None
    ) -> None:
        number = self.talks.round if round is None else round
        self.store.log(Entry(self._stamp(), number, peer, sent, what, size, why))

    def _why_weights(self, round: int) -> str:
        return f"shared layers of our model, for our partner of round {round}"


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
