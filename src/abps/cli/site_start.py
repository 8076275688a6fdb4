"""``abps site start``: the process of a relay or a site, watched if its own file says so."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from abps.cli.site_options import need_engine, say
from abps.core.errors import RequestError
from abps.sites.consent import sitefile

#: Seconds that the engine's process gets to end when it is asked to.
GRACE = 20.0


def register(site: typer.Typer) -> None:
    """Add the command."""
    site.command("start")(start)


def start(
    kit: Annotated[Path, typer.Argument(help="The startup kit of the relay or of a site.")],
) -> None:
    """Run the relay or a site from its kit, in the foreground, until it is stopped.

    With `"watch": {"port": 9100}` in the site's own file, health (/healthz), metrics (/metrics) and a status
    page (/) are served on 127.0.0.1 alone; with `"hook"`, a command is run when a round is stuck.

    Example: abps site start kits/north
    """
    need_engine()
    kit = kit.absolute()
    from abps.sites.consent import preflight
    from abps.sites.consent.kit import Role, participant_kit, read_certificate
    from abps.sites.flare import kits
    from abps.sites.node import monitor

    given = participant_kit(kit)
    if given.role is Role.SITE:
        sitefile.find(given.name, given.local)  # a site without a table is of no use
    paper = read_certificate(given.certificate)
    today = datetime.datetime.now(datetime.UTC)
    held = preflight.of_certificate("certificate", paper, today, preflight.ROTATE)
    if held.state is preflight.State.FAIL:
        raise RequestError(f"the certificate of {given.name} {held.sentence}")
    if held.state is preflight.State.WARN:
        say(f"the certificate of {given.name} {held.sentence}")
    watching = monitor.settings(given)
    command, environment = kits.command(kit)
    os.chdir(kit)
    if not watching.wanted:
        os.execve(command[0], command, environment)
    sys.exit(_watched(given, watching, command, environment))


def _watched(given: object, watching: sitefile.Watch, command: list[str], environment: dict[str, str]) -> int:
    """Run the engine's process and watch over it; its exit code."""
    from abps.sites.consent.kit import Kit
    from abps.sites.node.monitor import Monitor

    assert isinstance(given, Kit)
    engine = subprocess.Popen(command, env=environment)

    def ended(number: int, frame: object) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)
    try:
        with Monitor(given, watching, _page, lambda: engine.poll() is None) as watchman:
            if watchman.port is not None:
                say(f"http://127.0.0.1:{watchman.port}/ shows how {given.name} is")
            return engine.wait()
    finally:
        _end(engine)


def _end(engine: subprocess.Popen[bytes]) -> None:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(engine.pid).children(recursive=True)
        engine.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.wait(GRACE)
        engine.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _page(told: object, store: object, sentence: str) -> str:
    """The status page, made anew whenever somebody looks."""
    from abps.report.pages.site_page import Now, site_page
    from abps.sites.store.store import Store

    assert isinstance(told, dict) and isinstance(store, Store)
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return site_page(told, store.rounds(), now=Now(at, sentence))
