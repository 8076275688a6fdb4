"""PENS: two phases."""

from __future__ import annotations

import numpy as np
import pytest

from abps import simulate
from abps.core.errors import RequestError
from abps.lab.rivals.choosing import drawn
from abps.lab.rivals.judging import PENS, best_of, neighbours
from abps.models.metrics import labels_of, log_loss
from abps.wire.codecs import codec, frame_size


def test_the_best_of_those_heard() -> None:
    to = np.array([1, 0, 0, 1, 0])
    loss = np.array([0.5, 0.3, 0.1, 0.5, 0.2])
    tie = np.array([9, 1, 2, 3, 4], dtype=np.uint64)
    np.testing.assert_array_equal(best_of(to, loss, tie, 1), [False, False, True, True, False])
    np.testing.assert_array_equal(best_of(to, loss, tie, 2), [True, False, True, True, True])


def test_neighbours_are_chosen_more_often_than_chance() -> None:
    chosen = np.array([[0.0, 3, 1, 2], [0, 0, 0, 0]])
    np.testing.assert_array_equal(neighbours(chosen), [[False, True, False, False], [True] * 4])


def test_rounds_by_hand(context, play, one_step) -> None:
    place, method = context(one_step), PENS(training=one_step, sampled=3, best=1, first=2, later=2)
    states = play(method, place, 4)
    sizes = place.sizes().astype(float)
    models, chosen, rows = states[0].models, np.zeros((6, 6)), place.data.train
    for t in (1, 2, 3, 4):
        trained = place.learner.train(models, t)
        often = np.array([[c > row.sum() / 5 for c in row] for row in chosen])
        known = None if t <= 2 else np.array([row if row.any() else ~row for row in often])
        asked = drawn(place, np.zeros((6, 6)), t, known)
        models = np.zeros_like(models)
        for i in range(6):
            received = asked[i][: 3 if t <= 2 else 2]
            if t <= 2:
                loss = {
                    j: log_loss(
                        place.learner.logits(trained[j][None], rows, np.array([i])),
                        labels_of(rows, np.array([i])),
                    )[0]
                    for j in received
                }
                received = [min(loss, key=loss.get)]
                chosen[i, received] += 1
            else:
                assert all(known[i, j] for j in received)  # it never leaves its neighbours
            total = sizes[i] + sum(sizes[j] for j in received)
            models[i] = sum(sizes[j] / total * trained[j] for j in [i, *received])
        np.testing.assert_array_equal(states[t].chosen, chosen)
        np.testing.assert_allclose(states[t].models, models, atol=1e-5)


def test_bytes_of_the_phases(tiny) -> None:
    run = simulate(tiny, PENS(sampled=4, best=1, first=1, later=1), 11, 3)
    frame = frame_size(codec("fp32"), run.models.shape[1])
    assert run.bytes.directed == 6 * (4 + 1 + 1) * frame
    assert run.bytes.control == 6 * (4 + 1 + 1) * 16
    assert simulate(tiny, "pens", 11, 1).bytes.directed == 6 * 5 * frame  # there are no more than five others


def test_bad_settings() -> None:
    with pytest.raises(RequestError, match="no more than"):
        PENS(sampled=2, best=3)
    with pytest.raises(RequestError, match="at least 1"):
        PENS(later=0)
