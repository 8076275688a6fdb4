"""The process of one job, at a site or at the relay: the engine's own, with our limits on what it takes in.

It ends with the participant's process that started it: nobody would read what it sends, and the next process
needs the site's store. The engine asks for that, too, but has loops that never check. A job begins without
sites that do not answer, once more than half are there.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from abps.sites.coordinator.steps import enough

log = logging.getLogger("abps")

SITE = "nvflare.private.fed.app.client.worker_process"
RELAY = "nvflare.private.fed.app.server.runner_process"

#: The variable in which a participant passes its process id to what it starts.
PARTICIPANT = "ABPS_PARTICIPANT"

#: Seconds that an orphan gets to end in order.
ORPHAN_SECONDS = 5.0

#: Seconds that the last sites get to begin a job, once more than half have.
START_GRACE = 60

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
        return command(super().get_command(job_meta, fl_ctx))


class RelayLauncher(ServerProcessJobLauncher):
    """Starts the process of a job at the relay; kits name it."""

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        return command(super().get_command(job_meta, fl_ctx))


def main() -> None:
    """Prepare the engine in this process, and run its module."""
    engine = sys.argv.pop(1)
    if engine not in (SITE, RELAY):
        sys.exit(f"{engine} runs no job")
    parent = int(os.environ.get(PARTICIPANT, os.getppid()))
    threading.Thread(target=_end_with, args=(parent,), name="abps-parent", daemon=True).start()
    limit_frames()
    without_torch()
    if engine == RELAY:
        begin_without()
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


def begin_without() -> None:
    """Let a job begin without sites that stand still: how many are enough for a round the scheduler says."""
    from nvflare.collab.runtime.controller import CollabController
    from nvflare.collab.runtime.defs import SYNC_TASK_NAME

    wait = CollabController.broadcast_and_wait

    def broadcast_and_wait(
        self: Any, task: Any, fl_ctx: Any, targets: Any = None, min_responses: int = 1,
        wait_time_after_min_received: int = 0, abort_signal: Any = None,
    ) -> Any:  # fmt: skip
        known, ready = self.client_info, self.client_setup_status
        first = task.name == SYNC_TASK_NAME
        asked = sorted(known) if first else [name for name in sorted(known) if name not in self.late]
        done = wait(self, task, fl_ctx, asked, enough(len(asked)), START_GRACE, abort_signal)
        there = [name for name in asked if (known[name] is not None if first else ready[name])]
        if not there:
            return done  # the engine ends the job, and says why
        missing = [name for name in known if name not in there]
        if first:
            self.late = frozenset(missing)
            # All sites run the same class, so what one publishes all do.
            known.update(dict.fromkeys(missing, known[there[0]]))
        else:
            ready.update(dict.fromkeys(missing, True))
        for name in missing if first else [name for name in missing if name not in self.late]:
            log.warning("the job begins without %s, which does not answer", name)
        return done

    CollabController.broadcast_and_wait = broadcast_and_wait


def _end_with(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


#: The most bytes of a frame, and of a message, at a participant.
MOST = 64 << 20

#: Seconds in which an empty measure fills.
FILLS = 20.0

#: How many senders are remembered; more than any federation has.
SENDERS = 10_000

#: What the engine reads its limit of a message from.
VARIABLE = "NVFLARE_STREAMING_MAX_BLOB_SIZE"


def limit_frames(most: int = MOST) -> None:
    """Let the engine in this process take no longer frames; before it opens any line."""
    from nvflare.fuel.f3.drivers import aio_conn, aio_grpc_driver, grpc_driver, net_utils, socket_conn

    modules: tuple[Any, ...] = (net_utils, socket_conn, aio_conn, grpc_driver, aio_grpc_driver)
    for module in modules:
        module.MAX_FRAME_SIZE = most
    for driver in (grpc_driver, aio_grpc_driver):
        for k, (name, _) in enumerate(driver.GRPC_DEFAULT_OPTIONS):
            if name.endswith("_message_length"):
                driver.GRPC_DEFAULT_OPTIONS[k] = (name, most)


class Intake:
    """Drops pieces of messages that are too long, or that come faster than a sender may send.

    The engine calls ``admit`` before it keeps a piece. None lets the piece pass.
    """

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self.most, self._now = most, now
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}  # by sender: bytes it may still send, and when
        self._warned: set[str] = set()

    def admit(self, message: Message) -> Message | None:
        """Let a piece of a message pass, or not."""
        sender = str(message.get_header(MessageHeaderKey.ORIGIN, "")).split(".")[0]
        size = message.get_header(StreamHeaderKey.SIZE, 0)
        if type(size) is not int or not 0 <= size <= self.most:
            why = f"a message of {str(size)[:20]} bytes, at most {self.most}"
        elif not self._takes(sender, _length(message.payload)):
            why = f"more than {self.most} bytes in {FILLS:g} s"
        else:
            return None
        if sender not in self._warned and len(self._warned) < SENDERS:
            self._warned.add(sender)  # once for each sender: what is refused must not fill the log
            log.warning("dropped what came in the name of %s: %s", sender[:100], why)
        return Message()

    def _takes(self, sender: str, length: int) -> bool:
        now = self._now()
        with self._lock:
            if sender not in self._left and len(self._left) >= SENDERS:
                return False
            left, at = self._left.get(sender, (float(self.most), now))
            left = min(float(self.most), left + max(0.0, now - at) * self.most / FILLS)
            taken = length <= left
            self._left[sender] = (left - length if taken else left, now)
        return taken


def _length(payload: Any) -> int:
    if payload is None:
        return 0
    if isinstance(payload, list):
        return sum(_length(part) for part in payload)
    try:
        return memoryview(payload).nbytes
    except TypeError:  # a buffer of the engine's own
        return len(payload) if hasattr(payload, "__len__") else 0


if __name__ == "__main__":
    main()
