"""A study by files that people carry: the models of a network, and what wrong files do (nothing)."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from abps.cli.main import main
from abps.core.errors import RequestError
from abps.lab.synthetic import builtin_table
from abps.privacy import fixed_point
from abps.privacy.secure_sum import Group, SumError
from abps.registry import Registry
from abps.sites.consent import keys, sitefile
from abps.sites.consent.approval import decide
from abps.sites.consent.keys import read_signer
from abps.sites.consent.kit import REVOKED
from abps.sites.consent.sitefile import Policy, SiteFile
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.courier import sealed, study
from abps.sites.courier.sealed import CourierFile, CourierStep, Letter
from abps.sites.courier.study import Courier, bring
from abps.sites.flare.kits import Authority
from abps.sites.node import measuring
from abps.sites.node.site import Site
from abps.sites.protocol.commands import Timeouts
from abps.sites.store import audit
from abps.sites.store.audit import JournalEvent
from abps.sites.store.rows import EntryKind
from abps.sites.store.store import Store

from .loopback import LoopbackNetwork
from .network import LINEAR, close, open_site
from .test_measuring import Desks, uncounted

QUICK = Timeouts(poll=0.0)
ASKING = Policy("ask", events=3, floor=0)


@pytest.fixture(scope="module")
def network_kits(four, tmp_path_factory):
    made = pytest.importorskip("abps.sites.flare.kits")
    return made.provision(tmp_path_factory.mktemp("courier-kits"), four.names, "localhost", 18996)


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch):
    """Keys are read once, and packages looked for once: every step here is a process of its own."""
    signer, real, found = functools.cache(read_signer), Registry.others, {}

    def others(self):
        if self.group not in found:
            found[self.group] = real(self)
        return found[self.group]

    for module in (keys, sitefile):
        monkeypatch.setattr(module, "read_signer", signer)
    monkeypatch.setattr(Registry, "others", others)


class Hospitals:
    """Sites with their kits and stores, and a bag in which files are carried."""

    def __init__(self, four, kits, folder: Path, agreement) -> None:
        self.four, self.kits, self.folder, self.agreement = four, kits, folder, agreement
        self.file = folder / "study.json"
        self.digest = study.propose_study(
            kits.operator, kits.authority.parent, agreement, four.names, self.file
        )
        for name in four.names:
            kit, roles = self.kit(name), four.roles
            (kit / "local").mkdir(parents=True)
            (kit / "startup").symlink_to(kits.sites[name] / "startup")
            own = SiteFile(
                name, str(four.tables[name]), roles.label, str(kit / "studies"), roles.patient, roles.time,
                policy=ASKING,
            )  # fmt: skip
            own.write(kit / "local")
        self.trips, self.carried = 0, set()

    def kit(self, name: str) -> Path:
        return self.folder / "sites" / name

    def approve(self, *names: str) -> None:
        for name in names or self.four.names:
            assert "waits for approval" in bring(self.kit(name), self.file)[0]
            own = study._site(self.kit(name))[0]
            journal = own.journal(self.kit(name))
            decide(Path(own.store), journal, self.agreement.study, JournalEvent.APPROVED, "Ada", self.digest)

    def courier(self, name: str) -> Courier:
        """As a new process has it: everything is read from the disk."""
        return study.find(self.kit(name), self.agreement.study)

    def out(self, *names: str) -> list[Path]:
        found = []
        for name in names or self.four.names:
            courier = self.courier(name)
            courier.go_on()
            found += courier.due()
        return found

    def trip(self) -> None:
        """Everything that was written is carried to everybody, who go on."""
        bag = [path for name in self.four.names for path in self.courier(name).due()]
        self.trips += 1
        for name in self.four.names:
            for path in bag:
                if (name, path) in self.carried or path.is_relative_to(self.kit(name)):
                    continue
                try:
                    bring(self.kit(name), path)
                    self.carried.add((name, path))
                except RequestError as error:
                    assert "not due" in str(error)
        self.out()

    def run(self, most: int = 80) -> None:
        if not self.trips:
            self.out()
        while not all(self.courier(name).over for name in self.four.names):
            assert self.trips < most
            self.trip()

    def store(self, name: str) -> Store:
        return Store.look(study._site(self.kit(name))[0].store_of(self.agreement.study))

    def models(self):
        stores = [self.store(name) for name in self.four.names]
        found = np.stack([store.model() for store in stores])
        for store in stores:
            store.close()
        return found


def over_network(four, agreement, folder):
    network = LoopbackNetwork()
    for name in four.names:
        open_site(four, name, agreement, folder, network)
    report = Scheduler(network, agreement, agreement.rounds, QUICK).run(four.names)
    models = np.stack([network.sites[name].models[0] for name in four.names])
    close(network)
    return models, report.rounds[-1].round


@pytest.mark.parametrize(
    ("method", "settings", "trips"),
    [
        ("abps-plus", LINEAR | {"secure": "yes"}, 9),
        ("regression", {"formula": "age + sbp_mean"}, 0),
    ],
)
def test_files_lead_to_the_models_of_a_network(four, network_kits, tmp_path, method, settings, trips):
    agreement = four.agreement(method, rounds=20, **settings)
    models, rounds = over_network(four, agreement, tmp_path / "network")
    by_hand = Hospitals(four, network_kits, tmp_path, agreement)
    by_hand.approve()
    by_hand.run()
    np.testing.assert_allclose(by_hand.models(), models, atol=1e-6)
    assert by_hand.trips == 1 + rounds and trips in (by_hand.trips, 0)
    for name in four.names:
        store = by_hand.store(name)
        found = audit.verify(store, read_signer(by_hand.kit(name)), [])
        assert store.round == rounds and not found.faults and found.heads >= rounds
        sent = [e for e in store.traffic() if e.sent and e.kind is EntryKind.UPLOAD]
        assert len(sent) == rounds
        assert not any(e.peer == "server" for e in store.traffic())
        store.close()


def test_common_scales_are_counted_by_files(four, network_kits, tmp_path):
    agreement = uncounted(four, "abps-plus", model="linear")
    network = Desks(four, agreement, tmp_path / "network")
    (tmp_path / "network").mkdir()
    scales = network.measured()
    Scheduler(network, measuring.with_scales(agreement, scales), 2, QUICK, scales=scales).run(four.names)
    models = np.stack([network.sites[name].models[0] for name in four.names])
    close(network)
    by_hand = Hospitals(four, network_kits, tmp_path, agreement)
    by_hand.approve()
    by_hand.run()
    assert by_hand.trips == 1 + 3 + 2
    np.testing.assert_allclose(by_hand.models(), models, atol=1e-6)


def test_masks_cancel_in_the_sum_of_all_and_hide_each_summand():
    """Against a plain sum; any one, two or three of four vectors, also summed, are noise."""
    rng = np.random.default_rng(3)
    names = ("a", "b", "c", "d")
    private = {name: X25519PrivateKey.generate() for name in names}
    public = {name: key.public_key().public_bytes_raw() for name, key in private.items()}
    plain = {name: np.round(rng.normal(size=300), 3) for name in names}
    group = Group(names, "study/1")
    made = {}
    for name in names:
        others = {peer: key for peer, key in public.items() if peer != name}
        masks = sealed.CourierMasks(name, private[name], others, "history")
        made[name] = masks.masked(group, fixed_point.encode(plain[name], 4))
    total = masks.verified(group, np.sum(list(made.values()), axis=0, dtype=np.uint64))
    np.testing.assert_allclose(fixed_point.decode(total), np.sum(list(plain.values()), axis=0), atol=4e-6)
    for some in (["a"], ["a", "b"], ["a", "b", "c"]):
        words = np.sum([made[name] for name in some], axis=0, dtype=np.uint64)
        near = (words >> np.uint64(56)) % np.uint64(255) == 0  # small numbers begin with zeros or ones
        assert near.mean() < 0.05
    ring = fixed_point.encode(plain["d"], 4)
    again = replace(masks, history="another history").masked(group, ring)
    assert not (again == made["d"]).any()
    with pytest.raises(SumError, match="key for masks of a is none"):
        replace(masks, keys=others | {"a": bytes(32)}).masked(group, ring)
    with pytest.raises(SumError, match="without a proven key"):
        replace(masks, keys={}).masked(group, ring)


@pytest.fixture
def running(four, network_kits, tmp_path):
    """A study whose members have said hello and written their first sum."""
    made = Hospitals(four, network_kits, tmp_path, four.agreement("regression", rounds=20, formula="age"))
    made.approve()
    made.out()
    made.trip()
    return made


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_wrong_files_change_nothing(running, four, network_kits, tmp_path):
    """Cut short, altered, stolen, forged, foreign, early, replayed, twice, unreadable."""
    me, *others = four.names
    kit, sender = running.kit(me), others[0]
    (good,) = [p for p in running.courier(sender).due() if "-001-sum-" in p.name]
    hello = running.kit(sender) / "studies" / "courier"
    (first,) = hello.glob("*/out/*hello*")
    text = json.loads(good.read_text())
    thief = read_signer(running.kit(others[1]))

    def changed(**facts):
        return json.dumps({**text, **facts})

    def signed_again(**facts):
        """By another member, as its own file."""
        made = sealed.parse(good, {**text, **facts})
        made = replace(made, certificate=thief.certificate.decode())
        return replace(made, signature=thief.sign(sealed.PURPOSE, made._signed).hex()).text()

    letter = {n: v[:200] + ("A" if v[200] != "A" else "B") + v[201:] for n, v in text["letters"].items()}
    honest = read_signer(running.kit(sender))
    ahead = running.courier(sender)
    envelope = CourierFile(ahead.digest, CourierStep.SUM, 2, sender, ahead.history(1), {})
    early = sealed.make(envelope, {me: (read_signer(kit).certificate, Letter())}, honest)
    other_past = replace(early, number=1, before="00" * 32)
    other_past = sealed.make(other_past, {me: (read_signer(kit).certificate, Letter())}, honest)
    cases = {
        "cut short": (good.read_text()[:-300], "cut short"),
        "no JSON": ("\x00\x01", "no courier file"),
        "a list": ("[1]", "no courier file"),
        "deep": ("[" * 100_000, "no courier file"),
        "NaN": (changed(letters={me: float("nan")}), "no courier file"),
        "a surrogate": (changed(before="\ud800"), "no courier file"),
        "another step": (changed(step="dance"), "no courier file"),
        "altered letter": (changed(letters=letter), "altered, or"),
        "another number": (changed(number=2), "altered, or"),
        "another sender": (changed(sender=others[1]), "altered, or"),
        "unsigned": (changed(signature=""), "altered, or"),
        "no certificate": (changed(certificate=""), "cannot be trusted"),
        "stolen letter": (signed_again(sender=others[1]), "a letter of another file"),
        "a stranger": (changed(sender="eve"), "not among the members"),
        "another study": (changed(proposal="00" * 32), "not proposed here"),
        "early": (early.text(), "is not due"),
        "another past": (other_past.text(), "went on from other files"),
    }
    before = snapshot(running.folder / "sites")
    for name, (content, words) in cases.items():
        path = tmp_path / "brought.abps"
        path.write_text(content, encoding="utf-8", errors="surrogatepass")
        with pytest.raises(RequestError, match=words) as found:
            bring(kit, path)
        assert "\n" not in str(found.value) and len(str(found.value)) < 400, name
        assert snapshot(running.folder / "sites") == before, name
    assert "nothing new" in bring(kit, first)[0]  # taken before
    assert "nothing new" in bring(running.kit(sender), good)[0]  # its own
    assert snapshot(running.folder / "sites") == before
    assert "taken" in bring(kit, good)[0]
    after = snapshot(running.folder / "sites")
    assert "nothing new" in bring(kit, good)[0] and snapshot(running.folder / "sites") == after
    twice = tmp_path / "twice.abps"
    envelope = CourierFile(ahead.digest, CourierStep.SUM, 1, sender, ahead.history(1), {})
    twice.write_text(sealed.make(envelope, {me: (read_signer(kit).certificate, Letter())}, honest).text())
    with pytest.raises(RequestError, match="two different files of step 1"):
        bring(kit, twice)
    assert snapshot(running.folder / "sites") == after
    running.run()
    assert "nothing new" in bring(kit, good)[0]
    with pytest.raises(RequestError, match="two different files"):
        bring(kit, twice)


def test_a_replayed_file_of_another_member_s_step_is_over(running, four, tmp_path):
    """A site that lost its inbox is told which step a file belongs to."""
    running.run()
    me, sender = four.names[:2]
    courier = running.courier(me)
    kept = courier._path(CourierStep.SUM, 1, sender)
    kept.rename(tmp_path / kept.name)
    with pytest.raises(RequestError, match=r"step 1 .* is over"):
        bring(running.kit(me), tmp_path / kept.name)


def test_an_expelled_member_s_files_are_not_taken(running, four, network_kits, tmp_path):
    me, gone = four.names[:2]
    network = tmp_path / "authority"
    shutil.copytree(network_kits.relay.parent, network)
    Authority(network).revoke(gone)
    shutil.copy(network / "authority" / REVOKED, running.kit(me) / "local" / REVOKED)
    (path,) = [p for p in running.courier(gone).due() if "-001-sum-" in p.name]
    with pytest.raises(RequestError, match="no member of the network any more"):
        bring(running.kit(me), path)


def test_a_crash_between_file_and_store_loses_nothing(four, network_kits, tmp_path, monkeypatch):
    """Every process ends once before its file is written and once before its round is stored."""
    agreement = four.agreement("abps-plus", rounds=4, **LINEAR, secure="yes")
    models, _ = over_network(four, agreement, tmp_path / "network")
    by_hand = Hospitals(four, network_kits, tmp_path, agreement)
    by_hand.approve()
    crashed: set[tuple[str, str, int]] = set()
    real_write, real_finish = Courier._write, Site.finish

    def once(kind, name, number):
        if (kind, name, number) not in crashed:
            crashed.add((kind, name, number))
            raise KeyboardInterrupt

    def write(self, p, letter):
        once("before the file", self.me, p)
        real_write(self, p, letter)

    def finish(self, round, rest):
        once("before the store", self.name, round)
        return real_finish(self, round, rest)

    monkeypatch.setattr(Courier, "_write", write)
    monkeypatch.setattr(Site, "finish", finish)
    real_go_on = Courier.go_on

    def go_on(self):
        while True:
            try:
                return real_go_on(study.find(self.kit, agreement.study))
            except KeyboardInterrupt:
                continue

    monkeypatch.setattr(Courier, "go_on", go_on)
    by_hand.run()
    assert len(crashed) >= 4 * (1 + 4 + 4)
    np.testing.assert_allclose(by_hand.models(), models, atol=1e-6)


def test_without_approval_nothing_is_written_and_a_withdrawal_ends_it(four, network_kits, tmp_path):
    made = Hospitals(four, network_kits, tmp_path, four.agreement("regression", rounds=20, formula="age"))
    me, *others = four.names
    made.approve(*others)
    assert "waits for approval" in bring(made.kit(me), made.file)[0]
    with pytest.raises(RequestError, match="waits for approval here"):
        made.out(me)
    assert not list((made.kit(me) / "studies").rglob("*.abps"))
    made.approve(me)
    made.out()
    made.trip()
    own = study._site(made.kit(me))[0]
    decide(Path(own.store), own.journal(made.kit(me)), "test", JournalEvent.WITHDRAWN, "Ada")
    with pytest.raises(RequestError, match="was withdrawn here by Ada"):
        made.out(me)
    changed = json.loads(made.file.read_text())
    changed["signed"]["proposal"]["agreement"]["seed"] = 12
    path = tmp_path / "changed.study"
    path.write_text(json.dumps(changed))
    with pytest.raises(RequestError, match="was changed after"):
        bring(made.kit(me), path)
    swapped = json.loads(made.file.read_text())
    swapped["certificates"][others[0]] = swapped["certificates"][others[1]]
    path.write_text(json.dumps(swapped))
    with pytest.raises(RequestError, match=f"came as {others[0]}'s is of {others[1]}"):
        bring(made.kit(me), path)


def test_what_needs_a_network_is_refused(four):
    private = {"clip": "1", "dp_epsilon": "4", "secure": "yes"}
    with pytest.raises(RequestError, match="leave dp_epsilon out"):
        study.check_method(four.agreement("fedavg", rounds=2, **private))
    with pytest.raises(RequestError, match="leave secure=no out"):
        study.check_method(four.agreement("abps-plus", rounds=2, **LINEAR, secure="no"))
    with pytest.raises(RequestError, match="for simulations"):
        study.check_method(four.agreement("fedavg", rounds=2, secure="yes", patience="3"))


@pytest.mark.slow
def test_the_guide_runs_as_printed(tmp_path, monkeypatch, capsys):
    """Its commands in order; those of north at every hospital, the fifth part until the study is over."""
    pytest.importorskip("nvflare")
    monkeypatch.chdir(tmp_path)
    frame, _ = builtin_table("icu-synthetic:centers=3,stays=1800,groups=3")
    names = ("north", "south", "east")
    for name, part in zip(names, frame.partition_by("center")):
        part.drop("center", "careunit").write_parquet(f"{name}.parquet")

    def call(line: str) -> str:
        words = shlex.split(line)
        words = [
            w for word in words for w in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
        ]
        with pytest.raises(SystemExit) as ended:
            main(words[1:])
        said = capsys.readouterr()
        assert ended.value.code == 0, (line, said.err)
        return " ".join((said.out + said.err).split())

    guide = (Path(__file__).parents[2] / "docs" / "courier.md").read_text()
    kits, init, propose, first, trip, export = re.findall(r"^```\n(.*?)^```", guide, flags=re.M | re.S)
    call(kits)
    for name in names:
        call(init.replace("north", name))
    digest = call(propose).split("proposal ")[1][:16]
    for name in names:
        for line in first.replace("north", name).replace("DIGEST", digest).splitlines():
            call(line)
    over: set[str] = set()
    trips = 1
    while len(over) < len(names):
        trips += 1
        assert trips < 40
        for name in names:
            said = [call(line) for line in trip.replace("north", name).splitlines()]
            over |= {name} if "the study is over" in said[1] else set()
    for name in names:
        assert f"model: {name}-export/model/{name}" in call(export.replace("north", name))
