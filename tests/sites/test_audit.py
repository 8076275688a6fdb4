"""A log that can be believed: a deleted, changed or reordered row is found, also by what partners know."""

from __future__ import annotations

import datetime
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from abps import files
from abps.cli.main import main
from abps.core.errors import RequestError
from abps.sites.consent.keys import Signer
from abps.sites.consent.sitefile import SiteFile
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Command, Timeouts
from abps.sites.store import audit
from abps.sites.store.rows import link
from abps.sites.store.store import Store
from abps.wire.messages import Head, pack_head, pack_upload

from .loopback import LoopbackNetwork
from .network import LINEAR, close, join, open_site

QUICK = Timeouts(poll=0.0)


def made(name: str) -> Signer:
    """A key with a certificate that says whose it is."""
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    day = datetime.datetime(2026, 1, 1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(day)
        .not_valid_after(day + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    return Signer(key, certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def keys(four):
    return {name: made(name) for name in four.names}


def job(four, keys, folder, rounds, study_rounds=6, network=None, **more):
    """Some rounds between sites that stand for their logs."""
    agreement = four.agreement("abps-plus", rounds=study_rounds, **LINEAR)
    network = network or LoopbackNetwork()
    for name in four.names:
        open_site(four, name, agreement, folder, network, signer=keys[name], **more)
    try:
        return Scheduler(network, agreement, rounds, QUICK).run(four.names), network
    finally:
        close(network)


@pytest.fixture(scope="module")
def done(four, keys, tmp_path_factory):
    """The stores of four sites after two rounds."""
    folder = tmp_path_factory.mktemp("audited")
    report, network = job(four, keys, folder, 2)
    assert len(report.rounds) == 2
    return folder, network


@pytest.fixture
def stores(done, tmp_path):
    for path in done[0].glob("*.sqlite"):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path


def looked(folder, name, signer, partner_heads=()):
    with closing(Store.look(folder / f"{name}.sqlite", check=False)) as store:
        return audit.verify(store, signer, partner_heads)


def held_by_others(four, folder, name):
    """What the partners of a site know of its log."""
    found = []
    for other in four.names:
        with closing(Store.look(folder / f"{other}.sqlite")) as store:
            found += store.heads(name) if other != name else []
    return found


def test_a_log_in_order_is_believed_by_itself_and_by_partners(four, keys, stores):
    for name in four.names:
        held = held_by_others(four, stores, name)
        found = looked(stores, name, keys[name], held)
        assert found.faults == () and found.rows > 10 and found.heads >= 1
        assert found.partner_heads == len(held)
    assert sum(len(held_by_others(four, stores, name)) for name in four.names) >= 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DELETE FROM traffic WHERE number = 7", "row 7 of the log is missing"),
        ("UPDATE traffic SET bytes = bytes - 1 WHERE number = 7", "row 7 of the log was changed"),
        ("UPDATE traffic SET peer = 'nobody' WHERE number = 7", "row 7 of the log was changed"),
        ("UPDATE traffic SET why = why || '.' WHERE number = 7", "row 7 of the log was changed"),
        ("UPDATE traffic SET number = -7 WHERE number = 7; UPDATE traffic SET number = 7 WHERE number = 8; "
         "UPDATE traffic SET number = 8 WHERE number = -7", "row 7 of the log was changed"),
        ("DELETE FROM traffic WHERE number > 7", "cut short"),
        ("DELETE FROM traffic", "cut short"),
        # What was told after weights were swapped: no partner has a head of it, so the site signs its own.
        ("DELETE FROM traffic WHERE number = (SELECT max(number) FROM traffic)", "cut short"),
    ],
)  # fmt: skip
def test_a_changed_log_is_found(four, keys, stores, change, words):
    name = four.names[0]
    with closing(sqlite3.connect(stores / f"{name}.sqlite")) as db:
        db.executescript(change)
    found = looked(stores, name, keys[name])
    assert found.faults and words in found.faults[0]


def test_who_has_the_key_too_is_found_by_partners(four, keys, stores):
    """The log is made anew from its seventh row on, chained and signed as it should be."""
    name = four.names[0]
    path = stores / f"{name}.sqlite"
    with closing(Store.look(path)) as store:
        facts, before, rows = store.facts(), store.digest_at(6), store.log_rows()[6:]
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DELETE FROM traffic WHERE number > 6; DELETE FROM head WHERE site = '" + name + "'")
        for number, at, round, *row, _ in rows:
            row = row if row[2] == "kept" else ["site-9", 1, "upload", 16, "nothing to see"]
            before = link(before, (number, at, round, *row))
            values = (number, at, round, *row, before)
            db.execute("INSERT INTO traffic VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        db.commit()
    with closing(Store.open(path, name, facts["agreement"])) as store:
        audit.sign_head(store, 2, keys[name])
    assert looked(stores, name, keys[name]).faults == ()
    found = looked(stores, name, keys[name], held_by_others(four, stores, name))
    assert found.faults and "a partner holds" in found.faults[0]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE round SET validation = 0.99 WHERE number = 1", "round 1"),
        ("UPDATE round SET partners = '[]' WHERE number = 2", "round 2"),
        ("DELETE FROM round WHERE number = 2", "round 2"),
        ("INSERT INTO round VALUES (9, '[]', '', 0.5)", "round 9"),
        ("UPDATE fact SET value = '{\"spent\": 0}' WHERE key = 'privacy'", "fact privacy"),
        ("DELETE FROM fact WHERE key = 'privacy'", "fact privacy"),
        ("UPDATE fact SET value = 'another' WHERE key = 'table'", "fact table"),
        ("UPDATE fact SET value = '99' WHERE key = 'rounds'", "study"),
        ("INSERT INTO fact VALUES ('more', 'x')", "study"),
        ("UPDATE broadcast SET content = x'00' WHERE round = 1", "model"),
    ],
)
def test_scores_rounds_and_the_privacy_account_are_under_the_signed_log(four, keys, stores, change, what):
    """Edited with sqlite: `verify` names what was changed, and no job opens the store."""
    name = four.names[0]
    path = stores / f"{name}.sqlite"
    with closing(Store.look(path)) as store:
        agreement = store.facts()["agreement"]
    with closing(Store.open(path, name, agreement)) as store:
        store.keep(privacy='{"spent": 4.7}')
        store.refused("eve", "wrong round", "round 9")
    with closing(sqlite3.connect(path)) as db:
        db.executescript(change)
    found = looked(stores, name, keys[name])
    assert [fault for fault in found.faults if fault.startswith(what)] == list(found.faults) != []
    with pytest.raises(RequestError, match=f"changed: {what} is not what the log says"):
        Store.open(path, name, agreement)


