"""One site of a real federation: it trains on its own table and decides for itself whom to work with.

A site never shows its rows. What leaves it is its metadata vector, sixteen-byte messages of the matching
protocol, and the shared layers of its model to the partners of the round, each written to its audit log
before it leaves. Which engine carries the bytes does not matter here: ``send`` is given.

Nothing in here decides otherwise than the simulation: rankings, verdicts, mixing and credit are the same
functions on the site's own row.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.cohorts.prepare import Prepared
from abps.core import protocol, selection, streams
from abps.core.beliefs import Beliefs
from abps.core.errors import RequestError
from abps.core.ledger import CONTROL_MESSAGE
from abps.core.matching import Answer
from abps.core.protocol import Kind, Message, Negotiation, Stage
from abps.core.streams import center_id
from abps.engines.agreement import Agreement
from abps.engines.store import Entry, Evidence, Finished, Store
from abps.learn.metrics import auroc, labels_of
from abps.learn.stacked import StackedLearner
from abps.methods.abps import ABPS
from abps.methods.base import World
from abps.wire import admission
from abps.wire.admission import Limits, Meter, Reason, Refused
from abps.wire.codecs import codec
from abps.wire.frames import pack
from abps.wire.messages import pack_message, pack_vector, unpack_vector

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


@dataclass(frozen=True, eq=False)
class View:
    """What a site thinks of its n peers in one round, before anybody has asked anybody.

    ranking: whom to ask, best first.  consent, score: (n,) whether the goal admits a peer, and its score.
    wanted: whether there was anybody to want at all (a site may have candidates and want none).
    """

    ranking: tuple[str, ...]
    consent: NDArray[np.bool_]
    score: NDArray[np.float64]
    wanted: bool


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
        self.vectors: dict[str, NDArray[np.float64]] = {name: self._own_vector()}
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
        return self.config.selection.kappa if isinstance(self.config, ABPS) else 1

    @property
    def _names(self) -> tuple[str, ...]:
        """The names of the entries that this study publishes."""
        data = self.world.data
        count = self.config.filter.entries(data) if isinstance(self.config, ABPS) else 2
        return data.metadata_names[:count]

    def _own_vector(self) -> NDArray[np.float64]:
        return self.world.data.metadata[0, : len(self._names)]

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
        data = pack_vector(self._own_vector(), round, center_id(self.name))
        why = "metadata vector, so that peers can tell whether we are alike"
        for peer in sorted(self._others):
            with contextlib.suppress(Unreachable):
                self._carry(peer, "vector", data, why, self.patience.repeats, round)

    def begin(self, round: int, live: Sequence[str]) -> None:
        """Start a round: form an opinion of the members that are there."""
        with self._lock:
            if round <= self.store.round:
                raise RequestError(
                    f"{self.name} has finished round {self.store.round}; round {round} is over"
                )
            self.talks = Negotiation(self.name, round, self._kappa)
            self._silent = set(self.roster) - set(live)
            self.trained, self._frame, self.arrived, self._answers = None, None, {}, []
            self.view = self._opinion(round) if isinstance(self.config, ABPS) else None

    def train(self, round: int) -> None:
        """The local epochs of a round."""
        trained = self.learner.train(self.models, round)
        key = int(streams.bits(self.world.seed, "codec", round, self.world.ids)[0])
        sent = (trained[0, : self.shared] - self.base).numpy()
        frame = pack(sent, self.codec, round, center_id(self.name), key)
        with self._lock:
            self.trained, self._frame = trained, frame

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
        if isinstance(self.config, ABPS):
            here = [p for p in partners if p in self.arrived]
            mixed, observed, beliefs = self._together(round, trained, here, self._beliefs(round))
            evidence = self._evidence(beliefs)
        else:
            mixed, observed, evidence = trained.clone(), {}, {}
            if CONDUCTOR in self.arrived and not rest:
                mixed[0, : self.shared] = self.arrived[CONDUCTOR]
        value = self._validation(mixed)
        rest = rest or ("" if partners else self._why_rest())
        done = Finished(round, mixed[0].numpy(), evidence, observed, partners, rest, value)
        if self.store.finish(done):
            self.models = mixed
        return value

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
            raise Refused(peer, Reason.MALFORMED, f"nothing here is called {what[:20]!r}")
        except Refused as refused:
            self._note(refused)
            return b""

    def _receive_vector(self, peer: str, data: bytes) -> None:
        vector = admission.admit_vector(data, peer, self._others, self._names)
        with self._lock:
            known = self.vectors.get(peer)
            if known is not None and not np.array_equal(known, vector):
                raise Refused(peer, Reason.METADATA, "its vector is not the one it sent before in this job")
            self.vectors[peer] = vector
        _, round, _ = unpack_vector(data)
        self._log(peer, "vector", len(data), "its metadata vector", sent=False, round=round)

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

    def _opinion(self, round: int) -> View:
        """Rank the members that published a vector and are there."""
        config = self.config
        assert isinstance(config, ABPS)
        n, me = len(self.roster), self.roster.index(self.name)
        known = [k for k, name in enumerate(self.roster) if name in self.vectors]
        chosen = config.filter
        if chosen.goals and len(chosen.goals) == n:
            chosen = replace(chosen, goals=tuple(chosen.goals[k] for k in known))
        published = np.stack([self.vectors[self.roster[k]] for k in known])
        admitted, alike = chosen.among(chosen.read(published))
        mine = known.index(me)
        candidate, similarity = np.zeros(n, dtype=bool), np.zeros(n)
        candidate[known], similarity[known] = admitted[mine], alike[mine]
        consent = candidate.copy() if chosen.mutual_filter else np.ones(n, dtype=bool)
        belief = self._beliefs(round).posterior(me, np.arange(n))
        score = selection.peer_scores(config.selection, belief, round)
        (ranking,) = selection.rank(
            config.selection,
            score[None],
            belief.count[None],
            candidate[None],
            similarity[None],
            self.world.ids,
            self.world.seed,
            round,
            self.world.horizon,
        )
        return View(tuple(self.roster[k] for k in ranking), consent, score, bool(candidate.any()))

    def _judge(self, proposer: str) -> str:
        config, view = self.config, self.view
        if not isinstance(config, ABPS) or view is None or proposer not in self.vectors:
            return protocol.FILTERED
        k = self.roster.index(proposer)
        answer = selection.verdict(config.selection, bool(view.consent[k]), float(view.score[k]))
        return {Answer.ACCEPTED: "", Answer.FILTERED: protocol.FILTERED}.get(answer, protocol.DECLINED)

    def _beliefs(self, round: int) -> Beliefs:
        """This site's beliefs as they stand in a round: what is stored, faded by the rounds since."""
        config = self.config
        assert isinstance(config, ABPS)
        n, me = len(self.roster), self.roster.index(self.name)
        stored = self.store.beliefs()
        present = [(self.roster.index(peer), e) for peer, e in stored.items() if peer in self.roster]
        present.sort(key=lambda pair: pair[0])
        beliefs = Beliefs(
            n,
            config.selection.prior,
            np.array([me * n + k for k, _ in present], dtype=np.int64),
            np.array([e.gain for _, e in present]),
            np.array([e.loss for _, e in present]),
            np.array([e.count for _, e in present]),
        )
        return beliefs.discount(self._faded(round)) if config.discount < 1 else beliefs

    def _faded(self, round: int) -> float:
        """The share of evidence left when a round begins, one step for every round since the last."""
        assert isinstance(self.config, ABPS)
        return self.config.discount ** (round - self.store.round)

    def _evidence(self, beliefs: Beliefs) -> dict[str, Evidence]:
        """Beliefs as they are stored; those about peers that are not in this job fade alike."""
        share = self._faded(self.talks.round)
        kept = {
            peer: Evidence(e.gain * share, e.loss * share, e.count * share)
            for peer, e in self.store.beliefs().items()
            if peer not in self.roster
        }
        for key, gain, loss, count in zip(beliefs.key, beliefs.gain, beliefs.loss, beliefs.count):
            peer = self.roster[int(key) % len(self.roster)]
            kept[peer] = Evidence(float(gain), float(loss), float(count))
        return kept

    def _together(
        self, round: int, trained: Tensor, partners: list[str], beliefs: Beliefs
    ) -> tuple[Tensor, dict[str, float], Beliefs]:
        """Mix with the partners and judge them: the simulation's code on a federation of these few."""
        config = self.config
        assert isinstance(config, ABPS)
        if not partners:
            return trained.clone(), {}, beliefs
        k = len(partners)
        arrived = torch.zeros(k + 1, self.shared)
        arrived[1:] = torch.stack([self.arrived[p] for p in partners])
        sizes = [float(self.world.data.train.sizes[0]), *(_rows(self.vectors[p]) for p in partners)]
        weights = torch.tensor(sizes) if config.weighting == "size" else torch.ones(k + 1)
        none = np.zeros(0, dtype=np.int64)
        mixed, _, peer, phi = config.together(
            self.world,
            self.models.expand(k + 1, -1),
            trained.expand(k + 1, -1),
            arrived,
            weights,
            [np.arange(1, k + 1), *[none] * k],
            round,
        )
        value = config.credit.value(phi)
        index = np.array([self.roster.index(partners[int(p) - 1]) for p in peer], dtype=np.int64)
        observed = {self.roster[j]: float(v) for j, v in zip(index, value) if np.isfinite(v)}
        return mixed[:1].clone(), observed, beliefs.observe(self.roster.index(self.name), index, value)

    def _validation(self, models: Tensor) -> float:
        rows = self.world.data.validation
        return float(auroc(self.learner.logits(models, rows), labels_of(rows))[0])

    def test_auroc(self) -> float:
        """The current model on this site's own test rows; it stays at the site."""
        rows = self.world.data.test
        return float(auroc(self.learner.logits(self.models, rows), labels_of(rows))[0])

    def _why_rest(self) -> str:
        if not isinstance(self.config, ABPS):
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


def _rows(vector: NDArray[np.float64]) -> float:
    """The number of training rows that a peer's vector tells (its second entry is the logarithm)."""
    return float(np.rint(np.exp(vector[1])))
