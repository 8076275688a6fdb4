"""The process of one job, at a site or at the relay: the engine's own, begun earlier and ended sooner.

While the engine connects and waits for its turn, what the job will need is loaded already. What the engine
does without need is left out (:mod:`abps.sites.flare.economy`). A spare has loaded everything, and waits to
be told its job (:mod:`abps.sites.flare.launchers`).

It ends with the participant's process that started it: nobody would hear what it says, and the site's store
is wanted by the next one. The engine asks for that, too, but has loops that never look.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import threading
import time

SITE = "nvflare.private.fed.app.client.worker_process"
RELAY = "nvflare.private.fed.app.server.runner_process"

#: The engine's modules that run a job, and what of ours each will need.
NEEDS = {SITE: "abps.sites.node.site", RELAY: "abps.sites.coordinator.scheduler"}

#: The word by which a process is a spare; and the mark of a job's process, for what it starts.
SPARE = "spare"
MARK = "ABPS_JOB_PROCESS"

#: The variable by which a participant tells its number to what it starts.
PARTICIPANT = "ABPS_PARTICIPANT"

#: Seconds that an orphan gets to end in order.
LAST_WORDS = 5.0


def command(engine: str) -> str:
    """The engine's command for a job, as ours."""
    for module in NEEDS:
        engine = engine.replace(f"-m {module}", f"-m {__name__} {module}", 1)
    return engine


def main() -> None:
    """Load what the job needs, beside the engine's own start."""
    os.environ[MARK] = "1"
    parent = int(os.environ.get(PARTICIPANT, os.getppid()))
    threading.Thread(target=_end_with, args=(parent,), name="abps-parent", daemon=True).start()
    if sys.argv[1] == SPARE:
        engine = _told(sys.argv[2])
    else:
        engine = sys.argv.pop(1)
        if engine not in NEEDS:
            sys.exit(f"{engine} runs no job")
        threading.Thread(target=importlib.import_module, args=(NEEDS[engine],), daemon=True).start()
    from abps.sites.flare import short_headers
    from abps.sites.flare.economy import economise
    from abps.sites.flare.intake import limit_frames
    from abps.sites.flare.returning import begin_without

    economise()
    if engine == RELAY:
        begin_without()
    limit_frames()
    short_headers.install()
    sys.argv[0] = engine
    runpy.run_module(engine, run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(LAST_WORDS)
    os._exit(1)


def _told(engine: str) -> str:
    """Load everything, and wait to be told which job this is; ends if nobody is there to tell it."""
    if engine not in NEEDS:
        sys.exit(f"{engine} runs no job")
    for module in (engine, NEEDS[engine], "abps.sites.flare.app", "abps.data.table"):
        importlib.import_module(module)
    del sys.modules[engine]  # it runs as the main module soon
    gc.collect()
    gc.freeze()  # what is loaded stays, and need not be looked through again
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    told = json.loads(line)
    os.environ.update(told["environment"])
    os.environ[MARK] = "1"
    sys.argv[1:] = told["argv"][1:]
    return engine


if __name__ == "__main__":
    main()
