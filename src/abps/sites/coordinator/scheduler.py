"""The conductor of a real federation: a clock.

It says when a round begins, whose turn it is to propose, when to swap and when to finish. It never sees a
model, a metadata vector or a belief, and it decides nothing about who works with whom. (Star methods, which
are there for comparison, need a server: :mod:`abps.sites.coordinator.star_server`.)

Proposers take their turns one after the other, in the order that the seed gives: so the partners are
those of the simulation. Nobody is waited for longer than the stated seconds; who does not answer, or is later
than the others by more than the grace, is left out of the rest of the round and asked again in the next. Who
comes back inside a job, or can take part only now, is let in when a round begins.

Whatever takes time at a site is started there and asked for until it is done: so a site that works long is
told from a site that is gone within the seconds for a sign of life.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from abps import files
from abps.core.errors import RequestError
from abps.core.ledger import Ledger, Traffic
from abps.core.matching import Rest
from abps.core.streams import center_ids
from abps.methods.base import Stopping
from abps.methods.coordinated import coordinators
from abps.methods.peers import PeerMethod
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.job_report import JobReport, RoundReport, StudyFinished
from abps.sites.coordinator.sizes import Sizes
from abps.sites.coordinator.star_server import StarServer
from abps.sites.coordinator.trials import Which
from abps.sites.node.exchanges import BOARDS
from abps.sites.protocol import answers, decline_codes
from abps.sites.protocol.steps import BUSY, NEW, Line, Timeouts, decided, started
from abps.wire import versions
from abps.wire.admission import Limits


@dataclass
class _Course:
    """What changes as a job goes on."""

    ledger: Ledger
    reports: list[RoundReport] = field(default_factory=list)
    best: int = 0
    best_value: float = math.nan
    joined: frozenset[str] = frozenset()  # who takes part in the job
    outside: frozenset[str] = frozenset()  # who could not yet, and may come
    well: frozenset[str] = frozenset()  # who ended the last round well
    silent: frozenset[str] = frozenset()  # who gave no sign of life when it was asked last

    def note(self, t: int, values: Sequence[float], stop: Stopping) -> tuple[float, bool]:
        """The mean validation AUROC of a round, and whether it is the best so far."""
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
        line: Line,
        agreement: Agreement,
        rounds: int,
        seconds: Timeouts | None = None,
        tell: Callable[[str], None] = lambda line: None,
        memory: Path | None = None,
        notice: Callable[[int, str, Sequence[str]], None] = lambda round, step, waiting: None,
        revoked: Callable[[], tuple[str, frozenset[str]]] = lambda: ("", frozenset()),
        job: str = "",
        which: Which | None = None,
        scales: Mapping[str, Any] | None = None,
    ) -> None:
        """memory: a folder for what must be remembered between two jobs: the last round that was run here,
        and what a star's server keeps.

        notice: told of every step that is waited for: (round, step, sites).
        revoked: the authority's list as it stands, to be passed on, and the members that it expels.
        job: its name, the same at all sites.
        which: of the studies in which a penalty is chosen, if this is one of them.
        scales: what was counted for the study before (:mod:`..protocol.measuring`), to be named to sites.
        """
        if rounds < 1:
            raise RequestError(f"rounds={rounds}: a job needs at least 1 round")
        self.line = line
        self.agreement = agreement
        self.method = agreement.config()
        self.which, self.scales = which, scales
        if agreement.penalties():
            raise RequestError("the penalty of the study is not chosen yet")
        self.rounds = rounds
        self.seconds = seconds or Timeouts()
        self.tell = tell
        self.memory = memory
        self.notice = notice
        self.revoked = revoked
        self._passed_on = ""
        self.job = job
        self.wire: versions.Version = versions.NEWEST
        self.sender_id = versions.sender_ids(versions.NEWEST, agreement.digest(), job)
        self._at = 0  # the round
        self.sizes = Sizes(agreement, self.method)
        self._server: StarServer | None = None
        self._told: dict[str, int] = {}  # rows, as sites said

    def run(self, members: Sequence[str]) -> JobReport:
        """The whole job."""
        everybody, barred = self._members(sorted(members))
        roster = tuple(everybody)
        ready, left_out, outside = self._gather(roster)
        left_out |= barred
        first = 1 + max(int(facts["round"]) for facts in ready.values())
        if first > self.agreement.rounds:
            raise StudyFinished(
                f"the study {self.agreement.study!r} has had its {self.agreement.rounds} rounds; "
                "nothing is left to do"
            )
        sizes = {name: int(facts["rows"]) for name, facts in ready.items()}
        self._told = dict(sizes)
        # Rows weigh in averages, and nobody can check what a site says of its own.
        most = int(Limits().rows * float(np.median(list(sizes.values()))))
        sizes = {name: min(rows, most) for name, rows in sizes.items()}
        wire = versions.spoken([facts["wire"] for facts in ready.values()])
        self.wire = wire
        self.sender_id = versions.sender_ids(wire, self.agreement.digest(), self.job)
        # Sites of the first version do not know the word.
        spoken = [] if wire == versions.OLDEST else [list(wire)]
        joined, absent = self.line.ask(
            sorted(ready), "join", list(roster), first, sizes, *spoken, seconds=self.seconds.sign
        )
        left_out |= absent
        if self.method.kind == "star":
            self._server = StarServer(
                self.line, self.agreement, self.seconds, self.tell, self.memory, self.job,
                self.sender_id, first,
            )  # fmt: skip
            left_out |= self._server.introduce(sorted(joined))
        if self.method.kind not in ("alone", "star"):
            self._talk(sorted(joined), "catch_up")
            self._talk(sorted(joined), "introduce", first)
        course = self._course(ready)
        course.joined = course.well = frozenset(joined)
        course.outside = outside | (frozenset(ready) - course.joined)
        stopped = False
        for t in range(first, min(first + self.rounds - 1, self.agreement.rounds) + 1):
            self._round(t, roster, sizes, course)
            if self.method.stop.over(t, course.best):
                stopped = True
                break
        took_part = {name for report in course.reports for name in report.present}
        left_out = {name: why for name, why in left_out.items() if name not in took_part}
        return JobReport(
            self.agreement.study,
            self.agreement.method,
            self.agreement.seed,
            self.agreement.digest(),
            first,
            roster,
            left_out,
            tuple(_with_latecomers(report, took_part) for report in course.reports),
            course.best,
            stopped,
        )

    @property
    def _named(self) -> list[Any]:
        """Which study sites are to open, where there are several, and with which scales."""
        which = None if self.which is None else list(self.which)
        if self.scales is not None:
            return [which, dict(self.scales)]
        return [] if which is None else [which]

    def _course(self, ready: Mapping[str, Mapping[str, Any]]) -> _Course:
        """What earlier jobs of the study left: the bytes spent, and the best round."""
        edge = sum(int(facts["edges"]) for facts in ready.values()) // 2
        course = _Course(Ledger(self.method.budget, Traffic(edge=edge)))
        past = sorted({int(t) for facts in ready.values() for t in facts["validation"]})
        for t in past:
            known = [facts["validation"].get(str(t)) for facts in ready.values()]
            course.note(t, [value for value in known if value is not None], self.method.stop)
        return course

    def _gather(
        self, roster: tuple[str, ...]
    ) -> tuple[dict[str, Mapping[str, Any]], dict[str, str], frozenset[str]]:
        """Who is there and agrees; why others are not; and who of these may still come."""
        _, failures = decided(
            self.line,
            roster,
            self.seconds.work,
            self.seconds,
            "open",
            time.time(),
            *self._named,
            notice=lambda waiting: self.notice(self._at, "open", waiting),
        )
        there = [name for name in roster if name not in failures]
        ready, silent, unfit = self._greeted(there, roster)
        nonsense = {answers.NONSENSE, decline_codes.words("")}
        outside = frozenset(name for name, why in (failures | silent).items() if why not in nonsense)
        failures |= silent | unfit
        told = {name: facts["round"] for name, facts in ready.items()}
        for name in _far_ahead(told, self._seen()):
            failures[name] = (
                f"it says that it has finished round {ready.pop(name)['round']}, and nobody else has"
            )
        for name, why in sorted(failures.items()):
            self.tell(f"{name} takes no part: {why}")
        if len(ready) < 2:
            why = "; ".join(f"{name}: {reason}" for name, reason in sorted(failures.items()))
            raise RequestError(
                f"{len(ready)} of {len(roster)} sites can take part, and a job needs 2 ({why})"
            )
        return ready, failures, outside

    def _seen(self) -> int:
        """The last round of the study that a job at this relay has run; 0 if none is known."""
        path = self._seen_file()
        try:
            return 0 if path is None else int(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0

    def _seen_file(self) -> Path | None:
        return None if self.memory is None else self.memory / f"{self.agreement.digest()}.round"

    def _greeted(
        self, sites: Sequence[str], roster: tuple[str, ...]
    ) -> tuple[dict[str, Mapping[str, Any]], dict[str, str], dict[str, str]]:
        """The first words of sites whose study is this one; who says none; and why the others do not fit."""
        said, silent = self.line.ask(sites, "hello", seconds=self.seconds.sign)
        edges = self.sizes.most_edges(len(roster))
        told, unfit = answers.sorted_out(said, lambda v: answers.hello(v, self.agreement.rounds, edges))
        ready: dict[str, Mapping[str, Any]] = {}
        mine = self.agreement.digest()
        for name, facts in told.items():
            if facts["agreement"] != mine:
                unfit[name] = f"it runs another agreement than {mine}; same abps version?"
            elif not versions.fits(facts["wire"]):
                unfit[name] = (
                    f"it speaks version {'.'.join(map(str, facts['wire']))} of the wire format and the relay "
                    f"{'.'.join(map(str, versions.NEWEST))}; bring both to the same first number"
                )
            else:
                ready[name] = facts
        return ready, silent, unfit

    def _round(self, t: int, roster: tuple[str, ...], sizes: dict[str, int], course: _Course) -> None:
        began, self._at = self.line.now(), t
        members, barred = self._members(sorted(course.joined | course.outside))
        alive, missing = self._alive(t, roster, members, sizes, course)
        missing |= {name: why for name, why in barred.items() if name in course.joined}
        if self.method.announces and not course.ledger.closed:
            _, failed = self._talk(alive, "announce", t, alive)
            missing |= failed
        here, closed = _without(alive, missing), course.ledger.closed
        if self.method.kind not in ("alone", "star") and not closed and self._questions(t):
            begun, late = self.line.ask(here, "begin", t, here, seconds=self.seconds.sign)
            missing |= late
            self._roll_calls(t, roster, sorted(begun), missing)
            trained, failed = self._work(_without(sorted(begun), missing), "train", t, closed)
        else:
            trained, failed = self._work(here, "train", t, closed, here)
        missing |= failed
        present = sorted(trained)
        if not present:
            raise RequestError(f"round {t}: no site is left ({'; '.join(sorted(set(missing.values())))})")
        edges = self.sizes.most_edges(len(roster))
        if self._at_once(t, closed):
            made = self._turns(t, roster, present, missing)
            said, failed = self._work(_without(present, missing), "exchange", t, sorted(missing))
            most = self._most_partners(len(roster))
            ended, lies = answers.sorted_out(said, lambda v: answers.exchanged(v, len(roster), edges, most))
            told = {name: rest for name, (_, rest) in ended.items()}
            self.tell(f"round {t}: {made} proposals, {sum(k for k, _ in ended.values()) // 2} pairs")
        else:
            why = self._exchange(t, roster, present, sizes, missing, course)
            # Let every site mix, judge, write down, and tell the sums of the round.
            said, failed = self._work(_without(present, missing), "conclude", t, why.words)
            told, lies = answers.sorted_out(said, lambda v: answers.concluded(v, len(roster), edges))
        missing |= failed | lies
        values = {name: auroc for name, (auroc, _) in told.items()}
        reports = {name: sums for name, (_, sums) in told.items()}
        self._book(t, present, reports, values, missing, course, began)
        course.well = frozenset(told) - set(missing)
        path = self._seen_file()
        if path is not None:
            files.folder(path.parent)
            files.write_text(path, str(t))

    def _alive(
        self, t: int, roster: tuple[str, ...], members: Sequence[str], sizes: dict[str, int], course: _Course
    ) -> tuple[list[str], dict[str, str]]:
        """Who is there: those that ended the last round well, and those of the others that answer.

        Who is back, or can take part only now, is let in.
        """
        asked = [name for name in members if name not in course.well]
        quick = [name for name in asked if name in course.silent]
        others = [name for name in asked if name not in course.silent]
        standing, silent = self.line.ask(others, "ping", seconds=self.seconds.sign)
        more, still = self.line.ask(quick, "ping", seconds=self.seconds.again)
        standing, silent = {**standing, **more}, {**silent, **still}
        course.silent = frozenset(silent)
        missing = {name: why for name, why in silent.items() if name in course.joined}
        waiting: dict[str, str] = {}
        for name, state in sorted(standing.items()):
            if state is True and name in course.joined:
                continue
            if state == NEW:
                self.line.ask([name], "wake", *self._named, seconds=self.seconds.sign)
                waiting[name] = "it is back and opens its table"
            elif state == BUSY:
                waiting[name] = "it is still busy with what it was asked before"
            else:
                course.outside |= {name}
        missing |= {name: why for name, why in waiting.items() if name in course.joined}
        back = [name for name in _without(sorted(standing), waiting) if name in course.outside]
        ready, quiet, unfit = self._greeted(back, roster)
        course.outside -= frozenset(unfit)
        missing |= {name: why for name, why in (quiet | unfit).items() if name in course.joined}
        here = [name for name in course.well if name in members]
        here += [name for name in standing if name in course.joined and name not in {*missing, *back}]
        entered = self._enter(t, roster, ready, sorted(here), sizes, missing)
        course.joined |= frozenset(entered)
        course.outside -= course.joined
        return sorted({*here, *entered}), missing

    def _enter(
        self,
        t: int,
        roster: tuple[str, ...],
        ready: Mapping[str, Mapping[str, Any]],
        here: list[str],
        sizes: dict[str, int],
        missing: dict[str, str],
    ) -> list[str]:
        """Let sites in before a round: they learn who is there, and the others of them."""
        late = [name for name, facts in ready.items() if facts["round"] >= t or facts["wire"] < self.wire]
        missing |= dict.fromkeys(late, "what it says of its rounds or its version does not fit this job")
        most = max(sizes.values())
        rows = {name: min(int(ready[name]["rows"]), most) for name in _without(sorted(ready), missing)}
        if not rows:
            return []
        sizes |= rows
        self._told |= {name: int(ready[name]["rows"]) for name in rows}
        if self._server is not None:
            self._server.forget(sorted(rows))
        spoken = [] if self.wire == versions.OLDEST else [list(self.wire)]
        joined, failed = self.line.ask(
            sorted(rows), "join", list(roster), t, sizes, *spoken, seconds=self.seconds.sign
        )
        missing |= failed
        entered = sorted(joined)
        if entered and self.method.kind not in ("alone", "star"):
            self._talk(entered, "catch_up")
            self._talk(entered, "introduce", t)
            self._talk(here, "introduce", t, entered, rows)
        for name in entered:
            self.tell(f"round {t}: {name} takes part from now on")
        return entered

    def _questions(self, t: int) -> int:
        """How many questions are asked around before a round."""
        return int(self.method.kind == "coordinated")

    def _roll_calls(self, t: int, roster: tuple[str, ...], here: list[str], missing: dict[str, str]) -> None:
        """Let all sites answer to a board, which is one of them; another one, if that is gone."""
        order = [
            roster[k] for k in coordinators(self.agreement.seed, t, center_ids(roster)) if roster[k] in here
        ]
        for question in range(self._questions(t)):
            for attempt, board in enumerate(order[:BOARDS]):
                if board in missing:
                    continue
                _, failed = self._work(_without(here, missing), "reply", t, question, attempt)
                missing |= failed
                said, failed = self._work([board], "preside", t, question)
                told, lies = answers.sorted_out(said, lambda v: answers.whole(v, 0, len(roster)))
                missing |= failed | lies
                if told:
                    self.tell(f"round {t}: {told[board]} sites answered question {question + 1} to {board}")
                    break

    def _members(self, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Who is still a member, and why the others are not; a list that is new is passed on to them."""
        text, expelled = self.revoked()
        there = [name for name in names if name not in expelled]
        if text and text != self._passed_on:
            self._passed_on = text
            self.line.ask(there, "revoked", text, seconds=self.seconds.talk)
        return there, {name: decline_codes.EXPELLED for name in names if name in expelled}

    def _exchange(
        self,
        t: int,
        roster: tuple[str, ...],
        present: list[str],
        sizes: dict[str, int],
        missing: dict[str, str],
        course: _Course,
    ) -> Rest:
        """The exchange of a round, step by step. Returns why there was none, if so."""
        if self.method.kind == "alone":  # and nobody misses it
            return Rest.NOT
        if self._server is None:
            return self._peers(t, roster, present, missing, course)
        rest, course.ledger = self._server.round(t, present, sizes, self._told, missing, course.ledger)
        return rest

    def _peers(
        self,
        t: int,
        roster: tuple[str, ...],
        present: list[str],
        missing: dict[str, str],
        course: _Course,
    ) -> Rest:
        """Turns, then the swap. Returns why there was none, if so."""
        method = cast(PeerMethod, self.method)
        if not method.exchanges(t):
            return Rest.QUIET
        if course.ledger.closed:
            return Rest.BUDGET
        made = self._turns(t, roster, present, missing)
        most = self._most_partners(len(roster))
        said, failed = self._talk(_without(present, missing), "settle", t, sorted(missing))
        touching, lies = answers.sorted_out(said, lambda v: answers.whole(v, 0, most))
        missing |= failed | lies
        edges = sum(touching.values()) // 2
        if not course.ledger.affords(Traffic(edge=edges * self.sizes.payload)):
            course.ledger = course.ledger.close()
            return Rest.BUDGET
        _, failed = self._talk(_without(present, missing), "swap", t)
        missing |= failed
        self.tell(f"round {t}: {made} proposals, {edges} pairs")
        return Rest.NOT

    def _at_once(self, t: int, closed: bool) -> bool:
        """Whether sites settle, swap and conclude by themselves once the turns are over.

        Not where the bytes of a round are weighed against a budget first, or a number that goes with the
        weights tells of what all have settled.
        """
        if self.method.kind in ("alone", "star") or closed or not self.line.parallel:
            return False
        method = cast(PeerMethod, self.method)
        return method.budget is None and not method.noted and method.exchanges(t)

    def _most_partners(self, members: int) -> int:
        """The most peers that a site can be in touch with in a round."""
        method = cast(PeerMethod, self.method)
        return min(method.capacity, members - 1) if method.kind == "mutual" else members - 1

    def _turns(self, t: int, roster: tuple[str, ...], present: list[str], missing: dict[str, str]) -> int:
        """Let one after the other propose. Returns how many proposals were made."""
        method = cast(PeerMethod, self.method)
        made = 0
        if method.kind != "graph":
            order = method.turns(self.agreement.seed, t, center_ids(roster))
            for name in (roster[k] for k in order):
                if name in present and name not in missing:
                    began = self.line.now()
                    said, failed = self._talk([name], "turn", t, sorted(missing))
                    asked, lies = answers.sorted_out(said, lambda v: answers.whole(v, 0, len(roster)))
                    made += sum(asked.values())
                    missing |= failed | lies
                    if self.line.now() - began > self.seconds.sign:
                        # It has waited for somebody: who is gone need not cost the others as much.
                        rest = _without(present, missing)
                        missing |= self.line.ask(rest, "ping", seconds=self.seconds.sign)[1]
        return made

    def _talk(
        self, sites: Sequence[str], what: str, *arguments: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Something that takes a site some messages to its peers."""
        return self._started(sites, self.seconds.talk, what, *arguments, sign=self.seconds.sign)

    def _work(
        self, sites: Sequence[str], what: str, *arguments: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Something that takes a site some computing."""
        return self._started(sites, self.seconds.work, what, *arguments, sign=self.seconds.sign)

    def _started(
        self, sites: Sequence[str], limit: float, what: str, *arguments: Any, sign: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Start something at every site, and ask until it is done: results, and who failed and why."""

        def notice(waiting: Sequence[str]) -> None:
            self.notice(self._at, what, waiting)

        return started(self.line, sites, limit, self.seconds, what, *arguments, sign=sign, notice=notice)

    def _book(
        self,
        t: int,
        present: list[str],
        reports: dict[str, Any],
        values: dict[str, float],
        missing: dict[str, str],
        course: _Course,
        began: float,
    ) -> None:
        edges, directed, control = (
            sum(int(r[name]) for r in reports.values()) for name in ("edges", "directed", "control")
        )
        spent = Traffic(edges // 2, directed, control)  # every site counts its end of an edge
        course.ledger = course.ledger.book(spent)
        mean, better = course.note(t, list(values.values()), self.method.stop)
        if better and self.method.stop.restore_best:
            self.line.ask(_without(present, missing), "keep_best", seconds=self.seconds.sign)
        course.reports.append(
            RoundReport(
                t,
                tuple(present),
                dict(sorted(missing.items())),
                {name: int(r["partners"]) for name, r in sorted(reports.items())},
                sum(int(r["in_doubt"]) for r in reports.values()),
                spent.edge,
                spent.directed,
                spent.control,
                mean if math.isfinite(mean) else None,
                round(self.line.now() - began, 3),
            )
        )
        for name, why in sorted(missing.items()):
            self.tell(f"round {t}: without {name} ({why})")


def _far_ahead(rounds: Mapping[str, int], seen: int = 0) -> list[str]:
    """The site that says it is more than a round ahead of all others, of which there are two at least, and of
    what this relay has seen of the study: newcomers may outnumber those who were there."""
    if len(rounds) < 3:
        return []
    *_, second, first = sorted(rounds, key=lambda name: rounds[name])
    return [first] if rounds[first] > max(rounds[second], seen) + 1 else []


def _with_latecomers(report: RoundReport, took_part: Collection[str]) -> RoundReport:
    """A round in which those are missing, too, that only came later."""
    late = [name for name in sorted(took_part) if name not in {*report.present, *report.missing}]
    return replace(report, missing={**report.missing, **dict.fromkeys(late, "it was not in the job yet")})


def _without(sites: Sequence[str], missing: Mapping[str, str]) -> list[str]:
    return [name for name in sites if name not in missing]
