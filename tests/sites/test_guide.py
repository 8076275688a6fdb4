"""The guide on real processes: every command of ``docs/sites.md``, and every refusal with its sentence.

One network for all of it: its hospitals are provisioned, initialised and started by the commands that the
guide shows, each a process of its own with mutual TLS on the loopback address.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from abps.cli.main import main
from abps.core.errors import RequestError
from abps.sites.consent import sitefile
from abps.sites.flare import kits
from abps.sites.flare.on_one_machine import free_port, own_home
from abps.sites.flare.submit import connected
from abps.sites.store.store import Store

from .processes import LONG

pytestmark = pytest.mark.slow

NAMES = {"north": "site-1", "south": "site-2", "east": "site-3", "west": "site-4"}
NEW = "late"
ADA = ("--by", "Dr. Ada Example")

#: Loaded by the process of one site: it speaks a version of the wire format that nobody else does.
FOREIGN = """
import importlib.abc, sys
class Later(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "abps.sites.node.site":
            from abps.wire import versions
            versions.NEWEST = (2, 0)
        return None
sys.meta_path.insert(0, Later())
"""

#: Commands of the guide that other tests of real processes run.
ELSEWHERE = {
    "rehearse": "test_rehearse.py",
    "request": "test_members.py",
    "certify": "test_members.py",
    "install": "test_members.py",
}


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

    def start(self, name: str, more: str = "") -> None:
        self.called.add("start")
        package = kits.command(self.kits / name)[1]["PYTHONPATH"]
        path = os.pathsep.join(filter(None, [more, package]))
        with (self.folder / f"{name}.out").open("ab") as out:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "abps", "site", "start", str(self.kits / name)],
                env={**os.environ, "PYTHONPATH": path}, stdout=out, stderr=out, start_new_session=True,
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
        return self.begin(
            "submit", "--kit", self.operator, "--study", "icu", "--codebook", self.folder / "codebook.json",
            "--rounds", "9", *more,
        )  # fmt: skip

    def proposed(self, name: str) -> None:
        """Wait until somebody at a site can read the proposal of the study."""
        until = time.monotonic() + LONG
        folder = self.folder / "stores" / name / "proposals"
        while time.monotonic() < until:
            if any('"asks": "study"' in path.read_text() for path in folder.glob("*.json")):
                return
            time.sleep(0.2)
        raise AssertionError(f"nothing was proposed to {name}")


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
    """Codebooks are gathered while people share them; what may not run is refused, each with a sentence."""
    n, folder = network, network.folder
    n.quick(
        capsys, "provision", *NAMES, "--host", "localhost", "--port", n.port, "--out", n.kits,
    )  # fmt: skip
    for name, table in NAMES.items():
        n.init(capsys, name, table)
        n.policy(name)
    n.policy("south", methods=["decefl"])
    n.policy("east", rows=100_000)
    (folder / "foreign").mkdir()
    (folder / "foreign" / "sitecustomize.py").write_text(FOREIGN)
    n.start("relay")
    for name in NAMES:
        n.start(name, str(folder / "foreign") if name == "west" else "")
    n.wait_for(*NAMES)
    told = n.quick(capsys, "check", n.kits / "north")
    assert "is open" in told and "both ends known" in told

    # Nobody has shared anything when the operator asks.
    gathering = n.begin(
        "gather", "--kit", n.operator, "--study", "icu", "--out", folder / "codebook.json",
        "--wait-for-approval", LONG,
    )  # fmt: skip
    for name in NAMES:
        n.quick(capsys, "share", n.kits / name, *ADA)
    assert "codebooks of east, north, south, west" in n.end(gathering)

    submitted = n.submit("--job-rounds", "2", "--wait-for-approval", LONG)
    for name in ("north", "east", "west"):
        n.proposed(name)
        assert "waits for a decision" in n.quick(capsys, "proposals", n.kits / name)
    n.quick(capsys, "preview", n.kits / "north", "icu", "--out", folder / "leaving.csv")
    for name in ("north", "east", "west"):
        n.quick(capsys, "approve", n.kits / name, "icu", *ADA)
    operator = n.end(submitted, code=2)
    for words in (
        "1 of 4 sites can take part, and a job needs 2",
        "south: the study asks for more than its policy allows",
        "east: it has fewer rows or events than its policy asks for",
        "west: it speaks version 2.0 of the wire format",
    ):
        assert words in operator, operator
    assert "is not among those that this site's policy allows (decefl)" in n.said("south")
    assert "this site's policy asks for 100000" in n.said("east")
    assert "waits for approval here" in n.said("north")


def test_the_study_runs_with_those_that_may(network, capsys):
    """Policies are changed, a study is approved while the job waits; one refuses, one speaks otherwise."""
    n = network
    n.policy("south")
    n.policy("east")
    submitted = n.submit("--job-rounds", "3", "--wait-for-approval", LONG)
    n.proposed("south")
    n.quick(capsys, "refuse", n.kits / "east", "icu", *ADA)  # which it had approved before
    n.quick(capsys, "approve", n.kits / "south", "icu", *ADA)
    told = n.end(submitted)
    assert "FINISHED:COMPLETED" in told and "west was left out: it speaks version 2.0" in told
    assert "east was left out: it has refused the study" in told
    for name in ("north", "south"):
        status = json.loads(n.quick(capsys, "status", n.kits / name, "--json"))
        assert 1 <= status["round"] <= 3 and status["bytes_sent"]["weights"] > 0
    assert "the study 'icu' was refused here" in n.said("east")
    with contextlib.suppress(RequestError):  # it may not even have a store
        store = Store.look(n.folder / "stores" / "east" / "icu.sqlite")
        sent = {entry.kind for entry in store.traffic() if entry.sent}
        store.close()
        assert sent <= {"told"}
    clock = json.loads((n.kits / "north" / "local" / "abps-clock.json").read_text())
    assert abs(clock["seconds"]) < LONG


def test_one_withdraws_and_one_comes_later(network, capsys):
    """The next job: without the site that withdrew, with one that changed its mind and a new hospital."""
    n = network
    before = json.loads(n.quick(capsys, "status", n.kits / "north", "--json"))["round"]
    n.stop("west")
    n.quick(capsys, "provision", *NAMES, NEW, "--host", "localhost", "--port", n.port, "--out", n.kits)
    n.init(capsys, NEW, "site-4")
    n.policy(NEW, approve="auto")
    n.start(NEW)
    n.quick(capsys, "withdraw", n.kits / "north", "icu", *ADA)
    n.quick(capsys, "approve", n.kits / "east", "icu", *ADA)
    n.wait_for("north", "south", "east", NEW)
    told = n.end(n.submit("--job-rounds", "3"))
    assert "north was left out: it has withdrawn from the study" in told
    assert "the study 'icu' was withdrawn here by Dr. Ada Example" in n.said("north")
    assert json.loads(n.quick(capsys, "status", n.kits / "north", "--json"))["round"] == before
    # Newcomers are more; the relay remembers how far the study is, so who was there before is believed.
    assert "south was left out" not in told
    for name in ("east", NEW):  # on a busy machine somebody may be late in a round
        assert json.loads(n.quick(capsys, "status", n.kits / name, "--json"))["round"] >= 1, told


def test_what_is_left_at_the_hospitals(network, capsys):
    n, out = network, network.folder
    n.quick(capsys, "doctor", n.kits / "relay")
    n.quick(capsys, "doctor", n.kits / "south")
    n.quick(capsys, "report", n.kits / "south", "--out", out / "report")
    n.quick(capsys, "export", n.kits / "east", "--out", out / "east-export")
    heads = ("--partner", out / "east-export" / "heads.json")
    assert "are in order" in n.quick(capsys, "verify", n.kits / "south", "--study", "icu", *heads)
    n.quick(capsys, "backup", n.kits / "south", "--study", "icu", "--out", out / "monday")
    n.quick(capsys, "restore", n.kits / "south", "--study", "icu", "--from", out / "monday", *ADA, *heads)


def test_an_expelled_member_and_an_ended_certificate(network, capsys):
    n = network
    n.quick(capsys, "rotate", "north", "--kits", n.kits)
    n.quick(capsys, "revoke", "south", "--kits", n.kits)
    until = time.monotonic() + LONG
    while "was revoked by this network's authority" not in n.said("relay") and time.monotonic() < until:
        time.sleep(0.5)
    while "the relay refuses this site" not in n.said("south") and time.monotonic() < until:
        time.sleep(0.5)
    assert "refuses this site: the certificate of south was revoked" in n.said("south")

    from abps.sites.flare import authority

    days, authority.DAYS = authority.DAYS, -0.001  # a minute and a half ago
    try:
        authority.Authority(n.kits).rotate("east")
    finally:
        authority.DAYS = days
    assert "certificate of east ended on" in n.call("start", n.kits / "east", code=2)


def test_every_command_of_the_guide_was_run(network):
    guide = Path(__file__).parents[2] / "docs" / "sites.md"
    named = set(re.findall(r"^abps site ([a-z]+)", guide.read_text(), flags=re.M))
    assert named and named <= network.called | set(ELSEWHERE)
    for test in ELSEWHERE.values():
        assert Path(__file__).with_name(test).is_file()
