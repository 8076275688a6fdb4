"""Common scales from masked counts, before the first round of a study: nobody sees what a single site has.

With ``secure=yes`` sites need not tell summaries of their columns in codebooks. They count their values in
bins that all know, three times (:mod:`abps.data.histograms`), and each count is a masked sum
(:mod:`abps.privacy.secure_sum`): relay, operator and members see totals. Every site works the next bins, and
at last the scales, out for itself, and looks whether a total holds at least its own counts; the relay cannot
choose bins. What came out stays in a store of its own, ``STUDY-scales.sqlite``, with the log of what left;
later jobs of the study go on with it.

Who sees two totals that differ by one site sees that site's counts. So a site opens a count again, after a
job that failed, only with the same members.
"""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.data.codebook import StatisticsSource
from abps.data.federation import Federation
from abps.data.histograms import PASSES, HistogramRefinement, published_counts, settle_from_histograms
from abps.data.outcome import Outcome
from abps.data.prepare import numeric_rows
from abps.data.scales import Statistics, outcome_columns, outcome_size, scales_size
from abps.data.split import assign_splits
from abps.methods.accounting import counting_of
from abps.privacy.budget import Release
from abps.privacy.fixed_point import masked_bytes
from abps.privacy.secure_sum import SumError
from abps.privacy.small_counts import least_rows
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.approval import Consent
from abps.sites.consent.keys import Signer
from abps.sites.node.privacy_ledger import pay
from abps.sites.node.sum_steps import SumSteps
from abps.sites.protocol import answers, masking
from abps.sites.protocol.masking import Masking
from abps.sites.protocol.steps import Line, Timeouts, decided
from abps.sites.store.chain import canonical
from abps.sites.store.store import Entry, Store

Floats = NDArray[np.float64]

#: What a site is to open: its part in these counts.
MEASURE = "scales"

#: The facts of a store that hold what came out, and whose totals were opened, by count.
_FOUND, _OPENED = "scales", "opened"

#: Who asks.
_CONDUCTOR = "server"


def store_name(study: str) -> str:
    """The study whose store holds the scales."""
    return f"{study} {MEASURE}"


def context(agreement: Agreement, job: str) -> str:
    """What the masks are for: they fit no other study, job or purpose."""
    return f"{agreement.digest()}/{job}/{MEASURE}"


