"""How a participant's process starts the process of a job (see :mod:`abps.sites.flare.job_process`).

Loading takes most of the time of a short job. So a participant keeps a spare: a process that has loaded
everything and waits to be told which job it is. When its job is over, the next spare is loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env

from abps.sites.flare import job_process

#: Set to 0 where no spare is wanted: it takes memory between jobs.
VARIABLE = "ABPS_SPARE"

#: Seconds after a job before the next spare is loaded: a participant that is stopped needs none, and where
#: several share a machine, the job's end and its report come first.
REST = 4.0

#: Seconds between two looks whether a job is over.
_LOOK = 1.0


class Spare:
    """A loaded process for the next job."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # The engine makes launchers in the processes of jobs, too, where nothing is launched.
        if os.environ.get(VARIABLE, "1") != "0" and job_process.MARK not in os.environ:
            self._load()

    def _load(self) -> None:
        command = [sys.executable, "-m", job_process.__name__, job_process.SPARE, self.module]
        with self._lock, contextlib.suppress(OSError):
            # The engine ends a job by ending the process group of its process: that must not be ours.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def take(self, command: str, environment: dict[str, str]) -> ProcessHandle | None:
        """The process of a job, told to run this command; None if there is no spare."""
        with self._lock:
            process, self._process = self._process, None
        words = shlex.split(command, True)
        if process is None or process.poll() is not None or process.stdin is None:
            return None
        if self.module not in words:
            process.kill()
            return None
        told = {"argv": words[words.index(self.module) :], "environment": environment}
        try:
            process.stdin.write(json.dumps(told).encode() + b"\n")
            process.stdin.close()
        except OSError:  # it has just died
            return None
        threading.Thread(target=self._next, args=(process,), daemon=True).start()
        return ProcessHandle(process=process)

    def _next(self, process: subprocess.Popen[bytes]) -> None:
        """Load another one when this job is over."""
        while process.poll() is None:
            time.sleep(_LOOK)
        time.sleep(REST)
        self._load()


def _launched(spare: Spare, launcher: Any, job_meta: dict[str, Any], fl_ctx: Any) -> ProcessHandle | None:
    credentials = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
    return spare.take(launcher.get_command(job_meta, fl_ctx), {**os.environ, **credentials})


class SiteLauncher(ClientProcessJobLauncher):
    """At a site."""

    def __init__(self) -> None:
        super().__init__()
        self._spare = Spare(job_process.SITE)

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """The engine's command, as ours."""
        return job_process.command(super().get_command(job_meta, fl_ctx))

    def launch_job(self, job_meta: Any, fl_ctx: Any) -> Any:
        """Hand the job to the spare, or start a process for it."""
        return _launched(self._spare, self, job_meta, fl_ctx) or super().launch_job(job_meta, fl_ctx)


class RelayLauncher(ServerProcessJobLauncher):
    """At the relay."""

    def __init__(self) -> None:
        super().__init__()
        self._spare = Spare(job_process.RELAY)

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """The engine's command, as ours."""
        return job_process.command(super().get_command(job_meta, fl_ctx))

    def launch_job(self, job_meta: Any, fl_ctx: Any) -> Any:
        """Hand the job to the spare, or start a process for it."""
        return _launched(self._spare, self, job_meta, fl_ctx) or super().launch_job(job_meta, fl_ctx)
