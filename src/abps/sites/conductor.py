"""The conductor of a real federation: a clock.

It says when a round begins, whose turn it is to propose, when to swap and when to finish. It never sees a
model, a metadata vector or a belief, and it decides nothing about who works with whom. (Star methods, which
are there for comparison, need a server: for these it does the server's part, and keeps its memory.)

Proposers take their turns one after the other, in the order that the seed gives: so the partners are
those of the simulation. Nobody is waited for longer than the stated seconds; who does not answer is left
out of the rest of the round and asked again in the next.

Whatever takes time at a site is started there and asked for until it is done: so a site that works long is
told from a site that is gone within the seconds for a sign of life.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

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
from abps.methods.star import Server, StarMethod, star_cost, to_everyone, with_notes
from abps.sites import answers, excuses
from abps.sites.agreement import Agreement
from abps.sites.site import BOARDS, CONDUCTOR
from abps.wire import versions
from abps.wire.admission import Limits, Refused, admit_note, admit_weights
from abps.wire.codecs import codec
from abps.wire.frames import frame_size, pack, unpack


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
    server: Server = field(default_factory=Server)
    well: frozenset[str] = frozenset()  # who ended the last round well

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
    ) -> None:
        """memory: a folder in which a star's server keeps what it must remember between two jobs.

        notice: told of every step that is waited for: (round, step, sites).
        revoked: the authority's list as it stands, to be passed on, and the members that it expels.
        job: its name, the same at all sites.
        """
        if rounds < 1:
            raise RequestError(f"rounds={rounds}: a job needs at least 1 round")
        self.line = line
        self.agreement = agreement
        self.method = agreement.config()
        self.rounds = rounds
        self.seconds = seconds or Seconds()
        self.tell = tell
        self.memory = memory
        self.notice = notice
        self.revoked = revoked
        self._passed_on = ""
        self.job = job
        self.sender_id = versions.sender_ids(versions.NEWEST, agreement.digest(), job)
        self._at = 0  # the round

    def run(self, members: Sequence[str]) -> JobReport:
        """The whole job."""
        everybody, barred = self._members(sorted(members))
        roster = tuple(everybody)
        ready, left_out = self._gather(roster)
        left_out |= barred
        first = 1 + max(int(facts["round"]) for facts in ready.values())
        if first > self.agreement.rounds:
            raise RequestError(
                f"the study {self.agreement.study!r} has had its {self.agreement.rounds} rounds; "
                "nothing is left to do"
            )
        sizes = {name: int(facts["rows"]) for name, facts in ready.items()}
        # Rows weigh in averages, and nobody can check what a site says of its own.
        most = int(Limits().rows * float(np.median(list(sizes.values()))))
        sizes = {name: min(rows, most) for name, rows in sizes.items()}
        wire = versions.spoken([facts["wire"] for facts in ready.values()])
        self.sender_id = versions.sender_ids(wire, self.agreement.digest(), self.job)
        # Sites of the first version do not know the word.
        spoken = [] if wire == versions.OLDEST else [list(wire)]
        joined, absent = self.line.ask(
            sorted(ready), "join", list(roster), first, sizes, *spoken, seconds=self.seconds.sign
        )
        left_out |= absent
        if self.method.kind not in ("alone", "star"):
            self._talk(sorted(joined), "catch_up")
            self._talk(sorted(joined), "introduce", first)
        course = self._course(ready, first)
        stopped = False
        for t in range(first, min(first + self.rounds - 1, self.agreement.rounds) + 1):
            self._round(t, roster, sorted(joined), sizes, course)
            if self.method.stop.over(t, course.best):
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

    def _course(self, ready: Mapping[str, Mapping[str, Any]], first: int) -> _Course:
        """What earlier jobs of the study left: the bytes spent, the best round, the server's memory."""
        edge = sum(int(facts["edges"]) for facts in ready.values()) // 2
        course = _Course(Ledger(self.method.budget, Traffic(edge=edge)), server=self._remembered(first))
        past = sorted({int(t) for facts in ready.values() for t in facts["validation"]})
        for t in past:
            known = [facts["validation"].get(str(t)) for facts in ready.values()]
            course.note(t, [value for value in known if value is not None], self.method.stop)
        return course

    def _gather(self, roster: tuple[str, ...]) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
        """Who is there, and agrees."""
        # A process that has just begun is slow to answer: its first sign of life may take as long as talk.
        _, failures = self._started(roster, self.seconds.work, "open", sign=self.seconds.talk)
        there = [name for name in roster if name not in failures]
        said, silent = self.line.ask(there, "hello", seconds=self.seconds.sign)
        edges = self._most_edges(len(roster))
        told, lies = answers.sorted_out(said, lambda v: answers.hello(v, self.agreement.rounds, edges))
        failures |= silent | lies
        ready: dict[str, Mapping[str, Any]] = {}
        mine = self.agreement.digest()
        for name, facts in told.items():
            if facts["agreement"] != mine:
                failures[name] = f"it runs another agreement than {mine}; same abps version?"
            elif not versions.fits(facts["wire"]):
                failures[name] = (
                    f"it speaks version {'.'.join(map(str, facts['wire']))} of the wire format and the relay "
                    f"{'.'.join(map(str, versions.NEWEST))}; bring both to the same first number"
                )
            else:
                ready[name] = facts
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
        return ready, failures

    def _round(
        self, t: int, roster: tuple[str, ...], members: list[str], sizes: dict[str, int], course: _Course
    ) -> None:
        began, self._at = self.line.now(), t
        members, barred = self._members(members)
        alive, missing = self._alive(members, course)
        missing |= barred
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
        exchange = {"alone": self._alone, "star": self._star}.get(self.method.kind, self._peers)
        rest = exchange(t, roster, present, sizes, missing, course)
        # Let every site mix, judge, write down, and tell the sums of the round.
        said, failed = self._work(_without(present, missing), "conclude", t, rest.words)
        edges = self._most_edges(len(roster))
        told, lies = answers.sorted_out(said, lambda v: answers.concluded(v, len(roster), edges))
        missing |= failed | lies
        values = {name: auroc for name, (auroc, _) in told.items()}
        reports = {name: sums for name, (_, sums) in told.items()}
        self._book(t, present, reports, values, missing, course, began)
        course.well = frozenset(told) - set(missing)

    def _alive(self, members: Sequence[str], course: _Course) -> tuple[list[str], dict[str, str]]:
        """Who is there: those that ended the last round well, and those of the others that answer."""
        alive, missing = self.line.ask(
            [name for name in members if name not in course.well], "ping", seconds=self.seconds.sign
        )
        return sorted({*alive, *course.well} & set(members)), missing

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
        made = 0
        if method.kind != "graph":
            order = method.turns(self.agreement.seed, t, center_ids(roster))
            for name in (roster[k] for k in order):
                if name in present:
                    said, failed = self._talk([name], "turn", t, sorted(missing))
                    asked, lies = answers.sorted_out(said, lambda v: answers.whole(v, 0, len(roster)))
                    made += sum(asked.values())
                    missing |= failed | lies
        most = min(method.capacity, len(roster) - 1) if method.kind == "mutual" else len(roster) - 1
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
        method, line = cast(StarMethod, self.method), self.method.line
        up, layout = [self._shared()] * method.messages, self._layout()
        planned = star_cost(line, len(present), up, method.answers(layout), method.noted)
        if course.ledger.closed or not course.ledger.affords(planned):
            course.ledger = course.ledger.close()
            return Rest.BUDGET
        start = initial_weights(self.method.training.factory, self._width, self.agreement.seed)
        base = line.base(start, self._shared())
        said, failed = self.line.ask(present, "upload", t, seconds=self.seconds.talk)
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
                    notes[name] = admit_note(sent[-1], name, t)
                came[name] = [
                    admit_weights(
                        data,
                        name,
                        (name,),
                        method.number(k, t, layout),
                        agreed,
                        count,
                        Limits(),
                        self.sender_id,
                    )
                    for k, data in enumerate(sent[: method.messages])
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
        done: dict[str, Any] = {}
        until = self.line.now() + limit
        said, failed = self.line.ask(sites, "start", what, *arguments, seconds=sign)
        while True:
            waiting = []
            standing, lies = answers.sorted_out(said, answers.progress)
            failed |= lies
            for name, (state, value) in standing.items():
                if state == "done":
                    done[name] = value
                elif state == "busy":
                    waiting.append(name)
                else:
                    failed[name] = excuses.words(state)
            if waiting and self.line.now() > until:
                failed |= dict.fromkeys(waiting, f"{what} took longer than {limit:g} s")
                waiting = []
            if not waiting:
                return done, failed
            self.notice(self._at, what, sorted(waiting))
            self.line.pause(self.seconds.poll)
            said, gone = self.line.ask(sorted(waiting), "poll", seconds=sign)
            failed |= gone

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
