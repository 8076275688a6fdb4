"""Hospitals decide: without approval nothing leaves, and every decision has a name and a signature."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from abps.cli.main import main
from abps.cli.site_command import own_file
from abps.core.errors import RequestError
from abps.sites.consent import approval
from abps.sites.consent.approval import Consent
from abps.sites.consent.keys import read_root, read_signer
from abps.sites.consent.kit import Membership, RevocationList
from abps.sites.consent.proposal import Proposal, SignedProposal, sign
from abps.sites.consent.sitefile import Policy, SiteFile
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.flare.opening import SiteJob
from abps.sites.protocol.commands import DeclineCode, DeclineError, Failure, Timeouts
from abps.sites.store.audit import Journal, JournalEvent

from .loopback import LoopbackNetwork
from .network import LINEAR, OPEN, close, open_site

#: A site of the tests has 96 rows or more, and three events or more.
ASKING = Policy("ask", events=3)


@pytest.fixture(scope="module")
def network(four, tmp_path_factory):
    """Kits of four sites and of the operator, with their keys."""
    kits = pytest.importorskip("abps.sites.flare.kits")
    return kits.provision(tmp_path_factory.mktemp("kits"), four.names, "localhost", 18998)


def site_file(four, name: str, folder: Path, policy: Policy = ASKING) -> SiteFile:
    roles = four.roles
    store = str(folder / "studies")
    return SiteFile(
        name, str(four.tables[name]), roles.label, store, roles.patient, roles.time, policy=policy
    )


@pytest.fixture
def home(four, network, tmp_path):
    """A site with its kit's keys and a folder of its own, as a job finds it."""
    name = four.names[0]
    kit = tmp_path / name
    (kit / "local").mkdir(parents=True)
    (kit / "startup").symlink_to(network.sites[name] / "startup")
    site_file(four, name, kit / "local").write(kit / "local")
    return kit


def named(four, study):
    """A proposal of a study with this name."""
    return Proposal(replace(four.agreement("abps-plus", **LINEAR), study=study))


def signed_study(four, network, method="abps-plus", members=None, floor=10, **settings) -> SignedProposal:
    rounds = settings.pop("rounds", 5)
    agreement = four.agreement(method, rounds=rounds, **(LINEAR | settings))
    agreement = replace(agreement, book=replace(agreement.book, min_cell=floor))
    named = four.names if members is None else members
    return sign(Proposal(agreement, named), read_signer(network.operator))


def opening(kit: Path, signed: SignedProposal):
    """What a site answers when a job opens it, and the site."""
    app = pytest.importorskip("abps.sites.flare.app")
    site = app.FlareSite(signed.text())
    site.begin(SiteJob(kit.name, kit / "local", "job", signed.text()), Membership(kit), {}, False)
    site._start("open")
    site._work.join()
    said = site._poll()[0]
    site.end()
    return said


