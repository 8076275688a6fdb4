"""The conductor of a real federation: a clock.

It says when a round begins, whose turn it is to propose, when to swap and when to finish. It never sees a
model, a metadata vector or a belief, and it decides nothing about who works with whom. (With ``fedavg``,
which is there for comparison, it is the server that averages; that method needs one.)

Proposers take their turns one after the other, in the order that the seed gives: so the partners are
those of the simulation. Nobody is waited for longer than the stated seconds; who does not answer is left
out of the rest of the round and asked again in the next.

Whatever takes time at a site is started there and asked for until it is done: so a site that works long is
told from a site that is gone within the seconds for a sign of life.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from abps.core import selection, streams
from abps.core.errors import RequestError
from abps.core.ledger import Ledger, Traffic
from abps.core.selection import Selection
from abps.core.streams import center_id, center_ids
from abps.learn.kernels import kernel_for
from abps.learn.models import initial_weights
from abps.methods.abps import ABPS
from abps.methods.base import SERVER, Stopping, weighted_mean
from abps.methods.fedavg import FedAvg
from abps.methods.plus import ABPSPlus
from abps.sites.agreement import Agreement
from abps.sites.mind import announces
from abps.sites.site import CONDUCTOR
from abps.wire.codecs import codec
from abps.wire.frames import frame_size, pack, unpack

#: Why nobody has partners in a round that the method goes through alone.
QUIET = "no exchange in this round"


@dataclass(frozen=True)
class Seconds:
    """How long the conductor waits: for a sign of life, for work (training, credit), for talk between sites.

    poll: the pause between two questions whether something is done.
    """

    sign: float = 5.0
    work: float = 1800.0
    talk: float = 120.0
    poll: float = 0.2


class Line(Protocol):
    """How the conductor reaches the sites."""

    def ask(
        self, sites: Sequence[str], what: str, *arguments: Any, seconds: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask some sites the same at once: answers, and why there is none, by site."""

    def pause(self, seconds: float) -> None:
        """Let time pass."""

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""


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
    trunk: torch.Tensor | None = None  # FedAvg's last average

    def note(self, t: int, values: Sequence[float], stop: Stopping) -> tuple[float, bool]:
        """The mean validation AUROC of a round, and whether it is the best so far."""
        known = [value for value in values if math.isfinite(value)]
        mean = float(np.mean(known)) if known else math.nan
        better = self.best == 0 or stop.better(mean, self.best_value)
        if better:
            self.best, self.best_value = t, mean
        return mean, better


