"""Members are rotated and expelled in a network that goes on: the list, and processes that keep to it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from abps.core.errors import RequestError
from abps.sites.consent import keys, membership
from abps.sites.consent.keys import FORMER, replace_certificate
from abps.sites.consent.kit import read_kit
from abps.sites.consent.membership import Known, Revoked
from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.flare import app, authority, kits
from abps.sites.flare.authority import Authority
from abps.sites.flare.on_one_machine import own_home
from abps.sites.flare.submit import connected
from abps.sites.protocol import decline_codes
from abps.sites.protocol.steps import Timeouts

from .network import close, open_site
from .processes import LONG, Processes
from .test_cli import call


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return kits.provision(tmp_path_factory.mktemp("members"), ["north", "south", "east"], "localhost", 18997)


@pytest.fixture
def network(made, tmp_path):
    """A copy of the network, with which anything may be done."""
    return shutil.copytree(made.relay.parent, tmp_path / "kits")


def serial(kit, name="client.crt") -> int:
    return x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes()).serial_number


def test_the_authority_outlives_its_members(made):
    root = x509.load_pem_x509_certificate((made.relay / "startup" / "rootCA.pem").read_bytes())
    own = x509.load_pem_x509_certificate((made.sites["north"] / "startup" / "client.crt").read_bytes())
    assert (root.not_valid_after_utc - root.not_valid_before_utc).days == 3650
    assert (own.not_valid_after_utc - own.not_valid_before_utc).days == 360


def test_a_list_is_taken_only_if_the_authority_signed_it(network, tmp_path):
    authority = Authority(network)
    authority.revoke("south")
    text = (network / "authority" / membership.FILE).read_text()
    root = (network / "north" / "startup" / "rootCA.pem").read_bytes()
    told = membership.from_text(text, root)
    assert told.expelled == ("south",) and told.has(serial(network / "south")) and told.number == 1
    for change in ({"expelled": []}, {"number": 2}, {"certificates": {}}, {"signature": "AAAA"}):
        with pytest.raises(RequestError, match="not signed"):
            membership.from_text(json.dumps(json.loads(text) | change), root)
    for broken in ("", "{}", "[]", json.dumps(json.loads(text) | {"number": "x"})):
        with pytest.raises(RequestError, match="no list"):
            membership.from_text(broken, root)
    other = kits.provision(tmp_path / "other", ["north", "south"], "localhost", 18996)
    with pytest.raises(RequestError, match="not signed"):
        membership.from_text(text, (other.relay / "startup" / "rootCA.pem").read_bytes())


def test_nobody_goes_back_to_an_older_list(network):
    authority = Authority(network)
    authority.revoke("south")
    first = (network / "north" / "local" / membership.FILE).read_text()
    known = Known(network / "north")
    assert known.now.expelled == ("south",) and known.text == first
    authority.revoke("east")
    second = (network / "authority" / membership.FILE).read_text()
    assert known.now.expelled == ("east", "south")  # the file has changed
    assert not known.hear(first) and known.now.number == 2
    known.path.write_text(first)
    assert known.now.number == 2
    known.path.unlink()
    late = Known(network / "east")
    late.path.unlink()
    assert Known(network / "east").now == Revoked()
    assert late.hear(second) and late.path.read_text() == second
    with pytest.raises(RequestError):
        late.hear(second.replace("east", "west"))


def test_a_new_certificate_takes_the_place_of_the_old(network, capsys):
    before = {name: serial(network / name) for name in ("north", "south")}
    code, out, _ = call(capsys, "site", "rotate", "north", "--kits", network, "--json")
    assert code == 0 and json.loads(out)["member"] == "north"
    assert serial(network / "north") != before["north"] and serial(network / "south") == before["south"]
    told = Known(network / "relay").now
    assert told.has(before["north"]) and not told.has(serial(network / "north")) and told.expelled == ()
    kept = network / "north" / "startup" / FORMER / f"{before['north']:x}.crt"
    assert x509.load_pem_x509_certificate(kept.read_bytes()).serial_number == before["north"]
    assert (network / "north" / "startup" / "client.key").stat().st_mode & 0o777 == 0o600
    # A kit elsewhere takes the two files.
    elsewhere = shutil.copytree(network / "south", network.parent / "elsewhere")
    call(capsys, "site", "rotate", "south", "--kits", network)
    replace_certificate(elsewhere, network / "rotated" / "south")
    assert serial(elsewhere) == serial(network / "south") != before["south"]
    # The relay and the operator have certificates, too.
    for member, kit, name in (
        ("localhost", "relay", "server.crt"),
        ("operator@federation.example", "operator@federation.example", "client.crt"),
    ):
        old = serial(network / kit, name)
        assert call(capsys, "site", "rotate", member, "--kits", network)[0] == 0
        assert serial(network / kit, name) != old and Known(network / "relay").now.has(old)


def test_who_was_expelled_may_come_back_with_another_key(network, capsys):
    old = serial(network / "south")
    assert call(capsys, "site", "revoke", "south", "--kits", network)[0] == 0
    shutil.rmtree(network / "south")
    kits.provision(network, ["north", "south", "east"], "localhost", 18997)
    told = Known(network / "relay").now
    assert told.expelled == () and told.has(old) and serial(network / "south") != old


def keys_in(folder) -> list[str]:
    """Every file under a folder that holds a private key, once for each key."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        str(p.relative_to(folder)) for p in found for _ in range(p.read_bytes().count(b"PRIVATE KEY-----"))
    ]


