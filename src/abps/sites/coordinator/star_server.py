"""The server's part in a study that has one: it collects, does what the method says, and sends back.

Star methods are there for comparison. The relay sees what sites upload, or, with masked sums, their sum
alone. What the server must know in the next round it keeps in a file, of two rounds: the last may not be
finished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from abps import files
from abps.core.arrays import Weights
from abps.core.errors import RequestError
from abps.core.ledger import Ledger
from abps.core.matching import Rest
from abps.core.plausibility import distances, plausible
from abps.core.streams import center_ids
from abps.methods.base import server_keys
from abps.methods.masked_rounds import from_sum, masked_cost
from abps.methods.star import Server, StarMethod, star_cost, to_everyone, with_notes
from abps.methods.state_bytes import StateError, freeze, thaw
from abps.models.learners import start_for
from abps.privacy.differencing import may_be_opened
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.sizes import Sizes
from abps.sites.node.masked_sums import masking_context
from abps.sites.node.transport import RELAY
from abps.sites.protocol import answers
from abps.sites.protocol.steps import Line, Timeouts
from abps.wire.admission import Origin, Refusal, SenderId, admit_note, admit_weights
from abps.wire.codecs import codec
from abps.wire.frames import pack, unpack


@dataclass(frozen=True, eq=False)
class _Last:
    """What a star's server sent in a round, as it arrived, and whose sums it has seen."""

    round: int
    sent: tuple[Weights, ...]
    lists: tuple[tuple[str, ...], ...] = ()


