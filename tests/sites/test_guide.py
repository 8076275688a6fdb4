"""The guide on real processes: every command of ``docs/sites.md``, and every refusal with its sentence.

One network for all of it: its hospitals are provisioned, initialised and started by the commands that the
guide shows, each a process of its own with mutual TLS on the loopback address.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from abps.cli.main import main
from abps.sites.consent import sitefile
from abps.sites.consent.keys import read_request
from abps.sites.flare import authority, kits
from abps.sites.flare.rehearsal import free_port, own_home
from abps.sites.flare.submit import connected

from .processes import LONG

pytestmark = pytest.mark.slow

NAMES = {"north": "site-1", "south": "site-2", "east": "site-3", "west": "site-4"}
NEW = "late"
ADA = ("--by", "Dr. Ada Example")

#: Commands of the guide that other tests of real processes run.
ELSEWHERE = {"rehearse": "test_rehearse.py"}


class Network:
    """The guide's network: what was started is ended by its number."""

    def __init__(self, folder: Path, four) -> None:
        self.folder, self.four = folder, four
        self.kits, self.port = folder / "kits", free_port()
        self.operator = self.kits / "operator@federation.example"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.called: set[str] = set()

    def call(self, *arguments, code: int = 0) -> str:
        """Run a command of ``abps site`` as a person does; what it says."""
        done = self.begin(*arguments)
        return self.end(done, code)

    def begin(self, *arguments) -> subprocess.Popen[str]:
        self.called.add(str(arguments[0]))
        words = [str(word) for word in ("site", *arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-m", "abps", *words], stdout=pipe, stderr=pipe, text=True)

    def end(self, process: subprocess.Popen[str], code: int = 0) -> str:
        out, err = process.communicate(timeout=LONG)
        assert process.returncode == code and "Traceback" not in err, (process.args, out, err)
        return " ".join((out + err).split())

    def quick(self, capsys, *arguments, code: int = 0) -> str:
        """The same in this process, for commands that only look at files."""
        self.called.add(str(arguments[0]))
        with pytest.raises(SystemExit) as ended:
            main(["site", *(str(word) for word in arguments)])
        said = capsys.readouterr()
        assert ended.value.code == code, said.err
        return " ".join((said.out + said.err).split())

    def init(self, capsys, name: str, table: str) -> None:
        roles = self.four.roles
        self.quick(
            capsys, "init", "--kit", self.kits / name, "--table", self.four.tables[table], "--label",
            roles.label, "--patient", roles.patient, "--time", roles.time,
            "--store", self.folder / "stores" / name,
        )  # fmt: skip

    def policy(self, name: str, **entries) -> None:
        """What somebody at the hospital writes into its own file."""
        path = self.kits / name / "local" / sitefile.FILE
        data = json.loads(path.read_text())
        data["policy"] = {"events": 3, **entries}
        path.write_text(json.dumps(data))

    def start(self, name: str) -> None:
        self.called.add("start")
        environment = {**os.environ, "PYTHONPATH": kits.command(self.kits / name)[1]["PYTHONPATH"]}
        with (self.folder / f"{name}.out").open("ab") as out:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "abps", "site", "start", str(self.kits / name)],
                env=environment, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            family = [parent, *parent.children(recursive=True)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()

    def wait_for(self, *names: str) -> None:
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                if set(names) <= set(connected(self.operator)):
                    return
            for name in names:
                if self.running[name].poll() is not None:  # too busy to connect in time
                    self.start(name)
            time.sleep(0.5)
        raise AssertionError(f"not connected: {names}; {self.said(names[0])[-500:]}")

    def said(self, name: str) -> str:
        """What somebody at the participant's screen, or in its logs, can read."""
        texts = [self.folder / f"{name}.out", *(self.kits / name).rglob("log.json")]
        return "".join(path.read_text(errors="replace") for path in texts if path.is_file())

    def submit(self, *more):
        books = [("--codebook", self.kits / name / "local" / "codebook.json") for name in NAMES]
        return self.begin(
            "submit", "--kit", self.operator, "--study", "icu", *[word for book in books for word in book],
            "--set", "model=linear", "--set", "standardise=own", "--set", "secure=no", "--rounds", "9",
            "--members", ",".join([*NAMES, NEW]), *more,
        )  # fmt: skip

    def proposed(self, capsys, name: str) -> str:
        """Wait until somebody at a site can read the proposal of the study; its digest."""
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            found = json.loads(self.quick(capsys, "proposals", self.kits / name, "--json"))
            digests = [each["proposal"] for each in found]
            if digests:
                return digests[-1]
            time.sleep(0.5)
        raise AssertionError(f"nothing was proposed to {name}")

    def approve(self, capsys, name: str) -> None:
        digest = self.proposed(capsys, name)
        self.quick(capsys, "approve", self.kits / name, "icu", "--proposal", digest, *ADA)


@pytest.fixture(scope="module")
def network(four, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guide")
    made = Network(folder, four)
    with own_home(folder / "home"):
        try:
            yield made
        finally:
            for name in list(made.running):
                made.stop(name)


def test_from_four_hospitals_to_a_running_job(network, capsys):
    """A study is approved while the job waits; one hospital refuses, one's policy rules the study out: both
    are named with the reason."""
    n, folder = network, network.folder
    n.quick(
        capsys, "provision", *NAMES, "--host", "localhost", "--port", n.port, "--out", n.kits,
    )  # fmt: skip
    for name, table in NAMES.items():
        n.init(capsys, name, table)
        n.policy(name)
    n.policy("west", rows=100_000)
    for name in ("relay", *NAMES):
        n.start(name)
    n.wait_for(*NAMES)
    said = n.quick(capsys, "check", n.kits / "north")
    assert "is open" in said and "both ends known" in said

    submitted = n.submit("--job-rounds", "2", "--wait-for-approval", LONG)
    n.proposed(capsys, "north")
    assert "waits for a decision" in n.quick(capsys, "proposals", n.kits / "north")
    n.quick(capsys, "preview", n.kits / "north", "icu", "--out", folder / "leaving.csv")
    for name in ("north", "south", "west"):
        n.approve(capsys, name)
    n.proposed(capsys, "east")
    n.quick(capsys, "refuse", n.kits / "east", "icu", *ADA)
    said = n.end(submitted)
    assert "FINISHED:COMPLETED" in said and "east was left out: it has refused the study" in said
    assert "west was left out: it has fewer rows or events than its policy asks for" in said
    assert "this site's policy asks for 100000" in n.said("west")
    assert "the study 'icu' was refused here by Dr. Ada Example" in n.said("east")
    assert "waits for approval here" in n.said("north")
    for name in ("north", "south"):
        status = json.loads(n.quick(capsys, "status", n.kits / name, "--json"))
        assert 1 <= status["round"] <= 2 and status["bytes_sent"]["upload"] > 0
    assert not (folder / "stores" / "east" / "icu.sqlite").exists()


def test_one_withdraws_one_is_absent_and_one_comes_later(network, capsys):
    """The next job: without the site that withdrew and the one that is gone, with one that changed its mind
    and a new hospital."""
    n = network
    before = json.loads(n.quick(capsys, "status", n.kits / "north", "--json"))["round"]
    n.stop("west")
    n.quick(capsys, "provision", *NAMES, NEW, "--host", "localhost", "--port", n.port, "--out", n.kits)
    n.init(capsys, NEW, "site-4")
    n.policy(NEW, approve="auto")
    n.start(NEW)
    n.quick(capsys, "withdraw", n.kits / "north", "icu", *ADA)
    n.approve(capsys, "east")
    n.wait_for("north", "south", "east", NEW)
    said = n.end(n.submit("--job-rounds", "2"))
    assert "north was left out: it has withdrawn from the study" in said
    assert "west was left out: " in said
    assert "the study 'icu' was withdrawn here by Dr. Ada Example" in n.said("north")
    assert json.loads(n.quick(capsys, "status", n.kits / "north", "--json"))["round"] == before
    assert "south was left out" not in said
    for name in ("east", NEW):  # on a busy machine somebody may be late in a round
        assert json.loads(n.quick(capsys, "status", n.kits / name, "--json"))["round"] >= 1, said


def test_what_is_left_at_the_hospitals(network, capsys):
    n, out = network, network.folder
    n.quick(capsys, "check", n.kits / "relay")
    n.quick(capsys, "export", n.kits / "east", "--out", out / "east-export")
    heads = ("--partner", out / "east-export" / "heads.json")
    assert "are in order" in n.quick(capsys, "verify", n.kits / "south", "--study", "icu", *heads)
    n.quick(capsys, "backup", n.kits / "south", "--study", "icu", "--out", out / "monday")
    n.quick(capsys, "restore", n.kits / "south", "--study", "icu", "--from", out / "monday", *ADA, *heads)


def test_a_new_key_an_expelled_member_and_an_ended_certificate(network, capsys, monkeypatch):
    n = network
    csr, stolen = n.folder / "east.csr", shutil.copytree(n.kits / "east", n.folder / "stolen")

    def renew() -> None:
        n.quick(capsys, "request", n.kits / "east", "--out", csr)
        n.quick(capsys, "certify", csr, "--kits", n.kits)
        n.quick(capsys, "install", n.kits / "east", "--certificate", n.kits / "certified" / "east.crt")

    n.stop("east")
    renew()
    n.quick(capsys, "revoke", "south", "--kits", n.kits)
    n.start("east")
    n.wait_for("east")
    seen(n, "relay", "was revoked by this network's authority")
    seen(n, "relay", "south is not connected any more")
    assert "south" not in connected(n.operator)
    n.stop("east")
    shutil.rmtree(n.kits / "east")
    stolen.rename(n.kits / "east")  # whoever has the old key of a member
    n.start("east")
    seen(n, "relay", "east may not register")
    n.stop("east")
    monkeypatch.setattr(authority, "DAYS", -0.001)  # a minute and a half ago
    n.quick(capsys, "request", n.kits / "late", "--out", csr)
    certificate, _ = authority.Authority(n.kits).certify(read_request(csr))
    shutil.copy(certificate, n.kits / "late" / "startup" / "client.crt")
    assert "certificate of late ended on" in n.call("start", n.kits / "late", code=2)


def seen(n: Network, name: str, words: str) -> None:
    """Wait until a participant has said something."""
    until = time.monotonic() + LONG
    while words not in n.said(name):
        assert time.monotonic() < until, n.said(name)[-2000:]
        time.sleep(0.5)


def test_every_command_of_the_guide_was_run(network):
    guide = Path(__file__).parents[2] / "docs" / "sites.md"
    named = set(re.findall(r"^abps site ([a-z]+)", guide.read_text(), flags=re.M))
    assert named and named <= network.called | set(ELSEWHERE)
    for test in ELSEWHERE.values():
        assert Path(__file__).with_name(test).is_file()
