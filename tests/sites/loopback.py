"""A federation of real sites in one process: the same sites, stores and scheduler, and no network.

For tests, and to rehearse a study before anything is installed anywhere. ``trouble`` may lose a payload on
its way or an answer on its way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from abps.core.errors import RequestError
from abps.sites.node.site import Site
from abps.sites.node.transport import Send, UnreachableError
from abps.sites.protocol.commands import (
    Answers,
    Command,
    DeclineCode,
    DeclineError,
    Failure,
    SiteState,
    StepState,
)
from abps.sites.store.rows import EntryKind

#: Called with (sender, receiver, kind) before a payload and, with ``back=True``, before its answer;
#: True if it gets lost.
Trouble = Callable[[str, str, str, bool], bool]


def _no_trouble(sender: str, receiver: str, kind: str, back: bool) -> bool:
    return False


class LoopbackNetwork:
    """Sites that reach each other by calling."""

    def __init__(self, trouble: Trouble = _no_trouble) -> None:
        self.sites: dict[str, Site] = {}
        self.trouble = trouble
        self.carried: list[tuple[str, str, str, int]] = []  # sender, receiver, kind, bytes

    def sender(self, name: str) -> Send:
        """The ``send`` of a site."""

        def send(peer: str, kind: EntryKind, data: bytes) -> bytes:
            self.carried.append((name, peer, kind, len(data)))
            if peer not in self.sites or self.trouble(name, peer, kind, False):
                raise UnreachableError(peer)
            try:
                reply = self.sites[peer].receive(name, kind, data)
            except RequestError as error:  # its own disk fails: it does not answer
                raise UnreachableError(peer) from error
            if reply:
                self.carried.append((peer, name, kind, len(reply)))
            if self.trouble(peer, name, kind, True):
                raise UnreachableError(peer)
            return reply

        return send

    # The scheduler's line

    def ask(self, sites: Sequence[str], command: Command, *arguments: Any, seconds: float) -> Answers:
        """Ask some sites the same; one after the other here."""
        answers: dict[str, Any] = {}
        failures: dict[str, Failure] = {}
        for name in sites:
            if name not in self.sites:
                failures[name] = Failure(DeclineCode.UNREACHABLE)
                continue
            try:
                answers[name] = answer(self.sites[name], command, arguments)
            except DeclineError as declined:
                failures[name] = Failure(declined.code)
            except Exception as error:
                failures[name] = Failure(DeclineCode.FAULT, f"{type(error).__name__}: {error}")
        return answers, failures

    def pause(self, seconds: float) -> None:
        """Nothing runs meanwhile, so there is nothing to wait for."""

    def now(self) -> float:
        """Time stands still: no site is ever busy."""
        return 0.0


def answer(site: Site, command: Command, arguments: Sequence[Any]) -> Any:
    """What a site answers the scheduler; long work is done at once here."""
    if command is Command.PING:
        return SiteState.READY if len(site.context.roster) > 1 else SiteState.NEW
    if command is Command.REVOKED:
        return True
    if command is Command.START:
        work, *rest = arguments
        # A site in memory is open from the beginning.
        return [StepState.DONE, None if work is Command.OPEN else site.commands[work](*rest)]
    return site.commands[command](*arguments)
