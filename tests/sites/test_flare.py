"""The real federation on NVIDIA FLARE: processes with mutual TLS."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.data.prepare import codebook
from abps.engine.simulate import simulate
from abps.methods.base import Context, with_derived
from abps.models.learners import learner_for
from abps.report.site_page import site_report
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.keys import read_signer
from abps.sites.consent.proposal import Proposal, sign
from abps.sites.flare import kits, submit
from abps.sites.flare.app import only_sealed
from abps.sites.flare.submit import connected, session
from abps.sites.node import measuring
from abps.sites.node.context import account_of
from abps.sites.protocol.commands import Timeouts
from abps.sites.store import audit

from .processes import LONG, Processes
from .test_effects import pooled

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def own_home(tmp_path_factory):
    """The engine writes into its user's home folder: give it another one."""
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    if before is not None:
        os.environ["HOME"] = before


@pytest.fixture(scope="module")
def federation(four, tmp_path_factory):
    """A relay and four sites, provisioned and started, with a reader inside the relay."""
    processes = Processes(tmp_path_factory.mktemp("network"), four, spy=True)
    try:
        processes.start_all(LONG)
        yield processes
    finally:
        processes.stop()


def heard_so_far(processes) -> dict[Path, int]:
    """How much each of the relay's processes has read."""
    return {path: path.stat().st_size for path in processes.spy.parent.glob(f"{processes.spy.name}.*")}


def overheard(processes, before: dict[Path, int]) -> bytes:
    """Everything that the relay's processes have read since then."""
    return b"".join(path.read_bytes()[before.get(path, 0) :] for path in heard_so_far(processes))


#: A small model: PyTorch is loaded nowhere.
LINEAR = {"model": "linear", "standardise": "own"}
ENDLESS, OWN = "federated_mean:ENDLESS", {"standardise": "own"}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")


def same_exchanges(stores):
    """No two sites hold different results of an exchange."""
    found = {}
    for store in stores.values():
        for number, content in store.broadcasts().items():
            assert found.setdefault(number, content) == content
    assert found


def first_uploads(given, method):
    """What each site uploads in the first exchange, in clear."""
    agreement = given.agreement(method, **LINEAR)
    config, data = agreement.config(), agreement.prepare(given.together)
    learner = learner_for(data, config.training, 11)
    context = with_derived(config, Context(learner, data, center_ids(given.names), 11, 2))
    return [message.data[20:] for message in config.upload(context, config.init(context), 1).messages]


def found_in(text: bytes, upload: bytes) -> int:
    """How many of an upload's stretches of 64 bytes occur in the clear."""
    return sum(upload[at : at + 64] in text for at in range(0, len(upload) - 64, 16))


@pytest.mark.parametrize("secure", ["no", "yes"])
def test_processes_do_what_the_simulation_does_under_a_hostile_relay(federation, secure):
    """The relay reads every frame, and in the middle of rounds asks for uploads, stores and rounds that are
    none: it obtains nothing, changes nothing, and could read none of the uploads that it carried."""
    sign, loot = (federation.spy.with_name(f"spy-{what}") for what in ("hostile", "loot"))
    before = heard_so_far(federation)
    loot.unlink(missing_ok=True)
    sign.touch()
    settings = {**LINEAR, "secure": secure}
    agreement = replace(federation.given.agreement("abps-plus", rounds=3, **settings), study=f"s{secure}")
    try:
        outcome = federation.run(agreement, 3)
    finally:
        sign.unlink()
    assert outcome.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    asked = loot.read_text().splitlines()
    assert len(asked) >= 3 * 12
    for line in asked:
        _, _, answers = line.partition(") {")
        assert "b'" not in answers and "array" not in answers and "/" not in answers, line
        assert answers.startswith("}") or "('start'" in line, line  # no answer, but how work stands
    run = simulate(federation.given.together, "abps-plus", seed=11, rounds=3, settings=settings)
    text = overheard(federation, before)
    uploads = first_uploads(federation.given, "abps-plus")
    assert len(text) > outcome.report["bytes"] and all(len(each) > 200 for each in uploads)
    assert all(found_in(text, upload) == 0 for upload in uploads)
    assert found_in(text + uploads[0], uploads[0]) > 4  # the reader would have found them
    for name, model in zip(federation.given.names, run.models):
        store = federation.store(name, agreement.study)
        np.testing.assert_allclose(store.model(), model, atol=1e-4)
        assert "torch" not in federation.log(name)
        store.close()


