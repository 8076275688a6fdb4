"""What would leave a site in a study, value by value, before anything does: computed by the functions that
the study itself uses (:mod:`abps.methods.leaving`); nothing is sent, and nothing is written into the
store."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

from abps.data.codebook import Codebook
from abps.data.federation import Federation
from abps.data.prepare import codebook, excluded_columns, prepare
from abps.data.split import assign_splits
from abps.methods.leaving import leaving
from abps.privacy.small_counts import MIN_CELL
from abps.sites.consent.agreement import Agreement, small_columns
from abps.sites.consent.proposal import Proposal
from abps.sites.consent.sitefile import SiteFile
from abps.sites.node.context import may_score
from abps.sites.protocol.commands import DeclineCode


@dataclass(frozen=True)
class OutgoingValue:
    """One value.  to: who receives it.  clear: whether the relay can read it.  small: of fewer patients here
    than the minimum cell; the study takes it as if nobody here had it."""

    what: str
    name: str
    value: str | float
    when: str
    to: str
    clear: bool
    small: bool = False


#: Who receives what, and whether the relay can read it.
_TO = {
    "codebook": ("the operator and every member", True),
    "counts": ("nobody: members and relay see the total", False),
}


def preview(own: SiteFile, proposal: Proposal) -> list[OutgoingValue]:
    agreement = proposal.agreement.admitted(own.allow)
    table = own.read_table(agreement.book)
    book, config = agreement.book, agreement.config()
    uploads = ("the coordinator of the exchange, one of the members", False)
    if config.privacy.secure:
        uploads = ("nobody: members and relay see the sum of all sites'", False)
    data = prepare(table, agreement.seed, book, standardise=config.training.standardise)
    hidden = small_columns(data, config.privacy.secure) & data.train.x.any(axis=0)
    small = set(compress(data.columns, hidden))
    found = [
        OutgoingValue(v.what, v.name, v.value, v.when, *_TO.get(v.what, uploads), v.name in small)
        for v in leaving(agreement.configured(), table, book, agreement.seed)
    ]
    split = assign_splits(table, agreement.seed, book.shared_patients)
    judged = split == 1
    patient = None if table.patient is None else table.patient[judged]
    scored = may_score(table.label[judged], patient, book.outcome, book.min_cell)
    return [*found, *_to_scheduler(int((split == 0).sum()), scored, agreement)]


def _to_scheduler(rows: int, scored: bool, agreement: Agreement) -> list[OutgoingValue]:
    """What the scheduler at the relay gets.  scored: enough patients are in a score."""
    score = "as it comes out" if scored else "nothing: too few validation patients with or without the event"
    named: Sequence[tuple[str, str | float, str]] = (
        ("training rows", float(rows), "once per job"),
        ("finished rounds, digest of the agreement, version", agreement.digest(), "once per job"),
        (f"validation {agreement.book.outcome.measure} of the model", score, "every round"),
        ("bytes that were sent", "as they come out", "every round"),
        ("why this site takes no part, if so", f"one of: {', '.join(DeclineCode)}", "when it happens"),
    )
    return [OutgoingValue("report", name, value, when, "the relay", True) for name, value, when in named]


def codebook_of(own: SiteFile, table: Federation | None = None) -> Codebook:
    """The codebook that this site would share: no level of fewer patients than its policy's floor."""
    label, maps = own.labelled(), (own.harmonised,) if own.harmonised else ()
    book = codebook(table or own.read_table(), seed=0, min_cell=max(MIN_CELL, own.policy.floor))
    return replace(book, events=label.event_words, others=label.other_words, harmonised=maps)


def kept_back(own: SiteFile, proposal: Proposal) -> dict[str, str]:
    """Every column of the site's table of which nothing leaves, and why, in half a sentence."""
    table, asked = own.read_table(), proposal.agreement.book.sources
    book = codebook_of(own, table)
    more = {name: "the study does not ask for it" for name in book.sources if name not in asked}
    return excluded_columns(table, book) | more
