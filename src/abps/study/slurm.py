"""Runs on a Slurm cluster: job arrays through submitit.

What is finished is read from the study's folder, which must lie on a file system that all nodes share.
submitit learns how jobs fare from Slurm's accounting database, which many sites do not run; so the queue
itself is asked (``squeue``, ``scontrol``), every question has a time limit, and waiting has a deadline.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abps import files
from abps.core.errors import RequestError
from abps.study.plan import PlannedRun
from abps.study.progress import StudyProgress, clock
from abps.study.records import StudyFolder
from abps.study.workers import Runner, import_path, keep_to

#: Seconds that one question to Slurm may take, and that Slurm may stay silent before we stop asking.
ANSWER_WITHIN = 20.0
SILENT_FOR = 300.0

#: Seconds that a result may take to appear on a shared file system after its job has left the queue.
LATE_BY = 10.0

#: Jobs in one array (Slurm's own default limit is 1001).
ARRAY = 500


@dataclass(frozen=True)
class Slurm:
    """What each job asks for, and how long to wait for all of them (minutes; None: as long as it takes)."""

    account: str | None = None
    partition: str | None = None
    minutes: int = 60
    memory_gb: float = 4.0
    cores: int = 1
    deadline: float | None = None

    def __post_init__(self) -> None:
        amounts = {"minutes": self.minutes, "memory": self.memory_gb, "cores": self.cores}
        for name, value in {**amounts, "deadline": self.deadline}.items():
            if value is not None and value <= 0:
                raise RequestError(f"slurm_{name}={value}: choose a number above 0")
        for name, text in (("account", self.account), ("partition", self.partition)):
            if text is not None and not re.fullmatch(r"[\w.,-]+", text):
                raise RequestError(f"slurm_{name}={text!r}: letters, digits and . _ - only")


class Silent(Exception):
    """Slurm did not answer."""


def ask(*command: str) -> str:
    """What a Slurm command prints; Silent if it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_WITHIN, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Silent(f"{command[0]} does not answer") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise Silent(f"{command[0]}: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def queue() -> dict[str, tuple[str, str]]:
    """Our jobs that are waiting or running: job -> (state, reason)."""
    lines = ask("squeue", "--noheader", "--me", "--array", "--format=%i|%T|%r").split("\n")
    found = [line.strip().split("|", 2) for line in lines if line.strip()]
    return {job: (state, reason) for job, state, reason in found}


def last_state(job: str) -> str:
    """How a job ended, as far as Slurm still knows."""
    try:
        text = ask("scontrol", "show", "job", job)
    except Silent:
        return "state unknown"
    found = dict(re.findall(r"(JobState|ExitCode)=(\S+)", text))
    return f"{found.get('JobState', 'state unknown')}, exit code {found.get('ExitCode', 'unknown')}"


def run_slurm(study: StudyFolder, todo: Sequence[PlannedRun], progress: StudyProgress, slurm: Slurm) -> None:
    """Submit what is not in the queue already, then wait and collect."""
    if not todo:
        return
    if shutil.which("sbatch") is None:
        raise RequestError("there is no sbatch here; run this on a login node, or use executor=local")
    jobs = _still_queued(study, todo)
    fresh = [run for run in todo if run.key not in jobs]
    for start in range(0, len(fresh), ARRAY):
        part = fresh[start : start + ARRAY]
        for run, job in zip(part, submit(study, part, slurm)):
            jobs[run.key] = job
        files.write_json(_jobs_file(study), jobs)
    progress.lanes(len(todo))
    if progress.console.is_terminal:
        progress.say(f"{len(fresh)} jobs submitted, {len(todo) - len(fresh)} were in the queue already")
    collect(study, todo, jobs, progress, slurm.deadline)


def submit(study: StudyFolder, runs: Sequence[PlannedRun], slurm: Slurm) -> list[str]:
    try:
        import submitit
    except ImportError as error:
        raise RequestError("executor=slurm needs submitit: `pip install 'abps[slurm]'`") from error

    root = study.root.resolve()
    # this Python, able to import on a node whatever can be imported here
    python = f"env PYTHONPATH={shlex.quote(import_path())} {shlex.quote(sys.executable)}"
    executor = submitit.SlurmExecutor(folder=root / "slurm", python=python)
    where = {"account": slurm.account, "partition": slurm.partition}
    executor.update_parameters(
        job_name="abps",
        time=slurm.minutes,
        mem=f"{max(1, round(slurm.memory_gb * 1024))}M",
        cpus_per_task=slurm.cores,
        array_parallelism=len(runs),
        **{name: value for name, value in where.items() if value is not None},
    )
    try:
        jobs = executor.map_array(compute_task, [str(root)] * len(runs), [run.key for run in runs])
    except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else "no reason given"
        raise RequestError(f"Slurm refused the jobs ({reason}); change what the jobs ask for") from error
    return [job.job_id for job in jobs]


def _jobs_file(study: StudyFolder) -> Path:
    return study.root / "slurm" / "jobs.json"


def _still_queued(study: StudyFolder, todo: Sequence[PlannedRun]) -> dict[str, str]:
    """Jobs of an earlier call that are still waiting or running: key -> job."""
    try:
        known = json.loads(_jobs_file(study).read_text(encoding="utf-8"))
        waiting = queue()
    except (OSError, ValueError):
        return {}
    except Silent as error:
        raise RequestError(f"Slurm does not answer ({error}); try again when it does") from error
    return {run.key: known[run.key] for run in todo if known.get(run.key) in waiting}


def collect(
    study: StudyFolder,
    todo: Sequence[PlannedRun],
    jobs: Mapping[str, str],
    progress: StudyProgress,
    deadline: float | None,
    pause: float = 2.0,
) -> None:
    """Wait until every run is stored, failed, or lost; or until the deadline (minutes) has passed."""
    open_runs = {run.key: run for run in todo}
    gone_since: dict[str, float] = {}
    began = received = time.monotonic()
    while open_runs:
        try:
            waiting = queue()
            received = time.monotonic()
        except Silent as error:
            waiting = None
            if time.monotonic() - received > SILENT_FOR:
                progress.say(
                    f"Slurm is silent for {clock(SILENT_FOR)} ({error}); the same command goes on from here"
                )
                return
        for key, run in list(open_runs.items()):
            result, why = study.look(run).result, study.failure(run)
            if result is not None:
                progress.done(run, result.main.mean, result.seconds)
            elif why:
                progress.failed(run, why)
            elif waiting is None or jobs[key] in waiting:
                gone_since.pop(key, None)
                if waiting is not None and waiting[jobs[key]][0] == "RUNNING":
                    progress.round(run, 0, 1)
                continue
            elif time.monotonic() - gone_since.setdefault(key, time.monotonic()) < LATE_BY:
                continue  # its result may still be on the way
            else:
                lost = f"Slurm job {jobs[key]} ended without a result ({last_state(jobs[key])})"
                study.note_failure(run, lost, _log(study, jobs[key]))
                progress.failed(run, lost)
            del open_runs[key]
        if waiting is not None:
            progress.note = _queue_state(waiting, jobs, open_runs)
        if open_runs and deadline is not None and time.monotonic() - began > 60 * deadline:
            progress.say(
                f"{len(open_runs)} jobs are not done after {clock(60 * deadline)} ({progress.note}); they "
                "stay in the queue, and the same command collects them"
            )
            return
        if open_runs:
            time.sleep(pause)


def _queue_state(
    waiting: Mapping[str, tuple[str, str]], jobs: Mapping[str, str], runs: Mapping[str, PlannedRun]
) -> str:
    ours = [waiting[jobs[key]] for key in runs if jobs[key] in waiting]
    running = sum(state == "RUNNING" for state, _ in ours)
    reasons = sorted({reason for state, reason in ours if state == "PENDING" and reason not in ("None", "")})
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"Slurm: {running} running, {len(ours) - running} waiting{why}"


def _log(study: StudyFolder, job: str) -> str:
    for path in (study.root / "slurm").glob(f"{job}_*_log.err"):
        return path.read_text(encoding="utf-8", errors="replace")[-4000:]
    return ""


def own_cores(environment: Mapping[str, str] = os.environ) -> list[int]:
    """The cores of a Slurm task, where Slurm does not bind tasks to cores (the engine would start a thread
    for each core of the node); empty elsewhere."""
    asked = environment.get("SLURM_CPUS_PER_TASK", "")
    if not asked.isdigit() or not hasattr(os, "sched_getaffinity"):
        return []
    seen, count = sorted(os.sched_getaffinity(0)), int(asked)
    if count >= len(seen):
        return []
    first = int(environment.get("SLURM_ARRAY_TASK_ID", "0")) * count
    return [seen[(first + k) % len(seen)] for k in range(count)]


def compute_task(root: str, key: str) -> bool:
    """Compute the planned run with this key: what a Slurm job calls. False if it failed."""
    keep_to(own_cores())
    study = StudyFolder(Path(root))
    run = next((r for r in study.read().runs if r.key == key), None)
    if run is None:
        raise SystemExit(f"the study in {root} has no run {key}; ask for the comparison again")
    if study.look(run).result is not None:
        return True
    return Runner(study.root).compute(run, lambda event: print(json.dumps(event), file=sys.stderr))
