"""Why a site cannot do what the conductor asks, in words that tell nothing of the site.

Only a code of this list leaves a site; the full sentence, which may hold a path or a value of the table, is
for the site's own log. The conductor turns a code into a sentence of its own, so that no site puts words into
its report.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from abps.core.errors import RequestError


class DeclineCode(StrEnum):
    """A code that may leave a site."""

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


class DeclineError(RequestError):
    """A site does not take part: the code may leave it, the sentence is for its own people."""

    def __init__(self, excuse: DeclineCode, why: str) -> None:
        super().__init__(why)
        self.code = excuse


_WORDS = {
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
    DeclineCode.STEP: "it refused what the conductor asked",
    DeclineCode.FAULT: "a fault at the site",
}


def code(error: BaseException, otherwise: DeclineCode) -> DeclineCode:
    """What may be said of an error."""
    return error.code if isinstance(error, DeclineError) else otherwise


#: What the conductor says of a member that the authority expelled.
EXPELLED = "the network's authority has revoked its membership"


def words(code: Any) -> str:
    """What the conductor says of a code; whatever else came is not repeated."""
    known = isinstance(code, str) and code in set(DeclineCode)
    return f"{_WORDS[DeclineCode(code)]}; its log says more" if known else "no answer that makes sense"
