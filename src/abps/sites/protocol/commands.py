"""What the scheduler may ask of a site: typed commands, the states a site answers with, and time limits.

Quick commands are answered at once. Long ones are started, run in a thread of the site, and are polled until
they are done: so the scheduler can distinguish a site that works long from one that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from abps.sites.protocol.decline_codes import Failure


class Command(StrEnum):
    """A command of the scheduler."""

    # Of the process that runs the site
    PING = "ping"
    WAKE = "wake"
    REVOKED = "revoked"
    START = "start"
    POLL = "poll"
    OPEN = "open"
    LETTER = "letter"
    # Before the rounds
    HELLO = "hello"
    JOIN = "join"
    INTRODUCE = "introduce"
    # A round
    BEGIN = "begin"
    CONCLUDE = "conclude"
    KEEP_BEST = "keep_best"
    CONTRIBUTE = "contribute"
    COORDINATE = "coordinate"
    # Masked sums, and counts for common scales
    SUM_INTRODUCE = "sum_introduce"
    SUM_MEET = "sum_meet"
    SUM_KEYS = "sum_keys"
    SUM_SHARES = "sum_shares"
    SUM_MASKED = "sum_masked"
    SUM_PRESENT = "sum_present"
    SUM_OPEN = "sum_open"
    SUM_TOTAL = "sum_total"
    MEASURE = "measure"


#: Commands that are started and polled; the first two by the process that runs the site.
LONG = frozenset({
    Command.OPEN, Command.LETTER, Command.INTRODUCE, Command.CONTRIBUTE, Command.COORDINATE,
    Command.CONCLUDE, Command.SUM_TOTAL,
})  # fmt: skip


class SiteState(StrEnum):
    """What a site says to a ping: in the job, its table not open yet, open but not in the job, or at work."""

    READY = "ready"
    NEW = "new"
    OPEN = "open"
    BUSY = "busy"


class StepState(StrEnum):
    """How a long command stands; a site that failed sends a decline code instead."""

    DONE = "done"
    BUSY = "busy"


@dataclass(frozen=True)
class Timeouts:
    """Seconds that the scheduler waits: for a sign of life, for work (training), for talk between sites.

    poll: between two questions whether something is done.  grace: for the last sites, once enough are done.
    again: for a sign of life of a site that gave none before.
    approval: for people at the sites to decide, before a job begins.
    """

    sign: float = 5.0
    work: float = 1800.0
    talk: float = 120.0
    poll: float = 0.2
    grace: float = 300.0
    again: float = 1.0
    approval: float = 0.0


Answers = tuple[dict[str, Any], dict[str, Failure]]


class SiteLine(Protocol):
    """How the scheduler reaches the sites."""

    def ask(self, sites: Sequence[str], command: Command, *arguments: Any, seconds: float) -> Answers:
        """Ask some sites the same at once: answers, and why there is none, by site."""

    def pause(self, seconds: float) -> None:
        """Let time pass."""

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""
