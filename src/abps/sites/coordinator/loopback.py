"""A federation of real sites in one process: the same sites, stores and conductor, and no network.

For tests, and for trying out a study before anything is installed anywhere. ``trouble`` may lose a
payload on its way or an answer on its way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from abps.core.errors import RequestError
from abps.sites.node.site import Site
from abps.sites.node.transport import Unreachable
from abps.sites.protocol import decline_codes
from abps.sites.protocol.decline_codes import DeclineError
from abps.sites.protocol.steps import OPEN

#: Called with (sender, receiver, what) before a payload and, with ``back=True``, before its answer;
#: True if it gets lost.
Trouble = Callable[[str, str, str, bool], bool]


def _no_trouble(sender: str, receiver: str, what: str, back: bool) -> bool:
    return False


class LoopbackNetwork:
    """Sites that reach each other by calling."""

    parallel = False

    def __init__(self, trouble: Trouble = _no_trouble) -> None:
        self.sites: dict[str, Site] = {}
        self.trouble = trouble
        self.carried: list[tuple[str, str, str, int]] = []  # sender, receiver, what, bytes

    def sender(self, name: str) -> Callable[[str, str, bytes], bytes]:
        """The ``send`` of a site."""

        def send(peer: str, what: str, data: bytes) -> bytes:
            self.carried.append((name, peer, what, len(data)))
            if peer not in self.sites or self.trouble(name, peer, what, False):
                raise Unreachable(peer)
            try:
                reply = self.sites[peer].receive(name, what, data)
            except RequestError as error:  # its own disk fails: it says nothing
                raise Unreachable(peer) from error
            if reply:
                self.carried.append((peer, name, what, len(reply)))
            if self.trouble(peer, name, what, True):
                raise Unreachable(peer)
            return reply

        return send

    # The conductor's line

    def ask(
        self, sites: Sequence[str], what: str, *arguments: Any, seconds: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask some sites the same; one after the other here."""
        answers: dict[str, Any] = {}
        failures: dict[str, str] = {}
        for name in sites:
            if name not in self.sites:
                failures[name] = "unreachable"
                continue
            try:
                answers[name] = answer(self.sites[name], what, arguments)
            except DeclineError as declined:
                failures[name] = decline_codes.words(str(declined.code))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
        return answers, failures

    def pause(self, seconds: float) -> None:
        """Nothing runs meanwhile, so nothing is waited for."""

    def now(self) -> float:
        """Time stands still: no site is ever busy."""
        return 0.0


def answer(site: Site, what: str, arguments: Sequence[Any]) -> Any:
    """What a site says to the conductor; long work is done at once here."""
    if what == "ping":
        return True if len(site.site_context.roster) > 1 else OPEN
    if what == "wake":
        return True
    if what == "start":
        work, *rest = arguments
        # A site in memory is open from the beginning.
        return ["done", None if work == "open" else getattr(site, work)(*rest)]
    return getattr(site, what)(*arguments)