def command(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def approve(capsys, home, study: SignedProposal, by: str = "Ada") -> tuple[int, str, str]:
    digest = study.proposal.digest()[:16]
    return command(capsys, "site", "approve", home, "test", "--by", by, "--proposal", digest)


def test_nothing_opens_before_somebody_approves(four, network, home, capsys):
    study = signed_study(four, network)
    assert opening(home, study) == "approval"
    assert "nobody there has approved" in str(Failure(DeclineCode.APPROVAL))
    assert not list((home / "local" / "studies").glob("*.sqlite"))  # no store, no table read, nothing sent
    code, out, _ = command(capsys, "site", "proposals", home, "--json")
    (waiting,) = json.loads(out)
    assert code == 0 and waiting["decision"] is None and waiting["operator"] == network.operator.name
    terms = waiting["terms"]
    assert terms["method"] == "abps-plus" and terms["rounds"] == 5
    assert "age" in terms["columns"] and terms["who sees our uploads"] == "each coordinator"
    code, _, err = command(capsys, "site", "approve", home, "test", "--by", "Ada Example")
    assert code == 2 and "Missing option '--proposal'" in err
    code, out, _ = approve(capsys, home, study, "Ada Example")
    assert code == 0 and "approved by Ada Example" in out
    assert opening(home, study) == "done"
    assert opening(home, study) == "done"  # once is enough
    own = own_file(home)
    with pytest.raises(RequestError, match="was changed"):  # nobody else's key speaks for this site
        Journal(Path(own.store), read_signer(network.sites[four.names[1]])).lines()
    decision = own.journal(home).lines()[-1]
    assert decision.what == "approved" and decision.facts["by"] == "Ada Example"
    assert decision.facts["proposal"] == study.proposal.digest()


def test_preview_shows_every_value_before_it_leaves(four, network, home, capsys, tmp_path):
    study = signed_study(four, network)
    opening(home, study)
    code, out, _ = command(capsys, "site", "preview", home, "test", "--out", tmp_path / "l.csv", "--json")
    values = json.loads(out)
    assert code == 0 and not list((home / "local" / "studies").glob("*.sqlite"))
    by = {(v["what"], v["name"]): v for v in values}
    (upload,) = [v for v in values if v["what"] == "scores"]
    assert upload["to"].startswith("the coordinator") and upload["clear"] is False
    approve(capsys, home, study)
    # What it shows is what a site sends: as many numbers.
    agreement = study.proposal.agreement
    site = open_site(four, home.name, agreement, tmp_path, LoopbackNetwork())
    own = site.context.method.upload(
        site.context.method_context, site.context.method.init(site.context.method_context), 1
    )
    assert upload["value"] == len(own.messages[0].values)
    assert by[("report", "training rows")]["value"] == site.hello()["rows"]
    site.store.close()
    assert (tmp_path / "l.csv").read_text().count("\n") == len(values) + 1
    _, shown, _ = command(capsys, "site", "preview", home, "test")
    assert "…" not in shown and shown.count("codebook") == len([v for v in values if v["what"] == "codebook"])
    _, summed, _ = command(capsys, "site", "preview", home, "test", "--out", tmp_path / "l.csv")
    assert summed.count("\n") < 20 and f"wrote {len(values)} values" in summed + _
    code, _, err = command(capsys, "site", "preview", home, "nothing")
    assert code == 2 and "no proposal of a study 'nothing'" in err


def test_an_approval_is_of_one_proposal(four, network, home, capsys):
    assert opening(home, signed_study(four, network)) == "approval"
    approve(capsys, home, signed_study(four, network))
    for other in (
        signed_study(four, network, rounds=6),
        signed_study(four, network, steps="4"),
        signed_study(four, network, members=four.names[:3]),
        signed_study(four, network, floor=12),
        signed_study(four, network, "glm-exact", secure="yes"),
    ):
        assert opening(home, other) == "approval"
    assert opening(home, signed_study(four, network)) == "done"


def test_refused_and_withdrawn(four, network, home, capsys):
    study = signed_study(four, network)
    opening(home, study)
    assert command(capsys, "site", "refuse", home, "test", "--by", "Ada")[0] == 0
    assert opening(home, study) == "refused"
    approve(capsys, home, study)
    assert opening(home, study) == "done"
    assert command(capsys, "site", "withdraw", home, "test", "--by", "Ada")[0] == 0
    assert opening(home, study) == "withdrawn"
    later = signed_study(four, network, members=four.names[:3])
    assert opening(home, later) == "withdrawn"  # a withdrawal is from the study, whatever is proposed
    approve(capsys, home, later, "Bo")
    assert opening(home, later) == "done"
    assert opening(home, study) == "withdrawn"


@pytest.mark.parametrize(
    ("asked", "policy"),
    [
        (("abps-plus", {}), replace(ASKING, methods=("glm-exact",))),
        (("abps-plus", {}), replace(ASKING, models=("gam",))),
        (("fedavg", {"epochs": "1000000000", "secure": "yes"}), ASKING),
        (("abps-plus", {"rounds": 6}), replace(ASKING, rounds=5)),
        (("abps-plus", {"floor": 9}), ASKING),
    ],
)
def test_what_the_policy_rules_out_is_not_even_asked(four, network, home, asked, policy):
    site_file(four, home.name, home / "local", policy).write(home / "local")
    method, settings = asked
    assert opening(home, signed_study(four, network, method, **settings)) == "policy"
    assert not (home / "local" / "studies" / "proposals").exists()


@pytest.mark.parametrize("policy", [replace(OPEN, rows=100_000), replace(OPEN, events=5_000)])
def test_too_few_rows_or_events(four, network, home, policy):
    site_file(four, home.name, home / "local", policy).write(home / "local")
    assert opening(home, signed_study(four, network)) == "few"


def test_what_no_operator_signed_is_not_trusted(four, network, home, tmp_path):
    kits = pytest.importorskip("abps.sites.flare.kits")
    site_file(four, home.name, home / "local", OPEN).write(home / "local")
    good = signed_study(four, network)
    other = kits.provision(tmp_path / "other", ["a", "b"], "localhost", 18997)
    changed = replace(good.proposal, members=four.names[:3])
    for signed, words in (
        (SignedProposal(good.proposal), "not signed"),
        (sign(good.proposal, read_signer(network.sites[four.names[1]])), "no operator"),
        (sign(good.proposal, read_signer(other.operator)), "another authority"),
        (replace(good, proposal=changed), "changed after"),
        (replace(good, signature="00" * 256), "changed after"),
        (replace(good, certificate="nonsense"), "cannot be trusted"),
    ):
        assert opening(home, signed) == "proposal"
        with pytest.raises(RequestError, match=words):
            signed.operator(read_root(network.relay), RevocationList())
    assert opening(home, good) == "done"


def test_a_code_that_leaves_is_written_down_first(four, network, home):
    opening(home, signed_study(four, network))
    told = [line for line in own_file(home).journal(home).lines() if line.what == "sent"]
    (facts,) = [line.facts for line in told]
    assert (facts["to"], facts["code"], facts["command"]) == ("server", "approval", "open")
    assert facts["error"] == "DeclineError" and facts["where"][-1].startswith(
        "abps/sites/consent/approval.py:"
    )


@pytest.mark.parametrize("change", ["change", "delete", "reorder", "unsigned", "forged"])
def test_a_changed_journal_is_found(network, four, tmp_path, change):
    journal = Journal(tmp_path, read_signer(network.sites[four.names[0]]))
    for k in range(4):
        journal.write(JournalEvent.APPROVED, study="icu", proposal=f"{k}", by="Ada")
    changes = {
        "change": "UPDATE traffic SET why = replace(why, 'Ada', 'Eve') WHERE number = 3",
        "delete": "DELETE FROM traffic WHERE number = 3",
        "reorder": "UPDATE traffic SET number = -3 WHERE number = 3; UPDATE traffic SET number = 3 WHERE "
        "number = 4; UPDATE traffic SET number = 4 WHERE number = -3",
        "unsigned": "DELETE FROM head WHERE rows = 5",
        "forged": "UPDATE head SET signature = x'00' WHERE rows = 5",
    }
    with closing(sqlite3.connect(journal.path)) as db:
        db.executescript(changes[change])
    with pytest.raises(RequestError, match="was changed"):
        journal.write(JournalEvent.APPROVED, study="icu", proposal="5", by="Ada")
    with pytest.raises(RequestError, match="was changed"):
        journal.lines()


def test_decisions_of_an_older_version_are_not_forgotten_in_silence(tmp_path):
    (tmp_path / "journal.jsonl").write_text("{}")
    with pytest.raises(RequestError, match="older version of abps; move it"):
        Journal(tmp_path).write(JournalEvent.SENT, to="server")


def test_proposals_do_not_fill_the_disk(four, tmp_path, monkeypatch):
    monkeypatch.setattr("abps.sites.consent.approval.MOST", 3)
    journal = Journal(tmp_path)
    for k in range(3):
        approval.keep(tmp_path, journal, SignedProposal(named(four, f"s{k}")), "op")
    with pytest.raises(RequestError, match="holds 3 proposals"):
        approval.keep(tmp_path, journal, SignedProposal(named(four, "more")), "op")


def test_a_proposal_that_was_put_into_the_folder_is_noticed(four, tmp_path):
    journal = Journal(tmp_path)
    approval.keep(tmp_path, journal, SignedProposal(named(four, "icu")), "op")
    (path,) = (tmp_path / "proposals").glob("*.json")
    path.write_text(path.read_text().replace('"members": []', '"members": ["x"]'))
    with pytest.raises(RequestError, match="put there or changed"):
        approval.decide(tmp_path, journal, "icu", JournalEvent.APPROVED, "Ada")


def test_wrong_decisions_get_one_sentence(home, capsys):
    for by, digest, words in (
        ("Ada", "0" * 16, "no proposal of a study 'icu' has arrived"),
        ("  ", "0" * 16, "needs the name"),
        ("Ada", "0" * 8, "at least 16 digits"),
    ):
        code, _, err = command(capsys, "site", "approve", home, "icu", "--by", by, "--proposal", digest)
        assert code == 2 and words in err


@pytest.mark.parametrize("change", [{"rounds": 6}, {"members": ("site-1", "site-2", "site-3")}])
def test_what_is_approved_is_what_was_read(four, network, home, capsys, change):
    """Another proposal under the same name arrives between reading and approving."""
    read, swapped = signed_study(four, network), signed_study(four, network, **change)
    assert opening(home, read) == opening(home, swapped) == "approval"
    assert approve(capsys, home, read)[0] == 0
    assert opening(home, read) == "done" and opening(home, swapped) == "approval"


@pytest.mark.parametrize("name", ["icu\x1b[2J\x1b[31mok", "icu\x9b2K\r\u202eko"])
def test_no_name_redraws_the_terminal(four, home, capsys, name):
    own = own_file(home)
    journal = own.journal(home)
    approval.keep(Path(own.store), journal, SignedProposal(named(four, name)), "op\x07")
    code, out, _ = command(capsys, "site", "proposals", home)
    assert code == 0 and all(c.isprintable() or c == "\n" for c in out)
    assert name.encode("unicode_escape").decode() in out and "operator: op\\x07" in out


# While a job runs


def consenting(folder: Path, name: str, signed: SignedProposal, policy=ASKING) -> Consent:
    journal = Journal(folder / name)
    approval.keep(folder / name, journal, signed, "op")
    approval.decide(folder / name, journal, signed.proposal.study, JournalEvent.APPROVED, "Ada")
    return Consent(folder / name, journal, policy, signed, None)


def running(four, folder, policies=None, members=(), between=lambda t, consents: None):
    """Four sites with consent of their own; ``between`` is called before each round."""
    agreement = four.agreement("abps-plus", rounds=4, **LINEAR)
    signed = SignedProposal(Proposal(agreement, members))
    consents = {
        name: consenting(folder, name, signed, (policies or {}).get(name, ASKING)) for name in four.names
    }

    class Clock(LoopbackNetwork):
        def ask(self, sites, what, *arguments, seconds):
            if what == "begin":
                between(arguments[0], consents)
            return super().ask(sites, what, *arguments, seconds=seconds)

    network = Clock()
    for name in four.names:
        open_site(four, name, agreement, folder / "stores", network, consent=consents[name])
    return network, Scheduler(network, agreement, 4, Timeouts(poll=0.0))


def test_a_site_that_withdraws_takes_no_part_from_the_next_round_on(four, tmp_path):
    gone = four.names[1]

    def withdraw(t, consents):
        if t == 3:
            own = consents[gone]
            approval.decide(own.folder, own.journal, "test", JournalEvent.WITHDRAWN, "Ada Example")

    network, conductor = running(four, tmp_path, between=withdraw)
    report = conductor.run(four.names)
    assert [gone in r.present for r in report.rounds] == [True, True, False, False]
    assert all("withdrawn" in r.missing[gone] for r in report.rounds[2:])
    store = network.sites[gone].store
    assert [r.number for r in store.rounds()] == [1, 2]
    assert all(e.round <= 2 for e in store.traffic() if e.sent)  # nothing left it after that
    said = [e.why for e in store.traffic() if e.kind == "decision"]
    assert len(said) == 1 and "the study 'test' was withdrawn here by Ada Example" in said[0]
    others = [network.sites[name].store for name in four.names if name != gone]
    assert all([r.number for r in store.rounds()] == [1, 2, 3, 4] for store in others)
    close(network)


def test_the_hours_and_bytes_of_a_policy_end_a_sites_part(four, tmp_path):
    frugal = four.names[0]
    network, conductor = running(four, tmp_path, {frugal: replace(ASKING, bytes=1500)})
    report = conductor.run(four.names)
    assert [frugal in r.present for r in report.rounds] == [True, False, False, False]
    assert "spent" in report.rounds[-1].missing[frugal]
    sent = {name: sum(network.sites[name].store.sent_bytes().values()) for name in four.names[:2]}
    assert 1500 <= sent[frugal] < sent[four.names[1]]
    close(network)
    signed = SignedProposal(Proposal(four.agreement("abps-plus", **LINEAR)))
    short = consenting(tmp_path / "hours", "a", signed, replace(ASKING, hours=1.0))
    short.round(0, lambda: 0.0)
    short.round(0, lambda: 3500.0)
    with pytest.raises(DeclineError, match="1 hours") as declined:
        short.round(0, lambda: 4000.0)
    assert declined.value.code is DeclineCode.SPENT


def test_a_job_with_other_members_than_approved(four, tmp_path):
    network, conductor = running(four, tmp_path, members=four.names[:3])
    with pytest.raises(RequestError, match="no site is left"):
        conductor.run(four.names)
    for site in network.sites.values():
        assert not [e for e in site.store.traffic() if e.sent and e.peer in four.names]
    close(network)
    network, conductor = running(four, tmp_path / "again", members=four.names[:3])
    assert len(conductor.run(four.names[:3]).rounds) == 4
    close(network)


# What was possible once


@pytest.mark.parametrize("cut", ["last", "all"])
def test_a_withdrawal_cannot_be_cut_off_the_journal(four, network, home, capsys, cut):
    """The last lines of the journal, or all of it, are deleted: the study's log has the decision, too."""
    study = signed_study(four, network)
    opening(home, study)
    approve(capsys, home, study)
    assert opening(home, study) == "done"
    own = own_file(home)
    path = own.journal(home).path
    before = path.read_bytes()
    assert command(capsys, "site", "withdraw", home, "test", "--by", "Ada")[0] == 0
    if cut == "last":
        path.write_bytes(before)
        assert opening(home, study) == "log"
    else:
        path.unlink()
        for each in (Path(own.store) / "proposals").glob("*.json"):
            each.unlink()
        assert opening(home, study) == "approval"  # nobody has approved it, by that journal
        approve(capsys, home, study)
        assert opening(home, study) == "log"
    code, _, err = command(capsys, "site", "verify", home, "--study", "test")
    assert code == 2 and "the journal lacks a decision that the log has: withdrawn by Ada" in " ".join(
        err.split()
    )


@pytest.mark.parametrize("change", [{"rounds": 6}, {"members": ("site-1", "site-2", "site-3")}])
def test_an_expelled_operator_gets_nothing(four, tmp_path, change):
    kits = pytest.importorskip("abps.sites.flare.kits")
    made = kits.provision(tmp_path / "kits", four.names, "localhost", 18996)
    kit = made.sites[four.names[0]]
    own = site_file(four, four.names[0], kit / "local", OPEN)
    own.write(kit / "local")
    study = signed_study(four, made)
    assert opening(kit, study) == "done"
    stored = len(list((Path(own.store) / "proposals").glob("*.json")))
    kits.Authority(tmp_path / "kits").revoke(made.operator.name)
    assert opening(kit, study) == opening(kit, signed_study(four, made, **change)) == "proposal"
    assert len(list((Path(own.store) / "proposals").glob("*.json"))) == stored


@pytest.mark.parametrize("roster", [("site-1", "site-4"), ("site-1", "eve")])
def test_a_relay_with_one_member_cannot_choose_the_roster(four, network, tmp_path, roster):
    """Each site alone with the relay's friend: once, that one got every site's uploads."""
    for members in (four.names, ()):
        signed = signed_study(four, network, members=members)
        consent = Consent(tmp_path, Journal(tmp_path / "j"), OPEN, signed, read_root(network.relay))
        with pytest.raises(DeclineError):
            consent.members(roster)