def test_masked_counts_masked_sums_and_accounts_between_processes(federation, four):
    """Common scales counted under masks, sums that show nobody, noise that is paid for: one job."""
    settings = {"secure": "yes", "model": "linear", "epochs": 1, "clip": 1.0, "dp_epsilon": 8.0}
    book = codebook(four.together, 11)
    agreement = Agreement("hidden", "fedavg", book, 11, 2, settings)
    assert agreement.uncounted == book.numbers  # nobody has told a number of its columns
    outcome = federation.run(agreement, 2)
    assert outcome.status == "FINISHED:COMPLETED" and "error" not in outcome.report, outcome.report
    assert not outcome.report["left_out"] and all(not r["missing"] for r in outcome.report["rounds"])
    models = []
    for name in four.names:
        counts, study = (federation.store(name, each) for each in ("hidden scales", "hidden"))
        try:
            found = measuring.kept_in(counts)
            assert set(found["statistics"]) == set(book.numbers)
            assert sorted(found["summarised"]["bytes"]) == sorted(four.names)
            kinds = {e.kind for store in (counts, study) for e in store.traffic() if e.sent}
            assert kinds <= {"report", "mask", "statistics", "upload", "head"} and "mask" in kinds
            told = [release.what for release in account_of(study).releases]
            assert told == ["statistics"] * 3 + ["training"] * 2
            assert 0 < account_of(study).spent() <= 8.0
            models.append(study.model())
        finally:
            counts.close()
            study.close()
    assert all(np.array_equal(models[0], other) for other in models[1:])


def test_real_processes_export_the_pooled_effects(federation, four, tmp_path):
    columns = four.book(11, "own").numbers[:2]
    settings = {"formula": " + ".join(columns), "secure": "yes"}
    agreement = replace(four.agreement("regression", rounds=40, **settings), study="effects")
    outcome = federation.run(agreement, 40)
    assert outcome.status == "FINISHED:COMPLETED" and outcome.report["stopped_early"], outcome.report
    theirs, _ = pooled(four.tables.values(), four.roles.label, columns)
    for name in four.names:
        with contextlib.closing(federation.store(name, "effects")) as store:
            site_report(store, federation.site_file(name), tmp_path / name)
        found = pl.read_csv(tmp_path / name / "effects.csv")
        np.testing.assert_allclose(found["estimate"], theirs.params, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found["se"], theirs.bse, rtol=1e-6)


def test_what_is_too_long_is_refused_before_it_is_received(federation):
    """One site sends more than a message may have to those that it talks to: they drop it piece by piece."""
    agreement = replace(federation.given.agreement("flooding:FLOODING", rounds=1), study="flood")
    outcome = federation.run(agreement, 1)
    assert outcome.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    words = "dropped what came in the name of site-1: a message of 69206"
    told = {name: words in federation.log(name) for name in federation.given.names}
    assert not told.pop("site-1") and all(told.values())


@pytest.mark.parametrize(
    ("origin", "secure", "encrypted", "passes"),
    [
        ("site-1.job", True, True, True),
        ("site-1.job", False, False, False),  # made up at the relay, to be answered in the clear
        ("site-1.job", True, False, False),  # the same, claiming to have been decrypted
        ("", False, False, False),
        ("server.job", False, False, True),  # the conductor, which peers' methods do not listen to
    ],
)
def test_what_is_not_sealed_by_a_peer_is_dropped(origin, secure, encrypted, passes):
    headers = {
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.SECURE: secure,
        MessageHeaderKey.ENCRYPTED: encrypted,
    }
    assert (only_sealed(Message(headers, b"")) is None) == passes


def test_everything_listens_on_loopback_only(federation):
    import psutil

    for process in federation.running.values():
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family:
            for line in member.net_connections(kind="inet"):
                if line.status == psutil.CONN_LISTEN:
                    assert line.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def test_a_site_of_another_authority_cannot_join(federation, tmp_path):
    """The same names, another root certificate: the relay does not talk to it."""
    foreign = kits.provision(
        tmp_path / "foreign", [*federation.given.names[:1], "eve"], "localhost", federation.port
    )
    kit = foreign.sites["eve"]
    federation.site_file(federation.given.names[0]).write(kit / "local")
    federation.start("eve", kit)
    try:
        began, log = time.monotonic(), ""

        def refused() -> bool:
            return any(w in log.lower() for w in ("certificate_verify_failed", "failed to connect", "retry"))

        while not refused() and time.monotonic() < began + LONG:
            assert "eve" not in connected(federation.network.operator)
            time.sleep(1.0)
            log = (kit / "out.log").read_text(errors="replace")
        assert "Got engine" not in log and refused()
    finally:
        federation.kill("eve")
    with pytest.raises(RequestError, match="does not answer"), session(foreign.operator, seconds=5.0):
        pass


