"""pFedGraph: closed forms, a round by hand, two groups that come apart."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from abps import simulate
from abps.core.errors import RequestError
from abps.engine.rounds import RunState
from abps.lab.rivals.pfedgraph import PFedGraph, collaboration, likeness, nearest_shares
from abps.methods.base import Wire
from abps.methods.fedavg import FedAvg
from abps.wire.codecs import codec, frame_size

SIZES = np.array([40.0, 60.0, 100.0, 10.0])


def test_far_from_the_cosines_shares_are_those_of_size() -> None:
    rng = np.random.default_rng(0)
    alike = rng.uniform(-1, 1, (4, 4))
    np.testing.assert_allclose(collaboration(alike, SIZES, 1e9), np.tile(SIZES / 210, (4, 1)), atol=1e-8)
    np.testing.assert_allclose(collaboration(np.ones((4, 4)), SIZES, 0.8), np.tile(SIZES / 210, (4, 1)))


def test_orthogonal_groups_share_nothing() -> None:
    moved = np.array([[1.0, 0, 0.1], [1, 0, -0.1], [0, 1, 0.1], [0, 1, -0.1]], dtype=np.float32)
    alike = likeness(moved)
    assert alike[0, 1] == 1.0 and alike[2, 3] == 1.0  # above 0.9 is the same
    share = collaboration(alike, np.ones(4), 0.5)
    assert (share[:2, 2:] == 0).all() and (share[2:, :2] == 0).all()
    np.testing.assert_allclose(share.sum(1), 1)


def test_shares_are_what_a_solver_finds() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(12, 7)) * rng.choice([0.1, 1.0, 5.0], size=(12, 1))
    for row, found in zip(rows, nearest_shares(rows)):
        solved = minimize(
            lambda g, row=row: float(((g - row) ** 2).sum()),
            np.full(7, 1 / 7),
            jac=lambda g, row=row: 2 * (g - row),
            bounds=[(0, 1)] * 7,
            constraints={"type": "eq", "fun": lambda g: g.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(found, solved.x, atol=1e-6)


def test_two_rounds_by_hand(context, play, one_step) -> None:
    """Plain loops over centers in NumPy, training aside."""
    method = PFedGraph(training=one_step, alpha=0.3)
    place = context(one_step)
    states = play(method, place, 2)
    start = place.learner.start.astype(np.float64)
    sizes = place.sizes().astype(float)
    models = states[0].models
    for t in (1, 2):
        trained = place.learner.train(models, t).astype(np.float64)
        moved = trained - start
        mixed = np.zeros_like(trained)
        for i in range(6):
            target = sizes / sizes.sum()
            for j in range(6):
                cosine = moved[i] @ moved[j] / np.linalg.norm(moved[i]) / np.linalg.norm(moved[j])
                target[j] += (1.0 if cosine > 0.9 else cosine) / (2 * 0.3)
            low, high = target.min() - 1, target.max()
            for _ in range(200):  # the cut by bisection
                cut = (low + high) / 2
                low, high = (cut, high) if np.maximum(target - cut, 0).sum() > 1 else (low, cut)
            for j in range(6):
                mixed[i] += max(target[j] - cut, 0) * trained[j]
        models = mixed.astype(np.float32)
        np.testing.assert_allclose(states[t].models, models, atol=1e-5, rtol=1e-4)


def test_without_cosines_it_is_fedavg(context, play, one_step) -> None:
    found = play(PFedGraph(training=one_step, alpha=1e9), context(one_step), 3)[-1]
    wanted = play(FedAvg(training=one_step), context(one_step), 3)[-1]
    np.testing.assert_allclose(found.models, wanted.models, atol=1e-5, rtol=1e-5)


def test_bytes_up_and_down(tiny) -> None:
    plain = simulate(tiny, "pfedgraph", 11, 2)
    frame = frame_size(codec("fp32"), plain.models.shape[1])
    assert (plain.bytes.edge, plain.bytes.directed, plain.bytes.control) == (12 * frame, 24 * frame, 0)


def test_a_private_head_is_neither_sent_nor_compared(context, one_step) -> None:
    method = PFedGraph(training=one_step, wire=Wire(private_layers=1))
    place = context(one_step)
    shared = method.wire.shared(place)
    course, _ = RunState.start(method, place).round(1)
    trained = place.learner.train(place.common_start(), 1)
    np.testing.assert_allclose(course.state.models[:, shared:], trained[:, shared:])
    assert not np.allclose(course.state.models[:, :shared], trained[:, :shared])


def test_bad_settings() -> None:
    with pytest.raises(RequestError, match="choose"):
        PFedGraph(alpha=0.0)
