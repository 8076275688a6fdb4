"""Why a site does not do what the scheduler asks, as a code that reveals nothing of the site.

Only a code leaves a site; the full sentence, which may hold a path or a value of the table, stays in the
site's own log. The scheduler has a sentence of its own for every code, so no site puts words into its report.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from abps.core.errors import RequestError


class DeclineCode(StrEnum):
    """Why a site is left out: codes that a site may send, and those of the scheduler itself."""

    FILE = "file"
    ALLOWED = "allowed"
    AGREEMENT = "agreement"
    TABLE = "table"
    STORE = "store"
    PROPOSAL = "proposal"
    POLICY = "policy"
    APPROVAL = "approval"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    MEMBERS = "members"
    SPENT = "spent"
    FEW = "few"
    VERSION = "version"
    LOG = "log"
    STEP = "step"
    FAULT = "fault"
    # Of the scheduler
    UNREACHABLE = "unreachable"
    INVALID_ANSWER = "invalid answer"
    LATE = "late"
    NOT_READY = "not ready"
    MISFIT = "misfit"
    EXPELLED = "expelled"


_OF_SCHEDULER = frozenset({
    DeclineCode.UNREACHABLE, DeclineCode.INVALID_ANSWER, DeclineCode.LATE, DeclineCode.NOT_READY,
    DeclineCode.MISFIT, DeclineCode.EXPELLED,
})  # fmt: skip

_SENTENCES = {
    DeclineCode.FILE: "its own file is missing or cannot be read",
    DeclineCode.ALLOWED: "it does not allow a package that the job names",
    DeclineCode.AGREEMENT: "it cannot run what the job asks for",
    DeclineCode.TABLE: "its table does not fit the study",
    DeclineCode.STORE: "its store cannot be used for this study",
    DeclineCode.PROPOSAL: "it does not trust the job's proposal",
    DeclineCode.POLICY: "the study asks for more than its policy allows",
    DeclineCode.APPROVAL: "nobody there has approved it yet",
    DeclineCode.REFUSED: "it has refused the study",
    DeclineCode.WITHDRAWN: "it has withdrawn from the study",
    DeclineCode.MEMBERS: "the job has sites that it did not approve",
    DeclineCode.SPENT: "the hours or bytes that it allows are spent",
    DeclineCode.FEW: "it has fewer rows or events than its policy asks for",
    DeclineCode.VERSION: "it does not speak the job's version of the wire format",
    DeclineCode.LOG: "its log is not the one that its partners know",
    DeclineCode.STEP: "it refused what the scheduler asked",
    DeclineCode.FAULT: "internal error at the site",
    DeclineCode.UNREACHABLE: "it does not answer",
    DeclineCode.INVALID_ANSWER: "its answer is not valid",
    DeclineCode.LATE: "it was too late",
    DeclineCode.NOT_READY: "it is not ready yet",
    DeclineCode.MISFIT: "it does not fit this job",
    DeclineCode.EXPELLED: "the network's authority has revoked its membership",
}


@dataclass(frozen=True)
class Failure:
    """Why a site is left out of a step.  detail: the scheduler's own words, if it knows more."""

    code: DeclineCode
    detail: str = ""

    def __str__(self) -> str:
        if self.detail:
            return self.detail
        more = "" if self.code in _OF_SCHEDULER else "; its log says more"
        return _SENTENCES[self.code] + more

    @staticmethod
    def sent(value: Any) -> Failure:
        """The failure that a site's code stands for; whatever else it sent is not repeated."""
        known = isinstance(value, str) and value in set(DeclineCode) - _OF_SCHEDULER
        return Failure(DeclineCode(value) if known else DeclineCode.INVALID_ANSWER)


class DeclineError(RequestError):
    """A site does not take part: the code may leave it, the sentence is for its own people."""

    def __init__(self, code: DeclineCode, why: str) -> None:
        super().__init__(why)
        self.code = code


def code_of(error: BaseException, otherwise: DeclineCode) -> DeclineCode:
    """The code of an error; of one without a code, the other one."""
    return error.code if isinstance(error, DeclineError) else otherwise
