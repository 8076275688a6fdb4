"""Work shared among threads: every piece once, errors told, work inside of work."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.models.draws import shares
from abps.models.threads import Crew


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_every_piece_is_done_once(cores, monkeypatch):
    monkeypatch.setattr("abps.models.threads.available_cores", lambda: list(range(cores)))
    crew = Crew()
    for count in (0, 1, 7, 100):
        done = np.zeros(count, dtype=int)

        def work(k, done=done):
            done[k] += 1

        crew.each(work, count)
        assert (done == 1).all()


def test_work_starts_before_it_is_waited_for(monkeypatch):
    monkeypatch.setattr("abps.models.threads.available_cores", lambda: [0, 1])
    started, finish = threading.Event(), None
    done = []

    def work(k):
        started.set()
        done.append(k)

    finish = Crew().begin(work, 3)
    assert started.wait(10)  # by the other thread: this one has not lent a hand yet
    finish()
    assert sorted(done) == [0, 1, 2]


@pytest.mark.parametrize("bad", [0, 4])
def test_an_error_is_raised_where_the_work_is_waited_for(bad, monkeypatch):
    monkeypatch.setattr("abps.models.threads.available_cores", lambda: [0, 1])

    def work(k):
        if k == bad:
            raise ValueError("no")

    crew = Crew()
    with pytest.raises(ValueError, match="no"):
        crew.each(work, 5)
    done = []
    crew.each(done.append, 5)  # and the crew goes on
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_work_may_ask_for_more_work(monkeypatch):
    monkeypatch.setattr("abps.models.threads.available_cores", lambda: [0, 1])
    crew, done = Crew(), np.zeros((6, 5), dtype=int)

    def outer(i):
        def inner(j):
            done[i, j] += 1

        crew.each(inner, 5)

    crew.each(outer, 6)
    assert (done == 1).all()


@given(st.lists(st.integers(0, 400), max_size=80), st.integers(1, 9))
def test_shares_are_all_centers_with_rows_largest_first(sizes, cores):
    sizes = np.array(sizes, dtype=np.int64)
    cut = shares(sizes, cores)
    together = np.concatenate([np.zeros(0, dtype=np.int64), *cut])
    assert sorted(together.tolist()) == np.flatnonzero(sizes).tolist()
    assert (np.diff(sizes[together]) <= 0).all()
    assert all(len(piece) for piece in cut)
    if len(together):
        # No piece is more than an eighth of a core's share, and one center, of the work.
        assert max(sizes[piece].sum() for piece in cut) <= sizes.sum() / (8 * cores) + sizes.max()
