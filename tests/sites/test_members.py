"""Members are rotated and expelled in a network that goes on: the list, and processes that keep to it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from abps.core.errors import RequestError
from abps.sites.consent import keys
from abps.sites.consent import kit as membership
from abps.sites.consent.keys import FORMER
from abps.sites.consent.kit import Membership, RevocationList, read_kit
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.flare import app, kits
from abps.sites.flare.kits import Authority
from abps.sites.protocol.commands import Command, DeclineCode, Failure, Timeouts

from .loopback import LoopbackNetwork
from .network import LINEAR, close, open_site
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
    text = (network / "authority" / membership.REVOKED).read_text()
    root = (network / "north" / "startup" / "rootCA.pem").read_bytes()
    told = membership.from_text(text, root)
    assert told.expelled == ("south",) and told.has(serial(network / "south")) and told.number == 1
    for change in ({"expelled": []}, {"number": 2}, {"certificates": {}}, {"signature": "AAAA"}):
        with pytest.raises(RequestError, match="not signed"):
            membership.from_text(json.dumps(json.loads(text) | change), root)
    for broken in ("", "{}", "[]", json.dumps(json.loads(text) | {"signature": "x"})):
        with pytest.raises(RequestError, match="no list"):
            membership.from_text(broken, root)
    other = kits.provision(tmp_path / "other", ["north", "south"], "localhost", 18996)
    with pytest.raises(RequestError, match="not signed"):
        membership.from_text(text, (other.relay / "startup" / "rootCA.pem").read_bytes())


def test_nobody_goes_back_to_an_older_list(network):
    authority = Authority(network)
    authority.revoke("south")
    first = (network / "north" / "local" / membership.REVOKED).read_text()
    known = Membership(network / "north")
    assert known.now.expelled == ("south",) and known.text == first
    authority.revoke("east")
    second = (network / "authority" / membership.REVOKED).read_text()
    assert known.now.expelled == ("east", "south")  # the file has changed
    assert not known.hear(first) and known.now.number == 2
    known.path.write_text(first)
    assert known.now.number == 2
    known.path.unlink()
    late = Membership(network / "east")
    late.path.unlink()
    assert Membership(network / "east").now == RevocationList()
    assert late.hear(second) and late.path.read_text() == second
    with pytest.raises(RequestError):
        late.hear(second.replace("east", "west"))


def renewed(network, kit, **more):
    """A kit with a new key of its own, certified by the authority."""
    given = read_kit(network / kit)
    asked = keys.request_certificate(given, network.parent / f"{kit}.csr")
    path, _ = Authority(network).certify(keys.read_request(network.parent / f"{kit}.csr"), **more)
    return asked, keys.install_certificate(given, path)


def test_a_new_certificate_takes_the_place_of_the_old(network):
    """Of a site, of the relay and of the operator; nobody else sees the key, and the old one is refused."""
    for kit, name, base in (
        ("north", "north", "client"),
        ("relay", "localhost", "server"),
        ("operator@federation.example", "operator@federation.example", "client"),
    ):
        startup = network / kit / "startup"
        old = serial(network / kit, f"{base}.crt")
        asked, certificate = renewed(network, kit)
        new = serial(network / kit, f"{base}.crt")
        assert asked.member == name and certificate.serial_number == new != old
        revoked = Membership(network / "relay").now
        assert revoked.has(old) and not revoked.has(new) and revoked.expelled == ()
        assert (startup / f"{base}.key").stat().st_mode & 0o777 == 0o600
        assert [p.name for p in (startup / FORMER).glob("*.crt")] == [f"{old:x}.crt"]
        private = load_pem_private_key((startup / f"{base}.key").read_bytes(), None)
        assert certificate.public_key() == private.public_key()
        signer = keys.read_signer(network / kit, base)
        owner = keys.certificate_owner(signer.certificate, (startup / "rootCA.pem").read_bytes())
        assert owner == (name, keys.OPERATOR_ROLE if "@" in name else "")
    assert keys_in(network / "certified") == []


def test_who_was_expelled_may_come_back_with_another_key(network, capsys):
    old = serial(network / "south")
    assert call(capsys, "site", "revoke", "south", "--kits", network)[0] == 0
    shutil.rmtree(network / "south")
    kits.provision(network, ["north", "south", "east"], "localhost", 18997)
    told = Membership(network / "relay").now
    assert told.expelled == () and told.has(old) and serial(network / "south") != old


def keys_in(folder) -> list[str]:
    """Every file under a folder that holds a private key, once for each key."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        str(p.relative_to(folder)) for p in found for _ in range(p.read_bytes().count(b"PRIVATE KEY-----"))
    ]


def test_the_authority_keeps_no_key_of_a_member(network):
    """Whoever reads the authority's folder can make members, and cannot be one that there is."""
    own = ["abps/state/cert.json"] * 2  # the begin and the end of the authority's own
    assert keys_in(network / "authority") == own
    renewed(network, "north")
    assert keys_in(network / "authority") == own
    shutil.move(network / "north", network.parent / "north")  # handed over
    kits.provision(network, ["north", "south", "east", "west"], "localhost", 18997)
    assert keys_in(network / "authority") == own
    assert not (network / "north").exists() and (network / "west" / "startup" / "client.key").is_file()
    assert (network / "authority").stat().st_mode & 0o777 == 0o700
    assert (network / "authority" / kits.STATE).stat().st_mode & 0o777 == 0o600
    assert kits.provisioned(network / "operator@federation.example") == ("east", "north", "south", "west")


