"""Runs on this machine: worker processes, each with cores of its own, that compute one run after another.

``python -m abps.study.workers`` reads runs from standard input, one JSON line each. The first line says for
which study, on which cores, and with which methods that have no module: {"study": FOLDER, "cores": [NUMBERS],
"own": PICKLED}. It answers on standard output, one JSON line per event, and ends when its standard input
closes, also in the middle of a run: when the study's process is killed, nothing goes on behind it.

What computes is imported where it is used: ``abps demo`` starts its workers first and imports meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from abps.core.errors import RequestError
from abps.machine import available_cores

if TYPE_CHECKING:
    from abps.data.federation import Federation
    from abps.methods.base import Method
    from abps.study.plan import PlannedRun
    from abps.study.progress import StudyProgress
    from abps.study.records import StudyFolder

#: An event of a run: {"event": "round" | "done" | "failed", …}.
Event = dict[str, Any]


# ---------------------------------------------------------------- what a worker does


class Runner:
    """Computes runs of one study; keeps the federation that it used last.

    own: configurations that only this process knows, sources: digests of their source, where only another
    process can read it.  given: federations that need not be read.
    """

    def __init__(
        self,
        root: Path,
        own: Mapping[str, Method] | None = None,
        given: Mapping[str, Federation] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        from abps.study.records import StudyFolder

        self.study = StudyFolder(root)
        self._own, self._sources = own or {}, sources or {}
        self._held: dict[str, Federation] = dict(given or {})

    def compute(self, run: PlannedRun, emit: Callable[[Event], None]) -> bool:
        """Compute and store one run; a failure is reported and noted, not raised."""
        from abps.study.plan import key_of
        from abps.study.records import read_federation, write_run

        try:
            config = run.config(self._own)
            content = run.identity(config, self._sources.get(run.method))
            if key_of(content) != run.key:
                raise RuntimeError("this run was planned by another version; ask for the comparison again")

            def progress(t: int, rounds: int, validation: float) -> None:
                emit({"event": "round", "round": t, "rounds": rounds})

            if run.data not in self._held:
                self._held = {run.data: read_federation(self.study.cache, run.data)}
            result = run.compute(self._held[run.data], config, progress)
            write_run(self.study.folder(run), result, content)
        except Exception as error:  # whatever a method does wrong must not end the study
            lines = str(error).strip().splitlines()
            first = lines[0] if lines else "no message"
            wrong_request = isinstance(error, RequestError)
            text = first if wrong_request else f"{type(error).__name__}: {first}"
            self.study.note_failure(run, text, traceback.format_exc(), wrong_request)
            emit({"event": "failed", "error": text})
            return False
        score = result.main.mean if result.main.scored_centers else None
        emit({"event": "done", "score": score, "seconds": result.seconds})
        return True


def import_path() -> str:
    """Where a worker finds this package and the modules that its study's process could import."""
    before = (Path(part).absolute() for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part)
    return os.pathsep.join(map(str, [Path(__file__).parents[2], *before, Path.cwd()]))


