"""What the conductor knows of a job: sums and names, no model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from abps.core.errors import RequestError


class StudyFinished(RequestError):
    """The study has had all its rounds: a job has nothing left to do."""


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