def test_a_job_that_brings_code_is_refused_by_the_sites(federation, tmp_path):
    agreement = federation.given.agreement("abps-plus", **LINEAR)
    signed = sign(Proposal(agreement), read_signer(federation.network.operator))
    recipe = submit.ABPSRecipe(signed, 1)
    recipe.export(str(tmp_path))
    job = tmp_path / recipe.job_name
    custom = job / "app" / "custom"
    custom.mkdir(parents=True)
    (custom / "surprise.py").write_text("print('hello')\n")
    with session(federation.network.operator) as line:
        try:
            identity = line.submit_job(str(job))
        except Exception as error:  # refused at the door
            assert "byoc" in str(error).lower() or "author" in str(error).lower()
            return
        until = time.monotonic() + LONG
        status = ""
        while time.monotonic() < until and not status.startswith("FINISHED"):
            status = str(line.get_job_status(identity))
            time.sleep(1.0)
    assert status != "FINISHED:COMPLETED"
    assert not list(federation.folder.glob("kits/site-*/**/abps-job.json"))


def test_rounds_go_on_without_who_is_paused_or_killed(federation):
    """One site is stopped for some seconds, and is back in the same job; another is killed and started again,
    and is back in the next one. Nothing is lost, and all have the same results."""
    killed, paused = federation.given.names[1:3]
    many = 1000  # more than are ever run: the job is ended when both have been away
    agreement = Agreement("returns", ENDLESS, federation.given.book(11), 11, many, OWN)
    watched = federation.given.names[0]
    at = partial(reached, federation, "returns")
    wait = partial(wait_for_round, federation, "returns")

    def harm() -> None:
        wait(watched, 1)
        family = federation.family(paused)
        for process in family:
            process.suspend()
        wait(watched, at(watched) + 3)
        for process in family:
            process.resume()
        federation.kill(killed)
        wait(watched, at(watched) + 3)
        wait(paused, at(paused) + 2)
        with session(federation.network.operator) as line:
            (job,) = [each["job_id"] for each in line.list_jobs() if each["status"].startswith("RUNNING")]
            line.abort_job(job)
        federation.start(killed)

    harming = threading.Thread(target=harm)
    harming.start()
    quick = Timeouts(call=3.0, sign=3.0, grace=5.0)
    outcome = federation.run(agreement, many, quick)
    harming.join()
    federation.wait_for(federation.given.names, LONG)
    assert outcome.status.startswith("FINISHED"), federation.log("relay")[-2000:]
    again = federation.run(agreement, 2, quick)
    assert again.ran and not again.report["left_out"], again.report
    stores = {name: federation.store(name, "returns") for name in federation.given.names}
    rounds = {row.number for row in stores[watched].rounds()}
    for name in (killed, paused):
        there = {row.number for row in stores[name].rounds()}
        missed = {number for number in rounds - there if number < max(there)}
        assert missed and max(there) > max(missed) > min(there), (name, missed, there)
    same_exchanges(stores)
    for name, store in stores.items():
        assert not audit.verify(store, read_signer(federation.network.sites[name])).faults
        store.close()


def test_a_study_goes_on_after_its_relay_was_killed(federation, monkeypatch):
    """The job is lost with the relay; the next one, submitted without asking, ends the study's rounds."""
    monkeypatch.setattr(submit, "AGAIN_SECONDS", 1.0)
    agreement = Agreement("relay", ENDLESS, federation.given.book(11), 11, 6, OWN)
    watched, notes = federation.given.names[0], []

    def harm() -> None:
        wait_for_round(federation, "relay", watched, 2)
        federation.kill("relay")
        federation.start("relay")
        federation.wait_for(federation.given.names, LONG)

    harming = threading.Thread(target=harm)

    def next_job() -> submit.JobOutcome:
        if notes:  # a job that begins while a site is still away goes on without it
            harming.join()
        return federation.run(agreement, 6)

    harming.start()
    done = submit.to_the_end(next_job, 6, notes.append)
    harming.join()
    assert any("the job is lost" in note or "without a report" in note for note in notes), notes
    assert done.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    stores = {name: federation.store(name, "relay") for name in federation.given.names}
    assert all(store.round == 6 for store in stores.values())
    same_exchanges(stores)
    for store in stores.values():
        store.close()


def wait_for_round(federation, study: str, name: str, number: int) -> None:
    until = time.monotonic() + LONG
    while reached(federation, study, name) < number and time.monotonic() < until:
        time.sleep(0.05)


def reached(federation, study: str, name: str) -> int:
    """The last round of a site; -1 before its first job."""
    with contextlib.suppress(RequestError):
        store = federation.store(name, study)
        try:
            return store.round
        finally:
            store.close()
    return -1
