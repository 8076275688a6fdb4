"""What a process of a job is doing this moment, in a small file that anybody at the same place may read.

The scheduler and every site write it when a step begins; ``abps site doctor``, the status page and the
monitor read it. It holds names of sites and of steps, and nothing of the data.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from abps import files
from abps.core.errors import RequestError
from abps.sites.protocol.commands import Command

#: The file's name, in the participant's ``local`` folder.
NOW = "abps-now.json"

_SCHEMA = "abps.now/1"

#: What a step of a round means, for people.
STEPS = {
    Command.OPEN: "reading its table and its store",
    Command.CATCH_UP: "settling what earlier jobs left in doubt",
    Command.INTRODUCE: "publishing its metadata vector",
    Command.TRAIN: "training",
    Command.PROPOSE: "proposing to peers",
    Command.SETTLE: "settling proposals",
    Command.EXCHANGE: "exchanging weights",
    Command.CONTRIBUTE: "uploading to the coordinator",
    Command.COORDINATE: "aggregating as the coordinator",
    Command.CONCLUDE: "updating its model",
    Command.LETTER: "sending its codebook to the operator",
    "idle": "waiting for the scheduler",
    "done": "done",
}


@dataclass(frozen=True)
class StepStatus:
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


class StatusFile:
    """The file in which a process says what it is doing."""

    def __init__(self, local: Path, study: str) -> None:
        self.path = Path(local) / NOW
        self.study = study
        self._last: tuple[int, str, tuple[str, ...]] | None = None

    def write(self, round: int, step: str, waiting: Sequence[str] = ()) -> None:
        """A step begins. A disk that is full or gone must not end a job."""
        status = (round, step, tuple(waiting))
        if status == self._last:
            return
        self._last = status
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        now = StepStatus(self.study, round, step, at, tuple(waiting), os.getpid())
        with contextlib.suppress(RequestError, OSError):
            files.write_json(self.path, {"schema": _SCHEMA, **asdict(now)})


def read_status(local: Path) -> StepStatus | None:
    """What a job here is doing, or did last; None if there was none yet."""
    try:
        data = json.loads((Path(local) / NOW).read_text(encoding="utf-8"))
        if data.pop("schema") != _SCHEMA:
            return None
        return StepStatus(**{**data, "waiting": tuple(data["waiting"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


#: What a site knows of the relay's clock, in its ``local`` folder.
CLOCK = "abps-clock.json"

_CLOCK_SCHEMA = "abps.clock/1"


@dataclass(frozen=True)
class Skew:
    """How many seconds this machine's clock is ahead of the relay's, and when that was seen (UTC)."""

    seconds: float
    at: str


def note_clock(local: Path, relay: float) -> None:
    """Write down how far the relay's clock is from ours; relay: its seconds since 1970."""
    now = datetime.datetime.now(datetime.UTC)
    skew = {"seconds": round(now.timestamp() - relay, 1), "at": now.isoformat(timespec="seconds")}
    with contextlib.suppress(RequestError, OSError):
        files.write_json(Path(local) / CLOCK, {"schema": _CLOCK_SCHEMA, **skew})


def read_clock(local: Path) -> Skew | None:
    """What was written down last; None before the first job."""
    try:
        data = json.loads((Path(local) / CLOCK).read_text(encoding="utf-8"))
        if data.pop("schema") != _CLOCK_SCHEMA:
            return None
        return Skew(float(data["seconds"]), str(data["at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
