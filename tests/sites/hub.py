"""Real sites as small processes around a hub: they can be killed like any process, and start in no time.

The hub stands where the engine's relay stands. Sites, stores and the scheduler are those of the product;
only the carrier of the bytes is another one.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from abps.data.table import own_table
from abps.sites.consent.agreement import Agreement
from abps.sites.node.site import Site
from abps.sites.node.transport import UnreachableError
from abps.sites.protocol.commands import DeclineCode, Failure
from abps.sites.store.store import Store

from .loopback import answer
from .network import Hospitals

#: Longer than anything takes; who is waited for that long fails the test.
LONG = 600.0

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])  # all is loaded once, not by every site


def _life(name: str, table: Path, roles, agreement: dict, store: Path, hub: Connection) -> None:
    """A site's process, until it is killed or the hub is gone."""
    agreed = Agreement.from_json(agreement)
    own = own_table(
        table, name, roles.label, agreed.book, patient=roles.patient, time=roles.time, outcome=roles.outcome,
        duration=roles.duration,
    )  # fmt: skip
    kept = Store.open(store, name, agreed.digest(), agreed.notes())
    saying = threading.Lock()
    waiting: dict[int, queue.Queue] = {}
    numbers = itertools.count()
    alone = threading.Event()

    def say(*words) -> None:
        with saying, contextlib.suppress(OSError):  # the hub may be gone
            hub.send(words)

    def send(peer: str, what: str, data: bytes) -> bytes:
        number = next(numbers)
        waiting[number] = answered = queue.Queue()
        say("send", number, peer, what, data)
        reply = None if alone.is_set() else answered.get(timeout=LONG)
        if reply is None:
            raise UnreachableError(peer)
        return reply

    site = Site(name, agreed, agreed.prepare(own), kept, send)

    def conducted(number: int, what: str, arguments: tuple) -> None:
        try:
            say("answer", number, True, answer(site, what, arguments))
        except Exception as error:
            say("answer", number, False, f"{type(error).__name__}: {error}")

    def received(number: int, peer: str, what: str, data: bytes) -> None:
        say("answer", number, True, site.receive(peer, what, data))

    work = ThreadPoolExecutor(8)
    say("answer", -1, True, None)
    try:
        while True:
            word, number, *rest = hub.recv()
            if word == "reply":
                waiting.pop(number).put(rest[0])
            else:
                work.submit(conducted if word == "ask" else received, number, *rest)
    except EOFError:  # the relay is gone: what is under way comes to its end, without an answer from anybody
        alone.set()
        for answered in list(waiting.values()):
            answered.put(None)
        work.shutdown()
        kept.close()


class RelayGone(Exception):
    """There is no scheduler any more."""


class Hub:
    """The processes of some sites, and the lines between them. ``passing`` sees every payload go by."""

    def __init__(self, given: Hospitals, agreement: Agreement, folder: Path) -> None:
        self.given, self.agreement, self.folder = given, agreement, folder
        self.passing: Callable[[str, str], None] = lambda sender, receiver: None
        self._processes: dict[str, multiprocessing.process.BaseProcess] = {}
        self._lines: dict[str, Connection] = {}
        self._saying: dict[str, threading.Lock] = {}
        self._open: dict[str, dict[int, queue.Queue]] = {}
        self._gone: set[str] = set()
        self._numbers = itertools.count()
        self._cut = False

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.sqlite"

    def start(self, *names: str) -> None:
        self._cut = False
        ready = {name: queue.Queue() for name in names}
        for name in names:
            here, there = _processes.Pipe()
            given = (name, self.given.tables[name], self.given.roles, self.agreement.to_json())
            process = _processes.Process(target=_life, args=(*given, self.path(name), there), daemon=True)
            process.start()
            there.close()
            self._gone.discard(name)
            self._processes[name], self._lines[name] = process, here
            self._saying[name], self._open[name] = threading.Lock(), {-1: ready[name]}
            threading.Thread(target=self._listen, args=(name, here), daemon=True).start()
        for name in names:
            assert ready[name].get(timeout=LONG) == (True, None)

    def alive(self, name: str) -> bool:
        return name in self._processes and self._processes[name].is_alive()

    def kill(self, name: str) -> None:
        """SIGKILL, whatever it is doing."""
        process = self._processes[name]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(LONG)
        assert process.exitcode == -signal.SIGKILL

    def cut(self) -> None:
        """The relay is gone, and the scheduler with it, whatever they were doing."""
        self._cut = True
        for line in self._lines.values():
            with socket.socket(fileno=os.dup(line.fileno())) as pipe, contextlib.suppress(OSError):
                pipe.shutdown(socket.SHUT_RDWR)

    def ended(self) -> None:
        """Every site's process has come to its end by itself."""
        for name, process in self._processes.items():
            process.join(LONG)
            assert process.exitcode == 0, (name, process.exitcode)

    def stop(self) -> None:
        for name in self.given.names:
            if self.alive(name):
                self.kill(name)

    def _listen(self, name: str, line: Connection) -> None:
        """Carry what a site says, until it is gone; then answer in its place."""
        try:
            while True:
                word, number, *rest = line.recv()
                if word == "answer":
                    self._open[name].pop(number).put(tuple(rest))
                else:
                    carry = threading.Thread(
                        target=self._carry, args=(name, line, number, *rest), daemon=True
                    )
                    carry.start()
        except (EOFError, OSError):
            self._gone.add(name)  # first: who asks from now on is told so
            open_ = self._open[name]
            while open_:
                open_.popitem()[1].put((False, "gone"))

    def _carry(self, sender: str, line: Connection, number: int, peer: str, what: str, data: bytes) -> None:
        self.passing(sender, peer)
        ok, reply = self._call(peer, "receive", sender, what, data)
        self.passing(peer, sender)
        if self._lines[sender] is line:  # not a new process of the same site
            self._say(sender, "reply", number, reply if ok else None)

    def _say(self, name: str, *words) -> bool:
        try:
            with self._saying[name]:
                self._lines[name].send(words)
            return True
        except OSError:
            return False

    def _call(self, name: str, word: str, *words) -> tuple[bool, object]:
        number, answered = next(self._numbers), queue.Queue()
        self._open[name][number] = answered
        if name in self._gone or not self._say(name, word, number, *words):
            return False, "gone"
        return answered.get(timeout=LONG)

    # The scheduler's line

    def ask(self, sites, what, *arguments, seconds):
        if self._cut:
            raise RelayGone
        answers, failures = {}, {}
        with ThreadPoolExecutor(max(1, len(sites))) as asking:
            told = {name: asking.submit(self._call, name, "ask", what, arguments) for name in sites}
        for name, future in told.items():
            ok, value = future.result()
            if ok:
                answers[name] = value
            else:
                failures[name] = Failure(DeclineCode.FAULT, str(value))
        return answers, failures

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()
