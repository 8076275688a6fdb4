"""Health and metrics of a participant on loopback, and a warning when a round is stuck.

It reads the status file of a job (:mod:`.status_file`), the site's stores and its certificate, and changes
nothing. The address is 127.0.0.1 and nothing else; without a port nothing listens.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import json
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abps.core.errors import RequestError
from abps.sites.consent import sitefile
from abps.sites.consent.kit import Kit, read_certificate
from abps.sites.consent.preflight import WARN_DAYS, Check, State, days_left
from abps.sites.consent.sitefile import Watch
from abps.sites.node import status
from abps.sites.node.status_file import STEPS, StepStatus, read_status
from abps.sites.store.store import Store

log = logging.getLogger("abps.watch")

HOST = "127.0.0.1"

#: Seconds between two looks, and that a hook gets to run.
LOOK, HOOK = 5.0, 60.0

#: The relay's own settings; it has no site's file.
RELAY_FILE = "abps-relay.json"

#: Makes the status page of a study from a site's stores: (summary, store, sentence) -> HTML.
Page = Callable[[Mapping[str, Any], Store, str], str]


def settings(kit: Kit) -> Watch:
    """How this participant is to be watched."""
    if kit.role == "site":
        return sitefile.find(kit.name, kit.local).watch
    path = kit.local / RELAY_FILE
    if not path.is_file():
        return Watch()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))["watch"]
        return Watch.from_json(data)
    except (ValueError, TypeError, KeyError) as error:
        raise RequestError(f"{path} cannot be read ({error}); write {{'watch': {{'port': 9100}}}}") from error


@dataclass(frozen=True)
class Health:
    """Whether all is well, and a sentence for each thing that is not."""

    now: StepStatus | None
    days: float
    troubles: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.troubles

    @property
    def sentence(self) -> str:
        """How the participant is, in words."""
        if self.troubles:
            return " ".join(f"{trouble}." for trouble in self.troubles)
        if self.now is None or self.now.step == "done":
            return "No job runs here now."
        what = STEPS.get(self.now.step, self.now.step)
        return f"Round {self.now.round} of {self.now.study}: {what}, for {self.now.seconds:.0f} s."


def health(kit: Kit, stuck_seconds: float, alive: bool = True) -> Health:
    """How a participant is.  alive: whether the engine's process runs."""
    troubles = [] if alive else ["the engine's process does not run"]
    days = float("nan")
    try:
        days = days_left(read_certificate(kit.certificate), datetime.datetime.now(datetime.UTC))
        if days < 0:
            troubles.append(f"the certificate ended {-days:.0f} days ago")
    except RequestError as error:
        troubles.append(str(error))
    now = read_status(kit.local)
    if now is not None and now.step != "done":
        if not now.alive:
            troubles.append(f"the job of {now.study} ended in the midst of round {now.round}")
        elif now.seconds > stuck_seconds:
            troubles.append(stuck(now))
    return Health(now, days, tuple(troubles))


def stuck(now: StepStatus) -> str:
    """A sentence about a step that lasts too long."""
    whom = f" by {', '.join(now.waiting)}" if now.waiting else ""
    what = STEPS.get(now.step, now.step)
    return f"round {now.round} of {now.study} is stuck: {what}{whom} for {now.seconds:.0f} s"


def metrics(kit: Kit, seen: Health) -> str:
    """What Prometheus reads: of this participant, and of every study at a site."""
    lines = [
        "# HELP abps_up Whether the engine's process runs and nothing is wrong.",
        "# TYPE abps_up gauge",
        f"abps_up {int(seen.well)}",
        "# HELP abps_certificate_days Days until the participant's certificate ends.",
        "# TYPE abps_certificate_days gauge",
        f"abps_certificate_days {seen.days:.3f}",
    ]
    if seen.now is not None:
        running = seen.now.step != "done"
        label = _labels(study=seen.now.study, step=seen.now.step)
        lines += [
            "# HELP abps_step_seconds How long the present step has lasted (0: no job runs).",
            "# TYPE abps_step_seconds gauge",
            f"abps_step_seconds{label} {seen.now.seconds if running else 0:.3f}",
        ]
    studies = [status.summary_at(path) for path in stores(kit)]
    for name, kind, words, values in _families(studies):
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(**labels)} {value:g}" for labels, value in values]
    return "\n".join(lines) + "\n"


Sample = tuple[dict[str, str], float]


def _families(studies: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """The metrics of studies: name, kind, what it is, and its samples."""
    yield (
        "abps_round", "gauge", "The last round that the site has finished.",
        [({"study": s["study"]}, s["round"]) for s in studies],
    )  # fmt: skip
    yield (
        "abps_validation_auroc", "gauge", "AUROC on the site's validation rows after its last round.",
        [({"study": s["study"]}, s["validation_auroc"])
         for s in studies if s["validation_auroc"] is not None],
    )  # fmt: skip
    yield (
        "abps_partners", "gauge", "Partners in the last round.",
        [({"study": s["study"]}, len(s["partners"])) for s in studies],
    )  # fmt: skip
    yield (
        "abps_rests_total", "counter", "Rounds without an exchange, by cause.",
        [({"study": s["study"], "cause": why}, n) for s in studies for why, n in s["rests"].items()],
    )  # fmt: skip
    yield (
        "abps_sent_bytes_total", "counter", "Bytes that left the site, by kind.",
        [({"study": s["study"], "kind": kind}, size)
         for s in studies for kind, size in s["bytes_sent"].items() if kind != "total"],
    )  # fmt: skip
    yield (
        "abps_refusals_total", "counter", "Messages of peers that were refused, by reason.",
        [({"study": s["study"], "peer": r["peer"], "reason": r["reason"]}, r["count"])
         for s in studies for r in s["refused"]],
    )  # fmt: skip


def _labels(**values: str) -> str:
    safe = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for k, v in values.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in safe.items()) + "}"


