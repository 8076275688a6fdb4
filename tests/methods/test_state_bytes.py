"""Any method's state as bytes and back; settings with a fixed list of values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from abps.core.errors import RequestError, listed, validate
from abps.engine.rounds import RunState
from abps.methods.base import Context
from abps.methods.catalog import CATALOG
from abps.methods.settings import with_settings
from abps.methods.state_bytes import StateError, freeze, thaw
from abps.models.learners import learner_for


def same(a, b):
    assert type(a) is type(b)
    if dataclasses.is_dataclass(a):
        for f in dataclasses.fields(a):
            same(getattr(a, f.name), getattr(b, f.name))
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b or (a != a and b != b)


#: Methods whose state is written down: at a site, or in a checkpoint.
CASES = [
    name
    for name, entry in CATALOG.items()
    if not getattr(entry.config, "fitted", False) and name not in ("odal", "glmm", "boosting", "centralized")
]


@pytest.mark.parametrize("name", CASES)
def test_every_state_survives_the_journey_and_the_run_goes_on(ready, name) -> None:
    """After two rounds the state is written and read; the third round does not notice."""
    method = with_settings(CATALOG[name].config, {"hidden": "8,4", "batch": "32"})
    learner = learner_for(ready, method.training, 11)
    course = RunState.start(method, Context(learner, ready, learner.ids, 11, 5))
    for t in (1, 2):
        course, _ = course.round(t)
    kind = type(method.init(course.context))
    content = freeze(course.state, ("models",))
    back = thaw(kind, content, models=course.state.models)
    same(back, course.state)
    assert freeze(back, ("models",)) == content
    on, _ = course.round(3)
    again, _ = dataclasses.replace(course, state=back).round(3)
    assert np.array_equal(on.state.models, again.state.models)


@dataclass(frozen=True, eq=False)
class Inner:
    table: NDArray[np.float64]
    word: str | None


@dataclass(frozen=True, eq=False)
class Outer:
    inner: tuple[Inner, ...]
    one: Inner | None
    number: float
    counts: tuple[int, str]


@given(
    arrays.arrays(np.float64, arrays.array_shapes(max_dims=3, max_side=4)),
    st.none() | st.text(max_size=5),
    st.floats(),
    st.integers(-(2**60), 2**60),
)
def test_nested_values(table, word, number, count) -> None:
    value = Outer((Inner(table, word),) * 2, Inner(table.T, None), number, (count, "x"))
    same(thaw(Outer, freeze(value)), value)
    same(thaw(Outer, freeze(dataclasses.replace(value, one=None))), dataclasses.replace(value, one=None))


def test_what_is_cut_off_or_cannot_be_written() -> None:
    value = Outer((Inner(np.zeros(3), None),), None, 0.0, (1, "x"))
    with pytest.raises(StateError, match="truncated"):
        thaw(Outer, freeze(value)[:-1])
    for wrong in (np.array([object()]), object(), lambda: None):
        with pytest.raises(TypeError, match="cannot be written down"):
            freeze(dataclasses.replace(value, one=wrong))


@dataclass(frozen=True)
class Chosen:
    color: Literal["red", "green", "blue"] = "red"
    several: tuple[Literal["a", "b"], ...] = ("a",)
    free: str = "anything"

    def __post_init__(self) -> None:
        validate(self)


def test_choices_are_checked_in_one_sentence() -> None:
    assert Chosen("blue", ("a", "b"), "x").color == "blue"
    with pytest.raises(RequestError, match=r"^color='pink': choose red, green or blue$"):
        Chosen("pink")
    with pytest.raises(RequestError, match=r"^several='c': choose a or b$"):
        Chosen(several=("a", "c"))
    assert listed(("one",)) == "one"
