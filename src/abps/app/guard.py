"""Who may talk to the local server: one browser, that got the token; no other page, no other host name.

* The address that ``abps app`` prints carries a token that works once; the browser then holds a cookie that
  scripts cannot read and that other sites' pages do not send.
* A request whose Host is not this server's own address is refused: a foreign name that resolves to
  127.0.0.1 (DNS rebinding) reads nothing.
* A request that changes something must come from a page of this server (Origin), and its form must carry
  the session's own number.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

#: A finished page of ours (report, card) brings its own style and script, and may not act as this server.
PAGE_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass
class BrowserSession:
    """The one browser of a server. token: works once.  cookie, form: what it must then show."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    form: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    used: bool = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/open?token={self.token}"

    @property
    def hosts(self) -> tuple[str, ...]:
        return (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    def open(self, token: str) -> Response:
        """The cookie for the first who shows the token; nobody else gets one."""
        if self.used or not secrets.compare_digest(token.encode(), self.token.encode()):
            return refuse("This address was used already, or its token is wrong. Start abps again.")
        self.used = True
        response = RedirectResponse("/", 303)
        response.set_cookie(f"abps-{self.port}", self.cookie, httponly=True, samesite="strict")
        return response

    def check_form(self, form: Any) -> None:
        if not secrets.compare_digest(str(form.get("session", "")).encode(), self.form.encode()):
            raise HTTPException(403, "This form is of an earlier session. Load the page again.")


def refuse(why: str) -> Response:
    return PlainTextResponse(f"abps: {why}\n", 403)


class Guard:
    """Lets the requests of the one browser through, and adds the headers that confine its pages."""

    def __init__(self, app: ASGIApp, session: BrowserSession) -> None:
        self.app, self.session = app, session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        answer = self.answer(Request(scope)) or self.app

        async def confined(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] += [
                    (name.lower().encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.lower().encode() not in given
                ]
            await send(message)

        await answer(scope, receive, confined)

    def answer(self, request: Request) -> Response | None:
        """What to say at once; None lets the request through."""
        session = self.session
        if request.headers.get("host", "") not in session.hosts:
            return refuse(f"Open http://{session.hosts[0]}; other names of this machine are refused.")
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin", "")
            if origin not in {f"http://{host}" for host in session.hosts}:
                return refuse("A page of another origin may not change anything here.")
        if request.url.path == "/open" and request.method == "GET":
            return session.open(request.query_params.get("token", ""))
        shown = request.cookies.get(f"abps-{session.port}", "")
        if not secrets.compare_digest(shown.encode(), session.cookie.encode()):
            return refuse("Open the address that abps printed when it started; it carries the token.")
        return None
