"""Attacks on a federation of real sites, and what is left of them: a hostile relay, hostile peers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from abps.cli.site_operator import _show_report
from abps.core.errors import RequestError
from abps.core.protocol import Kind, Message
from abps.sites.consent.membership import Membership
from abps.sites.consent.proposal import Proposal, SignedProposal
from abps.sites.consent.sitefile import SiteFile
from abps.sites.coordinator.scheduler import Scheduler, _far_ahead
from abps.sites.protocol.commands import Command, Timeouts
from abps.sites.protocol.decline_codes import Failure
from abps.sites.store.store import Store
from abps.wire.frames import pack
from abps.wire.messages import pack_message, pack_vector

from .loopback import LoopbackNetwork
from .network import OPEN, close, join, open_site

QUICK = Timeouts(poll=0.0)


def opened(given, agreement, folder, network=None):
    network = network or LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network)
    return network


def begun(given, agreement, folder):
    """Sites that have trained in round 1."""
    network = opened(given, agreement, folder)
    sites = [network.sites[name] for name in given.names]
    for site in sites:
        join(site, given.names, 1, {s.name: 100 for s in sites})
    for site in sites:
        site.publishing.introduce(1)
    for site in sites:
        site.train(1, given.names)
    return network, sites


# A relay that runs altered software


@pytest.mark.parametrize("method", ["abps-pq-k1", "local"])
def test_a_relay_gets_no_weights_of_a_method_without_a_server(four, tmp_path, method):
    network, sites = begun(four, four.agreement(method), tmp_path)
    for site in sites:
        with pytest.raises(RequestError, match="has no server"):
            site.star.upload(1)
        with pytest.raises(RequestError, match="has no server"):
            site.star.download(1, [])
        assert all(e.kind != "weights" for e in site.store.traffic())
    close(network)


def test_a_server_gets_the_weights_of_its_round_once(four, tmp_path):
    network, sites = begun(four, four.agreement("fedavg"), tmp_path)
    with pytest.raises(RequestError, match="out of step"):
        sites[0].star.upload(2)
    assert len(sites[0].star.upload(1)) == 1
    with pytest.raises(RequestError, match="out of step"):
        sites[0].star.upload(1)
    close(network)


@pytest.mark.parametrize("round", [10**9, 6, 0, -1, 1.0, "2", None, True])
def test_a_relay_cannot_move_a_site_out_of_the_study(four, tmp_path, round):
    network = opened(four, four.agreement("abps-pq-k1", rounds=5), tmp_path)
    site = network.sites[four.names[0]]
    with pytest.raises(RequestError, match="cannot begin with round"):
        join(site, four.names, round)
    join(site, four.names)
    with pytest.raises(RequestError, match="none of them"):
        site.begin(round, four.names)
    assert site.store.round == 0
    close(network)


def test_a_relay_cannot_begin_a_round_twice(four, tmp_path):
    network, sites = begun(four, four.agreement("fedavg"), tmp_path)
    sites[0].star.upload(1)
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
    agreement = four.agreement("abps-pq-k1", rounds=6)
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


# Peers that send weights which are none, or claim rows that they have not


class Poisoned(LoopbackNetwork):
    """One peer's weights are replaced on their way, from round 3 on."""

    def __init__(self, bad: str, factor: float) -> None:
        super().__init__()
        self.bad, self.factor, self.hit = bad, factor, 0

    def sender(self, name):
        send = super().sender(name)

        def carry(peer, what, data):
            if what == "weights" and name == self.bad:
                data = self.poison(data)
            reply = send(peer, what, data)
            return self.poison(reply) if what == "weights" and peer == self.bad and reply else reply

        return carry

    def poison(self, data):
        site = self.sites[self.bad]
        if site.context.round.talks.round < 3:
            return data
        self.hit += 1
        signs = np.where(np.arange(site.context.shared) % 2, 1, -1).astype(np.float32)
        return pack(
            self.factor * signs,
            site.context.codec,
            site.context.round.talks.round,
            site.context.sender_id(self.bad),
        )