def test_the_authority_keeps_no_key_of_a_member(network, capsys):
    """Whoever reads the authority's folder can make members, and cannot be one that there is."""
    own = ["abps/state/cert.json"] * 2  # the begin and the end of the authority's own
    assert keys_in(network / "authority") == own
    assert call(capsys, "site", "rotate", "north", "--kits", network)[0] == 0
    assert keys_in(network / "authority") == own
    shutil.move(network / "north", network.parent / "north")  # handed over
    kits.provision(network, ["north", "south", "east", "west"], "localhost", 18997)
    assert keys_in(network / "authority") == own
    assert not (network / "north").exists() and (network / "west" / "startup" / "client.key").is_file()
    assert (network / "authority").stat().st_mode & 0o777 == 0o700
    assert (network / "authority" / kits.STATE).stat().st_mode & 0o777 == 0o600


def test_kits_say_in_our_words_how_to_start_and_bring_no_other_way(made):
    """The engine's scripts would start it without our limits on what is received and who is a member."""
    for kit in (made.relay, made.operator, *made.sites.values()):
        assert not [p for p in kit.rglob("*") if p.suffix in (".sh", ".ipynb")]
        (readme,) = kit.rglob("readme.txt")
        assert "abps site" in readme.read_text() and "start.sh" not in readme.read_text()


def test_keys_that_an_earlier_version_kept_are_forgotten(network):
    path = network / "authority" / kits.STATE
    state = json.loads(path.read_text())
    for name in ("north", "localhost"):
        state[name]["pri_key"] = (network / "south" / "startup" / "client.key").read_text()
    path.write_text(json.dumps(state))
    assert len(keys_in(network / "authority")) == 6
    Authority(network)
    assert len(keys_in(network / "authority")) == 2


def test_a_kit_is_not_made_twice_nor_over_another(network, capsys):
    authority = (network / "authority" / kits.STATE).read_text()
    (network / "west").mkdir()
    with pytest.raises(RequestError, match="move it away"):
        kits.provision(network, ["north", "south", "east", "west"], "localhost", 18997)
    assert (network / "authority" / kits.STATE).read_text() == authority
    Authority(network).revoke("south")
    with pytest.raises(RequestError, match="south is no kit of a member"):
        kits.provision(network, ["north", "south"], "localhost", 18997)


