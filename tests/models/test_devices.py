"""The general path on a device: the CPU's numbers, and every tensor where it must be.

No GPU is needed: ``pretend_device`` refuses what a GPU would refuse. Where there is one, it is used as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import abps.models.batched
from abps.core import streams
from abps.core.errors import RequestError
from abps.data.prepare import Prepared
from abps.models import devices, dropout
from abps.models.batched import StackedLearner
from abps.models.contrast import Contrast
from abps.models.devices import CPU, device_name, find_device
from abps.models.dropout import random_units
from abps.models.gaussian import Gaussian
from abps.models.loop import LoopLearner
from abps.models.mixtures import mixtures
from abps.models.models import MLP
from abps.models.native import network as compiled
from abps.models.optimizers import Adam
from abps.models.training import Learner, Lesson, Objective, Training
from abps.models.workspace import Workspace
from federations import tiny
from pretend_device import THERE, MixedDevices, PretendDevice

SEED = 5
SIZES = (70, 40, 20, 3)


class Own(nn.Module):
    """A user's own network, through the general kernel: LayerNorm, tanh, dropout on the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 9), nn.Tanh())
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(9, 1)

    def representation(self, x: Tensor) -> Tensor:
        """(rows, 9)."""
        return self.body(self.norm(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 1)."""
        return self.out(self.drop(self.representation(x)))


FACTORIES = {
    "paper": lambda width: MLP(width, (20, 10), 0.2),
    "own": Own,
    "no dropout": lambda w: MLP(w, (8,), 0.0),
}
every_model = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES.keys())


@dataclass(frozen=True)
class Asked:
    """Answers of a learner to everything a method may ask, by name."""

    answers: dict[str, Tensor]

    def compare(self, other: Asked, check: Callable[[Tensor, Tensor], None]) -> None:
        """Check every answer against the other's of the same name."""
        assert self.answers.keys() == other.answers.keys()
        for name, answer in self.answers.items():
            assert answer.device == CPU, name
            check(answer, other.answers[name])


def ask(learner: Learner, data: Prepared) -> Asked:
    """Ask a learner for everything. SGD: it does not divide by a gradient that may be rounding alone."""
    n, size = data.size, learner.layout.size
    rng = torch.Generator().manual_seed(3)
    w = learner.start + 0.1 * torch.randn(n, size, generator=rng)
    objective = Objective(
        strength=torch.linspace(0.0, 1.0, n),
        anchor=learner.start + 0.1,
        shift=torch.linspace(-0.1, 0.1, n * size).view(n, -1),
    )

    both = torch.cat([w, torch.full_like(w, -3.0)], dim=1)
    lesson = Lesson(data.validation, torch.linspace(0, 0.5, n))
    prior = Gaussian(learner.start, w.abs() + 0.1, torch.linspace(0.01, 0.02, n))
    cut = learner.layout.shared(1)
    sent = w[:, :cut].flip(0).contiguous()
    parts = mixtures(np.array([0, 2, 2]), np.array([1, 0, 1]), np.array([1, 0, 2]), np.ones(n, np.float32))
    models, settled = learner.settle(w, sent, parts, data.test)
    return Asked(
        {
            "plain": learner.train(w, 1),
            "begun": learner.begin(w, 2)(),
            "from one start": learner.train(learner.start.expand(n, -1), 1),
            "terms": learner.train(w, 1, objective),
            "one anchor each": learner.train(w, 1, Objective(0.5, w.flip(0))),
            "columns": learner.train(w, 1, columns=slice(cut, None), epochs=3),
            "contrast": learner.train(w, 1, Objective(contrast=Contrast(learner.start, w.flip(0), 0.5, 0.5))),
            "lesson": learner.train(w, 1, Objective(lesson=lesson)),
            "gaussian": learner.train(both, 1, Objective(gaussian=prior)),
            "logits": torch.from_numpy(learner.logits(w, data.test).values),
            "logits of owners": torch.from_numpy(learner.logits(w[:2], data.test, np.array([3, 0])).values),
            "logits of none": torch.from_numpy(learner.logits(w[:0], data.test).values),
            "mixtures": torch.from_numpy(learner.mixture_logits(w, sent, parts, data.test).values),
            "models": models,
            "settled": torch.from_numpy(settled.values),
            "gradient": learner.gradient(w, data.train),
            "representation": learner.representation(w[:2], torch.from_numpy(data.test.x[:6]).view(2, 3, -1)),
        }
    )


TRAINING = Training(batch=32, optimizer="sgd", lr=0.05)


def alike(a: Tensor, b: Tensor) -> None:
    """The same but for rounding."""
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def equal(a: Tensor, b: Tensor) -> None:
    """The same bits."""
    assert torch.equal(a, b)


@every_model
def test_the_general_path_as_a_device_takes_it_equals_the_loop_and_the_engine(factory) -> None:
    data = tiny(SIZES)
    given = ask(StackedLearner(data, TRAINING, factory, SEED, CPU), data)
    given.compare(ask(LoopLearner(data, TRAINING, factory, SEED), data), alike)
    given.compare(ask(StackedLearner(data, TRAINING, factory, SEED), data), alike)


@every_model
def test_every_tensor_is_where_it_must_be(factory) -> None:
    data = tiny(SIZES)
    with PretendDevice():
        learner = StackedLearner(data, TRAINING, factory, SEED, THERE)
    with PretendDevice() as device:
        found = ask(learner, data)
    # The same batches of the same centers: not a bit differs.
    found.compare(ask(StackedLearner(data, TRAINING, factory, SEED, CPU), data), equal)
    # And it was the device that did the work.
    products = {"bmm", "baddbmm", "mm", "addmm"}
    assert products & device.there.keys() and not products & device.here.keys()


@every_model
def test_three_rounds_of_adam_on_a_device_equal_the_loop(factory) -> None:
    data, training = tiny(SIZES), Training(batch=32)
    loop = LoopLearner(data, training, factory, SEED)
    want = got = loop.start.expand(data.size, -1).clone()
    with PretendDevice():
        learner = StackedLearner(data, training, factory, SEED, THERE)
        for t in (1, 2, 3):
            got = learner.train(got, t)
    for t in (1, 2, 3):
        want = loop.train(want, t)
    assert (got - want).abs().max() < 1e-5


def _steps_left(monkeypatch) -> None:
    """Adam's count of steps."""
    init = Adam.__init__

    def careless(self, *arguments) -> None:
        init(self, *arguments)
        self._steps = torch.zeros(())

    monkeypatch.setattr(Adam, "__init__", careless)


def _buffers_left(monkeypatch) -> None:
    """All buffers."""
    monkeypatch.setattr(abps.models.batched, "Workspace", lambda device: Workspace())


def _terms_left(monkeypatch) -> None:
    """What an objective adds."""
    terms = Objective.terms
    monkeypatch.setattr(Objective, "terms", lambda self, members, device: terms(self, members, CPU))


def _keys_left(monkeypatch) -> None:
    """The keys of dropout."""
    words = dropout._words
    monkeypatch.setattr(dropout, "_words", lambda keys, space: words(keys, Workspace()))


@pytest.mark.parametrize("plant", [_steps_left, _buffers_left, _terms_left, _keys_left])
def test_a_tensor_left_on_the_cpu_is_found(plant, monkeypatch) -> None:
    data, training = tiny(SIZES), Training(batch=32, hidden=(8,))
    plant(monkeypatch)
    with PretendDevice():
        learner = StackedLearner(data, training, training.factory, SEED, THERE)
        w = learner.start.expand(data.size, -1)
        with pytest.raises(MixedDevices):
            learner.train(w, 1, Objective(0.1, w))


def test_a_lesson_that_stays_on_the_cpu_is_found(monkeypatch) -> None:
    data = tiny(SIZES)
    monkeypatch.setattr(
        Lesson, "blend", lambda self, gradient, taught, members: gradient * self.share[members, None]
    )
    with PretendDevice():
        learner = StackedLearner(data, TRAINING, TRAINING.factory, SEED, THERE)
        w = learner.start.expand(data.size, -1)
        with pytest.raises(MixedDevices):
            learner.train(w, 1, Objective(lesson=Lesson(data.validation, torch.ones(data.size))))


@pytest.mark.parametrize("rows,units", [(1, 3), (16, 5), (37, 64)])
def test_units_are_dropped_by_the_same_bits_everywhere(rows, units) -> None:
    ids = streams.center_ids(["a", "b", "c"])
    here = random_units(SEED, ids, 4, 7, 1, rows, units, Workspace()).contiguous().view(torch.int32)
    with PretendDevice():
        space = Workspace(THERE)
        there = random_units(SEED, ids, 4, 7, 1, rows, units, space).contiguous().view(torch.int32).cpu()
    assert torch.equal(here, there)
    keys = streams.bits(SEED, "dropout", 4, ids, 7 << 8 | 1)
    blocks = -(-rows // 16)
    for mine, key in zip(here, keys):
        drawn = np.empty(16 * blocks * units, dtype=np.uint32)
        compiled._draw(key, streams.places(8 * blocks * units), drawn, rows, units)
        np.testing.assert_array_equal(mine.numpy().view(np.uint32).ravel(), drawn[: rows * units])


def test_a_device_takes_as_many_centers_at_once_as_fit(monkeypatch) -> None:
    data = tiny((64,) * 70, width=5)
    training = Training(hidden=(6,))
    w = StackedLearner(data, training, training.factory, SEED).start.expand(70, -1)
    whole = StackedLearner(data, training, training.factory, SEED, CPU)
    assert [len(chunk.members) for chunk in whole._chunks] == [70]
    assert len(StackedLearner(data, training, training.factory, SEED)._chunks) == 3
    monkeypatch.setattr(abps.models.batched, "DEVICE_ROOM", 40_000)
    cut = StackedLearner(data, training, training.factory, SEED, CPU)
    assert len(cut._chunks) > 5
    alike(whole.train(w, 1), cut.train(w, 1))
    alike(whole.gradient(w, data.train), cut.gradient(w, data.train))
    np.testing.assert_allclose(whole.logits(w, data.test).values, cut.logits(w, data.test).values, atol=1e-5)
    assert cut.on(data.only(1)).device == CPU


def test_a_device_that_is_not_there_is_told_in_a_sentence(monkeypatch) -> None:
    assert find_device("cpu") is None and device_name(None) == "cpu"
    for name in ("gpu", "meta", "cuda:x", ""):
        with pytest.raises(RequestError, match="choose cpu, cuda, cuda:1 and so on, mps, or auto"):
            find_device(name)
    monkeypatch.setattr(devices, "_count", lambda kind: {"cuda": 2, "mps": 0}[kind])
    for name in ("cuda:2", "mps"):
        with pytest.raises(
            RequestError, match=f"'{name}'.*no such device here; choose cpu or cuda:0 or cuda:1"
        ):
            find_device(name)
    monkeypatch.setattr(devices, "_count", lambda kind: 0)
    assert find_device("auto") is None
    with pytest.raises(RequestError, match=r"no such device here; choose cpu$"):
        find_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here")
@every_model
def test_on_a_real_gpu(factory) -> None:
    data = tiny(SIZES)
    device = find_device("cuda")
    found = ask(StackedLearner(data, TRAINING, factory, SEED, device), data)
    found.compare(ask(LoopLearner(data, TRAINING, factory, SEED), data), alike)
    found.compare(ask(StackedLearner(data, TRAINING, factory, SEED, device), data), equal)
    training = Training(batch=32)
    learners = [
        StackedLearner(data, training, factory, SEED, device),
        LoopLearner(data, training, factory, SEED),
    ]
    w = [learner.start.expand(data.size, -1) for learner in learners]
    for t in (1, 2, 3):
        w = [learner.train(each, t) for learner, each in zip(learners, w)]
    assert (w[0] - w[1]).abs().max() < 1e-4
