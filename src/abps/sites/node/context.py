"""What a site is and knows in a job: its rows and model, who the members are, and the round under way. All
parts of a site share one :class:`SiteContext`; what peers and the scheduler change at once is changed under
``lock``."""

import hashlib
import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.data.outcome import Outcome
from abps.data.prepare import Prepared
from abps.methods.base import Context, Method, with_derived
from abps.methods.state_bytes import StateError, thaw
from abps.methods.sum_study import SumStudy
from abps.models.learners import learner_for
from abps.privacy.budget import Account, PrivacyLedger, Release
from abps.privacy.small_counts import both_enough
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.approval import Consent
from abps.sites.consent.keys import Signer
from abps.sites.node import differencing
from abps.sites.store.store import Store
from abps.wire.admission import Limits, Origin
from abps.wire.messages import sender_ids

T = TypeVar("T")

#: The facts of a store that hold a privacy account, and what it leaves out.
_ACCOUNT, _GAPS = "privacy", "privacy_gaps"


@dataclass(frozen=True)
class JobTerms:
    """How a site takes part in a job, which has the same name at all sites.  limits: what the site tolerates
    of a peer.  consent: asked before a job and each of its rounds.  signer: the key that signs the site's
    log.  (A rehearsal has neither.)  secret: a number that nobody else knows, for draws that hide rows; 0:
    they follow from the seed.  another_table: the rows may be others than those of earlier jobs."""

    job: str = ""
    limits: Limits = field(default_factory=Limits)
    consent: Consent | None = None
    signer: Signer | None = None
    secret: int = 0
    another_table: bool = False

    @property
    def authority(self) -> bytes | None:
        return None if self.consent is None else self.consent.authority


@dataclass
class Round:
    """A round at a site.  silent: members that are absent, or do not answer any more.
    resting: whether the privacy budget does not afford it."""

    number: int
    silent: set[str] = field(default_factory=set)
    resting: bool = False


class SiteContext:
    """What all parts of a site share in a job."""

    def __init__(
        self, name: str, agreement: Agreement, data: Prepared, store: Store, terms: JobTerms
    ) -> None:
        self.name, self.agreement, self.data, self.store, self.terms = name, agreement, data, store, terms
        self.method = agreement.config()
        self.lock = threading.RLock()
        self.digest = agreement.digest()
        self.sender_id = sender_ids(self.digest, terms.job)
        store.keep_table(_fingerprint(data), terms.another_table)
        if isinstance(self.method, SumStudy):
            differencing.remember(store, self.method, data)
        self.learner = learner_for(data, self.method.training, agreement.seed, secret=terms.secret)
        self.roster: tuple[str, ...] = (name,)
        self.rows: dict[str, int] = {}
        self.members, self.state = self._stored_state()
        self._derived: Context | None = None
        self.round = Round(store.round)

    # This site and the others

    @property
    def id(self) -> int:
        return self.sender_id(self.name)

    @property
    def others(self) -> frozenset[str]:
        return frozenset(self.roster) - {self.name}

    def origin(self, peer: str) -> Origin:
        return Origin(peer, self.others, self.round.number, self.terms.limits, self.sender_id)

    def join(self, members: Sequence[str], first: int, rows: Mapping[str, int]) -> None:
        """Learn who is in this job, which begins with round ``first``; earlier members are not forgotten."""
        with self.lock:
            self.roster, self.rows = tuple(sorted(members)), dict(rows)
            self.members = tuple(sorted({*members, *self.members}))
            self._derived = None
            if not self.store.round:
                self.state = self.method.init(self.method_context)
            self.round = Round(first - 1)

    def need(self, round: int, value: T | None, what: str) -> T:
        """A thing of this round; without it the scheduler is out of step."""
        if not is_round(round) or round != self.round.number or value is None:
            raise RequestError(f"{self.name} has not {what} for round {round}; the scheduler is out of step")
        return value

    # What the method sees

    @property
    def method_context(self) -> Context:
        with self.lock:
            if self._derived is None:
                self._derived = self._context_of(self.members)
            return self._derived

    def _context_of(self, members: tuple[str, ...]) -> Context:
        place, own = members.index(self.name), float(self.data.train.sizes[0])
        # Rows weigh in sums, and nobody can check what a peer says of its own.
        rows = [min(float(self.rows.get(member, 1)), self.terms.limits.rows * own) for member in members]
        rows[place] = own
        context = Context(
            self.learner, self.data, center_ids(members), self.agreement.seed, self.agreement.rounds,
            np.array([place], dtype=np.int64), np.array(rows, dtype=np.float32), np.zeros((len(members), 0)),
        )  # fmt: skip
        return with_derived(self.method, context)

    def _stored_state(self) -> tuple[tuple[str, ...], Any]:
        """The members and the state after the last round; none before the first (:meth:`join` makes it)."""
        model, kept = self.store.model(), self.store.state()
        if model is None or kept is None:
            return (self.name,), None
        size, wanted = len(model), self.learner.layout.size
        if size < wanted:  # a linear one may go on with pair terms
            why = f"holds a model of {size} weights and this study's has {wanted}"
            raise RequestError(f"{self.store.path} {why}; give the study a store of its own")
        members, content = kept
        kind = type(self.method.init(self._context_of(members)))
        try:
            return members, thaw(kind, content, models=model[None])
        except StateError as error:
            why = f"the method's state cannot be read ({error}); restore a backup"
            raise RequestError(f"{self.store.path}: {why}") from error


