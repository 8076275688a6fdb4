"""``abps site`` without a network: init, provision, status, export, and every wrong request."""

from __future__ import annotations

import json
import stat
import sys

import polars as pl
import pytest

from abps.cli.main import main
from abps.data.codebook import Codebook
from abps.data.split import assign_splits
from abps.evaluate.performance import area
from abps.fitted.folder import load_model
from abps.sites.consent import sitefile
from abps.sites.consent.sitefile import SiteFile
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Timeouts

from .loopback import LoopbackNetwork
from .network import LINEAR, close, open_site


def call(capsys, *arguments):
    """Exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    out = tmp_path_factory.mktemp("kits")
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "site",
                "provision",
                "north",
                "south",
                "--host",
                "localhost",
                "--port",
                "18999",
                "--out",
                str(out),
            ]
        )
    assert ended.value.code == 0
    return out


def test_kits_allow_our_classes_and_nothing_else(kits):
    for name in ("relay", "north", "south"):
        rules = json.loads((kits / name / "local" / "resources.json").read_text())
        assert sorted(path.rsplit(".", 1)[1] for path in rules["class_allow_list"]) == [
            "CollabController", "CollabExecutor", "FlareScheduler", "FlareSite",
        ]  # fmt: skip
        assert rules["class_list_enforcement_mode"] == "enforce" and rules["allow_log_streaming"] is False
        rights = json.loads((kits / name / "local" / "authorization.json").read_text())["permissions"]
        assert rights["project_admin"]["byoc"] == rights["project_admin"]["shell_commands"] == "none"
    assert not (kits / "north" / "startup" / "rootCA.key").exists()
    assert stat.S_IMODE((kits / "authority").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "power", ["sys_info", "shutdown", "restart", "configure_site_log", "report_env", "cat", "download_job"]
)
def test_the_operator_can_neither_inspect_nor_stop_a_site_s_process(kits, power):
    """The engine's own judge, with the rules in a site's kit."""
    authz = pytest.importorskip("nvflare.fuel.sec.authz")
    security = pytest.importorskip("nvflare.security.security")
    operator = authz.Person("operator@federation.example", "abps", "project_admin")
    for name, allowed in (("north", False), ("south", False), ("relay", power != "cat")):
        rules = json.loads((kits / name / "local" / "authorization.json").read_text())
        judge = security.FLAuthorizer("abps", rules)
        assert judge.authorize(authz.AuthzContext(power, operator))[0] is allowed
        assert judge.authorize(authz.AuthzContext("list_jobs", operator))[0] is True


def test_more_sites_join_under_the_same_authority(kits, capsys):
    before = (kits / "north" / "startup" / "client.crt").read_bytes()
    root = (kits / "north" / "startup" / "rootCA.pem").read_bytes()
    code, out, _ = call(
        capsys, "site", "provision", "north", "south", "east", "--port", 18999, "--out", kits, "--json"
    )
    assert code == 0 and set(json.loads(out)["sites"]) == {"north", "south", "east"}
    assert (kits / "north" / "startup" / "client.crt").read_bytes() == before
    assert (kits / "east" / "startup" / "rootCA.pem").read_bytes() == root


def test_init_writes_the_sites_file_and_a_codebook(kits, six, capsys):
    table = six.tables["site-1"]
    code, out, _ = call(
        capsys, "site", "init", "--kit", kits / "north", "--table", table, "--label", "died",
        "--patient", "patient", "--time", "admission_year", "--json",
    )  # fmt: skip
    told = json.loads(out)
    assert code == 0 and told["site"] == "north" and told["rows"] == pl.read_parquet(table).height
    own = sitefile.find("north", kits / "north" / "local")
    assert own.table == str(table) and own.label == "died" and own.patient == "patient"
    book = Codebook.from_json(json.loads((kits / "north" / "local" / "codebook.json").read_text()))
    assert book.time and "died" not in book.sources and "patient" not in book.sources


def test_status_and_export_tell_what_happened(six, tmp_path, capsys):
    network = LoopbackNetwork()
    agreement = six.agreement("abps-plus", **LINEAR)
    for name in six.names:
        open_site(six, name, agreement, tmp_path / "stores", network)
    Scheduler(network, agreement, 3, Timeouts(poll=0.0)).run(six.names)
    network.sites["site-1"].receive("site-2", "upload", b"nonsense")
    sent = network.sites["site-1"].store.sent_bytes()
    close(network)
    (tmp_path / "home" / "studies").mkdir(parents=True)
    (tmp_path / "stores" / "site-1.sqlite").rename(tmp_path / "home" / "studies" / "test.sqlite")
    SiteFile("site-1", "-", "died", str(tmp_path / "home" / "studies")).write(tmp_path / "home")

    code, out, _ = call(capsys, "site", "status", tmp_path / "home", "--json")
    told = json.loads(out)
    assert code == 0 and told["round"] == 3 and told["method"] == "abps-plus"
    assert told["bytes_sent"]["total"] == sum(sent.values())
    assert told["refused"] == [{"peer": "site-2", "reason": "malformed", "count": 1}]
    code, out, _ = call(capsys, "site", "status", tmp_path / "home", "--study", "test")
    assert code == 0 and "bytes_sent: " in out and "malformed" in out

    code, _, _ = call(capsys, "site", "export", tmp_path / "home", "--out", tmp_path / "export")
    assert code == 0
    audit = pl.read_csv(tmp_path / "export" / "audit.csv")
    assert audit.filter(pl.col("direction") == "sent")["bytes"].sum() == sum(sent.values())
    text = (tmp_path / "export" / "audit.txt").read_text()
    assert "our upload of round 1, for its coordinator" in text
    assert "the result of the exchange" in text and " round 0: " not in text
    assert pl.read_csv(tmp_path / "export" / "rounds.csv").height == 3
    assert not (tmp_path / "export" / "model").exists()  # there is no table "-"

    own = SiteFile(
        "site-1",
        str(six.tables["site-1"]),
        "died",
        str(tmp_path / "home" / "studies"),
        "patient",
        "admission_year",
    )
    own.write(tmp_path / "home")
    code, _, err = call(capsys, "site", "export", tmp_path / "home", "--out", tmp_path / "again")
    assert code == 0, err
    folder = tmp_path / "again" / "model" / "site-1"
    assert "Model card: died at site-1" in (folder / "card.md").read_text()
    # The model says on the validation rows what the site's own scores said in the last round.
    last = pl.read_csv(tmp_path / "again" / "rounds.csv")["validation_auroc"].to_list()[-1]
    table = own.read_table(agreement.book)
    rows = assign_splits(table, agreement.seed, agreement.book.shared_patients) == 1
    p = load_model(folder).foretold(table.features.filter(pl.Series(rows)))["probability"].to_numpy()
    assert area(p, table.label[rows]).value == pytest.approx(last, abs=1e-6)


def wrong(tmp_path, kits, six):
    table = six.tables["site-1"]
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "abps-site.json").write_text("{")
    init = ("init", "--label", "died")
    submit = ("submit", "--study", "s", "--kit", kits / "operator@federation.example")
    return [
        (("provision", "north", "--out", tmp_path / "k"), "at least 2 sites"),
        (("provision", "a", "a", "--out", tmp_path / "k"), "named twice"),
        (("provision", "a", "b/c", "--out", tmp_path / "k"), "'b/c' cannot be used"),
        (("provision", "a", "server", "--out", tmp_path / "k"), "'server' cannot be used"),
        (("provision", "a", "b", "--host", "no host", "--out", tmp_path / "k"), "not a host name"),
        (("provision", "a", "b", "--port", 0, "--out", tmp_path / "k"), "--port 0"),
        (("provision", "a", "b", "--operator", "me", "--out", tmp_path / "k"), "e-mail"),
        ((*init, "--table", table), "either --kit"),
        ((*init, "--table", table, "--kit", kits / "relay"), "the relay has no table"),
        ((*init, "--table", table, "--kit", tmp_path), "not a startup kit"),
        ((*init, "--table", tmp_path / "no.csv", "--kit", kits / "north"), "no such file"),
        (("init", "--label", "dead", "--table", table, "--kit", kits / "north"), "no column 'dead'"),
        (("start", tmp_path), "not a startup kit"),
        (("start", kits / "south"), "run `abps site init`"),
        (("status", tmp_path), "no such file"),
        (("status", tmp_path / "broken"), "not a site's file"),
        (("export", tmp_path, "--out", tmp_path / "x"), "no such file"),
        ((*submit, "--codebook", tmp_path / "none.json"), "no such file"),
        ((*submit, "--codebook", empty), "not a codebook"),
    ]


@pytest.mark.parametrize("k", range(19))
def test_a_wrong_request_gets_one_sentence(kits, six, tmp_path, capsys, k):
    arguments, words = wrong(tmp_path, kits, six)[k]
    code, out, err = call(capsys, "site", *arguments)
    assert code == 2 and words in err and out == "" and "Traceback" not in err


def test_submitting_to_nobody(kits, six, tmp_path, capsys):
    book = tmp_path / "codebook.json"
    book.write_text(json.dumps(six.book(11).to_json()))
    submit = ("site", "submit", "--study", "s", "--codebook", book)  # masked counts need no statistics
    code, _, err = call(capsys, *submit, "--kit", kits / "north")
    assert code == 2 and "not an operator's startup kit" in err
    code, _, err = call(capsys, *submit, "--kit", kits / "operator@federation.example", "--method", "wpfed")
    assert code == 2 and "does not run between sites" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("provision", "a", "b", "--out", "k"),
        ("start", "k"),
        ("init", "--kit", "k", "--table", "t.csv", "--label", "died"),
        ("submit", "--kit", "k", "--study", "s", "--codebook", "c.json"),
    ],
)
def test_without_the_engine_it_says_what_to_install(monkeypatch, tmp_path, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "nvflare", None)
    code, out, err = call(capsys, "site", *arguments)
    assert code == 2 and "pip install 'abps[flare]'" in err and err.count("\n") == 1 and out == ""
    assert not list(tmp_path.iterdir())