def test_one_huge_message_costs_nobody_anything(six, tmp_path):
    agreement = six.agreement("abps-pq-k1", rounds=4)
    clean = opened(six, agreement, tmp_path / "clean")
    Scheduler(clean, agreement, 4, QUICK).run(six.names)
    network = opened(six, agreement, tmp_path / "poisoned", Poisoned(six.names[0], 9e5))
    Scheduler(network, agreement, 4, QUICK).run(six.names)
    assert network.hit > 0
    refused = sum(
        s.store.refusals().get((six.names[0], "implausibly large"), 0) for s in network.sites.values()
    )
    assert refused > 0
    alike = []
    for name in six.names[1:]:
        assert np.abs(network.sites[name].store.model()).max() < 10
        alike.append(network.sites[name].learning.test_score() - clean.sites[name].learning.test_score())
    assert np.mean(alike) > -0.005
    close(clean)
    close(network)


def test_claimed_rows_count_up_to_a_multiple_of_the_own(four, tmp_path):
    network, sites = begun(four, four.agreement("abps-pq-k1"), tmp_path)
    liar, site = sites[0].name, sites[1]
    site.context.vectors.pop(liar)
    vector = sites[0].context.published.vectors[0].copy()
    vector[site.context.published.names.index("log training rows")] = 18.0
    site.receive(liar, "vector", pack_vector(vector, 1, sites[0].context.id))
    own = float(site.context.data.train.sizes[0])
    assert float(site.context.method_context.sizes()[site.context.members.index(liar)]) == 10 * own
    network2, stars = begun(four, four.agreement("fedavg"), tmp_path / "star")
    join(stars[0], four.names, 1, dict.fromkeys(four.names, 10**30))
    star = stars[0].context
    assert float(star.method_context.sizes().max()) == 10 * float(star.data.train.sizes[0])
    close(network)
    close(network2)


def test_a_peer_that_is_refused_too_often_is_not_heard_any_more(four, tmp_path):
    network, sites = begun(four, four.agreement("abps-pq-k1"), tmp_path)
    bad, site = sites[0].name, sites[1]
    for _ in range(site.context.limits.refusals):
        site.receive(bad, "message", b"x")
    site.context.round.turned = True
    proposal = pack_message(Message(Kind.PROPOSE, 1, 1), sites[0].context.id)
    assert site.receive(bad, "message", proposal) == b""
    assert site.store.refusals()[(bad, "in quarantine")] == 1
    site.negotiation.propose(1)
    assert bad not in site.context.round.talks.mine
    close(network)


# Peers that talk without end, or take places that they do not use


class Answering(LoopbackNetwork):
    """One peer answers as the test wants."""

    def __init__(self, bad, reply) -> None:
        super().__init__()
        self.bad, self.reply = bad, reply

    def sender(self, name):
        send = super().sender(name)

        def carry(peer, what, data):
            if peer == self.bad and what == "message":
                self.carried.append((name, peer, what, len(data)))
                return self.reply(data)
            return send(peer, what, data)

        return carry


@pytest.mark.parametrize(
    "kinds",
    [
        [Kind.ACCEPT] * 4,
        [Kind.ACCEPT],
        [Kind.PROPOSE],
        [Kind.CONFIRM],
        [Kind.RELEASE],
        [Kind.REFUSE] * 2,
    ],
)
def test_answers_to_what_was_never_asked_end_the_talk(six, tmp_path, kinds):
    bad = six.names[-1]
    agreement = six.agreement("abps-pq-k1", rounds=1)

    def told(data):
        me = network.sites[bad].context.sender_id(bad)
        return b"".join(pack_message(Message(k, 1, 99 + i), me) for i, k in enumerate(kinds))

    network = Answering(bad, told)
    opened(six, agreement, tmp_path, network)
    Scheduler(network, agreement, 1, QUICK).run(six.names)
    said = [s for s, r, what, _ in network.carried if r == bad and what == "message"]
    assert said and all(said.count(name) <= 4 for name in six.names)
    honest = [network.sites[name] for name in six.names[:-1]]
    assert any(bad in {peer for peer, _ in site.store.refusals()} for site in honest)
    assert sum(len(site.store.partners().get(1, ())) for site in honest) >= 4
    assert all(len(site.store.traffic()) < 60 for site in honest)
    close(network)


