"""A real server of the app."""

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")


@dataclass
class Server:
    """A running ``abps app``. address: with its token. cookies: of the one browser, once it was used."""

    process: subprocess.Popen
    address: str
    home: Path
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str:
        return self.address.split("/open")[0]

    def client(self) -> "httpx.Client":
        """A program with the cookie of the one browser, which sends the right origin."""
        origin = {"origin": self.base}
        client = httpx.Client(base_url=self.base, headers=origin, cookies=self.cookies, timeout=120)
        if not self.cookies:
            assert client.get(self.address).status_code == 303
            self.cookies |= client.cookies
        return client

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(120)
        self.process.stdout.close()


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
        server.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    server = start(tmp_path_factory.mktemp("app") / "home")
    yield server
    server.end()


@pytest.fixture
def server(shared):
    """One for all tests that start no study; they find its home empty."""
    for study in shared.home.glob("*"):
        shutil.rmtree(study)
    return shared
