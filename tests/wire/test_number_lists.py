"""Lists of numbers: what is read is what was written, in as many bytes as were counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.wire import number_lists
from abps.wire.number_lists import Field, NumberList, NumberListError

FORM = (
    Field("single", 3),
    Field("half", 5),
    Field("share", 4),
    Field("place", 2),
    Field("small", 6, 3),
)


def some(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [
            rng.normal(0, 1e6, 3),
            rng.normal(size=5),
            rng.random(4),
            rng.integers(0, 500, 2),
            rng.normal(0, 50, 18),
        ]
    )


@given(st.integers(0, 10_000), st.binary(max_size=5))
def test_a_list_is_read_as_it_goes_on_and_writes_the_same_bytes_again(seed: int, more: bytes) -> None:
    sent = NumberList.of(some(seed), FORM)
    data = sent.data
    back, rest = NumberList.read(data + more)
    assert (rest, back.form, len(data)) == (more, FORM, 1 + sum(7 + field.size for field in FORM))
    np.testing.assert_array_equal(back.values, sent.values)
    assert back.data == data


@given(st.integers(0, 10_000))
def test_what_is_lost(seed: int) -> None:
    values, back = some(seed), NumberList.of(some(seed), FORM).values
    np.testing.assert_array_equal(back[:3], values[:3].astype(np.float32))
    np.testing.assert_allclose(back[3:8], values[3:8], rtol=2**-8)
    np.testing.assert_allclose(back[8:12], values[8:12], atol=0.5 / 255 + 1e-12)
    np.testing.assert_array_equal(back[12:14], values[12:14])
    table = values[14:].reshape(3, 6)
    step = np.abs(table).max(axis=1, keepdims=True) / 127
    # Half a step, which is rounded up to two bytes: less than one in 128 more.
    assert (np.abs(back[14:].reshape(3, 6) - table) <= 0.505 * step).all()


def test_nothing_and_zeros() -> None:
    assert NumberList.of(np.zeros(0), ()).data == b"\0"
    form = (Field("small", 4, 2), Field("place", 0))
    assert not NumberList.of(np.zeros(8), form).values.any()
    assert np.isnan(NumberList.of(np.array([np.nan]), (Field("single", 1),)).values).all()


@given(st.binary(max_size=60))
def test_bytes_of_no_list_are_refused(data: bytes) -> None:
    try:
        sent, rest = NumberList.read(data)
    except NumberListError:
        return
    assert sent.size + len(rest) == len(data)


def test_a_list_that_is_cut_off_or_too_long_is_refused() -> None:
    data = NumberList.of(some(1), FORM).data
    with pytest.raises(NumberListError):
        NumberList.read(data[:-1])
    huge = bytes([1]) + number_lists._FIELD.pack(2, 60_000, 2**32 - 1)
    with pytest.raises(NumberListError):
        NumberList.read(huge)