@pytest.mark.parametrize("change", ["UPDATE traffic SET bytes = 0", "DELETE FROM traffic"])
def test_refusals_cannot_be_taken_out_of_the_log(four, keys, stores, change):
    name = four.names[0]
    path = stores / f"{name}.sqlite"
    with closing(Store.look(path)) as store:
        agreement = store.facts()["agreement"]
    with closing(Store.open(path, name, agreement)) as store:
        for _ in range(3):
            store.refused("eve", "wrong round", "round 9")
        assert store.refusals() == {("eve", "wrong round"): 3}
    with closing(Store.open(path, name, agreement)) as store:
        assert store.refusals() == {("eve", "wrong round"): 3}
        audit.sign_head(store, 2, keys[name])
    assert looked(stores, name, keys[name]).faults == ()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"{change} WHERE kind = 'refused'")
    assert looked(stores, name, keys[name]).faults


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_site_whose_store_was_deleted_takes_no_part(four, keys, tmp_path, rounds):
    """Its log, its refusals and its account of epsilon begin anew: partners know better. The only way back is
    a backup that a person restores."""
    name = four.names[2]
    path = tmp_path / f"{name}.sqlite"
    job(four, keys, tmp_path, rounds)
    audit.backup(path, tmp_path / "backup")
    for part in tmp_path.glob(f"{path.name}*"):
        part.unlink()
    exported = tmp_path / "heads.json"
    for other in set(four.names) - {name}:
        with closing(Store.look(tmp_path / f"{other}.sqlite")) as store:
            if store.heads(name):
                files.write_json(exported, audit.heads_json(store))
    with pytest.raises(RequestError, match="is gone: a partner holds the head"):
        audit.check_not_gone(path, name, keys[name], [exported])
    audit.check_not_gone(path, name, keys[four.names[0]], [exported])  # whoever else's heads prove nothing
    report, _ = job(four, keys, tmp_path, 1)
    assert all("not the one that its partners know" in r.missing[name] for r in report.rounds)
    path.unlink()
    assert audit.restore(path, tmp_path / "backup", "Ada", keys[name]).faults == ()
    report, _ = job(four, keys, tmp_path, 1)
    assert name in report.rounds[0].present


def test_what_others_make_up_about_a_log_counts_for_nothing(four, keys, stores):
    name, other = four.names[:2]
    held = held_by_others(four, stores, name)
    lie = replace(held[0], rows=9999)
    forged = replace(lie, signature=keys[other].sign(audit.PURPOSE, audit.signed_content(lie, "x")))
    assert looked(stores, name, keys[name], [lie, forged]).faults == ()


