"""The scheduler of a job, at the relay: a clock that never sees a model. Of masked sums it passes keys on,
adds up masked vectors, and sees the totals. Sites that exceed the timeouts, or the grace period, skip the
rest of the round and are asked again in the next."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from abps import files
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.core.streams import center_ids
from abps.methods.coordinated import coordinators
from abps.privacy import fixed_point
from abps.privacy.secure_sum import SumError
from abps.release import VERSION
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.steps import MembersMissing, enough, open_sites, run_step
from abps.sites.node.measuring import MEASURE, Floats, Tally
from abps.sites.protocol import commands
from abps.sites.protocol.commands import Answers, Command, DeclineCode, Failure, SiteLine, Timeouts
from abps.wire import messages
from abps.wire.admission import capped_rows
from abps.wire.number_lists import MOST

T = TypeVar("T")

TRIED = 3  # members that are tried as the coordinator of an exchange
SLOW = 1.0  # seconds that the others waited for a site in a round, from which on the report names it
MOST_WITHOUT_SUM = 2  # rounds in a row without a masked sum after which a job ends


class StudyFinished(RequestError):
    """The study has had all its rounds: a job has nothing left to do."""


@dataclass(frozen=True)
class JobRound:
    """What the scheduler knows of a round.  missing: why sites are absent.  validation: the mean score of so
    many ``scored`` sites.  late: seconds that the others waited for a site."""

    round: int
    present: tuple[str, ...]
    missing: dict[str, str]
    bytes: int
    validation: float | None
    scored: int
    late: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class JobReport:
    """What the scheduler knows of a job: sums and names, no model.  left_out: why members took no part.
    validation: by site, of the last round, where enough patients are behind it."""

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


class MaskedRelay:
    """The relay's part in the masked sums of one job."""

    def __init__(self, line: SiteLine, timeouts: Timeouts) -> None:
        self.line, self.timeouts = line, timeouts
        self.ready: frozenset[str] = frozenset()  # sites that know the others' keys
        self.members: list[str] = []  # of earlier sums

    def introduce(self, names: Sequence[str]) -> dict[str, Failure]:
        """Let sites exchange keys, and sealed checks of totals. Returns who has not, and why."""
        known, why = self._ask(names, _introduced, Command.SUM_INTRODUCE)
        keys = {name: key for name, (key, _) in known.items()}
        before = Counter(tuple(members) for _, members in known.values() if members)
        self.members = list(before.most_common(1)[0][0]) if before else []
        sealed, deaf = self._ask(keys, lambda v: _by_name(v, keys), Command.SUM_MEET, keys)
        # All parcels to all at once, of which each site opens its own: a call per site would take longer.
        parcels = {name: {who: each[name] for who, each in sealed.items() if name in each} for name in sealed}
        kept, lost = self._ask(sealed, lambda v: None, Command.SUM_KEEP, parcels)
        self.ready = frozenset(kept)
        return why | deaf | lost

    def total(self, number: int, names: Sequence[str], entries: int) -> MaskedTotal:
        """The sum over the members of the first one, which are those of the sites that are ready then;
        ``SumError`` unless all of them add to it."""
        there = [name for name in sorted(names) if name in self.ready]
        if absent := [name for name in self.members if name not in there]:
            raise SumError(f"{', '.join(absent)} not there")
        group = self.members or there
        if len(group) < 3:
            raise SumError(f"{len(group)} sites are there, and a sum of fewer than 3 shows a summand")
        rings, why = self._ask(group, lambda v: _ring(v, entries + 1), Command.SUM_MASKED, number, group)
        self.members = group if rings else self.members  # who has sent a summand holds to the group
        if why:
            raise SumError(f"{len(rings)} of {len(group)} summands came ({_said(why)})")
        total = np.sum(list(rings.values()), axis=0, dtype=np.uint64)
        return MaskedTotal(total.astype("<u8").tobytes(), tuple(group))

    def _ask(
        self, sites: Iterable[str], check: Callable[[Any], T], command: Command, *arguments: Any
    ) -> tuple[dict[str, T], dict[str, Failure]]:
        replies, failed = self.line.ask(sorted(sites), command, *arguments, seconds=self.timeouts.talk)
        good, invalid = commands.check_all(replies, check)
        return good, failed | invalid


