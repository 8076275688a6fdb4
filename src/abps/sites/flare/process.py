"""The processes of a participant: the engine's own, with what survival of faults and our promises need.

One runs from a kit until it is stopped, and starts another one for every job, which ends with it: nobody
would read what it sends, and the next process needs the site's store. (The engine asks for that, too, but has
loops that never check.) All take in no more than a limit. A job begins without sites that do not answer, once
more than half are there, and goes on without a site whose process fails. The relay looks up whoever
registers, or sends a heartbeat, in the authority's list, which may change while it runs.
"""

import logging
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from abps.sites.consent.kit import Membership
from abps.sites.coordinator.steps import enough

log = logging.getLogger("abps")

#: The engine's modules for the participants, and for the processes of their jobs.
SITE = "nvflare.private.fed.app.client.client_train"
RELAY = "nvflare.private.fed.app.server.server_train"
SITE_JOB = "nvflare.private.fed.app.client.worker_process"
RELAY_JOB = "nvflare.private.fed.app.server.runner_process"

#: The variable in which a participant passes its process id to what it starts.
PARTICIPANT = "ABPS_PARTICIPANT"

ORPHAN_SECONDS = 5.0  # seconds that an orphan gets to end in order
START_GRACE = 60  # seconds that the last sites get to begin a job, once more than half have
MODULE = "abps.sites.flare.process"  # this module, also where it is the main one


def main() -> None:
    """Prepare the engine in this process, and run its module, the first word."""
    engine = sys.argv.pop(1)
    limit_frames()
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # for a driver that no kit names: 12 MB
    if engine in (SITE, RELAY):
        os.environ[PARTICIPANT] = str(os.getpid())  # what is started here ends with this process
        launch_here()
        if engine == RELAY:
            guard(Membership(Path(sys.argv[sys.argv.index("-m") + 1])))
            go_on()
    elif engine in (SITE_JOB, RELAY_JOB):
        parent = int(os.environ.get(PARTICIPANT, os.getppid()))
        threading.Thread(target=_end_with, args=(parent,), name="abps-parent", daemon=True).start()
        without_torch()
        without_fortran()
        if engine == RELAY_JOB:
            begin_without()
    else:
        sys.exit(f"{engine} is no process of a participant")
    sys.argv[0] = engine
    runpy.run_module(engine, run_name="__main__", alter_sys=True)


def launch_here() -> None:
    for launcher in (ClientProcessJobLauncher, ServerProcessJobLauncher):

        def get_command(self: Any, job_meta: Any, fl_ctx: Any, plain: Any = launcher.get_command) -> str:
            return job_command(plain(self, job_meta, fl_ctx))

        launcher.get_command = get_command


def job_command(engine: str) -> str:
    """The engine's command for a job, run through this module."""
    for module in (SITE_JOB, RELAY_JOB):
        engine = engine.replace(f"-m {module}", f"-m {MODULE} {module}", 1)
    return engine


def without_torch() -> None:
    """Keep the engine from importing PyTorch: our messages are bytes, and it would double the process."""
    from nvflare.apis.impl.wf_comm_server import WFCommServer
    from nvflare.collab.runtime import controller, executor

    def no_import(module: str, name: str) -> tuple[None, bool]:
        return None, False

    controller.optional_import = executor.optional_import = no_import
    WFCommServer._cleanup_inflight_tensor_downloads = lambda self, fl_ctx: None


def without_fortran() -> None:
    """Keep SciPy, which copies every name of NumPy, from importing its Fortran and test tools: 9 MB."""
    import numpy as np

    names = [name for name in dir(np) if name not in ("f2py", "testing")]
    vars(np).update(__all__=[name for name in np.__all__ if name in names], __dir__=lambda: names)


def begin_without() -> None:
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


def guard(known: Membership) -> None:
    """Let the engine refuse members whose certificate is on the list."""
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.private.fed.server.client_manager import ClientManager
    from nvflare.private.fed.utils import identity_utils

    verifies = identity_utils.IdentityVerifier.verify_common_name
    lives = ClientManager.heartbeat
    serials: dict[str, int] = {}  # of the certificates of who has registered

    def refused(name: str) -> str | None:
        if known.now.has(serials.get(name, 0)) or name in known.now.expelled:
            return f"the certificate of {name} was revoked by this network's authority; ask the operator"
        return None

    def verify_common_name(
        self: Any, asserted_cn: str, nonce: str, asserter_cert: Any, *more: Any, **named: Any
    ) -> bool:
        done = verifies(self, asserted_cn, nonce, asserter_cert, *more, **named)
        serials[asserted_cn] = asserter_cert.serial_number
        why = refused(asserted_cn)
        if why:
            log.warning("%s may not register: %s", asserted_cn, why)
            raise identity_utils.InvalidAsserterCert(why)
        return bool(done)

    def heartbeat(self: Any, token: str, client_name: str, client_fqcn: str, fl_ctx: Any) -> bool:
        why = refused(client_name)
        if why is None:
            return bool(lives(self, token, client_name, client_fqcn, fl_ctx))
        with self.lock:
            self.clients.pop(token, None)
            gone = self.name_to_clients.pop(client_name, None)
        if gone is not None:
            log.warning("%s is not connected any more: %s", client_name, why)
        fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, why, sticky=False)
        return False

    identity_utils.IdentityVerifier.verify_common_name = verify_common_name
    ClientManager.heartbeat = heartbeat


def go_on() -> None:
    """Let a job go on without a site whose process has failed; the engine would end it for all."""
    from nvflare.apis.job_launcher_spec import JobReturnCode
    from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
    from nvflare.private.fed.server.fed_server import FederatedServer

    judge = FederatedServer.process_job_failure

    def process_job_failure(self: Any, request: Any) -> Any:
        payload = request.payload if isinstance(request.payload, dict) else {}
        code = payload.get(JobFailureMsgKey.CODE)
        if payload and code != JobReturnCode.SUCCESS:
            client = self.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
            name = "an unknown site" if client is None else client.name
            log.warning("the job goes on without %s, whose process has failed (%s)", name, code)
            # The engine checks who reports it, and records that this site is done; the others go on.
            request.payload = {**payload, JobFailureMsgKey.CODE: JobReturnCode.SUCCESS}
        return judge(self, request)

    FederatedServer.process_job_failure = process_job_failure


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


MOST = 64 << 20  # the most bytes of a frame, and of a message, at a participant
FILLS = 20.0  # seconds in which an empty measure fills
SENDERS = 10_000  # how many senders are remembered; more than any federation has
VARIABLE = "NVFLARE_STREAMING_MAX_BLOB_SIZE"  # what the engine reads its limit of a message from


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
    """Drops pieces of messages that are too long, or that come faster than a sender may send. The engine
    calls ``admit`` before it keeps a piece; None lets it pass."""

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self.most, self._now = most, now
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}  # by sender: bytes it may still send, and when
        self._warned: set[str] = set()

    def admit(self, message: Message) -> Message | None:
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
    if isinstance(payload, list):
        return sum(_length(part) for part in payload)
    try:
        return memoryview(payload).nbytes
    except TypeError:  # nothing, or a buffer of the engine's own
        return len(payload) if hasattr(payload, "__len__") else 0


if __name__ == "__main__":
    main()
