"""The conductor of a real federation: a clock.

It says when a round begins, whose turn it is to propose, when to swap and when to finish. It never sees a
model, a metadata vector or a belief, and it decides nothing about who works with whom. (Star methods, which
are there for comparison, need a server: for these it does the server's part, and keeps its memory.)

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from abps import files
from abps.core.errors import RequestError
from abps.core.ledger import Ledger, Traffic
from abps.core.matching import Rest
from abps.core.plausibility import distances, plausible
from abps.core.streams import center_ids
from abps.learn.kernels import kernel_for
from abps.learn.models import Layout, initial_weights
from abps.methods.base import Stopping, server_keys
from abps.methods.memory import freeze, thaw
from abps.methods.peers import PeerMethod, boards
from abps.methods.star import (
    Server,
    StarMethod,
    from_sum,
    masked_cost,
    star_cost,
    to_everyone,
    with_notes,
)
from abps.sites import answers, excuses
from abps.sites.agreement import Agreement
from abps.sites.masked_sums import masking_context
from abps.sites.post import CONDUCTOR
from abps.sites.roll_calls import BOARDS
from abps.sites.steps import BUSY, NEW, Line, Seconds, decided, started
from abps.sites.trials import Which
from abps.wire import versions
from abps.wire.admission import Limits, Origin, Refused, admit_note, admit_weights
from abps.wire.codecs import codec
from abps.wire.frames import frame_size, pack, unpack


@dataclass(frozen=True)
class RoundReport:
    """What the conductor knows of a round."""

    round: int
    present: tuple[str, ...]
    missing: dict[str, str]
    partners: dict[str, int]
    in_doubt: int
    edge: int
    directed: int
    control: int
    validation: float | None
    seconds: float


@dataclass(frozen=True)
class JobReport:
    """What the conductor knows of a job."""

    study: str
    method: str
    seed: int
    agreement: str
    first: int
    members: tuple[str, ...]
    left_out: dict[str, str]
    rounds: tuple[RoundReport, ...]
    best: int
    stopped_early: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``abps-job.json``."""
        total = {name: sum(getattr(r, name) for r in self.rounds) for name in ("edge", "directed", "control")}
        return {"schema": "abps.job/1", **asdict(self), "bytes": total}


@dataclass
class _Course:
    """What changes as a job goes on."""

    ledger: Ledger
    reports: list[RoundReport] = field(default_factory=list)
    best: int = 0
    best_value: float = math.nan
    server: Server = field(default_factory=Server)
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


@dataclass(frozen=True, eq=False)
class _Last:
    """What a star's server sent in a round, as it arrived."""

    round: int
    sent: tuple[torch.Tensor, ...]


