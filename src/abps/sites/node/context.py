"""What a site is and knows in a job: its rows and model, the members as they told, and the round under way.

All parts of a site look at this one thing. What belongs to one round is in :class:`Round`, which is made anew
when a round begins; what is changed by peers and by the conductor at once is changed under ``lock``.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from abps.core import protocol, streams
from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.core.protocol import Negotiation
from abps.core.streams import center_id, center_ids
from abps.data.outcome import Outcome
from abps.data.prepare import Prepared
from abps.methods.base import ROWS, Context, Ints, with_derived
from abps.methods.peers import PeerMethod, Preferences
from abps.methods.state_bytes import StateError, thaw
from abps.models.learners import learner_for
from abps.models.training import Learner, Training
from abps.privacy.small_counts import both_enough
from abps.sites.consent.agreement import Agreement
from abps.sites.node.privacy_ledger import PrivacyBudget
from abps.sites.store.rows import AlarmRow
from abps.sites.store.store import Store
from abps.wire import versions
from abps.wire.admission import Limits, Origin
from abps.wire.codecs import codec
from abps.wire.frames import pack

T = TypeVar("T")


@dataclass
class Round:
    """One round at a site: the state of its talks, what came of training, whom it heard."""

    talks: Negotiation
    #: Who was there when the round began and is not any more, or never was.
    silent: set[str] = field(default_factory=set)
    #: Alarms that no round has reckoned with; later ones count in the next round.
    news: tuple[AlarmRow, ...] = ()
    #: Whether the privacy account does not afford the round.
    resting: bool = False
    trained: Any = None
    frames: list[bytes] = field(default_factory=list)
    preferences: Preferences | None = None
    arrived: dict[str, Weights] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)
    #: Whose weights were no model.
    refused: set[str] = field(default_factory=set)
    #: Whom this site wants to hear, and who wants to hear this site.
    asked: list[str] = field(default_factory=list)
    listeners: set[str] = field(default_factory=set)
    #: Whether it was this site's turn, and how its proposals were answered.
    turned: bool = False
    answers: list[str] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Which round it is."""
        return self.talks.round


