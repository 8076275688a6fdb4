"""A hospital's consent to a study: asked for by a signed proposal, given, refused or withdrawn by a person.
Without approval of exactly this proposal, in the journal with that person's name, the site declines, and only
a decline code leaves. A withdrawal holds for the whole study, from its next round on."""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.kit import RevocationList
from abps.sites.consent.proposal import Proposal, SignedProposal
from abps.sites.consent.sitefile import Policy, safe_name
from abps.sites.protocol.commands import DeclineCode, DeclineError
from abps.sites.store.audit import Journal, JournalEvent, JournalLine, sign_head
from abps.sites.store.rows import EntryKind, LogEntry
from abps.sites.store.store import Store, StoreInUse

FOLDER = "proposals"  # where proposals wait, beside the stores
MOST = 200  # the most proposals that a site stores: nobody can fill its disk with them
DIGITS = 16  # digits of a proposal's digest that name it
AUTOMATIC = "policy (auto)"  # who approves where the policy does not ask a person

#: Events of the journal that are decisions, and the codes of those that are no approval.
DECISIONS = frozenset({JournalEvent.APPROVED, JournalEvent.REFUSED, JournalEvent.WITHDRAWN})
_CODES = {JournalEvent.REFUSED: DeclineCode.REFUSED, JournalEvent.WITHDRAWN: DeclineCode.WITHDRAWN}


@dataclass(frozen=True)
class ProposalRecord:
    """A proposal that arrived: when, who signed it, and what was decided about it."""

    proposal: Proposal
    at: str
    operator: str
    decision: JournalLine | None

    def to_json(self) -> dict[str, Any]:
        line = self.decision
        return {
            "proposal": self.proposal.digest(),
            "operator": self.operator,
            "at": self.at,
            "terms": self.proposal.terms(),
            "decision": line
            and {"what": line.what, "at": line.at}
            | {name: str(line.facts.get(name, "")) for name in ("by", "reason")},
        }


def keep(folder: Path, journal: Journal, signed: SignedProposal, operator: str) -> None:
    proposal, stored = signed.proposal, folder / FOLDER
    path = stored / f"{safe_name(proposal.study)}-{proposal.digest()[:16]}.json"
    if path.is_file():
        return
    if len(list(stored.glob("*.json"))) >= MOST:
        raise RequestError(f"{stored} holds {MOST} proposals already; remove what was decided long ago")
    journal.write(JournalEvent.PROPOSED, study=proposal.study, proposal=proposal.digest(), operator=operator)
    files.write_json(path, signed.to_json())


def decision_on(lines: Collection[JournalLine], study: str, digest: str) -> JournalLine | None:
    """The decision in force on a proposal: the last on it, or a later withdrawal from its study."""
    held = None
    for line in lines:
        if line.what not in DECISIONS or line.facts.get("study") != study:
            continue
        if line.facts.get("proposal") == digest or line.what == JournalEvent.WITHDRAWN:
            held = line
    return held


def proposals(folder: Path, journal: Journal, study: str | None = None) -> list[ProposalRecord]:
    """Every proposal that arrived (for a study), oldest first."""
    lines = journal.lines()
    arrived = {line.facts["proposal"]: line for line in lines if line.what == JournalEvent.PROPOSED}
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        proposal = SignedProposal.from_json(json.loads(path.read_text(encoding="utf-8"))).proposal
        digest = proposal.digest()
        if digest not in arrived:
            raise RequestError(f"{path}: none such arrived by the journal; it was put there or changed")
        if study in (None, proposal.study):
            line = arrived[digest]
            held = decision_on(lines, proposal.study, digest)
            found.append(ProposalRecord(proposal, line.at, str(line.facts["operator"]), held))
    return sorted(found, key=lambda each: each.at)


def decide(
    folder: Path,
    journal: Journal,
    study: str,
    decision: JournalEvent,
    by: str,
    digest: str | None = None,
    reason: str = "",
) -> ProposalRecord:
    """Record a person's decision: about a study's latest proposal, or the one whose digest begins so."""
    if not by.strip():
        raise RequestError("a decision needs the name of the person who makes it")
    if digest is not None and len(digest) < DIGITS:
        raise RequestError(f"--proposal {digest}: give at least {DIGITS} digits of the digest that you read")
    arrived = proposals(folder, journal, study)
    chosen = [each for each in arrived if each.proposal.digest().startswith(digest or "")]
    if digest is not None and len(chosen) > 1:
        raise RequestError(f"--proposal {digest}: two proposals begin so; give the whole digest")
    if not chosen:
        names = ", ".join(sorted({each.proposal.study for each in proposals(folder, journal)})) or "none"
        which = f" with digest {digest}" if digest else ""
        raise RequestError(f"no proposal of a study {study!r} has arrived here{which} (others: {names})")
    latest = chosen[-1]
    why = {"reason": reason.strip()} if reason.strip() else {}
    line = journal.write(decision, study=study, proposal=latest.proposal.digest(), by=by.strip(), **why)
    _anchor(folder / f"{safe_name(study)}.sqlite", journal, line)
    return replace(latest, decision=line)


def approvers(lines: Sequence[JournalLine], study: str, digest: str) -> set[str]:
    """Who has approved a proposal since it was last refused or withdrawn from, each person once."""
    found: set[str] = set()
    for line in lines:
        if line.what == JournalEvent.APPROVED and line.facts.get("proposal") == digest:
            found.add(" ".join(str(line.facts["by"]).casefold().split()))
        elif line.what in (JournalEvent.REFUSED, JournalEvent.WITHDRAWN) and line.facts.get("study") == study:
            found.clear()
    return found


_LINE = "line of the journal "  # what a row of a study's log says of a line of the journal