def test_kits_say_in_our_words_how_to_start_and_bring_no_other_way(made):
    """The engine's scripts would start it without our limits on what is received and who is a member."""
    for kit in (made.relay, made.operator, *made.sites.values()):
        assert not [p for p in kit.rglob("*") if p.suffix in (".sh", ".ipynb")]
        (readme,) = kit.rglob("readme.txt")
        assert "abps site" in readme.read_text() and "start.sh" not in readme.read_text()


def test_a_kit_is_not_made_twice_nor_over_another(network, capsys):
    authority = (network / "authority" / kits.STATE).read_text()
    (network / "west").mkdir()
    with pytest.raises(RequestError, match="move it away"):
        kits.provision(network, ["north", "south", "east", "west"], "localhost", 18997)
    assert (network / "authority" / kits.STATE).read_text() == authority
    Authority(network).revoke("south")
    with pytest.raises(RequestError, match="south is no kit of a member"):
        kits.provision(network, ["north", "south"], "localhost", 18997)


def test_nobody_asks_in_anothers_name(network, tmp_path, capsys):
    """Without the present key, people compare fingerprints."""
    host, request = network / "north", tmp_path / "north.csr"
    (host / "startup" / "client.key").unlink()  # lost
    code, text, _ = call(capsys, "site", "request", host, "--out", request, "--json")
    asked = json.loads(text)
    assert code == 0 and not asked["signed"] and "PRIVATE" not in request.read_text()
    for fingerprint, words in (
        ((), "is not signed with the present key of north"),
        (("--fingerprint", "0" * 32), "not of the same key"),
        (("--fingerprint", asked["fingerprint"][:9]), "not of the same key"),
    ):
        code, _, err = call(capsys, "site", "certify", request, "--kits", network, *fingerprint)
        assert code == 2 and words in " ".join(err.split())
    assert not (network / "certified").exists()
    certify = ("site", "certify", request, "--kits", network, "--fingerprint", asked["fingerprint"], "--json")
    code, text, _ = call(capsys, *certify)
    answer = Path(json.loads(text)["certificate"])
    assert code == 0 and json.loads(text)["member"] == "north" and answer.is_file()
    wrong = network / "relay" / "startup" / "server.crt"
    assert call(capsys, "site", "install", host, "--certificate", wrong)[0] == 2
    assert call(capsys, "site", "install", host, "--certificate", answer)[0] == 0
    assert not (host / "startup" / "pending").exists()
    # A request that another member's key has signed.
    foreign = shutil.copytree(network / "south", tmp_path / "foreign")
    (foreign / "startup" / "fed_client.json").write_bytes((host / "startup" / "fed_client.json").read_bytes())
    call(capsys, "site", "request", foreign, "--out", tmp_path / "false.csr")
    code, _, err = call(capsys, "site", "certify", tmp_path / "false.csr", "--kits", network)
    assert code == 2 and "not signed with the present key" in err


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
        (("revoke", "localhost", "--kits", network), "give it a new certificate instead"),
        (("revoke", "west", "--kits", network), "no member is called"),
        (("revoke", "north", "--kits", tmp_path), "has no authority"),
    ):
        code, out, err = call(capsys, "site", *arguments)
        assert code == 2 and words in err and out == ""
    assert not (network / "authority" / membership.REVOKED).exists()


def test_a_member_that_is_expelled_within_a_job_is_left_out(six, tmp_path):
    """From the next round on, and the others are told."""
    received: dict[str, str] = {}

    class Network(LoopbackNetwork):
        """Keeps what sites are passed on."""

        def ask(self, sites, command, *arguments, seconds):
            if command is Command.REVOKED:
                received.update(dict.fromkeys(sites, arguments[0]))
            return super().ask(sites, command, *arguments, seconds=seconds)

    network, agreement = Network(), six.agreement("abps-plus", **LINEAR)
    for name in six.names:
        open_site(six, name, agreement, tmp_path, network)
    gone = six.names[2]

    def revoked():
        begun = max(site.store.round for site in network.sites.values())
        return ("list", frozenset({gone})) if begun >= 2 else ("", frozenset())

    report = Scheduler(network, agreement, 4, Timeouts(poll=0.0), revoked=revoked).run(six.names)
    rounds = {r.round: r for r in report.rounds}
    assert gone in rounds[2].present and not rounds[2].missing
    for t in (3, 4):
        assert gone not in rounds[t].present and rounds[t].missing == {
            gone: str(Failure(DeclineCode.EXPELLED))
        }
        assert gone not in {p for name in six.names if name != gone
                            for r in network.sites[name].store.rounds() if r.number == t
                            for p in r.partners}  # fmt: skip
    assert received == dict.fromkeys(set(six.names) - {gone}, "list")
    again = Scheduler(network, agreement, 1, Timeouts(poll=0.0), revoked=revoked).run(six.names)
    assert again.left_out == {gone: str(Failure(DeclineCode.EXPELLED))} and gone not in again.members
    close(network)


class Credentials:
    """What the engine keeps of peers' certificates."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def _cache_cert(self, fqcn, cert) -> None:
        self.kept.append(fqcn)


def test_a_site_keeps_no_certificate_that_was_revoked(network):
    renewed(network, "south")
    former = next((network / "south" / "startup" / FORMER).glob("*.crt")).read_bytes()
    credentials = Credentials()
    app.trust_members(credentials, Membership(network / "north"))
    credentials._cache_cert("south.job", (network / "south" / "startup" / "client.crt").read_bytes())
    with pytest.raises(RuntimeError, match="was revoked"):
        credentials._cache_cert("south.job", former)
    assert credentials.kept == ["south.job"]


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
