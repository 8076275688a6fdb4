"""``abps site check``: every way to be not ready gets one sentence."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import ssl
import threading

import polars as pl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from abps.cli.main import main
from abps.lab.rehearsal import free_port
from abps.sites.consent import preflight
from abps.sites.flare import kits
from abps.sites.flare.kits import Authority

from .test_cli import call


@pytest.fixture(scope="module")
def made(tmp_path_factory, six):
    """Kits of a network, and a site that knows its table."""
    out = tmp_path_factory.mktemp("preflight")
    network = kits.provision(out, ["north", "south"], "localhost", free_port())
    init = ["site", "init", "--kit", str(network.sites["north"]), "--table", str(six.tables["site-1"])]
    with pytest.raises(SystemExit) as ended:
        main([*init, "--label", "died", "--patient", "patient", "--time", "admission_year"])
    assert ended.value.code == 0
    return network


@pytest.fixture
def north(made, tmp_path):
    """A copy of a site's kit, to be spoiled."""
    return shutil.copytree(made.sites["north"], tmp_path / "north")


class Relay:
    """Something that greets as the relay does: TLS, and only with a certificate of the authority."""

    def __init__(self, kit, root=None) -> None:
        papers = kit / "startup"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(papers / "server.crt", papers / "server.key")
        self.context.load_verify_locations(root or papers / "rootCA.pem")
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self.listening.accept()
            except OSError:
                return
            try:
                with self.context.wrap_socket(line, server_side=True) as secured:
                    secured.sendall(b"\0")
            except OSError:
                line.close()

    def close(self) -> None:
        self.listening.close()


@pytest.fixture
def relay(made):
    greets = Relay(made.relay)
    yield greets
    greets.close()


def point(kit, host, port):
    path = kit / "startup" / "fed_client.json"
    data = json.loads(path.read_text())
    data["servers"][0]["service"]["target"] = f"{host}:{port}"
    path.write_text(json.dumps(data))


def told(capsys, kit, *more):
    """Exit code, and the checks by name."""
    code, out, _ = call(capsys, "site", "check", kit, "--json", *more)
    return code, {c["check"]: (c["state"], c["sentence"]) for c in json.loads(out)["checks"]}


