"""DeFTA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abps.engine.rounds import RunState
from abps.lab.rivals.defta import DeFTA, WeightedTransfers, crelu, hearing_weights, judge
from abps.methods.base import Context
from abps.methods.peers import Preferences
from abps.models.metrics import labels_of, log_loss
from abps.models.training import Training


def outdegree_weights(size, receiver, sender):
    """Weights where everybody's rows are here and all listeners are known."""
    say = size / (1.0 + np.bincount(sender, minlength=len(size)))
    return hearing_weights(say, receiver, sender)


def transfers(method, here, confidence, t):
    """(receiver, sender, rest, traffic) of a round, from the driver."""
    rankings = method.rankings(here, confidence, t)
    meeting = RunState.start(method, here)._meet(Preferences(rankings), t)
    return meeting.to, meeting.by, meeting.rest, meeting.said + method.cost(here, meeting.to, meeting.by)


def test_distrust_is_fast_and_trust_is_slow() -> None:
    np.testing.assert_allclose(crelu(np.array([-2.0, -0.5, 0.0, 1.0, 5.0]), 0.2), [-2.0, -0.5, 0.0, 0.2, 1.0])


def test_outdegree_corrects_for_listeners() -> None:
    """Center 0 is heard by 1, 2 and 3; nobody else is heard. d = (4, 1, 1, 1)."""
    size = np.array([8.0, 2.0, 6.0, 10.0])
    weight = outdegree_weights(size, np.array([1, 2, 3]), np.array([0, 0, 0]))
    np.testing.assert_allclose(weight, [2 / (2 + 2), 2 / (2 + 6), 2 / (2 + 10)])


def test_on_a_regular_graph_it_is_weighting_by_size() -> None:
    size = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    order = np.arange(5)
    receiver = np.concatenate([order, order])
    sender = np.concatenate([(order + 1) % 5, (order - 1) % 5])
    weight = outdegree_weights(size, receiver, sender)
    total = size + size[(order + 1) % 5] + size[(order - 1) % 5]
    np.testing.assert_allclose(weight, size[sender] / total[receiver])


def test_the_correction_keeps_every_center_in_proportion_to_its_rows() -> None:
    """Averaged over many random draws, what a center adds to all others is as its rows are."""
    rng = np.random.default_rng(1)
    n, draws = 12, 400
    size = np.full(n, 1.0)
    popular = np.full(n, 0.4 / (n - 1))
    popular[0] = 0.6  # center 0 is drawn far more often than anybody else
    shares = {True: np.zeros(n), False: np.zeros(n)}
    for _ in range(draws):
        receiver = np.repeat(np.arange(n), 2)
        sender = np.concatenate([rng.choice(n, 2, replace=False, p=popular) for _ in range(n)])
        other = sender != receiver
        receiver, sender = receiver[other], sender[other]
        for corrected in (True, False):
            if corrected:
                weight = outdegree_weights(size, receiver, sender)
            else:
                weight = 1.0 / (1.0 + np.bincount(receiver, minlength=n)[receiver])
            own = 1.0 - np.bincount(receiver, weights=weight, minlength=n)
            shares[corrected] += (own + np.bincount(sender, weights=weight, minlength=n)) / n / draws
    assert shares[False][0] > 3 / n
    assert abs(shares[True][0] - 1 / n) < 0.5 / n


def test_confidence_falls_when_the_loss_rises() -> None:
    received = WeightedTransfers(np.array([0, 0, 1]), np.array([1, 2, 0]), np.array([0.2, 0.3, 0.5]))
    after = judge(np.zeros((3, 3)), received, np.array([0.1, -0.4, 9.0]))
    np.testing.assert_allclose(after, [[0, -0.02, -0.03], [0.2, 0, 0], [0, 0, 0]])


def test_peers_are_drawn_from_trust(context) -> None:
    """The first peer drawn follows softmax(cReLU(c))."""
    here = context(Training())
    confidence = np.tile(np.array([0.0, 5.0, -1.0, 0.0, -3.0, 0.0]), (6, 1))
    method = DeFTA()
    first = np.array([method.rankings(here, confidence, t)[0][0] for t in range(1, 3001)])
    odds = np.exp(np.array([0.0, 1.0, -1.0, 0.0, -3.0, 0.0]))
    odds[0] = 0.0
    np.testing.assert_allclose(np.bincount(first, minlength=6) / 3000, odds / odds.sum(), atol=0.03)


