"""What the scheduler may ask of a site, and what a site answers: typed commands, the states of its work,
codes of why it declines, and checks of every answer before it is used.

Long commands run in a thread of the site and are polled: so the scheduler can distinguish a site that works
long from one that is gone. Of a refusal only a code leaves a site: the sentence, which may hold a path or a
value of the table, stays in its own log. A site whose answer fails its check is left out; no site can end the
job by what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Protocol, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from abps.core.errors import RequestError


class DeclineCode(StrEnum):
    """Why a site is left out, with the sentence for others; sites may not send the last six, the scheduler's
    own."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> DeclineCode:
        made = str.__new__(cls, value)
        made._value_, made.sentence = value, sentence
        return made

    FILE = "file", "its own file is missing or cannot be read"
    ALLOWED = "allowed", "it does not allow a package that the job names"
    AGREEMENT = "agreement", "it cannot run what the job asks for"
    TABLE = "table", "its table does not fit the study"
    STORE = "store", "its store cannot be used for this study"
    PROPOSAL = "proposal", "it does not trust the job's proposal"
    POLICY = "policy", "the study asks for more than its policy allows"
    APPROVAL = "approval", "nobody there has approved it yet"
    REFUSED = "refused", "it has refused the study"
    WITHDRAWN = "withdrawn", "it has withdrawn from the study"
    MEMBERS = "members", "the job has sites that it did not approve"
    SPENT = "spent", "the hours or bytes that it allows are spent"
    FEW = "few", "it has fewer rows or events than its policy asks for"
    VERSION = "version", "it does not speak the job's version of the wire format"
    LOG = "log", "its log is not the one that its partners know"
    STEP = "step", "it refused what the scheduler asked"
    FAULT = "fault", "internal error at the site"
    UNREACHABLE = "unreachable", "it does not answer"
    INVALID_ANSWER = "invalid answer", "its answer is not valid"
    LATE = "late", "it was too late"
    NOT_READY = "not ready", "it is not ready yet"
    MISFIT = "misfit", "it does not fit this job"
    EXPELLED = "expelled", "the network's authority has revoked its membership"


_SENT_BY_SITES = {str(code): code for code in tuple(DeclineCode)[:-6]}


@dataclass(frozen=True)
class Failure:
    """Why a site is left out of a step.  detail: the scheduler's own words, if it knows more."""

    code: DeclineCode
    detail: str = ""

    def __str__(self) -> str:
        more = "; its log says more" if self.code in _SENT_BY_SITES else ""
        return self.detail or self.code.sentence + more

    @staticmethod
    def sent(value: Any) -> Failure:
        """The failure that a site's code stands for; whatever else it sent is not repeated."""
        code = _SENT_BY_SITES.get(value) if isinstance(value, str) else None
        return Failure(code or DeclineCode.INVALID_ANSWER)


class DeclineError(RequestError):
    """A site does not take part: the code may leave it, the sentence is for its own people."""

    def __init__(self, code: DeclineCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class Command(StrEnum):
    # Of the process that runs the site
    PING = "ping"
    REVOKED = "revoked"
    START = "start"
    POLL = "poll"
    OPEN = "open"
    # Before the rounds
    HELLO = "hello"
    JOIN = "join"
    INTRODUCE = "introduce"
    # A round
    BEGIN = "begin"
    CONCLUDE = "conclude"
    CONTRIBUTE = "contribute"
    COORDINATE = "coordinate"
    # Masked sums, and counts for common scales
    SUM_INTRODUCE = "sum_introduce"
    SUM_MEET = "sum_meet"
    SUM_KEEP = "sum_keep"
    SUM_MASKED = "sum_masked"
    SUM_TOTAL = "sum_total"
    MEASURE = "measure"


#: Commands that are started and polled; the first one by the process that runs the site.
LONG = frozenset({
    Command.OPEN, Command.INTRODUCE, Command.CONTRIBUTE, Command.COORDINATE,
    Command.CONCLUDE, Command.SUM_TOTAL,
})  # fmt: skip


class SiteState(StrEnum):
    """What a site says to a ping: in the job, not in the job, or at work."""

    READY = "ready"
    NEW = "new"
    BUSY = "busy"


class StepState(StrEnum):
    """How a long command stands; a site that failed sends a decline code instead."""

    DONE = "done"
    BUSY = "busy"


@dataclass(frozen=True)
class Timeouts:
    """Seconds that the scheduler waits: for a sign of life, for work (training), for talk between sites,
    between two polls, for the last sites once enough are done (grace), for people at the sites to decide
    before a job begins (approval), for one call between two sites."""

    sign: float = 5.0
    work: float = 1800.0
    talk: float = 120.0
    poll: float = 0.2
    grace: float = 300.0
    approval: float = 0.0
    call: float = 10.0


Answers = tuple[dict[str, Any], dict[str, Failure]]


class SiteLine(Protocol):
    """How the scheduler reaches the sites."""

    def ask(self, sites: Sequence[str], command: Command, *arguments: Any, seconds: float) -> Answers:
        """Ask some sites the same at once: answers, and why there is none, by site."""

    def pause(self, seconds: float) -> None:
        """Let time pass."""

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""


T = TypeVar("T")

MOST_ROWS = 10**8  # more training rows than any hospital has
MOST_BYTES = 10**10  # more than a round can take
_Small = Annotated[int, Meta(ge=0, le=1000)]


def check_all(
    replies: Mapping[str, Any], check: Callable[[Any], T]
) -> tuple[dict[str, T], dict[str, Failure]]:
    """The answers that pass the check, and a failure for every site whose answer does not."""
    good: dict[str, T] = {}
    bad: dict[str, Failure] = {}
    for name, value in replies.items():
        try:
            good[name] = check(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, msgspec.ValidationError):
            bad[name] = Failure(DeclineCode.INVALID_ANSWER)
    return good, bad


def whole(value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError("no such number")
    return value


def progress(value: Any) -> tuple[str, Any]:
    """How a long command stands (a word), and its result."""
    return msgspec.convert(value, tuple[str, Any])


class SiteFacts(TypedDict):
    """A site's first answer.  abps: its version; nothing else is repeated."""

    round: int
    agreement: str
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    wire: tuple[_Small, _Small]
    abps: Annotated[str, Meta(pattern=r"^\d{1,4}(\.[0-9a-z]{1,8}){1,4}\Z")]
    finished: bool


def hello(value: Any, rounds: int) -> SiteFacts:
    found = msgspec.convert(value, SiteFacts)
    whole(found["round"], 0, rounds)
    return found


def concluded(value: Any) -> tuple[float, int, bool]:
    """A site's validation score (-1 to 1, as an R² may be negative; or NaN), the bytes that it sent, and
    whether its method is done, at the end of a round."""
    score, size, done = msgspec.convert(value, tuple[float, int, bool])
    if not math.isnan(score) and not -1 <= score <= 1:
        raise ValueError("no such score")
    return score, whole(size, 0, MOST_BYTES), done
