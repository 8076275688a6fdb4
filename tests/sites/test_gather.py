"""Codebooks reach the operator through the relay: shared by a person, sealed, signed, merged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from abps.core.errors import RequestError
from abps.sites.consent import keys, sharing, sitefile
from abps.sites.consent.keys import seal, unseal
from abps.sites.consent.proposal import Proposal, sign
from abps.sites.consent.sharing import gather
from abps.sites.consent.sitefile import SiteFile
from abps.sites.flare import kits
from abps.sites.flare.rehearsal import own_home
from abps.sites.protocol.commands import DeclineCode, DeclineError, Failure, Timeouts

from .network import OPEN
from .test_cli import call

SITES = ("site-1", "site-2")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Kits of two sites and of the operator."""
    folder = tmp_path_factory.mktemp("gather")
    with own_home(folder / "home"):
        return kits.provision(folder / "kits", SITES, "localhost")


@pytest.fixture()
def hospitals_of_two(made, four, tmp_path, capsys):
    """A copy of the kits, initialised with tables; nothing is shared yet."""
    out = shutil.copytree(made.relay.parent, tmp_path / "kits")
    for name in SITES:
        arguments = ("--table", four.tables[name], "--label", four.roles.label)
        arguments += ("--patient", four.roles.patient, "--time", four.roles.time)
        assert call(capsys, "site", "init", "--kit", out / name, *arguments)[0] == 0
    return out


def asked(out, study="icu"):
    """A signed proposal that asks for codebooks, and the operator's key."""
    operator = next(path for path in out.iterdir() if "@" in path.name)
    key = keys.read_signer(operator)
    return sign(Proposal(study, None), key), key, keys.read_root(operator)


def told(out, name, signed):
    """A site's letter as the relay's report has it."""
    letter = sharing.letter(sitefile.read(out / name / "local" / sitefile.FILE), out / name / "local", signed)
    return {part: value.hex() for part, value in letter.items()}


def test_letters_are_for_one_reader(made):
    north, south = (keys.read_signer(made.sites[name]) for name in SITES)
    letter = seal(north.certificate, b"columns")
    assert b"columns" not in letter and unseal(north, letter) == b"columns"
    assert seal(north.certificate, b"columns") != letter
    for reader, changed in ((south, letter), (north, letter[:-1] + bytes([letter[-1] ^ 1])), (north, b"")):
        with pytest.raises(RequestError, match="cannot be opened"):
            unseal(reader, changed)


def test_nothing_leaves_before_somebody_shares_it(hospitals_of_two, capsys):
    out, (signed, key, root) = hospitals_of_two, asked(hospitals_of_two)
    with pytest.raises(DeclineError, match="nobody has shared it") as declined:
        told(out, "site-1", signed)
    assert declined.value.code is DeclineCode.APPROVAL
    code, text, _ = call(capsys, "site", "proposals", out / "site-1", "--json")
    assert code == 0 and json.loads(text)[0]["terms"]["asks for"] == "codebook"

    code, text, _ = call(capsys, "site", "share", out / "site-1", "--by", "Dr. Ada Example", "--json")
    assert code == 0 and json.loads(text)["by"] == "Dr. Ada Example"
    book = sharing.open_letter("site-1", told(out, "site-1", signed), signed, key, root)
    assert book.to_json() == sharing.read(out / "site-1" / "local").to_json()
    lines = sitefile.read(out / "site-1" / "local" / sitefile.FILE).journal(out / "site-1").lines()
    assert [line.what for line in lines] == ["proposed", "shared", "sent"]
    assert lines[-1].facts["to"].startswith("operator@") and lines[-1].facts["bytes"] > 100

    # Another codebook than the one that was shared does not leave.
    path = out / "site-1" / "local" / sitefile.CODEBOOK
    path.write_text(json.dumps(replace(book, columns=book.columns[:-1]).to_json()))
    with pytest.raises(DeclineError, match="nobody has shared it"):
        told(out, "site-1", signed)


