"""The real federation on NVIDIA FLARE: the engine's simulator, and processes with mutual TLS."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.recipe import ProdEnv

from abps.core.arrays import Weights, repeated
from abps.core.errors import RequestError
from abps.data.prepare import codebook, prepare
from abps.engine.simulate import simulate
from abps.models.learners import learner_for
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.keys import read_signer
from abps.sites.consent.proposal import Proposal, sign
from abps.sites.consent.sitefile import SiteFile
from abps.sites.flare import kits
from abps.sites.flare.app import only_sealed
from abps.sites.flare.recipe import ABPSRecipe, JobTimeouts
from abps.sites.flare.submit import connected, session
from abps.sites.node.privacy_ledger import account_of
from abps.sites.protocol import measuring
from abps.sites.store import audit
from abps.sites.store.store import Store

from .network import OPEN, agree_about_partners, counted_once, same_beliefs
from .processes import LONG, Processes

pytestmark = pytest.mark.slow

#: How many sites of the engine are killed, one after the other; ten are killed in test_kills.py.
KILLS = int(os.environ.get("ABPS_TEST_KILLS", "1"))


@pytest.fixture(autouse=True, scope="module")
def own_home(tmp_path_factory):
    """The engine writes into its user's home folder: give it another one."""
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    if before is not None:
        os.environ["HOME"] = before


