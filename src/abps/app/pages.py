"""Templates and the words on them: one file of strings per language."""

from __future__ import annotations

import datetime
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

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
from abps.report.pages.document import page_templates

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
    """To another page, after a form."""
    return RedirectResponse(path, 303)


def finished_page(path: Path) -> Response:
    """A report or card: shown as it is, without the rights of this server's own pages."""
    if not path.is_file():
        raise HTTPException(404, WORDS["error"]["absent"])
    return FileResponse(path, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})


def saved_file(path: Path, name: str) -> Response:
    """A file that the browser saves."""
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
    app.state.session, app.state.title = session, title
    for name, value in state.items():
        setattr(app.state, name, value)
    return app