class Conductor:
    """Runs one job: some rounds of a study."""

    def __init__(
        self,
        line: Line,
        agreement: Agreement,
        rounds: int,
        seconds: Seconds | None = None,
        tell: Callable[[str], None] = lambda line: None,
        memory: Path | None = None,
        notice: Callable[[int, str, Sequence[str]], None] = lambda round, step, waiting: None,
        revoked: Callable[[], tuple[str, frozenset[str]]] = lambda: ("", frozenset()),
        job: str = "",
        which: Which | None = None,
    ) -> None:
        """memory: a folder in which a star's server keeps what it must remember between two jobs.

        notice: told of every step that is waited for: (round, step, sites).
        revoked: the authority's list as it stands, to be passed on, and the members that it expels.
        job: its name, the same at all sites.
        which: of the studies in which a penalty is chosen, if this is one of them.
        """
        if rounds < 1:
            raise RequestError(f"rounds={rounds}: a job needs at least 1 round")
        self.line = line
        self.agreement = agreement
        self.method = agreement.config()
        self.which = which
        if agreement.penalties():
            raise RequestError("the penalty of the study is not chosen yet")
        self.rounds = rounds
        self.seconds = seconds or Seconds()
        self.tell = tell
        self.memory = memory
        self.notice = notice
        self.revoked = revoked
        self._passed_on = ""
        self.job = job
        self.wire: versions.Version = versions.NEWEST
        self.sender_id = versions.sender_ids(versions.NEWEST, agreement.digest(), job)
        self._at = 0  # the round
        self._summing: frozenset[str] = frozenset()  # who takes part in masked sums
        self._introductions: dict[str, list[bytes]] = {}
        self._told: dict[str, int] = {}  # rows, as sites said

    def run(self, members: Sequence[str]) -> JobReport:
        """The whole job."""
        everybody, barred = self._members(sorted(members))
        roster = tuple(everybody)
        ready, left_out, outside = self._gather(roster)
        left_out |= barred
        first = 1 + max(int(facts["round"]) for facts in ready.values())
        if first > self.agreement.rounds:
            raise RequestError(
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
        if self.method.kind == "star" and self.method.privacy.secure:
            left_out |= self._introduce(sorted(joined))
        if self.method.kind not in ("alone", "star"):
            self._talk(sorted(joined), "catch_up")
            self._talk(sorted(joined), "introduce", first)
        course = self._course(ready, first)
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
            tuple(course.reports),
            course.best,
            stopped,
        )

    @property
    def _named(self) -> list[list[object]]:
        """Which study sites are to open, where there are several."""
        return [] if self.which is None else [list(self.which)]

    def _course(self, ready: Mapping[str, Mapping[str, Any]], first: int) -> _Course:
        """What earlier jobs of the study left: the bytes spent, the best round, the server's memory."""
        edge = sum(int(facts["edges"]) for facts in ready.values()) // 2
        course = _Course(Ledger(self.method.budget, Traffic(edge=edge)), server=self._remembered(first))
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
        nonsense = {answers.NONSENSE, excuses.words("")}
        outside = frozenset(name for name, why in (failures | silent).items() if why not in nonsense)
        failures |= silent | unfit
        for name in _far_ahead({name: facts["round"] for name, facts in ready.items()}):
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

    def _greeted(
        self, sites: Sequence[str], roster: tuple[str, ...]
    ) -> tuple[dict[str, Mapping[str, Any]], dict[str, str], dict[str, str]]:
        """The first words of sites whose study is this one; who says none; and why the others do not fit."""
        said, silent = self.line.ask(sites, "hello", seconds=self.seconds.sign)
        edges = self._most_edges(len(roster))
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
        edges = self._most_edges(len(roster))
        if self._at_once(t, closed):
            made = self._turns(t, roster, present, missing)
            said, failed = self._work(_without(present, missing), "exchange", t, sorted(missing))
            most = self._most_partners(len(roster))
            ended, lies = answers.sorted_out(said, lambda v: answers.exchanged(v, len(roster), edges, most))
            told = {name: rest for name, (_, rest) in ended.items()}
            self.tell(f"round {t}: {made} proposals, {sum(k for k, _ in ended.values()) // 2} pairs")
        else:
            exchange = {"alone": self._alone, "star": self._star}.get(self.method.kind, self._peers)
            why = exchange(t, roster, present, sizes, missing, course)
            # Let every site mix, judge, write down, and tell the sums of the round.
            said, failed = self._work(_without(present, missing), "conclude", t, why.words)
            told, lies = answers.sorted_out(said, lambda v: answers.concluded(v, len(roster), edges))
        missing |= failed | lies
        values = {name: auroc for name, (auroc, _) in told.items()}
        reports = {name: sums for name, (_, sums) in told.items()}
        self._book(t, present, reports, values, missing, course, began)
        course.well = frozenset(told) - set(missing)

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
        self._summing -= frozenset(rows)  # until they have told their keys anew
        self._introductions = {k: v for k, v in self._introductions.items() if k not in rows}
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
        return cast(PeerMethod, self.method).questions(t, self.agreement.rounds)

    def _roll_calls(self, t: int, roster: tuple[str, ...], here: list[str], missing: dict[str, str]) -> None:
        """Let all sites answer to a board, which is one of them; another one, if that is gone."""
        order = [roster[k] for k in boards(self.agreement.seed, t, center_ids(roster)) if roster[k] in here]
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
        return there, {name: excuses.EXPELLED for name in names if name in expelled}

    def _alone(
        self,
        t: int,
        roster: tuple[str, ...],
        present: list[str],
        sizes: dict[str, int],
        missing: dict[str, str],
        course: _Course,
    ) -> Rest:
        """Nothing is exchanged, and nobody misses it."""
        return Rest.NOT

    def _peers(
        self,
        t: int,
        roster: tuple[str, ...],
        present: list[str],
        sizes: dict[str, int],
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
        payload = frame_size(codec(method.line.codec), self._shared())
        if not course.ledger.affords(Traffic(edge=edges * payload)):
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

    def _star(
        self,
        t: int,
        roster: tuple[str, ...],
        present: list[str],
        sizes: dict[str, int],
        missing: dict[str, str],
        course: _Course,
    ) -> Rest:
        """Collect, do the server's part, send back. Returns why there was no exchange, if so."""
        if self.method.privacy.secure:
            return self._masked_star(t, present, missing, course)
        method, line = cast(StarMethod, self.method), self.method.line
        up, layout = [self._shared()] * method.messages, self._layout()
        planned = star_cost(line, len(present), up, method.answers(layout), method.noted)
        if course.ledger.closed or not course.ledger.affords(planned):
            course.ledger = course.ledger.close()
            return Rest.BUDGET
        start = initial_weights(self.method.training.factory, self._width, self.agreement.seed)
        base = line.base(start, self._shared())
        said, failed = self.line.ask(present, "upload", t, seconds=self.seconds.talk)
        said = {name: told for name, told in said.items() if told != []}  # who has nothing to send rests
        came, notes, lies = self._uploads(said, t)
        missing |= failed | lies
        names = sorted(came)
        if not names:
            self._remember(course.server, t)
            return Rest.UNREACHABLE
        sent = tuple(
            torch.from_numpy(np.stack([came[name][k] for name in names])) + base
            for k in range(method.messages)
        )
        if method.noted:
            sent = with_notes(sent, np.array([notes[name] for name in names]))
        rows = torch.tensor([float(sizes[name]) for name in names])
        if method.sends_models:
            far = distances(sent[0].numpy(), start.numpy())
            trusted = np.flatnonzero(plausible(far, np.full(len(far), np.median(far))))
            if len(trusted) < len(names):
                left = sorted(set(names) - {names[k] for k in trusted})
                self.tell(f"round {t}: the model of {', '.join(left)} is too far out, and was left out")
                some = torch.from_numpy(trusted)
                sent, rows = tuple(message[some] for message in sent), rows[some]
        else:
            trusted = np.arange(len(names))
        replies, memory = method.serve(start, course.server, sent, rows, t)
        arrived = self._answer(t, names, trusted, replies, start, missing)
        # What the sites start from next, and what nobody else knows.
        course.server = replace(course.server, last=arrived, memory=memory)
        self._remember(course.server, t)
        return Rest.NOT

    def _introduce(self, names: list[str], others: Sequence[str] = ()) -> dict[str, str]:
        """Let sites know each other's keys for masked sums; returns who has none, and why.

        others: who is known already, and is to know them.
        """
        from abps.sites import masking

        said, failed = self.line.ask(names, "sum_introduce", seconds=self.seconds.talk)
        told, lies = answers.sorted_out(said, masking.introduced)
        self._introductions |= told
        meet = sorted({*told, *others})
        _, deaf = self.line.ask(meet, "sum_meet", self._introductions, seconds=self.seconds.talk)
        self._summing = (self._summing | frozenset(told)) - frozenset(deaf)
        return failed | lies | deaf

    def _masked_star(self, t: int, present: list[str], missing: dict[str, str], course: _Course) -> Rest:
        """A round of a server that sees the sum of what sites send, and nothing else."""
        from abps.privacy.secure_sum import SumError
        from abps.sites import masking

        method, line = cast(StarMethod, self.method), self.method.line
        lengths = [self._shared()] * method.messages
        planned = masked_cost(line, len(present), lengths, method.answers(self._layout()))
        if course.ledger.closed or not course.ledger.affords(planned):
            course.ledger = course.ledger.close()
            return Rest.BUDGET
        adding = method.adds
        assert adding is not None  # the agreement was checked

        def ask(sites: Sequence[str], what: str, *arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
            return self.line.ask(sites, what, *arguments, seconds=self.seconds.talk)

        try:
            context = masking_context(self.agreement.digest(), self.job)
            new = [name for name in present if name not in self._introductions]
            if new:  # who joined later
                self._introduce(new, [name for name in present if name not in new])
            members = [name for name in present if name in self._summing]
            found, names, failed = masking.total(ask, context, t, members, sum(lengths) + 1)
            say = sum(self._told[name] for name in names) if adding == "size" else len(names)
            if abs(found[-1] - say) > 0.5:  # a share that was none, or a site that added more than it told
                raise SumError(f"it is of {found[-1]:.6g} rows, and {say} were told")
        except SumError as error:
            self.tell(f"round {t}: no sum ({error})")
            self._remember(course.server, t)
            return Rest.UNREACHABLE
        missing |= failed
        sent, sizes = from_sum(found, lengths, adding)
        start = initial_weights(self.method.training.factory, self._width, self.agreement.seed)
        replies, memory = method.serve(start, course.server, sent, sizes, t)
        arrived = self._answer(t, list(names), np.arange(len(names)), replies, start, missing)
        course.server = replace(course.server, last=arrived, memory=memory)
        self._remember(course.server, t)
        return Rest.NOT

    def _answer(
        self,
        t: int,
        names: list[str],
        trusted: NDArray[np.int64],
        replies: tuple[torch.Tensor, ...],
        start: torch.Tensor,
        missing: dict[str, str],
    ) -> tuple[torch.Tensor, ...]:
        """Send what the server has to say, to all the same or to each its own; returns what is the same.

        trusted: the places, among the names, of those whose weights were let in.
        """
        method, line, layout = cast(StarMethod, self.method), self.method.line, self._layout()
        some = torch.from_numpy(trusted)
        replies = tuple(to_everyone(r, some, len(names)) if r.dim() == 2 else r for r in replies)
        seed, own = self.agreement.seed, any(reply.dim() == 2 for reply in replies)
        frames: list[list[bytes]] = [[] for _ in (names if own else names[:1])]
        for k, reply in enumerate(replies):
            number, base = method.number(k, t, layout), line.base(start, reply.shape[-1])
            keys = server_keys(seed, number, center_ids(tuple(names)) if reply.dim() == 2 else None)
            rows = (torch.atleast_2d(reply) - base).numpy()
            packed = [
                pack(row, codec(line.codec), number, self.sender_id(CONDUCTOR), int(key))
                for row, key in zip(rows, keys)
            ]
            for i, mine in enumerate(frames):
                mine.append(packed[i if reply.dim() == 2 else 0])
        for i, mine in enumerate(frames):
            to = [names[i]] if own else names
            _, failed = self.line.ask(to, "download", t, mine, seconds=self.seconds.talk)
            missing |= failed
        common = [
            torch.from_numpy(unpack(frame).weights) + line.base(start, reply.shape[-1])
            for frame, reply in zip(frames[0], replies)
            if reply.dim() == 1
        ]
        return tuple(common)

    def _uploads(
        self, said: Mapping[str, Any], t: int
    ) -> tuple[dict[str, list[NDArray[np.float32]]], dict[str, float], dict[str, str]]:
        """The weights that sites sent to the server, by the rules among sites; the numbers beside them; and
        whose are none."""
        method, agreed, count = cast(StarMethod, self.method), codec(self.method.line.codec), self._shared()
        layout, most = self._layout(), method.messages + method.noted
        frames, lies = answers.sorted_out(said, lambda v: answers.frames(v, most))
        came: dict[str, list[NDArray[np.float32]]] = {}
        notes: dict[str, float] = {}
        for name, sent in frames.items():
            try:
                if method.noted:
                    notes[name] = admit_note(sent[-1], Origin(name, (name,), t))
                numbers = [method.number(k, t, layout) for k in range(method.messages)]
                origins = [Origin(name, (name,), n, sender_id=self.sender_id) for n in numbers]
                came[name] = [
                    admit_weights(data, origin, agreed, count) for data, origin in zip(sent, origins)
                ]
            except Refused as refused:
                lies[name] = f"its weights were refused ({refused.reason})"
        return came, notes, lies

    def _most_edges(self, members: int) -> int:
        """The most bytes that a site's ends of edges can take in a round."""
        payload = frame_size(codec(self.method.line.codec), self._shared())
        if self.method.kind == "star":
            star = cast(StarMethod, self.method)
            up, down = [self._shared()] * star.messages, star.answers(self._layout())
            if star.privacy.secure:
                return 2 * masked_cost(star.line, 1, up, down).edge
            return 2 * star_cost(star.line, 1, up, down, star.noted).edge
        return (members - 1) * payload

    @property
    def _width(self) -> int:
        """How many inputs the model has by what the sites agreed on."""
        return self.agreement.width

    def _layout(self) -> Layout:
        """Where every parameter sits."""
        return kernel_for(self.method.training.factory(self._width), self._width).layout

    def _shared(self) -> int:
        """How many weights are shared."""
        return self._layout().shared(self.method.line.private_layers)

    def _file(self, memory: Path, t: int) -> Path:
        """Where the server's memory of round t is; of two rounds, for the last may not be finished."""
        return memory / f"{self.agreement.digest()}-{t % 2}.server"

    def _remember(self, server: Server, t: int) -> None:
        """Write down what a star's server must know in the next round."""
        if self.memory is None or not cast(StarMethod, self.method).remembers:
            return
        files.folder(self.memory)
        head = freeze(_Last(t, server.last))
        content = b"" if server.memory is None else freeze(server.memory)
        with files.replacing(self._file(self.memory, t)) as part:
            part.write_bytes(len(head).to_bytes(8, "little") + head + content)

    def _remembered(self, first: int) -> Server:
        """What the server knew after the round before the first of this job."""
        if self.method.kind != "star":
            return Server()
        new = Server(seed=self.agreement.seed, layout=self._layout())
        if first == 1 or not cast(StarMethod, self.method).remembers:
            return new
        path = None if self.memory is None else self._file(self.memory, first - 1)
        if path is not None and path.is_file():
            data = path.read_bytes()
            length = int.from_bytes(data[:8], "little")
            last: _Last = thaw(_Last, data[8 : 8 + length])
            keeps, rest = cast(StarMethod, self.method).keeps, data[8 + length :]
            if last.round == first - 1:
                known = thaw(keeps, rest) if keeps is not None and rest else None
                return replace(new, last=last.sent, memory=known)
        raise RequestError(
            f"the study {self.agreement.study!r} goes on with round {first}, and what its server remembered "
            "of the round before is not here; run it where it began, or begin a new study"
        )

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


def _far_ahead(rounds: Mapping[str, int]) -> list[str]:
    """The site that says it is more than a round ahead of all others, of which there are two at least."""
    if len(rounds) < 3:
        return []
    *_, second, first = sorted(rounds, key=lambda name: rounds[name])
    return [first] if rounds[first] > rounds[second] + 1 else []


def _without(sites: Sequence[str], missing: Mapping[str, str]) -> list[str]:
    return [name for name in sites if name not in missing]
