"""Beliefs in effects: against a plain posterior, against made-up truths, and what errors mean."""

from __future__ import annotations

import numpy as np
import pytest

from abps.core.peer_effects import Sizes, believed, mean_sizes, pooled
from abps.core.usefulness import Experience


def seen_by(center, peer, when, value, se) -> Experience:
    whole = [np.asarray(each, dtype=np.int64) for each in (center, peer, when)]
    return Experience(*whole, np.asarray(value, dtype=np.float64), np.asarray(se, dtype=np.float64))


def test_one_measurement_is_the_normal_posterior():
    expect = Sizes()
    rows, value, se, told = 101, 0.03, 0.02, 0.1
    stretches = np.array([[8.0, -1.0, 9.0], [20.0, told, 0.04]])
    found = believed(seen_by([0], [3], [9], [value], [se]), np.array([rows]), stretches, expect)
    between = se * 10.0
    prior = 0.04 + expect.own**2 + expect.single**2
    noise = expect.wider / (rows - 1)
    keep = prior / (prior + noise)
    assert found.mean[0] == pytest.approx((told + keep * (value / between - told)) * between)
    assert found.sd[0] == pytest.approx(np.sqrt(prior * (1 - keep)) * between)
    assert 0.5 < found.helps()[0] < 1.0
    # Before all were asked, nothing is expected, give or take.
    before = believed(seen_by([0], [3], [21], [value], [se]), np.array([rows]), stretches, expect)
    prior = expect.level**2 + expect.own**2 + expect.single**2
    assert before.mean[0] == pytest.approx(prior / (prior + noise) * value)


def test_stretches_and_centers_are_apart():
    rng = np.random.default_rng(0)
    o = 60
    whole = seen_by(
        np.repeat([0, 1], o // 2),
        rng.integers(2, 6, o),
        np.tile(np.arange(1, o // 2 + 1), 2),
        rng.normal(0, 0.02, o),
        rng.uniform(0.01, 0.03, o),
    )
    rows, stretches = np.array([60, 30]), np.array([[8.0, 0.02, 0.001], [20.0, -0.1, 0.0]])
    found = believed(whole, rows, stretches)
    names = ("center", "peer", "round", "value", "se")
    for center in (0, 1):
        for low, high in ((0, 8), (8, 20), (20, 99)):
            mine = (whole.center == center) & (whole.round > low) & (whole.round <= high)
            alone = believed(Experience(*(getattr(whole, name)[mine] for name in names)), rows, stretches)
            assert found.mean[mine] == pytest.approx(alone.mean) and found.sd[mine] == pytest.approx(alone.sd)


def made_up(expect, mean, between, centers=150, meetings=20, rows=50, seed=1):
    """Truths drawn from what is expected, and their measurements on rows that stay the same."""
    rng = np.random.default_rng(seed)
    center = np.repeat(np.arange(centers), meetings)
    peer = 200 + rng.integers(0, 8, len(center))
    special = rng.normal(0, expect.own, (centers, 300))
    truth = mean + np.repeat(rng.normal(0, between, centers), meetings)
    truth += special[center, peer] + rng.normal(0, expect.single, len(center))
    noise = np.sqrt(expect.wider / (rows - 1))
    lasting = np.repeat(rng.standard_normal(centers), meetings)
    error = noise * (
        np.sqrt(expect.lasting) * lasting + np.sqrt(1 - expect.lasting) * rng.standard_normal(len(center))
    )
    move = 10.0 ** rng.uniform(-3, -1, len(center))  # models agree more and more
    when = np.tile(np.arange(9, 9 + meetings), centers)
    seen = seen_by(center, peer, when, (truth + error) * move, move / np.sqrt(rows - 1))
    return seen, truth, move, np.full(centers, rows)


@pytest.mark.parametrize(("mean", "between"), [(0.0, 0.1), (-0.15, 0.05), (0.1, 0.2)])
def test_intervals_hold_truths_that_are_as_expected(mean, between):
    """95 % of 95 % intervals, and P(helps) is as often right as it says; what all measured tells the rest."""
    expect = Sizes()
    seen, truth, move, rows = made_up(expect, mean, between)
    told = pooled(mean_sizes(seen, rows, 8))
    assert told[0] == pytest.approx(mean, abs=0.06)
    found = believed(seen, rows, np.array([[28.0, *told]]))
    inside = np.abs(truth * move - found.mean) <= 1.96 * found.sd
    assert 0.9 < inside.mean() < 0.99
    helps = found.helps()
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        here = (helps >= low) & (helps < low + 0.2)
        if here.sum() > 100:
            assert abs(helps[here].mean() - (truth[here] > 0).mean()) < 0.12


def test_the_spread_between_centers_is_found_and_liars_do_not_make_it():
    seen, _, _, rows = made_up(Sizes(wider=1e-3), 0.1, 0.3, centers=400)
    told = mean_sizes(seen, rows, 8, Sizes(wider=1e-3))
    mean, spread = pooled(told)
    assert mean == pytest.approx(0.1, abs=0.05) and np.sqrt(spread) == pytest.approx(0.3, rel=0.1)
    told[:20, 0] = 1e6
    lied = pooled(told)
    assert lied[0] == pytest.approx(mean, abs=0.1) and np.sqrt(lied[1]) < 0.5
    assert pooled(np.array([[np.nan, np.nan], [0.0, 0.0]])) == (0.0, 0.0)
    # Only what was measured after that round is told.
    assert not mean_sizes(seen, rows, 28).any()


def test_the_last_meeting_of_every_pair():
    whole = seen_by([0, 1, 0, 0], [1, 0, 2, 1], [1, 1, 2, 3], [0.1, 0.2, 0.3, 0.4], [0.1] * 4)
    found = believed(whole, np.array([30, 30]), np.zeros((0, 3)))
    last = found.last()
    assert [(int(found.center[k]), int(found.peer[k]), int(found.round[k])) for k in last] == [
        (0, 1, 3), (0, 2, 2), (1, 0, 1),
    ]  # fmt: skip
    nothing = believed(seen_by([], [], [], [], []), np.array([30]), np.zeros((0, 3)))
    assert len(nothing.last()) == 0 and len(nothing.mean) == 0
