"""The process of a job and the participant that started it: who ends with whom."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("nvflare")

#: Ends a job as the engine does when it is aborted.
ABORTED = """
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from abps.sites.flare import job_process, launchers
spare = launchers.Spare(job_process.SITE)
process = spare._process
ProcessHandle(process=process).terminate()
print(process.wait(30), "and the participant lives", flush=True)
"""

#: Starts the process of a job and dies without a word.
KILLED = """
import os, subprocess, sys
from abps.sites.flare import job_process
os.environ[job_process.PARTICIPANT] = str(os.getpid())
words = [sys.executable, "-m", job_process.__name__, job_process.SPARE, job_process.SITE]
print(subprocess.Popen(words, start_new_session=True).pid, flush=True)
os.kill(os.getpid(), 9)
"""


def participant(script: str) -> subprocess.Popen[str]:
    """A process that plays a participant; its standard input stays open."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ABPS_")}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=pipe, stdout=pipe, text=True,
        start_new_session=True,
    )  # fmt: skip


def test_a_job_that_is_aborted_leaves_its_participant_alone():
    """The engine kills a job's process group; a spare was in the participant's own, and took it along."""
    with participant(ABORTED) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "the participant lives" in said


def test_the_process_of_a_job_ends_when_its_participant_was_killed():
    """The engine's own loop told a participant that was gone forever, a thousand times a second."""
    with participant(KILLED) as process:
        assert process.stdout is not None
        orphan = psutil.Process(int(process.stdout.readline()))
        try:
            process.wait(60)
            orphan.wait(60)
        except psutil.TimeoutExpired:
            orphan.kill()
            raise