def test_a_relay_can_neither_read_nor_change_nor_exchange_letters(hospitals_of_two, capsys):
    out, (signed, key, root) = hospitals_of_two, asked(hospitals_of_two)
    for name in SITES:
        assert call(capsys, "site", "share", out / name, "--by", "Ada")[0] == 0
    letters = {name: told(out, name, signed) for name in SITES}
    source = sharing.read(out / "site-1" / "local").sources[0]
    assert source.encode().hex() not in letters["site-1"]["book"]
    changed = letters["site-1"] | {"book": letters["site-1"]["book"][:-2] + "00"}
    for name, letter in (
        ("site-2", letters["site-1"]),
        ("site-1", changed),
        ("site-1", letters["site-1"] | {"signature": letters["site-2"]["signature"]}),
        ("site-1", {"book": "xx"}),
    ):
        with pytest.raises(RequestError):
            sharing.open_letter(name, letter, signed, key, root)
    other, _, _ = asked(out, "another study")
    with pytest.raises(RequestError, match="not signed by that site"):
        sharing.open_letter("site-1", letters["site-1"], other, key, root)


def test_who_refuses_sends_nothing_although_it_was_shared(hospitals_of_two, capsys):
    out, (signed, _, _) = hospitals_of_two, asked(hospitals_of_two)
    with pytest.raises(DeclineError):
        told(out, "site-1", signed)
    assert call(capsys, "site", "share", out / "site-1", "--by", "Ada")[0] == 0
    assert call(capsys, "site", "refuse", out / "site-1", "icu", "--by", "Ada")[0] == 0
    with pytest.raises(DeclineError) as declined:
        told(out, "site-1", signed)
    assert declined.value.code is DeclineCode.REFUSED


def test_a_floor_below_the_policy_is_not_shared(four, tmp_path):
    own = SiteFile("site-1", str(four.tables["site-1"]), four.roles.label, str(tmp_path / "store"))
    folder = tmp_path / "kit" / "local"
    own.write(folder)
    (folder / sitefile.CODEBOOK).write_text(json.dumps(four.book(11).to_json()))  # made without a floor
    with pytest.raises(DeclineError, match="policy asks for") as declined:
        sharing.letter(own, folder, sign(Proposal("icu", None), None))
    assert declined.value.code is DeclineCode.POLICY
    letter = sharing.letter(replace(own, policy=OPEN), folder, sign(Proposal("icu", None), None))
    assert json.loads(letter["book"])["columns"]


class Slowly:
    """Sites of which one decides only after some time; a clock that the conductor's pauses move on."""

    def __init__(self, when: dict[str, float]) -> None:
        self.when, self.clock = when, 0.0

    def ask(self, sites, what, *arguments, seconds):
        assert (what, arguments) == ("start", ("letter",))
        letter = dict.fromkeys(("book", "certificate", "signature"), b"x")
        said = {
            name: ["done", letter] if self.clock >= self.when[name] else [str(DeclineCode.APPROVAL), None]
            for name in sites
            if name in self.when
        }
        return said, {
            name: Failure(DeclineCode.UNREACHABLE, "not connected") for name in sites if name not in self.when
        }

    def pause(self, seconds):
        self.clock += seconds

    def now(self):
        return self.clock


def test_people_get_time_to_share():
    line = Slowly({"north": 0.0, "south": 30.0})
    waiting = str(Failure(DeclineCode.APPROVAL))
    found = gather(line, ["north", "south", "west"], Timeouts(approval=10.0))
    assert sorted(found["codebooks"]) == ["north"]
    assert found["left_out"] == {"south": waiting, "west": "not connected"} and 10 <= line.clock < 15
    found = gather(line, ["north", "south", "west"], Timeouts(approval=60.0))
    assert sorted(found["codebooks"]) == ["north", "south"] and 30 <= line.clock < 40
    with pytest.raises(RequestError, match="no site has sent a codebook"):
        gather(Slowly({}), ["north"], Timeouts())


def test_wrong_requests(hospitals_of_two, tmp_path, capsys):
    out, book = hospitals_of_two, tmp_path / "book.json"
    (out / "site-2" / "local" / sitefile.CODEBOOK).unlink()
    for arguments, words in (
        (("share", out / "site-1", "--by", " "), "needs the name"),
        (("share", out / "site-2", "--by", "Ada"), "no codebook is here"),
        (
            ("gather", "--kit", out / "site-1", "--study", "icu", "--out", tmp_path / "book.json"),
            "operator's",
        ),
    ):
        code, text, err = call(capsys, "site", *arguments)
        assert code == 2 and words in err and text == "", err
    assert not book.exists()
