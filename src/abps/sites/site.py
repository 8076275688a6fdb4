"""One site of a real federation: it trains on its own table and decides for itself whom to work with.

A site never shows its rows. What leaves it is its metadata vector, sixteen-byte messages of the matching
protocol and of alarms, and the shared layers of its model to the partners of the round, each written to its
audit log before it leaves. Which engine carries the bytes does not matter here: ``send`` is given.

What it thinks and learns is the method's: the functions that the simulation runs for all centers, here for
the one center that has its rows in this place.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from abps.core import protocol, streams
from abps.core.errors import RequestError
from abps.core.ledger import CONTROL_MESSAGE
from abps.core.matching import Answer, Rest
from abps.core.plausibility import distances, plausible
from abps.core.protocol import Kind, Message, Negotiation, Stage
from abps.core.streams import center_id, center_ids
from abps.data.prepare import Prepared
from abps.learn.batched import StackedLearner
from abps.learn.metrics import labels_of, log_loss
from abps.learn.outcome_scores import main_score
from abps.methods.base import ROWS, Alarm, Ints, World, grounded
from abps.methods.memory import freeze, thaw
from abps.methods.peers import Heard, Learned, Notice, Opinion, PeerMethod, boards
from abps.methods.star import StarMethod, summands
from abps.sites import audit
from abps.sites.agreement import Agreement
from abps.sites.chain import canonical
from abps.sites.consent import Consent
from abps.sites.excuses import Declined, Excuse
from abps.sites.signing import Signer
from abps.sites.spent import Purse
from abps.sites.store import AlarmRow, Entry, Evidence, Finished, Head, Store
from abps.sites.witness import ENOUGH, Places, witnesses
from abps.wire import admission, versions
from abps.wire.admission import Limits, Meter, Reason, Refused
from abps.wire.codecs import codec
from abps.wire.frames import frame_size, pack, unpack
from abps.wire.messages import (
    pack_alarm,
    pack_answer,
    pack_head,
    pack_message,
    pack_note,
    pack_notice,
    pack_place,
    pack_request,
    pack_vector,
    unpack_vector,
)
from abps.wire.numerals import Form, NumeralError, Numerals

if TYPE_CHECKING:
    from abps.sites.masking import Masking

T = TypeVar("T")

#: The name under which the conductor sends (only what a star's server has to say does come from there).
CONDUCTOR = "server"

#: Who merges the codebooks.
OPERATOR = "operator"

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

#: Refusals that no honest site gives cause for: after some of them a peer is not heard any more.
_HOSTILE = frozenset(Reason) - {
    Reason.STRANGER, Reason.NOT_PARTNER, Reason.ROUND, Reason.RATE, Reason.QUARANTINE,
    Reason.PLACE,
}  # fmt: skip

#: The first version of the wire format in which weights bring the head of the sender's log.
WITH_HEADS = (1, 1)

#: The first in which weights leave only if the partner's witness says that it has a place.
WITH_WITNESSES = (1, 2)

#: Kinds of what leaves that are no part of the method's own talk: the ledger does not count them as control.
_NOT_CONTROL = ("weights", "head", "told", "place")

#: How many earlier rounds in doubt a site clears up when a job begins, the latest first.
_CATCH_UP = 10

#: In how many rounds of a job a peer may be accepted and not confirm, before it is not accepted any more.
_UNCONFIRMED = 2

#: How many members are tried as the board of a roll call.
BOARDS = 2


class Unreachable(Exception):
    """A peer did not answer in time."""


#: Carry bytes to a peer and bring back its answer: (peer, what, data) -> reply, or Unreachable.
Send = Callable[[str, str, bytes], bytes]


@dataclass(frozen=True)
class Patience:
    """How long a site tries: repetitions of an unanswered message, seconds for its whole turn, and for the
    weights of partners."""

    repeats: int = 2
    turn_seconds: float = 60.0
    swap_seconds: float = 30.0


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
        another_table: bool = False,
        consent: Consent | None = None,
        secret: int = 0,
        signer: Signer | None = None,
        job: str = "",
    ) -> None:
        """another_table: the rows may be others than those of the study's earlier jobs.

        consent: asked before a job and before each of its rounds; none: a trial, in which nobody is asked.
        secret: a number that nobody else knows, for draws that hide rows; 0: they follow from the seed.
        signer: the key that stands for the site's log; none: a trial, whose log nobody stands for.
        job: its name, the same at all sites.
        """
        self._secret = secret
        self.name = name
        self.agreement = agreement
        self.method = agreement.config()
        self.store = store
        self.limits = limits or Limits()
        self.patience = patience or Patience()
        self._send, self._now, self._stamp = send, now, stamp
        self._lock = threading.RLock()
        self._came = threading.Condition(self._lock)  # weights have come, or somebody is lost
        self.consent = consent
        self._out = False  # whether consent was missing when a round should begin
        self.signer, self.job = signer, job
        self._contradicted = False  # whether a partner knows another log of this site
        self._digest = agreement.digest()
        self._speak(versions.OLDEST)
        self._masking: Masking | None = None
        if self.method.kind == "star" and self.method.privacy.secure:
            from abps.sites.masking import Masking  # needs the extra that sites have

            authority = None if consent is None else consent.authority
            self._masking = Masking(name, masking_context(self._digest, job), signer, authority)
        self.data = data
        store.put_aside()
        store.keep_table(_fingerprint(data), another_table)
        training = self.method.training
        self.learner = StackedLearner(data, training, training.factory, agreement.seed, secret=secret)
        self.codec = codec(self.method.line.codec)
        self.shared = self.learner.layout.shared(self.method.line.private_layers)
        self.base = self.method.line.base(self.learner.start, self.shared)
        self.roster: tuple[str, ...] = (name,)
        self._rows: dict[str, int] = {}
        alone = self._world((name,))
        self.published = self.method.publish(alone)
        self.purse = None if self.method.privacy.budget is None else Purse(store, self.method)
        told = self.published.vectors[0]
        if self.purse is not None and self.published.names:
            told = self.purse.published(alone, self.published)
        self.vectors: dict[str, NDArray[np.float64]] = {name: told}
        self.members, self.state = self._kept()
        self._grounded: World | None = None
        self._meters: dict[str, Meter] = {}
        self._silent: set[str] = set()
        self._hostile: dict[str, int] = {}
        self._unconfirmed: dict[str, set[int]] = {}  # by peer: rounds in which it was accepted in vain
        self._denied: dict[str, set[str]] = {}  # by peer: witnesses by whom it had no place for this site
        self._begun = store.round
        self.talks = self._past(store.round)
        self._forget()

    def _forget(self) -> None:
        """What belongs to one round: the state it begins with, what came of training, what was heard."""
        self._news: tuple[AlarmRow, ...] = ()
        self._trained: Any = None
        self._frames: list[bytes] = []
        self.opinion: Opinion | None = None
        self.arrived: dict[str, Tensor] = {}
        self._notes: dict[str, float] = {}
        self._down: tuple[Tensor, ...] = ()
        self._asked: list[str] = []  # whom this site wants to hear
        self._listeners: set[str] = set()  # who wants to hear this site
        self._answers: list[str] = []
        self._turned = False  # whether it was this site's turn
        self._resting = False  # whether the privacy account does not afford the round
        self._told: dict[str, int] = {}  # by peer: messages of this round
        self._fetched: dict[str, int] = {}  # by peer: how often it got this round's weights
        self._summand: NDArray[np.float64] | None = None  # what this site adds to a masked sum
        self._places = Places()  # as a witness: who has a place with whom
        self._given: dict[str, bool] = {}  # by partner: whether it has a place for this site
        self._served: set[str] = set()  # who brought weights, or tried to, and was answered
        # By question of a roll call: this site's answer, and how it is written (None: as weights are).
        self._said: dict[int, tuple[bytes, Form | None]] = {}
        self._board: dict[int, dict[str, bytes]] = {}  # by question: the others' answers to this site
        self._informed = 0  # questions of this round after which the board's notice has come

    @property
    def models(self) -> Tensor:
        """(1, P) the model."""
        models: Tensor = self.state.models
        return models

    @property
    def trained(self) -> Tensor | None:
        """(1, P) the model after the local epochs of this round."""
        return None if self._trained is None else self._trained.models

    @property
    def _peer(self) -> PeerMethod:
        """The method, of a study without a server."""
        return cast(PeerMethod, self.method)

    @property
    def _capacity(self) -> int:
        return self._peer.capacity if self._by_peers else 1

    @property
    def _by_peers(self) -> bool:
        return self.method.kind not in ("alone", "star")

    # The world as this site sees it

    def _kept(self) -> tuple[tuple[str, ...], Any]:
        """The members that the last round knew of and the state it left, or this site at the start."""
        model, kept = self.store.model(), self.store.state()
        if model is None:
            return (self.name,), self.method.init(self._world((self.name,)))
        if len(model) != self.learner.layout.size:
            raise RequestError(
                f"{self.store.path} holds a model of {len(model)} weights and this study's has "
                f"{self.learner.layout.size}; give the study a store of its own"
            )
        if kept is None:
            raise RequestError(
                f"{self.store.path} was written by an older abps, which kept what methods remember "
                "otherwise; end the study with that version, or give it a store of its own"
            )
        members, content = kept
        kind = type(self.method.init(self._world(members)))
        return members, thaw(kind, content, models=torch.from_numpy(model)[None])

    def _world(self, members: tuple[str, ...]) -> World:
        """What this site knows of the members, itself among them."""
        ids, names = center_ids(members), getattr(self, "published", None)
        told, bulletin = np.ones(len(members), dtype=np.float32), None
        if names is not None:
            bulletin = np.full((len(members), len(names.names)), np.nan)
            for k, member in enumerate(members):
                if member in self.vectors:
                    bulletin[k] = self.vectors[member]
                told[k] = self._rows_of(member)
        if bulletin is None or self.purse is None or ROWS not in self.published.names:  # else as it told
            told[members.index(self.name)] = float(self.data.train.sizes[0])
        place = np.array([members.index(self.name)], dtype=np.int64)
        seed, rounds = self.agreement.seed, self.agreement.rounds
        return World(self.learner, self.data, ids, seed, rounds, place, told, bulletin, secret=self._secret)

    def _rows_of(self, member: str) -> float:
        """A member's training rows: by its own vector, or else as it told the conductor."""
        if member in self.vectors and ROWS in self.published.names:
            at = self.published.names.index(ROWS)
            told = float(np.rint(np.exp(self.vectors[member][at])))
        else:
            told = float(self._rows.get(member, 1))
        # Rows weigh in averages, and nobody can check what a peer says of its own.
        return min(told, self.limits.rows * float(self.data.train.sizes[0]))

    @property
    def world(self) -> World:
        """The world with what the method makes of it."""
        with self._lock:
            if self._grounded is None:
                self._grounded = grounded(self.method, self._world(self.members))
            return self._grounded

    # Called by the conductor

    def hello(self) -> dict[str, Any]:
        """First words to the conductor: how far this site is, and what it needs to keep the study's rules."""
        seen = {r.number: r.validation for r in self.store.rounds()} if self.method.stop.patience else {}
        facts = {
            "round": self.store.round,
            "agreement": self.agreement.digest(),
            "rows": int(self.data.train.sizes[0]),
            "edges": self._edges_so_far(),
            "validation": {str(t): value for t, value in seen.items() if value is not None},
            "wire": list(versions.NEWEST),
        }
        return self._tell(facts, "how far we are, our training rows, and sums of bytes", self.store.round + 1)

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
        if not _counts(first) or first > self.agreement.rounds:
            raise RequestError(
                f"the study has {self.agreement.rounds} rounds; a job cannot begin with round {first}"
            )
        if self.consent is not None:
            self.consent.members(members)
            self._ask_consent(first)
        self._understands(wire)
        self._speak(wire)
        with self._lock:
            self.roster = tuple(sorted(members))
            self._rows = dict(rows or {})
            everybody = tuple(sorted({*members, *self.members}))
            if self.store.round:
                place = np.array([everybody.index(member) for member in self.members], dtype=np.int64)
                self.state = self.state.placed(place, len(everybody))
            else:
                self.state = self.method.init(self._world(everybody))
            self.members, self._grounded = everybody, None
            if first == 1 and all(entry.kind != "statistics" for entry in self.store.traffic(1)):
                self._log_statistics()
            # Others may have gone further than this site: what they ask about is past for it, too.
            self.talks = self._past(first - 1)

    def _log_statistics(self) -> None:
        """Write down what was passed on with the codebook, before this site knew of the study."""
        took = self.agreement.book.summarised
        outcome = self.agreement.book.outcome
        told = self.method.training.standardise == "common" or bool(outcome.grid or outcome.scale)
        if told and took is not None and self.name in took.spent:
            why = "counts, means and groups of our numeric columns in our codebook, and the common scales"
            why += "" if outcome.binary else "; the same of the outcome"
            self._log(OPERATOR, "statistics", took.spent[self.name], why, round=1)

    def _speak(self, wire: Sequence[int]) -> None:
        """Speak a version of the wire format."""
        version = (int(wire[0]), int(wire[1]))
        self.wire = version
        self.sender_id = versions.sender_ids(version, self._digest, self.job)

    def _understands(self, wire: Sequence[int]) -> None:
        """Take no part in a job whose version this site does not know, or does not want to speak any more."""
        version = (int(wire[0]), int(wire[1]))
        least = 0 if self.consent is None else self.consent.policy.wire
        if not versions.fits(version) or version > versions.NEWEST or version[1] < least:
            raise Declined(
                Excuse.VERSION,
                f"the job speaks version {version[0]}.{version[1]} of the wire format; this site speaks "
                f"{versions.NEWEST[0]}.{least} to {versions.NEWEST[0]}.{versions.NEWEST[1]}",
            )

    def _tell(self, answer: T, why: str, round: int) -> T:
        """Write down what the conductor is told, before it is."""
        self._log(CONDUCTOR, "told", len(canonical(answer)), why, round=round)
        return answer

    def catch_up(self) -> None:
        """Settle the latest of what earlier jobs left in doubt; who does not answer is asked once."""
        silent: set[str] = set()
        for past in sorted(self.store.in_doubt(), reverse=True)[:_CATCH_UP]:
            for peer, message in protocol.overdue(self._past(past)):
                if peer in self._others - silent and not self._try(past, peer, message):
                    silent.add(peer)

    def introduce(
        self, round: int, to: Sequence[str] | None = None, rows: Mapping[str, int] | None = None
    ) -> None:
        """Publish the metadata vector to every other member, before the first round of a job, or to those
        that have come since.  rows: how many training rows these have.

        And tell each the last head of its own log that it gave us: so a site learns if its log is not what it
        was.
        """
        peers = sorted(self._others if to is None else self._others & set(to))
        with self._lock:
            self._rows |= {name: int(count) for name, count in (rows or {}).items() if name in peers}
            self._grounded = None if rows else self._grounded
        self._witness(round, peers)
        if not self.published.names:
            return
        data = pack_vector(self.vectors[self.name], round, self._id)
        more = any(name.startswith(admission.ASSOCIATION) for name in self.published.names)
        what = "metadata vector and how our columns go with the outcome" if more else "metadata vector"
        why = f"{what}, so that peers can tell whether we are alike"
        for peer in peers:
            with contextlib.suppress(Unreachable):
                self._carry(peer, "vector", data, why, self.patience.repeats, round)

    def _witness(self, round: int, peers: Sequence[str]) -> None:
        for peer in peers if self.wire >= WITH_HEADS else ():
            known = self.store.heads(peer)
            if known:
                head = known[-1]
                data = pack_head(head.rows, head.digest, head.signature, head.round, self._id)
                why = f"the head of its own log, as it gave it to us in round {head.round}"
                with contextlib.suppress(Unreachable):
                    self._carry(peer, "head", data, why, round=round)

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
                data = pack_alarm(raised, self._id)
                try:
                    self._carry(peer, "alarm", data, f"alarm of round {raised}: {why}", round=round)
                except Unreachable:
                    break  # it is told when it is there again
                self.store.tell(raised, peer)
                told += 1
        return told

    def decided(self, what: str, round: int | None = None) -> None:
        """Write down what people of this site decided about the study."""
        self._log(self.name, "decision", 0, what, sent=False, round=round)

    def _ask_consent(self, round: int) -> None:
        """Take no part in a round that this site's people do not want any more; nobody is answered then."""
        if self.consent is None:
            return
        try:
            self.consent.round(sum(self.store.sent_bytes().values()))
            self._out = False
        except Declined as declined:
            if not self._out:
                self.decided(str(declined), round)
            self._out = True
            raise

    def _ask_log(self) -> None:
        """Take no part with a log that is not the one that partners know."""
        if self._contradicted:
            raise Declined(
                Excuse.LOG,
                f"{self.store.path} is older than what this site told its partners, or was changed; look "
                "with `abps site verify`, and bring back the latest backup with `abps site restore`",
            )

    def begin(self, round: int, live: Sequence[str]) -> None:
        """Start a round with the members that are there."""
        with self._lock:
            if not _counts(round) or round > self.agreement.rounds:
                raise RequestError(f"the study has {self.agreement.rounds} rounds; {round} is none of them")
            if round <= self.store.round:
                raise RequestError(
                    f"{self.name} has finished round {self.store.round}; round {round} is over"
                )
            if round <= self._begun:
                raise RequestError(f"{self.name} has begun round {self._begun}; no round begins twice")
            self._ask_consent(round)
            self._ask_log()
            self._begun = round
            self.talks = Negotiation(self.name, round, self._capacity)
            self._silent = set(self.roster) - set(live)
            self._forget()
            self._resting = self.purse is not None and not self.purse.pays(self.world, round)
            # Alarms that no round has reckoned with; later ones count in the next round.
            self._news = tuple(alarm for alarm in self.store.alarms() if alarm.reckoned is None)

    def reply(self, round: int, question: int, attempt: int = 0) -> bool:
        """Answer a question of a roll call to the board; False if this site cannot: it missed what was told
        after the last question, or the board is not there. attempt: boards that were tried before."""
        self._need(round, self._asks(round, question) or None, "such a question")
        if self._resting or question > self._informed or attempt not in range(BOARDS):
            return False
        board = self._boards()[attempt : attempt + 1]
        if question not in self._said:
            self._said[question] = self._answer(round, question)
        if not board:
            return False
        if board[0] == self.name:
            return True
        why = f"our answer to question {question + 1} of the roll call, for the board of round {round}"
        data = pack_answer(self._said[question][0], round, question, self._id)
        try:
            self._carry(board[0], "answer", data, why, self.patience.repeats)
        except Unreachable:
            return False
        return True

    def preside(self, round: int, question: int) -> int:
        """Be the board: work out what follows from all answers, and tell it. Returns how many answered."""
        self._need(round, self._asks(round, question) or None, "such a question")
        if self.name not in self._boards()[:BOARDS] or question not in self._said:
            raise RequestError(f"{self.name} is not the board of question {question} in round {round}")
        read: dict[str, NDArray[np.float64]] = {}
        mine, form = self._said[question]
        with self._lock:
            said = {**self._board.get(question, {}), self.name: mine}
        for peer in (self.name, *sorted(self._others)):
            try:
                if peer in said:
                    read[peer] = self._read(peer, said[peer], round, form)
            except Refused as refused:
                self._note(refused)
        if len(read) < 2:
            return len(read)
        answers = np.full((len(self.roster), len(read[self.name])), np.nan)
        for peer, values in read.items():
            answers[self.roster.index(peer)] = values
        sizes = np.array([self._rows_of(member) for member in self.roster])
        sizes[self.roster.index(self.name)] = float(self.data.train.sizes[0])
        notice = self._peer.board(answers, sizes, round, question)
        for place, peer in enumerate(self.roster):
            own = notice.own.get(place)
            told = notice.common.data + (b"" if own is None else own.data)
            if peer == self.name:
                self._take_notice(peer, told, question)
            elif peer not in self._silent:
                data = pack_notice(told, round, question, self._id)
                why = f"what follows from all answers to question {question + 1} of the roll call"
                with contextlib.suppress(Unreachable):
                    self._carry(peer, "notice", data, why, self.patience.repeats)
        return len(read)

    def _boards(self) -> list[str]:
        """The members that are there, in the order in which they are asked to be the board."""
        order = boards(self.agreement.seed, self.talks.round, center_ids(self.roster))
        return [self.roster[k] for k in order if self.roster[k] not in self._silent]

    def _answer(self, round: int, question: int) -> tuple[bytes, Form | None]:
        """What this site answers to a roll call, and how it is written."""
        world = self.world
        if self.members != self.roster:  # who is not asked does not count
            world = grounded(self.method, self._world(self.roster))
        answer = self._peer.reply(world, self.state, round, question)
        if answer.told:
            return answer.told[0].data, answer.told[0].form
        return self._pack(self.state.models, self.agreement.rounds + round), None

    def _read(self, peer: str, said: bytes, round: int, form: Form | None) -> NDArray[np.float64]:
        """(entries,) an answer to a roll call; what is no number counts as not told."""
        if form is None:
            number = self.agreement.rounds + round
            weights = admission.admit_weights(
                said, peer, (peer,), number, self.codec, self.shared, self.limits, self.sender_id
            )
            arrived = torch.from_numpy(weights) + self.base
            self._check_distance(peer, arrived, self.state.models[0, : self.shared].numpy())
            return arrived.numpy().astype(np.float64)
        try:
            told, rest = Numerals.read(said)
        except NumeralError as error:
            raise Refused(peer, Reason.MALFORMED, str(error)) from error
        if rest or told.form != form:
            raise Refused(peer, Reason.SHAPE, "its answer has another form than ours")
        return told.values

    def _take_notice(self, board: str, told: bytes, question: int) -> None:
        """Go on with what the board told."""
        try:
            common, rest = Numerals.read(told)
            own, rest = Numerals.read(rest) if rest else (None, b"")
            me = int(self.world.here[0])
            notice = Notice(self._placed(common), {} if own is None else {me: self._placed(own)})
            if rest or not all(np.isfinite(each.values).all() for each in (common, own) if each is not None):
                raise ValueError("it says no numbers, or too many")
            self.state = self._peer.informed(self.world, self.state, notice, self.talks.round, question)
        except ValueError as error:
            raise Refused(board, Reason.MALFORMED, f"its notice: {error}") from error
        self._informed = max(self._informed, question + 1)

    def _placed(self, told: Numerals) -> Numerals:
        """What is told of members by their places in this job, by their places at this site."""
        place = np.array([self.members.index(name) for name in self.roster])
        values, at = told.values.copy(), 0
        for stretch in told.form:
            if stretch.kind == "place":
                part = slice(at, at + stretch.total)
                if (values[part] >= len(place)).any():
                    raise ValueError("a place that no member has")
                values[part] = place[values[part].astype(np.int64)]
            at += stretch.total
        return Numerals(values, told.form, told.data)

    def train(self, round: int, alone: bool = False, live: Sequence[str] | None = None) -> None:
        """The local epochs of a round, and then an opinion of the members.

        alone: nothing will be exchanged any more.  live: the members that are there, if the round is to begin
        with this (else it has begun).
        """
        if live is not None:
            self.begin(round, live)
        if self._need(round, True, "begun") and self._trained is not None:
            raise RequestError(f"{self.name} has trained in round {round}; the conductor is out of step")
        method, world, before = self.method, self.world, self._before()
        if self._resting:  # nothing more is learned from rows, so nothing new can leave
            self._trained = before
            return
        trained = method.train(world, before, round, alone)
        frames: list[bytes] = []
        opinion = None
        if method.kind == "star":
            star = cast(StarMethod, method)
            messages = star.upload(world, before, trained, round)
            if {message.shape[1] for message in messages} != {self.shared}:
                raise RequestError(
                    f"{self.agreement.method!r} sends {[message.shape[1] for message in messages]} numbers; "
                    f"between sites a message has the {self.shared} shared weights"
                )
            layout = world.learner.layout
            if star.privacy.secure and star.adds is not None:
                self._summand = summands(messages, self.data.train.sizes.astype(np.float64), star.adds)[0]
            else:
                frames = [
                    self._pack(message, star.number(k, round, layout)) for k, message in enumerate(messages)
                ]
                if star.noted:
                    frames.append(pack_note(float(star.note(world, trained)[0]), round))
        elif self._by_peers and not alone and self._peer.exchanges(round):
            frames = [self._pack(self._peer.sent(before, trained), round)]
            if method.kind != "graph":
                opinion = self._peer.opine(world, before, lambda: trained, round)
        with self._lock:
            self._trained, self._frames, self.opinion = trained, frames, opinion
            if method.kind == "graph":
                to, by = self._links(round)
                me = int(world.here[0])
                self._asked = [self.members[k] for k in by[to == me]]
                self._listeners = {self.members[k] for k in to[by == me]}

    def _before(self) -> Any:
        """The state that the round begins with: what the last one left, and the alarms since."""
        if not self._by_peers:
            return self.state
        heard = tuple(
            Alarm(self.members.index(a.site), a.statistic, np.nan if a.p is None else a.p, a.round)
            for a in self._news
            if a.site in self.members
        )
        return self._peer.hear(self.state, heard)

    def _pack(self, message: Tensor, number: int) -> bytes:
        """A message's frame: the shared columns of (1, P), in the codec of the study."""
        key = int(streams.bits(self.agreement.seed, "codec", number, [center_id(self.name)])[0])
        sent = (message[0, : self.shared] - self.base).numpy()
        return pack(sent, self.codec, number, self._id, key)

    def _links(self, round: int) -> tuple[Ints, Ints]:
        return self._peer.transfers(self.world, round)

    def turn(self, round: int, gone: Sequence[str] = ()) -> int:
        """Go down the ranking and propose, until kappa partners are found or nobody is left.

        gone: who was there when the round began, and is not any more. Returns the number of proposals made.
        """
        self._silent |= set(gone) - {self.name}
        if self._resting:
            return self._tell(0, "how many proposals we made", round)
        opinion = self._need(round, self.opinion, "an opinion")
        self._turned = True
        ranking = [self.members[k] for k in opinion.rankings[0]]
        if self.method.kind == "pull":
            return self._request(round, ranking[: self._capacity])
        until = self._now() + self.patience.turn_seconds
        made = 0
        while self._now() < until:
            with self._lock:
                asked = [peer for peer in ranking if peer not in self._silent and not self._quarantined(peer)]
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
        return self._tell(made, "how many proposals we made", round)

    def settle(self, round: int, gone: Sequence[str] = ()) -> int:
        """Take no more proposals, and clear up what is in doubt. Returns the number of peers in touch."""
        self.lost(gone)
        if self.method.kind != "mutual":
            touched = len((set(self._asked) | self._listeners) - self._silent)
            return self._tell(touched, "how many peers we are in touch with", round)
        with self._lock:
            before = protocol.records(self.talks)
            self.talks, farewells = protocol.seal(self.talks)
            if protocol.records(self.talks) != before:
                self._promise(self.talks)
        for peer, message in farewells:
            self._try(round, peer, message)
        self._settle(round)
        with self._lock:
            for peer in self.talks.in_doubt:
                self._in_vain(peer, round)
        for peer in sorted(self.talks.partners):
            self._has_place(peer, round)
        return self._tell(len(self.talks.partners), "how many partners we have", round)

    def _request(self, round: int, wanted: list[str]) -> int:
        """Ask peers for their weights. Returns how many were asked."""
        for peer in wanted:
            data = pack_request(round, self._id)
            try:
                self._carry(peer, "request", data, f"wish to hear it in round {round}")
                self._asked.append(peer)
            except Unreachable:
                self._silent.add(peer)
        return len(wanted)

    def swap(self, round: int) -> int:
        """Exchange weights with the partners that this site proposed to, or send them to those who hear it.

        Returns how many were reached.
        """
        reached = 0
        mutual = self.method.kind == "mutual"
        if self._resting:
            return reached
        self._need(round, self._frames or None, "a trained model")
        proposed = {peer for peer, link in self.talks.mine.items() if link.stage is Stage.MATCHED}
        for peer in sorted(proposed if mutual else self._listeners - self._silent):
            if mutual and not self._has_place(peer, round):
                continue
            try:
                reply = self._carry(peer, "weights", self._parcel(peer, round), "", self.patience.repeats)
                if mutual:
                    self._accept_weights(peer, reply, round)
                reached += 1
            except Unreachable:
                self._silent.add(peer)
            except Refused as refused:
                self._note(refused)
        return reached

    def _parcel(self, peer: str, round: int) -> bytes:
        """This site's weights, the number that goes with them, if there is one, and the head of its log."""
        head = self._signed_head(round)
        if not self._peer.noted:
            return self._frames[0] + head
        listeners = self.talks.partners if self.method.kind == "mutual" else self._listeners
        value = float(self._peer.note(self.world, self._trained, np.array([len(listeners)]))[0])
        return self._frames[0] + pack_note(value, round) + head

    def _signed_head(self, round: int) -> bytes:
        """The head of this site's log, signed; nothing in a trial without keys."""
        if self.signer is None or self.wire < WITH_HEADS:
            return b""
        head = audit.sign_head(self.store, round, self.signer)
        return pack_head(head.rows, head.digest, head.signature, round, self._id)

    def _parts(self, parcel: bytes) -> tuple[bytes, bytes, bytes]:
        """Weights, note and head of a parcel; what is too long stays with the weights, and is refused."""
        weights = frame_size(self.codec, self.shared)
        note = weights + CONTROL_MESSAGE * self._peer.noted
        if len(parcel) > note and self.wire < WITH_HEADS:
            return parcel, b"", b""
        if self._peer.noted and len(parcel) < note:
            return parcel[:-CONTROL_MESSAGE], parcel[-CONTROL_MESSAGE:], b""
        return parcel[:weights], parcel[weights:note], parcel[note:]

    def finish(self, round: int, rest: str = "") -> float:
        """Mix, give credit, update the beliefs, and write the round down. Returns the validation AUROC.

        rest: why nothing was exchanged (the budget), if so.
        """
        trained = self._need(round, self._trained, "a trained model")
        rest = Rest.PRIVACY.words if self._resting else rest
        with self._lock:
            self.talks, _ = protocol.seal(self.talks)
            partners = () if rest else self._heard()
        before = self._before()
        learned = self._learn(round, before, trained, partners, bool(rest))
        value = self._score(learned.state, self.data.validation)
        worth, told = learned.worth, self._evidence(learned.state)
        seen = [] if worth is None else list(zip(worth.peer.tolist(), worth.value, worth.error))
        done = Finished(
            round,
            learned.state.models[0].numpy(),
            told,
            {self.members[k]: float(v) for k, v, _ in seen if np.isfinite(v)},
            partners,
            rest or ("" if partners else self._why_rest()),
            value,
            self.members,
            freeze(learned.state, ("models",)),
            tuple(AlarmRow(round, self.name, a.statistic, _finite(a.p)) for a in learned.alarms),
            self._news,
            {self.members[k]: float(e) for k, _, e in seen if np.isfinite(e)},
        )
        if self.store.finish(done):
            self.state = learned.state
        self._tell(_finite(value), f"our validation {self.data.outcome.measure}", round)
        return value

    def conclude(self, round: int, rest: str = "") -> list[Any]:
        """Finish the round, and tell the validation AUROC and the sums of the round."""
        with self.store.together():
            return [self.finish(round, rest), self.report(round)]

    def exchange(self, round: int, gone: Sequence[str] = ()) -> list[Any]:
        """All that follows the turns, in one go: settle, swap, wait for what partners bring, and conclude.

        Returns the number of peers in touch, and what ``conclude`` tells.
        """
        with self.store.together():
            touching = self.settle(round, gone)
            self.swap(round)
            self._wait_for_weights()
            return [touching, *self.conclude(round)]

    def lost(self, gone: Sequence[str]) -> None:
        """Who is gone while this site works: nobody waits for them."""
        with self._came:
            self._silent |= set(gone) - {self.name}
            self._came.notify_all()

    def _wait_for_weights(self) -> None:
        """Until everybody who is to bring weights has, or is gone, or the time is up."""
        until = self._now() + self.patience.swap_seconds

        def awaited() -> set[str]:
            if self.method.kind == "mutual":
                bringing = {p for p, link in self.talks.theirs.items() if link.stage is Stage.MATCHED}
            else:
                bringing = set(self._asked)
            return bringing - self._silent - self._served

        with self._came:
            while awaited() and self._now() < until:
                self._came.wait(timeout=min(1.0, max(0.0, until - self._now())))

    def _heard(self) -> tuple[str, ...]:
        """Who this site had to do with: its partners, or those whose weights arrived."""
        if self.method.kind == "mutual":
            return tuple(p for p in self.roster if p in self.talks.partners)
        return tuple(p for p in self.roster if p in self.arrived)

    def _learn(
        self, round: int, before: Any, trained: Any, partners: tuple[str, ...], alone: bool
    ) -> Learned:
        """The method's part of the end of a round."""
        method, world = self.method, self.world
        if method.kind == "star" and self._down and not alone:
            star = cast(StarMethod, method)
            return Learned(star.receive(world, before, trained, self._down, round))
        if alone or not self._by_peers:
            return Learned(method.rest(world, before, trained, round))
        order = self._asked if method.kind != "mutual" else partners
        senders = [peer for peer in order if peer in self.arrived]
        by = np.array([self.members.index(peer) for peer in senders], dtype=np.int64)
        # Pages that are not written to cost nothing.
        arrived = torch.from_numpy(np.zeros((world.n, self.shared), dtype=np.float32))
        notes = np.zeros(world.n)
        for k, peer in zip(by.tolist(), senders):
            arrived[k] = self.arrived[peer]
            notes[k] = self._notes.get(peer, 0.0)
        listeners = self.talks.partners if method.kind == "mutual" else self._listeners
        notes[world.here] = self._peer.note(world, trained, np.array([len(listeners)]))
        heard = Heard(np.zeros(len(by), dtype=np.int64), by, arrived, notes, self.opinion)
        return self._peer.learn(world, before, trained, heard, round)

    def _evidence(self, state: Any) -> dict[str, Evidence]:
        """What this site holds for and against its peers, for its owner to look at."""
        if not self._by_peers:
            return {}
        place, gain, loss, count = self._peer.evidence(self.world, state)
        return {
            self.members[k]: Evidence(float(g), float(against), float(c))
            for k, g, against, c in zip(place.tolist(), gain, loss, count)
        }

    def keep_best(self) -> None:
        """The round just finished is the best so far: keep its model apart."""
        self.store.keep_best()

    def upload(self, round: int) -> list[bytes]:
        """A star method: what this site sends to the server, once in a round. Others have no server."""
        if self.method.kind != "star":
            raise RequestError(f"{self.agreement.method!r} has no server: {self.name} sends it no weights")
        if self._resting:
            return []
        with self._lock:
            frames = self._need(round, self._frames or None, "weights that the server has not got")
            self._frames = []
        star = cast(StarMethod, self.method)
        for k, frame in enumerate(frames):
            what = "weights" if k < star.messages else "note"
            self._log(CONDUCTOR, what, len(frame), f"for the server of the study, in round {round}")
        return frames

    # Masked sums, of a study whose server sees nothing else; all of it goes through the conductor.

    @property
    def _masks(self) -> Masking:
        if self._masking is None:
            raise RequestError(f"{self.agreement.method!r} as agreed has no masked sums")
        return self._masking

    def sum_introduce(self) -> list[bytes]:
        """This site's key for the sums of this job, and why it is to be believed."""
        told = self._masks.introduction()
        size = sum(map(len, told))
        self._log(CONDUCTOR, "told", size, "our key for masked sums, for all members", round=0)
        return told

    def sum_meet(self, introductions: Mapping[str, Sequence[bytes]]) -> None:
        """Everybody's keys, as the conductor passes them on; whose is not its own takes part in no sum."""
        for name in self._masks.meet(introductions):
            self.decided(f"the key for masked sums that was told as {name}'s is not; no sum with it", round=0)

    def sum_keys(self, round: int, names: Sequence[str]) -> list[bytes]:
        """Step 1: keys of the masks of a round's sum."""
        self._need(round, self._summand, "anything to add to a sum")
        told = self._masks.keys(round, names)
        return self._masking_step(round, told, sum(map(len, told)), "keys of the masks")

    def sum_shares(self, round: int, keys: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Step 2: shares of this site's secrets, each readable by one other site."""
        self._masking_heard(round, sum(len(part) for each in keys.values() for part in each), "keys")
        told = self._masks.shares(round, keys)
        return self._masking_step(round, told, sum(map(len, told.values())), "shares of our masks, sealed")

    def sum_masked(self, round: int, sealed: Mapping[str, bytes]) -> bytes:
        """Step 3: what this site adds, under its masks, once."""
        with self._lock:
            summand = self._need(round, self._summand, "a summand that the conductor has not got")
            self._summand = None
        self._masking_heard(round, sum(map(len, sealed.values())), "shares of masks")
        told = self._masks.masked(round, sealed, summand)
        self._log(CONDUCTOR, "weights", len(told), f"our summand of round {round}, under masks")
        return told

    def sum_present(self, round: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose summands have come."""
        told = self._masks.present(round, names)
        return self._masking_step(round, told, len(told), "our signature under the list of who is there")

    def sum_open(self, round: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off the sum."""
        self._masking_heard(round, sum(map(len, signatures.values())), "signatures")
        told = self._masks.opened(round, names, signatures)
        size = sum(len(share) for part in told for share in part.values())
        return self._masking_step(round, told, size, "shares that take the masks off the sum")

    def _masking_step(self, round: int, told: T, size: int, why: str) -> T:
        self._log(CONDUCTOR, "mask", size, f"{why}, in round {round}", round=round)
        return told

    def _masking_heard(self, round: int, size: int, what: str) -> None:
        self._log(CONDUCTOR, "mask", size, f"{what} of all, in round {round}", sent=False, round=round)

    def download(self, round: int, frames: list[bytes]) -> None:
        """A star method: what the server sends back."""
        if self.method.kind != "star":
            raise RequestError(
                f"{self.agreement.method!r} has no server: {self.name} takes no weights from it"
            )
        self._need(round, self._trained, "a trained model")
        star, layout, start = (
            cast(StarMethod, self.method),
            self.world.learner.layout,
            self.world.learner.start,
        )
        counts = star.answers(layout)
        down = []
        try:
            for k, (count, data) in enumerate(zip(counts, frames)):
                number = star.number(k, round, layout)
                weights = admission.admit_weights(
                    data, CONDUCTOR, (CONDUCTOR,), number, self.codec, count, self.limits, self.sender_id
                )
                down.append(torch.from_numpy(weights) + star.line.base(start, count))
                self._log(
                    CONDUCTOR, "weights", len(data), f"the server's answer in round {round}", sent=False
                )
        except Refused as refused:
            self._note(refused)
            return
        if len(down) == len(counts) == len(frames):
            self._down = tuple(down)

    def report(self, round: int) -> dict[str, int]:
        """What the conductor is told of a round: sums, no names."""
        entries = self.store.traffic(round)
        weights = [e.bytes for e in entries if e.kind == "weights" and (e.sent or e.peer == CONDUCTOR)]
        sums = {
            "edges": self._edges(entries),
            "directed": sum(weights),
            "control": sum(
                e.bytes for e in entries if e.kind == "mask" or (e.sent and e.kind not in _NOT_CONTROL)
            ),
            "partners": len(self._heard()),
            "in_doubt": len(self.talks.in_doubt),
        }
        return self._tell(sums, "sums of the round: bytes, partners, matches in doubt", round)

    def _edges_so_far(self) -> int:
        """The same of all rounds that are written down."""
        if not self._by_peers:
            return max(2 * self.store.sent_bytes().get("weights", 0), self.store.weight_bytes())
        return self.store.links() * frame_size(self.codec, self.shared)

    def _edges(self, entries: Sequence[Entry]) -> int:
        """Bytes of this site's ends of edges: a payload per peer and round; with a server, both ways."""
        weights = [e for e in entries if e.kind == "weights"]
        if not self._by_peers:
            return max(2 * sum(e.bytes for e in weights if e.sent), sum(e.bytes for e in weights))
        return len({(e.round, e.peer) for e in weights}) * frame_size(self.codec, self.shared)

    # Called by peers

    def receive(self, peer: str, what: str, data: bytes) -> bytes:
        """A peer's bytes. An answer that is empty says nothing, not even why."""
        if self._out:
            return b""
        try:
            self._within_rate(peer)
            if self._quarantined(peer):
                raise Refused(peer, Reason.QUARANTINE, "it was refused too often in this job")
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
            if what == "request":
                self._receive_request(peer, data)
                return b""
            if what == "head":
                self._receive_head(peer, data)
                return b""
            if what == "answer":
                self._receive_answer(peer, data)
                return b""
            if what == "place":
                return self._receive_place(peer, data)
            if what == "notice":
                self._receive_notice(peer, data)
                return b""
            raise Refused(peer, Reason.MALFORMED, f"nothing here is called {what[:20]!r}")
        except Refused as refused:
            self._note(refused)
            return b""

    def _receive_vector(self, peer: str, data: bytes) -> None:
        vector = admission.admit_vector(data, peer, self._others, self.published.names, self.sender_id)
        with self._lock:
            known = self.vectors.get(peer)
            if known is not None and not np.array_equal(known, vector):
                raise Refused(peer, Reason.METADATA, "its vector is not the one it sent before in this job")
            self.vectors[peer], self._grounded = vector, None
        _, round, _ = unpack_vector(data)
        self._log(peer, "vector", len(data), "its metadata vector", sent=False, round=round)

    def _receive_alarm(self, peer: str, data: bytes) -> None:
        if not self.method.announces:
            raise Refused(peer, Reason.PROTOCOL, "alarms are no part of this study")
        raised = admission.admit_alarm(data, peer, self._others, self.agreement.rounds, self.sender_id)
        why = "its alarm of drift" if self.store.hear(peer, raised) else "its alarm of drift, known already"
        self._log(peer, "alarm", len(data), f"{why} (raised in round {raised})", sent=False)

    def _receive_message(self, peer: str, data: bytes) -> bytes:
        message = admission.admit_message(
            data, peer, self._others, self.talks.round, self.limits, self.sender_id
        )
        self._log(peer, "message", len(data), _heard(message), sent=False, round=message.round)
        replies = self._handle(peer, message)
        for reply in replies:
            self._log(peer, "message", CONTROL_MESSAGE, _words(reply), round=reply.round)
        return b"".join(pack_message(reply, self._id) for reply in replies)

    def _receive_request(self, peer: str, data: bytes) -> None:
        if self.method.kind != "pull":
            raise Refused(peer, Reason.PROTOCOL, "requests are no part of this study")
        admission.admit_request(data, peer, self._others, self.talks.round, self.sender_id)
        with self._lock:
            self._listeners.add(peer)
        self._log(peer, "request", len(data), "its wish to hear us", sent=False)

    def _receive_answer(self, peer: str, data: bytes) -> None:
        round = self.talks.round
        said, question = admission.admit_answer(data, peer, self._others, round, self.limits, self.sender_id)
        if not self._asks(round, question) or self.name not in self._boards()[:BOARDS]:
            raise Refused(peer, Reason.PROTOCOL, "this site is not the board of a roll call")
        with self._lock:
            self._board.setdefault(question, {})[peer] = said
        self._log(peer, "answer", len(data), f"its answer to question {question + 1}", sent=False)

    def _receive_notice(self, peer: str, data: bytes) -> None:
        round = self.talks.round
        told, question = admission.admit_notice(data, peer, self._others, round, self.limits, self.sender_id)
        if not self._asks(round, question) or peer not in self._boards()[:BOARDS]:
            raise Refused(peer, Reason.PROTOCOL, "it is not the board of a roll call")
        with self._lock:
            if question > self._informed or self._trained is not None:
                raise Refused(peer, Reason.ROUND, "a notice that nobody waits for")
            self._take_notice(peer, told, question)
        self._log(peer, "notice", len(data), f"what follows from question {question + 1}", sent=False)

    def _receive_place(self, peer: str, data: bytes) -> bytes:
        """A member asks this site, as a witness, whether its partner still has a place."""
        round = self.talks.round
        number = admission.admit_place(data, peer, self._others, round, self.sender_id)
        partner = next((name for name in self.roster if center_id(name) == number), peer)
        if partner == peer or self.name not in witnesses(self.agreement.seed, round, self.roster, partner):
            raise Refused(peer, Reason.PROTOCOL, "this site is not the witness that it asks for")
        with self._lock:
            free = self._places.give(partner, peer, self._capacity)
        verdict = f"{'a' if free else 'no'} place with {partner} in round {round}"
        asked = f"asks us, as a witness, for a place with {partner}"
        with self.store.together():  # on the disk before the answer leaves
            self._log(peer, "place", len(data), asked, sent=False)
            self._log(peer, "place", CONTROL_MESSAGE, f"as a witness: {verdict}")
        said = Message(Kind.ACCEPT, round, 1) if free else Message(Kind.REFUSE, round, 1, protocol.FULL)
        return pack_message(said, self._id)

    def _has_place(self, partner: str, round: int) -> bool:
        """Whether a partner has a place for this site, by its witness; without a witness, it has none."""
        if self.wire < WITH_WITNESSES:
            return True
        if partner not in self._given:
            self._given[partner] = self._ask_witness(partner, round)
        return self._given[partner]

    def _ask_witness(self, partner: str, round: int) -> bool:
        for witness in witnesses(self.agreement.seed, round, self.roster, partner):
            if witness == self.name:
                with self._lock:
                    return self._places.give(partner, self.name, self._capacity)
            if witness in self._silent:
                continue
            data = pack_place(center_id(partner), round, self._id)
            why = f"whether {partner}, for which it stands witness, has a place for us in round {round}"
            try:
                reply = self._carry(witness, "place", data, why, self.patience.repeats, round)
                said = admission.admit_message(
                    reply, witness, self._others, round, self.limits, self.sender_id
                )
            except Unreachable:
                continue
            except Refused as refused:
                self._note(refused)
                continue
            self._log(witness, "place", len(reply), f"as the witness of {partner}: {said.kind}", sent=False)
            if said.kind is not Kind.ACCEPT:
                with self._lock:
                    self._denied.setdefault(partner, set()).add(witness)
            return said.kind is Kind.ACCEPT
        return False

    def _asks(self, round: int, question: int) -> bool:
        """Whether there is such a question before a round."""
        return self._by_peers and question in range(self._peer.questions(round, self.agreement.rounds))

    def _receive_head(self, peer: str, data: bytes) -> None:
        """What a partner knows of this site's own log: if this site signed it, its log must have it."""
        rows, digest, signature, round = admission.admit_head(data, peer, self._others, self.sender_id)
        self._log(peer, "head", len(data), "the head of our log, as it knows it", sent=False)
        head = Head(self.name, rows, round, digest, signature)
        if self.signer is not None and audit.contradicts(self.store, head, self.signer):
            self._contradicted = True
            self.decided(f"our log is not the one that {peer} knows: it had {rows} rows in round {round}")

    def _receive_weights(self, peer: str, data: bytes) -> bytes:
        try:
            return self._take_weights(peer, data)
        finally:  # whatever came of it, nobody waits for this peer any more
            with self._came:
                self._served.add(peer)
                self._came.notify_all()

    def _take_weights(self, peer: str, data: bytes) -> bytes:
        round = self.talks.round
        if self.method.kind != "mutual":
            self._accept_weights(peer, data, round)
            return b""
        with self._lock:
            held = self.talks.theirs.get(peer)
            if held is not None and held.stage is Stage.HELD:
                # Who sends its weights has confirmed: only its confirmation was lost.
                self._handle(peer, Message(Kind.CONFIRM, round, held.attempt))
            self._fetched[peer] = self._fetched.get(peer, 0) + 1
            if self._fetched[peer] > self.limits.fetches:
                raise Refused(peer, Reason.RATE, f"more than {self.limits.fetches} times in a round")
        if peer in self.talks.partners and not self._has_place(peer, round):
            raise Refused(peer, Reason.PLACE, f"by its witness of round {round} it has other partners")
        with self._lock:  # who waits for these weights goes on when the answer is written down, too
            self._accept_weights(peer, data, round)
            parcel = self._parcel(peer, round)
            self._log_parcel(peer, parcel, round)
        return parcel

    # Inside

    @property
    def _id(self) -> int:
        """The number by which this site's messages name their sender."""
        return self.sender_id(self.name)

    @property
    def _others(self) -> frozenset[str]:
        return frozenset(self.roster) - {self.name}

    def _need(self, round: int, value: T | None, what: str) -> T:
        if not _counts(round) or round != self.talks.round or value is None:
            raise RequestError(f"{self.name} has not {what} for round {round}; the conductor is out of step")
        return value

    def _judge(self, proposer: str) -> str:
        if self.opinion is None or proposer not in self.members:
            return protocol.FILTERED
        if self._early(proposer):
            return protocol.BUSY
        if self._owes(proposer) or self._quarantined(proposer):
            return protocol.FILTERED
        place = self.members.index(proposer)
        if not self.world.known[place]:
            return protocol.FILTERED
        return _ANSWERS[self.opinion.answer(0, place)]

    def _early(self, proposer: str) -> bool:
        """Whether a peer proposes before its turn, as far as this site knows: its own comes first."""
        if self._turned or proposer not in self.roster:
            return False
        order = self._peer.turns(self.agreement.seed, self.talks.round, center_ids(self.roster))
        turns = [self.roster[k] for k in order]
        return turns.index(self.name) < turns.index(proposer)

    def _owes(self, proposer: str) -> bool:
        """Whether a peer was accepted before and has not said what came of it, or did so too often, or takes
        more partners than it may."""
        if len(self._unconfirmed.get(proposer, ())) >= _UNCONFIRMED:
            return True
        return len(self._denied.get(proposer, ())) >= ENOUGH or proposer in self.store.debtors()

    def _in_vain(self, peer: str, round: int) -> None:
        self._unconfirmed.setdefault(peer, set()).add(round)

    def _quarantined(self, peer: str) -> bool:
        return self._hostile.get(peer, 0) >= self.limits.refusals

    def _score(self, state: Any, rows: Any) -> float:
        """The outcome's main score; no worse than -1, which says enough of an R²."""
        value = main_score(self.method.logits(self.world, state, rows), labels_of(rows))[0]
        return float(np.maximum(value, -1.0))

    def loss(self) -> float:
        """The mean loss on this site's validation rows, by which a penalty is chosen: four bytes."""
        rows = self.data.validation
        losses = log_loss(self.method.logits(self.world, self.state, rows), labels_of(rows))
        why = "our mean validation loss, to choose a penalty"
        self._log(CONDUCTOR, "told", 4, why, round=self.store.round)
        self.store.sync()
        return float(np.float32(losses[0]))

    def test_auroc(self) -> float:
        """The current model on this site's own test rows; it stays at the site."""
        return self._score(self.state, self.data.test)

    def _why_rest(self) -> str:
        return self._rest_cause().words

    def _rest_cause(self) -> Rest:
        """Why nobody was heard in a round of exchange."""
        if not self._by_peers:
            return Rest.NOT
        if self.method.kind != "mutual":
            return Rest.UNREACHABLE if self._asked else Rest.NO_CANDIDATES
        if protocol.DECLINED in self._answers:
            return Rest.DECLINED
        if {protocol.FULL, protocol.BUSY} & set(self._answers):
            return Rest.ALL_FULL
        if protocol.UNREACHABLE in self._answers:
            return Rest.UNREACHABLE
        opinion = self.opinion
        if opinion is not None and opinion.wanted is not None and opinion.wanted[0]:
            return Rest.NO_CANDIDATES if len(opinion.rankings[0]) else Rest.DECLINED  # it wanted none of them
        return Rest.NO_CANDIDATES

    def _handle(self, peer: str, message: Message) -> tuple[Message, ...]:
        """Take a message of this round, or of a past one from the record; write promises down first."""
        with self._lock:
            current = message.round == self.talks.round
            before = self.talks if current else self._past(message.round)
            step = protocol.handle(before, peer, message, self._judge)
            if protocol.records(step.state) != protocol.records(before):
                self._promise(step.state)
            if current:
                if peer in before.in_doubt and peer not in step.state.in_doubt | step.state.partners:
                    self._in_vain(peer, message.round)
                self.talks = step.state
        if step.event == "violation":
            raise Refused(peer, Reason.PROTOCOL, f"{message.kind} of attempt {message.attempt}")
        return step.replies

    def _past(self, round: int) -> Negotiation:
        return protocol.restore(self.name, round, self._capacity, self.store.promises(round))

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
        """Send a message, and go on talking until there is nothing left to say.

        Every message has at most one answer, of few kinds, about the same attempt: no talk is drawn out.
        """
        saying: Message | None = message
        while saying is not None:
            data = pack_message(saying, self._id)
            repeats = self.patience.repeats if saying.kind is Kind.PROPOSE else 0
            reply = self._carry(peer, "message", data, _words(saying), repeats, round)
            saying = self._answered(peer, saying, reply) if reply else None

    def _answered(self, peer: str, said: Message, reply: bytes) -> Message | None:
        """What to say next, after a peer's answer to what was said; or refused, if that is none."""
        answer = admission.admit_message(
            reply, peer, self._others, self.talks.round, self.limits, self.sender_id
        )
        fits = answer.round == said.round and answer.kind in _ANSWERED_BY.get(said.kind, ())
        if answer.kind is Kind.PROPOSE:  # two proposals have crossed: that of the smaller name stands
            fits = fits and peer < self.name
        else:
            fits = fits and answer.attempt == said.attempt
        if not fits:
            detail = (
                f"{answer.kind} of attempt {answer.attempt} is no answer to {said.kind} of {said.attempt}"
            )
            raise Refused(peer, Reason.PROTOCOL, detail)
        self._log(peer, "message", len(reply), _heard(answer), sent=False, round=answer.round)
        replies = self._handle(peer, answer)
        return replies[0] if replies else None

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
        if self._out:
            raise Unreachable(peer)
        for attempt in range(1 + repeats):
            again = " (repeated)" if attempt else ""
            if what == "weights":
                self._log_parcel(peer, data, self.talks.round, again)
            else:
                self._log(peer, what, len(data), f"{why}{again}", round=round)
            if what != "message":
                self.store.sync()
            try:
                reply = self._send(peer, what, data)
            except Unreachable:
                continue
            if reply or not self._expects_answer(what, data):
                return reply
        raise Unreachable(peer)

    def _expects_answer(self, what: str, data: bytes) -> bool:
        if what == "weights":
            return self.method.kind == "mutual"
        return what == "place" or (what == "message" and data[0] in (1, 2))  # a proposal, an accept

    def _accept_weights(self, peer: str, data: bytes, round: int) -> None:
        mutual = self.method.kind == "mutual"
        data, note, head = self._parts(data)
        weights = admission.admit_weights(
            data,
            peer,
            self.talks.partners if mutual else self._asked,
            round,
            self.codec,
            self.shared,
            self.limits,
            self.sender_id,
        )
        value = admission.admit_note(note, peer, round) if self._peer.noted else 0.0
        arrived = torch.from_numpy(weights) + self.base
        self._check_distance(peer, arrived, self._own_sent(peer))
        with self._lock:
            self.arrived[peer], self._notes[peer] = arrived, value
        self._log(peer, "weights", len(data), f"its shared layers, partner of round {round}", sent=False)
        if note:
            self._log(peer, "note", len(note), f"its number beside: {value:g}", sent=False)
        if head:
            rows, digest, signature, at = admission.admit_head(head, peer, self._others, self.sender_id)
            self.store.keep_head(Head(peer, rows, at, digest, signature))
            self._log(peer, "head", len(head), f"the head of its log: {rows} rows", sent=False)

    def _check_distance(self, peer: str, arrived: Tensor, own: NDArray[np.float32]) -> None:
        """Refuse a model that is much farther from the common start than this site's own (shared,)."""
        start = self.learner.start.numpy()
        near, far = distances(own[None], start), distances(arrived.numpy()[None], start)
        if not plausible(far, near)[0]:
            detail = f"{far[0]:.3g} from the common start, ours is {near[0]:.3g} from it"
            raise Refused(peer, Reason.TOO_LARGE, detail)

    def _own_sent(self, peer: str) -> NDArray[np.float32]:
        """(shared,) what this site's partners get of it in this round."""
        with self._lock:
            if not self._frames:
                raise Refused(peer, Reason.PROTOCOL, "weights before this site has trained")
            return unpack(self._frames[0], self.codec).weights + self.base.numpy()

    def _log_parcel(self, peer: str, data: bytes, round: int, again: str = "") -> None:
        """Write down weights that leave, and the note with them."""
        weights, note, head = (len(part) for part in self._parts(data))
        rows = [("weights", weights, f"shared layers of our model, for our partner of round {round}{again}")]
        if note:
            rows.append(("note", note, f"the number beside them in round {round}{again}"))
        if head:
            rows.append(("head", head, f"the head of our log in round {round}{again}"))
        at = self._stamp()
        self.store.log(*(Entry(at, self.talks.round, peer, True, *row) for row in rows))

    def _within_rate(self, peer: str) -> None:
        with self._lock:
            now = self._now()
            level = self._meters.get(peer) or admission.meter(self.limits, now)
            self._meters[peer] = level.take(peer, now, self.limits)
            self._told[peer] = self._told.get(peer, 0) + 1
            if self._told[peer] > self.limits.per_round:
                raise Refused(peer, Reason.RATE, f"more than {self.limits.per_round} messages in a round")

    def _note(self, refused: Refused) -> None:
        if refused.reason in _HOSTILE:
            with self._lock:
                self._hostile[refused.peer] = self._hostile.get(refused.peer, 0) + 1
        self.store.refused(refused.peer, str(refused.reason), refused.detail)

    def _log(
        self, peer: str, what: str, size: int, why: str, sent: bool = True, round: int | None = None
    ) -> None:
        number = self.talks.round if round is None else round
        self.store.log(Entry(self._stamp(), number, peer, sent, what, size, why))


def masking_context(study: str, job: str) -> str:
    """What the masks of a job are for: they fit no other."""
    return f"{study}/{job}"


def _fingerprint(data: Prepared) -> str:
    """Equal for the same rows in the same splits."""
    digest = hashlib.blake2b(digest_size=16)
    for rows in (data.train, data.validation, data.test):
        digest.update(repr(rows.x.shape).encode())
        digest.update(np.ascontiguousarray(rows.x).tobytes() + np.ascontiguousarray(rows.y).tobytes())
    return digest.hexdigest()


def _counts(round: Any) -> bool:
    """Whether something can be the number of a round; the conductor may say anything."""
    return isinstance(round, int) and not isinstance(round, bool) and round >= 1


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


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
