"""pFedGraph: closed forms, a round by hand, two groups that come apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from abps import simulate
from abps.core.errors import RequestError
from abps.engine.rounds import RunState
from abps.lab.rivals.pfedgraph import PFedGraph, PFedGraphPeers, collaboration, likeness, pull
from abps.methods.base import Wire
from abps.methods.fedavg import FedAvg
from abps.wire.codecs import codec
from abps.wire.frames import frame_size

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


def test_the_pull_is_the_slope_of_the_cosine() -> None:
    rng = np.random.default_rng(1)
    models = rng.normal(size=(3, 6))
    towards = rng.normal(size=(3, 4))
    w = torch.tensor(models, requires_grad=True)
    (-0.3 * (w[:, :4] * torch.tensor(towards)).sum(1) / w[:, :4].norm(dim=1)).sum().backward()
    np.testing.assert_allclose(pull(models, towards, 0.3), w.grad)


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
    plain, pulled = (simulate(tiny, "pfedgraph", 11, 2, {"lam": lam}) for lam in (0.0, 0.01))
    frame = frame_size(codec("fp32"), plain.models.shape[1])
    assert (plain.bytes.edge, plain.bytes.directed, plain.bytes.control) == (12 * frame, 24 * frame, 0)
    assert (pulled.bytes.edge, pulled.bytes.directed) == (18 * frame, 36 * frame)
    assert not np.array_equal(plain.models, pulled.models)


def test_a_private_head_is_neither_sent_nor_compared(context, one_step) -> None:
    method = PFedGraph(training=one_step, wire=Wire(private_layers=1))
    place = context(one_step)
    shared = method.wire.shared(place)
    course, _ = RunState.start(method, place).round(1)
    trained = place.learner.train(place.common_start(), 1)
    np.testing.assert_allclose(course.state.models[:, shared:], trained[:, shared:])
    assert not np.allclose(course.state.models[:, :shared], trained[:, :shared])


def test_one_partner_without_a_server(context, one_step) -> None:
    method = PFedGraphPeers(training=one_step, entries=4096)
    place = context(one_step)
    _, outcome = RunState.start(method, place).round(1)
    assert outcome.traffic.edge == 3 * method.wire.payload(place)
    assert outcome.traffic.control >= 6 * 5 * (16 + 4 * 4096)
    # A long projection keeps cosines.
    rng = np.random.default_rng(2)
    common, own = rng.normal(size=place.learner.layout.size), rng.normal(size=(6, place.learner.layout.size))
    moved = (np.linspace(0, 1.2, 6)[:, None] * common + own).astype(np.float32)
    exact, found = likeness(moved), likeness(method.projected(place, place.learner.start + moved))
    np.testing.assert_allclose(found, exact, atol=0.06)
    assert exact.min() < 0.1 and 0.4 < exact[4, 5] < 0.8
    assert "in every round" in method.between_sites()


def test_bad_settings() -> None:
    for wrong in ({"alpha": 0.0}, {"lam": -1.0}):
        with pytest.raises(RequestError, match="choose"):
            replace(PFedGraph(), **wrong)
    with pytest.raises(RequestError, match="at least 1"):
        PFedGraphPeers(peers=0)
