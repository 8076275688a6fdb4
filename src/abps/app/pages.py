"""Pages and their server on this machine: templates, and the words on them (one file per language)."""

import datetime
import socket
import sys
import tomllib
import webbrowser
from importlib import resources
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from abps.app.guard import PAGE_POLICY, BrowserSession, Guard
from abps.core.errors import RequestError
from abps.report.document import page_templates

WORDS = tomllib.loads(resources.files("abps.app").joinpath("en.toml").read_text(encoding="utf-8"))

_ENVIRONMENT = page_templates("abps.app")
_ENVIRONMENT.filters["date"] = lambda t: datetime.datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M")
_ENVIRONMENT.filters["thousands"] = lambda value: f"{value:,}"


def page(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """A filled template; everything is escaped."""
    session: BrowserSession = request.app.state.session
    title = request.app.state.title
    html = _ENVIRONMENT.get_template(template).render(t=WORDS, session=session.form, app=title, **context)
    return HTMLResponse(html, status)


async def checked_form(request: Request) -> FormData:
    """A form of a page that this browser got; files in it lie on disk, not in memory."""
    form = await request.form()
    request.app.state.session.check_form(form)
    return form


def go(path: str) -> Response:
    return RedirectResponse(path, 303)


def finished_page(path: Path) -> Response:
    """A report or card: shown as it is, without the rights of this server's own pages."""
    if not path.is_file():
        raise HTTPException(404, WORDS["error"]["absent"])
    return FileResponse(path, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})


def saved_file(path: Path, name: str) -> Response:
    if not path.is_file():
        raise HTTPException(404, WORDS["error"]["absent"])
    return FileResponse(path, filename=name)


def make_app(session: BrowserSession, title: str, routes: list[BaseRoute], **state: Any) -> Starlette:
    """An application behind the guard. state: what its pages need, as attributes of ``app.state``."""
    style = resources.files("abps.report").joinpath("templates", "page.css").read_text(encoding="utf-8")

    async def page_style(_: Request) -> Response:
        return Response(style, media_type="text/css")

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return page(request, "error.html", error.status_code, sentence=error.detail)
        wrong = isinstance(error, RequestError)
        sentence = str(error) if wrong else WORDS["error"]["internal"]
        return page(request, "error.html", 422 if wrong else 500, sentence=sentence)

    static = StaticFiles(packages=[("abps.app", "static")])
    app = Starlette(
        routes=[*routes, Route("/page.css", page_style), Mount("/static", static)],
        middleware=[Middleware(Guard, session=session)],
        exception_handlers={HTTPException: refused, RequestError: refused, Exception: refused},
    )
    for name, value in {"session": session, "title": title, **state}.items():
        setattr(app.state, name, value)
    return app


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
