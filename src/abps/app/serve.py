"""Serve pages on this machine alone, and open the browser."""

from __future__ import annotations

import socket
import sys
import webbrowser
from typing import Any

import uvicorn
from starlette.routing import BaseRoute

from abps.app.guard import BrowserSession
from abps.app.pages import make_app
from abps.core.errors import RequestError


def serve(title: str, routes: list[BaseRoute], port: int, show: bool, **state: Any) -> None:
    """Serve until interrupted. port: 0 takes a free one.  show: open the browser.  state: for the pages."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise RequestError(f"port={port}: {error.strerror}; choose another, or 0 for a free one") from error
    listener.listen(64)  # before the address is shown: a quick browser is not refused
    session = BrowserSession(listener.getsockname()[1])
    app = make_app(session, title, routes, **state)
    print(f"open {session.address}", flush=True)
    print("this address works once, on this machine; Ctrl-C ends the server", file=sys.stderr, flush=True)
    if show:
        webbrowser.open(session.address)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])
