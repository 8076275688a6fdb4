"""The pooled regression between sites: the simulation's, from sums that nobody sees a part of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.engine.simulate import simulate
from abps.methods.leaving import leaving
from abps.methods.references import GlmExact, RegressionState
from abps.models.glm import message
from abps.sites.consent.sitefile import Policy
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Timeouts

from .network import close, open_site
from .test_masking import LOST, Looking, Relay

QUICK = Timeouts(poll=0.0)
OWN = {"secure": "yes", "standardise": "own"}


def run(given, network, agreement, folder, rounds, names=None):
    words: list[str] = []
    for name in names or given.names:
        open_site(given, name, agreement, folder, network)
    scheduler = Scheduler(network, agreement, rounds, QUICK, words.append)
    return scheduler.run(names or given.names), words


def models_of(network):
    return np.stack([network.sites[name].models[0] for name in sorted(network.sites)])


def test_sites_fit_the_regression_of_the_simulation(four, tmp_path):
    """To its end, over two jobs; once all is said nothing is sent any more."""
    agreement = four.agreement("glm-exact", rounds=30, **OWN)
    first, second = Relay(), Relay()
    began, _ = run(four, first, agreement, tmp_path / "sites", 5)
    close(first)
    ended, words = run(four, second, agreement, tmp_path / "sites", 25)
    simulated = simulate(four.together, "glm-exact", 11, 30, OWN)
    np.testing.assert_allclose(models_of(second), simulated.models, atol=1e-6)
    assert not any("no sum" in line for line in words)
    assert ended.stopped_early and began.rounds[-1].round == 5 and ended.rounds[-1].round < 30
    site = second.sites[four.names[0]]
    assert site.context.method.finished(site.context.state)
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
        assert not np.any(words[:-1] == plain)
        assert np.mean((words >> np.uint64(56)) % np.uint64(255) == 0) < 0.05
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
    assert 2 not in network.sites[four.names[0]].store.broadcasts()
    simulated = simulate(four.together, "glm-exact", 11, 30, OWN)
    np.testing.assert_allclose(models_of(network), simulated.models, atol=1e-6)
    close(network)


def test_no_small_cell_is_in_the_sums(six):
    """With a floor, sums are those of rows with zeros where a yes/no column has a small cell."""
    data = prepare(six.together, 11, standardise="own", min_cell=10)
    train, few = GlmExact().derived(SimpleNamespace(data=data))
    w = np.zeros(1 + data.width)
    plain, told = message(data.train, w), message(train, w)
    hidden = 0
    for i in range(data.size):
        rows, seen = data.train.only(i), train.only(i)
        assert few[i] == (min(rows.y.sum(), (1 - rows.y).sum()) < data.min_rows[i])
        for k in range(data.width):
            cells = [((rows.x[:, k] == v) & (rows.y == y)).sum() for v in (0, 1) for y in (0, 1)]
            yes_no = sum(cells) == len(rows.y)
            if yes_no and any(0 < c < data.min_rows[i] for c in cells):
                hidden += 1
                assert not seen.x[:, k].any()
            elif not yes_no:
                assert np.array_equal(seen.x[:, k], rows.x[:, k])
    assert hidden > 20 and (told != plain).any()
    method = GlmExact()
    world_sums = told.copy()
    world_sums[few] = 0.0
    made = simulate(six.together, "glm-exact", 11, 1, {"standardise": "own", "min_cell": 10})
    start = RegressionState(np.zeros((1, len(w)), dtype=np.float32), w, w)
    after = method.step(start, world_sums.astype(np.float64).sum(axis=0))
    np.testing.assert_allclose(made.models[0], np.roll(after.w, -1), atol=1e-6)


def test_what_is_asked_of_a_site_is_allowed_and_shown(four):
    agreement = four.agreement("glm-exact", rounds=3, **OWN)
    assert agreement.config().training.model == "linear"
    with pytest.raises(RequestError, match="set secure=yes"):
        replace(agreement, settings={"standardise": "own"}).config()
    with pytest.raises(RequestError, match="nothing of it is private"):
        replace(agreement, settings={**OWN, "clip": "1", "dp_epsilon": "4"}).config()
    Policy(floor=0).check(agreement)
    table = four.table(four.names[0], agreement.book)
    shown = {
        v.name: v for v in leaving(agreement.configured(), table, agreement.book, 11) if v.what == "sums"
    }
    data = agreement.prepare(table)
    sums = message(data.train, np.zeros(1 + data.width))[0]
    assert len(shown) == len(sums) + 1
    assert shown["training rows"].value == data.train.sizes[0]
    assert shown["curvature of the intercept and the intercept"].value == pytest.approx(
        0.25 * data.train.sizes[0]
    )