def test_a_site_makes_its_key_itself(tmp_path, capsys):
    """From a kit without a key to one that the relay greets; the operator's folder never holds the key."""
    out, host = tmp_path / "kits", tmp_path / "hospital"
    made = call(
        capsys, "site", "provision", "north", "south", "--port", 18994, "--own-keys", "--out", out, "--json"
    )
    assert made[0] == 0 and not list((out / "north" / "startup").glob("client.*"))
    assert (out / "relay" / "startup" / "server.key").is_file()
    shutil.move(out / "north", host)
    code, text, _ = call(capsys, "site", "check", host, "--json")
    told = {c["check"]: c["sentence"] for c in json.loads(text)["checks"]}
    assert code == 3 and "abps site request" in told["certificate"]
    request = tmp_path / "north.csr"
    code, text, _ = call(capsys, "site", "request", host, "--out", request, "--json")
    asked = json.loads(text)
    assert code == 0 and not asked["signed"] and "PRIVATE" not in request.read_text()
    key = host / "startup" / "pending" / "client.key"
    assert key.stat().st_mode & 0o777 == 0o600

    # Nobody asks in another's name: without the present key, people compare.
    for fingerprint, words in (
        ((), "is not signed with the present key of north"),
        (("--fingerprint", "0" * 32), "not of the same key"),
        (("--fingerprint", asked["fingerprint"][:9]), "not of the same key"),
    ):
        code, _, err = call(capsys, "site", "certify", request, "--kits", out, *fingerprint)
        assert code == 2 and words in " ".join(err.split())
    assert not (out / "rotated").exists()
    certify = ("site", "certify", request, "--kits", out, "--fingerprint", asked["fingerprint"], "--json")
    code, text, _ = call(capsys, *certify)
    assert code == 0 and json.loads(text)["member"] == "north"
    answer = out / "rotated" / "north" / "client.crt"
    assert keys_in(out / "rotated") == [] and keys_in(out / "authority") == ["abps/state/cert.json"] * 2
    assert (
        call(capsys, "site", "install", host, "--certificate", out / "relay" / "startup" / "server.crt")[0]
        == 2
    )
    assert call(capsys, "site", "install", host, "--certificate", answer)[0] == 0
    assert not key.exists() and (host / "startup" / "client.key").stat().st_mode & 0o777 == 0o600
    own = x509.load_pem_x509_certificate((host / "startup" / "client.crt").read_bytes())
    private = load_pem_private_key((host / "startup" / "client.key").read_bytes(), None)
    assert own.public_key() == private.public_key() and Known(out / "relay").now.certificates

    # With a key, the site asks by itself; a request of another key in its name is refused.
    code, text, _ = call(capsys, "site", "request", host, "--out", request, "--json")
    assert json.loads(text)["signed"]
    foreign = shutil.copytree(out / "south", tmp_path / "foreign")
    (foreign / "startup" / "fed_client.json").write_bytes((host / "startup" / "fed_client.json").read_bytes())
    for name in ("client.crt", "client.key"):
        shutil.copy(out / "operator@federation.example" / "startup" / name, foreign / "startup" / name)
    call(capsys, "site", "request", foreign, "--out", tmp_path / "false.csr")
    code, _, err = call(capsys, "site", "certify", tmp_path / "false.csr", "--kits", out)
    assert code == 2 and "not signed with the present key" in err
    assert call(capsys, "site", "certify", request, "--kits", out)[0] == 0
    before = serial(host)
    assert call(capsys, "site", "install", host, "--certificate", answer)[0] == 0
    assert serial(host) != before and Known(out / "relay").now.has(before)
    assert [p.name for p in (host / "startup" / FORMER).glob("*.crt")] == [f"{before:x}.crt"]


