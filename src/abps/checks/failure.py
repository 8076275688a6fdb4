"""What a failed check says."""

from __future__ import annotations

from abps.core.errors import RequestError


class CheckFailure(RequestError):
    """A method or codec does not do what everything else relies on: which check, and what was seen."""

    def __init__(self, what: str, check: str, why: str) -> None:
        super().__init__(f"{what} fails the check {check!r}: {why}")
        self.check = check
        self.why = why
