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
from abps.core.arrays import Weights, distances, plausible
from abps.core.errors import RequestError
from abps.core.matching import Rest
from abps.methods.base import server_keys
from abps.methods.star import Server, StarMethod, from_sum
from abps.methods.state_bytes import StateError, freeze, thaw
from abps.models.learners import layout_for, start_for
from abps.privacy.secure_sum import SumError
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.masked_relay import MaskedRelay
from abps.sites.node.transport import RELAY
from abps.sites.protocol import answers
from abps.sites.protocol.commands import Command, SiteLine, Timeouts
from abps.sites.protocol.decline_codes import DeclineCode, Failure
from abps.wire import versions
from abps.wire.admission import Origin, Refusal, admit_weights
from abps.wire.codecs import codec
from abps.wire.frames import pack, unpack


@dataclass(frozen=True, eq=False)
class _Last:
    """What a star's server sent in a round, as it arrived, and whose sums it sees."""

    round: int
    sent: tuple[Weights, ...]
    members: tuple[str, ...] = ()


class StarServer:
    """The server of a study, in one job."""

    def __init__(
        self,
        line: SiteLine,
        agreement: Agreement,
        timeouts: Timeouts,
        log: Callable[[str], None],
        memory: Path | None,
        job: str,
        first: int,
        masks: MaskedRelay | None,
    ) -> None:
        """memory: the folder for what it must remember between two jobs.  first: the job's first round.
        masks: of a study under masked sums."""
        self.line, self.agreement, self.timeouts, self.log = line, agreement, timeouts, log
        self.memory, self._masks = memory, masks
        self.sender_id = versions.sender_ids(agreement.digest(), job)
        self.method = cast(StarMethod, agreement.config())
        self.layout = layout_for(self.method.training, agreement.width)
        self._summed: tuple[str, ...] = ()  # whose rows the sums of this study are of
        self.server = self._remembered(first)

    def round(
        self,
        t: int,
        present: list[str],
        sizes: Mapping[str, int],
        reported: Mapping[str, int],
        missing: dict[str, Failure],
    ) -> Rest:
        """Collect, do the server's part, send back. Returns why there was no exchange, if so.

        sizes: rows that count.  reported: rows as sites said.  missing: sites that drop out are added to it.
        """
        if self.method.over(self.server.memory):
            self._bring_up(t, self._behind(t, present, missing), missing)
            self._remember(t)
            return Rest.NOT
        if self._masks is not None:
            return self._masked_round(t, present, reported, missing)
        return self._open_round(t, present, sizes, missing)

    def _start(self) -> Weights:
        """(parameters,) the common start of all sites."""
        book, seed = self.agreement.book, self.agreement.seed
        return start_for(self.method.training, self.agreement.width, book.outcome, seed)

    # Uploads that the server sees

    def _open_round(
        self, t: int, present: list[str], sizes: Mapping[str, int], missing: dict[str, Failure]
    ) -> Rest:
        method = self.method
        start = self._start()
        base = method.line.base(start, self.layout.shared(self.method.line.private_layers))
        replies, failed = self.line.ask(present, Command.UPLOAD, t, seconds=self.timeouts.talk)
        replies = {name: frames for name, frames in replies.items() if frames != []}  # the others rest
        came, invalid = self._uploads(replies, t)
        missing |= failed | invalid
        names = sorted(came)
        if not names:
            self._remember(t)
            return Rest.UNREACHABLE
        sent = tuple(np.stack([came[name][k] for name in names]) + base for k in range(method.messages))
        rows = np.array([sizes[name] for name in names], dtype=np.float32)
        if method.sends_models:
            far = distances(sent[0], start)
            trusted = np.flatnonzero(plausible(far, np.full(len(far), np.median(far))))
            if len(trusted) < len(names):
                left = sorted(set(names) - {names[k] for k in trusted})
                self.log(f"round {t}: the model of {', '.join(left)} is too far out, and was left out")
                sent, rows = tuple(message[trusted] for message in sent), rows[trusted]
        self._serve(t, names, start, sent, rows, missing)
        return Rest.NOT

    def _uploads(
        self, replies: Mapping[str, Any], t: int
    ) -> tuple[dict[str, list[NDArray[np.float32]]], dict[str, Failure]]:
        """The weights that sites sent, checked as among sites; and whose were refused."""
        method, agreed = self.method, codec(self.method.line.codec)
        count = self.layout.shared(method.line.private_layers)
        numbers = [method.number(k, t, self.layout) for k in range(method.messages)]
        frames, invalid = answers.check_all(replies, lambda v: answers.frames(v, method.messages))
        came: dict[str, list[NDArray[np.float32]]] = {}
        for name, sent in frames.items():
            origins = [Origin(name, (name,), n, sender_id=self.sender_id) for n in numbers]
            try:
                came[name] = [
                    admit_weights(data, origin, agreed, count) for data, origin in zip(sent, origins)
                ]
            except Refusal as refused:
                detail = f"its weights were refused ({refused.reason})"
                invalid[name] = Failure(DeclineCode.INVALID_ANSWER, detail)
        return came, invalid

    # Masked sums

    def _masked_round(
        self, t: int, present: list[str], reported: Mapping[str, int], missing: dict[str, Failure]
    ) -> Rest:
        """A round of a server that sees the sum of what sites send, and nothing else."""
        method, adding, masks = self.method, self.method.adds, self._masks
        lengths = method.uploads(self.layout)
        assert adding is not None and masks is not None  # the agreement was checked
        try:
            members = masks.ready(present)
            if method.asks:
                members = self._askable(t, present, members, missing)
                if not members:
                    self._remember(t)
                    return Rest.NOT
            found = masks.total(t, members, sum(lengths) + 1)
            due = sum(reported[name] for name in found.names) if adding == "size" else len(found.names)
            if abs(found.values[-1] - due) > 0.5:  # a false share, or a site that added more than it reported
                raise SumError(f"it is of {found.values[-1]:.6g} rows, and {due} were reported")
        except SumError as error:
            self.log(f"round {t}: no sum ({error})")
            self._remember(t)
            return Rest.UNREACHABLE
        missing |= found.missing
        names = found.names
        sent, sizes = from_sum(found.values, lengths, adding)
        if method.asks:  # a site that was not in the sum can be in the next one if it knows what is asked
            self._summed = names
            names = tuple(name for name in present if name not in missing)
        self._serve(t, names, self._start(), sent, sizes, missing)
        return Rest.NOT

    def _askable(
        self, t: int, present: Sequence[str], members: Sequence[str], missing: dict[str, Failure]
    ) -> list[str]:
        """The members of a sum over rows: the same in all rounds, since two sums that differ by few sites
        would reveal these; nobody, while one of them is missing. Sites that are behind get the last answer
        once more.
        """
        behind = self._behind(t, present, missing)
        self._bring_up(t, behind, missing)
        ready = [name for name in members if name not in {*behind, *missing}]
        away = sorted(set(self._summed) - set(ready))
        if away:
            self.log(f"round {t}: no sum (it waits for {', '.join(away)})")
        return [] if away else list(self._summed) or ready

    def _behind(self, t: int, present: Sequence[str], missing: dict[str, Failure]) -> list[str]:
        """Sites that have not got the last answer of the server."""
        replies, failed = self.line.ask(present, Command.LAST_ANSWER, t, seconds=self.timeouts.talk)
        known, invalid = answers.check_all(replies, lambda v: answers.whole(v, 0, self.agreement.rounds))
        missing |= failed | invalid
        return sorted(n for n, at in known.items() if at != self.method.answered(self.server.memory))

    def _bring_up(self, t: int, names: list[str], missing: dict[str, Failure]) -> None:
        """Send sites once more what was answered last."""
        if names and self.server.last:
            self._answer(t, names, self.server.last, self._start(), missing)

    # Answers

    def _serve(
        self,
        t: int,
        names: Sequence[str],
        start: Weights,
        sent: tuple[Weights, ...],
        rows: Weights,
        missing: dict[str, Failure],
    ) -> None:
        """Do the server's part, send the result to all, and remember what the next round needs."""
        replies, memory = self.method.serve(start, self.server, sent, rows, t)
        if any(reply.ndim == 2 for reply in replies):
            raise RequestError(
                f"{self.agreement.method!r} sends every site a reply of its own: it runs in simulations only"
            )
        arrived = self._answer(t, names, replies, start, missing)
        # What the sites start from next, and what nobody else knows.
        self.server = replace(self.server, last=arrived, memory=memory)
        self._remember(t)

    def _answer(
        self,
        t: int,
        names: Sequence[str],
        replies: tuple[Weights, ...],
        start: Weights,
        missing: dict[str, Failure],
    ) -> tuple[Weights, ...]:
        """Send the replies to sites. Returns them as they arrive."""
        frames = []
        for k, reply in enumerate(replies):
            number = self.method.number(k, t, self.layout)
            (key,) = server_keys(self.agreement.seed, number)
            row = reply - self.method.line.base(start, reply.shape[-1])
            agreed = codec(self.method.line.codec)
            frames.append(pack(row, agreed, number, self.sender_id(RELAY), int(key)))
        _, failed = self.line.ask(list(names), Command.DOWNLOAD, t, frames, seconds=self.timeouts.talk)
        missing |= failed
        return tuple(
            unpack(frame).weights + self.method.line.base(start, reply.shape[-1])
            for frame, reply in zip(frames, replies)
        )

    # Memory between jobs

    def _file(self, memory: Path, t: int) -> Path:
        return memory / f"{self.agreement.digest()}-{t % 2}.server"

    def _remember(self, t: int) -> None:
        """Write down what the server must know in the next round."""
        if self.memory is None or not self.method.remembers:
            return
        files.folder(self.memory)
        head = freeze(_Last(t, self.server.last, self._summed))
        content = b"" if self.server.memory is None else freeze(self.server.memory)
        with files.replacing(self._file(self.memory, t)) as part:
            part.write_bytes(len(head).to_bytes(8, "little") + head + content)

    def _remembered(self, first: int) -> Server:
        """What the server knew after the round before the first of this job."""
        new = Server(seed=self.agreement.seed, layout=self.layout)
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
                    self._summed = last.members
                    return replace(new, last=last.sent, memory=known)
        raise RequestError(
            f"the study {self.agreement.study!r} goes on with round {first}, and what its server remembered "
            "of the round before is not here; run it where it began, or begin a new study"
        )