@dataclass(frozen=True)
class MaskedTotal:
    """A sum with its check, as it goes to members; and whose summands are in it."""

    data: bytes
    names: tuple[str, ...]

    @property
    def values(self) -> Floats:
        return fixed_point.decode(np.frombuffer(self.data, "<u8").astype(np.uint64)[:-1])


def _said(failures: Mapping[str, Failure]) -> str:
    return "; ".join(f"{name}: {failure}" for name, failure in sorted(failures.items()))


def _introduced(value: Any) -> tuple[list[bytes], list[str]]:
    """A site's key with its proof, and of which members its sums are."""
    *key, members = value
    return _bytes_of(key, 3), msgspec.convert(members, list[str])


def _bytes_of(value: Any, count: int) -> list[bytes]:
    if len(value) != count or any(not isinstance(part, bytes) or len(part) > 10_000 for part in value):
        raise ValueError("no bytes")
    return list(value)


def _by_name(value: Any, names: Collection[str]) -> dict[str, bytes]:
    if not isinstance(value, dict) or not set(value) <= set(names):
        raise ValueError("not of members")
    return dict(zip(value, _bytes_of(list(value.values()), len(value))))


def _ring(value: Any, entries: int) -> fixed_point.Ring:
    if not isinstance(value, bytes) or len(value) != 8 * entries:
        raise ValueError("no masked vector")
    return np.frombuffer(value, dtype="<u8").astype(np.uint64)