def test_requests_that_are_none(network, tmp_path, capsys):
    call(capsys, "site", "request", network / "north", "--out", tmp_path / "north.csr")
    text = (tmp_path / "north.csr").read_text()
    (tmp_path / "cut.csr").write_text(text[: len(text) // 3])
    small = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = small.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256())
    (tmp_path / "nameless.csr").write_bytes(signed.public_bytes(Encoding.PEM))
    for name, words in (
        ("cut.csr", "no request for a certificate"),
        ("nameless.csr", "one name"),
        ("none.csr", "cannot be read"),
    ):
        code, out, err = call(capsys, "site", "certify", tmp_path / name, "--kits", network)
        assert code == 2 and words in err and out == ""
    code, _, err = call(capsys, "site", "request", network / "relay", "--out", tmp_path / "relay.csr")
    assert code == 2 and "no site's kit" in err and not (tmp_path / "relay.csr").exists()
    code, _, err = call(capsys, "site", "install", network / "south", "--certificate", tmp_path / "none.crt")
    assert code == 2 and "has not asked" in err


def test_a_member_that_was_expelled_sees_it_in_its_checks(network, capsys):
    code, text, _ = call(capsys, "site", "check", network / "south", "--json")
    assert "membership" not in {c["check"] for c in json.loads(text)["checks"]}
    Authority(network).revoke("south")
    code, text, _ = call(capsys, "site", "check", network / "south", "--json")
    told = {c["check"]: c["sentence"] for c in json.loads(text)["checks"]}
    assert code == 3 and "has revoked this certificate" in told["membership"]


def test_wrong_requests(network, tmp_path, capsys):
    for arguments, words in (
        (("revoke", "soth", "--kits", network), "did you mean 'south'"),
        (("revoke", "localhost", "--kits", network), "rotate it instead"),
        (("rotate", "west", "--kits", network), "no member is called"),
        (("rotate", "north", "--kits", tmp_path), "has no authority"),
    ):
        code, out, err = call(capsys, "site", *arguments)
        assert code == 2 and words in err and out == ""
    assert not (network / "authority" / membership.FILE).exists()


def test_a_member_that_is_expelled_within_a_job_is_left_out(six, tmp_path):
    """From the next round on, and the others are told."""
    network, agreement = LoopbackNetwork(), six.agreement("abps-pq-k1")
    received: dict[str, str] = {}
    for name in six.names:
        site = open_site(six, name, agreement, tmp_path, network)
        site.revoked = lambda text, name=name: received.setdefault(name, text)
    gone = six.names[2]

    def revoked():
        begun = max(site.store.round for site in network.sites.values())
        return ("list", frozenset({gone})) if begun >= 2 else ("", frozenset())

    report = Scheduler(network, agreement, 4, Timeouts(poll=0.0), revoked=revoked).run(six.names)
    rounds = {r.round: r for r in report.rounds}
    assert gone in rounds[2].present and not rounds[2].missing
    for t in (3, 4):
        assert gone not in rounds[t].present and rounds[t].missing == {gone: decline_codes.EXPELLED}
        assert gone not in {p for name in six.names if name != gone
                            for r in network.sites[name].store.rounds() if r.number == t
                            for p in r.partners}  # fmt: skip
    assert received == dict.fromkeys(set(six.names) - {gone}, "list")
    again = Scheduler(network, agreement, 1, Timeouts(poll=0.0), revoked=revoked).run(six.names)
    assert again.left_out == {gone: decline_codes.EXPELLED} and gone not in again.members
    close(network)


class Credentials:
    """What the engine keeps of peers' certificates."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def _cache_cert(self, fqcn, cert) -> None:
        self.kept.append(fqcn)


def test_a_site_keeps_no_certificate_that_was_revoked(network):
    Authority(network).rotate("south")
    former = next((network / "south" / "startup" / FORMER).glob("*.crt")).read_bytes()
    credentials = Credentials()
    app.trust_members(credentials, Known(network / "north"))
    credentials._cache_cert("south.job", (network / "south" / "startup" / "client.crt").read_bytes())
    with pytest.raises(RuntimeError, match="was revoked"):
        credentials._cache_cert("south.job", former)
    assert credentials.kept == ["south.job"]


def until(condition, seconds=LONG):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(1.0)
    raise AssertionError(f"not within {seconds:g} s")


@pytest.mark.slow
def test_real_processes_keep_to_the_list(four, tmp_path, monkeypatch):
    """One is expelled while it is connected, one makes a new key; a job runs with those that are members; one
    whose certificate has ended is told so."""
    with own_home(tmp_path / "home"):
        federation = Processes(tmp_path, four)
        first, second, third, fourth = four.names
        try:
            federation.start_all(LONG)
            operator, out = federation.network.operator, tmp_path / "kits"
            stolen = shutil.copytree(out / second, tmp_path / "stolen")
            Authority(out).revoke(first)
            until(lambda: first not in connected(operator))
            assert "was revoked by this network's authority" in federation.log("relay")
            until(
                lambda: f"refuses this site: the certificate of {first} was revoked" in federation.log(first)
            )
            federation.kill(first)
            federation.start(first)  # it cannot come back with the certificate that it has

            federation.kill(second)
            asked = keys.request_certificate(
                read_kit(out / second), tmp_path / "second.csr"
            )  # a key that nobody else has
            done = Authority(out).certify(keys.read_request(tmp_path / "second.csr"))
            keys.install_certificate(read_kit(out / second), done.written[0])
            assert asked.fingerprint and keys_in(out / "rotated") == []
            federation.start(second)
            federation.wait_for([second, third, fourth], LONG)
            assert first not in connected(operator)
            outcome = federation.run(four.agreement("abps-pq-k1"), 1)
            assert outcome.status == "FINISHED:COMPLETED"
            (told,) = outcome.report["rounds"]
            assert sorted(told["present"]) == sorted([second, third, fourth]) and not told["missing"]
            for name in (third, fourth):  # they have the list by the relay, too
                assert Known(out / name).now.expelled == (first,)
            assert f"{first} may not register" in federation.log("relay")
            assert f"registration rejected: the certificate of {first} was revoked" in federation.log(first)

            federation.kill(second)
            federation.start(second, stolen)  # whoever has the old key of a member
            until(lambda: f"{second} may not register" in federation.log("relay"))
            until(lambda: "registration rejected" in (stolen / "out.log").read_text(errors="replace"))

            federation.kill(fourth)
            monkeypatch.setattr(authority, "DAYS", 1e-6)
            Authority(out).rotate(fourth)  # its certificate has ended when it starts
            begun = subprocess.run(
                [sys.executable, "-m", "abps", "site", "start", str(out / fourth)],
                capture_output=True, text=True, timeout=LONG, check=False,
            )  # fmt: skip
            assert begun.returncode == 2 and f"the certificate of {fourth} ended on" in begun.stderr
        finally:
            federation.stop()


def test_a_line_that_outlives_its_certificate_is_ended():
    """The engine looks at dates when a line is made; the relay looks at every sign of life."""
    import datetime

    from abps.sites.flare.participant import refusal

    now = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    day = datetime.timedelta(days=1)
    clean = Revoked()
    assert refusal(clean, "north", 7, None, now) is None
    assert refusal(clean, "north", 7, now + day, now) is None
    told = refusal(clean, "north", 7, now - day, now)
    assert told == "the certificate of north has ended on 2026-02-28; have it rotated"


def test_kits_that_cannot_be_written_leave_nothing_behind(tmp_path, monkeypatch):
    """A disk that is full when the second kit is copied: no half a kit, and the next call makes them."""
    copy = shutil.copytree

    def full(source, target, *rest, **more):
        copy(source, target, *rest, **more)
        if Path(target).name == "south":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kits.shutil, "copytree", full)
    with pytest.raises(RequestError, match="could not be written; make room"):
        kits.provision(tmp_path / "kits", ["north", "south"], "localhost", 18993)
    assert [path.name for path in (tmp_path / "kits").iterdir()] == ["authority"]
    assert not list((tmp_path / "kits").rglob("*.key"))
    monkeypatch.undo()
    assert kits.provision(tmp_path / "kits", ["north", "south"], "localhost", 18993).sites["south"].is_dir()
