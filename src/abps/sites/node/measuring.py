"""Common scales from masked counts, before the first round of a study: nobody sees what a single site has.

Sites count their values in bins that all know, three times (:mod:`abps.data.scales`), each under masks:
relay, operator and members see totals. Every site computes the next bins, and at last the scales, for itself,
and checks that a total holds at least its own counts. The result stays in a store of its own,
``STUDY-scales.sqlite``, for later jobs of the study.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.data import scales
from abps.data.codebook import StatisticsSource
from abps.data.federation import Federation
from abps.data.harmonise import coarse_medians
from abps.data.outcome import Outcome, as_plain
from abps.data.prepare import numeric_rows
from abps.data.scales import PASSES, outcome_columns
from abps.data.split import assign_splits
from abps.methods.accounting import counting_of
from abps.privacy.budget import Release
from abps.privacy.fixed_point import masked_bytes
from abps.privacy.secure_sum import Member
from abps.privacy.small_counts import least_rows
from abps.sites.consent.agreement import Agreement
from abps.sites.node.context import JobTerms, pay
from abps.sites.node.transport import RELAY
from abps.sites.protocol.commands import Command
from abps.sites.protocol.masking import MaskedSums
from abps.sites.store.rows import EntryKind, LogEntry, canonical, utc
from abps.sites.store.store import Store

Floats = NDArray[np.float64]

MEASURE = "scales"  # what a site is to open: its part in these counts
_FOUND = "scales"  # the fact of a store that holds what came out

#: The fact with the rough medians of all sites' columns, by which a site finds its unit (`site harmonise`).
MEDIANS = "medians"


def store_name(study: str) -> str:
    return f"{study} {MEASURE}"


def with_scales(agreement: Agreement, counted: Mapping[str, Any]) -> Agreement:
    """The study with what was counted; ``RequestError`` if that is not what it lacks."""
    try:
        found = scales.scales_from_json(counted["statistics"])
        outcome = Outcome.from_json(counted["outcome"]) if counted["outcome"] is not None else None
        summarised = msgspec.convert(counted["summarised"], StatisticsSource)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RequestError(f"the common scales that the relay names are none ({error!r})") from error
    book, lacking = agreement.book, set(agreement.uncounted)
    about = set(outcome_columns(book.outcome))
    if set(found) != lacking - about or (outcome is None) != (not about):
        raise RequestError("the common scales that the relay names are of other columns than the study lacks")
    if summarised.seed != agreement.seed:
        raise RequestError("the common scales that the relay names are of another seed")
    every = {**(book.statistics or {}), **found}
    statistics = {name: every[name] for name in book.numbers if name in every}
    if outcome is not None:
        new = {name: getattr(outcome, name) for name in ("grid", "hazards", "level", "scale")}
        book = replace(book, outcome=replace(book.outcome, **new))
    made = replace(agreement, book=replace(book, statistics=statistics, statistics_source=summarised))
    if made.uncounted:
        raise RequestError("the common scales that the relay names are not all that the study lacks")
    return made


def resolved(
    agreement: Agreement, named: Mapping[str, Any] | None, kept: Mapping[str, Any] | None
) -> Agreement:
    """The study as it runs: with the scales that the relay names, if it lacks them.  kept: what this site has
    counted with the others, if it has; nobody may name anything else then."""
    if not agreement.uncounted:
        return agreement
    if named is None:
        raise RequestError("the relay names no common scales; is the relay of the same version?")
    if kept is not None and canonical(dict(kept)) != canonical(dict(named)):
        raise RequestError("the relay names other common scales than those that the sites have counted")
    return with_scales(agreement, named)


def kept_in(store: Store) -> dict[str, Any] | None:
    found = store.facts().get(_FOUND)
    return None if found is None else dict(json.loads(found))


class Tally:
    """The counts so far, as site and relay both keep them: the next bins, and who has spent what."""

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.columns = len(agreement.uncounted)
        self.found = scales.HistogramRefinement(self.columns)
        self.counting = counting_of(agreement.config(), agreement.seed)
        self.spent: dict[str, int] = {}
        self.members = 0

    def doubt(self) -> float:
        return self.counting.doubt(self.columns, self.members)

    def take(self, total: Floats, names: Sequence[str]) -> None:
        """A total, (entries,), and whose counts are in it."""
        self.members = len(names)
        share = masked_bytes(len(names), self.found.entries) // len(names)
        self.spent = {name: self.spent.get(name, 0) + share for name in names}
        self.found.take(total.reshape(self.columns, -1), self.doubt())

    def result(self) -> dict[str, Any]:
        """What follows from the last total, as plain data."""
        book, names = self.agreement.book, self.agreement.uncounted
        about = outcome_columns(book.outcome)
        numbers = names[: len(names) - len(about)]
        outcome = scales.settle_from_histograms(book.outcome, self.found, len(numbers)) if about else None
        back = scales.scales_size(len(numbers)) + (0 if outcome is None else scales.outcome_size(outcome))
        spent = {name: each + back for name, each in sorted(self.spent.items())}
        return {
            "statistics": as_plain(dict(zip(numbers, self.found.scales(self.doubt())))),
            "outcome": None if outcome is None else outcome.to_json(),
            "summarised": as_plain(StatisticsSource(self.agreement.seed, spent)),
        }


class ScaleCounting:
    """A site's part.  table: its own.  terms: how it takes part; none: as in a rehearsal."""

    def __init__(
        self, name: str, agreement: Agreement, table: Federation, store: Store, terms: JobTerms | None = None
    ) -> None:
        terms = terms or JobTerms()
        self.name, self.agreement, self.store, self.consent = name, agreement, store, terms.consent
        names, book = agreement.uncounted, agreement.book
        split = assign_splits(table, agreement.seed, book.shared_patients)
        self._values, start, rows = numeric_rows(table, split, names)
        # Totals of two tables that differ by a patient would show that patient.
        store.keep_table(hashlib.blake2b(self._values.tobytes(), digest_size=16).hexdigest())
        self._owner = np.zeros(int(start[-1]), dtype=np.int64)
        self._least = None
        if book.min_cell:
            patient = None if table.patient is None else table.patient[rows]
            self._least = least_rows(table.center[rows], patient, 1, book.min_cell)
        self._tally = Tally(agreement)
        self._counting = counting_of(agreement.config(), agreement.seed + terms.secret)
        self.relay = RELAY  # who carries the counts; without a relay, all members
        self.rows = int(start[-1])
        member = Member(name, f"{agreement.digest()}/{terms.job}/{MEASURE}")
        self.sums = MaskedSums(member, store, self.log, self._summand, EntryKind.STATISTICS, "count")
        self.sums.signer, self.sums.authority = terms.signer, terms.authority
        self.sums.leaving = self._pay
        self._own: Floats | None = None  # this site's counts of the sum under way
        #: What the scheduler may ask for.
        self.commands: dict[Command, Callable[..., Any]] = {
            Command.MEASURE: self.measure,
            **self.sums.commands(),
            Command.SUM_TOTAL: self.sum_total,
        }

    def measure(self) -> dict[str, Any]:
        """The study, how many training rows this site has, and what was counted before."""
        study, known = self.agreement.digest(), kept_in(self.store)
        facts = {"agreement": study, "rows": self.rows, "scales": known}
        why = "the study, our training rows, scales if we know them"
        self.log(EntryKind.REPORT, len(canonical(facts)), why)
        return facts

    def receive(self, peer: str, what: str, data: bytes) -> bytes:
        return b""  # peers have nothing to say here

    def _summand(self, number: int, names: Sequence[str]) -> Floats:
        if number != self._tally.found.taken + 1 or self._own is not None or number > PASSES:
            raise RequestError(f"the count {number} is not the next of this site")
        if self.consent is not None:
            self.consent.members(names)
            self.consent.round(sum(e.bytes for e in self.store.traffic() if e.sent))
        self._own = self._counts()
        return self._own.ravel()

    def _pay(self) -> None:
        method = self.agreement.config()
        due = [Release(0, "statistics", method.training.noise_multiplier)]
        if method.privacy.budget is not None and not pay(self.store, method, due):
            raise RequestError("the privacy account does not afford what the scheduler asks for")

    def sum_total(self, number: int, data: bytes) -> bool:
        """The total of a count, as the scheduler says; whether it was the last."""
        if self._own is None or number != self._tally.found.taken + 1:
            raise RequestError(f"there is no count {number} under way")
        total = self.sums.total(number, data)
        if total.size != self._own.size:
            raise RequestError("the total is none")
        self._tally.members = len(self.sums.listed)
        slack = 0.5 + self._tally.doubt()
        if (total < self._own.ravel() - slack).any():
            raise RequestError("the total is less than what this site alone has counted; it is not the total")
        self.log(EntryKind.STATISTICS, len(data), f"the total of count {number}", sent=False)
        if number == 1:
            medians = coarse_medians(self.agreement.uncounted, total.reshape(self._tally.columns, -1))
            self.store.keep(**{MEDIANS: json.dumps(medians)})
        self._tally.take(total, self.sums.listed)
        self._own = None
        if self._tally.found.done:
            self.store.keep(**{_FOUND: json.dumps(self._tally.result())})
        return self._tally.found.done

    def _counts(self) -> Floats:
        """(1, columns, bins + 2) this site's counts, with noise where the study has some."""
        found = self._tally.found
        counts = scales.published_counts(self._values, self._owner, 1, found.edges, self._least)
        return self._counting.noisy(counts, center_ids((self.name,)), found.taken)

    def log(self, kind: EntryKind, size: int, why: str, number: int = 0, sent: bool = True) -> None:
        # All of it is before the first round, whichever count it belongs to.
        self.store.log(LogEntry(utc(), 0, self.relay, sent, kind, size, why))
