"""The pooled regression between sites: the simulation's, from sums that nobody sees a part of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.engine.simulate import simulate
from abps.methods.leaving import leaving
from abps.methods.references import GlmExact, told_rows
from abps.models.glm import message
from abps.models.models import layout_of
from abps.sites.consent.sitefile import Policy
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.coordinator.star_server import StarServer
from abps.sites.protocol.commands import Timeouts
from abps.sites.protocol.decline_codes import DeclineCode, Failure

from .network import close, open_site
from .test_masking import LOST, Looking, Relay

QUICK = Timeouts(poll=0.0)
OWN = {"secure": "yes", "standardise": "own"}


def run(given, network, agreement, folder, rounds, memory=None, names=None):
    words: list[str] = []
    for name in names or given.names:
        open_site(given, name, agreement, folder, network)
    conductor = Scheduler(network, agreement, rounds, QUICK, words.append, memory)
    return conductor.run(names or given.names), words


def models_of(network):
    return np.stack([network.sites[name].models[0] for name in sorted(network.sites)])


def test_sites_fit_the_regression_of_the_simulation(four, tmp_path):
    """To its end, over two jobs; once all is said nothing is sent any more."""
    agreement = four.agreement("glm-exact", rounds=30, **OWN)
    first, second = Relay(), Relay()
    began, _ = run(four, first, agreement, tmp_path / "sites", 5, tmp_path / "server")
    close(first)
    ended, words = run(four, second, agreement, tmp_path / "sites", 25, tmp_path / "server")
    simulated = simulate(four.together, "glm-exact", 11, 30, OWN)
    np.testing.assert_allclose(models_of(second), simulated.models, atol=1e-6)
    told = [report.to_json()["bytes"] for report in (began, ended)]
    assert told[0]["edge"] + told[1]["edge"] == simulated.bytes.edge
    assert told[0]["directed"] + told[1]["directed"] == simulated.bytes.directed
    assert not any("no sum" in line for line in words)
    site = second.sites[four.names[0]]
    assert site.context.state.done and not [
        e for e in site.store.traffic(30) if e.kind in ("weights", "mask")
    ]
    # The model is a linear one, as every other of its kind: it can be written down and used.
    plain = site.context.learner.logits(site.models, site.context.data.test).values
    np.testing.assert_allclose(
        plain,
        site.context.method.logits(
            site.context.method_context, site.context.state, site.context.data.test
        ).values,
        atol=1e-4,
    )
    close(second)


def test_nobody_sees_a_site_s_sums(four, tmp_path):
    agreement = four.agreement("glm-exact", rounds=1, **OWN)
    network = Looking()
    run(four, network, agreement, tmp_path, 1)
    masked = {name: np.frombuffer(value, "<u8") for what, name, value in network.seen if what == "sum_masked"}
    assert set(masked) == set(network.taken) == set(four.names)
    for name, words in masked.items():
        plain = np.rint(network.taken[name] * 2.0**20).astype(np.int64).view(np.uint64)
        assert not np.any(words == plain)
        assert np.mean((words >> np.uint64(56)) % np.uint64(255) == 0) < 0.05
        with pytest.raises(RequestError, match="out of step"):
            network.sites[name].star.upload(1)
    close(network)


def test_a_site_that_falls_away_is_waited_for(four, tmp_path):
    """A sum without it would show, beside the one with it, what it added; later all is as it was."""
    agreement = four.agreement("glm-exact", rounds=30, **OWN)
    gone, times = four.names[1], iter([0, 1, 0] + [0] * 60)

    def lose(name, what, value):
        return LOST if (name, what) == (gone, "sum_masked") and next(times) else value

    network = Relay(lose)
    report, words = run(four, network, agreement, tmp_path, 30)
    assert [line for line in words if "no sum" in line] and report.rounds[1].missing == {}
    opened = [name for what, name, _ in network.seen if what == "sum_open"]
    assert all(opened.count(name) == opened.count(gone) for name in four.names)
    log = " ".join(e.why for e in network.sites[four.names[0]].store.traffic(2))
    assert "would reveal these; it is not opened" in log
    simulated = simulate(four.together, "glm-exact", 11, 30, OWN)
    np.testing.assert_allclose(models_of(network), simulated.models, atol=1e-6)
    close(network)


def test_a_relay_that_leaves_a_site_out_gets_no_second_sum(six, tmp_path, monkeypatch):
    """It asks for the same coefficients again, without one site: the difference would be that site's sums."""
    agreement = six.agreement("glm-exact", rounds=3, **OWN)
    network = Relay()
    left = six.names[2]

    def greedy(self, t, present, members, missing):
        return [name for name in members if t == 1 or name != left]

    monkeypatch.setattr(StarServer, "_askable", greedy)
    monkeypatch.setattr(GlmExact, "step", lambda self, state, total: replace(state, w=state.w))
    _, words = run(six, network, agreement, tmp_path, 3)
    opened = [name for what, name, _ in network.seen if what == "sum_open"]
    assert sorted(opened) == sorted(six.names)  # those of the first round
    assert sum("no sum" in line for line in words) == 2
    close(network)


