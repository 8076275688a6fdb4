"""abps-plus between real sites: a board among them, and what it sees, says and survives."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from abps.methods.rollcall import weights_form

from abps.core.errors import RequestError
from abps.core.streams import center_ids
from abps.data.codebook import Codebook, merged
from abps.data.prepare import codebook, with_statistics
from abps.engine.simulate import simulate
from abps.methods.patient_sums import score_columns
from abps.methods.peers import coordinators
from abps.sites.coordinator.loopback import Memory
from abps.sites.coordinator.scheduler import Conductor
from abps.sites.protocol.steps import Seconds
from abps.wire.messages import pack_broadcast, pack_upload
from abps.wire.number_lists import Field, NumberList

from .network import close, hospitals, open_site

QUICK = Seconds(poll=0.0)
SOON = {"first": "2", "again": "3"}
#: Bias counts for much, and there is no mean of all to go back to.
KIN = {"parameters": "0.05", "mixtures": "1"}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Eight hospitals of two kinds that differ much."""
    return hospitals(tmp_path_factory.mktemp("kinds"), 8, 4800, "groups=2,heterogeneity=8")


def job(given, agreement, folder, rounds, network=None, names=()):
    network = network or Memory()
    for name in names or given.names:
        open_site(given, name, agreement, folder, network)
    return network, Conductor(network, agreement, rounds, QUICK).run(given.names)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("abps-plus", SOON),
        ("abps-plus", SOON | KIN | {"last": "0.3,0.1", "public": "no", "codec": "bf16"}),
        ("abps-plus", SOON | {"dual": "0.3", "momentum": "0.3", "averaged": "0.5", "heed": "0.1"}),
        ("abps-plus-random", {}),
        ("random-k1", {"model": "gam"}),
        ("fedavg", {"model": "linear"}),
    ],
)
def test_sites_do_what_the_simulation_does(kinds, tmp_path, method, settings):
    agreement = kinds.agreement(method, rounds=6, **settings)
    network, report = job(kinds, agreement, tmp_path, 6)
    run = simulate(kinds.together, method, seed=11, rounds=6, settings=settings)
    told = report.to_json()["bytes"]
    assert (told["edge"], told["directed"], told["control"]) == (
        run.bytes.edge, run.bytes.directed, run.bytes.control,
    )  # fmt: skip
    models = np.stack([network.sites[name].models[0].numpy() for name in kinds.names])
    np.testing.assert_allclose(models, run.models.numpy(), atol=1e-5)
    if run.decisions is not None:
        rows = run.decisions.filter(run.decisions["decision"] == "accepted")
        partners = {name: {t: set() for t in range(1, 7)} for name in kinds.names}
        for t, center, peer in rows.select("round", "center", "peer").iter_rows():
            partners[center][t].add(peer)
            partners[peer][t].add(center)
        for name in kinds.names:
            assert {r.number: set(r.partners) for r in network.sites[name].store.rounds()} == partners[name]
    if method == "abps-plus":
        assert run.heterogeneity.dimensions > 0
        for site in network.sites.values():
            assert site.site_context.method.heterogeneity(site.context, site.state)["p"] == pytest.approx(
                run.heterogeneity.p
            )
            if "mixtures" in settings:
                assert not site.state.everybody[0] and len(site.state.kin(0))
    close(network)


def test_short_jobs_are_one_long_one(kinds, tmp_path):
    """Kin, measurements and the common model are in the store."""
    agreement = kinds.agreement("abps-plus", rounds=6, **SOON)
    for rounds in (3, 2, 1):
        network, _ = job(kinds, agreement, tmp_path, rounds)
        close(network)
    run = simulate(kinds.together, "abps-plus", seed=11, rounds=6, settings=SOON)
    models = np.stack([network.sites[name].models[0].numpy() for name in kinds.names])
    np.testing.assert_allclose(models, run.models.numpy(), atol=1e-5)


def first_boards(given, t):
    order = coordinators(11, t, center_ids(given.names))
    return [given.names[k] for k in order]