def test_eight_sites_on_the_engine_are_the_simulation(eight, tmp_path):
    """Five rounds in the engine's simulator: partners, beliefs and bytes equal, weights to 1e-5."""
    agreement = eight.agreement("abps-pq-k1")
    (tmp_path / "agreement.json").write_text(json.dumps(agreement.to_json()))
    for name in eight.names:
        roles, folder = eight.roles, tmp_path / "sites" / name
        table = str(eight.tables[name])
        SiteFile(name, table, roles.label, str(folder), roles.patient, roles.time, policy=OPEN).write(folder)
    source = Path(kits.__file__).parents[3]
    environment = os.environ | {"ABPS_SITES": str(tmp_path / "sites"), "PYTHONPATH": str(source)}
    script = Path(__file__).with_name("simenv_job.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path / "agreement.json", tmp_path / "workspace", *eight.names],
        env=environment, capture_output=True, text=True, timeout=LONG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (told,) = (tmp_path / "workspace").rglob("abps-job.json")
    report = json.loads(told.read_text())
    run = simulate(eight.together, "abps-pq-k1", seed=11, rounds=5)
    assert report["bytes"] == {
        "edge": run.bytes.edge, "directed": run.bytes.directed, "control": run.bytes.control,
    }  # fmt: skip
    stores = {name: Store.look(tmp_path / "sites" / name / "test.sqlite") for name in eight.names}
    same_beliefs(stores, run.beliefs)
    same_partners(stores, run)
    models = np.stack([stores[name].model() for name in eight.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    for store in stores.values():
        store.close()


def same_partners(stores, run) -> None:
    accepted = run.decisions.filter(run.decisions["decision"] == "accepted")
    expected = {name: {t: set() for t in range(1, run.rounds + 1)} for name in stores}
    for t, center, peer in accepted.select("round", "center", "peer").iter_rows():
        expected[center][t].add(peer)
        expected[peer][t].add(center)
    for name, store in stores.items():
        assert {r.number: set(r.partners) for r in store.rounds()} == expected[name]


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


def trained_weights(given, seed=11):
    """What each site sends in the first round: its weights after the first local epochs."""
    data = prepare(given.together, seed)
    config = given.agreement("abps").config().training
    learner = learner_for(data, config, seed)
    start = repeated(learner.start, data.size).copy()
    return learner.train(start, 1)


def found_in(text: bytes, weights: Weights) -> int:
    """How many of a model's stretches of 16 weights occur in the clear."""
    flat = weights.astype("<f4")
    return sum(flat[at : at + 16].tobytes() in text for at in range(0, len(flat) - 16, 1000))


def test_processes_with_mutual_tls_do_what_the_simulation_does(federation):
    agreement = federation.given.agreement("abps", rounds=3)
    before = heard_so_far(federation)
    outcome = federation.run(agreement, 3)
    assert outcome.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    run = simulate(federation.given.together, "abps", seed=11, rounds=3)
    stores = {name: federation.store(name) for name in federation.given.names}
    same_beliefs(stores, run.beliefs)
    same_partners(stores, run)
    told = outcome.report["bytes"]
    assert (told["edge"], told["control"]) == (run.bytes.edge, run.bytes.control)
    # The relay carried every swap, and could read none of it.
    text = overheard(federation, before)
    assert len(text) > told["directed"]
    assert b"ABPS\x01\x01\x00\x00" not in text
    assert all(found_in(text, weights) == 0 for weights in trained_weights(federation.given))
    for store in stores.values():
        store.close()


def test_a_relay_with_altered_code_obtains_nothing_and_changes_nothing(federation):
    """In the middle of rounds it asks for weights, losses, stores and rounds that are none."""
    sign, loot = (federation.spy.with_name(f"spy-{what}") for what in ("hostile", "loot"))
    agreement = replace(federation.given.agreement("abps-pq-k1", rounds=2), study="hostile")
    sign.touch()
    try:
        outcome = federation.run(agreement, 2)
    finally:
        sign.unlink()
    assert outcome.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    asked = loot.read_text().splitlines()
    assert len(asked) >= 2 * 18
    for line in asked:
        _, _, answers = line.partition(") {")
        assert "b'" not in answers and "array" not in answers and "/" not in answers, line
        assert answers.startswith("}") or "('start'" in line, line  # no answer, but how work stands
    run = simulate(federation.given.together, "abps-pq-k1", seed=11, rounds=2)
    stores = {name: federation.store(name, "hostile") for name in federation.given.names}
    same_partners(stores, run)
    for store, model in zip(stores.values(), run.models):
        assert store.round == 2
        np.testing.assert_allclose(store.model(), model, atol=1e-5)
        store.close()


def test_a_method_of_ones_own_runs_between_real_sites(federation, monkeypatch):
    """Thirty lines outside the package: partners, bytes and models are the simulation's."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")
    agreement = replace(federation.given.agreement("rotation:ROTATION", rounds=3, share="0.3"), study="own")
    outcome = federation.run(agreement, 3)
    assert outcome.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    run = simulate(federation.given.together, "rotation:ROTATION", 11, 3, {"share": "0.3"})
    told = outcome.report["bytes"]
    assert told == {"edge": run.bytes.edge, "directed": run.bytes.directed, "control": run.bytes.control}
    assert told["edge"] > 0
    stores = {name: federation.store(name, "own") for name in federation.given.names}
    models = np.stack([stores[name].model() for name in federation.given.names])
    np.testing.assert_allclose(models, run.models, atol=1e-5)
    met = [len(row.partners) for store in stores.values() for row in store.rounds()]
    assert np.mean(met) == run.partners_mean
    for store in stores.values():
        store.close()


def test_masked_counts_masked_sums_and_accounts_between_processes(federation, four):
    """Common scales counted under masks, a server that sees sums alone, noise that is paid for: one job."""
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
            assert kinds <= {"told", "mask", "statistics", "weights"} and "mask" in kinds
            told = [release.what for release in account_of(study).releases]
            assert told == ["statistics"] * 3 + ["training"] * 2
            assert 0 < account_of(study).spent() <= 8.0
            models.append(study.model())
        finally:
            counts.close()
            study.close()
    assert all(np.array_equal(models[0], other) for other in models[1:])


def test_the_pooled_regression_between_processes(federation, four):
    """From masked sums alone: the simulation's coefficients and bytes."""
    settings = {"secure": "yes", "standardise": "own"}
    agreement = Agreement("pooled", "glm-exact", codebook(four.together, 11), 11, 3, settings)
    outcome = federation.run(agreement, 3)
    assert outcome.status == "FINISHED:COMPLETED" and "error" not in outcome.report, outcome.report
    run = simulate(four.together, "glm-exact", 11, 3, settings)
    told = outcome.report["bytes"]
    assert told == {"edge": run.bytes.edge, "directed": run.bytes.directed, "control": run.bytes.control}
    for name, model in zip(four.names, run.models):
        store = federation.store(name, "pooled")
        np.testing.assert_allclose(store.model(), model, atol=1e-5)
        assert {e.kind for e in store.traffic() if e.sent} <= {"told", "mask", "weights"}
        store.close()


def test_what_is_too_long_is_refused_before_it_is_received(federation, monkeypatch):
    """One site sends a hundred megabytes to those that it talks to: they drop it piece by piece."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")
    agreement = replace(federation.given.agreement("flooding:FLOODING", rounds=1), study="flood")
    outcome = federation.run(agreement, 1)
    assert outcome.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    words = "dropped what came in the name of site-1: a message of 104858"
    told = {name: words in federation.log(name) for name in federation.given.names}
    assert not told.pop("site-1") and all(told.values())


def test_a_package_that_sites_do_not_allow_is_not_imported(federation, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")
    agreement = replace(federation.given.agreement("stranger:ROTATION", rounds=1), study="strange")
    outcome = federation.run(agreement, 1)
    assert "it does not allow a package that the job names" in outcome.report["error"]


def test_the_recipe_runs_in_the_engines_production_environment(federation):
    """The same recipe, submitted by the engine's own ``ProdEnv`` with the operator's kit."""
    agreement = replace(federation.given.agreement("abps-pq-k1", rounds=1), study="prod")
    kit = federation.network.operator
    signed = sign(Proposal(agreement.study, agreement), read_signer(kit))
    recipe = ABPSRecipe(agreement, 1, timeouts=JobTimeouts(call=8.0, sign=8.0), signed=signed)
    run = recipe.execute(ProdEnv(str(kit), login_timeout=30.0, username=kit.name))
    assert run.get_result(timeout=LONG) is not None
    assert run.get_status() == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    simulated = simulate(federation.given.together, "abps-pq-k1", seed=11, rounds=1)
    stores = {name: federation.store(name, "prod") for name in federation.given.names}
    same_beliefs(stores, simulated.beliefs)
    for store in stores.values():
        store.close()


def test_the_reader_would_have_found_weights_in_the_clear(federation):
    """FedAvg needs a server that averages: its weights are readable there, and the reader finds them."""
    before = heard_so_far(federation)
    agreement = federation.given.agreement("fedavg", rounds=1)
    outcome = federation.run(replace(agreement, study="star"), 1)
    assert outcome.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
    text = overheard(federation, before)
    assert b"ABPS\x01\x01\x00\x00" in text
    assert all(found_in(text, weights) > 10 for weights in trained_weights(federation.given))


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

        while time.monotonic() < began + 8.0 or (not refused() and time.monotonic() < began + LONG):
            assert "eve" not in connected(federation.network.operator)
            time.sleep(1.0)
            log = (kit / "out.log").read_text(errors="replace")
        assert "Got engine" not in log and refused()
    finally:
        federation.kill("eve")
    with pytest.raises(RequestError, match="does not answer"), session(foreign.operator, seconds=5.0):
        pass


def test_a_job_that_brings_code_is_refused_by_the_sites(federation, tmp_path):
    from abps.sites.flare.recipe import ABPSRecipe

    recipe = ABPSRecipe(federation.given.agreement("abps"), 1)
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


def test_killed_sites_come_back_with_everything_they_knew(federation):
    """SIGKILL of a site's processes in the middle of a job: the others finish; the next job has it again."""
    rng = random.Random(KILLS)
    rounds, first = 8, 0
    book = federation.given.book(11)
    agreement = Agreement("kills", "abps", book, 11, (rounds + 2) * KILLS, {"kappa": 2})
    for _ in range(KILLS):
        victim = rng.choice(federation.given.names)
        outcome = run_and_kill(federation, agreement, rounds, victim, first, rng)
        report = outcome.report
        assert report is not None and len(report["rounds"]) == rounds, federation.log("relay")[-2000:]
        last = report["rounds"][-1]
        others = [name for name in federation.given.names if name != victim]
        assert set(others) <= set(last["present"]) and not set(others) & set(last["missing"])
        assert victim not in last["present"], "the kill came too late to matter"
        before = {name: remembered(federation, name) for name in federation.given.names}
        federation.start(victim)
        federation.wait_for(federation.given.names, LONG)
        # A process that was just started may be slow to answer, and would join a round later.
        again = federation.run(agreement, 2, JobTimeouts(call=30.0, sign=30.0))
        assert again.status == "FINISHED:COMPLETED", federation.log("relay")[-2000:]
        away = [(r["round"], r["missing"]) for r in again.report["rounds"] if r["missing"]]
        assert all(set(r["present"]) == set(federation.given.names) for r in again.report["rounds"]), (
            f"{victim} {away} {again.report['left_out']} {[r['present'] for r in again.report['rounds']]}"
        )
        first = again.report["rounds"][-1]["round"]
        check_stores(federation, before)


def test_who_was_killed_or_paused_is_back_in_the_same_job(federation):
    """A site is killed and started again, another one is stopped for some seconds: rounds go on meanwhile."""
    import threading

    killed, paused = federation.given.names[1:3]
    many = 1000  # more than are ever run: the job is ended when both are back
    agreement = Agreement("returns", "abps", federation.given.book(11), 11, many, {"kappa": 2})

    watched = federation.given.names[0]

    def reached(name: str = watched) -> int:
        with contextlib.suppress(RequestError):
            store = federation.store(name, "returns")
            try:
                return store.round
            finally:
                store.close()
        return -1

    def wait_for_round(number: int, name: str = watched) -> None:
        until = time.monotonic() + LONG
        while reached(name) < number and time.monotonic() < until:
            time.sleep(0.05)

    def harm() -> None:
        wait_for_round(1)
        family = federation.family(paused)
        for process in family:
            process.suspend()
        wait_for_round(reached() + 3)
        for process in family:
            process.resume()
        federation.kill(killed)
        # A fast machine starts a site before it is missed: two rounds end without it first.
        wait_for_round(reached() + 3)
        federation.start(killed)
        for name in (killed, paused):
            wait_for_round(reached(name) + 2, name)
        with session(federation.network.operator) as line:
            (job,) = [told["job_id"] for told in line.list_jobs() if told["status"].startswith("RUNNING")]
            line.abort_job(job)

    harming = threading.Thread(target=harm)
    harming.start()
    outcome = federation.run(agreement, many, JobTimeouts(call=3.0, sign=3.0, grace=5.0))
    harming.join()
    federation.wait_for(federation.given.names, LONG)
    assert outcome.status.startswith("FINISHED"), federation.log("relay")[-2000:]
    stores = {name: federation.store(name, "returns") for name in federation.given.names}
    rounds = {row.number for row in stores[watched].rounds()}
    for name in (killed, paused):
        there = {row.number for row in stores[name].rounds()}
        missed = {number for number in rounds - there if number < max(there)}
        assert missed and max(there) > max(missed) > min(there), (name, missed, there)
    agree_about_partners(stores, kappa=2, doubt=True)
    for name, store in stores.items():
        counted_once(store)
        assert not audit.verify(store, read_signer(federation.network.sites[name])).faults
        store.close()


def remembered(processes, name):
    store = processes.store(name, "kills")
    try:
        return store.observations()
    finally:
        store.close()


def run_and_kill(processes, agreement, rounds, victim, first, rng):
    """Start a job, and kill a site some time after it has finished a round of it."""
    import threading

    done: dict = {}

    def watch() -> None:
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            try:
                store = processes.store(victim, "kills")
                reached = store.round
                store.close()
            except RequestError:
                reached = 0
            if reached > first:
                break
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 0.3))
        processes.kill(victim)
        done["killed"] = True

    watcher = threading.Thread(target=watch)
    watcher.start()
    outcome = processes.run(agreement, rounds)
    watcher.join()
    assert done["killed"]
    return outcome


def check_stores(processes, before) -> None:
    """Nothing lost, nothing doubled, no pair that only one side knows of."""
    stores = {name: processes.store(name, "kills") for name in processes.given.names}
    agree_about_partners(stores, kappa=2, doubt=False)
    for name, store in stores.items():
        assert before[name].items() <= store.observations().items()
        counted_once(store)
        store.close()