class StarServer:
    """The server of a study, in one job."""

    def __init__(
        self,
        line: Line,
        agreement: Agreement,
        seconds: Timeouts,
        tell: Callable[[str], None],
        memory: Path | None,
        job: str,
        sender_id: SenderId,
        first: int,
    ) -> None:
        """memory: the folder for what it must remember between two jobs.  first: the job's first round."""
        self.line, self.agreement, self.seconds, self.tell = line, agreement, seconds, tell
        self.memory, self.job, self.sender_id = memory, job, sender_id
        self.method = cast(StarMethod, agreement.config())
        self.sizes = Sizes(agreement, self.method)
        self._lists: tuple[tuple[str, ...], ...] = ()  # whose sums were opened, of sums over rows
        self.server = self._remembered(first)
        self._summing: frozenset[str] = frozenset()  # who takes part in masked sums
        self._introductions: dict[str, list[bytes]] = {}

    def round(
        self,
        t: int,
        present: list[str],
        sizes: Mapping[str, int],
        told: Mapping[str, int],
        missing: dict[str, str],
        ledger: Ledger,
    ) -> tuple[Rest, Ledger]:
        """Collect, do the server's part, send back. Returns why there was no exchange, if so.

        sizes: rows that count.  told: rows as sites said.  missing: who falls away is added to it.
        """
        if self.method.over(self.server.memory):
            self._bring_up(t, self._behind(t, present, missing), missing)
            self._remember(t)
            return Rest.NOT, ledger
        up, down = self.method.uploads(self.sizes.layout), self.method.answers(self.sizes.layout, t)
        if self.method.privacy.secure:
            planned = masked_cost(self.method.line, len(present), up, down)
        else:
            planned = star_cost(self.method.line, len(present), up, down, self.method.noted)
        if ledger.closed or not ledger.affords(planned):
            return Rest.BUDGET, ledger.close()
        if self.method.privacy.secure:
            return self._masked_round(t, present, told, missing), ledger
        return self._open_round(t, present, sizes, missing), ledger

    def _start(self) -> Weights:
        """(parameters,) the common start of all sites."""
        width, outcome = self.agreement.width, self.agreement.book.outcome
        return start_for(self.method.training, width, outcome, self.agreement.seed)

    # Uploads that the server sees

    def _open_round(
        self, t: int, present: list[str], sizes: Mapping[str, int], missing: dict[str, str]
    ) -> Rest:
        method = self.method
        start = self._start()
        base = method.line.base(start, self.sizes.shared)
        said, failed = self.line.ask(present, "upload", t, seconds=self.seconds.talk)
        said = {name: frames for name, frames in said.items() if frames != []}  # the others rest
        came, notes, lies = self._uploads(said, t)
        missing |= failed | lies
        names = sorted(came)
        if not names:
            self._remember(t)
            return Rest.UNREACHABLE
        sent = tuple(np.stack([came[name][k] for name in names]) + base for k in range(method.messages))
        if method.noted:
            sent = with_notes(sent, np.array([notes[name] for name in names]))
        rows = np.array([sizes[name] for name in names], dtype=np.float32)
        if method.sends_models:
            far = distances(sent[0], start)
            trusted = np.flatnonzero(plausible(far, np.full(len(far), np.median(far))))
            if len(trusted) < len(names):
                left = sorted(set(names) - {names[k] for k in trusted})
                self.tell(f"round {t}: the model of {', '.join(left)} is too far out, and was left out")
                some = trusted
                sent, rows = tuple(message[some] for message in sent), rows[some]
        else:
            trusted = np.arange(len(names))
        self._serve(t, names, trusted, start, sent, rows, missing)
        return Rest.NOT

    def _uploads(
        self, said: Mapping[str, Any], t: int
    ) -> tuple[dict[str, list[NDArray[np.float32]]], dict[str, float], dict[str, str]]:
        """The weights that sites sent to the server, by the rules among sites; the numbers beside them; and
        whose are none."""
        method, agreed = self.method, codec(self.method.line.codec)
        count, most = self.sizes.shared, method.messages + method.noted
        numbers = [method.number(k, t, self.sizes.layout) for k in range(method.messages)]
        frames, lies = answers.sorted_out(said, lambda v: answers.frames(v, most))
        came: dict[str, list[NDArray[np.float32]]] = {}
        notes: dict[str, float] = {}
        for name, sent in frames.items():
            origins = [Origin(name, (name,), n, sender_id=self.sender_id) for n in numbers]
            try:
                if method.noted:
                    notes[name] = admit_note(sent[-1], Origin(name, (name,), t))
                came[name] = [
                    admit_weights(data, origin, agreed, count) for data, origin in zip(sent, origins)
                ]
            except Refusal as refused:
                lies[name] = f"its weights were refused ({refused.reason})"
        return came, notes, lies

    # Masked sums

    def introduce(self, names: list[str], others: Sequence[str] = ()) -> dict[str, str]:
        """Let sites know each other's keys for masked sums; returns who has none, and why.

        others: who is known already, and is to know them. Without masked sums there is nothing to do.
        """
        if not self.method.privacy.secure:
            return {}
        from abps.sites.protocol import masking

        said, failed = self.line.ask(names, "sum_introduce", seconds=self.seconds.talk)
        told, lies = answers.sorted_out(said, masking.introduced)
        self._introductions |= told
        meet = sorted({*told, *others})
        _, deaf = self.line.ask(meet, "sum_meet", self._introductions, seconds=self.seconds.talk)
        self._summing = (self._summing | frozenset(told)) - frozenset(deaf)
        return failed | lies | deaf

    def forget(self, names: Sequence[str]) -> None:
        """Sites that come back take part in no sum until they have told their keys anew."""
        self._summing -= frozenset(names)
        self._introductions = {k: v for k, v in self._introductions.items() if k not in names}

    def _masked_round(
        self, t: int, present: list[str], told: Mapping[str, int], missing: dict[str, str]
    ) -> Rest:
        """A round of a server that sees the sum of what sites send, and nothing else."""
        from abps.privacy.secure_sum import SumError
        from abps.sites.protocol import masking

        method, adding = self.method, self.method.adds
        lengths = method.uploads(self.sizes.layout)
        assert adding is not None  # the agreement was checked

        def ask(sites: Sequence[str], what: str, *arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
            return self.line.ask(sites, what, *arguments, seconds=self.seconds.talk)

        try:
            context = masking_context(self.agreement.digest(), self.job)
            new = [name for name in present if name not in self._introductions]
            if new:  # who joined later
                self.introduce(new, [name for name in present if name not in new])
            members = [name for name in present if name in self._summing]
            if method.asks:
                members = self._askable(t, present, members, missing)
                if not members:
                    self._remember(t)
                    return Rest.NOT
            found, names, failed = masking.total(ask, context, t, members, sum(lengths) + 1)
            say = sum(told[name] for name in names) if adding == "size" else len(names)
            if abs(found[-1] - say) > 0.5:  # a share that was none, or a site that added more than it told
                raise SumError(f"it is of {found[-1]:.6g} rows, and {say} were told")
        except SumError as error:
            self.tell(f"round {t}: no sum ({error})")
            self._remember(t)
            return Rest.UNREACHABLE
        missing |= failed
        sent, sizes = from_sum(found, lengths, adding)
        start = self._start()
        if method.asks:  # who was not in the sum can be in the next one if it hears what is asked
            self._lists = tuple(dict.fromkeys((*self._lists, names)))
            names = tuple(name for name in present if name not in missing)
        self._serve(t, list(names), np.arange(len(names)), start, sent, sizes, missing)
        return Rest.NOT

    def _askable(
        self, t: int, present: Sequence[str], members: Sequence[str], missing: dict[str, str]
    ) -> list[str]:
        """The members of a sum over rows: who stands at what was asked, on a list that sites will open;
        nobody, if there is none yet. Who does not stand there is told what was asked.
        """
        behind = self._behind(t, present, missing)
        self._bring_up(t, behind, missing)
        ready = [name for name in members if name not in {*behind, *missing}]
        if may_be_opened(self._lists, ready):
            return ready
        for listed in self._lists[::-1]:
            if set(listed) <= set(ready):
                return list(listed)
        away = sorted(set(self._lists[-1]) - set(ready)) if self._lists else []
        why = f"it waits for {', '.join(away) or 'more sites'}: without them it would show what few have"
        self.tell(f"round {t}: no sum ({why})")
        return []

    def _behind(self, t: int, present: Sequence[str], missing: dict[str, str]) -> list[str]:
        """Who has not got what the server answered last."""
        said, failed = self.line.ask(present, "taken_in", t, seconds=self.seconds.talk)
        told, lies = answers.sorted_out(said, lambda v: answers.whole(v, 0, self.agreement.rounds))
        missing |= failed | lies
        return sorted(n for n, at in told.items() if at != self.method.answered(self.server.memory))

    def _bring_up(self, t: int, names: list[str], missing: dict[str, str]) -> None:
        """Tell sites once more what was answered last."""
        if names and self.server.last:
            self._answer(t, names, np.arange(len(names)), self.server.last, self._start(), missing)

    # Answers

    def _serve(
        self,
        t: int,
        names: list[str],
        trusted: NDArray[np.int64],
        start: Weights,
        sent: tuple[Weights, ...],
        rows: Weights,
        missing: dict[str, str],
    ) -> None:
        """Do the server's part, send what it has to say, and remember what the next round needs."""
        replies, memory = self.method.serve(start, self.server, sent, rows, t)
        arrived = self._answer(t, names, trusted, replies, start, missing)
        # What the sites start from next, and what nobody else knows.
        self.server = replace(self.server, last=arrived, memory=memory)
        self._remember(t)

    def _answer(
        self,
        t: int,
        names: list[str],
        trusted: NDArray[np.int64],
        replies: tuple[Weights, ...],
        start: Weights,
        missing: dict[str, str],
    ) -> tuple[Weights, ...]:
        """Send what the server has to say, to all the same or to each its own; returns what is the same.

        trusted: the places, among the names, of those whose weights were let in.
        """
        method, line, layout = self.method, self.method.line, self.sizes.layout
        some = trusted
        replies = tuple(to_everyone(r, some, len(names)) if r.ndim == 2 else r for r in replies)
        seed, own = self.agreement.seed, any(reply.ndim == 2 for reply in replies)
        frames: list[list[bytes]] = [[] for _ in (names if own else names[:1])]
        for k, reply in enumerate(replies):
            number, base = method.number(k, t, layout), line.base(start, reply.shape[-1])
            keys = server_keys(seed, number, center_ids(tuple(names)) if reply.ndim == 2 else None)
            rows = np.atleast_2d(reply) - base
            packed = [
                pack(row, codec(line.codec), number, self.sender_id(RELAY), int(key))
                for row, key in zip(rows, keys)
            ]
            for i, mine in enumerate(frames):
                mine.append(packed[i if reply.ndim == 2 else 0])
        for i, mine in enumerate(frames):
            to = [names[i]] if own else names
            _, failed = self.line.ask(to, "download", t, mine, seconds=self.seconds.talk)
            missing |= failed
        common = [
            unpack(frame).weights + line.base(start, reply.shape[-1])
            for frame, reply in zip(frames[0], replies)
            if reply.ndim == 1
        ]
        return tuple(common)

    # Memory between jobs

    def _file(self, memory: Path, t: int) -> Path:
        return memory / f"{self.agreement.digest()}-{t % 2}.server"

    def _remember(self, t: int) -> None:
        """Write down what the server must know in the next round."""
        if self.memory is None or not self.method.remembers:
            return
        files.folder(self.memory)
        head = freeze(_Last(t, self.server.last, self._lists))
        content = b"" if self.server.memory is None else freeze(self.server.memory)
        with files.replacing(self._file(self.memory, t)) as part:
            part.write_bytes(len(head).to_bytes(8, "little") + head + content)

    def _remembered(self, first: int) -> Server:
        """What the server knew after the round before the first of this job."""
        new = Server(seed=self.agreement.seed, layout=self.sizes.layout)
        if first == 1 or not self.method.remembers:
            return new
        path = None if self.memory is None else self._file(self.memory, first - 1)
        if path is not None and path.is_file():
            data = path.read_bytes()
            length = int.from_bytes(data[:8], "little")
            keeps, rest = self.method.keeps, data[8 + length :]
            with contextlib.suppress(StateError):  # a damaged file is as good as none
                last: _Last = thaw(_Last, data[8 : 8 + length])
                known = thaw(keeps, rest) if keeps is not None and rest else None
                if last.round == first - 1:
                    self._lists = last.lists
                    return replace(new, last=last.sent, memory=known)
        raise RequestError(
            f"the study {self.agreement.study!r} goes on with round {first}, and what its server remembered "
            "of the round before is not here; run it where it began, or begin a new study"
        )
