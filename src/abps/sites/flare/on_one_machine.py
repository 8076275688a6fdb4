"""A whole network on one machine: the relay and the sites, each a process of its own, and their end.

For rehearsals, measurements and tests. Only what was started here is ended, by its number, with what it
started. Everything that is waited for has a limit, and a sentence that says what was waited for and what the
process said last.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from abps.core.errors import RequestError
from abps.sites.flare import kits
from abps.sites.flare.submit import connected

#: Where a process of a network writes what it says, in its kit.
OUTPUT = "out.log"

#: Sites that are started together: on a few cores, too many processes would wait for each other too long.
AT_ONCE = 4

#: Seconds that processes get to end by themselves.
GRACE = 3.0

RELAY = "relay"

Say = Callable[[str], None]


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """The processes of a provisioned network whose relay is this machine.

    environment: more variables, by the participant's name.
    """

    def __init__(
        self,
        network: kits.Network,
        port: int,
        environment: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.network = network
        self.port = port
        self.environment = environment or {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._starter = _one_thread()

    def kit(self, name: str) -> Path:
        """The kit of the relay or of a site."""
        return self.network.relay if name == RELAY else self.network.sites[name]

    def start(self, name: str, kit: Path | None = None) -> None:
        """Start one participant; what it says goes into its kit.

        In a thread: an interrupt cannot come between a process and our knowing of it.
        """
        self._starter.submit(self._start, name, kit or self.kit(name)).result()

    def _start(self, name: str, kit: Path) -> None:
        command, environment = kits.command(kit)
        with (kit / OUTPUT).open("ab") as out:
            self.running[name] = subprocess.Popen(
                command,
                env={**environment, **self.environment.get(name, {})},
                cwd=kit,
                stdout=out,
                stderr=out,
                start_new_session=True,  # the terminal's interrupt reaches us alone, and we end them
            )

    def start_all(self, seconds: float, say: Say = lambda line: None) -> None:
        """Start the relay and then the sites, a few at a time, until all are connected."""
        until = time.monotonic() + seconds
        self.start(RELAY)
        while not self._listens():
            self._alive(RELAY)
            if time.monotonic() > until:
                raise self._late(RELAY, f"the relay does not listen on port {self.port}", seconds)
            time.sleep(0.2)
        say("the relay listens")
        names = list(self.network.sites)
        for first in range(0, len(names), AT_ONCE):
            some = names[first : first + AT_ONCE]
            for name in some:
                self.start(name)
            self.wait_for(some, until - time.monotonic())
            say(f"connected: {', '.join(some)}")

    def wait_for(self, names: Sequence[str], seconds: float) -> None:
        """Until all these sites are connected; a site that gave up in between is started again."""
        until = time.monotonic() + seconds
        while True:
            seen: list[str] = []
            with contextlib.suppress(RequestError):
                seen = connected(self.network.operator)
            waiting = [name for name in names if name not in seen]
            if not waiting:
                return
            self._alive(RELAY)
            if time.monotonic() > until:
                raise self._late(waiting[0], f"not connected: {', '.join(waiting)}", seconds)
            for name in waiting:
                # The engine's process gives up if its machine is too busy to connect in time.
                if name in self.running and self.running[name].poll() is not None:
                    self.start(name)
            time.sleep(0.5)

    def family(self, name: str) -> list[psutil.Process]:
        """A participant's process and the processes that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.running[name].pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self, name: str) -> None:
        """End one participant at once, with what it started, as a loss of power would."""
        family = self.family(name)
        _signal(family, signal.SIGKILL)
        self.running.pop(name).wait()

    def stop(self, grace: float = GRACE) -> None:
        """End everything that was started here: asked first, then at once."""
        self._starter.shutdown(cancel_futures=True)
        self._starter = _one_thread()
        families = [process for name in self.running for process in self.family(name)]
        if grace:
            _signal(families, signal.SIGTERM)
            _, families = psutil.wait_procs(families, timeout=grace)
        _signal(families, signal.SIGKILL)
        psutil.wait_procs(families, timeout=GRACE)
        for process in self.running.values():
            process.wait()
        self.running.clear()

    def log(self, name: str) -> str:
        """What a participant has said so far."""
        path = self.kit(name) / OUTPUT
        return path.read_text(errors="replace") if path.is_file() else ""

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(2.0)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _alive(self, name: str) -> None:
        code = self.running[name].poll()
        if code is not None:
            raise RequestError(f"{name} has ended with code {code}{self._last(name)}")

    def _late(self, name: str, what: str, seconds: float) -> RequestError:
        return RequestError(f"{what} after {seconds:.0f} s{self._last(name)}")

    def _last(self, name: str) -> str:
        lines = [line for line in self.log(name).splitlines() if line.strip()]
        last = f"; its last words: {lines[-1].strip()[:200]}" if lines else ""
        return f"{last} (see {self.kit(name) / OUTPUT})"


def _one_thread() -> ThreadPoolExecutor:
    """A thread that is there already: while one begins, nobody would wait for it after an interrupt."""
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    return pool


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextlib.contextmanager
def running(processes: Processes) -> Iterator[Processes]:
    """Processes that are all ended when the block is left, also by an interrupt or a request to end."""

    def ended(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = None
    with contextlib.suppress(ValueError):  # not in the main thread: nobody can send us a signal there
        before = signal.signal(signal.SIGTERM, ended)
    try:
        yield processes
    finally:
        processes.stop()
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def own_home(folder: Path) -> Iterator[None]:
    """The engine writes into its user's home folder: give it another one meanwhile."""
    before = os.environ.get("HOME")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = before
