"""What the scheduler knows of a job: sums and names, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from abps.core.errors import RequestError
from abps.sites.consent.agreement import Agreement
from abps.sites.protocol.commands import Failure


class StudyFinished(RequestError):
    """The study has had all its rounds: a job has nothing left to do."""


@dataclass(frozen=True)
class JobRound:
    """What the scheduler knows of a round.  missing: absent sites, and why."""

    round: int
    present: tuple[str, ...]
    missing: dict[str, str]
    partners: dict[str, int]
    bytes: int
    validation: float | None
    seconds: float


@dataclass(frozen=True)
class JobReport:
    """What the scheduler knows of a job.  left_out: members that took no part, and why."""

    study: str
    method: str
    seed: int
    agreement: str
    first: int
    members: tuple[str, ...]
    left_out: dict[str, str]
    rounds: tuple[JobRound, ...]
    best: int
    stopped_early: bool

    @staticmethod
    def of(
        agreement: Agreement,
        first: int,
        members: tuple[str, ...],
        left_out: Mapping[str, Failure],
        rounds: Sequence[JobRound],
        best: int,
        stopped: bool,
    ) -> JobReport:
        """The report of a job; sites that joined later are missing in the rounds before."""
        took_part = {name for report in rounds for name in report.present}
        full = []
        for report in rounds:
            late = sorted(took_part - {*report.present, *report.missing})
            why = dict.fromkeys(late, "it was not in the job yet")
            full.append(replace(report, missing={**report.missing, **why}))
        absent = {name: str(failure) for name, failure in left_out.items() if name not in took_part}
        return JobReport(
            agreement.study, agreement.method, agreement.seed, agreement.digest(), first, members, absent,
            tuple(full), best, stopped,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``abps-job.json``."""
        return {"schema": "abps.job/2", **asdict(self), "bytes": sum(r.bytes for r in self.rounds)}
