"""The guide on real processes: ``docs/sites.md`` as printed, and every refusal with its sentence.

One network for all of it: its hospitals are provisioned, initialised and started by the commands that the
guide shows, each a process of its own with mutual TLS on the loopback address.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from abps.cli.main import main
from abps.lab.rehearsal import free_port, own_home
from abps.sites.consent import sitefile
from abps.sites.consent.keys import read_request
from abps.sites.flare import kits
from abps.sites.flare.submit import connected

from .processes import LONG

pytestmark = pytest.mark.slow

NAMES = ("north", "south", "east", "west")
NEW = "late"
ADA = ("--by", "Dr. Ada Example")

GUIDE = (Path(__file__).parents[2] / "docs" / "sites.md").read_text()

#: The longest that four tables may take to become models, in seconds.
FIFTEEN_MINUTES = 900.0


class Network:
    """The guide's network: what was started is ended by its number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
        words = [sys.executable, "-m", "abps", "site", *(str(word) for word in arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=self.folder)

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
        books = [word for name in NAMES for word in ("--codebook", f"{name}.json")]
        return self.begin(
            "submit", "--kit", self.operator, "--study", "second", *books, "--set", "model=linear",
            "--set", "standardise=own", "--set", "secure=no", "--rounds", "9",
            "--members", ",".join([*NAMES, NEW]), *more,
        )  # fmt: skip

    def proposed(self, capsys, name: str, study: str = "second") -> str:
        """Wait until somebody at a site can read the proposal of a study; its digest."""
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            found = json.loads(self.quick(capsys, "proposals", self.kits / name, "--json"))
            digests = [each["proposal"] for each in found if each["terms"]["study"] == study]
            if digests:
                return digests[-1]
            time.sleep(0.5)
        raise AssertionError(f"nothing was proposed to {name}")

    def status(self, capsys, name: str) -> dict:
        kit = self.kits / name
        return json.loads(self.quick(capsys, "status", kit, "--study", "second", "--json"))

    def approve(self, capsys, name: str) -> None:
        digest = self.proposed(capsys, name)
        self.quick(capsys, "approve", self.kits / name, "second", "--proposal", digest, *ADA)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guide")
    made = Network(folder)
    with own_home(folder / "home"):
        try:
            yield made
        finally:
            for name in list(made.running):
                made.stop(name)


def test_the_guide_runs_as_printed(network, capsys, monkeypatch):
    """Its blocks in order, in one folder; what it shows for north at every hospital."""
    n, began = network, time.monotonic()
    monkeypatch.chdir(n.folder)
    part = GUIDE[GUIDE.index("## From four hospitals") : GUIDE.index("## Hospitals decide")]
    (tables,) = re.findall(r"^```python\n(.*?)^```", part, flags=re.M | re.S)
    subprocess.run([sys.executable, "-c", tables], check=True, cwd=n.folder, timeout=LONG)
    provision, init, start, propose, approve, look = (
        [shlex.split(line)[2:] for line in block.splitlines()]
        for block in re.findall(r"^```\n(.*?)^```", part, flags=re.M | re.S)
    )

    def at(name: str, words: list[str], **more: str) -> list[str]:
        """A command of the guide at another hospital."""
        mine = {"north": name, "north-export": f"{name}-export", "stays.parquet": f"{name}.parquet"}
        return [{**mine, **more}.get(word, word) for word in words]

    for words in provision:
        here = {"relay.example.org": "localhost", "8002": str(n.port)}
        n.quick(capsys, *[here.get(word, word) for word in words])
    for name in ("relay", *NAMES):
        (n.folder / name).symlink_to(n.kits / name)  # which was sent there
    for name in NAMES:
        for words in init:
            n.quick(capsys, *at(name, words))
    assert start == [["start", "relay"], ["start", "north"]]
    for name in ("relay", *NAMES):
        n.start(name)
    n.wait_for(*NAMES)
    said = n.quick(capsys, "check", n.kits / "north")
    assert "is open" in said and "both ends known" in said
    for name in NAMES:  # what hospitals send the operator
        shutil.copy(n.kits / name / "local" / sitefile.CODEBOOK, n.folder / f"{name}.json")
    (submit,) = propose
    submitted = n.begin(*submit)
    for name in NAMES:
        digest = n.proposed(capsys, name, "icu")
        for words in approve:
            n.quick(capsys, *at(name, words, DIGEST=digest))
    said = n.end(submitted)
    assert "FINISHED:COMPLETED" in said and "left out" not in said, said
    for name in NAMES:
        for words in look:
            n.quick(capsys, *at(name, words))
        assert (n.folder / f"{name}-export" / "model" / name / "card.html").is_file()
    assert time.monotonic() - began < FIFTEEN_MINUTES


def test_who_refuses_and_whose_policy_rules_a_study_out_are_named(network, capsys):
    """A study is approved while the job waits; one hospital refuses, one's policy rules the study out: both
    are named with the reason."""
    n, folder = network, network.folder
    for name in NAMES:
        n.policy(name)
    n.policy("west", rows=100_000)
    submitted = n.submit("--job-rounds", "2", "--wait-for-approval", LONG)
    n.proposed(capsys, "north")
    assert "waits for a decision" in n.quick(capsys, "proposals", n.kits / "north")
    n.quick(capsys, "preview", n.kits / "north", "second", "--out", folder / "leaving.csv")
    for name in ("north", "south", "west"):
        n.approve(capsys, name)
    n.proposed(capsys, "east")
    n.quick(capsys, "refuse", n.kits / "east", "second", *ADA)
    said = n.end(submitted)
    assert "FINISHED:COMPLETED" in said and "east was left out: it has refused the study" in said
    assert "west was left out: it has fewer rows or events than its policy asks for" in said
    assert "this site's policy asks for 100000" in n.said("west")
    assert "the study 'second' was refused here by Dr. Ada Example" in n.said("east")
    assert "waits for approval here" in n.said("north")
    for name in ("north", "south"):
        status = n.status(capsys, name)
        assert 1 <= status["round"] <= 2 and status["bytes_sent"]["upload"] > 0
    assert not (n.kits / "east" / "local" / "studies" / "second.sqlite").exists()


def test_one_withdraws_one_is_absent_and_one_comes_later(network, capsys):
    """The next job: without the site that withdrew and the one that is gone, with one that changed its mind
    and a new hospital."""
    n = network
    before = n.status(capsys, "north")["round"]
    n.stop("west")
    n.quick(capsys, "provision", *NAMES, NEW, "--host", "localhost", "--port", n.port, "--out", n.kits)
    n.quick(
        capsys, "init", "--kit", n.kits / NEW, "--table", n.folder / "west.parquet", "--label", "died",
        "--patient", "patient", "--time", "admission_year",
    )  # fmt: skip
    n.policy(NEW, approve="auto")
    n.start(NEW)
    n.quick(capsys, "withdraw", n.kits / "north", "second", *ADA)
    n.approve(capsys, "east")
    n.wait_for("north", "south", "east", NEW)
    said = n.end(n.submit("--job-rounds", "2"))
    assert "north was left out: it has withdrawn from the study" in said
    assert "west was left out: " in said
    assert "the study 'second' was withdrawn here by Dr. Ada Example" in n.said("north")
    assert n.status(capsys, "north")["round"] == before
    assert "south was left out" not in said
    for name in ("east", NEW):  # on a busy machine somebody may be late in a round
        assert n.status(capsys, name)["round"] >= 1, said


def test_what_is_left_at_the_hospitals(network, capsys):
    n, out = network, network.folder
    n.quick(capsys, "check", n.kits / "relay")
    n.quick(capsys, "export", n.kits / "east", "--study", "second", "--out", out / "east-second")
    heads = ("--partner", out / "east-second" / "heads.json")
    assert "are in order" in n.quick(capsys, "verify", n.kits / "south", "--study", "second", *heads)
    n.quick(capsys, "backup", n.kits / "south", "--study", "second", "--out", out / "monday")
    n.quick(capsys, "restore", n.kits / "south", "--study", "second", "--from", out / "monday", *ADA, *heads)


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
    monkeypatch.setattr(kits, "DAYS", -0.001)  # a minute and a half ago
    n.quick(capsys, "request", n.kits / "late", "--out", csr)
    certificate, _ = kits.Authority(n.kits).certify(read_request(csr))
    shutil.copy(certificate, n.kits / "late" / "startup" / "client.crt")
    assert "certificate of late ended on" in n.call("start", n.kits / "late", code=2)


def seen(n: Network, name: str, words: str) -> None:
    """Wait until a participant has said something."""
    until = time.monotonic() + LONG
    while words not in n.said(name):
        assert time.monotonic() < until, n.said(name)[-2000:]
        time.sleep(0.5)


def test_every_command_of_the_guide_was_run(network):
    named = set(re.findall(r"^abps site ([a-z]+)", GUIDE, flags=re.M))
    assert named and named <= network.called