def keep_to(cores: list[int]) -> None:
    """Use these cores only; the engine starts one thread for each core it may use."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study's process decides when we end
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    waiting: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()

    def emit(event: Event) -> None:
        try:
            answers.write(json.dumps(event) + "\n")
        except BrokenPipeError:
            os._exit(0)

    from abps.study.plan import PlannedRun  # and with it the engine, while nobody waits for it

    first = json.loads(waiting.get())
    keep_to(first["cores"])
    own, sources = ({}, {}) if first["own"] is None else pickle.loads(bytes.fromhex(first["own"]))
    runner = Runner(Path(first["study"]), own, sources=sources)
    emit({"event": "ready"})
    while True:
        runner.compute(PlannedRun(**json.loads(waiting.get())), emit)


# ---------------------------------------------------------------- the processes


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
    def __init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        environment = dict(os.environ) | {"PYTHONPATH": import_path()}
        # The engine has its own threads, one for each of the worker's cores.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
            environment[name] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "abps.study.workers"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True,
            start_new_session=True,
        )  # fmt: skip

    def ask(self, what: dict[str, Any]) -> Iterator[Event]:
        """Write one line to the worker; what it answers, until it is done or gone."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # that it is gone shows when it does not answer
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            event = json.loads(line)
            yield event
            if event["event"] != "round":
                return
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        yield {"event": "gone", "error": f"the process that computed it ended with {how}"}

    def last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace").strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class LocalExecutor:
    """Computes runs in worker processes, by default one per core; they may get ready while the study is still
    being planned.  own: methods without a module of their own."""

    def __init__(self, jobs: int | None = None, own: Mapping[str, Method] | None = None) -> None:
        self._jobs = jobs
        self._own = own or {}
        self._workers: list[_Worker] = []
        self._stopped = False

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def get_ready(self, runs: int) -> None:
        """Start the workers for so many runs: importing what they need takes a few seconds."""
        while len(self._workers) < len(share_cores(available_cores(), self._jobs, runs)):
            self._workers.append(_Worker())

    def __call__(self, study: StudyFolder, todo: Sequence[PlannedRun], progress: StudyProgress) -> None:
        shares = share_cores(available_cores(), self._jobs, len(todo))
        progress.lanes(len(shares))
        # The longest first, so that no core waits for another at the end: models fitted at once, then those
        # with most rounds; of these, runs on the same folds together, so that a worker prepares them once.
        rounds = {run.key: run.config(self._own).stop.rounds for run in todo}
        order = sorted(todo, key=lambda run: (rounds[run.key] > 1, -rounds[run.key], run.data, run.seed))
        waiting, one_by_one, own = deque(order), threading.Lock(), _pickled(self._own)

        def lane(number: int) -> str:
            """Compute runs in one worker, or several if they die; returns why none can start."""
            while waiting and not self._stopped:
                if self._workers[number].process.poll() is not None:
                    self._workers[number] = _Worker()
                worker = self._workers[number]
                start = {"study": str(study.root), "cores": shares[number], "own": own}
                if [event["event"] for event in worker.ask(start)] != ["ready"]:
                    return worker.last_words() or "no message"
                while waiting and not self._stopped and worker.process.poll() is None:
                    with contextlib.suppress(IndexError):  # another lane took the last one
                        compute(worker, waiting.popleft())
            return ""

        def compute(worker: _Worker, run: PlannedRun) -> None:
            progress.round(run, 0, 1)
            for event in worker.ask(asdict(run)):
                with one_by_one:
                    if event["event"] == "gone" and not self._stopped:  # killed for memory, a library's crash
                        study.note_failure(run, event["error"], worker.last_words())
                        event["event"] = "failed"
                    note(progress, run, event)

        self.get_ready(len(todo))
        self._stopped = False
        lanes = ThreadPoolExecutor(len(shares))
        try:
            said = list(lanes.map(lane, range(len(shares))))
            if waiting:
                raise RuntimeError(f"no worker process can start: {said[0]}")
        finally:  # a lane ends when its worker does
            self._stopped = True
            for worker in self._workers:
                worker.process.kill()
            lanes.shutdown()
            self.__exit__()


def _pickled(own: Mapping[str, Method]) -> str | None:
    """Methods that other processes cannot import, and digests of their sources."""
    if not own:
        return None
    import cloudpickle

    from abps.study.plan import source_of

    sources = {name: source_of(type(method)) for name, method in own.items()}
    return cloudpickle.dumps((dict(own), {name: each for name, each in sources.items() if each})).hex()


def note(progress: StudyProgress, run: PlannedRun, event: Event) -> None:
    if event["event"] == "round":
        progress.round(run, event["round"], event["rounds"])
    elif event["event"] == "done":
        progress.done(run, math.nan if event["score"] is None else event["score"], event["seconds"])
    elif event["event"] == "failed":
        progress.failed(run, event["error"])


if __name__ == "__main__":
    serve()
