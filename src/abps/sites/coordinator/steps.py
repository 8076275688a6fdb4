"""How the scheduler lets sites do something: started at all of them at once, and polled until it is done.
When more than half are done, the others get the grace period; sites that exceed it skip the rest of the
round."""

from collections.abc import Callable, Sequence
from typing import Any

from abps.core.errors import RequestError
from abps.sites.protocol import commands
from abps.sites.protocol.commands import Answers, Command, DeclineCode, Failure, SiteLine, StepState, Timeouts

PAUSE = 2.0  # seconds between two questions to a site whose people have not decided yet
Notice = Callable[[Sequence[str]], None]  # called with the sites that the scheduler waits for


class MembersMissing(RequestError):
    """The study waits for members without whom there is no sum: submit again when they are there."""


def open_sites(
    line: SiteLine, sites: Sequence[str], timeouts: Timeouts, *arguments: Any
) -> dict[str, Failure]:
    """Let sites open their part, which people there have to allow: sites without a decision are asked again
    until the time for approval is over. Returns who has not, and why."""
    until = line.now() + timeouts.approval
    failed: dict[str, Failure] = {}
    waiting = list(sites)
    # A process that has just begun may take as long as talk, but no longer than anybody is waited for.
    sign = min(timeouts.talk, max(timeouts.sign, timeouts.grace))
    while True:
        _, why = run_step(line, waiting, timeouts.work, timeouts, Command.OPEN, *arguments, sign=sign)
        failed = {name: each for name, each in failed.items() if name not in waiting} | why
        waiting = [name for name, each in why.items() if each.code is DeclineCode.APPROVAL]
        if not waiting or line.now() >= until:
            return failed
        line.pause(PAUSE)


def enough(asked: int) -> int:
    """How many sites must be done before the grace period of the others begins: more than half."""
    return asked // 2 + 1


def run_step(
    line: SiteLine,
    sites: Sequence[str],
    limit: float,
    timeouts: Timeouts,
    command: Command,
    *arguments: Any,
    sign: float | None = None,
    notice: Notice = lambda waiting: None,
) -> Answers:
    """Start a command at every site, and poll until it is done: results, and who failed and why."""
    sign = timeouts.sign if sign is None else sign
    done: dict[str, Any] = {}
    until, late = line.now() + limit, f"{command} took longer than {limit:g} s"
    in_grace = False
    replies, failed = line.ask(sites, Command.START, command, *arguments, seconds=sign)
    while True:
        waiting = []
        valid, invalid = commands.check_all(replies, commands.progress)
        failed |= invalid
        for name, (state, value) in valid.items():
            if state == StepState.DONE:
                done[name] = value
            elif state == StepState.BUSY:
                waiting.append(name)
            else:
                failed[name] = Failure.sent(state)
        if not in_grace and waiting and len(done) >= enough(len(sites)):
            in_grace = True
            if line.now() + timeouts.grace < until:
                until = line.now() + timeouts.grace
                late = f"it was {timeouts.grace:g} s later than the others with {command}"
        if waiting and line.now() > until:
            failed |= dict.fromkeys(waiting, Failure(DeclineCode.LATE, late))
            waiting = []
        if not waiting:
            return done, failed
        notice(sorted(waiting))
        line.pause(timeouts.poll)
        replies, gone = line.ask(sorted(waiting), Command.POLL, seconds=sign)
        failed |= gone
