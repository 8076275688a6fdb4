"""The relay's part in the masked sums of a job: it passes keys on, adds up, and sees no summand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abps.sites.protocol import answers
from abps.sites.protocol.commands import Answers, Command, SiteLine, Timeouts
from abps.sites.protocol.decline_codes import Failure
from abps.sites.protocol.masking import MaskedTotal, introduced, masked_total


class MaskedRelay:
    """Keys and sums of one job.  roster: the group of every sum."""

    def __init__(self, line: SiteLine, context: str, roster: Sequence[str], timeouts: Timeouts) -> None:
        """context: what the sums are for; they fit no other."""
        self._line, self._timeouts, self._context = line, timeouts, context
        self.roster = tuple(roster)
        self._ready: frozenset[str] = frozenset()  # sites that know the others' keys
        self._introductions: dict[str, list[bytes]] = {}

    def introduce(self, names: Sequence[str], others: Sequence[str] = ()) -> dict[str, Failure]:
        """Let sites know each other's keys. Returns who has none, and why.

        others: sites that have introduced themselves before, and learn of these.
        """
        replies, failed = self._ask(names, Command.SUM_INTRODUCE)
        known, invalid = answers.check_all(replies, introduced)
        self._introductions |= known
        meet = sorted({*known, *others})
        _, deaf = self._ask(meet, Command.SUM_MEET, self._introductions)
        self._ready = (self._ready | frozenset(known)) - frozenset(deaf)
        return failed | invalid | deaf

    def forget(self, names: Sequence[str]) -> None:
        """Sites that come back are in no sum until they have sent their keys anew."""
        self._ready -= frozenset(names)
        self._introductions = {k: v for k, v in self._introductions.items() if k not in names}

    def ready(self, present: Sequence[str]) -> list[str]:
        """The sites that can take part in a sum, after newcomers have introduced themselves."""
        new = [name for name in present if name not in self._introductions]
        if new:
            self.introduce(new, [name for name in present if name not in new])
        return [name for name in present if name in self._ready]

    def total(self, round: int, present: Sequence[str], entries: int) -> MaskedTotal:
        """The sum of a round over the sites that are ready; ``SumError`` if there is none."""
        return masked_total(self._ask, self._context, round, self.roster, present, entries)

    def _ask(self, sites: Sequence[str], command: Command, *arguments: Any) -> Answers:
        return self._line.ask(sites, command, *arguments, seconds=self._timeouts.talk)