def anchored(line: JournalLine) -> str:
    """A decision for the log of its study, with the digest of its line in the journal: so the log, which is
    signed and known to partners, shows whether the journal's last lines were cut off."""
    return f"{line.what} by {line.facts['by']} on {line.at} ({_LINE}{line.digest.hex()[:32]})"


def journal_faults(store: Store, journal: Journal) -> list[str]:
    """Decisions that the log of a study records, and the journal has not any more."""
    known = {line.digest.hex()[:32] for line in journal.lines()}
    entries = [e for e in store.traffic() if e.kind is EntryKind.DECISION and _LINE in e.why]
    return [
        f"the journal lacks a decision that the log has: {e.why}"
        for e in entries
        if e.why.partition(_LINE)[2].rstrip(")") not in known
    ]


def check_journal(store: Store, journal: Journal) -> None:
    """Take no part with a journal that was cut off: it might lack a withdrawal."""
    for fault in journal_faults(store, journal):
        raise DeclineError(DeclineCode.LOG, f"{fault}; bring {journal.path} back from a backup")


def _anchor(path: Path, journal: Journal, line: JournalLine) -> None:
    """Write a decision into the log of its study, signed; a job that runs writes it at its next round."""
    if not path.is_file():
        return
    with contextlib.suppress(StoreInUse):
        with contextlib.closing(Store.look(path)) as seen:
            known = seen.facts()
        site = known["site"]
        with contextlib.closing(Store.open(path, site, known["agreement"])) as store:
            what = EntryKind.DECISION
            store.log(LogEntry(line.at, store.round, site, False, what, 0, anchored(line)))
            if journal.signer is not None:
                sign_head(store, store.round, journal.signer)


class Consent:
    """Whether this site takes part in a study, asked anew before every round."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        policy: Policy,
        signed: SignedProposal,
        authority: bytes | None,
        revoked: RevocationList | None = None,
    ) -> None:
        self._revoked = revoked or RevocationList()
        self.folder, self.journal, self.policy = Path(folder), journal, policy
        self.signed, self.proposal = signed, signed.proposal
        self.authority = authority
        self._until: float | None = None

    def given(self) -> JournalLine:
        """The approval of this proposal; :class:`DeclineError` if there is none. What the policy rules out is
        refused without a question; a new proposal is stored for somebody to read."""
        proposal = self.proposal
        with declining(DeclineCode.PROPOSAL):
            operator = self.signed.operator(self.authority, self._revoked)
        with declining(DeclineCode.POLICY):
            self.policy.check(proposal.agreement)
        with declining(DeclineCode.APPROVAL):
            keep(self.folder, self.journal, self.signed, operator)
            held = decision_on(self.journal.lines(), proposal.study, proposal.digest())
        if held is None and self.policy.approve == "auto":
            named = {"study": proposal.study, "proposal": proposal.digest()}
            held = self.journal.write(JournalEvent.APPROVED, **named, by=AUTOMATIC)
        return self._approved(held)

    def _approved(self, held: JournalLine | None) -> JournalLine:
        study = self.proposal.study
        if held is None:
            why = "waits for approval here; read it, and decide with `abps site approve` or `refuse`"
            raise DeclineError(DeclineCode.APPROVAL, f"the study {study!r} {why}")
        event = JournalEvent(held.what)
        if event in _CODES:
            said = f"the study {study!r} was {event} here by {held.facts['by']} on {held.at}"
            raise DeclineError(_CODES[event], f"{said} ({_LINE}{held.digest.hex()[:32]})")
        if event is JournalEvent.APPROVED and held.facts["by"] != AUTOMATIC:
            known = approvers(self.journal.lines(), study, self.proposal.digest())
            if len(known) < self.policy.people:
                why = f"{len(known)} of {self.policy.people} people have approved {study!r}"
                also = "another person decides with `abps site approve`"
                raise DeclineError(DeclineCode.APPROVAL, f"{why}; {also}")
        return held

    def members(self, roster: Collection[str]) -> None:
        """Refuse a job with sites that the proposal does not name, or with few of those that it names: a
        relay could single a site out in a sum, or pair it with one of its friends. Up to a third may be
        missing (revoked since)."""
        approved = set(self.proposal.members)
        if not approved and self.authority is None:
            return  # a trial without certificates
        here = set(roster)
        for name in sorted(here - approved):
            why = f"the job has the site {name!r}, which is not among the members that were approved"
            raise DeclineError(DeclineCode.MEMBERS, why)
        if len(here) < 2 * len(approved) // 3 + 1:
            why = f"the job has {len(here)} of the {len(approved)} members that were approved"
            raise DeclineError(DeclineCode.MEMBERS, why)

    def round(self, sent: int, now: Callable[[], float] = time.monotonic) -> None:
        """Check that the next round may begin: approval is in force, and hours and bytes (``sent`` so far)
        are left."""
        self._until = self._until or now() + 3600 * self.policy.hours
        if now() > self._until:
            why = f"the job has run for the {self.policy.hours:g} hours that the policy allows"
            raise DeclineError(DeclineCode.SPENT, why)
        if sent >= self.policy.bytes:
            why = f"{sent:,} bytes have left in this study; the policy allows {self.policy.bytes:,}"
            raise DeclineError(DeclineCode.SPENT, why)
        self._approved(decision_on(self.journal.lines(), self.proposal.study, self.proposal.digest()))


@contextlib.contextmanager
def declining(code: DeclineCode) -> Iterator[None]:
    """Give a wrong request that has no decline code this one."""
    try:
        yield
    except DeclineError:
        raise
    except RequestError as error:
        raise DeclineError(code, str(error)) from error