def is_round(round: Any) -> bool:
    """Whether something can be the number of a round; the scheduler may say anything."""
    return isinstance(round, int) and not isinstance(round, bool) and round >= 1


def may_score(label: NDArray[Any], patient: NDArray[np.int64] | None, outcome: Outcome, floor: int) -> bool:
    """Whether a score of rows with these labels may leave: enough patients with the event, and without. From
    fractions of pairs, reported round after round, follows how many there are of each."""
    return not floor or both_enough(outcome.events(label), patient, floor)


def _fingerprint(data: Prepared) -> str:
    """Equal for the same rows in the same splits."""
    digest = hashlib.blake2b(digest_size=16)
    for rows in (data.train, data.validation, data.test):
        digest.update(repr(rows.x.shape).encode())
        digest.update(np.ascontiguousarray(rows.x).tobytes() + np.ascontiguousarray(rows.y).tobytes())
    return digest.hexdigest()


# The privacy account of a site, in its store: what was spent is written down before anything of it leaves. It
# holds every release with its noise, so that ε can be computed again from the file that an export has.


def pay(store: Store, method: Method, due: Sequence[Release], gaps: Sequence[str] = ()) -> bool:
    """Pay for what leaves, and write it down; False if the account does not afford it.  gaps: what it does
    not cover, in words."""
    budget = method.privacy.budget
    before = account_of(store) or Account(math.inf if budget is None else budget, method.privacy.dp_delta)
    if not before.affords(*due):
        return False
    spent = json.dumps(before.spend(*due).to_json())
    store.keep(**{_ACCOUNT: spent, **({_GAPS: json.dumps(list(gaps))} if gaps else {})})
    return True


def inherit(store: Store, before: Account | None) -> None:
    """Let the account of a study begin with what was spent before its first round; once."""
    if before is not None and account_of(store) is None:
        store.keep(**{_ACCOUNT: json.dumps(before.to_json())})


def account_of(store: Store) -> Account | None:
    """The account that a store holds; none of a study without a budget."""
    kept = store.facts().get(_ACCOUNT)
    return None if kept is None else Account.from_json(json.loads(kept))


def ledger_of(store: Store) -> dict[str, Any] | None:
    """The same as a ledger of one center for a file, with the ε that stands in the store."""
    facts, account = store.facts(), account_of(store)
    if account is None:
        return None
    ledger = PrivacyLedger({facts["site"]: account}, tuple(json.loads(facts.get(_GAPS, "[]")))).to_json()
    ledger["centers"][facts["site"]]["epsilon"] = json.loads(facts[_ACCOUNT])["epsilon"]
    return ledger