def test_a_place_taken_and_not_used_costs_a_site_one_round(six, tmp_path):
    """A cheater proposes to everybody when the round begins, and never confirms."""
    bad = six.names[0]

    class Squatting(Answering):
        def ask(self, sites, what, *arguments, seconds):
            if what == "start" and arguments[0] == "propose":
                t = arguments[1]
                proposal = pack_message(Message(Kind.PROPOSE, t, 1), self.sites[bad].context.sender_id(bad))
                for name in six.names[1:]:
                    self.sites[name].receive(bad, "message", proposal)
                sites = [name for name in sites if name != bad]
            return super().ask(sites, what, *arguments, seconds=seconds)

    agreement = six.agreement("abps-pq-k1", rounds=5)
    network = opened(six, agreement, tmp_path, Squatting(bad, lambda data: b""))
    Scheduler(network, agreement, 5, QUICK).run(six.names)
    honest = [network.sites[name].store for name in six.names[1:]]
    assert any(store.in_doubt() for store in honest)  # it took a place
    assert all(len(store.in_doubt()) <= 1 for store in honest)  # of each site once: who owes is not accepted
    assert sum(len(store.partners().get(5, ())) for store in honest) >= 4  # two pairs of five honest sites
    close(network)


def test_a_frame_is_not_fetched_again_and_again(four, tmp_path):
    network, sites = begun(four, four.agreement("abps-pq-k1"), tmp_path)
    bad, site = sites[0], sites[1]
    site.context.round.turned = True
    proposal, confirm = (
        pack_message(Message(kind, 1, 1), bad.context.id) for kind in (Kind.PROPOSE, Kind.CONFIRM)
    )
    assert site.receive(bad.name, "message", proposal)
    site.receive(bad.name, "message", confirm)
    got = [site.receive(bad.name, "weights", bad.context.round.frames[0]) for _ in range(50)]
    assert sum(map(bool, got)) == site.context.limits.fetches
    close(network)


def test_catching_up_is_bounded(four, tmp_path):
    """Many rounds in doubt with a peer that does not answer: it is asked once."""
    agreement = four.agreement("abps-pq-k1", rounds=50)
    network = opened(four, agreement, tmp_path, Answering(four.names[0], lambda data: b""))
    site = network.sites[four.names[1]]
    for t in range(1, 31):
        site.store._db.execute("INSERT INTO promise VALUES (?, ?, 0, 1, 'held')", (t, four.names[0]))
    join(site, four.names, 31)
    site.negotiation.catch_up()
    assert len(network.carried) == 1
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
    ("hello", lambda facts: facts | {"wire": "2.0"}),
    ("hello", lambda facts: facts | {"validation": {"x": 1}}),
    ("hello", lambda facts: facts | {"agreement": 7}),
    ("open", "done"),
    ("train", ["done"]),
    ("propose", ["done", "many"]),
    ("propose", ["done", None]),
    ("settle", ["done", 10**9]),
    ("settle", ["done", -4]),
    ("conclude", ["done", "x"]),
    ("conclude", ["done", 1e9]),
    ("conclude", lambda told: ["done", [1e9, told[1][1], False]]),
    ("conclude", lambda told: ["done", [0.5, None, False]]),
    ("conclude", lambda told: ["done", [0.5, {"edges": 1}, False]]),
    ("conclude", lambda told: ["done", [0.5, told[1][1] | {"edges": 10**15}, False]]),
    ("conclude", lambda told: ["done", [0.5, told[1][1] | {"partners": [1]}, False]]),
]


@pytest.mark.parametrize(("question", "lie"), LIES)
def test_a_liar_is_left_out_and_the_job_goes_on(four, tmp_path, question, lie):
    bad = four.names[2]
    agreement = four.agreement("abps-pq-k1", rounds=2)
    network = opened(four, agreement, tmp_path, Lying(bad, question, lie))
    report = Scheduler(network, agreement, 2, QUICK).run(four.names)
    assert [r.round for r in report.rounds] == [1, 2]
    assert bad in report.left_out or all(bad in r.missing for r in report.rounds)
    for name in set(four.names) - {bad}:
        done = network.sites[name].store.rounds()
        assert [r.number for r in done] == [1, 2]
    close(network)


