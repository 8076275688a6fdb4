"""Models that point another way are not mixed, and a board leaves out who sends them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from abps.methods import rollcall
from abps.methods.peers import Heard
from abps.methods.suspicion import cosines, let_in


def test_cosines_of_ways():
    own = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(
        cosines(own, np.array([[-2.0, 0.0], [1.0, 0.0], [5.0, 1.0]])), [-1, 0.5**0.5, 1]
    )


def test_what_points_another_way_is_not_let_in():
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.normal(size=200).astype(np.float32))
    way = rng.normal(size=200)
    honest = np.stack([way + rng.normal(size=200) for _ in range(4)]).astype(np.float32)
    models = start + torch.from_numpy(honest)
    arrived = models.clone()
    arrived[2] = 2 * start - models[2]  # turned
    arrived[3] = start + torch.from_numpy(rng.normal(size=200).astype(np.float32))  # random
    heard = Heard(np.array([0, 0, 1, 1]), np.array([1, 2, 3, 0]), arrived, np.zeros(4))
    seen, to, by = let_in(models, heard, start, 0.2)
    assert seen.by.tolist() == [1, 0] and to.tolist() == [0, 1] and by.tolist() == [2, 3]
    for times, let in ((3.0, True), (10.0, False)):  # on the same way, and much farther
        long = replace(heard, arrived=start + times * (models - start))
        assert (1 in let_in(models, long, start, 0.2)[0].by) == let
    for times, let in ((0.3, True), (0.0, False)):  # a model that has hardly left the start makes one forget
        short = replace(heard, arrived=start + times * (models - start))
        assert (1 in let_in(models, short, start, 0.2, settled=True)[0].by) == let
        assert 1 in let_in(models, short, start, 0.2)[0].by
    everything, _, none = let_in(models, heard, start, -1.0)
    assert len(everything.by) == 4 and not len(none)


def test_a_board_leaves_out_turned_and_random_models():
    rng = np.random.default_rng(1)
    way = rng.normal(size=120)
    weights = way + 0.7 * rng.normal(size=(20, 120))
    clean = rollcall.ordinary(weights, np.ones(20, dtype=bool))
    assert clean.all()
    forgetting = weights.copy()
    forgetting[7] *= 0.02
    assert np.flatnonzero(~rollcall.ordinary(forgetting, np.ones(20, dtype=bool))).tolist() == [7]
    weights[:2] *= -1.0
    weights[2:4] = np.linalg.norm(way) / np.sqrt(120) * rng.normal(size=(2, 120))
    assert rollcall.ordinary(weights, np.ones(20, dtype=bool)).tolist() == [False] * 4 + [True] * 16
