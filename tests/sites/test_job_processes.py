"""The process of a job and the participant that started it: who ends with whom."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("nvflare")

#: The process of a job, whose engine never ends by itself.
JOB = """
import runpy, sys, time
from abps.sites.flare import process
runpy.run_module = lambda *words, **more: time.sleep(600)
sys.argv[1:] = [process.SITE_JOB]
process.main()
"""

#: Starts the process of a job and dies without a word.
KILLED = """
import os, subprocess, sys
from abps.sites.flare import process
os.environ[process.PARTICIPANT] = str(os.getpid())
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True).pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_process_of_a_job_ends_when_its_participant_was_killed():
    """The engine's own loop told a participant that was gone forever, a thousand times a second."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ABPS_")}
    words = [sys.executable, "-c", KILLED, JOB]
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        orphan = psutil.Process(int(process.stdout.readline()))
        try:
            process.wait(60)
            orphan.wait(60)
        except psutil.TimeoutExpired:
            orphan.kill()
            raise


@pytest.mark.parametrize("engine", ["SITE_JOB", "RELAY_JOB"])
def test_jobs_run_through_our_module(engine):
    from abps.sites.flare import process

    module = getattr(process, engine)
    words = process.job_command(f"python3 -u -m {module} -m /kit -n job").split()
    assert words[3:5] == ["abps.sites.flare.process", module]
    ended = subprocess.run(
        [sys.executable, "-m", "abps.sites.flare.process", "os"], capture_output=True, text=True
    )
    assert ended.returncode == 1 and "os is no process" in ended.stderr