def _frame(site, value, round=1):
    weights = np.full(site.context.shared, value, dtype=np.float32)
    return [pack(weights, site.context.codec, round, site.context.sender_id(site.name))]


@pytest.mark.parametrize("value", [np.nan, np.inf, 9e5, None])
def test_a_server_averages_no_nonsense(four, tmp_path, value):
    bad = four.names[2]
    agreement = four.agreement("fedavg", rounds=1)
    network = Lying(
        bad, "upload", lambda honest: ["x"] if value is None else _frame(network.sites[bad], value)
    )
    opened(four, agreement, tmp_path, network)
    report = Scheduler(network, agreement, 1, QUICK).run(four.names)
    assert len(report.rounds) == 1
    for name in set(four.names) - {bad}:
        model = network.sites[name].store.model()
        assert np.isfinite(model).all() and np.abs(model).max() < 10
    close(network)


def test_a_server_caps_claimed_rows(four, tmp_path):
    bad = four.names[2]
    agreement = four.agreement("fedavg", rounds=1)
    network = opened(four, agreement, tmp_path, Lying(bad, "hello", lambda f: f | {"rows": 10**8}))
    Scheduler(network, agreement, 1, QUICK).run(four.names)
    told = network.sites[four.names[0]].context.rows
    assert told[bad] <= 10 * max(rows for name, rows in told.items() if name != bad)
    close(network)


def test_a_claim_to_be_far_ahead_is_believed_of_two():
    assert _far_ahead({"a": 3, "b": 3, "c": 50}) == ["c"]
    for rounds in ({"a": 3, "b": 3, "c": 4}, {"a": 0, "b": 9, "c": 9}, {"a": 0, "b": 9}):
        assert _far_ahead(rounds) == []
    # Newcomers outnumber the one that was there; the relay has seen the rounds that it speaks of.
    assert _far_ahead({"a": 0, "b": 0, "c": 9}, 9) == []
    assert _far_ahead({"a": 0, "b": 0, "c": 11}, 9) == ["c"]


# What a site says when something is wrong


@pytest.mark.parametrize("broken", ["table", "file", "store", "allowed"])
def test_no_cell_and_no_path_leaves_a_site_that_cannot_take_part(four, tmp_path, broken):
    app = pytest.importorskip("abps.sites.flare.app")
    opening = pytest.importorskip("abps.sites.flare.opening")
    name, secret = four.names[0], "Anna Example, born 1950-02-03"
    agreement = four.agreement("abps-pq-k1")
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
    site = app.FlareSite(SignedProposal(Proposal(agreement.study, agreement)).text())
    site.begin(opening.SiteJob(name, tmp_path, "job", site.proposal, 60.0), Membership(tmp_path), {}, False)
    site._start(Command.OPEN)
    site._work.join()
    assert site._poll() == [broken, None]
    said = str(Failure.sent(site._poll()[0]))
    assert "secret" not in said and "Anna" not in said and "its log says more" in said


def test_the_scheduler_repeats_no_words_of_a_site(four, tmp_path):
    bad = four.names[2]
    agreement = four.agreement("abps-pq-k1", rounds=1)
    network = opened(four, agreement, tmp_path, Lying(bad, "open", ["Anna Example has [red]sepsis[/]", None]))
    report = Scheduler(network, agreement, 1, QUICK).run(four.names)
    assert report.left_out == {bad: "its answer is not valid"}
    close(network)


def test_the_operator_reads_who_was_left_out(capsys):
    _show_report({"rounds": [], "left_out": {"north": "its table does not fit the study"}})
    printed = capsys.readouterr()
    assert "north was left out: its table does not fit the study" in printed.out + printed.err


def test_a_table_swapped_between_jobs_is_refused(four, tmp_path):
    agreement = four.agreement("abps-pq-k1")
    network = LoopbackNetwork()
    name, other = four.names[:2]
    for _ in range(2):  # the same table opens again
        open_site(four, name, agreement, tmp_path, network).store.close()
    swapped = replace(four, tables=four.tables | {name: four.tables[other]})
    with pytest.raises(RequestError, match="another table"):
        open_site(swapped, name, agreement, tmp_path, network)
    with closing(open_site(swapped, name, agreement, tmp_path, network, another_table=True).store):
        pass
