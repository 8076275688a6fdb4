"""Attacks on a federation of real sites, and what is left of them: a hostile relay, hostile peers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from abps.cli.site_operator import _show_report
from abps.core.errors import RequestError
from abps.methods.plus_state import local_of
from abps.models import hierarchical
from abps.models.hierarchical import CommonModel
from abps.sites.consent.kit import Membership
from abps.sites.consent.proposal import Proposal, SignedProposal
from abps.sites.consent.sitefile import SiteFile
from abps.sites.coordinator.scheduler import Scheduler, _far_ahead
from abps.sites.protocol.commands import Command, Failure, Timeouts
from abps.sites.store.store import Store
from abps.wire.messages import pack_upload
from abps.wire.number_lists import NumberList

from .loopback import LoopbackNetwork
from .network import LINEAR, OPEN, close, join, open_site

QUICK = Timeouts(poll=0.0)
MEAN = "federated_mean:MEAN"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "foreign")


def opened(given, agreement, folder, network=None):
    network = network or LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network)
    return network


def begun(given, agreement, folder):
    """Sites in round 1."""
    network = opened(given, agreement, folder)
    sites = [network.sites[name] for name in given.names]
    for site in sites:
        join(site, given.names, 1, {s.name: 100 for s in sites})
    for site in sites:
        site.begin(1, given.names)
    return network, sites


def own_score(site):
    """The score of a site's model on its own test rows, which never leaves it."""
    return site.score(site.context.state, site.context.data.test)


# A relay that runs altered software


@pytest.mark.parametrize("secure", ["yes", "no"])
def test_a_relay_gets_no_upload_in_clear(four, tmp_path, secure):
    """It may ask a site for everything that the scheduler may ask for: no answer holds the upload."""
    network, sites = begun(four, four.agreement("abps-plus", **LINEAR, secure=secure), tmp_path)
    site = sites[0]
    site.exchanges.contribute(1)
    upload = site.exchanges._own.messages[0].data[8:]
    assert len(upload) > 100
    for command, call in site.commands.items():
        for arguments in ((), (1,), (1, []), (1, {}), (1, b"")):
            try:
                answer = call(*arguments)
            except (RequestError, TypeError, ValueError, AttributeError):
                continue
            assert upload not in repr(answer).encode("latin1") and upload != answer, command
    assert all(e.peer != "server" or e.kind != "upload" for e in site.store.traffic())
    close(network)


@pytest.mark.parametrize("round", [10**9, 6, 0, -1, 1.0, "2", None, True])
def test_a_relay_cannot_move_a_site_out_of_the_study(four, tmp_path, round):
    network = opened(four, four.agreement(MEAN, rounds=5), tmp_path)
    site = network.sites[four.names[0]]
    with pytest.raises(RequestError, match="is none of them"):
        join(site, four.names, round)
    join(site, four.names)
    with pytest.raises(RequestError, match="none of them"):
        site.begin(round, four.names)
    assert site.store.round == 0
    close(network)


def test_a_relay_cannot_begin_a_round_twice(four, tmp_path):
    network, sites = begun(four, four.agreement("abps-plus", **LINEAR), tmp_path)
    sites[0].exchanges.contribute(1)
    join(sites[0], four.names)
    with pytest.raises(RequestError, match="no round begins twice"):
        sites[0].begin(1, four.names)
    close(network)


class Listening(LoopbackNetwork):
    """A relay that keeps the validation scores that sites tell."""

    def __init__(self) -> None:
        super().__init__()
        self.received: dict[str, list[float]] = {}

    def ask(self, sites, what, *arguments, seconds):
        said, failed = super().ask(sites, what, *arguments, seconds=seconds)
        for name, answer in said.items():
            if what != "hello" and isinstance(answer, list | tuple) and answer[:1] == ["done"]:
                told = answer[1] if isinstance(answer[1], list) else []
                self.received.setdefault(name, []).extend(v for v in told if isinstance(v, float))
        return said, failed


