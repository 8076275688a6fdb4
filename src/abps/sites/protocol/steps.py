"""How the conductor lets sites do something: started at all of them at once, and asked for until it is done.

k of n: when enough of those that were asked are done, the others get some seconds more, the grace; who is not
done by then is left out of the rest of the round, goes on by itself, and is asked again in a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from abps.sites.protocol import answers, decline_codes

#: What a site says when it is asked for a sign of life and is not in the job: its table is not open yet, it
#: is; or that it still works.
NEW, OPEN, BUSY = "new", "open", "busy"


@dataclass(frozen=True)
class Timeouts:
    """How long the conductor waits: for a sign of life, for work (training, credit), for talk between sites.

    poll: the pause between two questions whether something is done.
    grace: how long the others wait for the last ones, once enough are done.
    again: for a sign of life of a site that gave none before.
    patience: for people at the sites to decide, before a job begins.
    """

    sign: float = 5.0
    work: float = 1800.0
    talk: float = 120.0
    poll: float = 0.2
    grace: float = 300.0
    again: float = 1.0
    patience: float = 0.0


class Line(Protocol):
    """How the conductor reaches the sites.  parallel: whether these work at the same time."""

    parallel: bool

    def ask(
        self, sites: Sequence[str], what: str, *arguments: Any, seconds: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask some sites the same at once: answers, and why there is none, by site."""

    def pause(self, seconds: float) -> None:
        """Let time pass."""

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""


#: Seconds between two questions to a site whose people have not decided yet.
PAUSE = 2.0


def decided(
    line: Line,
    sites: Sequence[str],
    limit: float,
    seconds: Timeouts,
    what: str,
    *arguments: Any,
    notice: Callable[[Sequence[str]], None] = lambda waiting: None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Start something that people at the sites have to allow: who has not decided is asked again, for as long
    as there is patience."""
    until, undecided = (
        line.now() + seconds.patience,
        decline_codes.words(str(decline_codes.DeclineCode.APPROVAL)),
    )
    done: dict[str, Any] = {}
    failed: dict[str, str] = {}
    waiting = list(sites)
    # A process that has just begun is slow to answer: its first sign of life may take as long as talk; but no
    # longer than anybody is waited for.
    sign = min(seconds.talk, max(seconds.sign, seconds.grace))
    while True:
        more, why = started(line, waiting, limit, seconds, what, *arguments, sign=sign, notice=notice)
        done |= more
        failed = {name: reason for name, reason in failed.items() if name not in waiting} | why
        waiting = [name for name, reason in why.items() if reason == undecided]
        if not waiting or line.now() >= until:
            return done, failed
        notice(waiting)
        line.pause(PAUSE)


def enough(asked: int) -> int:
    """How many of those that were asked must be done before the others are waited for no longer than the
    grace: more than half."""
    return asked // 2 + 1


def started(
    line: Line,
    sites: Sequence[str],
    limit: float,
    seconds: Timeouts,
    what: str,
    *arguments: Any,
    sign: float,
    notice: Callable[[Sequence[str]], None] = lambda waiting: None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Start something at every site, and ask until it is done: results, and who failed and why.

    notice: told for whom is waited.
    """
    done: dict[str, Any] = {}
    until, late = line.now() + limit, f"{what} took longer than {limit:g} s"
    gracious = False
    said, failed = line.ask(sites, "start", what, *arguments, seconds=sign)
    while True:
        waiting = []
        standing, lies = answers.sorted_out(said, answers.progress)
        failed |= lies
        for name, (state, value) in standing.items():
            if state == "done":
                done[name] = value
            elif state == "busy":
                waiting.append(name)
            else:
                failed[name] = decline_codes.words(state)
        if not gracious and waiting and len(done) >= enough(len(sites)):
            gracious = True
            if line.now() + seconds.grace < until:
                until = line.now() + seconds.grace
                late = f"it was {seconds.grace:g} s later than the others with {what}"
        if waiting and line.now() > until:
            failed |= dict.fromkeys(waiting, late)
            waiting = []
        if not waiting:
            return done, failed
        notice(sorted(waiting))
        line.pause(seconds.poll)
        said, gone = line.ask(sorted(waiting), "poll", *([sorted(failed)] if failed else []), seconds=sign)
        failed |= gone
