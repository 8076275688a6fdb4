"""The scheduler of a job, at the relay: a clock.

It says when a round begins, when to upload, to aggregate and to finish. It never sees a model; of masked sums
it sees the totals. Sites that exceed the timeouts, or the grace period after the others, skip the rest of the
round and are asked again in the next. Sites that come back inside a job, or can take part only now, join when
a round begins.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from abps import files
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.core.streams import center_ids
from abps.methods.base import Stopping
from abps.methods.coordinated import coordinators
from abps.privacy.secure_sum import SumError
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.job_report import JobReport, JobRound, StudyFinished
from abps.sites.coordinator.masked import MaskedRelay
from abps.sites.coordinator.steps import run_step, run_with_approval
from abps.sites.protocol import commands
from abps.sites.protocol.commands import Answers, Command, DeclineCode, Failure, SiteLine, SiteState, Timeouts
from abps.wire import versions
from abps.wire.admission import Limits
from abps.wire.number_lists import MOST

#: How many members are tried as the coordinator of an exchange.
TRIED = 3

#: Rounds in a row without a masked sum after which a job ends: it waits for a member of the earlier sums.
MOST_WITHOUT_SUM = 2


@dataclass
class _JobState:
    """What changes as a job goes on.

    sizes: training rows that count, by site.
    joined: sites that take part.  outside: sites that could not yet, and may come.
    well: sites that ended the last round well.  silent: sites that gave no sign of life when asked last.
    """

    roster: tuple[str, ...]
    sizes: dict[str, int]
    joined: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    well: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    reports: list[JobRound] = field(default_factory=list)
    best: int = 0
    best_value: float = math.nan

    def score(self, t: int, values: Sequence[float], stop: Stopping) -> tuple[float, bool]:
        """The mean validation score of a round, and whether it is the best so far."""
        known = [value for value in values if math.isfinite(value)]
        mean = float(np.mean(known)) if known else math.nan
        better = self.best == 0 or stop.better(mean, self.best_value)
        if better:
            self.best, self.best_value = t, mean
        return mean, better


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
        """memory: a folder for what must be remembered between two jobs: the last round that was run here.

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
        self.log, self.memory, self.notice, self.revoked = log, memory, notice, revoked
        self._open_arguments: list[Any] = [] if scales is None else [None, dict(scales)]
        self._passed_on = ""
        self._at = 0  # the round
        self._masks: MaskedRelay | None = None
        self._without_sum = 0  # rounds in a row

    def run(self, members: Sequence[str]) -> JobReport:
        """The whole job."""
        there, barred = self._members(sorted(members))
        roster = tuple(there)
        ready, left_out, outside = self._gather(roster)
        left_out |= barred
        first = 1 + max(int(facts["round"]) for facts in ready.values())
        if first > self.agreement.rounds or all(facts["finished"] for facts in ready.values()):
            raise StudyFinished(
                f"the study {self.agreement.study!r} has had its {min(first - 1, self.agreement.rounds)} "
                "rounds; nothing is left to do"
            )
        reported = {name: int(facts["rows"]) for name, facts in ready.items()}
        # Rows weigh in averages, and nobody can check what a site says of its own.
        most = int(Limits().rows * float(np.median(list(reported.values()))))
        sizes = {name: min(rows, most) for name, rows in reported.items()}
        state = _JobState(roster, sizes)
        for t in sorted({int(t) for facts in ready.values() for t in facts["validation"]}):
            known = [facts["validation"].get(str(t)) for facts in ready.values()]
            state.score(t, [value for value in known if value is not None], self.method.stop)
        joined, absent = self._join(sorted(ready), first, state)
        left_out |= absent
        if self.method.privacy.secure:
            purpose = f"{self.agreement.digest()}/{self.job}"
            self._masks = MaskedRelay(self.line, purpose, roster, self.timeouts)
            left_out |= self._masks.introduce(sorted(joined))
        self._introduce(sorted(joined), first)
        state.joined = state.well = frozenset(joined)
        state.outside = outside | (frozenset(ready) - state.joined)
        stopped = False
        for t in range(first, min(first + self.rounds - 1, self.agreement.rounds) + 1):
            finished = self._round(t, state)
            if finished or self.method.stop.over(t, state.best):
                stopped = True
                break
        return JobReport.of(self.agreement, first, roster, left_out, state.reports, state.best, stopped)

    # Who takes part

    def _gather(
        self, roster: tuple[str, ...]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Failure], frozenset[str]]:
        """The sites that are there and agree; why others are not; and which of these may still come."""
        _, failures = run_with_approval(
            self.line, roster, self.timeouts.work, self.timeouts, Command.OPEN, time.time(),
            *self._open_arguments, notice=lambda waiting: self.notice(self._at, Command.OPEN, waiting),
        )  # fmt: skip
        there = [name for name in roster if name not in failures]
        ready, silent, unfit = self._greet(there)
        outside = frozenset(
            name
            for name, failure in (failures | silent).items()
            if failure.code is not DeclineCode.INVALID_ANSWER
        )
        failures |= silent | unfit
        for name in _far_ahead({name: facts["round"] for name, facts in ready.items()}, self._last_seen()):
            detail = f"it says that it has finished round {ready.pop(name)['round']}, and nobody else has"
            failures[name] = Failure(DeclineCode.MISFIT, detail)
        for name, failure in sorted(failures.items()):
            self.log(f"{name} takes no part: {failure}")
        if len(ready) < 2:
            why = "; ".join(f"{name}: {failure}" for name, failure in sorted(failures.items()))
            raise RequestError(
                f"{len(ready)} of {len(roster)} sites can take part, and a job needs 2 ({why})"
            )
        return ready, failures, outside

    def _greet(
        self, sites: Sequence[str]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Failure], dict[str, Failure]]:
        """The facts of sites whose study is this one; who does not answer; and why the others do not fit."""
        replies, silent = self.line.ask(sites, Command.HELLO, seconds=self.timeouts.sign)
        known, unfit = commands.check_all(replies, lambda v: commands.hello(v, self.agreement.rounds))
        ready: dict[str, dict[str, Any]] = {}
        mine = self.agreement.digest()
        for name, facts in known.items():
            if facts["agreement"] != mine:
                detail = f"it runs another agreement than {mine}; same abps version?"
                unfit[name] = Failure(DeclineCode.MISFIT, detail)
            elif facts["wire"] != versions.VERSION:
                detail = (
                    f"it speaks version {'.'.join(map(str, facts['wire']))} of the wire format and the relay "
                    f"{'.'.join(map(str, versions.VERSION))}; bring both to the same abps"
                )
                unfit[name] = Failure(DeclineCode.VERSION, detail)
            else:
                ready[name] = facts
        return ready, silent, unfit

    def _join(self, names: Sequence[str], first: int, state: _JobState) -> Answers:
        arguments = (list(state.roster), first, state.sizes, list(versions.VERSION))
        return self.line.ask(names, Command.JOIN, *arguments, seconds=self.timeouts.sign)

    def _introduce(self, entered: Sequence[str], t: int, here: Sequence[str] = (), rows: Any = None) -> None:
        """Let newcomers return what they hold of others' logs, and those that are here what they hold."""
        if entered:
            self._step(entered, self.timeouts.talk, Command.INTRODUCE, t)
        if here:
            self._step(here, self.timeouts.talk, Command.INTRODUCE, t, list(entered), rows)

    def _members(self, names: Sequence[str]) -> tuple[list[str], dict[str, Failure]]:
        """Who is still a member, and why the others are not; a list that is new is passed on to them."""
        text, expelled = self.revoked()
        there = [name for name in names if name not in expelled]
        if text and text != self._passed_on:
            self._passed_on = text
            self.line.ask(there, Command.REVOKED, text, seconds=self.timeouts.talk)
        return there, {name: Failure(DeclineCode.EXPELLED) for name in names if name in expelled}

    def _present(self, t: int, state: _JobState) -> tuple[list[str], dict[str, Failure]]:
        """Who is there: sites that ended the last round well, and those of the others that answer.

        Sites that are back, or can take part only now, join.
        """
        members, barred = self._members(sorted(state.joined | state.outside))
        asked = [name for name in members if name not in state.well]
        quick = [name for name in asked if name in state.silent]
        others = [name for name in asked if name not in state.silent]
        states, silent = self.line.ask(others, Command.PING, seconds=self.timeouts.sign)
        more, still = self.line.ask(quick, Command.PING, seconds=self.timeouts.again)
        states, silent = {**states, **more}, {**silent, **still}
        state.silent = frozenset(silent)
        missing = barred | silent
        waiting: dict[str, Failure] = {}
        for name, site_state in sorted(states.items()):
            if site_state == SiteState.NEW:
                self.line.ask([name], Command.WAKE, *self._open_arguments, seconds=self.timeouts.sign)
                waiting[name] = Failure(DeclineCode.NOT_READY, "it is back and opens its table")
            elif site_state == SiteState.BUSY:
                waiting[name] = Failure(DeclineCode.NOT_READY, "it is still busy with an earlier step")
            elif site_state != SiteState.READY:
                state.outside |= {name}
        back = [name for name in _without(sorted(states), waiting) if name in state.outside]
        ready, quiet, unfit = self._greet(back)
        state.outside -= frozenset(unfit)
        missing |= waiting | quiet | unfit
        here = [name for name in state.well if name in members]
        here += [name for name in states if name in state.joined and name not in {*missing, *back}]
        entered = self._enter(t, ready, sorted(here), state, missing)
        present = sorted({*here, *entered})
        state.joined |= frozenset(entered)
        state.outside -= state.joined
        return present, {name: failure for name, failure in missing.items() if name in state.joined}

    def _enter(
        self,
        t: int,
        ready: Mapping[str, Mapping[str, Any]],
        here: list[str],
        state: _JobState,
        missing: dict[str, Failure],
    ) -> list[str]:
        """Let sites join before a round: they learn who is there, and the others of them."""
        ahead = [name for name, facts in ready.items() if facts["round"] >= t]
        missing |= dict.fromkeys(ahead, Failure(DeclineCode.MISFIT, "it has finished this round before"))
        most = max(state.sizes.values())
        names = _without(sorted(ready), missing)
        rows = {name: min(int(ready[name]["rows"]), most) for name in names}
        if not rows:
            return []
        state.sizes |= rows
        if self._masks is not None:
            self._masks.forget(sorted(rows))
        joined, failed = self._join(sorted(rows), t, state)
        missing |= failed
        entered = sorted(joined)
        self._introduce(entered, t, here, rows)
        for name in entered:
            self.log(f"round {t}: {name} takes part from now on")
        return entered

    # A round

    def _round(self, t: int, state: _JobState) -> bool:
        """One round. Returns whether all sites say that the method is done."""
        began, self._at = self.line.now(), t
        here, missing = self._present(t, state)
        done, failed = self.line.ask(here, Command.BEGIN, t, here, seconds=self.timeouts.sign)
        missing |= failed
        present = sorted(done)
        if not present:
            why = "; ".join(sorted({str(failure) for failure in missing.values()}))
            raise RequestError(f"round {t}: no site is left ({why})")
        rest = (self._masked if self._masks is not None and self.method.sums_only(t) else self._coordinated)(
            t, state.roster, present, missing
        )
        replies, failed = self._work(_without(present, missing), Command.CONCLUDE, t, int(rest))
        concluded, invalid = commands.check_all(replies, lambda v: commands.concluded(v, len(state.roster)))
        missing |= failed | invalid
        self._book(t, present, concluded, missing, state, began)
        state.well = frozenset(concluded) - set(missing)
        path = self._seen_file()
        if path is not None:
            files.folder(path.parent)
            files.write_text(path, str(t))
        return bool(concluded) and all(done for _, _, done in concluded.values())

    def _coordinated(
        self, t: int, roster: tuple[str, ...], present: list[str], missing: dict[str, Failure]
    ) -> Rest:
        """Let all members upload, and the coordinator aggregate; the next in the draw, if it is gone."""
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

    def _masked(
        self, t: int, roster: tuple[str, ...], present: list[str], missing: dict[str, Failure]
    ) -> Rest:
        """An exchange under masked sums: every member gets the total, and goes on by itself."""
        assert self._masks is not None
        entries = self._contribute(t, _without(present, missing), missing)
        common = Counter(count for count in entries.values() if count).most_common(1)
        adding = [name for name, count in entries.items() if common and count == common[0][0]]
        if not adding:  # all rest
            return Rest.UNREACHABLE
        try:
            found = self._masks.total(t, self._masks.ready(adding), common[0][0])
        except SumError as error:
            self.log(f"round {t}: no sum ({error})")
            self._without_sum += 1
            if self._without_sum >= MOST_WITHOUT_SUM:
                absent = ", ".join(name for name in roster if name not in adding) or "nobody"
                raise RequestError(
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
        """Something that takes a site some computing."""
        return self._step(sites, self.timeouts.work, command, *arguments)

    def _step(self, sites: Sequence[str], limit: float, command: Command, *arguments: Any) -> Answers:
        def notice(waiting: Sequence[str]) -> None:
            self.notice(self._at, command, waiting)

        return run_step(self.line, sites, limit, self.timeouts, command, *arguments, notice=notice)

    def _book(
        self,
        t: int,
        present: list[str],
        concluded: Mapping[str, tuple[float, dict[str, int], bool]],
        missing: Mapping[str, Failure],
        state: _JobState,
        began: float,
    ) -> None:
        """Write the report of a round."""
        sums = Counter[str]()
        for _, each, _ in concluded.values():
            sums.update(each)
        mean, better = state.score(t, [value for value, _, _ in concluded.values()], self.method.stop)
        if better and self.method.stop.restore_best:
            self.line.ask(_without(present, missing), Command.KEEP_BEST, seconds=self.timeouts.sign)
        state.reports.append(
            JobRound(
                t,
                tuple(present),
                {name: str(failure) for name, failure in sorted(missing.items())},
                {name: each["partners"] for name, (_, each, _) in sorted(concluded.items())},
                sums["bytes"],
                mean if math.isfinite(mean) else None,
                round(self.line.now() - began, 3),
            )
        )
        for name, failure in sorted(missing.items()):
            self.log(f"round {t}: without {name} ({failure})")

    # What the relay has seen of the study

    def _seen_file(self) -> Path | None:
        return None if self.memory is None else self.memory / f"{self.agreement.digest()}.round"

    def _last_seen(self) -> int:
        """The last round of the study that a job at this relay has run; 0 if none is known."""
        path = self._seen_file()
        try:
            return 0 if path is None else int(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0


def _far_ahead(rounds: Mapping[str, int], seen: int = 0) -> list[str]:
    """The site that says it is more than a round ahead of all others, of which there are two at least, and of
    what this relay has seen of the study: newcomers may outnumber those who were there."""
    if len(rounds) < 3:
        return []
    *_, second, first = sorted(rounds, key=lambda name: rounds[name])
    return [first] if rounds[first] > max(rounds[second], seen) + 1 else []


def _without(sites: Sequence[str], missing: Mapping[str, Failure]) -> list[str]:
    return [name for name in sites if name not in missing]
