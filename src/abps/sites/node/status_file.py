"""What a process of a job is doing this moment, in a small file that anybody at the same place may read.

The conductor and every site write it when a step begins; ``abps site doctor``, the status page and the
watch over stuck rounds read it. It holds names of sites and of steps, and nothing of the data.
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
    "conclude": "mixing and judging",
    "exchange": "swapping weights, mixing and judging",
    "letter": "sending its codebook to the operator",
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


class StatusFile:
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


def read_status(local: Path) -> Now | None:
    """What a job here is doing, or did last; None if there was none yet."""
    try:
        data = json.loads((Path(local) / NOW).read_text(encoding="utf-8"))
        if data.pop("schema") != _SCHEMA:
            return None
        return Now(**{**data, "waiting": tuple(data["waiting"])})
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
    told = {"seconds": round(now.timestamp() - relay, 1), "at": now.isoformat(timespec="seconds")}
    with contextlib.suppress(RequestError, OSError):
        files.write_json(Path(local) / CLOCK, {"schema": _CLOCK_SCHEMA, **told})


def read_clock(local: Path) -> Skew | None:
    """What was written down last; None before the first job."""
    try:
        data = json.loads((Path(local) / CLOCK).read_text(encoding="utf-8"))
        if data.pop("schema") != _CLOCK_SCHEMA:
            return None
        return Skew(float(data["seconds"]), str(data["at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
