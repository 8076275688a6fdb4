"""The stacked engine against plain loops of nn.Module and torch.optim.Adam, same batches and masks."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from abps.core import streams
from abps.core.errors import RequestError
from abps.data.prepare import Prepared, Rows
from abps.models import batches
from abps.models.batched import StackedLearner
from abps.models.contrast import Contrast
from abps.models.dropout import DropSite, drop_limit, kept_units
from abps.models.kernels import MLPKernel, ModuleKernel, kernel_for
from abps.models.loop import LoopLearner
from abps.models.mixtures import mixed, mixtures
from abps.models.models import MLP, initial_weights, layout_of
from abps.models.optimizers import SGD, Adam
from abps.models.training import Lesson, Objective, Training
from abps.models.workspace import Workspace
from federations import tiny

SEED = 5


def plain_round(data, i, model, t, training):
    """One center's round, written as anybody would write it."""
    x, y = torch.from_numpy(data.train.only(i).x), torch.from_numpy(data.train.only(i).y)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    center = streams.center_id(data.centers[i])
    ids, sizes = np.array([center], dtype=np.uint64), np.array([len(y)])
    order = batches.row_orders(SEED, ids, t, sizes, training.epochs)[:, 0]
    sites = tuple(DropSite((h,), training.dropout) for h in training.hidden)
    step = 0
    for epoch in order:
        for at in range(0, len(y), training.batch):
            index = torch.from_numpy(epoch[at : at + training.batch])
            kept = kept_units(SEED, center, t, step, len(index), sites)
            keep = [torch.from_numpy(m).float() / (1 - training.dropout) for m in kept]
            step += 1
            hidden = x[index]
            for layer, mask in zip(model.layers, keep):
                hidden = torch.relu(layer(hidden)) * mask
            loss = F.binary_cross_entropy_with_logits(model.head(hidden).squeeze(1), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("hidden", [(128, 64), (16,), (24, 12, 6)])
def test_stacked_equals_a_plain_loop_after_three_rounds(hidden):
    # Where a weight's gradient is itself of the size of rounding (and of Adam's epsilon), Adam divides noise
    # by noise, and the order of summation decides; in about one of 300,000 weights it shows above 1e-5.
    data = tiny(seed=1)
    training = Training(hidden=hidden)
    stacked = StackedLearner(data, training, training.factory, SEED)
    w = stacked.start.expand(data.size, -1).clone()
    for t in (1, 2, 3):
        w = stacked.train(w, t)
    for i in range(data.size):
        model = MLP(data.width, hidden, 0.2)
        nn.utils.vector_to_parameters(stacked.start.clone(), model.parameters())
        for t in (1, 2, 3):
            plain_round(data, i, model, t, training)
        want = nn.utils.parameters_to_vector(model.parameters())
        assert (w[i] - want).abs().max() < 1e-5


class Own(nn.Module):
    """A user's own network: another order of parts, LayerNorm, tanh, dropout on the input."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 9), nn.Tanh(), nn.Dropout(0.3))
        self.out = nn.Linear(9, 1)

    def forward(self, x):
        return self.out(self.body(self.norm(self.first(x))))


@pytest.mark.parametrize("factory", [Own, lambda width: MLP(width, (20, 10), 0.2)])
def test_debug_equals_simulate_for_any_module(factory):
    data = tiny((90, 40, 130))
    training = Training(batch=32)
    learners = [kind(data, training, factory, SEED) for kind in (StackedLearner, LoopLearner)]
    w = [learner.start.expand(3, -1).clone() for learner in learners]
    for t in (1, 2, 3):
        w = [learner.train(each, t) for learner, each in zip(learners, w)]
    assert (w[0] - w[1]).abs().max() < 1e-5
    logits = [learner.logits(each, data.test).values for learner, each in zip(learners, w)]
    np.testing.assert_allclose(*logits, atol=1e-5)


def test_the_general_kernel_gives_the_fast_kernels_numbers():
    torch.manual_seed(0)
    model = MLP(7, (12, 5), 0.2)
    fast, general = MLPKernel(model), ModuleKernel(model, 7)
    w = torch.randn(4, fast.layout.size) * 0.3
    x, y = torch.randn(4, 9, 7), torch.randint(0, 2, (4, 9)).float()
    weight = torch.full((4, 9), 1 / 9)
    weight[2, 5:] = 0
    draws = [torch.randn(4, 9, s.units) * 1e20 for s in fast.sites]

    def pull(z):
        return torch.sin(z)

    # In double precision the hand-written backward pass is autograd's to the last digits.
    double = MLP(7, (12, 5), 0.2).double().eval()
    leaf = w.double().requires_grad_()
    rows = [
        nn.functional.binary_cross_entropy_with_logits(
            torch.func.functional_call(double, fast.layout.unflatten(leaf[k]), (x[k].double(),)),
            y[k].double(),
            reduction="none",
        )
        for k in range(4)
    ]
    (want,) = torch.autograd.grad((torch.stack(rows) * weight.double()).sum(), leaf)
    got = torch.empty_like(want)
    fast.slope(leaf.detach(), got, Workspace())(x.double(), y.double(), weight.double(), [])
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-10)
    for masks in (draws, []):
        for extra in (None, pull):
            a, b = torch.empty_like(w), torch.empty_like(w)
            fast.slope(w, a, Workspace())(x, y, weight, [m.clone() for m in masks], extra)
            general.slope(w, b, Workspace())(x, y, weight, [m.clone() for m in masks], extra)
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        fast.logits(w, x, Workspace()), general.logits(w, x, Workspace()), atol=1e-6, rtol=1e-5
    )
    shown = [kernel.representation(w, x, Workspace()) for kernel in (fast, general)]
    torch.testing.assert_close(*shown, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_chunks_do_not_change_the_numbers(most, monkeypatch):
    data = tiny((300, 290, 280, 140, 139, 20))
    training = Training(hidden=(16, 8))
    whole = StackedLearner(data, training, training.factory, SEED)
    w = whole.start.expand(data.size, -1).clone()
    monkeypatch.setattr(StackedLearner, "most", most)
    cut = StackedLearner(data, training, training.factory, SEED)
    torch.testing.assert_close(whole.train(w, 1), cut.train(w, 1), atol=1e-6, rtol=1e-5)


def test_the_number_of_cores_does_not_change_a_bit():
    data = tiny((300, 290, 280, 140, 139, 20))
    training = Training()
    many = StackedLearner(data, training, training.factory, SEED)
    one = StackedLearner(data, training, training.factory, SEED)
    many._workers, one._workers = 3, 1
    w = many.start.expand(data.size, -1).clone()
    assert torch.equal(many.train(w, 1), one.train(w, 1))


def test_a_center_learns_the_same_alone_as_among_others():
    data = tiny()
    training = Training(hidden=(16, 8))
    together = StackedLearner(data, training, training.factory, SEED)
    w = together.start.expand(data.size, -1).clone()
    after = together.train(w, 4)
    for i in range(data.size):
        alone = StackedLearner(data.only(i), training, training.factory, SEED)
        torch.testing.assert_close(alone.train(w[:1], 4)[0], after[i], atol=1e-6, rtol=1e-5)


def test_the_input_is_left_alone_and_streams_differ_by_round():
    data = tiny((60, 60))
    training = Training(hidden=(8,))
    learner = StackedLearner(data, training, training.factory, SEED)
    w = learner.start.expand(2, -1).clone()
    before = w.clone()
    first, second = learner.train(w, 1), learner.train(w, 2)
    assert torch.equal(w, before) and not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_only_the_named_columns_move():
    data = tiny((60, 200))
    training = Training(hidden=(8,))
    for kind in (StackedLearner, LoopLearner):
        learner = kind(data, training, training.factory, SEED)
        w = learner.start.expand(2, -1).clone()
        cut = learner.layout.shared(1)
        head = learner.train(w, 1, columns=slice(cut, None))
        assert torch.equal(head[:, :cut], w[:, :cut]) and not torch.equal(head[:, cut:], w[:, cut:])
    torch.testing.assert_close(
        head,
        StackedLearner(data, training, training.factory, SEED).train(w, 1, columns=slice(cut, None)),
        atol=1e-6,
        rtol=1e-5,
    )


def test_extra_terms_of_the_objective_agree_between_the_learners():
    data = tiny((60, 200, 30))
    training = Training(hidden=(8, 6), optimizer="sgd", lr=0.05)
    results = []
    for kind in (StackedLearner, LoopLearner):
        learner = kind(data, training, training.factory, SEED)
        w = learner.start.expand(3, -1).clone()
        objective = Objective(
            strength=torch.tensor([0.1, 0.5, 2.0]),
            anchor=learner.start + 0.1,
            shift=torch.linspace(-0.1, 0.1, 3 * w.shape[1]).view(3, -1),
            contrast=Contrast(learner.start - 0.2, w + 0.1, 0.7, 0.5),
        )
        results.append(learner.train(w, 1, objective))
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


def test_layers_and_what_is_shared():
    layout = layout_of(MLP(66))
    assert layout.size == 128 * 66 + 8449
    assert layout.shared(0) == layout.size
    assert layout.shared(1) == layout.size - 65
    assert layout.shared(2) == 128 * 67
    with pytest.raises(RequestError, match="3 layers"):
        layout.shared(3)


def test_models_that_cannot_be_used_are_refused_in_a_sentence():
    with pytest.raises(RequestError, match="buffers"):
        layout_of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))
    with pytest.raises(RequestError, match="no parameters"):
        layout_of(nn.ReLU())
    with pytest.raises(RequestError, match="one logit per row"):
        kernel_for(nn.Linear(3, 2), 3)


def test_a_common_start_for_a_seed_and_no_trace_on_the_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b = (initial_weights(MLP, 5, seed) for seed in (1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, initial_weights(MLP, 5, 1)) and not torch.equal(a, b)


def test_dropout_is_as_random_as_it_should_be():
    sites = (DropSite((64,), 0.2), DropSite((33,), 0.5))
    draws = [
        kept_units(1, center, t, step, 128, sites)
        for center in (7, 8, 2**63)
        for t in (1, 2)
        for step in (0, 1)
    ]
    assert [m.shape for m in draws[0]] == [(128, 64), (128, 33)]
    for site, rate in ((0, 0.2), (1, 0.5)):
        kept = np.stack([d[site] for d in draws]).astype(float)  # (12, rows, units)
        sd = np.sqrt(rate * (1 - rate))
        assert abs(kept.mean() - (1 - rate)) < 4 * sd / np.sqrt(kept.size)
        z = (kept - (1 - rate)) / sd
        for mean in (z.mean(axis=0), z.mean(axis=1), z.mean(axis=2)):  # places, (draw, unit), (draw, row)
            scaled = mean * np.sqrt(kept.size / mean.size)
            assert abs(scaled.var() - 1) < 0.25 and abs(scaled).max() < 6
        flat = z.reshape(12, -1)
        corr = np.corrcoef(flat)[np.triu_indices(12, 1)]
        assert abs(corr).max() < 4.5 / np.sqrt(flat.shape[1])
        assert abs((z[:, :, 1:] * z[:, :, :-1]).mean()) < 4 / np.sqrt(kept.size)
        assert abs((z[:, 1:] * z[:, :-1]).mean()) < 4 / np.sqrt(kept.size)


def test_every_row_is_seen_once_an_epoch_and_alone_as_among_others():
    ids = streams.center_ids(["a", "b", "c"])
    orders = batches.row_orders(1, ids, 3, np.array([17, 9, 12]), 4)
    for k, n in enumerate((17, 9, 12)):
        own = orders[:, k, :n]
        assert (np.sort(own, axis=1) == np.arange(n)).all()
        assert not (own[0] == own[1]).all()
        alone = batches.row_orders(1, ids[k : k + 1], 3, np.array([n]), 4)[:, 0]
        assert (own == alone).all()


def test_a_center_gets_the_same_numbers_alone_as_among_others():
    """To the last bit: a hospital that trains by itself gets what the simulation computes for it."""
    rng = np.random.default_rng(4)
    sizes = [140, 150, 161, 130, 170, 180, 129, 200, 60, 7]
    x = rng.normal(size=(sum(sizes), 66)).astype(np.float32)
    y = (rng.random(len(x)) < 0.2).astype(np.float32)
    rows = Rows(x, y, np.concatenate([[0], np.cumsum(sizes)]))
    names = tuple(f"c{k}" for k in range(len(sizes)))
    columns = tuple(str(k) for k in range(66))
    data = Prepared("x", names, columns, rows, rows, rows, np.zeros((len(sizes), 2)), ("a", "b"), 2, None, 11)
    training = Training()
    whole = StackedLearner(data, training, training.factory, 11)
    together = whole.start.expand(len(sizes), -1).clone()
    for t in (1, 2):
        together = whole.train(together, t)
    for i in range(len(sizes)):
        one = StackedLearner(data.only(i), training, training.factory, 11)
        alone = one.start[None].clone()
        for t in (1, 2):
            alone = one.train(alone, t)
        assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("rate", [0.003, 0.2, 0.4999, 0.5, 0.7, 0.99])
def test_a_share_of_all_bit_patterns_lies_below_the_limit_of_a_rate(rate):
    limit = np.float32(drop_limit(rate))
    every = (np.arange(2**16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    assert abs((every <= limit).mean() - rate) <= 2 / 2**16
    judged = torch.from_numpy(every.copy())
    kernel = torch.ops.aten.threshold_backward(torch.ones_like(judged), judged, float(limit))
    np.testing.assert_array_equal(kernel.numpy() == 0, every <= limit)  # also for what is not a number


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_the_stacked_optimisers_step_like_torchs(kind):
    torch.manual_seed(0)
    w, space = torch.randn(3, 11), Workspace()
    plain = w.clone().requires_grad_()
    ours = Adam(w, 1e-2, 1e-3, space) if kind == "adam" else SGD(w, 1e-2, 1e-3)
    theirs = (torch.optim.Adam if kind == "adam" else torch.optim.SGD)([plain], lr=1e-2, weight_decay=1e-3)
    for _ in range(5):
        slope = torch.randn(3, 11)
        ours.step(slope.clone())
        plain.grad = slope
        theirs.step()
    torch.testing.assert_close(w, plain.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.6])
def test_the_compiled_round_equals_the_one_in_batches(optimizer, dropout, monkeypatch):
    data = tiny((300, 140, 129, 20, 1))
    training = Training(hidden=(16, 12, 8), optimizer=optimizer, dropout=dropout, lr=0.01)
    learner = StackedLearner(data, training, training.factory, SEED)
    w = learner.start.expand(data.size, -1).clone()
    objective = Objective(
        strength=torch.linspace(0.0, 1.0, 5),
        anchor=learner.start + 0.1,
        shift=torch.linspace(-0.1, 0.1, 5 * w.shape[1]).view(5, -1),
    )
    far = learner.start + 0.1 * torch.randn(w.shape, generator=torch.Generator().manual_seed(0))
    contrast = Objective(contrast=Contrast(learner.start, far, 2.0, 0.5))
    share = torch.tensor([0.0, 0.3, 1.0, 0.5, 0.2])
    lesson = Objective(lesson=Lesson(data.validation, share))
    cut = learner.layout.shared(1)
    asked = [{"objective": objective}, {"columns": slice(cut, None)}, {"columns": slice(0, cut), "epochs": 3}]
    if optimizer == "sgd":  # with Adam, a gradient that vanishes for one weight turns rounding into a step
        asked += [{"objective": contrast}, {"objective": lesson}]
    fused = [learner.train(w, 2, **ask) for ask in asked]
    monkeypatch.setattr(learner, "_fused", None)
    for got, ask in zip(fused, asked, strict=True):
        torch.testing.assert_close(got, learner.train(w, 2, **ask), atol=2e-6, rtol=1e-5)


def test_compiled_answers_of_models_and_of_mixtures_equal_plain_ones():
    """Also for more rows than are answered at once, and for coalitions that share their first layer."""
    rng = np.random.default_rng(1)
    data = tiny((300, 140, 20, 1))
    training = Training(hidden=(16, 8))
    learners = [kind(data, training, training.factory, SEED) for kind in (StackedLearner, LoopLearner)]
    size = learners[0].layout.size
    own = torch.from_numpy(rng.normal(size=(4, size)).astype(np.float32))
    sent = torch.from_numpy(rng.normal(size=(4, learners[0].layout.shared(1))).astype(np.float32))
    owner = np.array([0, 3, 1, 1, 0])
    answers = [learner.logits(own[[0, 1, 2, 3, 0]], data.train, owner) for learner in learners]
    np.testing.assert_allclose(answers[0].values, answers[1].values, atol=1e-4, rtol=1e-4)
    # Center 0 in all coalitions of three peers, center 2 with one, center 3 alone.
    members = [[], [1], [2], [1, 2], [3], [1, 3], [2, 3], [1, 2, 3], [0], []]
    parts = mixtures(
        np.array([0] * 8 + [2, 3]),
        np.array([j for m in members for j in m]),
        np.array([len(m) for m in members]),
        np.array([5, 1, 2, 3], dtype=np.float32),
    )
    answers = [learner.mixture_logits(own, sent, parts, data.train) for learner in learners]
    np.testing.assert_allclose(answers[0].values, answers[1].values, atol=1e-4, rtol=1e-4)
    models = mixed(own, sent, parts, learners[0].each)
    for learner in learners:
        settled, again = learner.settle(own, sent, parts, data.train)
        assert torch.equal(settled, models)
        np.testing.assert_allclose(again.values, answers[1].values, atol=1e-4, rtol=1e-4)
    shared = sent.shape[1]
    for k, inside in enumerate(members):
        weights = np.array([5, 1, 2, 3])[[int(parts.owner[k]), *inside]]
        rows = torch.stack([own[parts.owner[k], :shared], *(sent[j] for j in inside)])
        want = (rows * torch.from_numpy(weights / weights.sum()).float()[:, None]).sum(0)
        torch.testing.assert_close(models[k, :shared], want, atol=1e-6, rtol=1e-5)
        assert torch.equal(models[k, shared:], own[parts.owner[k], shared:])
    alone = mixtures(
        np.array([2]), np.array([0, 1]), np.array([2]), np.array([3, 1, 9, 9], np.float32), False
    )
    torch.testing.assert_close(
        mixed(own, sent, alone, learners[0].each)[0, :shared], 0.75 * sent[0] + 0.25 * sent[1]
    )
