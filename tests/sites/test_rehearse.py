"""``abps site rehearse``: the whole way on real processes, and nothing that is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.data.prepare import prepare
from abps.data.roles import Roles
from abps.data.table import MIN_CLASS, federate
from abps.engine.simulate import simulate
from abps.fitted.folder import load_model
from abps.lab import rehearsal as on_one_machine
from abps.lab.rehearsal import RehearsalPlan
from abps.sites.consent import sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.flare import kits
from abps.sites.store.store import Store

from .processes import LONG
from .test_cli import call

SITES = ("north", "south", "east")


def command(out, *more):
    return [sys.executable, "-m", "abps", "site", "rehearse", "--out", str(out), *more]


def mine(out) -> list[psutil.Process]:
    """Processes that name the folder of this rehearsal."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(out) in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


def rehearsal(out, *more):
    """A rehearsal of three small hospitals: where it lies, and what it told."""
    done = subprocess.run(
        command(out, "--sites", "3", "--limit", str(LONG), "--json", *more),
        capture_output=True, text=True, timeout=2 * LONG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return out, json.loads(done.stdout)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """One that several tests look at."""
    return rehearsal(tmp_path_factory.mktemp("rehearsal") / "out", "--rounds", "6")


@pytest.mark.slow
def test_every_hospital_ends_with_its_model_and_its_page(rehearsed):
    out, told = rehearsed
    assert told["status"] == "FINISHED:COMPLETED" and [s["site"] for s in told["sites"]] == list(SITES)
    assert not mine(out)
    page = (out / "report.html").read_text()
    for site in told["sites"]:
        assert site["page"] in page and (out / site["model"]).is_file()
        own = (out / site["page"]).read_text()
        auroc = "not defined" if site["auroc"] is None else f"{site['auroc']:.3f}"
        assert f"{site['site']} in the study rehearsal" in own and auroc in own
        load_model((out / site["model"]).parent)
    assert any(site["auroc"] is not None for site in told["sites"])
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")


@pytest.mark.slow
def test_what_a_hospital_can_ask_its_kit(rehearsed, capsys, tmp_path):
    """The commands of the guide, on kits that have run a job."""
    out, told = rehearsed
    kit = out / "kits" / "north"
    code, text, _ = call(capsys, "site", "status", kit, "--json")
    assert code == 0 and json.loads(text)["round"] == 6
    code, text, _ = call(capsys, "site", "check", kit, "--json")
    checks = {c["check"]: c for c in json.loads(text)["checks"]}
    assert code == 3
    assert [name for name, c in checks.items() if c["state"] == "fail"] == ["port"]  # the relay is stopped
    code, text, _ = call(capsys, "site", "check", out / "kits" / "relay", "--json")
    assert code == 0 and all(check["state"] != "fail" for check in json.loads(text)["checks"])
    code, text, _ = call(capsys, "site", "export", kit, "--out", tmp_path / "report", "--json")
    mine = next(site for site in told["sites"] if site["site"] == "north")
    assert code == 0 and json.loads(text)["test_auroc"] == mine["auroc"]
    code, _, err = call(capsys, "site", "export", kit, "--out", tmp_path / "report")
    assert code == 2 and "choose a new or empty folder" in err


def check_simulation(out, method, rounds, **settings):
    """The same rows, columns and seed: the additive models of the sites are those of the simulation."""
    import polars as pl

    own = [sitefile.read(out / "kits" / name / "local" / sitefile.FILE) for name in SITES]
    frame = pl.concat([pl.read_parquet(o.table).with_columns(center=pl.lit(o.site)) for o in own])
    roles = Roles(own[0].label, "center", own[0].patient, own[0].time)
    agreement = Agreement.from_json(json.loads((out / "agreement.json").read_text()))
    stores = {o.site: Store.look(o.store_of("rehearsal")) for o in own}
    models = np.stack([stores[name].model() for name in sorted(SITES)])
    book = Codebook.from_json(json.loads(stores[SITES[0]].facts()["codebook"]))  # with the counted scales
    for store in stores.values():
        store.close()
    agreement = replace(agreement, book=book)
    # Every site hides its own small cells.
    sites = [agreement.prepare(o.read_table(book)) for o in sorted(own, key=lambda o: o.site)]
    data = prepare(
        federate(frame, roles, "together", MIN_CLASS), 11, book, standardise="common", splines=True
    )
    splits = {
        name: replace(getattr(data, name), x=np.concatenate([getattr(site, name).x for site in sites]))
        for name in ("train", "validation", "test")
    }
    run = simulate(
        replace(data, **splits), method, seed=11, rounds=rounds, settings={"model": "gam"} | settings
    )
    assert models.shape == tuple(run.models.shape)
    np.testing.assert_allclose(models, run.models, atol=1e-4)


@pytest.mark.slow
def test_the_rehearsal_is_the_simulation(rehearsed):
    check_simulation(rehearsed[0], "abps-plus", rounds=6, secure="yes")


@pytest.mark.slow
def test_a_request_to_end_leaves_nothing_behind(tmp_path):
    out = tmp_path / "out"
    with subprocess.Popen(command(out, "--sites", "3"), stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + LONG
        while not (out / "kits" / "relay" / "out.log").is_file() and time.monotonic() < until:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    assert not mine(out)


def test_an_interrupt_while_a_process_starts_ends_it_also_if_it_is_repeated(tmp_path, monkeypatch):
    begun = []

    class Interrupted(subprocess.Popen):
        """Just there, and nobody knows of it yet."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            begun.append(self)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    monkeypatch.setattr(on_one_machine.kits, "command", idle)
    monkeypatch.setattr(on_one_machine.subprocess, "Popen", Interrupted)
    network = kits.Network(tmp_path / "relay", {"hospital": tmp_path}, tmp_path / "me", tmp_path / "all")
    processes = on_one_machine.Processes(network, 0)
    stop = processes.stop

    def asked_again() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        stop()

    monkeypatch.setattr(processes, "stop", asked_again)
    with pytest.raises(KeyboardInterrupt), on_one_machine.running(processes):
        processes.start("hospital")
    assert begun and not any(psutil.pid_exists(process.pid) for process in begun)


def test_a_rehearsal_that_takes_too_long_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(on_one_machine.kits, "command", idle)
    out = tmp_path / "out"
    code, _, err = call(capsys, "site", "rehearse", "--out", out, "--sites", 3, "--limit", 8)
    assert code == 2 and "the relay does not listen on port" in err and "Traceback" not in err
    assert not mine(out)


def idle(kit):
    """A participant that does nothing."""
    return [sys.executable, "-c", "import time; time.sleep(60)", str(kit)], dict(os.environ)


def test_wrong_rehearsals(tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, words in (
        (("--sites", 1), "choose 3 to 32"),
        (("--rounds", 0), "--rounds 0"),
        (("--stays", 5), "at least 60"),
        (("--limit", 0), "0 seconds: choose at least 1"),
        (("--method", "wpfed", "--set", "model=mlp"), "does not run between sites"),
        (("--out", tmp_path / "full"), "choose a new or empty folder"),
    ):
        code, out, err = call(capsys, "site", "rehearse", "--out", tmp_path / "new", *arguments)
        assert code == 2 and words in err and out == "", (arguments, err)
        assert not (tmp_path / "new").exists()


def test_containers_that_start_again_find_what_was_prepared(tmp_path, capsys):
    arguments = ("site", "rehearse", "--out", tmp_path / "new", "--prepare-for", "relay", "--sites", 3)
    assert call(capsys, *arguments)[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "new").rglob("*")}
    assert call(capsys, *arguments)[0] == 0
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "new").rglob("*")}


def test_names_of_hospitals():
    assert RehearsalPlan(4, "s", "abps-plus").names == ("north", "south", "east", "west")
    assert RehearsalPlan(12, "s", "abps-plus").names[:2] == ("hospital-01", "hospital-02")
    with pytest.raises(RequestError):
        RehearsalPlan(33, "s", "abps-plus")


def test_home_is_given_back(tmp_path):
    from abps.lab.rehearsal import own_home

    before = os.environ.get("HOME")
    with own_home(tmp_path / "home"):
        assert os.environ["HOME"] == str(tmp_path / "home")
    assert os.environ.get("HOME") == before