def signed(made, kit, begins, ends, authority=None):
    """Give a site's kit a certificate of these days, signed by the network's authority."""
    state = json.loads(((authority or made.authority) / "abps" / "state" / "cert.json").read_text())
    root = x509.load_pem_x509_certificate(state["root_cert"].encode())
    root_key = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    key = rsa.generate_private_key(65537, 2048)
    now = datetime.datetime.now(datetime.UTC)
    paper = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")]))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begins))
        .not_valid_after(now + datetime.timedelta(days=ends))
        .sign(root_key, hashes.SHA256())
    )
    (kit / "startup" / "client.crt").write_bytes(paper.public_bytes(serialization.Encoding.PEM))
    (kit / "startup" / "client.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def test_a_site_that_is_ready(north, relay, capsys):
    point(north, "localhost", relay.port)
    code, found = told(capsys, north)
    assert code == 0, found
    for name in (
        "versions",
        "certificate",
        "authority",
        "name of the relay",
        "port",
        "TLS",
        "table",
        "columns",
    ):
        assert found[name][0] == "ok", found
    code, out, _ = call(capsys, "site", "check", north)
    assert code == 0 and "north (site)" in out and "both ends known" in out.replace("\n", " ")


def test_a_host_that_nobody_knows_and_a_port_that_is_closed(north, capsys):
    point(north, "relay.invalid", 8002)
    code, found = told(capsys, north)
    assert code == 3 and found["name of the relay"][0] == "fail" and "port" not in found
    assert found["table"][0] == "ok"  # one that fails hides no other
    point(north, "localhost", free_port())
    code, found = told(capsys, north)
    assert code == 3 and "does not answer" in found["port"][1] and "TLS" not in found


def test_days_of_a_certificate(made, north, relay, capsys):
    point(north, "localhost", relay.port)
    signed(made, north, -400, -3)
    code, found = told(capsys, north)
    assert code == 3 and found["certificate"][0] == "fail" and "3 days ago" in found["certificate"][1]
    assert found["TLS"][0] == "fail" and "refuses this certificate" in found["TLS"][1]
    signed(made, north, -300, 59.5)
    code, found = told(capsys, north)
    assert code == 0 and found["certificate"][0] == "warn" and "abps site request" in found["certificate"][1]
    signed(made, north, -300, 61.5)
    code, found = told(capsys, north)
    assert code == 0 and found["certificate"][0] == "ok" and found["TLS"][0] == "ok"
    signed(made, north, 2, 300)
    code, found = told(capsys, north)
    assert code == 3 and "clock" in found["certificate"][1]


def test_a_site_whose_certificate_has_ended_is_not_started(made, north, capsys):
    signed(made, north, -400, -3)
    code, out, err = call(capsys, "site", "start", north)
    assert (
        code == 2 and "the certificate of north ended on" in err and "abps site request" in err and out == ""
    )


def test_a_certificate_of_another_authority(made, north, capsys, tmp_path):
    other = kits.provision(tmp_path / "other", ["north", "south"], "localhost", 8002)
    relay = Relay(other.relay)
    try:
        point(north, "localhost", relay.port)
        code, found = told(capsys, north)
        assert code == 3 and "is not accepted" in found["TLS"][1]
    finally:
        relay.close()
    signed(made, north, -1, 300, other.authority)
    assert told(capsys, north)[1]["signature"][0] == "fail"


def test_keys_that_others_can_read_and_damaged_kits(north, capsys, tmp_path):
    (north / "startup" / "client.key").chmod(0o644)
    assert told(capsys, north)[1]["key"][0] == "warn"
    (north / "startup" / "client.crt").write_text("nonsense")
    code, found = told(capsys, north)
    assert code == 3 and "cannot be read as a certificate" in found["certificate"][1]
    (north / "startup" / "fed_client.json").write_text("{}")
    code, out, err = call(capsys, "site", "check", north)
    assert code == 2 and "damaged kit" in err and out == ""
    code, _, err = call(capsys, "site", "check", tmp_path)
    assert code == 2 and "not a startup kit" in err and "damaged" not in err


def test_a_table_that_does_not_fit(north, capsys, tmp_path):
    own = json.loads((north / "local" / "abps-site.json").read_text())
    frame = pl.read_parquet(own["table"])
    book = json.loads((north / "local" / "codebook.json").read_text())
    gone = next(c["source"] for c in book["columns"] if c["kind"] == "number")
    frame.drop(gone).write_parquet(tmp_path / "less.parquet")
    file = north / "local" / "abps-site.json"
    file.write_text(json.dumps(own | {"table": str(tmp_path / "less.parquet")}))
    code, found = told(capsys, north)
    assert code == 3 and found["columns"][0] == "fail" and gone in found["columns"][1]
    file.write_text(json.dumps(own | {"table": str(tmp_path / "no.parquet")}))
    code, found = told(capsys, north)
    assert code == 3 and found["table"][0] == "fail" and "columns" not in found
    file.unlink()
    assert "abps site init" in told(capsys, north)[1]["table"][1]
    code, _, err = call(capsys, "site", "check", north, "--codebook", tmp_path / "none.json")
    assert code == 2 and "no such file" in err


def _table_moved(made, kit, tmp_path, patch):
    own = json.loads((kit / "local" / "abps-site.json").read_text())
    (kit / "local" / "abps-site.json").write_text(json.dumps(own | {"table": str(tmp_path / "gone.parquet")}))


def _column_renamed(made, kit, tmp_path, patch):
    own = json.loads((kit / "local" / "abps-site.json").read_text())
    book = json.loads((kit / "local" / "codebook.json").read_text())
    gone = next(c["source"] for c in book["columns"] if c["kind"] == "number")
    pl.read_parquet(own["table"]).rename({gone: "renamed"}).write_parquet(tmp_path / "other.parquet")
    (kit / "local" / "abps-site.json").write_text(
        json.dumps(own | {"table": str(tmp_path / "other.parquet")})
    )


def _revoked(made, kit, tmp_path, patch):
    authority = Authority(shutil.copytree(made.authority.parent, tmp_path / "network"))
    authority.revoke("north")
    shutil.copy(tmp_path / "network" / "authority" / "revoked.json", kit / "local" / "revoked.json")


def _key_gone(made, kit, tmp_path, patch):
    (kit / "startup" / "client.key").unlink()


#: A fault, the check that finds it, and words of its sentence: the cause and place, and the remedy.
FAULTS = {
    "host": (lambda m, k, t, p: point(k, "relay.invalid", 8002), "name of the relay",
             "relay.invalid cannot be resolved", "ask your network"),
    "port": (lambda m, k, t, p: point(k, "localhost", free_port()), "port", "does not answer", "firewall"),
    "certificate": (lambda m, k, t, p: signed(m, k, -400, -3), "certificate", "3 days ago", "site request"),
    "clock": (lambda m, k, t, p: signed(m, k, 2, 300), "certificate", "begins only on",
              "set this machine's clock"),
    "key": (_key_gone, "key", "client.key is missing", "abps site request"),
    "revoked": (_revoked, "membership", "revoked this certificate", "ask the operator"),
    "table": (_table_moved, "table", "gone.parquet", "file"),
    "column": (_column_renamed, "columns", "asks for the column", "another codebook"),
    "disk": (lambda m, k, t, p: p.setattr(preflight, "DISK", (2**60, 2**61)), "disk", "free at", "make room"),
    "engine": (lambda m, k, t, p: p.setattr(preflight.metadata, "version", lambda name: "2.8.1"), "versions",
               "NVIDIA FLARE is 2.8.1", "install"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_ten_faults_are_found_before_anything_is_submitted(
    fault, made, north, relay, tmp_path, capsys, monkeypatch
):
    """Cause, place and remedy in one sentence."""
    point(north, "localhost", relay.port)
    assert told(capsys, north)[0] == 0
    inject, name, cause, remedy = FAULTS[fault]
    inject(made, north, tmp_path, monkeypatch)
    code, found = told(capsys, north)
    assert code == 3 and found[name][0] == "fail", found
    assert cause in found[name][1] and remedy in found[name][1], found[name]


def test_room(monkeypatch, north, capsys):
    monkeypatch.setattr(preflight, "DISK", (2**60, 2**61))
    monkeypatch.setattr(preflight, "MEMORY", (0, 2**61))
    code, found = told(capsys, north)
    assert code == 3 and found["disk"][0] == "fail" and found["memory"][0] == "warn"


def test_an_engine_of_another_version(monkeypatch):
    monkeypatch.setattr(preflight.metadata, "version", lambda name: "2.8.1")
    assert preflight.versions().state is preflight.State.FAIL


def test_the_other_kits(made, capsys):
    code, found = told(capsys, made.relay)
    assert code == 0 and "free for the relay" in found["port"][1] and "table" not in found
    code, found = told(capsys, made.operator)
    assert code == 3 and found["certificate"][0] == "ok" and found["port"][0] == "fail"


def test_the_relays_port_is_taken(made, relay, tmp_path, capsys):
    """By the relay itself, by another program: `check` and `start` say so."""
    kit = shutil.copytree(made.relay, tmp_path / "relay")
    path = kit / "startup" / "fed_server.json"
    data = json.loads(path.read_text())

    def on(port: int) -> None:
        data["servers"][0]["service"]["target"] = f"localhost:{port}"
        path.write_text(json.dumps(data))

    on(relay.port)
    code, found = told(capsys, kit)
    assert code == 0 and "the relay runs and listens" in found["port"][1]
    with socket.create_server(("127.0.0.1", 0)) as other:
        on(other.getsockname()[1])
        code, found = told(capsys, kit)
        assert code == 3 and "another program listens" in found["port"][1]
        with pytest.raises(SystemExit) as ended:
            main(["site", "start", str(kit)])
        assert ended.value.code == 2 and "cannot listen on port" in capsys.readouterr().err