def events_from(scores, rows):
    """The solver: how many of so many rows may have the event; an AUROC is a fraction of pairs of the two."""
    halves = [2 * np.array(scores) * k * (rows - k) for k in range(1, rows // 2 + 1)]
    return [k for k, found in enumerate(halves, 1) if np.abs(found - np.rint(found)).max() < 1e-6]


@pytest.mark.parametrize("floor", [0, 10])
def test_how_many_have_the_event_does_not_follow_from_what_a_site_reports_of_its_model(four, tmp_path, floor):
    agreement = four.agreement("fedavg", rounds=6, secure="yes")
    agreement = replace(agreement, book=replace(agreement.book, min_cell=floor))
    network = opened(four, agreement, tmp_path, Listening())
    Scheduler(network, agreement, 6, QUICK).run(four.names)
    few, exact = 0, 0
    for name, site in network.sites.items():
        rows = site.context.data.validation
        events, told = int(rows.y.sum()), network.received[name]
        assert len(told) == 6 and site.store.rounds()[-1].validation is not None  # at home it is known
        if not 0 < events < 10:
            assert np.isfinite(told).all()
            continue
        few += 1
        if floor:
            assert np.isnan(told).all()
        else:
            found = events_from(told, len(rows.y))
            assert events in found and len(found) <= 2
            exact += found == [events]
    assert few >= 2 and bool(exact) == (floor == 0)  # what was possible
    close(network)


# Peers that upload what they have not, or claim rows that they have not


class Poisoned(LoopbackNetwork):
    """One peer's uploads are replaced on their way, from round 2 on."""

    def __init__(self, bad: str, factor: float) -> None:
        super().__init__()
        self.bad, self.factor, self.hit = bad, factor, 0

    def sender(self, name):
        send = super().sender(name)

        def carry(peer, what, data):
            site = self.sites[self.bad]
            if what == "upload" and name == self.bad and site.context.round.number >= 2:
                self.hit += 1
                plain = site.exchanges._own.messages[0]
                changed = NumberList.of(self.factor * plain.values, plain.form)
                data = pack_upload(changed.data, site.context.round.number, site.context.id)
            return send(peer, what, data)

        return carry


@pytest.mark.parametrize("factor", [1e5, -50.0])
def test_one_huge_upload_costs_no_more_than_its_sender_s_absence(eight, tmp_path, factor):
    agreement, bad = eight.agreement("abps-plus", rounds=12, **LINEAR), eight.names[0]
    clean = opened(eight, agreement, tmp_path / "clean")
    clean.trouble = lambda sender, receiver, kind, back: (
        (sender, kind) == (bad, "upload") and clean.sites[bad].context.round.number >= 2
    )
    Scheduler(clean, agreement, 12, QUICK).run(eight.names)
    network = opened(eight, agreement, tmp_path / "poisoned", Poisoned(bad, factor))
    Scheduler(network, agreement, 12, QUICK).run(eight.names)
    assert network.hit > 4
    alike = [own_score(network.sites[name]) - own_score(clean.sites[name]) for name in eight.names[1:]]
    assert np.mean(alike) > -0.003 and min(alike) > -0.02
    close(clean)
    close(network)


class Aimed(LoopbackNetwork):
    """Some members add the same to one entry of their scores, in every exchange."""

    def __init__(self, bad: tuple[str, ...], entry: int, push: float) -> None:
        super().__init__()
        self.bad, self.entry, self.push = bad, entry, push

    def sender(self, name):
        send = super().sender(name)

        def carry(peer, what, data):
            context = self.sites[name].context
            if what == "upload" and name in self.bad:
                own = self.sites[name].exchanges._own.messages[0]
                values = own.values.copy()
                values[self.entry] += self.push
                numbers = NumberList.of(values, own.form).data
                data = pack_upload(numbers, context.round.number, context.id)
            return send(peer, what, data)

        return carry


@pytest.mark.parametrize(("entry", "push"), [(3, 1.0), (10, 3.0), (3, 100.0)])
def test_two_of_eight_aim_at_one_coefficient(eight, tmp_path, entry, push):
    """Once they moved it by 2.5 and cost .14 AUROC. Large pushes are left out; small ones are bounded."""
    agreement, bad = eight.agreement("abps-plus", rounds=12, **LINEAR), eight.names[:2]
    clean = opened(eight, agreement, tmp_path / "clean")
    clean.trouble = lambda sender, receiver, kind, back: sender in bad and kind == "upload"
    network = opened(eight, agreement, tmp_path / "aimed", Aimed(bad, entry, push))
    for each in (clean, network):
        Scheduler(each, agreement, 12, QUICK).run(eight.names)
    honest = eight.names[2:]
    moved = [abs(network.sites[n].models[0][entry] - clean.sites[n].models[0][entry]) for n in honest]
    cost = [own_score(clean.sites[n]) - own_score(network.sites[n]) for n in honest]
    assert max(moved) < (0.1 if push > 10 else 1.0) and np.nanmean(cost) < 0.02, (moved, cost)
    scores = [own_score(network.sites[n]) for n in honest]
    print(f"\nattack,no,2,{entry},{push:g},{np.nanmean(scores):.4f},{min(moved):.4f},{max(moved):.4f}")
    close(clean)
    close(network)


@pytest.mark.parametrize(
    ("liars", "entry", "push"), [(0, 3, 0.0), (1, 3, 1e4), (2, 3, 100.0), (1, 3, 3.0), (2, 3, 3.0)]
)
def test_under_masks_liars_can_do_no_more_than_leave_the_others_alone(eight, tmp_path, liars, entry, push):
    """Nobody can look at an upload, so the common model is the liars'. A site whose own rows it fits much
    worse than a model of these rows alone keeps the latter: once a coefficient moved by 11,000."""
    agreement, bad = eight.agreement("abps-plus", rounds=12, **LINEAR, secure="yes"), eight.names[:liars]
    network = opened(eight, agreement, tmp_path)

    def lying(site):
        honest = site.commands[Command.CONTRIBUTE]

        def contribute(round, gone=()):
            entries = honest(round, gone)
            site.exchanges.summand[entry] += push
            return entries

        site.commands[Command.CONTRIBUTE] = contribute

    for name in bad:
        lying(network.sites[name])
    Scheduler(network, agreement, 12, QUICK).run(eight.names)
    moved, kept_own = [], 0
    for name in eight.names[2:]:
        state, context = network.sites[name].context.state, network.sites[name].context.method_context
        local, wide = context.derived, local_of(context, state).rows  # without and with pairs of columns
        shape, y, family = local.rows.shape, wide.outcomes(0), wide.family
        nothing = CommonModel(np.zeros(shape), np.zeros(shape), 1.0)
        alone = hierarchical.alone(local.rows.design(0), y, family, local.group.reshape(shape), nothing).model
        logits = wide.design(0) @ state.own.modes[0].reshape(wide.shape).T, local.rows.design(0) @ alone.T
        loss = [family.loss(z, y).sum() for z in logits]
        assert loss[0] <= loss[1] + max(0.05 * len(y), 20.0), (name, loss)
        moved.append(network.sites[name].models[0][entry])
        kept_own += bool(state.resting[0])
    assert np.abs(moved).max() < 10 and (kept_own > len(moved) // 2) == (push > 10), (moved, kept_own)
    scores = [own_score(network.sites[name]) for name in eight.names[2:]]
    at = f"{np.nanmean(scores):.4f},{min(moved):.4f},{max(moved):.4f}"
    print(f"\nattack,yes,{liars},{entry},{push:g},{at}")
    close(network)


@pytest.mark.parametrize("rows", [10**8, 10**30])
def test_claimed_rows_count_up_to_a_multiple_of_the_own(four, tmp_path, rows):
    network, sites = begun(four, four.agreement("abps-plus", **LINEAR), tmp_path)
    join(sites[0], four.names, 1, dict.fromkeys(four.names, rows))
    context = sites[0].context
    assert float(context.method_context.sizes().max()) == 10 * float(context.data.train.sizes[0])
    close(network)


# Sites that lie to the scheduler


class Lying(LoopbackNetwork):
    """One site gives the scheduler a false answer to one question."""

    def __init__(self, bad, question, lie) -> None:
        super().__init__()
        self.bad, self.question, self.lie = bad, question, lie

    def ask(self, sites, what, *arguments, seconds):
        said, failed = super().ask(sites, what, *arguments, seconds=seconds)
        asked = arguments[0] if what == "start" else what
        if asked == self.question and self.bad in said:
            honest = said[self.bad]
            said[self.bad] = self.lie(honest) if callable(self.lie) else self.lie
        return said, failed


LIES = [
    ("hello", None),
    ("hello", {}),
    ("hello", lambda facts: facts | {"round": 5}),
    ("hello", lambda facts: facts | {"round": "x"}),
    ("hello", lambda facts: facts | {"rows": 10**30}),
    ("hello", lambda facts: facts | {"rows": float("nan")}),
    ("hello", lambda facts: facts | {"wire": [1, 3]}),
    ("hello", lambda facts: facts | {"abps": "0.1.9"}),
    ("hello", lambda facts: facts | {"abps": "\x1b[2J"}),
    ("hello", lambda facts: facts | {"wire": "2.0"}),
    ("hello", lambda facts: facts | {"agreement": 7}),
    ("open", "done"),
    ("contribute", ["done"]),
    ("contribute", ["done", "many"]),
    ("contribute", ["done", -4]),
    ("contribute", ["done", 10**9]),
    ("conclude", ["done", "x"]),
    ("conclude", ["done", 1e9]),
    ("conclude", lambda told: ["done", [1e9, told[1][1], False]]),
    ("conclude", lambda told: ["done", [0.5, None, False]]),
    ("conclude", lambda told: ["done", [0.5, {"bytes": 1}, False]]),
    ("conclude", lambda told: ["done", [0.5, 10**15, False]]),
    ("conclude", lambda told: ["done", [0.5, [told[1][1]], False]]),
]


@pytest.mark.parametrize(("question", "lie"), LIES)
def test_a_liar_is_left_out_and_the_job_goes_on(four, tmp_path, question, lie):
    bad = four.names[2]
    agreement = four.agreement(MEAN, rounds=2)
    network = opened(four, agreement, tmp_path, Lying(bad, question, lie))
    report = Scheduler(network, agreement, 2, QUICK).run(four.names)
    assert [r.round for r in report.rounds] == [1, 2]
    assert bad in report.left_out or all(bad in r.missing for r in report.rounds)
    for name in set(four.names) - {bad}:
        done = network.sites[name].store.rounds()
        assert [r.number for r in done] == [1, 2]
    close(network)


def test_the_scheduler_caps_claimed_rows(four, tmp_path):
    bad = four.names[2]
    agreement = four.agreement(MEAN, rounds=1)
    network = opened(four, agreement, tmp_path, Lying(bad, "hello", lambda f: f | {"rows": 10**8}))
    Scheduler(network, agreement, 1, QUICK).run(four.names)
    told = network.sites[four.names[0]].context.rows
    assert told[bad] <= 10 * max(rows for name, rows in told.items() if name != bad)
    close(network)


def test_a_claim_to_be_far_ahead_is_believed_of_two():
    assert _far_ahead({"a": 3, "b": 3, "c": 50}) == ["c"]
    for rounds in ({"a": 3, "b": 3, "c": 4}, {"a": 0, "b": 9, "c": 9}, {"a": 0, "b": 9}):
        assert _far_ahead(rounds) == []


# What a site says when something is wrong


@pytest.mark.parametrize("broken", ["table", "file", "store", "allowed"])
def test_no_cell_and_no_path_leaves_a_site_that_cannot_take_part(four, tmp_path, broken):
    app = pytest.importorskip("abps.sites.flare.app")
    opening = pytest.importorskip("abps.sites.flare.opening")
    name, secret = four.names[0], "Anna Example, born 1950-02-03"
    agreement = four.agreement("abps-plus", **LINEAR)
    frame = pl.read_parquet(four.tables[name])
    if broken == "table":
        frame = frame.with_columns(pl.lit(secret).alias(four.roles.label))
    frame.write_parquet(tmp_path / "secret-place.parquet")
    table, roles = str(tmp_path / "secret-place.parquet"), four.roles
    own = SiteFile(
        name, table, roles.label, str(tmp_path / "secret-store"), roles.patient, roles.time, policy=OPEN
    )
    if broken != "file":
        own.write(tmp_path)
    if broken == "store":
        Store.open(own.store_of(agreement.study), name, "another", {}).close()
    if broken == "allowed":
        agreement = replace(agreement, method="secretpackage.module:NAME")
    site = app.FlareSite(SignedProposal(Proposal(agreement)).text())
    site.begin(opening.SiteJob(name, tmp_path, "job", site.proposal), Membership(tmp_path), {}, False)
    site._start(Command.OPEN)
    site._work.join()
    assert site._poll() == [broken, None]
    said = str(Failure.sent(site._poll()[0]))
    assert "secret" not in said and "Anna" not in said and "its log says more" in said


def test_the_scheduler_repeats_no_words_of_a_site(four, tmp_path):
    bad = four.names[2]
    agreement = four.agreement(MEAN, rounds=1)
    network = opened(four, agreement, tmp_path, Lying(bad, "open", ["Anna Example has [red]sepsis[/]", None]))
    report = Scheduler(network, agreement, 1, QUICK).run(four.names)
    assert report.left_out == {bad: "its answer is not valid"}
    close(network)


def test_the_operator_reads_who_was_left_out(capsys):
    _show_report({"rounds": [], "left_out": {"north": "its table does not fit the study"}})
    printed = capsys.readouterr()
    assert "north was left out: its table does not fit the study" in printed.out + printed.err


def test_a_table_swapped_between_jobs_is_refused(four, tmp_path):
    agreement = four.agreement("abps-plus", **LINEAR)
    network = LoopbackNetwork()
    name, other = four.names[:2]
    for _ in range(2):  # the same table opens again
        open_site(four, name, agreement, tmp_path, network).store.close()
    swapped = replace(four, tables=four.tables | {name: four.tables[other]})
    with pytest.raises(RequestError, match="another table"):
        open_site(swapped, name, agreement, tmp_path, network)
    with closing(open_site(swapped, name, agreement, tmp_path, network, another_table=True).store):
        pass
