"""A failure bundle: what helps the operator, and nothing of the data, whatever stands in the site's files."""

from __future__ import annotations

import json
import shutil

import polars as pl
import pytest

from abps.cli.main import main
from abps.core.errors import RequestError
from abps.sites.consent.keys import read_root
from abps.sites.consent.kit import Membership
from abps.sites.consent.sitefile import SiteFile
from abps.sites.node.status import failure_bundle, read_bundle, release_bundle
from abps.sites.protocol.commands import DeclineCode, DeclineError
from abps.sites.store.audit import JournalEvent
from abps.sites.store.rows import EntryKind, LogEntry
from abps.sites.store.store import Store

#: A patient's name, a path and a value of the table, planted wherever a site writes something down.
PLANTED = ("Huber", "geheim", "4711")


#: Failures at a site, and the words in them.
FAILURES = (
    ("open", DeclineError(DeclineCode.TABLE, "the column 'surname' holds Huber (4711) in /geheim/x")),
    ("contribute", ValueError("Huber, 4711, /geheim/x")),
    ("contribute", ValueError("the same again: 4711")),
    ("begin", RequestError("a relay asks for round 4711")),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    kits = pytest.importorskip("abps.sites.flare.kits")
    return kits.provision(tmp_path_factory.mktemp("explain"), ["north", "south", "east"], "localhost", 18995)


@pytest.fixture
def home(made, tmp_path):
    """A site that failed, with planted words in its table, its log, its journal and its processes' logs."""
    kit = shutil.copytree(made.sites["north"], tmp_path / "geheim" / "north")
    table = tmp_path / "geheim" / "Huber.parquet"
    pl.DataFrame({"died": [0, 1] * 60, "surname": ["Huber"] * 120, "age": [4711.0] * 120}).write_parquet(
        table
    )
    own = SiteFile("north", str(table), "died", str(kit / "studies"))
    own.write(kit / "local")
    journal = own.journal(kit)
    from abps.sites.flare.app import FlareSite
    from abps.sites.flare.opening import SiteJob

    site = FlareSite("{}")
    site.begin(SiteJob("north", kit / "local", "job", "{}"), Membership(kit), {}, False)
    for command, error in FAILURES:
        try:
            raise error
        except Exception as raised:
            site._failed(command, raised)
    journal.write(JournalEvent.SENT, to="server", code="Huber")
    store = Store.open(own.store_of("Huber"), "north", "0123456789abcdef", {"study": "Huber"})
    why = "the column 'surname' holds Huber (4711) in /geheim/x.parquet"
    store.log(LogEntry("2026-11-18T00:00:00", 3, "south", True, EntryKind.UPLOAD, 123, why))
    store.refused("south", "malformed", why)
    store.refused("south", "Huber", why)
    store.close()
    return kit


def test_a_bundle_says_what_failed_and_nothing_of_the_data(home):
    bundle = failure_bundle(home)
    text = json.dumps(bundle, ensure_ascii=False)
    assert not [word for word in PLANTED if word.lower() in text.lower()]
    assert not [word for word in ("surname", "age", "/tmp", str(home.parent)) if f'"{word}' in text]
    assert bundle["site"] == "north" and {"abps", "nvflare", "python"} <= set(bundle["versions"])
    assert [(each["code"], each["command"], each["error"]) for each in bundle["failures"]] == [
        ("table", "open", "DeclineError"),
        ("fault", "contribute", "ValueError"),
    ]
    (study,) = bundle["studies"]
    assert study["refused"] == {"malformed": 1, "another": 1}
    assert study["log"] == [
        {
            "at": "2026-11-18T00:00:00",
            "round": 3,
            "peer": "south",
            "sent": True,
            "kind": "upload",
            "bytes": 123,
        }
    ]
    assert bundle["checks"]["table"] in ("fail", "warn", "ok")


def test_a_person_releases_it_and_the_operator_verifies_it(home, made, tmp_path, capsys):
    def call(*words, code=0):
        with pytest.raises(SystemExit) as ended:
            main(["site", "explain", *map(str, words)])
        said = capsys.readouterr()
        assert ended.value.code == code, said.err
        return " ".join((said.out + said.err).split())

    path = tmp_path / "bundle.json"
    assert "read it" in call(home, "--out", path)
    assert "was not released by north" in call(path, "--kit", made.operator, code=2)
    assert "--by NAME" in call(home, "--release", path, code=2)
    assert "Ada has released" in call(home, "--release", path, "--by", "Ada")
    line = SiteFile("north", "", "", str(home / "studies")).journal(home).lines()[-1]
    assert (line.what, line.facts["by"]) == ("released", "Ada")
    said = call(path, "--kit", made.operator)
    assert "released by north, unchanged" in said and "versions" in said
    assert "--kit" in call(path, code=2)
    altered = json.loads(path.read_text()) | {"at": "2027"}
    path.write_text(json.dumps(altered))
    assert "changed after it was signed" in call(path, "--kit", made.operator, code=2)
    path.write_text(json.dumps(altered | {"studies": [3]}))
    assert "no failure bundle" in call(path, "--kit", made.operator, code=2)
    path.write_text("{}")
    assert "no failure bundle" in call(path, "--kit", made.operator, code=2)
    theirs = failure_bundle(home) | {"site": "south"}
    path.write_text(json.dumps(theirs))
    with pytest.raises(RequestError, match="is of south"):
        release_bundle(home, path, "Ada")
    with pytest.raises(RequestError, match="was not released by south"):
        read_bundle(path, read_root(made.operator))
