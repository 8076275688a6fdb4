"""What the engine does in a job's process and need not do: rest at the end, send what nobody waits for, load
PyTorch, keep a thread for every message of the last minute.

Known of NVIDIA FLARE 2.9, to which the package is bound; each of these changes one function of it.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable
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


class Later:
    """Things to do after some time, all by one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Planned]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, work: Callable[[], Any]) -> Planned:
        """Do something so many seconds from now, unless it is cancelled."""
        planned = Planned(work)
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), planned))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="abps-later", daemon=True)
                self._thread.start()
            self._changed.notify()
        return planned

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, planned = heapq.heappop(self._due)
            with contextlib.suppress(Exception):  # one that fails must not keep the others from being done
                planned.do()


class Planned:
    """One of them."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work

    def cancel(self) -> None:
        """Do not do it."""
        self._work = None

    def do(self) -> None:
        """Do it."""
        work = self._work
        if work is not None:
            work()


def one_clock() -> None:
    """Forget received messages by one thread; the engine has one for each, which waits for a minute."""
    from nvflare.fuel.f3.streaming.byte_receiver import RxTask

    later = Later()

    def schedule(self: Any, ttl: float | None = None) -> None:
        with self.stop_lock:
            if not self.cleanup_timer:
                seconds = self.completed_task_ttl if ttl is None else ttl
                self.cleanup_timer = later.after(seconds, self._remove_task)

    RxTask._schedule_remove_task = schedule


def economise() -> None:
    """All of it, in this process."""
    no_tensors()
    end_soon()
    no_idle_receipts()
    ask_seldom()
    one_clock()
