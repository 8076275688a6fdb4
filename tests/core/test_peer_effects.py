"""Beliefs in effects: against a plain posterior, against made-up truths, and what errors mean."""

from __future__ import annotations

import numpy as np
import pytest

from abps.core.peer_effects import Sizes, believed
from abps.core.usefulness import Experience


def seen_by(center, peer, when, value, se) -> Experience:
    whole = [np.asarray(each, dtype=np.int64) for each in (center, peer, when)]
    return Experience(*whole, np.asarray(value, dtype=np.float64), np.asarray(se, dtype=np.float64))


def test_one_measurement_is_the_normal_posterior():
    expect = Sizes()
    rows, value, se = 101, 0.03, 0.02
    found = believed(seen_by([0], [3], [9], [value], [se]), np.array([rows]), np.array([8]), expect)
    between = se * 10.0
    prior = expect.level**2 + expect.own**2 + expect.single**2
    noise = expect.wider / (rows - 1)
    keep = prior / (prior + noise)
    assert found.mean[0] == pytest.approx(
        (expect.chosen + keep * (value / between - expect.chosen)) * between
    )
    assert found.sd[0] == pytest.approx(np.sqrt(prior * (1 - keep)) * between)
    assert 0.5 < found.helps()[0] < 1.0


def test_prefixes_are_what_was_known_then():
    rng = np.random.default_rng(0)
    o = 30
    whole = seen_by(
        np.zeros(o),
        rng.integers(1, 6, o),
        np.arange(1, o + 1),
        rng.normal(0, 0.02, o),
        rng.uniform(0.01, 0.03, o),
    )
    found = believed(whole, np.array([60]), np.array([8]))
    for k in (1, 7, 20):
        part = Experience(*(getattr(whole, name)[:k] for name in ("center", "peer", "round", "value", "se")))
        then = believed(part, np.array([60]), np.array([8]))
        assert found.mean[:k] == pytest.approx(then.mean) and found.sd[:k] == pytest.approx(then.sd)


def test_intervals_hold_truths_that_are_as_expected():
    """Truths drawn from what is expected, measured on rows that stay the same: 95 % of 95 % intervals."""
    rng = np.random.default_rng(1)
    expect = Sizes()
    centers, meetings, rows = 150, 20, 50
    when = np.tile(np.arange(9, 9 + meetings), centers)
    center = np.repeat(np.arange(centers), meetings)
    peer = 200 + rng.integers(0, 8, len(center))
    apart = np.abs(np.subtract.outer(np.arange(meetings), np.arange(meetings)))
    level = np.linalg.cholesky(expect.level**2 * np.exp(-apart / expect.memory) + 1e-12 * np.eye(meetings))
    special = rng.normal(0, expect.own, (centers, 300))
    truth = expect.chosen + (rng.standard_normal((centers, meetings)) @ level.T).ravel()
    truth += special[center, peer] + rng.normal(0, expect.single, len(center))
    noise = np.sqrt(expect.wider / (rows - 1))
    lasting = np.repeat(rng.standard_normal(centers), meetings)
    error = noise * (
        np.sqrt(expect.lasting) * lasting + np.sqrt(1 - expect.lasting) * rng.standard_normal(len(center))
    )
    between = 10.0 ** rng.uniform(-3, -1, len(center))  # models agree more and more
    found = believed(
        seen_by(center, peer, when, (truth + error) * between, between / np.sqrt(rows - 1)),
        np.full(centers, rows),
        np.full(centers, 8),
    )
    inside = np.abs(truth * between - found.mean) <= 1.96 * found.sd
    assert 0.93 < inside.mean() < 0.97
    helps = found.helps()
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        here = (helps >= low) & (helps < low + 0.2)
        if here.sum() > 100:
            assert abs(helps[here].mean() - (truth[here] > 0).mean()) < 0.07


def test_the_last_meeting_of_every_pair():
    whole = seen_by([0, 1, 0, 0], [1, 0, 2, 1], [1, 1, 2, 3], [0.1, 0.2, 0.3, 0.4], [0.1] * 4)
    found = believed(whole, np.array([30, 30]), np.array([0, 0]))
    last = found.last()
    assert [(int(found.center[k]), int(found.peer[k]), int(found.round[k])) for k in last] == [
        (0, 1, 3), (0, 2, 2), (1, 0, 1),
    ]  # fmt: skip
    nothing = believed(seen_by([], [], [], [], []), np.array([30]), np.array([0]))
    assert len(nothing.last()) == 0 and len(nothing.mean) == 0