def test_every_answer_goes_to_the_board_and_nowhere_else(kinds, tmp_path):
    agreement = kinds.agreement("abps-plus", rounds=6, **SOON)
    network, _ = job(kinds, agreement, tmp_path, 4)
    seen = {(sender, receiver) for sender, receiver, what, _ in network.carried if what == "answer"}
    # Before the third round for the common model, before the fourth for kin.
    chairs = [first_boards(kinds, t)[0] for t in (3, 4)]
    assert seen == {(name, board) for board in chairs for name in kinds.names if name != board}
    asked = network.sites[next(name for name in kinds.names if name not in chairs)]
    log = [e for e in asked.store.traffic(4) if e.kind in ("answer", "notice")]
    assert [(e.kind, e.sent, e.peer) for e in log] == 3 * [
        ("answer", True, chairs[1]),
        ("notice", False, chairs[1]),
    ]
    sent = [size for sender, _, what, size in network.carried if what == "answer" and sender == asked.name]
    assert [e.bytes for e in log if e.sent] == sent[1:]
    close(network)


def test_another_member_is_the_board_when_the_first_is_gone(kinds, tmp_path):
    """The next one steps in, and the round goes on."""
    agreement = kinds.agreement("abps-plus", rounds=4, **SOON)
    first, second = first_boards(kinds, 3)[:2]
    network = Memory()
    for name in kinds.names:
        open_site(kinds, name, agreement, tmp_path, network)

    def fails(round, question):
        raise RuntimeError("the power went off")

    network.sites[first].preside = fails
    report = Conductor(network, agreement, 4, QUICK).run(kinds.names)
    assert list(report.rounds[2].missing) == [first] and first not in report.rounds[3].missing
    boards_seen = [r for _, r, what, _ in network.carried if what == "answer"]
    assert set(boards_seen) >= {first, second}
    told = {r for s, r, what, _ in network.carried if what == "notice" and s == second}
    assert told == set(kinds.names) - {second}
    assert not any(np.isnan(site.state.test[0]) for site in network.sites.values())
    close(network)


def test_a_site_that_is_away_is_left_out_of_the_count(kinds, tmp_path):
    agreement = kinds.agreement("abps-plus", rounds=4, **SOON)
    away = first_boards(kinds, 3)[-1]
    there = [name for name in kinds.names if name != away]
    network, report = job(kinds, agreement, tmp_path, 4, names=there)
    assert report.left_out == {away: "unreachable"}
    for site in network.sites.values():
        assert away not in {site.site_context.members[k] for k in site.state.kin(0)}
        assert not np.isnan(site.state.test[0])
    close(network)


def test_what_a_board_or_a_member_makes_up_is_refused(kinds, tmp_path):
    agreement = kinds.agreement("abps-plus", rounds=6, **SOON)
    network, _ = job(kinds, agreement, tmp_path, 2)
    order = first_boards(kinds, 3)
    site, board, stranger = network.sites[order[-1]], order[0], order[3]
    for other in network.sites.values():
        other.begin(3, list(kinds.names))
    site.reply(3, 0)

    def says(sender, told, question=0, round=3):
        site.receive(
            sender, "notice", pack_broadcast(told, round, question, site.site_context.sender_id(sender))
        )
        return site.state

    before = site.state
    count = site.site_context.shared
    good = NumberList.of(np.zeros(count), weights_form(count)).data
    assert says(stranger, good) is before  # not the board
    assert says(board, good, round=2) is before
    assert says(board, good, question=1) is before  # there is no such question
    assert says(board, good, question=7) is before
    assert says(board, good[:-1]) is before and says(board, good + b"!") is before
    assert says(board, NumberList.of(np.full(count, np.nan), (Field("half", count),)).data) is before
    assert says(board, NumberList.of(np.zeros(3), (Field("half", 3),)).data) is before
    assert says(board, good) is not before
    refused = site.store.refusals()
    assert refused[(board, "malformed")] >= 4 and refused[(stranger, "against the protocol")] == 1

    # A member's answers: of another form, in another's name, and to one that is not the board.
    chair = network.sites[board]
    for name in kinds.names:
        network.sites[name].reply(3, 0)
    huge = site.site_context.pack(site.models + 1e4, 6 + 3)
    chair.receive(site.name, "answer", pack_upload(huge, 3, 0, site.site_context.sender_id(site.name)))
    assert chair.preside(3, 0) == 7
    assert chair.store.refusals()[(site.name, "malformed")] == 1
    other = network.sites[order[1]]
    other.receive(order[4], "answer", pack_upload(huge, 3, 0, site.site_context.sender_id(site.name)))
    assert other.store.refusals()[(order[4], "wrong sender")] == 1
    far = network.sites[order[5]]
    far.receive(order[4], "answer", pack_upload(b"", 3, 0, far.site_context.sender_id(order[4])))
    assert far.store.refusals()[(order[4], "against the protocol")] == 1
    close(network)


