"""Runs in this process, one after the other on all cores: also of methods that only it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from abps.data.federation import Federation
from abps.methods.base import Method
from abps.study.plan import PlannedRun
from abps.study.progress import StudyProgress
from abps.study.records import StudyFolder
from abps.study.workers.processes import note
from abps.study.workers.worker import Runner


def run_here(
    study: StudyFolder,
    todo: Sequence[PlannedRun],
    progress: StudyProgress,
    own: Mapping[str, Method],
    federations: Mapping[str, Federation],
) -> None:
    """Compute runs; failures are shown and noted in the study."""
    runner = Runner(study.root, own, federations)
    for run in todo:
        runner.compute(run, lambda event, run=run: note(progress, run, event))  # type: ignore[misc]
