"""Runs on this machine: a few worker processes, each with cores of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import abps
from abps.core.errors import RequestError
from abps.study.plan import PlannedRun
from abps.study.progress import Board
from abps.study.store import Study


def available_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def share_cores(cores: Sequence[int], jobs: int | None, runs: int) -> list[list[int]]:
    """Cores for each job: no core belongs to two jobs, and none is left over.

    >>> share_cores([0, 1, 2, 3], 2, 10), share_cores([0, 1], None, 10), share_cores([0, 1], 8, 10)
    ([[0, 2], [1, 3]], [[0], [1]], [[0], [1]])
    """
    if jobs is not None and jobs < 1:
        raise RequestError(f"--jobs {jobs}: choose at least 1")
    count = max(1, min(jobs or len(cores), len(cores), runs))
    return [list(cores[i::count]) for i in range(count)]


class _Worker:
    """A worker process, and the thread that hears it."""

    def __init__(
        self,
        number: int,
        root: Path,
        cores: Sequence[int],
        heard: queue.Queue[tuple[int, dict[str, Any] | None]],
    ) -> None:
        self.number = number
        self.run: PlannedRun | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        environment = dict(os.environ)
        package = str(Path(abps.__file__).parents[1])
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = package if not before else f"{package}{os.pathsep}{before}"
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
            environment[name] = str(len(cores))
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "abps.study.worker", str(root),
                "--serve", "--cores", ",".join(map(str, cores)),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True,
            start_new_session=True,
        )  # fmt: skip

        def hear() -> None:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                heard.put((number, json.loads(line)))
            self.process.wait()
            heard.put((number, None))

        threading.Thread(target=hear, daemon=True).start()

    def give(self, run: PlannedRun) -> None:
        """Hand a run to the worker."""
        self.run = run
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(run.to_json()) + "\n")
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


def run_local(study: Study, todo: Sequence[PlannedRun], board: Board, jobs: int | None = None) -> None:
    """Compute runs in worker processes; failures are told to the board and noted in the study."""
    if not todo:
        return
    shares = share_cores(available_cores(), jobs, len(todo))
    board.lanes(len(shares))
    # Those with most rounds first: at the end, no core should have to wait long for another.
    waiting = deque(sorted(todo, key=lambda run: -run.config().stop.rounds))
    heard: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    workers: dict[int, _Worker] = {}
    try:
        for number, cores in enumerate(shares):
            workers[number] = _Worker(number, study.root, cores, heard)
        while workers:
            number, event = heard.get()
            worker = workers.get(number)
            if worker is None:
                continue  # it had no more work, and was ended
            if event is None:  # the process is gone
                del workers[number]
                _worker_gone(study, worker, board)
                worker.end()
                if waiting and worker.run is not None:
                    workers[number] = _Worker(number, study.root, shares[number], heard)
                elif waiting and not workers:
                    raise RuntimeError(f"no worker process can start: {worker.last_words() or 'no message'}")
                continue
            _note(board, worker.run, event)
            if event["event"] in ("ready", "done", "failed"):
                if waiting:
                    worker.give(waiting.popleft())
                    board.round(worker.run, 0, 1)  # type: ignore[arg-type]
                else:
                    worker.run = None
                    del workers[number]
                    worker.end()
    finally:
        for worker in workers.values():
            worker.end()


def _note(board: Board, run: PlannedRun | None, event: dict[str, Any]) -> None:
    if run is None:
        return
    if event["event"] == "round":
        board.round(run, event["round"], event["rounds"])
    elif event["event"] == "done":
        board.done(run, event["auroc"], event["vs_fedavg"], event["seconds"])
    elif event["event"] == "failed":
        board.failed(run, event["error"])


def _worker_gone(study: Study, worker: _Worker, board: Board) -> None:
    """A worker died under its run (killed for memory, a crash in a library): note it and go on."""
    if worker.run is None:
        return
    code = worker.process.returncode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    error = f"the process that computed it ended with {how}"
    study.note_failure(worker.run, error, worker.last_words())
    board.failed(worker.run, error)