def with_scales(agreement: Agreement, told: Mapping[str, Any]) -> Agreement:
    """The study with what was counted; ``RequestError`` if that is not what it lacks."""
    try:
        found = Statistics.from_json(told["statistics"])
        outcome = Outcome.from_json(told["outcome"]) if told["outcome"] is not None else None
        summarised = StatisticsSource.from_json(told["summarised"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RequestError(f"the common scales that were told are none ({error!r})") from error
    book, lacking = agreement.book, set(agreement.uncounted)
    about = set(outcome_columns(book.outcome))
    if set(found.scales) != lacking - about or (outcome is None) != (not about):
        raise RequestError("the common scales that were told are of other columns than the study lacks")
    if summarised.seed != agreement.seed:
        raise RequestError("the common scales that were told are of another seed")
    known = {} if book.statistics is None else dict(book.statistics.scales)
    scales = {
        name: (known | dict(found.scales))[name] for name in book.numbers if name in known or name in lacking
    }
    if outcome is not None:
        settled = replace(
            book.outcome, grid=outcome.grid, hazards=outcome.hazards, level=outcome.level, scale=outcome.scale
        )
        book = replace(book, outcome=settled)
    made = replace(agreement, book=replace(book, statistics=Statistics(scales), statistics_source=summarised))
    if made.uncounted:
        raise RequestError("the common scales that were told are not all that the study lacks")
    return made


def resolved(
    agreement: Agreement, told: Mapping[str, Any] | None, kept: Mapping[str, Any] | None
) -> Agreement:
    """The study as it runs: with the scales that the conductor names, if it lacks them.

    kept: what this site has counted with the others, if it has; nobody may name anything else then.
    """
    if not agreement.uncounted:
        return agreement
    if told is None:
        raise RequestError("the conductor names no common scales; is the relay of the same version?")
    if kept is not None and canonical(dict(kept)) != canonical(dict(told)):
        raise RequestError("the conductor names other common scales than those that the sites have counted")
    return with_scales(agreement, told)


def kept_in(store: Store) -> dict[str, Any] | None:
    """What was counted, by the store of these counts."""
    found = store.facts().get(_FOUND)
    return None if found is None else dict(json.loads(found))


def _result(
    agreement: Agreement, found: HistogramRefinement, doubt: float, spent: Mapping[str, int]
) -> dict[str, Any]:
    """What follows from the last total, as plain data."""
    names, about = agreement.uncounted, outcome_columns(agreement.book.outcome)
    numbers = names[: len(names) - len(about)]
    scales = dict(zip(numbers, found.scales(doubt)))
    outcome = settle_from_histograms(agreement.book.outcome, found, len(numbers)) if about else None
    back = scales_size(len(numbers)) + (0 if outcome is None else outcome_size(outcome))
    told = StatisticsSource(agreement.seed, {name: each + back for name, each in sorted(spent.items())})
    return {
        "statistics": Statistics(scales).to_json(),
        "outcome": None if outcome is None else outcome.to_json(),
        "summarised": told.to_json(),
    }


class _Tally:
    """The counts so far, as site and conductor both keep them: the next bins, and who has spent what."""

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.columns = len(agreement.uncounted)
        self.found = HistogramRefinement(self.columns)
        self.counting = counting_of(agreement.config(), agreement.seed)
        self.spent: dict[str, int] = {}
        self.members = 0

    def doubt(self) -> float:
        return 0.0 if self.counting is None else self.counting.doubt(self.columns, self.members)

    def take(self, total: Floats, names: Sequence[str]) -> None:
        """A total, (entries,), and whose counts are in it."""
        self.members = len(names)
        share = masked_bytes(len(names), self.found.entries) // len(names)
        self.spent = {name: self.spent.get(name, 0) + share for name in names}
        self.found.take(total.reshape(self.columns, -1), self.doubt())

    def result(self) -> dict[str, Any]:
        return _result(self.agreement, self.found, self.doubt(), self.spent)


class Measuring:
    """A site's part; its methods are called by the conductor."""

    def __init__(
        self,
        name: str,
        agreement: Agreement,
        table: Federation,
        store: Store,
        consent: Consent | None = None,
        signer: Signer | None = None,
        job: str = "",
        secret: int = 0,
    ) -> None:
        """table: the site's own.  secret: of the noise, if there is any."""
        self.name, self.agreement, self.store, self.consent = name, agreement, store, consent
        names, book = agreement.uncounted, agreement.book
        split = assign_splits(table, agreement.seed, book.shared_patients)
        self._values, start, rows = numeric_rows(table, split, names)
        self._owner = np.zeros(int(start[-1]), dtype=np.int64)
        self._least = None
        if book.min_cell:
            patient = None if table.patient is None else table.patient[rows]
            self._least = least_rows(table.center[rows], patient, 1, book.min_cell)
        self._tally = _Tally(agreement)
        self._counting = counting_of(agreement.config(), agreement.seed + secret)
        authority = None if consent is None else consent.authority
        masks = Masking(name, context(agreement, job), signer, authority)
        self._steps = SumSteps(masks, self._log, "count")
        self._told: Floats | None = None  # this site's counts of the sum under way
        self._listed: tuple[str, ...] = ()

    def measure(self) -> dict[str, Any]:
        """First words: which study, how many training rows, and what was counted before."""
        told = {
            "agreement": self.agreement.digest(), "rows": len(self._owner), "scales": kept_in(self.store)
        }  # fmt: skip
        self._log("told", len(canonical(told)), "the study, our training rows, scales if we know them")
        return told

    def receive(self, peer: str, what: str, data: bytes) -> bytes:
        """Peers have nothing to say here."""
        return b""

    def lost(self, gone: Sequence[str]) -> None:
        """Who is gone is left out of the sums by the conductor."""

    def sum_introduce(self) -> list[bytes]:
        """This site's key for these sums, and why it is to be believed."""
        return self._steps.introduce()

    def sum_meet(self, introductions: Mapping[str, Sequence[bytes]]) -> None:
        """Everybody's keys; whose is not its own takes part in no sum."""
        for name in self._steps.meet(introductions):
            self._log("told", 0, f"the key for masked sums that was told as {name}'s is not its own")

    def sum_keys(self, number: int, names: Sequence[str]) -> list[bytes]:
        """Step 1 of a count; which one, from 1 on."""
        if number != self._tally.found.taken + 1 or self._told is not None or number > PASSES:
            raise RequestError(f"the count {number} is not the next of this site")
        if self.consent is not None:
            self.consent.members(names)
            self.consent.round(sum(e.bytes for e in self.store.traffic() if e.sent))
        self._told = self._counts()
        return self._steps.keys(number, names)

    def sum_shares(self, number: int, keys: Mapping[str, Sequence[bytes]]) -> dict[str, bytes]:
        """Step 2: shares of this site's secrets, each readable by one other site."""
        return self._steps.shares(number, keys)

    def sum_masked(self, number: int, sealed: Mapping[str, bytes]) -> bytes:
        """Step 3: this site's counts, under its masks; they are paid for where there is a budget."""
        if self._told is None:
            raise RequestError(f"there is no count {number} under way")
        method = self.agreement.config()
        if method.privacy.budget is not None:
            pay(self.store, method, Release(0, "statistics", method.training.noise_multiplier))
        what = f"count {number} of our numeric columns"
        return self._steps.masked(number, sealed, self._told.ravel(), "statistics", what)

    def sum_present(self, number: int, names: Sequence[str]) -> bytes:
        """Step 4: sign whose counts have come; those of an earlier attempt, if there was one."""
        listed = tuple(sorted(names))
        before = json.loads(self.store.facts().get(_OPENED, "{}")).get(str(number))
        if before is not None and tuple(before) != listed:
            raise RequestError(
                f"count {number} was opened with other members before; the difference would show a site"
            )
        self._listed = listed
        return self._steps.present(number, names)

    def sum_open(self, number: int, names: Sequence[str], signatures: Mapping[str, bytes]) -> list[Any]:
        """Step 5: the shares that take the masks off the total; whose it is stands on the disk before."""
        told = self._steps.opened(number, names, signatures)
        opened = json.loads(self.store.facts().get(_OPENED, "{}"))
        self.store.keep(**{_OPENED: json.dumps({**opened, str(number): sorted(names)})})
        return told

    def sum_total(self, number: int, data: bytes) -> bool:
        """The total of a count, as the conductor says; whether it was the last."""
        if self._told is None or number != self._tally.found.taken + 1:
            raise RequestError(f"there is no count {number} under way")
        total = np.frombuffer(data, dtype="<f8").astype(np.float64)
        if total.size != self._told.size or not np.isfinite(total).all():
            raise RequestError("the total is none")
        self._tally.members = len(self._listed)
        slack = 0.5 + self._tally.doubt()
        if (total < self._told.ravel() - slack).any():
            raise RequestError("the total is less than what this site alone has counted; it is not the total")
        self._log("statistics", len(data), f"the total of count {number}", sent=False)
        self._tally.take(total, self._listed)
        self._told = None
        if self._tally.found.done:
            self.store.keep(**{_FOUND: json.dumps(self._tally.result())})
        return self._tally.found.done

    def _counts(self) -> Floats:
        """(1, columns, bins + 2) this site's counts, with noise where the study has some."""
        counts = published_counts(self._values, self._owner, 1, self._tally.found.edges, self._least)
        if self._counting is None:
            return counts
        return self._counting.noisy(counts, center_ids((self.name,)), self._tally.found.taken)

    def _log(self, kind: str, size: int, why: str, number: int = 0, sent: bool = True) -> None:
        # All of it is before the first round, whichever count it belongs to.
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self.store.log(Entry(at, 0, _CONDUCTOR, sent, kind, size, why))


def measure(
    line: Line,
    agreement: Agreement,
    members: Sequence[str],
    seconds: Timeouts,
    job: str,
    tell: Callable[[str], None] = lambda line: None,
    notice: Callable[[int, str, Sequence[str]], None] = lambda round, step, waiting: None,
) -> dict[str, Any]:
    """The conductor's part: what the study lacks, as sites know it from an earlier job, or counted now."""
    _, why = decided(
        line, sorted(members), seconds.work, seconds, "open", time.time(), [MEASURE],
        notice=lambda waiting: notice(0, "open", waiting),
    )  # fmt: skip
    there = [name for name in sorted(members) if name not in why]
    said, failed = line.ask(there, "measure", seconds=seconds.talk)
    mine = agreement.digest()
    facts, lies = answers.sorted_out(said, lambda v: _facts(v, mine))
    why |= failed | lies
    kept = Counter(json.dumps(scales, sort_keys=True) for _, scales in facts.values() if scales is not None)
    if kept:
        return dict(json.loads(kept.most_common(1)[0][0]))
    for name, reason in sorted(why.items()):
        tell(f"{name} does not count: {reason}")
    rows = {name: count for name, (count, _) in facts.items()}
    try:
        return _counted(line, agreement, rows, seconds, job, tell)
    except SumError as error:
        raise RequestError(f"the common scales could not be counted ({error}); submit again") from error


def _counted(
    line: Line,
    agreement: Agreement,
    rows: Mapping[str, int],
    seconds: Timeouts,
    job: str,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    def ask(sites: Sequence[str], what: str, *arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
        return line.ask(sites, what, *arguments, seconds=seconds.talk)

    said, _ = ask(sorted(rows), "sum_introduce")
    told, _ = answers.sorted_out(said, masking.introduced)
    met, _ = ask(sorted(told), "sum_meet", told)
    names: tuple[str, ...] = tuple(sorted(met))
    tally = _Tally(agreement)
    while not tally.found.done:
        number, entries = tally.found.taken + 1, tally.found.entries
        total, names, missing = masking.total(ask, context(agreement, job), number, names, entries)
        for name, reason in sorted(missing.items()):
            tell(f"count {number}: without {name} ({reason})")
        tally.members = len(names)
        most = sum(rows[name] for name in names) + 0.5 + tally.doubt() * tally.found.edges.shape[1]
        columns = total.reshape(tally.columns, -1)
        if (columns < -tally.doubt() - 0.5).any() or (columns.sum(axis=1) > most).any():
            raise SumError("a total is more than all rows, or less than none: a site adds what it has not")
        ask(names, "sum_total", number, total.astype("<f8").tobytes())
        tally.take(total, names)
    tell(f"common scales of {tally.columns} columns, counted under masks by {len(names)} sites")
    return tally.result()


def _facts(value: Any, digest: str) -> tuple[int, dict[str, Any] | None]:
    """What a site says first, if it is of this study."""
    scales = value["scales"]
    if value["agreement"] != digest or not (scales is None or isinstance(scales, dict)):
        raise ValueError("another study")
    return answers.whole(value["rows"], 0, answers.MOST_ROWS), scales
