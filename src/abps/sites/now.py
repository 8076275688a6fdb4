"""What a process of a job is doing this moment, in a small file that anybody at the same place may read.

The conductor and every site write it when a step begins; ``abps site doctor``, the status page and the
watch over stuck rounds read it. It holds names of sites and of steps, and nothing of the data.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from abps import files
from abps.core.errors import RequestError
from abps.sites.preflight import Check, Kit, State

#: The file's name, in the participant's ``local`` folder.
NOW = "abps-now.json"

_SCHEMA = "abps.now/1"

#: What a step of a round means, for people.
STEPS = {
    "open": "reading its table and its store",
    "catch_up": "settling what earlier jobs left in doubt",
    "introduce": "publishing its metadata vector",
    "announce": "telling of alarms",
    "train": "training",
    "turn": "proposing to peers",
    "settle": "settling proposals",
    "swap": "swapping weights",
    "finish": "mixing and judging",
    "idle": "waiting for the conductor's word",
    "done": "done",
}


@dataclass(frozen=True)
class Now:
    """step: of the round (0: before the first).  waiting: for whom.  since: when the step began, UTC."""

    study: str
    round: int
    step: str
    since: str
    waiting: tuple[str, ...] = ()
    process: int = 0

    @property
    def seconds(self) -> float:
        """How long the step has lasted."""
        began = datetime.datetime.fromisoformat(self.since)
        return max(0.0, (datetime.datetime.now(datetime.UTC) - began).total_seconds())

    @property
    def alive(self) -> bool:
        """Whether the process that wrote it still runs (on this machine)."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.process).status() != psutil.STATUS_ZOMBIE
        return False


class Board:
    """Where a process says what it is doing."""

    def __init__(self, local: Path, study: str) -> None:
        self.path = Path(local) / NOW
        self.study = study
        self._last: tuple[int, str, tuple[str, ...]] | None = None

    def say(self, round: int, step: str, waiting: Sequence[str] = ()) -> None:
        """A step begins. A disk that is full or gone must not end a job."""
        told = (round, step, tuple(waiting))
        if told == self._last:
            return
        self._last = told
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        now = Now(self.study, round, step, at, tuple(waiting), os.getpid())
        with contextlib.suppress(RequestError, OSError):
            files.write_json(self.path, {"schema": _SCHEMA, **asdict(now)})


def read_now(local: Path) -> Now | None:
    """What a job here is doing, or did last; None if there was none yet."""
    try:
        data = json.loads((Path(local) / NOW).read_text(encoding="utf-8"))
        if data.pop("schema") != _SCHEMA:
            return None
        return Now(**{**data, "waiting": tuple(data["waiting"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def diagnose(kit: Kit, after: float) -> Iterator[Check]:
    """What a job here is waiting for, and since when; a step longer than ``after`` seconds fails."""
    now = read_now(kit.local)
    if kit.role == "operator":
        yield Check("job", State.WARN, "an operator's kit runs no job; ask at the relay or at a site")
        return
    if now is None:
        yield Check("job", State.OK, "no job has run from this kit yet")
        return
    what = STEPS.get(now.step, now.step)
    where = (
        f"study {now.study}, round {now.round}" if now.round else f"study {now.study}, before its first round"
    )
    if now.step == "done":
        yield Check("job", State.OK, f"{where}: the last job ended at {now.since}")
    elif not now.alive:
        said = f"{where}: the process of the job is gone, in the midst of {what}, since {now.since} or later"
        yield Check("job", State.FAIL, f"{said}; submit the job again")
    else:
        whom = f" by {', '.join(now.waiting)}" if now.waiting else ""
        said = f"{where}: {what}{whom} for {now.seconds:.0f} s, since {now.since}"
        state = State.FAIL if now.seconds > after else State.OK
        hint = "; look at the logs there" if state is State.FAIL else ""
        yield Check("job", state, f"{said}{hint}")