def stores(kit: Kit) -> list[Path]:
    """The stores of a site's studies."""
    if kit.role != "site":
        return []
    with contextlib.suppress(RequestError):
        return sorted(Path(sitefile.find(kit.name, kit.local).store).glob("*.sqlite"))
    return []


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers questions that change nothing."""

    server: _Server
    timeout = 10.0

    def do_GET(self) -> None:
        """The three pages."""
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._answer(403, "text/plain", "ask for it on the loopback address\n")
            return
        path = self.path.partition("?")[0]
        try:
            found = self.server.monitor.answer(path)
        except RequestError as error:
            found = (500, "text/plain", f"{error}\n")
        self._answer(*(found or (404, "text/plain", "there are /, /healthz and /metrics\n")))

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Who looks is not written down."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, monitor: Monitor, port: int) -> None:
        self.monitor = monitor
        super().__init__((HOST, port), _Handler)


class Monitor:
    """Looks at a participant from time to time, and answers who asks."""

    def __init__(
        self,
        kit: Kit,
        watch: Watch,
        page: Page | None = None,
        alive: Callable[[], bool] = lambda: True,
        look: float = LOOK,
    ) -> None:
        self.kit, self.watch, self.page, self.alive, self.look = kit, watch, page, alive, look
        self.port: int | None = None
        self._told: tuple[str, int, str] | None = None
        self._warned = ""
        self._ended = threading.Event()
        self._server: _Server | None = None

    def __enter__(self) -> Monitor:
        if self.watch.port is not None:
            try:
                self._server = _Server(self, self.watch.port)
            except OSError as error:
                why = error.strerror or str(error)
                raise RequestError(f"nothing can listen on {HOST}:{self.watch.port}: {why}") from error
            self.port = int(self._server.server_address[1])
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._walk, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def answer(self, path: str) -> tuple[int, str, str] | None:
        """(status, kind, text) for a path; None if there is no such page."""
        seen = health(self.kit, self.watch.stuck_seconds, self.alive())
        if path == "/healthz":
            return (200 if seen.well else 503), "text/plain", f"{seen.sentence}\n"
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4", metrics(self.kit, seen)
        if path == "/" and self.page is not None:
            return 200, "text/html", self._page(seen)
        return None

    def _page(self, seen: Health) -> str:
        found = stores(self.kit)
        if not found or self.page is None:
            return f"<!doctype html><title>{self.kit.name}</title><p>{_escaped(seen.sentence)}</p>\n"
        last = max(found, key=lambda path: path.stat().st_mtime)
        store = Store.look(last)
        try:
            return self.page(status.summary(store), store, seen.sentence)
        finally:
            store.close()

    def _walk(self) -> None:
        while not self._ended.wait(self.look):
            try:
                self.look_once()
            except Exception:
                log.exception("internal error of the monitor")

    def look_once(self) -> None:
        """Say once of a step that it lasts too long, and once a day that the certificate will end."""
        seen = health(self.kit, self.watch.stuck_seconds, self.alive())
        now = seen.now
        if now is not None and now.step != "done" and now.alive and now.seconds > self.watch.stuck_seconds:
            step = (now.study, now.round, now.step)
            if step != self._told:
                self._told = step
                log.warning("%s", stuck(now))
                self._call(now)
        today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
        if seen.days < WARN_DAYS and today != self._warned:
            self._warned = today
            log.warning("the certificate of %s ends in %.0f days; have it rotated", self.kit.name, seen.days)

    def _call(self, now: StepStatus) -> None:
        """Run the site's own command about a stuck round."""
        if not self.watch.hook:
            return
        seen = {
            "ABPS_STUDY": now.study,
            "ABPS_ROUND": str(now.round),
            "ABPS_STEP": now.step,
            "ABPS_WAITING": ",".join(now.waiting),
            "ABPS_SECONDS": f"{now.seconds:.0f}",
            "ABPS_SENTENCE": stuck(now),
        }
        try:
            variables = {**os.environ, **seen}
            done = subprocess.run(list(self.watch.hook), env=variables, timeout=HOOK, check=False)
            if done.returncode:
                log.warning("the hook %s ended with code %d", self.watch.hook[0], done.returncode)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("the hook %s could not be run: %s", self.watch.hook[0], error)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def diagnose(kit: Kit, after: float) -> Iterator[Check]:
    """What a job here is waiting for, and since when; a step longer than ``after`` seconds fails."""
    now = read_status(kit.local)
    if kit.role == "operator":
        yield Check("job", State.WARN, "an operator's kit runs no job; ask at the relay or at a site")
        return
    if now is None:
        yield Check("job", State.OK, "no job has run from this kit yet")
        return
    what = STEPS.get(now.step, now.step)
    where = (
        f"study {now.study}, round {now.round}" if now.round else f"study {now.study}, before its first round"
    )
    if now.step == "done":
        yield Check("job", State.OK, f"{where}: the last job ended at {now.since}")
    elif not now.alive:
        seen = f"{where}: the process of the job is gone, in the midst of {what}, since {now.since} or later"
        yield Check("job", State.FAIL, f"{seen}; submit the job again")
    else:
        whom = f" by {', '.join(now.waiting)}" if now.waiting else ""
        seen = f"{where}: {what}{whom} for {now.seconds:.0f} s, since {now.since}"
        state = State.FAIL if now.seconds > after else State.OK
        hint = "; look at the logs there" if state is State.FAIL else ""
        yield Check("job", state, f"{seen}{hint}")
