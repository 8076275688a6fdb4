"""Sites behind an HTTP proxy: the check and the engine reach the relay by CONNECT."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace

import pytest

from abps.core.errors import RequestError
from abps.lab.rehearsal import Processes, free_port, own_home, running
from abps.sites.consent import preflight, sitefile
from abps.sites.consent.kit import read_kit
from abps.sites.consent.sitefile import SiteFile
from abps.sites.flare import kits
from abps.sites.flare.submit import connected

from .processes import LONG


class Proxy:
    """A small CONNECT proxy that keeps the heads of requests.  allow: whether it lets anybody through."""

    def __init__(self, allow: bool = True) -> None:
        self.heads: list[str] = []
        self.allow = allow
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                threading.Thread(target=self._one, args=(line,), daemon=True).start()

    def _one(self, line: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(4096)
        self.heads.append(head.decode())
        if not self.allow:
            line.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return line.close()
        host, port = head.split()[1].decode().rsplit(":", 1)
        with contextlib.suppress(OSError):
            far = socket.create_connection((host, int(port)))
            line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            threading.Thread(target=self._pump, args=(far, line), daemon=True).start()
            self._pump(line, far)
        return None

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def made(tmp_path_factory, four):
    out = tmp_path_factory.mktemp("proxy")
    port = free_port()
    network = kits.provision(out / "kits", ["north", "south"], "localhost", port)
    roles = four.roles
    for name, table in zip(network.sites, four.tables.values()):
        own = SiteFile(name, str(table), roles.label, str(out / name), roles.patient, roles.time)
        own.write(network.sites[name] / "local")
    return out, network, port


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in (*preflight.PROXY_VARIABLES, "no_proxy", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def with_proxy(network, url: str):
    local = network.sites["north"] / "local"
    replace(sitefile.read(local / sitefile.FILE), proxy=url).write(local)
    return read_kit(network.sites["north"])


def test_the_check_goes_through_the_proxy(made, monkeypatch):
    _, network, port = made
    kit = with_proxy(network, "")
    assert preflight.proxy_of(kit) is None and "grpc_proxy" not in kits.command(kit.folder)[1]
    with socket.create_server(("127.0.0.1", port)):
        through = Proxy()
        kit = with_proxy(network, through.url.replace("http://", "http://us%40er:word@"))
        preflight.connect(kit, 5.0).close()
        assert through.heads[0].startswith(f"CONNECT localhost:{port} ")
        assert "Proxy-Authorization: Basic dXNAZXI6d29yZA==" in through.heads[0]
        assert kits.command(kit.folder)[1]["grpc_proxy"] == f"http://us%40er:word@{through.url[7:]}"
        with_proxy(network, "")
        monkeypatch.setenv("https_proxy", through.url)
        preflight.connect(kit, 5.0).close()
        assert len(through.heads) == 2
        monkeypatch.setenv("no_proxy", "localhost")
        preflight.connect(kit, 5.0).close()
        assert len(through.heads) == 2 and preflight.proxy_of(kit) is None
    closed = with_proxy(network, Proxy(allow=False).url)
    found = {check.name: check for check in preflight.checks(closed)}
    assert found["proxy"].state == "ok" and found["port"].state == "fail"
    assert "403 Forbidden" in found["port"].sentence and "word" not in str(found["proxy"])
    for wrong in ("proxy:3128", "https://proxy:3128", "http://proxy", "http://proxy:many"):
        with pytest.raises(RequestError, match="is no proxy: give http://HOST:PORT"):
            preflight.proxy_of(with_proxy(network, wrong))
    assert {c.name: c.state for c in preflight.checks(kit)}["proxy"] == "fail"


@pytest.mark.slow
def test_a_site_reaches_the_relay_through_a_proxy(made):
    out, network, port = made
    through = Proxy()
    with_proxy(network, through.url)
    with own_home(out / "home"), running(Processes(network, port)) as processes:
        processes.start_all(LONG)
        assert {"north", "south"} <= set(connected(network.operator))
    assert through.heads and all(f"CONNECT localhost:{port} " in head for head in through.heads)
