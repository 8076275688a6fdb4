"""What leaves a site and what has come: written into its log first, then carried.

Which engine carries the bytes does not matter here: ``send`` is given. Nothing leaves while people of the
site do not want it (``shut``).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from abps.sites.node.context import SiteContext
from abps.sites.store.chain import canonical
from abps.sites.store.rows import Entry

T = TypeVar("T")

#: The name under which the conductor sends (only what a star's server has to say does come from there).
RELAY = "server"

#: Who merges the codebooks.
OPERATOR = "operator"


class Unreachable(Exception):
    """A peer did not answer in time."""


#: Carry bytes to a peer and bring back its answer: (peer, what, data) -> reply, or Unreachable.
Send = Callable[[str, str, bytes], bytes]

#: A row of the log without when and to whom: what it is, how many bytes, and why.
Part = tuple[str, int, str]


@dataclass(frozen=True)
class Patience:
    """How long a site tries: repetitions of an unanswered message, seconds for its whole turn, and for the
    weights of partners."""

    repeats: int = 2
    turn_seconds: float = 60.0
    swap_seconds: float = 30.0


def utc() -> str:
    """The time now, as it is written into logs."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class AuditedTransport:
    """A site's line to its peers, and the log of what goes over it."""

    def __init__(
        self,
        site_context: SiteContext,
        send: Send,
        patience: Patience,
        now: Callable[[], float],
        stamp: Callable[[], str],
    ) -> None:
        self.site_context, self.patience, self.now = site_context, patience, now
        self.send, self._stamp = send, stamp
        self.shut = False  # whether consent was missing when a round should begin

    def log(
        self, peer: str, what: str, size: int, why: str, sent: bool = True, round: int | None = None
    ) -> None:
        """Write down something that leaves or has come, in this round unless said otherwise."""
        self.log_parts(peer, [(what, size, why)], sent, round)

    def log_parts(
        self, peer: str, parts: Sequence[Part], sent: bool = True, round: int | None = None
    ) -> None:
        """The same for things that go together."""
        number = self.site_context.round.number if round is None else round
        at = self._stamp()
        self.site_context.store.log(*(Entry(at, number, peer, sent, *part) for part in parts))

    def tell(self, answer: T, why: str, round: int) -> T:
        """Write down what the conductor is told, before it is."""
        self.log(RELAY, "told", len(canonical(answer)), why, round=round)
        return answer

    def carry(
        self, peer: str, what: str, data: bytes, why: str, repeats: int = 0, round: int | None = None
    ) -> bytes:
        """Write down, send, and bring back the answer; an answer that says nothing is none."""
        return self.carry_parts(peer, what, data, [(what, len(data), why)], repeats, round)

    def carry_parts(
        self,
        peer: str,
        what: str,
        data: bytes,
        parts: Sequence[Part],
        repeats: int = 0,
        round: int | None = None,
    ) -> bytes:
        """The same for bytes that consist of several things."""
        if self.shut:
            raise Unreachable(peer)
        for attempt in range(1 + repeats):
            again = " (repeated)" if attempt else ""
            self.log_parts(peer, [(kind, size, f"{why}{again}") for kind, size, why in parts], round=round)
            if what != "message":
                self.site_context.store.sync()
            try:
                reply = self.send(peer, what, data)
            except Unreachable:
                continue
            if reply or not self._expects_answer(what, data):
                return reply
        raise Unreachable(peer)

    def _expects_answer(self, what: str, data: bytes) -> bool:
        if what == "weights":
            return self.site_context.mutual
        return what == "place" or (what == "message" and data[0] in (1, 2))  # a proposal, an accept
