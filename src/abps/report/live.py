"""The report of a study while it runs: on this machine alone, to be read only.

The server listens on the loopback address and answers two addresses; everything else is not found. It reads
what the study's folder holds and writes nothing. A page may load nothing at all but itself: the policy that
stands in the page goes with the answer too, and a request that names another host is refused, so that no
other page in the same browser can read this one.
"""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

from abps.core.errors import RequestError
from abps.report.build import parts_of, section_of
from abps.report.pages.document import policy, render
from abps.report.pages.study_page import page
from abps.study.compare import load_study

#: The only address that is served.
HOST = "127.0.0.1"
#: Seconds until an open page asks again, and that a reader may take.
AGAIN, PATIENCE = 10, 20
ADDRESSES = ("/", "/report.html")


class LiveReport:
    """The page of a study as far as it is; made anew only when more is finished."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: tuple[int, str] | None = None

    def page(self) -> str:
        """The whole page."""
        try:
            study = load_study(self.root)
        except RequestError:  # the plan is not written yet
            return _waiting("The study begins.")
        planned, there = len(study.record.runs), len(study.runs)
        told = f"{there} of {planned} runs are finished."
        if not there:
            return _waiting(told)
        if self._made is None or self._made[0] != there:
            sections = [section_of(part, None) for part in parts_of(study)]
            self._made = (there, page(study.record.request, sections, study.absent, told))
        return self._made[1]


def _waiting(told: str) -> str:
    return render("waiting.html", title="a study is running", told=told)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the page, and with nothing else."""

    server: _Server
    timeout = PATIENCE
    server_version, sys_version = "abps", ""

    def do_GET(self) -> None:
        """The page."""
        self._answer(True)

    def do_HEAD(self) -> None:
        """That there is a page."""
        self._answer(False)

    def _answer(self, whole: bool) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(403, "ask for this machine by its loopback address")
            return
        if self.path not in ADDRESSES:
            self.send_error(404)
            return
        text = self.server.report.page()
        content = text.encode()
        self.send_response(200)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(content))),
            ("Content-Security-Policy", f"{policy(text)}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
            ("Refresh", str(AGAIN)),
        ):
            self.send_header(name, value)
        self.end_headers()
        if whole:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the study."""


class _Server(http.server.HTTPServer):
    """One request at a time: drawing is not for many threads."""

    def __init__(self, report: LiveReport) -> None:
        self.report = report
        super().__init__((HOST, 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is no fault of the study's."""


@contextlib.contextmanager
def serving(root: Path) -> Iterator[str]:
    """Serve the report of the study in a folder as long as the block lasts; gives the address."""
    server = _Server(LiveReport(root))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)
