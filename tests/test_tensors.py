"""What stands for PyTorch and for compiled code in a small process does what they do."""

import numpy as np
import pytest
import torch as real
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from abps import numpy_tensors as small
from abps import tensors
from abps.data import scales
from abps.data.prepare import prepare
from abps.data.synthetic.builtin import builtin_table
from abps.data.table import federate
from abps.models.batched import StackedLearner
from abps.models.mixtures import mixtures
from abps.models.native import in_numpy, network
from abps.models.small_linear import SmallLinear
from abps.models.training import Objective, Training

SINGLES = arrays(np.float32, (3, 4), elements=some.floats(-100, 100, width=32))


def same(ours, theirs, exact=True):
    theirs = theirs.numpy()
    assert isinstance(ours, small.Tensor) and ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if exact:
        np.testing.assert_array_equal(ours.numpy(), theirs)
    else:
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-5)


@given(SINGLES, SINGLES, some.floats(0, 1))
def test_functions_are_pytorchs(a, b, share):
    x, y, u, v = small.from_numpy(a), small.from_numpy(b), real.from_numpy(a), real.from_numpy(b)
    same(small.lerp(x, y, share), real.lerp(u, v, share), exact=False)  # it may fuse a product and a sum
    same(small.where(x > y, x, y), real.where(u > v, u, v))
    same(small.cat([x, y], dim=1), real.cat([u, v], dim=1))
    same(small.stack([x, y]), real.stack([u, v]))
    same(small.zeros_like(x), real.zeros_like(u))
    same(x[0].expand(3, -1).clone(), u[0].expand(3, -1).clone())
    same(x[1].expand_as(y), v[0].expand_as(v) * 0 + u[1])
    same(x - y, u - v)
    same(x[:, :2] * 2.0, u[:, :2] * 2.0)
    same(x.T.contiguous(), u.T.contiguous())
    same(x.to(small.float64), u.to(real.float64))
    assert x.dim() == u.dim() and x[0].dim() == u[0].dim()
    index = np.array([2, 0])
    same(x[small.from_numpy(index)], u[real.from_numpy(index)])
    x.clone()[:] = 0.0
    same(x, u)  # a copy is its own


def test_made_of_nothing():
    same(small.zeros(2, 3), real.zeros(2, 3))
    same(small.ones(2), real.ones(2))
    same(small.full((2, 2), 0.1), real.full((2, 2), 0.1))
    same(small.tensor([0.1, 2]), real.tensor([0.1, 2]))
    same(small.tensor([True, False]), real.tensor([True, False]))
    assert small.empty((2, 3)).shape == (2, 3) and small.empty(4).dtype == np.float32


def test_both_kinds_are_tensors():
    assert isinstance(small.zeros(1), tensors.Tensor) and isinstance(real.zeros(1), tensors.Tensor)
    assert not isinstance(np.zeros(1), tensors.Tensor)
    assert tensors.is_tensor(tensors.Tensor) and tensors.is_tensor(real.Tensor)
    assert not tensors.is_tensor(np.ndarray)
    assert not tensors.use_numpy() and not tensors.numpy_alone()  # PyTorch is here already


@given(*(arrays(np.float32, 60, elements=some.integers(low, high)) for low, high in ((-5, 5), (0, 1))))
def test_areas_in_numpy_are_the_same(score, label):
    start = np.array([0, 1, 20, 60])
    np.testing.assert_array_equal(
        in_numpy.areas(score, label, start), network.areas.made()(score, label, start)
    )


def test_mixtures_in_numpy_are_the_same():
    rng = np.random.default_rng(4)
    own, others = rng.normal(size=(3, 9)).astype(np.float32), rng.normal(size=(5, 7)).astype(np.float32)
    counts = np.array([0, 1, 4])
    parts = mixtures(np.arange(3), np.array([4, 0, 1, 2, 3]), counts, np.arange(1, 6, dtype=np.float32))
    found, expected = np.empty_like(own), np.empty_like(own)
    in_numpy.mixed_models(own, others, parts.plain(), np.arange(3), found)
    network.mixed_models.made()(own, others, parts.plain(), np.arange(3), expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_summaries_in_numpy_are_the_same_to_the_last_bit():
    rng = np.random.default_rng(5)
    values = rng.lognormal(size=(3, 400))
    values[rng.random((3, 400)) < 0.2] = np.nan
    values[1, :380] = np.inf  # too few
    start, group = np.array([0, 7, 150, 400]), np.array([5, 12, 5])
    told = []
    for function in (scales._tell_in_numpy, scales._tell.made()):
        room = np.zeros((3, 3), np.uint32), *np.zeros((2, 3, 3), np.float32), np.zeros((3, 3, 16), np.float32)
        function(values, start, group, *room)
        told.append(room)
    for found, expected in zip(*told):
        np.testing.assert_array_equal(found, expected)
    assert told[0][0].any()


@pytest.fixture(scope="module")
def data():
    frame, roles = builtin_table("icu-synthetic:centers=3,stays=600,groups=3")
    return prepare(federate(frame, roles, "three", 1), 11, standardise="common", splines=True)


def test_the_small_learner_learns_what_the_large_one_does(data):
    training = Training.of("gam")
    large = StackedLearner(data, training, training.factory, 11)
    little = SmallLinear(data, training, 11)
    assert little.layout == large.layout
    np.testing.assert_array_equal(little.start.numpy(), large.start.numpy())
    rng = np.random.default_rng(6)
    w = rng.normal(scale=0.1, size=(3, large.layout.size)).astype(np.float32)
    anchor = rng.normal(scale=0.1, size=w.shape).astype(np.float32)
    shift = rng.normal(scale=0.01, size=w.shape).astype(np.float32)
    ours, theirs = small.from_numpy(w), real.from_numpy(w)

    def close(found, expected, atol=1e-5):
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=atol)

    cases = [
        (None, None, 0.0, slice(None)),
        (anchor, None, 0.5, slice(None)),
        (None, shift, 0.0, slice(0, 9)),
    ]
    for near, extra, strength, columns in cases:
        goals = [
            Objective(
                strength,
                None if near is None else made(near),
                None if extra is None else made(extra),
            )
            for made in (small.from_numpy, real.from_numpy)
        ]
        close(little.train(ours, 2, goals[0], columns), large.train(theirs, 2, goals[1], columns))
    close(ours, w, 0)  # left as it was
    for rows in (data.train, data.validation):
        close(little.logits(ours, rows).values, large.logits(theirs, rows).values)
        close(little.gradient(ours, rows), large.gradient(theirs, rows))
    owner, other, counts = np.array([0, 2, 2]), np.array([1, 0, 1]), np.array([1, 0, 2])
    parts = mixtures(owner, other, counts, np.array([10.0, 20.0, 30.0], np.float32))
    sent = w[:, :-1].copy()
    mixed, answers = little.settle(ours, small.from_numpy(sent), parts, data.validation)
    expected, told = large.settle(theirs, real.from_numpy(sent), parts, data.validation)
    close(mixed, expected)
    close(answers.values, told.values)
    assert little.looked and large.looked
