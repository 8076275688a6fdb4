"""The process of one job, at a site or at the relay: the engine's own, with our limits on what it takes in.

It ends with the participant's process that started it: nobody would read what it sends, and the next process
needs the site's store. The engine asks for that, too, but has loops that never check.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from typing import Any

from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

SITE = "nvflare.private.fed.app.client.worker_process"
RELAY = "nvflare.private.fed.app.server.runner_process"

#: The variable in which a participant passes its process id to what it starts.
PARTICIPANT = "ABPS_PARTICIPANT"

#: Seconds that an orphan gets to end in order.
ORPHAN_SECONDS = 5.0


#: This module, also where it is the main one.
MODULE = "abps.sites.flare.job_process"


def command(engine: str) -> str:
    """The engine's command for a job, run through this module."""
    for module in (SITE, RELAY):
        engine = engine.replace(f"-m {module}", f"-m {MODULE} {module}", 1)
    return engine


class SiteLauncher(ClientProcessJobLauncher):
    """Starts the process of a job at a site; kits name it."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """The engine's command, run through this module."""
        return command(super().get_command(job_meta, fl_ctx))


class RelayLauncher(ServerProcessJobLauncher):
    """Starts the process of a job at the relay; kits name it."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """The engine's command, run through this module."""
        return command(super().get_command(job_meta, fl_ctx))


def main() -> None:
    """Prepare the engine in this process, and run its module."""
    engine = sys.argv.pop(1)
    if engine not in (SITE, RELAY):
        sys.exit(f"{engine} runs no job")
    parent = int(os.environ.get(PARTICIPANT, os.getppid()))
    threading.Thread(target=_end_with, args=(parent,), name="abps-parent", daemon=True).start()
    from abps.sites.flare import returning
    from abps.sites.flare.intake import limit_frames

    limit_frames()
    without_torch()
    if engine == RELAY:
        returning.begin_without()
    else:
        returning.join_late()
    sys.argv[0] = engine
    runpy.run_module(engine, run_name="__main__", alter_sys=True)


def without_torch() -> None:
    """Keep the engine from importing PyTorch: our messages are bytes, and it would double the process."""
    from nvflare.apis.impl.wf_comm_server import WFCommServer
    from nvflare.collab.runtime import controller, executor

    def no_import(module: str, name: str) -> tuple[None, bool]:
        return None, False

    controller.optional_import = executor.optional_import = no_import
    WFCommServer._cleanup_inflight_tensor_downloads = lambda self, fl_ctx: None


def _end_with(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
