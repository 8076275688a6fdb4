"""Commands that a page started: they run in the background, can be stopped, and are found after a restart.
``python -m abps.app.jobs FOLDER NAME`` runs the command in FOLDER/NAME.json, in a session of its own that
outlives browser and server. Its output goes to NAME.log, its exit code to NAME.exit."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from abps import files

PATIENCE = 10.0  # seconds until a stopped command is killed


class JobState(StrEnum):
    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


def command_words(arguments: Sequence[str]) -> str:
    return shlex.join(["abps", *arguments])


def run_now(arguments: Sequence[str], folder: Path, module: str = "abps") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", module, *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, encoding="utf-8")


def last_sentence(output: str) -> str:
    """What a command said last, without its name."""
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("abps: ") if lines else "the command ended without a word"


@dataclass(frozen=True)
class Job:
    folder: Path
    name: str

    def file(self, suffix: str) -> Path:
        return self.folder / f"{self.name}.{suffix}"

    def start(self, arguments: Sequence[str]) -> None:
        if self.state is JobState.RUNNING:
            return
        self.file("exit").unlink(missing_ok=True)
        files.write_text(self.file("json"), json.dumps({"arguments": list(arguments)}))
        words = [sys.executable, "-m", "abps.app.jobs", str(self.folder), self.name]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        born = psutil.Process(process.pid).create_time()
        files.write_text(self.file("process"), json.dumps({"pid": process.pid, "born": born}))

    def stop(self) -> None:
        """Stop a command and everything that it started."""
        if (process := self._process()) is None:
            return
        family = [process, *process.children(recursive=True)]
        files.write_text(self.file("exit"), JobState.STOPPED)
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGTERM)
        for each in psutil.wait_procs(family, PATIENCE)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    @property
    def state(self) -> JobState:
        """Where the command stands; one whose process is gone without a word was stopped."""
        if self._process() is not None:
            return JobState.RUNNING
        if not self.file("json").exists():
            return JobState.ABSENT
        if not self.file("exit").exists():
            return JobState.STOPPED
        said = self.file("exit").read_text()
        return JobState(said) if said in set(JobState) else JobState.DONE if said == "0" else JobState.FAILED

    @property
    def arguments(self) -> list[str]:
        found: list[str] = json.loads(self.file("json").read_text())["arguments"]
        return found

    @property
    def log(self) -> str:
        """The end of what the command said, the last time that it ran."""
        try:
            with self.file("log").open("rb") as stream:
                stream.seek(max(0, self.file("log").stat().st_size - 20_000))
                return stream.read().decode(errors="replace").rpartition("$ abps ")[2].partition("\n")[2]
        except FileNotFoundError:
            return ""

    def _process(self) -> psutil.Process | None:
        """The job's process, if it is alive and not another one that got its number."""
        try:
            known = json.loads(self.file("process").read_text())
            process = psutil.Process(known["pid"])
            same = abs(process.create_time() - known["born"]) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return None


def main(folder: Path, name: str) -> None:
    """Run a job's command; the exit code is written when it ends by itself."""
    job = Job(folder, name)
    with job.file("log").open("a", encoding="utf-8") as log:
        log.write(f"$ {command_words(job.arguments)}\n")
        log.flush()
        words = [sys.executable, "-m", "abps", *job.arguments]
        code = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
    if not job.file("exit").exists():
        files.write_text(job.file("exit"), str(code))


if __name__ == "__main__":
    os.umask(0o077)  # tables of patients: for their owner alone
    main(Path(sys.argv[1]), sys.argv[2])
