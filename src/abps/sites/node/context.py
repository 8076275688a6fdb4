"""What a site is and knows in a job: its rows and model, what members published, and the round under way.

All parts of a site share one :class:`SiteContext`. What belongs to one round is in :class:`Round`, which is
made anew when a round begins; what peers and the scheduler change at once is changed under ``lock``.
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
from abps.methods.base import ROWS, Context, with_derived
from abps.methods.peers import PeerMethod, Preferences
from abps.methods.state_bytes import StateError, thaw
from abps.models.learners import learner_for
from abps.privacy.small_counts import both_enough
from abps.sites.consent.agreement import Agreement
from abps.sites.node.privacy_ledger import PrivacyBudget
from abps.sites.store.store import Store
from abps.wire import versions
from abps.wire.admission import Limits, Origin
from abps.wire.codecs import codec
from abps.wire.frames import pack

T = TypeVar("T")


@dataclass
class Round:
    """One round at a site: its negotiation, what came of training, what arrived."""

    talks: Negotiation
    #: Members that are absent, or do not answer any more.
    silent: set[str] = field(default_factory=set)
    #: Whether the privacy budget does not afford the round.
    resting: bool = False
    trained: Any = None
    frames: list[bytes] = field(default_factory=list)
    preferences: Preferences | None = None
    arrived: dict[str, Weights] = field(default_factory=dict)
    #: Peers whose weights were refused.
    refused: set[str] = field(default_factory=set)
    #: Whether this site has had its turn to propose, and how its proposals were answered.
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
        self.lock = threading.RLock()
        self.digest = agreement.digest()
        self.sender_id = versions.sender_ids(self.digest, job)
        store.keep_table(_fingerprint(data), another_table)
        self._secret = secret
        self.learner = learner_for(data, self.method.training, agreement.seed, secret=secret)
        self.codec = codec(self.method.line.codec)
        self.shared = self.learner.layout.shared(self.method.line.private_layers)
        self.base = self.method.line.base(self.learner.start, self.shared)
        self.roster: tuple[str, ...] = (name,)
        self.rows: dict[str, int] = {}
        self.vectors: dict[str, NDArray[np.float64]] = {}
        self._names: tuple[str, ...] | None = None  # of what is published; not known yet
        self.budget: PrivacyBudget | None = None
        alone = self._context_of((name,))
        self.published = self.method.publish(alone)
        self.budget = None if self.method.privacy.budget is None else PrivacyBudget(store, self.method)
        own = self.published.vectors[0]
        if self.budget is not None and self.published.names:
            own = self.budget.published(alone, self.published)
        self.vectors[name], self._names = own, self.published.names
        self.members, self.state = self._stored_state()
        self._derived: Context | None = None
        self.round = Round(self.past(store.round))

    # The method

    @property
    def peer_method(self) -> PeerMethod:
        """The method of a study whose sites form pairs."""
        return cast(PeerMethod, self.method)

    @property
    def pairs(self) -> bool:
        """Whether sites form pairs and exchange weights."""
        return self.method.kind == "mutual"

    @property
    def capacity(self) -> int:
        """How many partners a site has at most."""
        return self.peer_method.capacity if self.pairs else 1

    # This site and the others

    @property
    def id(self) -> int:
        """The number by which this site's messages name their sender."""
        return self.sender_id(self.name)

    @property
    def others(self) -> frozenset[str]:
        """The members of this job, without this site."""
        return frozenset(self.roster) - {self.name}

    def origin(self, peer: str, accepted: Collection[str] | None = None, round: int | None = None) -> Origin:
        """Where something came from: a member, in this round, unless said otherwise."""
        return Origin(
            peer,
            self.others if accepted is None else accepted,
            self.round.number if round is None else round,
            self.limits,
            self.sender_id,
        )

    def join(self, members: Sequence[str], first: int, rows: Mapping[str, int]) -> None:
        """Learn who is in this job, which begins with round ``first``; earlier members are not forgotten."""
        with self.lock:
            self.roster = tuple(sorted(members))
            self.rows = dict(rows)
            everybody = tuple(sorted({*members, *self.members}))
            if self.store.round:
                place = np.array([everybody.index(member) for member in self.members], dtype=np.int64)
                self.state = self.state.placed(place, len(everybody))
            self.members = everybody
            self.changed()
            if not self.store.round:
                self.state = self.method.init(self.method_context)
            # Others may have gone further than this site: what they ask about is past for it, too.
            self.round.talks = self.past(first - 1)

    def past(self, round: int) -> Negotiation:
        """The negotiation of a round as far as it is written down."""
        return protocol.restore(self.name, round, self.capacity, self.store.promises(round))

    def need(self, round: int, value: T | None, what: str) -> T:
        """A thing of this round; without it the scheduler is out of step."""
        if not is_round(round) or round != self.round.number or value is None:
            raise RequestError(f"{self.name} has not {what} for round {round}; the scheduler is out of step")
        return value

    # What the method sees

    @property
    def method_context(self) -> Context:
        """What the method works with, including what it derives from what members published."""
        with self.lock:
            if self._derived is None:
                self._derived = self._derived_of(self.members)
            return self._derived

    def _derived_of(self, members: tuple[str, ...]) -> Context:
        return with_derived(self.method, self._context_of(members))

    def changed(self) -> None:
        """What is known of the members has changed."""
        self._derived = None

    def _context_of(self, members: tuple[str, ...]) -> Context:
        """What this site knows of some members, itself among them."""
        ids, names = center_ids(members), self._names
        rows, published = np.ones(len(members), dtype=np.float32), None
        if names is not None:
            published = np.full((len(members), len(names)), np.nan)
            for k, member in enumerate(members):
                if member in self.vectors:
                    published[k] = self.vectors[member]
                rows[k] = self.rows_of(member)
        place = members.index(self.name)
        if published is None or self.budget is None or ROWS not in self.published.names:  # else as published
            rows[place] = float(self.data.train.sizes[0])
        return Context(
            self.learner,
            self.data,
            ids,
            self.agreement.seed,
            self.agreement.rounds,
            np.array([place], dtype=np.int64),
            rows,
            published,
            secret=self._secret,
        )

    def rows_of(self, member: str) -> float:
        """A member's training rows: by its own vector, or else as it reported them."""
        if member in self.vectors and ROWS in self.published.names:
            at = self.published.names.index(ROWS)
            rows = float(np.rint(np.exp(self.vectors[member][at])))
        else:
            rows = float(self.rows.get(member, 1))
        # Rows weigh in averages, and nobody can check what a peer says of its own.
        return min(rows, self.limits.rows * float(self.data.train.sizes[0]))

    def pack(self, message: Weights, number: int) -> bytes:
        """A message's frame: the shared columns of (1, P), in the codec of the study."""
        key = int(streams.bits(self.agreement.seed, "codec", number, [center_id(self.name)])[0])
        sent = message[0, : self.shared] - self.base
        return pack(sent, self.codec, number, self.id, key)

    def _stored_state(self) -> tuple[tuple[str, ...], Any]:
        """The members and the state after the last round; none before the first (:meth:`join` makes it)."""
        model, kept = self.store.model(), self.store.state()
        if model is None or kept is None:
            return (self.name,), None
        if len(model) < self.learner.layout.size:  # a linear one may go on with pair terms
            raise RequestError(
                f"{self.store.path} holds a model of {len(model)} weights and this study's has "
                f"{self.learner.layout.size}; give the study a store of its own"
            )
        members, content = kept
        kind = type(self.method.init(self._derived_of(members)))
        try:
            return members, thaw(kind, content, models=model[None])
        except StateError as error:
            raise RequestError(
                f"{self.store.path}: the method's state cannot be read ({error}); restore a backup"
            ) from error


def is_round(round: Any) -> bool:
    """Whether something can be the number of a round; the scheduler may say anything."""
    return isinstance(round, int) and not isinstance(round, bool) and round >= 1


def may_score(label: NDArray[Any], patient: NDArray[np.int64] | None, outcome: Outcome, floor: int) -> bool:
    """Whether a score of rows with these labels may leave: enough patients with the event, and without.

    From fractions of pairs, reported round after round, follows how many there are of each.
    """
    return not floor or both_enough(outcome.events(label), patient, floor)


def _fingerprint(data: Prepared) -> str:
    """Equal for the same rows in the same splits."""
    digest = hashlib.blake2b(digest_size=16)
    for rows in (data.train, data.validation, data.test):
        digest.update(repr(rows.x.shape).encode())
        digest.update(np.ascontiguousarray(rows.x).tobytes() + np.ascontiguousarray(rows.y).tobytes())
    return digest.hexdigest()