class Conductor:
    """Runs one job: some rounds of a study."""

    def __init__(
        self,
        line: Line,
        agreement: Agreement,
        rounds: int,
        seconds: Seconds | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        if rounds < 1:
            raise RequestError(f"rounds={rounds}: a job needs at least 1 round")
        self.line = line
        self.agreement = agreement
        self.config = agreement.config()
        self.rounds = rounds
        self.seconds = seconds or Seconds()
        self.tell = tell

    def run(self, members: Sequence[str]) -> JobReport:
        """The whole job."""
        roster = tuple(sorted(members))
        ready, left_out = self._gather(roster)
        first = 1 + max(int(facts["round"]) for facts in ready.values())
        if first > self.agreement.rounds:
            raise RequestError(
                f"the study {self.agreement.study!r} has had its {self.agreement.rounds} rounds; "
                "nothing is left to do"
            )
        present = sorted(ready)
        joined, absent = self.line.ask(present, "join", list(roster), first, seconds=self.seconds.sign)
        left_out |= absent
        if self._by_pairs:
            self._talk(sorted(joined), "catch_up")
            self._talk(sorted(joined), "introduce", first)
        sizes = {name: float(facts["rows"]) for name, facts in ready.items()}
        course = self._course(ready)
        stopped = False
        for t in range(first, min(first + self.rounds - 1, self.agreement.rounds) + 1):
            self._round(t, roster, sorted(joined), sizes, course)
            if self.config.stop.over(t, course.best):
                stopped = True
                break
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

    def _course(self, ready: Mapping[str, Mapping[str, Any]]) -> _Course:
        """What earlier jobs of the study left: the bytes they spent, and their best round."""
        sent = sum(int(facts["sent"]) for facts in ready.values())
        edge = sent // 2 if self._by_pairs else sent
        course = _Course(Ledger(self.config.budget, Traffic(edge=edge)))
        past = sorted({int(t) for facts in ready.values() for t in facts["validation"]})
        for t in past:
            known = [facts["validation"].get(str(t)) for facts in ready.values()]
            course.note(t, [value for value in known if value is not None], self.config.stop)
        return course

    def _gather(self, roster: tuple[str, ...]) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
        """Who is there, and agrees."""
        # A process that has just begun is slow to answer: its first sign of life may take as long as talk.
        _, failures = self._started(roster, self.seconds.work, "open", sign=self.seconds.talk)
        there = [name for name in roster if name not in failures]
        answers, silent = self.line.ask(there, "hello", seconds=self.seconds.sign)
        failures |= silent
        ready: dict[str, Mapping[str, Any]] = {}
        mine = self.agreement.digest()
        for name, facts in answers.items():
            if facts["agreement"] != mine:
                failures[name] = (
                    f"it runs another agreement ({facts['agreement']}, here {mine}); same abps version?"
                )
            else:
                ready[name] = facts
        for name, why in sorted(failures.items()):
            self.tell(f"{name} takes no part: {why}")
        if len(ready) < 2:
            why = "; ".join(f"{name}: {reason}" for name, reason in sorted(failures.items()))
            raise RequestError(
                f"{len(ready)} of {len(roster)} sites can take part, and a job needs 2 ({why})"
            )
        return ready, failures

    def _round(
        self, t: int, roster: tuple[str, ...], members: list[str], sizes: dict[str, float], course: _Course
    ) -> None:
        began = self.line.now()
        alive, missing = self.line.ask(members, "ping", seconds=self.seconds.sign)
        if announces(self.config) and not course.ledger.closed:
            _, failed = self._talk(sorted(alive), "announce", t, sorted(alive))
            missing |= failed
        here = _without(sorted(alive), missing)
        begun, late = self.line.ask(here, "begin", t, here, seconds=self.seconds.sign)
        missing |= late
        trained, failed = self._work(sorted(begun), "train", t)
        missing |= failed
        present = sorted(trained)
        if not present:
            raise RequestError(f"round {t}: no site is left ({'; '.join(sorted(set(missing.values())))})")
        rest = ""
        if self._by_pairs:
            rest = self._pairs(t, roster, present, missing, course)
        else:
            rest = self._star(t, present, sizes, missing, course)
        values = self._finish(present, t, rest, missing)
        there = _without(present, missing)
        reports, failed = self.line.ask(there, "report", t, seconds=self.seconds.sign)
        missing |= failed
        self._book(t, present, reports, values, missing, course, began)

    @property
    def _by_pairs(self) -> bool:
        """Whether sites choose partners; else the conductor averages."""
        return not isinstance(self.config, FedAvg)

    def _pairs(
        self, t: int, roster: tuple[str, ...], present: list[str], missing: dict[str, str], course: _Course
    ) -> str:
        """Turns, then the swap. Returns why there was none, if so."""
        config = self.config
        assert isinstance(config, ABPS | ABPSPlus)
        if isinstance(config, ABPSPlus) and not config.calling.on(t):
            return QUIET
        if course.ledger.closed:
            return "budget"
        rule = config.selection if isinstance(config, ABPS) else Selection()
        order = selection.turns(rule, self.agreement.seed, t, center_ids(roster))
        proposals = 0
        for name in (roster[k] for k in order):
            if name in present:
                made, failed = self._talk([name], "turn", t)
                proposals += sum(made.values())
                missing |= failed
        partners, failed = self._talk(_without(present, missing), "settle", t)
        missing |= failed
        edges = sum(partners.values()) // 2
        planned = Traffic(edge=edges * self._payload())
        if not course.ledger.affords(planned):
            course.ledger = course.ledger.close()
            return "budget"
        _, failed = self._talk(_without(present, missing), "swap", t)
        missing |= failed
        self.tell(f"round {t}: {proposals} proposals, {edges} pairs")
        return ""

    def _star(
        self, t: int, present: list[str], sizes: dict[str, float], missing: dict[str, str], course: _Course
    ) -> str:
        """FedAvg: collect, average, send back. Returns why there was no exchange, if so."""
        config = self.config
        assert isinstance(config, FedAvg)
        if not course.ledger.affords(Traffic(edge=len(present) * self._payload())):
            course.ledger = course.ledger.close()
            return "budget"
        frames, failed = self.line.ask(present, "upload", t, seconds=self.seconds.talk)
        missing |= failed
        names = sorted(frames)
        if not names:
            return "unreachable"
        base = config.wire.base(self._start(), self._shared())
        sent = torch.from_numpy(np.stack([unpack(frames[name]).weights for name in names])) + base
        weights = torch.tensor([sizes[name] if config.weighting == "size" else 1.0 for name in names])
        trunk = weighted_mean(sent, weights)
        if config.smoothing:
            if course.trunk is None:
                course.trunk = self._trunk(t, names)
            trunk = torch.lerp(trunk, course.trunk, config.smoothing)
        key = int(streams.bits(self.agreement.seed, "codec", t, [SERVER])[0])
        frame = pack((trunk - base).numpy(), codec(config.wire.codec), t, center_id(CONDUCTOR), key)
        course.trunk = torch.from_numpy(unpack(frame).weights) + base  # what the sites start from next
        _, failed = self.line.ask(names, "download", t, frame, seconds=self.seconds.talk)
        missing |= failed
        return ""

    def _trunk(self, t: int, names: list[str]) -> torch.Tensor:
        """FedAvg: the average that the first round of this job started from."""
        if t == 1:
            return self._start()[: self._shared()]
        frames, failed = self.line.ask(names[:1], "trunk", t, seconds=self.seconds.talk)
        if failed:
            raise RequestError(f"round {t}: no site can tell the average of the last job ({failed})")
        return torch.from_numpy(unpack(frames[names[0]]).weights)

    def _start(self) -> torch.Tensor:
        """The common start, which everybody computes from the seed."""
        width = len(self.agreement.book.columns)
        return initial_weights(self.config.training.model, width, self.agreement.seed)

    def _shared(self) -> int:
        """How many weights are shared."""
        width = len(self.agreement.book.columns)
        layout = kernel_for(self.config.training.model(width), width).layout
        return layout.shared(self.config.wire.private_layers)

    def _payload(self) -> int:
        """Bytes of a frame of shared weights."""
        return frame_size(codec(self.config.wire.codec), self._shared())

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
        done: dict[str, Any] = {}
        until = self.line.now() + limit
        answers, failed = self.line.ask(sites, "start", what, *arguments, seconds=sign)
        while True:
            waiting = []
            for name, (state, value) in answers.items():
                if state == "done":
                    done[name] = value
                elif state == "busy":
                    waiting.append(name)
                else:
                    failed[name] = str(state)
            if waiting and self.line.now() > until:
                failed |= dict.fromkeys(waiting, f"{what} took longer than {limit:g} s")
                waiting = []
            if not waiting:
                return done, failed
            self.line.pause(self.seconds.poll)
            answers, gone = self.line.ask(sorted(waiting), "poll", seconds=sign)
            failed |= gone

    def _finish(self, present: list[str], t: int, rest: str, missing: dict[str, str]) -> dict[str, float]:
        """Let every site mix, judge and write down. Returns the validation AUROC of each."""
        values, failed = self._work(_without(present, missing), "finish", t, rest)
        missing |= failed
        return values

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
        weights = sum(int(r["weights"]) for r in reports.values())
        control = sum(int(r["control"]) for r in reports.values())
        if self._by_pairs:
            spent = Traffic(edge=weights // 2, directed=weights, control=control)
        else:  # what the sites sent up came down again
            spent = Traffic(edge=weights, directed=2 * weights, control=control)
        course.ledger = course.ledger.book(spent)
        mean, better = course.note(t, list(values.values()), self.config.stop)
        if better and self.config.stop.restore_best:
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


def _without(sites: Sequence[str], missing: Mapping[str, str]) -> list[str]:
    return [name for name in sites if name not in missing]
