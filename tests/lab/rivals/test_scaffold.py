"""SCAFFOLD."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abps.core.arrays import repeated
from abps.data.prepare import Prepared, Rows
from abps.lab.rivals.scaffold import Scaffold
from abps.methods.fedavg import FedAvg
from abps.models.training import Training


@pytest.fixture
def alike(ready: Prepared) -> Prepared:
    """Three centers that hold the same training rows."""
    rows = ready.train.only(5)
    train = Rows(np.tile(rows.x, (3, 1)), np.tile(rows.y, 3), np.arange(4) * len(rows.y))
    part = {"validation": ready.validation, "test": ready.test}
    cut = {k: Rows(v.x[: v.start[3]], v.y[: v.start[3]], v.start[:4]) for k, v in part.items()}
    return replace(
        ready, centers=ready.centers[:3], train=train, groups=None, metadata=ready.metadata[:3], **cut
    )


def test_equal_centers_need_no_correction(context, play, alike, one_step) -> None:
    """One full-batch step: streams differ between centers, the batch does not."""
    here = context(one_step, alike)
    states = play(Scaffold(training=one_step), here, 3)
    for state in states[1:]:
        assert np.abs(state.common).max() > 1e-3
        np.testing.assert_allclose(state.own, repeated(state.common, 3), rtol=1e-4, atol=1e-6)
    plain = play(FedAvg(training=one_step), here, 3)[-1]
    np.testing.assert_allclose(states[-1].models, plain.models, rtol=1e-4, atol=1e-6)


def test_corrected_steps_of_all_centers_are_the_mean_step(context, play, one_step) -> None:
    """In round 2 every center's first step follows g_i - c_i + c, by hand."""
    here = context(one_step)
    method = Scaffold(training=one_step, weighting="uniform")
    first, second = play(method, here, 2)[1:]
    slope = here.learner.gradient(first.models, here.data.train)
    step = (slope - first.own + first.common).mean(0)
    np.testing.assert_allclose(second.models[0], first.models[0] - 0.1 * step, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(second.own, slope)
    np.testing.assert_allclose(second.common, second.own.mean(0), rtol=1e-4, atol=1e-6)


def test_the_first_round_is_fedavg(context, play) -> None:
    here = context(Training())
    np.testing.assert_allclose(
        play(Scaffold(), here, 1)[-1].models, play(FedAvg(), here, 1)[-1].models, rtol=1e-5, atol=1e-6
    )
