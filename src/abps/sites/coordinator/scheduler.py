"""The scheduler of a job, at the relay: a clock.

It says when a round begins, when to upload, to aggregate and to finish. It never sees a model; of masked sums
it sees the totals. Sites that exceed the timeouts, or the grace period after the others, skip the rest of the
round and are asked again in the next. A site whose process was gone takes part again in the next job.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from abps import files
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.core.streams import center_ids
from abps.methods.coordinated import coordinators
from abps.privacy.secure_sum import SumError
from abps.release import VERSION
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.masked import MaskedRelay
from abps.sites.coordinator.steps import MembersMissing, enough, open_sites, run_step
from abps.sites.protocol import commands
from abps.sites.protocol.commands import (
    Answers,
    Command,
    DeclineCode,
    Failure,
    SiteFacts,
    SiteLine,
    SiteState,
    Timeouts,
)
from abps.wire import messages
from abps.wire.admission import capped_rows
from abps.wire.number_lists import MOST

#: How many members are tried as the coordinator of an exchange.
TRIED = 3

#: Seconds that the others waited for a site in a round from which on the report names it.
SLOW = 1.0

#: Rounds in a row without a masked sum after which a job ends: it waits for a member of the earlier sums.
MOST_WITHOUT_SUM = 2


class StudyFinished(RequestError):
    """The study has had all its rounds: a job has nothing left to do."""


@dataclass(frozen=True)
class JobRound:
    """What the scheduler knows of a round.  missing: absent sites, and why.

    validation: the mean validation score, of so many ``scored`` sites.  late: sites that the others waited
    for, and the seconds.
    """

    round: int
    present: tuple[str, ...]
    missing: dict[str, str]
    partners: dict[str, int]
    bytes: int
    validation: float | None
    scored: int
    late: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class JobReport:
    """What the scheduler knows of a job: sums and names, no model.

    left_out: members that took no part, and why.  validation: by site, that of the last round, where enough
    patients are behind it.
    """

    study: str
    method: str
    seed: int
    agreement: str
    first: int
    members: tuple[str, ...]
    left_out: dict[str, str]
    rounds: tuple[JobRound, ...]
    stopped_early: bool
    validation: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"schema": "abps.job/2", **asdict(self), "bytes": sum(r.bytes for r in self.rounds)}


class Scheduler:
    """Runs one job: some rounds of a study."""

    def __init__(
        self,
        line: SiteLine,
        agreement: Agreement,
        rounds: int,
        timeouts: Timeouts | None = None,
        log: Callable[[str], None] = lambda line: None,
        memory: Path | None = None,
        notice: Callable[[int, str, Sequence[str]], None] = lambda round, step, waiting: None,
        revoked: Callable[[], tuple[str, frozenset[str]]] = lambda: ("", frozenset()),
        job: str = "",
        scales: Mapping[str, Any] | None = None,
    ) -> None:
        """memory: a folder for the last round of the study that was run here.
        notice: called with every step that is waited for: (round, step, sites).
        revoked: the authority's list as it stands, to be passed on, and the members that it expels.
        job: its name, the same at all sites.
        scales: what was counted for the study before (:mod:`.measuring`), to be named to sites.
        """
        if rounds < 1:
            raise RequestError(f"rounds={rounds}: a job needs at least 1 round")
        self.line, self.agreement, self.rounds, self.job = line, agreement, rounds, job
        self.method = agreement.config()
        self.timeouts = timeouts or Timeouts()
        self.log, self.notice, self.revoked = log, notice, revoked
        self._seen = None if memory is None else memory / f"{agreement.digest()}.round"
        self._open_arguments: list[Any] = [] if scales is None else [None, dict(scales)]
        self._passed_on = ""
        self._at = 0  # the round
        self._roster: tuple[str, ...] = ()
        self._joined: frozenset[str] = frozenset()  # sites that take part
        self._well: frozenset[str] = frozenset()  # sites that ended the last round well
        self._silent: frozenset[str] = frozenset()  # sites that gave no sign of life when asked last
        self._reports: list[JobRound] = []
        self._scores: dict[str, float] = {}  # validation scores of the last round, by site
        self._masks: MaskedRelay | None = None
        self._without_sum = 0  # rounds in a row
        self._late: Counter[str] = Counter()  # seconds of this round that the others waited for a site

    def run(self, members: Sequence[str]) -> JobReport:
        there, barred = self._members(sorted(members))
        self._roster = tuple(there)
        ready, left_out = self._gather()
        left_out |= barred
        first = 1 + max(int(facts["round"]) for facts in ready.values())
        if first > self.agreement.rounds or all(facts["finished"] for facts in ready.values()):
            raise StudyFinished(
                f"the study {self.agreement.study!r} has had its {min(first - 1, self.agreement.rounds)} "
                "rounds; nothing is left to do"
            )
        rows = capped_rows({name: int(facts["rows"]) for name, facts in ready.items()})
        arguments = (there, first, rows, list(messages.VERSION))
        joined, absent = self.line.ask(sorted(ready), Command.JOIN, *arguments, seconds=self.timeouts.sign)
        left_out |= absent
        if self.method.privacy.secure:
            purpose = f"{self.agreement.digest()}/{self.job}"
            self._masks = MaskedRelay(self.line, purpose, there, self.timeouts)
            left_out |= self._masks.introduce(sorted(joined))
        self._step(sorted(joined), self.timeouts.talk, Command.INTRODUCE, first)
        self._joined = self._well = frozenset(joined)
        last = min(first + self.rounds - 1, self.agreement.rounds)
        stopped = any(self._round(t) for t in range(first, last + 1))
        agreement, gone = self.agreement, {name: str(why) for name, why in left_out.items()}
        return JobReport(
            agreement.study, agreement.method, agreement.seed, agreement.digest(), first, self._roster, gone,
            tuple(self._reports), stopped, self._scores,
        )  # fmt: skip

    # Who takes part

    def _gather(self) -> tuple[dict[str, SiteFacts], dict[str, Failure]]:
        """The sites that are there and agree; and why others are not."""
        roster = self._roster
        failures = open_sites(
            self.line, roster, self.timeouts, *self._open_arguments,
            notice=lambda waiting: self.notice(self._at, Command.OPEN, waiting),
        )  # fmt: skip
        ready, unfit = self._greet([name for name in roster if name not in failures])
        failures |= unfit
        seen = int(self._seen.read_text(encoding="utf-8")) if self._seen and self._seen.is_file() else 0
        for name in _far_ahead({name: facts["round"] for name, facts in ready.items()}, seen):
            detail = f"it says that it has finished round {ready.pop(name)['round']}, and nobody else has"
            failures[name] = Failure(DeclineCode.MISFIT, detail)
        for name, failure in sorted(failures.items()):
            self.log(f"{name} takes no part: {failure}")
        if len(ready) < 2:
            why = "; ".join(f"{name}: {failure}" for name, failure in sorted(failures.items()))
            raise RequestError(f"{len(ready)} of {len(roster)} sites can take part, a job needs 2 ({why})")
        return ready, failures

    def _greet(self, sites: Sequence[str]) -> tuple[dict[str, SiteFacts], dict[str, Failure]]:
        """The facts of sites whose study is this one; and why the others do not fit."""
        replies, silent = self.line.ask(sites, Command.HELLO, seconds=self.timeouts.sign)
        known, unfit = commands.check_all(replies, lambda v: commands.hello(v, self.agreement.rounds))
        ready: dict[str, SiteFacts] = {}
        mine = self.agreement.digest()
        for name, facts in known.items():
            if facts["agreement"] != mine:
                detail = f"it runs another agreement than {mine}; same abps version?"
                unfit[name] = Failure(DeclineCode.MISFIT, detail)
            elif facts["wire"] != messages.VERSION:
                detail = (
                    f"it speaks version {'.'.join(map(str, facts['wire']))} of the wire format and the relay "
                    f"{'.'.join(map(str, messages.VERSION))}; bring both to the same abps"
                )
                unfit[name] = Failure(DeclineCode.VERSION, detail)
            elif facts["abps"] != VERSION:
                detail = f"it runs abps {facts['abps']} and the relay {VERSION}; bring both to the same"
                unfit[name] = Failure(DeclineCode.VERSION, detail)
            else:
                ready[name] = facts
        return ready, silent | unfit

    def _members(self, names: Sequence[str]) -> tuple[list[str], dict[str, Failure]]:
        """Who is still a member, and why the others are not; a list that is new is passed on to them."""
        text, expelled = self.revoked()
        there = [name for name in names if name not in expelled]
        if text and text != self._passed_on:
            self._passed_on = text
            self.line.ask(there, Command.REVOKED, text, seconds=self.timeouts.talk)
        return there, {name: Failure(DeclineCode.EXPELLED) for name in names if name in expelled}

    def _present(self) -> tuple[list[str], dict[str, Failure]]:
        """Who is there: sites that ended the last round well, and those of the others that answer."""
        members, missing = self._members(sorted(self._joined))
        here = [name for name in members if name in self._well]
        asked = [name for name in members if name not in self._well]
        for seconds, names in (
            (self.timeouts.sign, [name for name in asked if name not in self._silent]),
            (self.timeouts.again, [name for name in asked if name in self._silent]),
        ):
            states, silent = self.line.ask(names, Command.PING, seconds=seconds)
            self._silent = self._silent.difference(states).union(silent)
            missing |= silent
            for name, state in states.items():
                if state == SiteState.READY:
                    here.append(name)
                else:
                    why = "it is still busy with an earlier step"
                    missing[name] = Failure(DeclineCode.NOT_READY, why)
        return sorted(here), missing

    # A round

    def _round(self, t: int) -> bool:
        """One round. Returns whether all sites say that the method is done."""
        began, self._at, self._late = self.line.now(), t, Counter()
        here, missing = self._present()
        done, failed = self.line.ask(here, Command.BEGIN, t, here, seconds=self.timeouts.sign)
        missing |= failed
        present = sorted(done)
        if not present:
            why = "; ".join(sorted({str(failure) for failure in missing.values()}))
            raise RequestError(f"round {t}: no site is left ({why})")
        masked = self._masks is not None and self.method.sums_only(t)
        rest = (self._masked if masked else self._coordinated)(t, present, missing)
        replies, failed = self._work(_without(present, missing), Command.CONCLUDE, t, int(rest))
        concluded, invalid = commands.check_all(replies, lambda v: commands.concluded(v, len(self._roster)))
        missing |= failed | invalid
        self._report(t, present, concluded, missing, began)
        self._well = frozenset(concluded) - set(missing)
        if self._seen is not None:
            files.folder(self._seen.parent)
            files.write_text(self._seen, str(t))
        return bool(concluded) and all(done for _, _, done in concluded.values())

    def _coordinated(self, t: int, present: list[str], missing: dict[str, Failure]) -> Rest:
        """Let all members upload, and the coordinator aggregate; the next in the draw, if it is gone."""
        roster = self._roster
        order = coordinators(self.agreement.seed, t, center_ids(roster))
        for _ in range(TRIED):
            there = [roster[k] for k in order if roster[k] in present and roster[k] not in missing]
            self._contribute(t, there, missing)
            if not there or there[0] in missing:
                continue
            replies, failed = self._work(there[:1], Command.COORDINATE, t)
            counts, invalid = commands.check_all(replies, lambda v: commands.whole(v, 0, len(roster)))
            missing |= failed | invalid
            for name, count in counts.items():
                self.log(f"round {t}: {count} sites uploaded to {name}")
                return Rest.NOT if count > 1 else Rest.UNREACHABLE
        return Rest.UNREACHABLE

    def _contribute(self, t: int, there: list[str], missing: dict[str, Failure]) -> dict[str, int]:
        """Let sites upload, or prepare a summand: how many numbers each has."""
        replies, failed = self._work(there, Command.CONTRIBUTE, t, sorted(missing))
        entries, invalid = commands.check_all(replies, lambda v: commands.whole(v, 0, MOST))
        missing |= failed | invalid
        return entries

    def _masked(self, t: int, present: list[str], missing: dict[str, Failure]) -> Rest:
        """An exchange under masked sums: every member gets the total, and goes on by itself."""
        assert self._masks is not None
        entries = self._contribute(t, _without(present, missing), missing)
        common = Counter(count for count in entries.values() if count).most_common(1)
        adding = [name for name, count in entries.items() if common and count == common[0][0]]
        if not adding:  # all rest
            return Rest.UNREACHABLE
        try:
            found = self._masks.total(t, adding, common[0][0])
        except SumError as error:
            self.log(f"round {t}: no sum ({error})")
            self._without_sum += 1
            if self._without_sum >= MOST_WITHOUT_SUM:
                absent = ", ".join(name for name in self._roster if name not in adding) or "nobody"
                raise MembersMissing(
                    f"round {t}: there is no masked sum ({error}); all sums of a study are of the same "
                    f"members, and without a summand were: {absent}; start these sites and submit again"
                ) from error
            return Rest.UNREACHABLE
        self._without_sum = 0
        missing |= found.missing
        took, failed = self._work(_without(list(found.names), missing), Command.SUM_TOTAL, t, found.data)
        missing |= failed
        self.log(f"round {t}: the sum of {len(found.names)} sites" if took else f"round {t}: no sum is taken")
        return Rest.NOT if took else Rest.UNREACHABLE

    def _work(self, sites: Sequence[str], command: Command, *arguments: Any) -> Answers:
        return self._step(sites, self.timeouts.work, command, *arguments)

    def _step(self, sites: Sequence[str], limit: float, command: Command, *arguments: Any) -> Answers:
        seen = self.line.now()

        def notice(waiting: Sequence[str]) -> None:
            nonlocal seen
            before, seen = seen, self.line.now()
            if len(waiting) <= len(sites) - enough(len(sites)):  # most are done, and wait for these
                self._late.update(dict.fromkeys(waiting, seen - before))
            self.notice(self._at, command, waiting)

        return run_step(self.line, sites, limit, self.timeouts, command, *arguments, notice=notice)

    def _report(
        self, t: int, present: list[str], concluded: Mapping[str, tuple[float, dict[str, int], bool]],
        missing: Mapping[str, Failure], began: float,
    ) -> None:  # fmt: skip
        scores = {name: value for name, (value, _, _) in sorted(concluded.items()) if math.isfinite(value)}
        sums = {name: each for name, (_, each, _) in sorted(concluded.items())}
        why = {name: str(failure) for name, failure in sorted(missing.items())}
        late = {name: round(float(s), 1) for name, s in sorted(self._late.items()) if s >= SLOW}
        mean = float(np.mean(list(scores.values()))) if scores else None
        self._scores, took = scores, round(self.line.now() - began, 3)
        self._reports.append(JobRound(
            t, tuple(present), why, {name: each["partners"] for name, each in sums.items()},
            sum(each["bytes"] for each in sums.values()), mean, len(scores), late, took,
        ))  # fmt: skip
        for name, seconds in late.items():
            self.log(f"round {t}: the others waited {seconds:g} s for {name}")
        for name, reason in why.items():
            self.log(f"round {t}: without {name} ({reason})")


def _far_ahead(rounds: Mapping[str, int], seen: int = 0) -> list[str]:
    """The site that says it is more than a round ahead of all others, of which there are two at least, and of
    what this relay has seen of the study: newcomers may outnumber those who were there."""
    if len(rounds) < 3:
        return []
    *_, second, first = sorted(rounds, key=lambda name: rounds[name])
    return [first] if rounds[first] > max(rounds[second], seen) + 1 else []


def _without(sites: Sequence[str], missing: Mapping[str, Failure]) -> list[str]:
    return [name for name in sites if name not in missing]
