"""Why a site cannot do what the conductor asks, in words that tell nothing of the site.

Only a code of this list leaves a site; the full sentence, which may hold a path or a value of the table, is
for the site's own log. The conductor turns a code into a sentence of its own, so that no site puts words into
its report.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Excuse(StrEnum):
    """A code that may leave a site."""

    FILE = "file"
    ALLOWED = "allowed"
    AGREEMENT = "agreement"
    TABLE = "table"
    STORE = "store"
    STEP = "step"
    FAULT = "fault"


_WORDS = {
    Excuse.FILE: "its own file is missing or cannot be read",
    Excuse.ALLOWED: "it does not allow a package that the job names",
    Excuse.AGREEMENT: "it cannot run what the job asks for",
    Excuse.TABLE: "its table does not fit the study",
    Excuse.STORE: "its store cannot be used for this study",
    Excuse.STEP: "it refused what the conductor asked",
    Excuse.FAULT: "a fault at the site",
}


def words(code: Any) -> str:
    """What the conductor says of a code; whatever else came is not repeated."""
    known = isinstance(code, str) and code in set(Excuse)
    return f"{_WORDS[Excuse(code)]}; its log says more" if known else "no answer that makes sense"
