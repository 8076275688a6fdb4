"""FedFomo, EHRFL's selection and DPFL: weights, neighbours, sets."""

from __future__ import annotations

import numpy as np
import pytest

from abps import simulate
from abps.core.errors import RequestError
from abps.lab.rivals.choosing import own_losses
from abps.lab.rivals.ehrfl import EHRFL, nearest
from abps.lab.rivals.judging import DPFL, FedFomo, gains, positive_shares
from abps.methods.base import Models
from abps.methods.peers import Received
from abps.wire.codecs import codec, frame_size


def test_weights() -> None:
    assert gains(np.array([0.2, 0.1]), np.array([2.0, 0.0])).tolist() == [0.1, 0.0]
    to = np.array([0, 0, 1])
    own, theirs = np.array([0.1, -1.0]), np.array([0.3, -0.5, -0.2])
    np.testing.assert_allclose(positive_shares(own, theirs, to), [0.75, 0, 0])  # nobody helps the second


def test_a_round_by_hand(context, play, one_step) -> None:
    method, place = FedFomo(training=one_step, peers=2), context(one_step)
    before, after = play(method, place, 1)
    trained = place.learner.train(before.models, 1)
    peers = method.rank_peers(place, before, lambda: before, 1).rankings

    def loss(model, i):
        models = place.common_start()
        models[i] = model
        return own_losses(place, models, "validation")[i]

    for i in range(6):
        base, w = before.models[i], {}
        for j in [i, *peers[i]]:
            w[j] = (loss(base, i) - loss(trained[j], i)) / float(np.linalg.norm(trained[j] - base))
        good = {j: v for j, v in w.items() if v > 0}
        wanted = sum(v / sum(good.values()) * trained[j] for j, v in good.items()) if good else trained[i]
        np.testing.assert_allclose(after.models[i], wanted, atol=1e-5, rtol=1e-4)
        for j in peers[i]:
            assert after.preference[i, j] == pytest.approx(w[j] / abs(sum(w.values())), rel=1e-3)


def test_without_exploring_the_preferred_are_heard(context, one_step) -> None:
    place = context(one_step)
    method = FedFomo(training=one_step, peers=2, explore=0.0)
    state = method.init(place)
    state.preference[:] = [0, 5, 1, 9, -3, 2]
    rankings = method.rank_peers(place, state, lambda: state, 1).rankings
    assert rankings == [[3, 1], [3, 5], [3, 1], [1, 5], [3, 1], [3, 1]]
    daring = (
        FedFomo(training=one_step, peers=2, explore=1.0).rank_peers(place, state, lambda: state, 1).rankings
    )
    assert daring != rankings and all(len(set(d)) == 2 and i not in d for i, d in enumerate(daring))


def test_bytes_over_a_server(tiny) -> None:
    relay = simulate(tiny, FedFomo(peers=2), 11, 2)
    frame = frame_size(codec("fp32"), relay.models.shape[1])
    assert relay.bytes.directed == 2 * 6 * 3 * frame and relay.bytes.edge == 2 * 6 * 3 * frame // 2


def test_the_nearest() -> None:
    means = np.array([[0.0, 0], [1, 0], [5, 100], [6, 100], [np.nan, 1]])
    found = nearest(means, 2)
    assert found[0, 0] == 1 and found[1, 0] == 0 and found[2, 0] == 3 and found[3, 0] == 2
    assert 4 not in found[:4] and nearest(means[:4], 9).shape == (4, 3)


def test_partners_are_near_after_the_warm_up(context, play, one_step) -> None:
    place, method = context(one_step), EHRFL(training=one_step, near=2, warmup=2)
    states = play(method, place, 4)
    assert (states[2].near == -1).all()
    means = method.means(place, states[2].models)
    for i, x in enumerate(np.split(place.data.train.x, place.data.train.start[1:-1])):
        hidden = place.learner.representation(states[2].models[i], x)
        np.testing.assert_allclose(means[i], hidden.mean(0), atol=1e-5)
    np.testing.assert_array_equal(states[3].near, nearest(means.astype(np.float32).astype(float), 2))
    rankings = method.rank_peers(place, states[3], lambda: states[3], 4).rankings
    assert all(set(peers) == set(near) for peers, near in zip(rankings, states[3].near.tolist()))


def test_a_search_by_hand(context, one_step) -> None:
    """The double greedy search told with sets."""
    from abps.core import streams

    place, method = context(one_step), DPFL(training=one_step, most=4)
    own = place.learner.train(place.common_start(), 1)
    rng = np.random.default_rng(1)
    arrived = own + 0.05 * rng.normal(size=tuple(own.shape)).astype(np.float32)
    to = np.repeat(np.arange(6), 5)
    by = np.concatenate([rng.permutation(np.delete(np.arange(6), i)) for i in range(6)])
    found = method.search(place, own, Received(to, by, arrived, np.zeros(6)), 3)
    sizes = place.sizes().astype(float)

    def reward(i, members):
        total = sizes[i] * own[i].astype(np.float64) + sum(
            sizes[j] * arrived[j].astype(np.float64) for j in members
        )
        models = own.copy()
        models[i] = (total / (sizes[i] + sum(sizes[j] for j in members))).astype(np.float32)
        return (10 - own_losses(place, models, "validation")[i]) / 10

    for i in range(6):
        inside, maybe = set(), set(by[to == i].tolist())
        for j in by[to == i].tolist():
            if len(inside) + 1 >= 4:
                break
            a = max(0.0, reward(i, inside | {j}) - reward(i, inside))
            b = max(0.0, reward(i, maybe - {j}) - reward(i, maybe))
            u = streams.uniforms(11, "accept", 3, place.ids[i], place.ids[j])
            if u < (a / (a + b) if a + b > 0 else 1.0):
                inside.add(j)
            else:
                maybe.remove(j)
        assert set(np.flatnonzero(found[i]).tolist()) == inside


def test_who_is_heard_in_a_search(context, play, one_step) -> None:
    place, method = context(one_step), DPFL(training=one_step, most=3)
    states = play(method, place, 3)
    assert [s.searches for s in states] == [0, 1, 1, 2]
    assert (states[1].kept.sum(1) <= 2).all() and (states[3].kept == states[1].kept).all()
    again = method.rank_peers(place, states[1], lambda: states[1], 3).rankings
    assert [set(peers) for peers in again] == [set(np.flatnonzero(k).tolist()) for k in states[1].kept]
    assert isinstance(states[1], Models)


def test_bad_settings() -> None:
    with pytest.raises(RequestError, match="at least 1"):
        FedFomo(peers=0)
    with pytest.raises(RequestError, match="at least 1"):
        EHRFL(warmup=0)
    with pytest.raises(RequestError, match="at least 2"):
        DPFL(most=1)