def measure(
    line: SiteLine,
    agreement: Agreement,
    members: Sequence[str],
    timeouts: Timeouts,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """What the study lacks for common scales, as sites know it from an earlier job, or counted now."""
    why = open_sites(line, sorted(members), timeouts, [MEASURE])
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
    rows = {name: each for name, (each, _) in facts.items()}
    try:
        return _counted(MaskedRelay(line, timeouts), agreement, rows, log)
    except SumError as error:
        raise MembersMissing(f"the common scales could not be counted ({error}); submit again") from error


def _counted(
    relay: MaskedRelay, agreement: Agreement, rows: Mapping[str, int], log: Callable[[str], None]
) -> dict[str, Any]:
    for name, reason in sorted(relay.introduce(sorted(rows)).items()):
        log(f"{name} does not count: {reason}")
    tally = Tally(agreement)
    while not tally.found.done:
        number = tally.found.taken + 1
        found = relay.total(number, list(rows), tally.found.entries)
        tally.members = len(found.names)
        most = sum(rows[name] for name in found.names) + 0.5 + tally.doubt() * tally.found.edges.shape[1]
        columns = found.values.reshape(tally.columns, -1)
        if (columns < -tally.doubt() - 0.5).any() or (columns.sum(axis=1) > most).any():
            raise SumError("a total is more than all rows, or less than none: a site adds what it has not")
        waits = relay.timeouts
        run_step(relay.line, found.names, waits.talk, waits, Command.SUM_TOTAL, number, found.data)
        tally.take(found.values, found.names)
    log(f"common scales of {tally.columns} columns, counted under masks by {tally.members} sites")
    return tally.result()


def _facts(value: Any, digest: str) -> tuple[int, dict[str, Any] | None]:
    scales = value["scales"]
    if value["agreement"] != digest or not (scales is None or isinstance(scales, dict)):
        raise ValueError("another study")
    return commands.whole(value["rows"], 0, commands.MOST_ROWS), scales


class Scheduler:
    """Runs one job: some rounds of a study."""

    def __init__(
        self,
        line: SiteLine,
        agreement: Agreement,
        rounds: int,
        timeouts: Timeouts | None = None,
        log: Callable[[str], None] = lambda line: None,
        revoked: Callable[[], tuple[str, frozenset[str]]] = lambda: ("", frozenset()),
        scales: Mapping[str, Any] | None = None,
        memory: Path | None = None,
    ) -> None:
        """memory: a folder for the last round of the study that was run here.  revoked: the authority's list,
        to be passed on, and whom it expels.  scales: what :func:`measure` counted for the study."""
        if rounds < 1:
            raise RequestError(f"rounds={rounds}: a job needs at least 1 round")
        self.line, self.agreement, self.rounds = line, agreement, rounds
        self.method = agreement.config()
        self.timeouts = timeouts or Timeouts()
        self.log, self.revoked = log, revoked
        self._seen = None if memory is None else memory / f"{agreement.digest()}.round"
        self._open_arguments: list[Any] = [] if scales is None else [None, dict(scales)]
        self._passed_on = ""
        self._roster: tuple[str, ...] = ()
        self._joined: frozenset[str] = frozenset()  # sites that take part
        self._well: frozenset[str] = frozenset()  # sites that ended the last round well
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
            had = f"has had its {min(first - 1, self.agreement.rounds)} rounds"
            raise StudyFinished(f"the study {self.agreement.study!r} {had}; nothing is left to do")
        rows = capped_rows({name: int(facts["rows"]) for name, facts in ready.items()})
        arguments = (there, first, rows, list(messages.VERSION))
        joined, absent = self.line.ask(sorted(ready), Command.JOIN, *arguments, seconds=self.timeouts.sign)
        left_out |= absent
        if self.method.privacy.secure:
            self._masks = MaskedRelay(self.line, self.timeouts)
            left_out |= self._masks.introduce(sorted(joined))
        self._step(sorted(joined), Command.INTRODUCE, first)
        self._joined = self._well = frozenset(joined)
        last = min(first + self.rounds - 1, self.agreement.rounds)
        stopped = any(self._round(t) for t in range(first, last + 1))
        agreement, gone = self.agreement, {name: str(why) for name, why in left_out.items()}
        return JobReport(
            agreement.study, agreement.method, agreement.seed, agreement.digest(), first, self._roster, gone,
            tuple(self._reports), stopped, self._scores,
        )  # fmt: skip

    # Who takes part

    def _gather(self) -> tuple[dict[str, commands.SiteFacts], dict[str, Failure]]:
        """The sites that are there and agree; and why others are not."""
        roster = self._roster
        failures = open_sites(self.line, roster, self.timeouts, *self._open_arguments)
        ready, unfit = self._greet([name for name in roster if name not in failures])
        failures |= unfit
        seen = int(self._seen.read_text(encoding="utf-8")) if self._seen and self._seen.is_file() else 0
        for name in _far_ahead({name: facts["round"] for name, facts in ready.items()}, seen):
            detail = f"it says that it has finished round {ready.pop(name)['round']}, and nobody else has"
            failures[name] = Failure(DeclineCode.MISFIT, detail)
        for name, failure in sorted(failures.items()):
            self.log(f"{name} takes no part: {failure}")
        if len(ready) < 2:
            said = _said(failures)
            raise RequestError(f"{len(ready)} of {len(roster)} sites can take part, a job needs 2 ({said})")
        return ready, failures

    def _greet(self, sites: Sequence[str]) -> tuple[dict[str, commands.SiteFacts], dict[str, Failure]]:
        replies, silent = self.line.ask(sites, Command.HELLO, seconds=self.timeouts.sign)
        known, unfit = commands.check_all(replies, lambda v: commands.hello(v, self.agreement.rounds))
        ready: dict[str, commands.SiteFacts] = {}
        mine = self.agreement.digest()
        for name, facts in known.items():
            if facts["agreement"] != mine:
                detail = f"it runs another agreement than {mine}; same abps version?"
                unfit[name] = Failure(DeclineCode.MISFIT, detail)
            elif facts["wire"] != messages.VERSION:
                its, ours = (".".join(map(str, wire)) for wire in (facts["wire"], messages.VERSION))
                detail = f"it speaks version {its} of the wire format, the relay {ours}; same abps version?"
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
        others = [name for name in members if name not in self._well]
        states, silent = self.line.ask(others, Command.PING, seconds=self.timeouts.sign)
        missing |= silent
        for name, state in states.items():
            if state == commands.SiteState.READY:
                here.append(name)
            else:
                missing[name] = Failure(DeclineCode.NOT_READY, "it is still busy with an earlier step")
        return sorted(here), missing

    # A round

    def _round(self, t: int) -> bool:
        """One round. Returns whether all sites say that the method is done."""
        began, self._late = self.line.now(), Counter()
        here, missing = self._present()
        done, failed = self.line.ask(here, Command.BEGIN, t, here, seconds=self.timeouts.sign)
        missing |= failed
        present = sorted(done)
        if not present:
            why = "; ".join(sorted({str(failure) for failure in missing.values()}))
            raise RequestError(f"round {t}: no site is left ({why})")
        masked = self._masks is not None and self.method.sums_only(t)
        rest = (self._masked if masked else self._coordinated)(t, present, missing)
        replies, failed = self._step(_without(present, missing), Command.CONCLUDE, t, int(rest))
        concluded, invalid = commands.check_all(replies, commands.concluded)
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
            replies, failed = self._step(there[:1], Command.COORDINATE, t)
            counts, invalid = commands.check_all(replies, lambda v: commands.whole(v, 0, len(roster)))
            missing |= failed | invalid
            for name, count in counts.items():
                self.log(f"round {t}: {count} sites uploaded to {name}")
                return Rest.NOT if count > 1 else Rest.UNREACHABLE
        return Rest.UNREACHABLE

    def _contribute(self, t: int, there: list[str], missing: dict[str, Failure]) -> dict[str, int]:
        """Let sites upload, or prepare a summand: how many numbers each has."""
        replies, failed = self._step(there, Command.CONTRIBUTE, t, sorted(missing))
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
                why = f"({error}); all sums of a study are of the same members, and absent were: {absent}"
                what = f"round {t}: there is no masked sum {why}"
                raise MembersMissing(f"{what}; start these sites and submit again") from error
            return Rest.UNREACHABLE
        self._without_sum = 0
        took, failed = self._step(_without(found.names, missing), Command.SUM_TOTAL, t, found.data)
        missing |= failed
        self.log(f"round {t}: the sum of {len(found.names)} sites" if took else f"round {t}: no sum is taken")
        return Rest.NOT if took else Rest.UNREACHABLE

    def _step(self, sites: Sequence[str], command: Command, *arguments: Any) -> Answers:
        seen, timeouts = self.line.now(), self.timeouts
        limit = timeouts.talk if command is Command.INTRODUCE else timeouts.work

        def notice(waiting: Sequence[str]) -> None:
            nonlocal seen
            before, seen = seen, self.line.now()
            if len(waiting) <= len(sites) - enough(len(sites)):  # most are done, and wait for these
                self._late.update(dict.fromkeys(waiting, seen - before))

        return run_step(self.line, sites, limit, timeouts, command, *arguments, notice=notice)

    def _report(
        self, t: int, present: list[str], concluded: Mapping[str, tuple[float, int, bool]],
        missing: Mapping[str, Failure], began: float,
    ) -> None:  # fmt: skip
        scores = {name: value for name, (value, _, _) in sorted(concluded.items()) if math.isfinite(value)}
        why = {name: str(failure) for name, failure in sorted(missing.items())}
        late = {name: round(float(s), 1) for name, s in sorted(self._late.items()) if s >= SLOW}
        mean = float(np.mean(list(scores.values()))) if scores else None
        self._scores, took = scores, round(self.line.now() - began, 3)
        size = sum(each for _, each, _ in concluded.values())
        self._reports.append(JobRound(t, tuple(present), why, size, mean, len(scores), late, took))
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