def test_who_missed_an_answer_hears_it_again(six, tmp_path):
    agreement = six.agreement("glm-exact", rounds=30, **OWN)
    late, times = six.names[4], iter([0, 1] + [0] * 60)

    class Deaf(Relay):
        def ask(self, sites, what, *arguments, seconds):
            lost = what == "download" and late in sites and next(times)
            said, failed = super().ask(
                [n for n in sites if not (lost and n == late)], what, *arguments, seconds=seconds
            )
            return said, failed | ({late: Failure(DeclineCode.UNREACHABLE, "lost")} if lost else {})

    network = Deaf()
    report, words = run(six, network, agreement, tmp_path, 30)
    assert [line for line in words if "no sum" in line] == [f"round 3: no sum (it waits for {late})"]
    assert report.rounds[1].missing == {late: "lost"} and not report.rounds[3].missing
    simulated = simulate(six.together, "glm-exact", 11, 30, OWN)
    np.testing.assert_allclose(models_of(network), simulated.models, atol=1e-6)
    close(network)


def test_a_newcomer_gets_the_model_and_is_in_no_sum(six, tmp_path):
    """A sum with it would show, beside the one without it, what it added."""
    agreement = six.agreement("glm-exact", rounds=30, **OWN)
    early, new = six.names[:5], six.names[5]
    first, second = Relay(), Relay()
    run(six, first, agreement, tmp_path / "sites", 2, tmp_path / "server", early)
    close(first)
    report, words = run(six, second, agreement, tmp_path / "sites", 28, tmp_path / "server")
    assert not any("no sum" in line for line in words) and not report.left_out
    assert {name for what, name, _ in second.seen if what == "sum_open"} == set(early)
    models = models_of(second)
    assert second.sites[new].context.state.done and np.array_equal(models[0], models[5])
    close(second)


def test_no_small_cell_is_in_the_sums(six):
    """With a floor, sums are those of rows with zeros where a yes/no column has a small cell."""
    data = prepare(six.together, 11, standardise="own", min_cell=10)
    train, validation, few = told_rows(data)
    w = np.zeros(1 + data.width)
    plain, told = message(data.train, data.validation, w), message(train, validation, w)
    hidden = 0
    for i in range(data.size):
        rows, seen = data.train.only(i), train.only(i)
        assert few[i] == (min(rows.y.sum(), (1 - rows.y).sum()) < data.min_rows[i])
        for k in range(data.width):
            cells = [((rows.x[:, k] == v) & (rows.y == y)).sum() for v in (0, 1) for y in (0, 1)]
            yes_no = sum(cells) == len(rows.y)
            if yes_no and any(0 < c < data.min_rows[i] for c in cells):
                hidden += 1
                assert not seen.x[:, k].any() and not validation.only(i).x[:, k].any()
            elif not yes_no:
                assert np.array_equal(seen.x[:, k], rows.x[:, k])
    assert hidden > 20 and (told != plain).any()
    method = GlmExact()
    world_sums = told.copy()
    world_sums[few] = 0.0
    made = simulate(six.together, "glm-exact", 11, 1, {"standardise": "own", "min_cell": 10})
    total = world_sums.astype(np.float64).sum(axis=0)
    _, memory = method.serve(
        np.zeros(1, dtype=np.float32), _server(), (total[None],), np.ones(1, dtype=np.float32), 1
    )
    np.testing.assert_allclose(made.models[0], np.roll(memory.w, -1), atol=1e-6)


def _server():
    from abps.methods.star import Server

    return Server()


def test_what_is_asked_of_a_site_is_allowed_and_shown(four):
    agreement = four.agreement("glm-exact", rounds=3, **OWN)
    assert agreement.config().training.model == "linear"
    with pytest.raises(RequestError, match="set secure=yes"):
        replace(agreement, settings={"standardise": "own"}).config()
    with pytest.raises(RequestError, match="nothing of it is private"):
        replace(agreement, settings={**OWN, "clip": "1", "dp_epsilon": "4"}).config()
    with pytest.raises(RequestError, match="policy does not allow"):
        Policy(floor=0).check(agreement)
    Policy(server=True, floor=0).check(agreement)
    table = four.table(four.names[0], agreement.book)
    shown = {v.name: v for v in leaving(agreement.config(), table, agreement.book, 11) if v.what == "sums"}
    data = agreement.prepare(table)
    sums = message(data.train, data.validation, np.zeros(1 + data.width))[0]
    assert len(shown) == len(sums) + 1
    assert shown["training rows"].value == data.train.sizes[0]
    assert shown["curvature of the intercept and the intercept"].value == pytest.approx(
        0.25 * data.train.sizes[0]
    )
    layout = layout_of(agreement.config().training.factory(data.width))
    assert agreement.config().uploads(layout) == (len(sums),)
