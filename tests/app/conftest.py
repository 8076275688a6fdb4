"""A real server of the app."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")


@dataclass
class Server:
    """A running ``abps app``. address: with its token."""

    process: subprocess.Popen
    address: str
    home: Path

    @property
    def base(self) -> str:
        return self.address.split("/open")[0]

    def client(self) -> "httpx.Client":
        """A program with the cookie of the one browser, which sends the right origin."""
        client = httpx.Client(base_url=self.base, headers={"origin": self.base}, timeout=120)
        assert client.get(self.address).status_code == 303
        return client


def start(home: Path) -> Server:
    words = [sys.executable, "-m", "abps", "app", "--no-open", "--out", str(home)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = process.stdout.readline()
    assert line.startswith("open http://127.0.0.1:"), line
    return Server(process, line.split()[1], home)


@pytest.fixture
def serve(tmp_path):
    """Starts servers on one home; ends them."""
    started = []

    def begin() -> Server:
        started.append(start(tmp_path / "home"))
        return started[-1]

    yield begin
    for server in started:
        server.process.terminate()
        server.process.wait(120)
        server.process.stdout.close()
