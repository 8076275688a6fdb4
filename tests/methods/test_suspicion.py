"""Models that point another way are not mixed, and a board leaves out who sends them."""

from __future__ import annotations

import numpy as np
import torch

from abps.methods import rollcall
from abps.methods.peers import Heard
from abps.methods.suspicion import cosines, let_in, of_trusted
from abps.stats.kinship import Kin


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
    everything, _, none = let_in(models, heard, start, -1.0)
    assert len(everything.by) == 4 and not len(none)


def test_a_board_leaves_out_turned_and_random_models():
    rng = np.random.default_rng(1)
    way = rng.normal(size=120)
    weights = way + 0.7 * rng.normal(size=(20, 120))
    clean = rollcall.ordinary(weights, np.ones(20, dtype=bool))
    assert clean.all()
    weights[:2] *= -1.0
    weights[2:4] = np.linalg.norm(way) / np.sqrt(120) * rng.normal(size=(2, 120))
    assert rollcall.ordinary(weights, np.ones(20, dtype=bool)).tolist() == [False] * 4 + [True] * 16


def test_kin_are_those_that_can_be_trusted():
    trusted = np.array([True, False, True, True])
    assert of_trusted(None, np.ones(4, dtype=bool)) is None
    everybody = of_trusted(None, trusted)
    assert [everybody.of(i).tolist() for i in range(4)] == [[2, 3], [0, 2, 3], [0, 3], [0, 2]]
    kin = Kin(
        np.array([0, 2, 2, 2, 3]), np.array([1, 3, 0]), np.array([False, True, True, False]), np.zeros(4)
    )
    some = of_trusted(kin, trusted)
    assert [some.of(i).tolist() for i in range(4)] == [[3], [0, 2, 3], [0, 3], [0]]
    assert not some.everybody.any()