def test_kin_that_are_no_members_are_refused(kinds, tmp_path):
    agreement = kinds.agreement("abps-plus", rounds=6, **SOON)
    network, _ = job(kinds, agreement, tmp_path, 3)
    order = first_boards(kinds, 4)
    site, board = network.sites[order[-1]], order[0]
    for other in network.sites.values():
        other.begin(4, list(kinds.names))
    site.reply(4, 0)
    columns = len(score_columns(site.context.data.columns))
    form = (*weights_form(site.site_context.shared), Field("single", 4), Field("share", columns))
    head = NumberList.of(np.zeros(site.site_context.shared + 4 + columns), form).data

    def without(*outcast):
        told = np.concatenate([np.zeros(site.site_context.shared + 4 + columns), outcast])
        return NumberList.of(told, (*form, Field("place", len(outcast)))).data

    def says(peer, head=head):
        form = (Field("share", 1), Field("place", 1), Field("share", 1), Field("half", 2))
        kin = NumberList.of(np.array([0.0, peer, 1.0, 1.0, 1.0]), form)
        site.receive(
            board, "notice", pack_broadcast(head + kin.data, 4, 0, site.site_context.sender_id(board))
        )
        return site.state

    before = site.state
    assert says(99) is before  # the hundredth of eight members
    assert site.store.refusals()[(board, "malformed")] == 1
    assert says(3, without(99)) is before and says(3, without(0, 1, 2, 3)) is before  # none, and half of all
    assert site.store.refusals()[(board, "malformed")] == 3
    assert says(3, without(2)) is not before and site.state.kin(0).tolist() == [3]
    assert site.state.outcast.tolist() == [2]
    close(network)


def test_what_sites_tell_of_their_columns_is_the_simulations(kinds, tmp_path):
    """In codebooks that people pass on: the same scales, the same bytes, and a line in every audit log."""
    ours, theirs = kinds.book(11, "common"), codebook(kinds.together, 11, standardise="common")
    assert ours.statistics.scales == theirs.statistics.scales
    assert sum(ours.summarised.spent.values()) == theirs.statistics.spent
    again = Codebook.from_json(json.loads(json.dumps(ours.to_json())))
    assert (again.statistics, again.summarised) == (ours.statistics, ours.summarised)

    own = [with_statistics(kinds.book(11), kinds.table(name, kinds.book(11)), 11) for name in kinds.names]
    read = [Codebook.from_json(json.loads(json.dumps(book.to_json()))) for book in own]
    both = merged(read)
    assert both.statistics.scales == theirs.statistics.scales and both.told == ()
    assert both.summarised == ours.summarised

    agreement = kinds.agreement("fedavg", rounds=2, model="linear")
    network, _ = job(kinds, agreement, tmp_path, 1)
    close(network)
    network, _ = job(kinds, agreement, tmp_path, 1)
    for name, site in network.sites.items():
        (line,) = [e for e in site.store.traffic() if e.kind == "statistics"]
        assert (line.bytes, line.round) == (ours.summarised.spent[name], 1)
    close(network)


def test_statistics_that_do_not_fit_together_are_refused_in_a_sentence(kinds):
    book = kinds.book(11)
    first, second = (with_statistics(book, kinds.table(n, book), s) for n, s in zip(kinds.names, (11, 12)))
    with pytest.raises(RequestError, match="different seeds"):
        merged([first, second])
    with pytest.raises(RequestError, match="the same site's columns"):
        merged([first, first])
    plain = first.to_json()
    name = next(iter(plain["told"][0]["columns"]))
    for change in ({"values": 3}, {"mean": float("inf")}, {"groups": [1.0]}, {"variance": -1.0}):
        bad = json.loads(json.dumps(plain))
        bad["told"][0]["columns"][name] |= change
        with pytest.raises(RequestError, match="not a codebook"):
            Codebook.from_json(bad)
    other = replace(kinds.agreement("fedavg", model="linear"), seed=12)
    with pytest.raises(RequestError, match="under seed 11"):
        other.config()