def test_everything_that_the_scheduler_gets_is_in_the_log(four, stores):
    with closing(Store.look(stores / f"{four.names[0]}.sqlite")) as store:
        told = [e for e in store.traffic() if e.kind == "report"]
        assert {e.peer for e in told} == {"server"} and all(e.sent and e.bytes > 0 for e in told)
        words = " ".join(e.why for e in told)
        assert all(w in words for w in ("training rows", "validation AUROC", "bytes we sent in the round"))


def test_an_older_store_tells_its_site_that_partners_know_more(four, keys, tmp_path):
    """Brought back by hand, the site takes no part; brought back by the command, its log says so."""
    name = four.names[1]
    path = tmp_path / f"{name}.sqlite"
    job(four, keys, tmp_path, 1)
    audit.backup(path, tmp_path / "backup")
    job(four, keys, tmp_path, 2)
    shutil.copy(tmp_path / "backup" / path.name, path)
    report, _ = job(four, keys, tmp_path, 1)
    assert all("not the one that its partners know" in r.missing[name] for r in report.rounds)
    with closing(Store.look(path)) as store:
        assert any("our log is not the one that" in e.why for e in store.traffic() if e.kind == "decision")
    found = audit.restore(path, tmp_path / "backup", "Ada", keys[name])
    assert found.faults == ()
    report, _ = job(four, keys, tmp_path, 1)
    assert name in report.rounds[0].present
    assert looked(tmp_path, name, keys[name], held_by_others(four, tmp_path, name)).faults == ()


