"""Private training: compiled steps are those of a plain loop over rows, and none of it touches the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from abps.core.errors import RequestError
from abps.models import draws
from abps.models.learners import learner_for
from abps.models.modules import ModuleLearner, mean_loss
from abps.models.training import Contrast, Objective, Training
from federations import tiny

SIZES = (60, 33, 12, 3)


def learners(training, seed=3, data=None):
    data = tiny(sizes=SIZES, width=5) if data is None else data
    return learner_for(data, training, seed), RowByRow(data, training, seed)


class RowByRow(ModuleLearner):
    """Private steps written out: one gradient after the other is cut and added."""

    def _private_slope(self, x, y, used, noise, w):
        total, clip = torch.zeros_like(w), self.training.clip
        for r in used:
            loss = mean_loss(self.data.outcome, self._model.at(w)(x[r : r + 1]), y[r : r + 1])
            one = self._model.gradient(loss)
            total += one * min(1.0, clip / max(float(one.norm()), 1e-30))
        return (total + self.training.noise_multiplier * clip * noise) / (self.training.sampling * len(y))


def weights(learner, seed=1):
    rng = np.random.default_rng(seed)
    size = (learner.data.size, learner.layout.size)
    return 0.5 * rng.normal(size=size).astype(np.float32)


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("noise", [0.0, 1.3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_are_those_of_a_loop_over_rows(model, noise, optimizer):
    kind = "newton" if model == "linear" and optimizer == "sgd" else optimizer
    training = Training.of(
        model,
        optimizer=kind,
        epochs=2,
        hidden=(7, 4),
        clip=0.3,
        noise_multiplier=noise,
        sampling=0.4,
        lr=0.05,
    )
    fast, plain = learners(training)
    w = weights(fast)
    anchor = weights(fast, 2)
    for t, objective, columns in (
        (4, Objective(), slice(None)),
        (5, Objective(strength=0.3, anchor=anchor, shift=0.1 * anchor[0]), slice(0, fast.layout.size - 2)),
    ):
        seen = fast.train(w, t, objective, columns)
        np.testing.assert_allclose(seen, plain.train(w, t, objective, columns), rtol=3e-4, atol=3e-5)
        assert not np.allclose(seen, w)
        kept = slice(columns.stop or fast.layout.size, None)
        np.testing.assert_allclose(seen[:, kept], w[:, kept])


def test_a_long_clip_without_noise_is_plain_gradient_descent():
    shared = {"optimizer": "sgd", "epochs": 3, "hidden": (7,), "dropout": 0.0, "lr": 0.05, "batch": 1000}
    plain, _ = learners(Training(**shared))
    cut, _ = learners(Training(**shared, clip=1e9))
    w = weights(plain)
    np.testing.assert_allclose(cut.train(w, 1), plain.train(w, 1), rtol=2e-5, atol=2e-6)


def test_one_row_moves_a_sum_by_at_most_the_clip():
    training = Training.of("linear", optimizer="sgd", epochs=1, clip=0.5, lr=1.0, weight_decay=0.0)
    data = tiny(sizes=SIZES, width=5)
    fast, _ = learners(training, data=data)
    w = weights(fast)
    huge = data.train.x.copy()
    huge[7] = 1e4  # one patient that pulls without limit
    other, _ = learners(training, data=replace(data, train=replace(data.train, x=huge)))
    moved = np.linalg.norm((fast.train(w, 1) - other.train(w, 1))[0]) * SIZES[0]
    assert 0 < moved <= 2 * 0.5 + 1e-4  # out and in again: a row removed and one added


def test_sampling_has_its_chance_and_noise_its_spread():
    ids = np.arange(1, 40, dtype=np.uint64)
    used = draws.private_rows(5, ids, 2, 50, 100, 0.2)
    assert abs(used.mean() - 0.2) < 3 * np.sqrt(0.16 / used.size)
    assert not np.array_equal(used, draws.private_rows(6, ids, 2, 50, 100, 0.2))
    base = Training.of("linear", optimizer="sgd", epochs=1, clip=0.5, lr=1.0, weight_decay=0.0)
    data = tiny(sizes=(50,) * 30, width=20)
    quiet, _ = learners(base, data=data)
    loud, _ = learners(replace(base, noise_multiplier=4.0), data=data)
    w = weights(quiet)
    noise = (loud.train(w, 1) - quiet.train(w, 1)) * 50
    assert float(noise.std()) == pytest.approx(4.0 * 0.5, rel=0.1)
    secret = learner_for(data, loud.training, 3, secret=99)
    assert not np.array_equal(secret.train(w, 2), loud.train(w, 2))
    with pytest.raises(RequestError, match="more than once"):
        loud.train(w, 2)


def test_a_center_draws_the_same_alone_as_among_others():
    training = Training.of("linear", clip=0.5, noise_multiplier=1.0, sampling=0.5, epochs=3)
    data = tiny(sizes=SIZES, width=5)
    together, _ = learners(training, data=data)
    w = weights(together)
    seen = together.train(w, 2)
    for i in range(data.size):
        alone, _ = learners(training, data=data.only(i))
        np.testing.assert_allclose(alone.train(w[i : i + 1], 2)[0], seen[i], rtol=0, atol=0)


def test_what_has_no_bound_is_refused():
    fast, plain = learners(Training.of("linear", clip=0.5))
    contrast = Objective(contrast=Contrast(fast.start, fast.start, 1.0, 0.5))
    for learner in (fast, plain):
        with pytest.raises(RequestError, match="single rows"):
            learner.train(weights(fast), 1, contrast)
    with pytest.raises(RequestError, match="set clip"):
        Training(noise_multiplier=1.0)
