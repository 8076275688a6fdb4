"""Runs on this machine: a few worker processes, each with cores of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from abps.core.errors import RequestError
from abps.cores import available_cores
from abps.study.workers.worker import import_path

if TYPE_CHECKING:
    from abps.study.plan import PlannedRun
    from abps.study.progress import StudyProgress
    from abps.study.records import StudyFolder

#: What workers said: (number of the worker, event), or nothing when it is gone.
Received = queue.Queue[tuple[int, dict[str, Any] | None]]


def share_cores(cores: Sequence[int], jobs: int | None, runs: int) -> list[list[int]]:
    """Cores for each job: no core belongs to two jobs, and none is left over.

    >>> share_cores([0, 1, 2, 3], 2, 10), share_cores([0, 1], None, 10), share_cores([0, 1], 8, 10)
    ([[0, 2], [1, 3]], [[0], [1]], [[0], [1]])
    """
    if jobs is not None and jobs < 1:
        raise RequestError(f"jobs={jobs}: choose at least 1")
    count = max(1, min(jobs or len(cores), len(cores), runs))
    return [list(cores[i::count]) for i in range(count)]


class _Worker:
    """A worker process, and the thread that hears it."""

    def __init__(self, number: int, received: Received) -> None:
        self.number = number
        self.run: PlannedRun | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        environment = dict(os.environ)
        environment["PYTHONPATH"] = import_path()
        # The engine has its own threads, one for each of the worker's cores.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
            environment[name] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "abps.study.workers.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True,
            start_new_session=True,
        )  # fmt: skip

        def hear() -> None:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                received.put((number, json.loads(line)))
            self.process.wait()
            received.put((number, None))

        threading.Thread(target=hear, daemon=True).start()

    def begin(self, root: Path, cores: Sequence[int]) -> None:
        """Tell the worker which study it works for, and on which cores."""
        self._tell({"study": str(root), "cores": list(cores)})

    def give(self, run: PlannedRun) -> None:
        """Hand a run to the worker."""
        self.run = run
        self._tell(asdict(run))

    def _tell(self, what: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it is gone will be heard
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def last_words(self) -> str:
        """What the worker wrote to its standard error."""
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace").strip()

    def end(self) -> None:
        """Stop the worker, whatever it is doing."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class LocalExecutor:
    """Computes runs in worker processes; they may get ready while the study is still being planned.

    jobs: processes at the same time; default: one per core.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs
        self._heard: Received = queue.Queue()
        self._ready: dict[int, _Worker] = {}

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._ready.values():
            worker.end()
        self._ready.clear()

    def get_ready(self, runs: int) -> None:
        """Start the workers for so many runs: importing what they need takes a few seconds."""
        for number, _ in enumerate(share_cores(available_cores(), self._jobs, runs)):
            self._ready[number] = _Worker(number, self._heard)

    def __call__(self, study: StudyFolder, todo: Sequence[PlannedRun], progress: StudyProgress) -> None:
        """Compute runs; failures are shown and noted in the study."""
        if not todo:
            return
        shares = share_cores(available_cores(), self._jobs, len(todo))
        progress.lanes(len(shares))
        # Those with most rounds first, so that no core waits long for another at the end; of these, runs on
        # the same folds together, so that a worker prepares them once.
        waiting = deque(sorted(todo, key=lambda run: (-run.config().stop.rounds, run.data, run.seed)))
        workers: dict[int, _Worker] = {}

        def start(number: int) -> None:
            ready = self._ready.pop(number) if number in self._ready else None
            workers[number] = ready or _Worker(number, self._heard)
            workers[number].begin(study.root, shares[number])

        try:
            for number in range(len(shares)):
                start(number)
            while workers:
                number, event = self._heard.get()
                worker = workers.get(number)
                if worker is None:
                    continue  # it had no more work, and was ended
                if event is None:  # the process is gone
                    del workers[number]
                    _worker_gone(study, worker, progress)
                    worker.end()
                    if waiting and worker.run is not None:
                        start(number)
                    elif waiting and not workers:
                        why = worker.last_words() or "no message"
                        raise RuntimeError(f"no worker process can start: {why}")
                    continue
                note(progress, worker.run, event)
                if event["event"] in ("ready", "done", "failed"):
                    if waiting:
                        worker.give(waiting.popleft())
                        progress.round(worker.run, 0, 1)  # type: ignore[arg-type]
                    else:
                        worker.run = None
                        del workers[number]
                        worker.end()
        finally:
            for worker in workers.values():
                worker.end()


def run_local(
    study: StudyFolder, todo: Sequence[PlannedRun], progress: StudyProgress, jobs: int | None = None
) -> None:
    """Compute runs in worker processes that are started now."""
    with LocalExecutor(jobs) as local:
        local(study, todo, progress)


def note(progress: StudyProgress, run: PlannedRun | None, event: dict[str, Any]) -> None:
    """Show an event of a run."""
    if run is None:
        return
    if event["event"] == "round":
        progress.round(run, event["round"], event["rounds"])
    elif event["event"] == "done":
        progress.done(
            run, math.nan if event["auroc"] is None else event["auroc"], event["vs_fedavg"], event["seconds"]
        )
    elif event["event"] == "failed":
        progress.failed(run, event["error"])


def _worker_gone(study: StudyFolder, worker: _Worker, progress: StudyProgress) -> None:
    """A worker died under its run (killed for memory, a crash in a library): note it and go on."""
    if worker.run is None:
        return
    code = worker.process.returncode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    error = f"the process that computed it ended with {how}"
    study.note_failure(worker.run, error, worker.last_words())
    progress.failed(worker.run, error)
