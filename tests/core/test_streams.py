"""Random streams: functions of (seed, center, round, purpose), and of nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.core import streams
from core import single_places


def test_a_stream_is_repeatable_and_its_own():
    draw = streams.generator(11, "batches", 3, streams.center_id("MICU/2110")).random(4)
    again = streams.generator(11, "batches", 3, streams.center_id("MICU/2110")).random(4)
    assert (draw == again).all()
    keys = {
        streams.key(seed, purpose, t, streams.center_id(center))
        for seed in (11, 22)
        for purpose in streams.PURPOSES
        for t in range(5)
        for center in ("a", "b", "c")
    }
    assert len(keys) == 2 * len(streams.PURPOSES) * 5 * 3


def test_hashed_numbers_do_not_depend_on_their_neighbours():
    ids = streams.center_ids(["a", "b", "c"])
    table = streams.uniforms(5, "policy", 2, ids[:, None], np.arange(4))
    for k in range(3):
        for j in range(4):
            assert table[k, j] == streams.uniforms(5, "policy", 2, ids[k], j)


def test_hashed_numbers_are_uniform_and_uncorrelated():
    u = streams.uniforms(1, "policy", 1, np.arange(300, dtype=np.uint64)[:, None], np.arange(300))
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    expected = u.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi-square, 19 degrees: 99.9 % is 43.8
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.015


@given(n=st.integers(1, 400), key=st.integers(0, 2**64 - 1))
def test_a_keyed_permutation_is_one_and_has_an_inverse(n, key):
    order = single_places.peer_at(np.arange(n), np.uint64(key), n)
    assert sorted(order.tolist()) == list(range(n))
    assert single_places.place_of(order, np.uint64(key), n).tolist() == list(range(n))


def test_every_peer_is_first_equally_often():
    n, keys = 23, streams.bits(3, "tie-break", 1, np.arange(23_000, dtype=np.uint64))
    for place in (0, 1, n - 1):
        counts = np.bincount(single_places.peer_at(place, keys, n), minlength=n)
        assert ((counts - 1000) ** 2 / 1000).sum() < 48.3  # 22 degrees: 99.9 %


def test_pairs_of_places_are_balanced_too():
    n, keys = 6, streams.bits(9, "tie-break", 1, np.arange(30_000, dtype=np.uint64))
    first, second = single_places.peer_at(0, keys, n), single_places.peer_at(1, keys, n)
    counts = np.bincount(first * n + second, minlength=n * n)
    off = counts[[k for k in range(n * n) if k // n != k % n]]
    assert ((off - 1000) ** 2 / 1000).sum() < 58.3  # 29 degrees: 99.9 %


def test_large_permutations_with_halves_of_two_sizes():
    n, key = 70_000, np.uint64(12345)  # 17 bits
    order = single_places.peer_at(np.arange(n), key, n)
    assert (np.bincount(order, minlength=n) == 1).all()
    assert (single_places.place_of(order, key, n) == np.arange(n)).all()
    keys = streams.bits(3, "tie-break", 1, np.arange(40_000, dtype=np.uint64))
    for place in (0, 1, n - 1):
        counts = np.histogram(single_places.peer_at(place, keys, n), bins=40, range=(0, n))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 72.1  # 39 degrees: 99.9 %
    first, second = (single_places.peer_at(p, keys, n) * 6 // n for p in (0, 1))
    counts = np.bincount(first * 6 + second, minlength=36)
    assert ((counts - 40_000 / 36) ** 2 / (40_000 / 36)).sum() < 66.6  # 35 degrees: 99.9 %


def test_an_unknown_purpose_is_an_error():
    with pytest.raises(ValueError):
        streams.key(1, "no such purpose")


def test_purposes_keep_their_numbers():
    """What has been drawn once is drawn again for ever: these keys are written down, not computed."""
    numbers = list(streams.PURPOSES.values())
    assert numbers[:29] == list(range(29)) and len(set(numbers)) == len(numbers)
    assert streams.key(11, "split") == 11998160044626892853
    assert streams.key(11, "drift-test", 3, 7) == 11920283521383899925


def test_purposes_of_others_have_numbers_of_their_own():
    mine, yours = streams.number("mine:graph"), streams.number("yours:graph")
    assert mine != yours and min(mine, yours) >= 1 << 63
    draw = streams.generator(11, "mine:graph", 1).random(2)
    assert (draw == streams.generator(11, "mine:graph", 1).random(2)).all()
    assert (draw != streams.generator(11, "graph", 1).random(2)).all()
    for wrong in ("grahp", ":graph", "mine:"):
        with pytest.raises(ValueError, match="name one of your own 'package:purpose'"):
            streams.number(wrong)
