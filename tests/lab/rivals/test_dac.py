"""DAC: draws, two hops, rounds by hand."""

from __future__ import annotations

import numpy as np
import pytest

from abps import simulate
from abps.core.errors import RequestError
from abps.lab.rivals.choosing import drawn
from abps.lab.rivals.judging import DAC, PENS, passed_on, zscores
from abps.models.metrics import labels_of, log_loss
from abps.wire.codecs import codec, frame_size


def test_without_tau_it_is_random_pulling_to_the_last_byte(tiny) -> None:
    """The same peers, the same models, the same bytes as PENS that averages with all it hears."""
    one = simulate(tiny, DAC(tau=0.0, peers=2, two_hop=False), 11, 3)
    two = simulate(tiny, PENS(sampled=2, best=2, first=99), 11, 3)
    assert np.array_equal(one.models, two.models)
    assert one.bytes == two.bytes


def test_draws_follow_their_probabilities(context, one_step) -> None:
    place = context(one_step)
    logits = np.tile(np.log(np.arange(1.0, 7.0)), (6, 1))
    first = np.array([[peers[0] for peers in drawn(place, logits, t)] for t in range(4000)])
    assert (first != np.arange(6)).all()
    for i in (0, 5):
        others = np.delete(np.arange(6), i)
        wanted = (others + 1) / (others + 1).sum()
        found = np.bincount(first[:, i], minlength=6)[others] / 4000
        np.testing.assert_allclose(found, wanted, atol=4 * np.sqrt(0.25 / 4000))


def test_large_scores_do_not_overflow(context, one_step) -> None:
    place = context(one_step)
    method = DAC(training=one_step, tau=1e6, peers=1)
    state = method.init(place)
    state.score[:, 3], state.count[:, 3] = 1e6, 1
    rankings = method.rank_peers(place, state, lambda: state, 5).rankings
    assert all(peers[0] == 3 for i, peers in enumerate(rankings) if i != 3)


def test_two_hops_by_hand() -> None:
    score = np.array([[0.0, 3.0, 2.0, 0.0, 0.0], [1.0, 0, 0, 0, 0]])
    measured = score > 0
    mask = np.eye(2, 5, dtype=bool)
    to, by = np.array([0, 0, 1]), np.array([1, 2, 0])
    told = np.array([[9.0, 0, 8, 7, 0], [9.0, 6, 0, 5, 4], [0.0, 3, 2, 0, 0]])
    found = passed_on(score, measured, to, by, told, mask)
    # Of 3 the better one (1) has the say, of 4 only the other knows; measured scores and oneself stay.
    np.testing.assert_array_equal(found[0], [0, 3, 2, 7, 4])
    np.testing.assert_array_equal(found[1], [1, 0, 2, 0, 0])


def test_zscores_of_what_was_seen() -> None:
    found = zscores(np.array([[0.0, 2.0, 4.0, 0.0], [0.0, 0.0, 0.0, 5.0]]))
    np.testing.assert_allclose(found, [[0, -1, 1, 0], [0, 0, 0, 0]])


def test_rounds_by_hand(context, play, one_step) -> None:
    place, method = context(one_step), DAC(training=one_step, peers=2, tau=1.0)
    states = play(method, place, 3)
    sizes = place.sizes().astype(float)
    models = states[0].models
    score, seen = np.zeros((6, 6)), np.zeros((6, 6), bool)
    rows = place.data.train
    for t in (1, 2, 3):
        trained = place.learner.train(models, t)
        before, asked = score.copy(), drawn(place, score, t)
        models = np.zeros_like(models)
        for i in range(6):
            received = asked[i][:2]
            for j in received:
                logits = place.learner.logits(trained[j][None], rows, np.array([i]))
                score[i, j] = 1 / log_loss(logits, labels_of(rows, np.array([i])))[0]
                seen[i, j] = True
            for m in range(6):
                known = [j for j in received if before[j, m] > 0]
                if m != i and not seen[i, m] and known:
                    score[i, m] = before[max(known, key=lambda j: score[i, j]), m]
            total = sizes[i] + sum(sizes[j] for j in received)
            models[i] = sum(sizes[j] / total * trained[j] for j in [i, *received])
        np.testing.assert_allclose(states[t].score, score, rtol=1e-4)
        np.testing.assert_allclose(states[t].models, models, atol=1e-5)
    assert (np.diag(states[3].score) == 0).all()


def test_bytes_and_trail(tiny) -> None:
    run = simulate(tiny, "dac", 11, 2, {"peers": 2})
    frame = frame_size(codec("fp32"), run.models.shape[1])
    assert run.bytes.directed == 2 * 6 * 2 * frame
    assert run.bytes.control == 2 * 6 * 2 * (16 + 4 * 6)
    asked = run.decisions.filter(run.decisions["decision"] == "proposed")
    assert len(asked) == 2 * 6 * 2 and asked["score"].max() > 0


def test_bad_settings() -> None:
    with pytest.raises(RequestError, match="at least 1"):
        DAC(peers=0)