@pytest.mark.parametrize("first", [True, False])
def test_a_log_rewritten_without_the_key_is_found(four, keys, stores, first):
    """A row that claims a restore, messages deleted, and the plain chain computed anew: once this passed."""
    name = four.names[0]
    path = stores / f"{name}.sqlite"
    with closing(Store.look(path)) as store:
        start, rows = store.digest_at(0), store.log_rows()
    claim = ("now", 1, name, 0, "restored", 0, "restored from a backup of round 1, by Ada")
    kept = [row[1:-1] for row in rows if not (row[4] and row[5] == "upload")]
    rewritten = [claim, *kept] if first else [*kept[:3], claim, *kept[3:]]
    digest = start
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM traffic")
        for number, row in enumerate(rewritten, 1):
            digest = link(digest, (number, *row))
            db.execute("INSERT INTO traffic VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (number, *row, digest))
        forged = link(start, (1, *rewritten[0]))
        db.execute("INSERT INTO head VALUES (?, 1, 1, 1, ?, ?)", (name, forged, b"x"))
        db.commit()
    found = looked(stores, name, keys[name])
    assert any("claims a restore that nobody here signed" in fault for fault in found.faults)
    assert any("this site signed" in fault for fault in found.faults)
    held = held_by_others(four, stores, name)
    assert any("a partner holds" in fault for fault in looked(stores, name, keys[name], held).faults)


def test_a_store_rolled_back_behind_an_old_restore_is_found(four, keys, tmp_path):
    """A real restore excuses what it lost, and nothing that was signed after it."""
    name = four.names[1]
    path = tmp_path / f"{name}.sqlite"
    job(four, keys, tmp_path, 1)
    audit.backup(path, tmp_path / "backup")
    job(four, keys, tmp_path, 1)
    audit.restore(path, tmp_path / "backup", "Ada", keys[name])
    shutil.copy(path, tmp_path / "restored.sqlite")
    report, _ = job(four, keys, tmp_path, 2)
    assert name in report.rounds[0].present
    shutil.copy(tmp_path / "restored.sqlite", path)  # with its signed restore, but without what came after it
    held = held_by_others(four, tmp_path, name)
    assert any(head.restores == 1 for head in held)
    assert any("a partner holds" in fault for fault in looked(tmp_path, name, keys[name], held).faults)
    report, _ = job(four, keys, tmp_path, 1)
    assert all("not the one that its partners know" in r.missing[name] for r in report.rounds)


def test_a_backup_that_was_changed_is_refused(four, keys, stores):
    name = four.names[0]
    path = stores / f"{name}.sqlite"
    audit.backup(path, stores / "backup")
    with closing(sqlite3.connect(stores / "backup" / path.name)) as db:
        db.executescript("DELETE FROM traffic WHERE number = 5")
    before = path.read_bytes()
    with pytest.raises(RequestError, match="row 5 of the log is missing"):
        audit.restore(path, stores / "backup", "Ada", keys[name])
    assert path.read_bytes() == before


# The wire


def test_uploads_of_one_study_or_job_are_refused_in_another(four, tmp_path):
    """Study A's uploads are not taken in study B, nor those of one job in another."""
    agreement = four.agreement("abps-plus", **LINEAR)
    pair = four.names[:2]
    networks = []
    for other, job_name in ((agreement, "1"), (replace(agreement, study="other"), "1"), (agreement, "2")):
        networks.append(LoopbackNetwork())
        for name in pair:
            folder = tmp_path / other.study / job_name
            site = open_site(four, name, other, folder, networks[-1], job=job_name)
            join(site, pair)
            site.begin(1, pair)
    here, *elsewhere = (network.sites[pair[0]] for network in networks)
    peer = networks[0].sites[pair[1]]
    for site in elsewhere:
        own = site.context.method.upload(site.context.method_context, site.context.state, 1)
        peer.receive(here.name, "upload", pack_upload(own.messages[0].data, 1, site.context.id))
    assert peer.store.refusals() == {(here.name, "wrong sender"): 2} and not peer.exchanges._uploads
    peer.receive(here.name, "upload", pack_upload(own.messages[0].data, 1, here.context.id))
    assert list(peer.exchanges._uploads) == [here.name]
    for network in networks:
        close(network)


@pytest.mark.parametrize("spoken", [[1, 3], [3, 1], [4, 1]])
def test_nobody_talks_a_job_into_another_version(four, keys, tmp_path, spoken):
    """One site says, or the relay says in its name, that it speaks another version: it is left out, and the
    others go on as they were."""
    odd = four.names[2]

    class Mixed(LoopbackNetwork):
        def ask(self, sites, command, *arguments, seconds):
            replies, failed = super().ask(sites, command, *arguments, seconds=seconds)
            if command is Command.HELLO and odd in replies:
                replies[odd]["wire"] = spoken
            return replies, failed

    report, _ = job(four, keys, tmp_path, 1, network=Mixed())
    words = f"speaks version {'.'.join(map(str, spoken))} of the wire format"
    assert words in report.left_out[odd] and odd not in report.rounds[0].present
    kinds = set()
    for name in four.names:
        with closing(Store.look(tmp_path / f"{name}.sqlite")) as store:
            kinds |= {e.kind for e in store.traffic()}
    assert {"upload", "broadcast"} <= kinds


def test_a_head_that_is_none_does_no_harm(four, keys, tmp_path):
    agreement = four.agreement("abps-plus", **LINEAR)
    network = LoopbackNetwork()
    for name in four.names[:2]:
        site = open_site(four, name, agreement, tmp_path, network, signer=keys[name])
        join(site, four.names[:2])
    one, other = (network.sites[name] for name in four.names[:2])
    for data in (b"", b"x" * 20, pack_head(Head("", 5, 1, bytes(32)), 7), b"\0" * 5000):
        assert one.receive(other.name, "head", data) == b""
    assert sum(one.store.refusals().values()) == 4
    made_up = pack_head(Head("", 99, 1, bytes(32), b"made up"), other.context.id)
    one.receive(other.name, "head", made_up)
    one.begin(1, four.names[:2])  # a made-up head does not keep it from taking part
    close(network)


def test_the_commands(four, keys, stores, capsys):
    name = four.names[0]
    home = stores / "home"
    (home / "studies").mkdir(parents=True)
    shutil.copy(stores / f"{name}.sqlite", home / "studies" / "test.sqlite")
    SiteFile(name, "-", "died", str(home / "studies")).write(home)

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["site", *map(str, arguments)])
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    code, out, _ = call("verify", home, "--json")
    assert code == 0 and json.loads(out)["faults"] == [] and json.loads(out)["rows"] > 10
    code, _, _ = call("backup", home, "--out", stores / "backup")
    assert code == 0 and (stores / "backup" / "test.sqlite").is_file()
    with closing(Store.look(stores / f"{four.names[1]}.sqlite")) as store:
        files.write_json(stores / "heads.json", audit.heads_json(store))
    with closing(sqlite3.connect(home / "studies" / "test.sqlite")) as db:
        db.executescript("UPDATE traffic SET bytes = 0 WHERE number = 3")
    code, _, err = call("verify", home, "--partner", stores / "heads.json")
    assert code == 2 and "row 3 of the log was changed" in err
    restore = (
        "restore",
        home,
        "--study",
        "test",
        "--from",
        stores / "backup",
        "--partner",
        stores / "heads.json",
    )
    code, out, _ = call(*restore, "--by", "Ada", "--json")
    assert code == 0 and json.loads(out)["lost"] == 0
    assert call("verify", home)[0] == 0
    assert call(*restore, "--by", " ")[0] == 2