def test_trust_is_judged_by_the_next_training(context, play) -> None:
    here = context(Training())
    states = play(DeFTA(), here, 3)
    assert not states[1].confidence.any()
    before, after = states[1], states[2]
    expected = judge(np.zeros((6, 6)), before.received, after.loss - before.loss)
    np.testing.assert_allclose(after.confidence, expected)
    assert after.confidence.any()


@pytest.mark.parametrize("links", ["mutual", "pull"])
def test_it_is_the_authors_loop(context, play, links) -> None:
    """Aggregate, test, train, judge, publish, told plainly: a round here ends where theirs tests."""
    here = context(Training(optimizer="sgd", lr=0.1))
    method, n = DeFTA(links=links), here.n
    size = here.data.train.sizes
    confidence = np.zeros((n, n))
    published = here.learner.train(here.common_start(), 1)
    before = log_loss(here.learner.logits(published, here.data.train), labels_of(here.data.train))
    for t, state in enumerate(play(method, here, 4)[1:], start=1):
        np.testing.assert_allclose(state.confidence, confidence, atol=1e-6)
        receiver, sender, _, _ = transfers(method, here, state.confidence, t)
        hears = [[i, *(int(j) for k, j in zip(receiver, sender) if k == i)] for i in range(n)]
        listeners = [sum(j in received for received in hears) for j in range(n)]
        own = np.empty_like(published)
        share = np.zeros((n, n))
        for i, received in enumerate(hears):
            total = sum(size[j] / listeners[j] for j in received)
            for j in received:
                share[i, j] = size[j] / listeners[j] / total
            own[i] = sum(float(share[i, j]) * published[j] for j in received)
        np.testing.assert_allclose(state.models, own, rtol=1e-4, atol=1e-6)  # what is tested
        published = here.learner.train(own, t + 1)
        after = log_loss(here.learner.logits(published, here.data.train), labels_of(here.data.train))
        for i, received in enumerate(hears):
            for j in received[1:]:
                confidence[i, j] -= share[i, j] * (after[i] - before[i])
        before = after
    assert confidence.any()


def test_a_ruined_model_returns_to_the_best_and_blames_its_peers(context, play) -> None:
    here = context(Training())
    method = DeFTA()
    good = play(method, here, 3)[-1]
    spoiled = good.models.copy()
    spoiled[2] = np.nan
    course = RunState.start(method, here)
    after = replace(course, state=replace(good, models=spoiled)).round(4)[0].state
    clean = replace(course, state=good).round(4)[0].state
    assert np.isfinite(after.models).all()
    mine = good.received.receiver == 2
    dropped = good.confidence[2, good.received.sender[mine]] - after.confidence[2, good.received.sender[mine]]
    np.testing.assert_allclose(dropped, 10.0 * good.received.weight[mine], rtol=1e-6)
    others = np.setdiff1d(np.arange(6), [2])
    np.testing.assert_allclose(after.confidence[others], clean.confidence[others])
    retrained = here.learner.train(good.best, 4)[2]
    trained, _, change = method.descend(here, replace(good, models=spoiled), 4)
    assert np.array_equal(trained[2], retrained)
    assert change[2] == 10.0


@pytest.mark.parametrize("links", ["mutual", "pull"])
def test_links(context, links) -> None:
    here: Context = context(Training())
    method = DeFTA(links=links)
    receiver, sender, rest, traffic = transfers(method, here, np.zeros((6, 6)), 1)
    payload = method.wire.payload(here)
    touching = {tuple(sorted(p)) for p in zip(receiver.tolist(), sender.tolist())}
    assert (receiver != sender).all()
    assert traffic.directed == len(receiver) * payload
    assert traffic.edge == len(touching) * payload
    received = np.bincount(receiver, minlength=6)
    if links == "pull":
        assert (received == 2).all()
    else:
        assert received.max() <= 2
        assert len(touching) in (5, 6)
        assert sorted(zip(receiver.tolist(), sender.tolist())) == sorted(
            zip(sender.tolist(), receiver.tolist())
        )
    assert not rest.any()
