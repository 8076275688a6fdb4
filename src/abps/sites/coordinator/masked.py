"""The relay's part in masked sums, of exchanges and of counts for common scales
(:mod:`abps.sites.node.measuring`): it passes keys on, adds up, and sees no summand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abps.privacy.secure_sum import SumError
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.steps import MembersMissing, open_sites, run_step
from abps.sites.node.measuring import MEASURE, Tally, measuring_context
from abps.sites.protocol import commands
from abps.sites.protocol.commands import Answers, Command, Failure, SiteLine, Timeouts
from abps.sites.protocol.masking import MaskedTotal, masked_total, three_parts


class MaskedRelay:
    """Keys and sums of one job.  roster: the group of every sum."""

    def __init__(self, line: SiteLine, context: str, roster: Sequence[str], timeouts: Timeouts) -> None:
        """context: what the sums are for; they fit no other."""
        self.line, self.timeouts, self._context = line, timeouts, context
        self.roster = tuple(roster)
        self.ready: frozenset[str] = frozenset()  # sites that know the others' keys

    def introduce(self, names: Sequence[str]) -> dict[str, Failure]:
        """Let sites know each other's keys. Returns who has none, and why."""
        replies, failed = self._ask(names, Command.SUM_INTRODUCE)
        known, invalid = commands.check_all(replies, three_parts)
        _, deaf = self._ask(sorted(known), Command.SUM_MEET, known)
        self.ready = frozenset(known).difference(deaf)
        return failed | invalid | deaf

    def total(self, round: int, present: Sequence[str], entries: int) -> MaskedTotal:
        """The sum of a round over the sites that are ready; ``SumError`` if there is none."""
        there = [name for name in present if name in self.ready]
        return masked_total(self._ask, self._context, round, self.roster, there, entries)

    def _ask(self, sites: Sequence[str], command: Command, *arguments: Any) -> Answers:
        return self.line.ask(sites, command, *arguments, seconds=self.timeouts.talk)


def measure(
    line: SiteLine,
    agreement: Agreement,
    members: Sequence[str],
    timeouts: Timeouts,
    job: str,
    log: Callable[[str], None] = lambda line: None,
    notice: Callable[[int, str, Sequence[str]], None] = lambda round, step, waiting: None,
) -> dict[str, Any]:
    """The relay's part: what the study lacks, as sites know it from an earlier job, or counted now."""
    why = open_sites(
        line, sorted(members), timeouts, [MEASURE], notice=lambda waiting: notice(0, Command.OPEN, waiting)
    )
    there = [name for name in sorted(members) if name not in why]
    replies, failed = line.ask(there, Command.MEASURE, seconds=timeouts.talk)
    mine = agreement.digest()
    facts, invalid = commands.check_all(replies, lambda v: _facts(v, mine))
    why |= failed | invalid
    kept = Counter(json.dumps(scales, sort_keys=True) for _, scales in facts.values() if scales is not None)
    if kept:
        return dict(json.loads(kept.most_common(1)[0][0]))
    for name, reason in sorted(why.items()):
        log(f"{name} does not count: {reason}")
    rows = {name: count for name, (count, _) in facts.items()}
    relay = MaskedRelay(line, measuring_context(agreement, job), members, timeouts)
    try:
        return _counted(relay, agreement, rows, log)
    except SumError as error:
        raise MembersMissing(f"the common scales could not be counted ({error}); submit again") from error


def _counted(
    relay: MaskedRelay, agreement: Agreement, rows: Mapping[str, int], log: Callable[[str], None]
) -> dict[str, Any]:
    why = relay.introduce(sorted(rows))
    names = tuple(name for name in sorted(rows) if name not in why)
    tally = Tally(agreement)
    while not tally.found.done:
        number, entries = tally.found.taken + 1, tally.found.entries
        found = relay.total(number, names, entries)
        total, names = found.values, found.names
        for name, reason in sorted(found.missing.items()):
            log(f"count {number}: without {name} ({reason})")
        tally.members = len(names)
        most = sum(rows[name] for name in names) + 0.5 + tally.doubt() * tally.found.edges.shape[1]
        columns = total.reshape(tally.columns, -1)
        if (columns < -tally.doubt() - 0.5).any() or (columns.sum(axis=1) > most).any():
            raise SumError("a total is more than all rows, or less than none: a site adds what it has not")
        run_step(
            relay.line, names, relay.timeouts.talk, relay.timeouts, Command.SUM_TOTAL, number, found.data
        )
        tally.take(total, names)
    log(f"common scales of {tally.columns} columns, counted under masks by {len(names)} sites")
    return tally.result()


def _facts(value: Any, digest: str) -> tuple[int, dict[str, Any] | None]:
    """A site's training rows and scales, if it is in this study."""
    scales = value["scales"]
    if value["agreement"] != digest or not (scales is None or isinstance(scales, dict)):
        raise ValueError("another study")
    return commands.whole(value["rows"], 0, commands.MOST_ROWS), scales
