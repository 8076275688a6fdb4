"""The process that computes runs of a study, one after another as they are handed to it.

``python -m abps.study.workers.worker`` reads runs from standard input, one JSON line each. The first line
says for which study, and on which cores: {"study": FOLDER, "cores": [NUMBERS]}. Until then the worker
imports what it will need. It answers on standard output, one JSON line per event, and ends when its standard
input closes, also in the middle of a run: when the study's process is killed, nothing goes on behind it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abps.data.federation import Federation
    from abps.methods.base import Method
    from abps.study.plan import PlannedRun

#: Called with an event: {"event": "round" | "done" | "failed", …}.
Emit = Callable[[dict[str, Any]], None]


class Runner:
    """Computes runs of one study; keeps the federation that it used last.

    own: configurations that only this process knows.  given: federations that need not be read.
    """

    def __init__(
        self,
        root: Path,
        own: Mapping[str, Method] | None = None,
        given: Mapping[str, Federation] | None = None,
    ) -> None:
        from abps.study.records import StudyFolder

        self.study = StudyFolder(root)
        self._own = own or {}
        self._held: dict[str, Federation] = dict(given or {})

    def federation(self, fingerprint: str) -> Federation:
        """A federation of the study, read once."""
        from abps.study.cache import read_federation

        if fingerprint not in self._held:
            self._held = {fingerprint: read_federation(self.study.cache, fingerprint)}
        return self._held[fingerprint]

    def compute(self, run: PlannedRun, emit: Emit) -> bool:
        """Compute and store one run; a failure is reported and noted, not raised."""
        from abps.core.errors import RequestError
        from abps.study.execute import computed
        from abps.study.plan import identity, key_of
        from abps.study.records import write_run

        try:
            config = run.config(self._own)
            how = (run.folds, run.attack, run.subgroups)
            content = identity(run.method, config, run.data, run.seed, *how)
            if key_of(content) != run.key:
                raise RuntimeError(
                    "this run was planned by another version of the program; ask for the comparison again"
                )

            def progress(t: int, rounds: int, validation: float) -> None:
                emit({"event": "round", "round": t, "rounds": rounds})

            federation = self.federation(run.data)
            result = computed(run, federation, config, progress)
            write_run(self.study.folder(run), result, content)
        except Exception as error:  # whatever a method does wrong must not end the study
            lines = str(error).strip().splitlines()
            first = lines[0] if lines else "no message"
            wrong_request = isinstance(error, RequestError)
            text = first if wrong_request else f"{type(error).__name__}: {first}"
            self.study.note_failure(run, text, traceback.format_exc(), wrong_request)
            emit({"event": "failed", "error": text, "request": wrong_request})
            return False
        emit(
            {
                "event": "done",
                "auroc": result.main.mean if result.main.scored_centers else None,
                "vs_fedavg": result.bytes.vs_fedavg,
                "rounds": result.rounds,
                "seconds": result.seconds,
            }
        )
        return True


def import_path() -> str:
    """Where a worker finds this package and the modules that its study's process could import."""
    before = [
        str(Path(part).absolute()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part
    ]
    return os.pathsep.join([str(Path(__file__).parents[3]), *before, str(Path.cwd())])


def keep_to(cores: list[int]) -> None:
    """Use these cores only; the engine starts one thread for each core it may use."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def own_cores(environment: Mapping[str, str] = os.environ) -> list[int]:
    """The cores of a Slurm task, where Slurm itself does not bind tasks to cores; empty elsewhere.

    Without binding every task of a node sees all its cores, and the engine would start as many threads.
    """
    asked = environment.get("SLURM_CPUS_PER_TASK", "")
    if not asked.isdigit() or not hasattr(os, "sched_getaffinity"):
        return []
    seen, count = sorted(os.sched_getaffinity(0)), int(asked)
    if count >= len(seen):
        return []
    first = int(environment.get("SLURM_ARRAY_TASK_ID", "0")) * count
    return [seen[(first + k) % len(seen)] for k in range(count)]


def serve() -> None:
    """Answer requests from standard input until it closes."""

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study's process decides when we end
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    waiting: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()

    def emit(event: dict[str, Any]) -> None:
        try:
            answers.write(json.dumps(event) + "\n")
        except BrokenPipeError:
            os._exit(0)

    from abps.study.plan import PlannedRun  # and with it the engine, while nobody waits for it

    first = json.loads(waiting.get())
    keep_to(first["cores"])
    runner = Runner(Path(first["study"]))
    emit({"event": "ready"})
    while True:
        runner.compute(PlannedRun(**json.loads(waiting.get())), emit)


def compute_task(root: str, key: str) -> bool:
    """Compute the planned run with this key: what a Slurm job calls. False if it failed."""
    from abps.study.records import StudyFolder

    keep_to(own_cores())
    study = StudyFolder(Path(root))
    run = next((r for r in study.runs() if r.key == key), None)
    if run is None:
        raise SystemExit(f"the study in {root} has no run {key}; ask for the comparison again")
    if study.look(run).result is not None:
        return True
    return Runner(Path(root)).compute(
        run, lambda event: print(json.dumps(event), file=sys.stderr, flush=True)
    )


if __name__ == "__main__":
    serve()
