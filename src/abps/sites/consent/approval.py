"""A hospital's consent to a study: asked for by a signed proposal, given, refused or withdrawn by a person.

A proposal that a job brings is kept beside the site's stores; nothing else happens until somebody at the site
decides. The decision stands in the site's journal with that person's name. Without approval of exactly this
proposal the site takes no part, and only a code of a fixed list says so. A withdrawal holds for the whole
study, from its next round on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from abps import files
from abps.core.errors import RequestError
from abps.sites.consent.journal import Journal, Line
from abps.sites.consent.policy import Policy
from abps.sites.consent.proposal import Proposal, Signed
from abps.sites.consent.sitefile import safe_name
from abps.sites.protocol.decline_codes import DeclineCode, DeclineError

#: Where proposals wait, beside the stores.
FOLDER = "proposals"

#: More proposals than this are not kept: nobody can fill the site's disk with them.
MOST = 200

#: Digits of a proposal's digest that name it.
DIGITS = 16

#: Who decided where the policy says that nobody has to.
AUTOMATIC = "policy (auto)"


class Verdict(StrEnum):
    """What was decided; the words of the journal."""

    APPROVED = "approved"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class Pending:
    """A proposal that arrived: when it was first seen, who signed it, and what was decided about it."""

    proposal: Proposal
    at: str
    operator: str
    decision: Line | None

    def to_json(self) -> dict[str, Any]:
        """Plain data for machines."""
        line = self.decision
        return {
            "proposal": self.proposal.digest(),
            "operator": self.operator,
            "at": self.at,
            "terms": self.proposal.terms(),
            "decision": None if line is None else {"what": line.what, "by": line.facts["by"], "at": line.at},
        }


def keep(folder: Path, journal: Journal, signed: Signed, operator: str) -> None:
    """Write a proposal down that has not been seen before, for somebody to read."""
    proposal = signed.proposal
    path = _path(folder, proposal)
    if path.is_file():
        return
    if len(list((folder / FOLDER).glob("*.json"))) >= MOST:
        raise RequestError(
            f"{folder / FOLDER} holds {MOST} proposals already; remove what was decided long ago"
        )
    journal.write("proposed", study=proposal.study, proposal=proposal.digest(), operator=operator)
    files.write_json(path, signed.to_json())


def _path(folder: Path, proposal: Proposal) -> Path:
    return folder / FOLDER / f"{safe_name(proposal.study)}-{proposal.digest()[:16]}.json"


def standing(lines: Collection[Line], study: str, digest: str) -> Line | None:
    """The decision that holds for a proposal: the last on it, or a later withdrawal from its study."""
    held = None
    for line in lines:
        if line.what not in set(Verdict) or line.facts.get("study") != study:
            continue
        if line.facts.get("proposal") == digest or line.what == Verdict.WITHDRAWN:
            held = line
    return held


def pending(folder: Path, journal: Journal, study: str | None = None) -> list[Pending]:
    """Every proposal that arrived (for a study), oldest first."""
    lines = journal.lines()
    seen = {line.facts["proposal"]: line for line in lines if line.what == "proposed"}
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        proposal = Signed.from_json(json.loads(path.read_text(encoding="utf-8"))).proposal
        digest = proposal.digest()
        if digest not in seen:
            raise RequestError(
                f"{path}: no such proposal arrived by the journal; it was put there or changed"
            )
        if study in (None, proposal.study):
            line = seen[digest]
            held = standing(lines, proposal.study, digest)
            found.append(Pending(proposal, line.at, str(line.facts["operator"]), held))
    return sorted(found, key=lambda each: each.at)


def decide(
    folder: Path, journal: Journal, study: str, verdict: Verdict, by: str, digest: str | None = None
) -> Pending:
    """Record a person's decision: about a study's latest proposal, or the one whose digest begins so."""
    if not by.strip():
        raise RequestError("a decision needs the name of the person who makes it")
    if digest is not None and len(digest) < DIGITS:
        raise RequestError(f"--proposal {digest}: give at least {DIGITS} digits of the digest that you read")
    known = pending(folder, journal, study)
    chosen = [each for each in known if each.proposal.digest().startswith(digest or "")]
    if digest is not None and len(chosen) > 1:
        raise RequestError(f"--proposal {digest}: two proposals begin so; give the whole digest")
    if not chosen:
        names = ", ".join(sorted({each.proposal.study for each in pending(folder, journal)})) or "none"
        raise RequestError(
            f"no proposal of a study {study!r} has arrived here{f' with digest {digest}' if digest else ''} "
            f"(studies that have: {names})"
        )
    latest = chosen[-1]
    line = journal.write(str(verdict), study=study, proposal=latest.proposal.digest(), by=by.strip())
    return Pending(latest.proposal, latest.at, latest.operator, line)


class Consent:
    """Whether this site takes part in a study, asked anew before every round."""

    def __init__(
        self, folder: Path, journal: Journal, policy: Policy, signed: Signed, authority: bytes | None
    ) -> None:
        self.folder, self.journal, self.policy = Path(folder), journal, policy
        self.signed, self.proposal = signed, signed.proposal
        self.authority = authority
        self._until: float | None = None
        self._seen: tuple[object, ...] = ()

    def given(self, before: Line | None = None) -> Line:
        """The approval of this proposal; :class:`DeclineError`, with a code, if there is none.

        What the policy rules out is refused without a question; what is new is kept for somebody to read.
        before: what was allowed before anybody asked (a codebook that was shared), if there is such a line.
        """
        study, digest = self.proposal.study, self.proposal.digest()
        with _declining(DeclineCode.PROPOSAL):
            operator = self.signed.operator(self.authority)
        if self.proposal.agreement is not None:
            with _declining(DeclineCode.POLICY):
                self.policy.check(self.proposal.agreement)
        with _declining(DeclineCode.APPROVAL):
            keep(self.folder, self.journal, self.signed, operator)
            held = standing(self.journal.lines(), study, digest)
        if held is None and before is not None:
            return before
        if held is None and self.policy.approve == "auto":
            held = self.journal.write(str(Verdict.APPROVED), study=study, proposal=digest, by=AUTOMATIC)
        if held is None:
            raise DeclineError(
                DeclineCode.APPROVAL,
                f"the study {study!r} waits for approval here; read it, and decide with `abps site approve` "
                "or `abps site refuse`"
                if self.proposal.asks == "study"
                else f"the codebook is asked for, for the study {study!r}, and nobody has shared it; read "
                "it, and let it out with `abps site share`",
            )
        return self._approved(held)

    def _approved(self, held: Line) -> Line:
        code = {Verdict.REFUSED: DeclineCode.REFUSED, Verdict.WITHDRAWN: DeclineCode.WITHDRAWN}
        if held.what != Verdict.APPROVED:
            raise DeclineError(
                code[Verdict(held.what)],
                f"{held.facts['by']} {held.what} the study {self.proposal.study!r} here on {held.at}"
                if held.what == Verdict.REFUSED
                else f"this site was withdrawn from the study {self.proposal.study!r} by {held.facts['by']} "
                f"on {held.at}",
            )
        return held

    def members(self, roster: Collection[str]) -> None:
        """Refuse a job with sites that the proposal does not name."""
        strangers = sorted(set(roster) - set(self.proposal.members)) if self.proposal.members else []
        if strangers:
            raise DeclineError(
                DeclineCode.MEMBERS,
                f"the job has the site {strangers[0]!r}, which is not among the members that were approved",
            )

    def round(self, sent: int, now: Callable[[], float] = time.monotonic) -> None:
        """Whether the next round may begin: approval still stands, and hours and bytes are left.

        sent: bytes that have left in this study.
        """
        self._until = self._until or now() + 3600 * self.policy.hours
        if now() > self._until:
            raise DeclineError(
                DeclineCode.SPENT,
                f"the job has run for the {self.policy.hours:g} hours that the policy allows",
            )
        if sent >= self.policy.bytes:
            raise DeclineError(
                DeclineCode.SPENT,
                f"{sent:,} bytes have left in this study; the policy allows {self.policy.bytes:,}",
            )
        stamp = tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in self.journal.files())
        if stamp == self._seen:
            return  # nothing was decided since
        held = standing(self.journal.lines(), self.proposal.study, self.proposal.digest())
        if held is None:
            raise DeclineError(
                DeclineCode.APPROVAL, f"no approval of {self.proposal.study!r} stands in the journal"
            )
        self._approved(held)
        self._seen = stamp


@contextlib.contextmanager
def _declining(excuse: DeclineCode) -> Iterator[None]:
    """A request that was wrong is a reason to take no part, with a code."""
    try:
        yield
    except RequestError as error:
        raise DeclineError(excuse, str(error)) from error
