"""The way to the relay through an HTTP proxy: by CONNECT, as the engine's gRPC goes; TLS stays end to end."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import socket
import urllib.request
from urllib.parse import SplitResult, unquote, urlsplit

from abps.core.errors import RequestError
from abps.sites.consent import sitefile
from abps.sites.consent.kit import Kit, Role

#: What gRPC looks for, in its order; it knows these names in small letters only.
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")


def proxy_of(kit: Kit) -> SplitResult | None:
    """The proxy in a site's own file or else in the environment; none where the relay is reached directly."""
    text = ""
    if kit.role is Role.SITE:
        with contextlib.suppress(RequestError):
            text = sitefile.read(kit.local / sitefile.FILE).proxy
    if not text and not urllib.request.proxy_bypass(kit.host):
        text = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    found = urlsplit(text)
    try:
        good = not text or (found.scheme == "http" and bool(found.hostname) and bool(found.port))
    except ValueError:
        good = False
    if not good:
        raise RequestError(f"{text!r} is no proxy: give http://HOST:PORT (TLS to the relay goes through it)")
    return found if text else None


def connect(kit: Kit, seconds: float) -> socket.socket:
    """A line to the relay's port, directly or through the proxy; ``OSError`` if there is none."""
    proxy = proxy_of(kit)
    if proxy is None:
        return socket.create_connection((kit.host, kit.port), timeout=seconds)
    words = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()
    who = {"Proxy-Authorization": f"Basic {base64.b64encode(words).decode()}"} if proxy.username else {}
    line = http.client.HTTPConnection(str(proxy.hostname), proxy.port, timeout=seconds)
    line.set_tunnel(kit.host, kit.port, who)
    line.connect()
    found: socket.socket = line.sock
    return found
