"""Losses, slopes and scores of every outcome, against automatic differentiation and other people's code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.data.outcome import Outcome
from abps.models import outcomes
from abps.models.families import family_of
from abps.models.modules import mean_loss

HAZARD = Outcome("survival", grid=(1.0, 2.5, 4.0))
SOFTMAX = Outcome("classes", names=("a", "b", "c"))
SQUARED = Outcome("continuous", level=3.0, scale=2.0)
ONE = Outcome("survival", grid=(4.0,))  # one interval: a single number for every row
ALL = [HAZARD, SOFTMAX, SQUARED]


def made(outcome: Outcome, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, outcome.outputs))
    if outcome.kind == "survival":
        # Few different times: ties between events, and between events and ends of watching.
        time = rng.choice([0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 4.0, 6.0], rows)
        y = np.where(rng.random(rows) < 0.6, time, -time)
    elif outcome.kind == "classes":
        y = rng.integers(0, 3, rows).astype(float)
    else:
        y = rng.normal(size=rows)
    return z, y.astype(np.float32)


@pytest.mark.parametrize("outcome", ALL, ids=lambda o: o.kind)
def test_losses_and_slopes_are_those_of_automatic_differentiation(outcome: Outcome) -> None:
    z, y = made(outcome, 60)
    leaf = torch.tensor(z, requires_grad=True)
    total = 60 * mean_loss(outcome, leaf, torch.from_numpy(y).double())
    total.backward()
    loss = outcomes.row_losses(outcome, z, y)
    slope = -family_of(outcome).residual(z, y.astype(float))
    assert loss.sum() == pytest.approx(float(total.detach()), rel=1e-9)
    np.testing.assert_allclose(slope, leaf.grad, atol=1e-9)


def test_hazards_are_those_of_counting() -> None:
    """Without inputs the best hazards are events over rows at risk, and survival is Kaplan-Meier's."""
    _, y = made(HAZARD, 400)
    grid = np.array(HAZARD.grid)
    event, time = ~np.signbit(y), np.abs(y).astype(float)
    # Times on the grid alone: nobody leaves within an interval.
    time = grid[np.minimum(np.searchsorted(grid, time), 2)]
    y = np.where(event, time, -time).astype(np.float32)
    there = np.array([(time >= g).sum() for g in grid])
    died = np.array([(event & (time == g)).sum() for g in grid])
    z = np.tile(np.log(died / (there - died)), (400, 1))
    residual = family_of(HAZARD).residual(z, y.astype(float))
    np.testing.assert_allclose(residual.sum(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(outcomes.foretold(HAZARD, z)[0], np.cumprod(1 - died / there), atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.integers(0, 10**6))
def test_concordance_is_harrells(rows: int, seed: int) -> None:
    z, y = made(ONE, rows, seed)
    z = np.round(z, 1)  # equal risks
    got = outcomes.concordance(ONE, z, y, np.array([0, rows]))[0]
    time, event, risk = np.abs(y), ~np.signbit(y), z[:, 0]
    first = event[:, None] & ((time[:, None] < time) | ((time[:, None] == time) & ~event))
    good = (risk[:, None] > risk) + 0.5 * (risk[:, None] == risk)
    want = good[first].mean() if first.any() else np.nan
    assert got == pytest.approx(want, nan_ok=True)


def test_concordance_agrees_with_lifelines() -> None:
    utils = pytest.importorskip("lifelines.utils")
    rng = np.random.default_rng(5)
    time, event, risk = rng.exponential(5, 300), rng.random(300) < 0.5, rng.normal(size=300)
    y = np.where(event, time, -time).astype(np.float32)
    got = outcomes.concordance(ONE, risk, y, np.array([0, 300]))[0]
    assert got == pytest.approx(utils.concordance_index(np.abs(y), -risk, event), abs=1e-6)


def test_classes_agree_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    z, y = made(SOFTMAX, 200)
    chances = outcomes.foretold(SOFTMAX, z)
    got = outcomes.concordance(SOFTMAX, z, y, np.array([0, 200]))[0]
    assert got == pytest.approx(metrics.roc_auc_score(y, chances, multi_class="ovr"), abs=1e-6)
    loss = outcomes.row_losses(SOFTMAX, z, y)
    assert loss.mean() == pytest.approx(metrics.log_loss(y, chances), abs=1e-6)


def test_squares_agree_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    z, y = made(SQUARED, 100)
    loss = outcomes.row_losses(SQUARED, z, y)
    assert 2 * loss.mean() == pytest.approx(metrics.mean_squared_error(y, z[:, 0]), abs=1e-6)


def test_a_class_that_a_group_lacks_is_left_out_of_its_mean() -> None:
    z, y = made(SOFTMAX, 80)
    y[y == 2] = 0
    got = outcomes.concordance(SOFTMAX, z, y, np.array([0, 80]))[0]
    chances = outcomes.foretold(SOFTMAX, z)
    from sklearn.metrics import roc_auc_score

    assert got == pytest.approx(np.mean([roc_auc_score(y == k, chances[:, k]) for k in (0, 1)]), abs=1e-6)
