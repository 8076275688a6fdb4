"""What the engine does in a job's process and need not do: rest at the end, send what nobody waits for, load
PyTorch.

Known of NVIDIA FLARE 2.9, to which the package is bound; each of these changes one function of it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from abps.sites.flare import returning

#: Seconds that pending messages get when a job is over; the engine would rest for three.
REST = 0.3

#: Seconds between two questions of a site for its next task, once it has its last one.
SELDOM = 30.0

#: Set when a site has had its tasks: from then on the conductor calls it.
called = threading.Event()


def end_soon() -> None:
    """Let the process rest for a moment only, before it closes its lines."""
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    shut_down = MainProcessMonitor._start_shutdown

    def soon(shutdown_grace_time: float, cleanup_grace_time: float) -> None:
        shut_down(min(REST, shutdown_grace_time), cleanup_grace_time)

    MainProcessMonitor._start_shutdown = soon


def no_idle_receipts() -> None:
    """Send no receipt for a message that has arrived whole: its sender went on when it had sent it.

    The engine itself calls these receipts advisory; they were a third of all frames. Receipts within a long
    message, and all receipts of reliable ones, are sent as before.
    """
    from nvflare.fuel.f3.streaming.byte_receiver import RxTask

    send = RxTask._send_ack

    def send_if_awaited(self: Any, offset: int, seq: int) -> None:
        if self.reliable or not self.completed:
            send(self, offset, seq)

    RxTask._send_ack = send_if_awaited


def ask_seldom() -> None:
    """Let a site that is called by the conductor ask for no more tasks all the time."""
    from nvflare.private.fed.client.client_runner import ClientRunner

    def run(self: Any) -> None:
        returning.set_up_late(self)
        threading.Thread(target=self._send_job_heartbeat, daemon=True).start()
        alone = time.monotonic() + returning.ALONE
        while not self.run_abort_signal.triggered:
            with self.engine.new_context() as fl_ctx:
                interval, _ = self.fetch_and_run_one_task(fl_ctx)
            if not called.is_set() and time.monotonic() > alone:
                returning.set_up_late(self, told_nothing=True)
            until = time.monotonic() + (max(SELDOM, interval) if called.is_set() else interval)
            while time.monotonic() < until and not self.run_abort_signal.triggered:
                time.sleep(min(0.1, interval))

    ClientRunner._try_run = run


def no_tensors() -> None:
    """Do not load PyTorch to be ready for tensors in messages: there are none in ours, which are bytes."""
    from nvflare.apis.impl.wf_comm_server import WFCommServer
    from nvflare.collab.runtime import controller, executor

    def none(module: str, name: str) -> tuple[None, bool]:
        return None, False

    controller.optional_import = executor.optional_import = none
    # Nor to look, when a job is over, whether any are still on their way.
    WFCommServer._cleanup_inflight_tensor_downloads = lambda self, fl_ctx: None


def economise() -> None:
    """All of it, in this process."""
    no_tensors()
    end_soon()
    no_idle_receipts()
    ask_seldom()
