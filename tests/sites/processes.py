"""A provisioned network of real processes on this machine's loopback address."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

from abps.core.errors import RequestError
from abps.sites.flare import kits
from abps.sites.flare.recipe import Waits
from abps.sites.flare.submit import Outcome, connected, submit
from abps.sites.sitefile import SiteFile
from abps.sites.store import Store

from .network import Hospitals

#: The longest that anything is waited for; the machine may be busy with other things.
LONG = 420.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """The relay and the sites, each a process of its own, from kits that were provisioned here."""

    def __init__(self, folder: Path, given: Hospitals, spy: bool = False) -> None:
        self.given = given
        self.folder = folder
        self.port = free_port()
        self.network = kits.provision(folder / "kits", given.names, "localhost", self.port)
        self.spy = folder / "spy" if spy else None
        self.running: dict[str, subprocess.Popen] = {}
        for name in given.names:
            self.site_file(name).write(self.network.sites[name] / "local")

    def site_file(self, name: str) -> SiteFile:
        roles = self.given.roles
        return SiteFile(
            name,
            str(self.given.tables[name]),
            roles.label,
            str(self.folder / "stores" / name),
            roles.patient,
            roles.time,
            allow=("rotation",),
        )

    def start(self, name: str, kit: Path | None = None) -> None:
        kit = kit or (self.network.relay if name == "relay" else self.network.sites[name])
        command, environment = kits.command(kit)
        foreign = str(Path(__file__).parents[1] / "foreign")
        environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], foreign])
        if name == "relay" and self.spy is not None:
            environment["RELAY_SPY"] = str(self.spy)
            spy = str(Path(__file__).with_name("relay_spy"))
            environment["PYTHONPATH"] = os.pathsep.join([spy, environment["PYTHONPATH"]])
        with (kit / "out.log").open("ab") as out:
            self.running[name] = subprocess.Popen(
                command, env=environment, cwd=kit, stdout=out, stderr=out, start_new_session=True
            )

    def start_all(self) -> None:
        self.start("relay")
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.2)
        for name in self.given.names:
            self.start(name)
        self.wait_for(self.given.names)

    def wait_for(self, names) -> None:
        """Until all these sites are connected, as themselves and not as a memory of the relay's."""
        until = time.monotonic() + LONG
        seen: list[str] = []
        while time.monotonic() < until:
            try:
                seen = connected(self.network.operator)
            except RequestError:
                seen = []
            if set(names) <= set(seen):
                return
            time.sleep(1.0)
        raise AssertionError(f"connected are {seen}, expected {names}")

    def run(self, agreement, rounds: int, waits: Waits | None = None) -> Outcome:
        waits = waits or Waits(call=8.0, sign=8.0)
        return submit(self.network.operator, agreement, rounds, 2, waits, wait=LONG)

    def kill(self, name: str) -> None:
        """SIGKILL of a site's process and of the job process that it started."""
        parent = self.running.pop(name)
        family = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        parent.wait()

    def stop(self) -> None:
        for name in list(self.running):
            self.kill(name)

    def store(self, name: str, study: str = "test") -> Store:
        return Store.look(self.site_file(name).store_of(study))

    def log(self, name: str) -> str:
        kit = self.network.relay if name == "relay" else self.network.sites[name]
        return (kit / "out.log").read_text(errors="replace")
