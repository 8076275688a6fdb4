"""The process of one job, at a site or at the relay: the engine's own, begun earlier and ended sooner.

While the engine connects and waits for its turn, what the job will need is loaded already. What the engine
does without need is left out (:mod:`abps.sites.flare.economy`).
"""

from __future__ import annotations

import importlib
import runpy
import sys
import threading

#: The engine's modules that run a job, and what of ours each will need.
NEEDS = {
    "nvflare.private.fed.app.client.worker_process": "abps.sites.site",
    "nvflare.private.fed.app.server.runner_process": "abps.sites.conductor",
}


def command(engine: str) -> str:
    """The engine's command for a job, as ours."""
    for module in NEEDS:
        engine = engine.replace(f"-m {module}", f"-m {__name__} {module}", 1)
    return engine


def main() -> None:
    """Load what the job needs, beside the engine's own start."""
    from abps.sites.flare.economy import economise
    from abps.sites.flare.intake import limit_frames

    engine = sys.argv.pop(1)
    if engine not in NEEDS:
        sys.exit(f"{engine} runs no job")
    threading.Thread(target=importlib.import_module, args=(NEEDS[engine],), daemon=True).start()
    economise()
    limit_frames()
    sys.argv[0] = engine
    runpy.run_module(engine, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
