"""A small world for methods, and rounds played by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from abps.core import streams
from abps.data.prepare import Prepared
from abps.engine.rounds import Course
from abps.methods.base import Method, World
from abps.models.batched import StackedLearner
from abps.models.loop import LoopLearner
from abps.models.training import Training

#: One full-batch step without dropout: local training that can be worked out by hand.
ONE_STEP = Training(epochs=1, batch=1000, lr=0.1, weight_decay=0.0, optimizer="sgd", dropout=0.0)


@pytest.fixture
def one_step() -> Training:
    """One full-batch gradient step of size 0.1 a round."""
    return ONE_STEP


@pytest.fixture
def world(ready: Prepared) -> Callable[..., World]:
    """A world for a training, by default of all centers and with the stacked learner."""

    def make(training: Training, data: Prepared = ready, loop: bool = False) -> World:
        learner = (LoopLearner if loop else StackedLearner)(data, training, training.factory, 11)
        return World(learner, data, streams.center_ids(data.centers), 11, 50)

    return make


@pytest.fixture
def play() -> Callable[..., list[Any]]:
    """All states of a run: before the first round and after each."""

    def run(method: Method, world: World, rounds: int) -> list[Any]:
        course = Course.start(method, world)
        states = [course.state]
        for t in range(1, rounds + 1):
            course, _ = course.round(t)
            states.append(course.state)
        return states

    return run