class SiteContext:
    """What all parts of a site share in a job."""

    def __init__(
        self,
        name: str,
        agreement: Agreement,
        data: Prepared,
        store: Store,
        limits: Limits,
        job: str,
        another_table: bool,
        secret: int,
    ) -> None:
        self.name, self.agreement, self.data, self.store = name, agreement, data, store
        self.limits, self.job = limits, job
        self.method = agreement.config()
        #: Notified when weights have come, or somebody is lost.
        self.lock = threading.Condition()
        self.digest = agreement.digest()
        self.speak(versions.OLDEST)
        store.put_aside()
        store.keep_table(_fingerprint(data), another_table)
        training = self.method.training
        self._secret = secret
        self.learner = _learner(data, training, agreement.seed, secret)
        self.codec = codec(self.method.line.codec)
        self.shared = self.learner.layout.shared(self.method.line.private_layers)
        self.base = self.method.line.base(self.learner.start, self.shared)
        self.roster: tuple[str, ...] = (name,)
        self.rows: dict[str, int] = {}
        self.vectors: dict[str, NDArray[np.float64]] = {}
        self.address = ""  # where this site listens, if it does
        self.addresses: dict[str, str] = {}  # where members say that they do
        self._names: tuple[str, ...] | None = None  # of what is published; not known yet
        self.purse: PrivacyBudget | None = None
        alone = self.world_of((name,))
        self.published = self.method.publish(alone)
        self.purse = None if self.method.privacy.budget is None else PrivacyBudget(store, self.method)
        told = self.published.vectors[0]
        if self.purse is not None and self.published.names:
            told = self.purse.published(alone, self.published)
        self.vectors[name], self._names = told, self.published.names
        self.members, self.state = self._kept()
        self._grounded: Context | None = None
        self.round = Round(self.past(store.round))

    # The method

    @property
    def peer_method(self) -> PeerMethod:
        """The method, of a study without a server."""
        return cast(PeerMethod, self.method)

    @property
    def by_peers(self) -> bool:
        """Whether peers hear each other at all."""
        return self.method.kind not in ("alone", "star")

    @property
    def mutual(self) -> bool:
        """Whether who hears a peer is heard by it."""
        return self.method.kind == "mutual"

    @property
    def capacity(self) -> int:
        """How many partners a site has at most."""
        return self.peer_method.capacity if self.by_peers else 1

    # Who this site and the others are

    def speak(self, wire: Sequence[int]) -> None:
        """Speak a version of the wire format."""
        self.wire = (int(wire[0]), int(wire[1]))
        self.sender_id = versions.sender_ids(self.wire, self.digest, self.job)

    @property
    def id(self) -> int:
        """The number by which this site's messages name their sender."""
        return self.sender_id(self.name)

    @property
    def others(self) -> frozenset[str]:
        """The members of this job, without this site."""
        return frozenset(self.roster) - {self.name}

    def origin(self, peer: str, received: Collection[str] | None = None, round: int | None = None) -> Origin:
        """Where something came from: a member, in this round, unless said otherwise."""
        return Origin(
            peer,
            self.others if received is None else received,
            self.round.number if round is None else round,
            self.limits,
            self.sender_id,
        )

    def join(self, members: Sequence[str], first: int, rows: Mapping[str, int]) -> None:
        """Learn who is in this job, which begins with a round; earlier members are not forgotten."""
        with self.lock:
            self.roster = tuple(sorted(members))
            self.rows = dict(rows)
            everybody = tuple(sorted({*members, *self.members}))
            if self.store.round:
                place = np.array([everybody.index(member) for member in self.members], dtype=np.int64)
                self.state = self.state.placed(place, len(everybody))
            else:
                self.state = self.method.init(self.world_of(everybody))
            self.members = everybody
            self.changed()
            # Others may have gone further than this site: what they ask about is past for it, too.
            self.round.talks = self.past(first - 1)

    def past(self, round: int) -> Negotiation:
        """The talks of a round as far as they are written down."""
        return protocol.restore(self.name, round, self.capacity, self.store.promises(round))

    def need(self, round: int, value: T | None, what: str) -> T:
        """A thing of this round; without it the conductor is out of step."""
        if not counts(round) or round != self.round.number or value is None:
            raise RequestError(f"{self.name} has not {what} for round {round}; the conductor is out of step")
        return value

    # The world as this site sees it

    @property
    def context(self) -> Context:
        """The world with what the method makes of it."""
        with self.lock:
            if self._grounded is None:
                self._grounded = with_derived(self.method, self.world_of(self.members))
            return self._grounded

    def changed(self) -> None:
        """What is known of the members is not what it was."""
        self._grounded = None

    def world_of(self, members: tuple[str, ...]) -> Context:
        """What this site knows of some members, itself among them."""
        ids, names = center_ids(members), self._names
        told, published = np.ones(len(members), dtype=np.float32), None
        if names is not None:
            published = np.full((len(members), len(names)), np.nan)
            for k, member in enumerate(members):
                if member in self.vectors:
                    published[k] = self.vectors[member]
                told[k] = self.rows_of(member)
        if published is None or self.purse is None or ROWS not in self.published.names:  # else as it told
            told[members.index(self.name)] = float(self.data.train.sizes[0])
        place = np.array([members.index(self.name)], dtype=np.int64)
        seed, rounds = self.agreement.seed, self.agreement.rounds
        return Context(
            self.learner, self.data, ids, seed, rounds, place, told, published, secret=self._secret
        )

    def rows_of(self, member: str) -> float:
        """A member's training rows: by its own vector, or else as it told the conductor."""
        if member in self.vectors and ROWS in self.published.names:
            at = self.published.names.index(ROWS)
            told = float(np.rint(np.exp(self.vectors[member][at])))
        else:
            told = float(self.rows.get(member, 1))
        # Rows weigh in averages, and nobody can check what a peer says of its own.
        return min(told, self.limits.rows * float(self.data.train.sizes[0]))

    def links(self, round: int) -> tuple[Ints, Ints]:
        """Who hears whom in a round, of a method whose graph is given."""
        return self.peer_method.transfers(self.context, round)

    def pack(self, message: Weights, number: int) -> bytes:
        """A message's frame: the shared columns of (1, P), in the codec of the study."""
        key = int(streams.bits(self.agreement.seed, "codec", number, [center_id(self.name)])[0])
        sent = message[0, : self.shared] - self.base
        return pack(sent, self.codec, number, self.id, key)

    def _kept(self) -> tuple[tuple[str, ...], Any]:
        """The members that the last round knew of and the state it left, or this site at the start."""
        model, kept = self.store.model(), self.store.state()
        if model is None:
            return (self.name,), self.method.init(self.world_of((self.name,)))
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
        kind = type(self.method.init(self.world_of(members)))
        try:
            return members, thaw(kind, content, models=model[None])
        except StateError as error:
            raise RequestError(
                f"{self.store.path}: what the method remembered cannot be read ({error}); restore a backup"
            ) from error


def counts(round: Any) -> bool:
    """Whether something can be the number of a round; the conductor may say anything."""
    return isinstance(round, int) and not isinstance(round, bool) and round >= 1


def may_score(label: NDArray[Any], patient: NDArray[np.int64] | None, outcome: Outcome, floor: int) -> bool:
    """Whether a score of rows with these labels may be told: of enough patients with the event, and without.

    From fractions of pairs, told round after round, follows how many there are of each.
    """
    return not floor or both_enough(outcome.events(label), patient, floor)


def _learner(data: Prepared, training: Training, seed: int, secret: int) -> Learner:
    """What trains here."""
    return learner_for(data, training, seed, secret=secret)


def _fingerprint(data: Prepared) -> str:
    """Equal for the same rows in the same splits."""
    digest = hashlib.blake2b(digest_size=16)
    for rows in (data.train, data.validation, data.test):
        digest.update(repr(rows.x.shape).encode())
        digest.update(np.ascontiguousarray(rows.x).tobytes() + np.ascontiguousarray(rows.y).tobytes())
    return digest.hexdigest()
