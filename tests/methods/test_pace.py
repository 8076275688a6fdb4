"""A dual variable, outer momentum and the mean of the last models, against what they should do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from abps.core.errors import RequestError
from abps.data.table import load
from abps.engine.simulate import simulate
from abps.methods.kindred import Kindred, Roll
from abps.methods.memory import freeze, thaw
from abps.methods.pace import Pace, Stride

SHORT = Kindred(roll=Roll(first=3, again=(6,)), last=())


def two_quadratics(pace: Pace, rounds: int) -> torch.Tensor:
    """Two centers with losses c (w - o)^2 / 2, of which each takes half of the way to its optimum in a round,
    and who mix in every round; the models in the end."""
    curve, optimum = torch.tensor([[1.0], [4.0]]), torch.tensor([[0.0], [10.0]])
    models, stride = torch.zeros(2, 1), pace.start(2, 1, 1)
    for _ in range(rounds):
        anchor = stride.pushed(models, -1.0)
        trained = models.clone()
        for _ in range(20):
            slope = curve * (trained - optimum) + pace.dual * (trained - anchor)
            trained = trained - 0.05 * slope
        stride = pace.learned(stride, models, trained)
        mixed = stride.pushed(trained).mean(dim=0, keepdim=True).expand(2, 1).clone()
        stride, models = pace.went_on(stride, models, mixed)
    return models


def test_with_a_dual_two_that_differ_agree_on_the_best_for_both():
    best = (1.0 * 0.0 + 4.0 * 10.0) / 5.0
    plain = two_quadratics(Pace(), 400)
    assert abs(float(plain[0]) - best) > 0.5  # each pulls to its own side, the steeper one farther
    exact = two_quadratics(Pace(dual=1.0, dual_keep=1.0), 400)
    np.testing.assert_allclose(exact.numpy(), best, atol=1e-3)


def test_one_alone_with_a_dual_ends_at_its_own_optimum():
    pace = Pace(dual=0.5, dual_keep=1.0)
    models, stride = torch.zeros(1, 1), pace.start(1, 1, 1)
    for _ in range(200):
        anchor = stride.pushed(models, -1.0)
        trained = (3.0 * 7.0 + pace.dual * anchor) / (3.0 + pace.dual)  # the least of 3/2 (w - 7)^2 + pull
        stride = pace.learned(stride, models, trained)
        models = stride.pushed(trained)
    np.testing.assert_allclose(models.numpy(), 7.0, atol=1e-4)


def test_momentum_is_the_heavy_ball():
    pace, rng = Pace(momentum=0.5), np.random.default_rng(1)
    stride, models = pace.start(1, 2, 3), torch.zeros(1, 3)
    expected, move = np.zeros(3), np.zeros(3)
    for _ in range(6):
        gone = rng.standard_normal(3).astype(np.float32)
        stride, models = pace.went_on(stride, models, models + torch.from_numpy(gone))
        move = gone + 0.5 * move * np.array([1, 1, 0])  # the last weight is private
        expected = expected + move
        np.testing.assert_allclose(models.numpy()[0], expected, rtol=1e-5)


def test_what_is_kept_is_the_mean_of_the_last_models():
    pace, rng = Pace(averaged=0.3), np.random.default_rng(2)
    stride, after = pace.start(2, 4, 5), torch.from_numpy(rng.standard_normal((10, 2, 5)).astype(np.float32))
    for t in range(1, 11):
        stride, kept = pace.kept(stride, after[t - 1], t, 10)
        if t < 10:
            assert torch.equal(kept, after[t - 1])
    np.testing.assert_allclose(kept.numpy(), after[7:].mean(dim=0).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pace", [Pace(dual=0.3), Pace(momentum=0.5), Pace(averaged=0.3)], ids=str)
def test_each_changes_a_run_and_no_byte_of_it(pace):
    federation = load("icu-synthetic:centers=8,stays=1600")
    plain = simulate(federation, SHORT, seed=5, rounds=10)
    faster = simulate(federation, replace(SHORT, pace=pace), seed=5, rounds=10)
    assert not torch.equal(plain.models, faster.models) and torch.isfinite(faster.models).all()
    assert faster.bytes.edge == plain.bytes.edge


def test_what_is_kept_between_rounds_survives_a_store():
    pace = Pace(dual=0.3, momentum=0.5, averaged=0.2)
    stride = replace(pace.start(2, 3, 4), dual=torch.randn(2, 3))
    back = thaw(Stride, freeze(stride))
    assert torch.equal(back.dual, stride.dual) and back.mean.shape == (2, 4)


@pytest.mark.parametrize("wrong", [{"dual": -1.0}, {"dual_keep": 1.1}, {"momentum": 1.0}, {"averaged": -0.1}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(RequestError, match=next(iter(wrong))):
        Pace(**wrong)
