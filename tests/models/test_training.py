"""The stacked engine against plain loops of nn.Module and torch.optim.Adam, same batches and masks."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from abps.core import streams
from abps.core.arrays import repeated
from abps.core.errors import RequestError
from abps.data.prepare import Prepared, Rows
from abps.models import draws
from abps.models.draws import DropSite, drop_limit, kept_units
from abps.models.learners import learner_for, mixtures
from abps.models.models import MLP, initial_weights, layout_of
from abps.models.modules import FlatModule
from abps.models.training import Objective, Training
from federations import tiny

SEED = 5


def plain_round(data, i, model, t, training):
    """One center's round, written as anybody would write it."""
    x, y = torch.from_numpy(data.train.only(i).x), torch.from_numpy(data.train.only(i).y)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    center = streams.center_id(data.centers[i])
    ids, sizes = np.array([center], dtype=np.uint64), np.array([len(y)])
    order = draws.row_orders(SEED, ids, t, sizes, training.epochs)[:, 0]
    sites = tuple(DropSite((h,), training.dropout) for h in training.hidden)
    step = 0
    for epoch in order:
        for at in range(0, len(y), training.batch):
            index = epoch[at : at + training.batch]
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
    stacked = learner_for(data, training, SEED)
    w = repeated(stacked.start, data.size).copy()
    for t in (1, 2, 3):
        w = stacked.train(w, t)
    for i in range(data.size):
        model = MLP(data.width, hidden, 0.2)
        nn.utils.vector_to_parameters(torch.tensor(stacked.start), model.parameters())
        for t in (1, 2, 3):
            plain_round(data, i, model, t, training)
        want = nn.utils.parameters_to_vector(model.parameters())
        assert np.abs(w[i] - want.detach().numpy()).max() < 1e-5


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


def test_any_module_learns_as_in_a_loop_of_ones_own():
    data = tiny((90, 40, 130))
    training = Training(batch=32, model=Own)
    learner = learner_for(data, training, SEED)
    w = repeated(learner.start, 3)
    for t in (1, 2, 3):
        w = learner.train(w, t)
    for i in range(3):
        model = Own(data.width).eval()  # its dropout is written out below
        nn.utils.vector_to_parameters(torch.tensor(learner.start), model.parameters())
        rows, center = data.train.only(i), streams.center_id(data.centers[i])
        sites = DropSite((data.width,), 0.1), DropSite((9,), 0.3)
        for t in (1, 2, 3):
            optimizer = torch.optim.Adam(
                model.parameters(), lr=training.lr, weight_decay=training.weight_decay
            )
            ids, sizes = np.array([center], dtype=np.uint64), np.array([len(rows.y)])
            order = draws.row_orders(SEED, ids, t, sizes, training.epochs)[:, 0]
            step = 0
            for epoch in order:
                for at in range(0, len(rows.y), training.batch):
                    index = epoch[at : at + training.batch]
                    first, second = kept_units(SEED, center, t, step, len(index), sites)
                    step += 1
                    x = torch.from_numpy(rows.x[index] * first / np.float32(0.9))
                    hidden = torch.tanh(model.body[0](model.norm(x))) * torch.from_numpy(second) / 0.7
                    loss = F.binary_cross_entropy_with_logits(
                        model.out(hidden).squeeze(1), torch.from_numpy(rows.y[index])
                    )
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        want = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        np.testing.assert_allclose(w[i], want, atol=1e-5)
        logits = learner.logits(w, data.test)[i]
        theirs = model(torch.from_numpy(data.test.only(i).x)).detach().numpy()[:, 0]
        np.testing.assert_allclose(logits, theirs, atol=1e-4)


def test_the_number_of_cores_does_not_change_a_bit():
    data = tiny((300, 290, 280, 140, 139, 20))
    training = Training()
    many = learner_for(data, training, SEED)
    one = learner_for(data, training, SEED)
    one._crew.cores = 1
    one._shares = draws.shares(data.train.sizes, 1)
    w = repeated(many.start, data.size).copy()
    assert np.array_equal(many.train(w, 1), one.train(w, 1))


def test_a_center_learns_the_same_alone_as_among_others():
    data = tiny()
    training = Training(hidden=(16, 8))
    together = learner_for(data, training, SEED)
    w = repeated(together.start, data.size).copy()
    after = together.train(w, 4)
    for i in range(data.size):
        alone = learner_for(data.only(i), training, SEED)
        np.testing.assert_allclose(alone.train(w[:1], 4)[0], after[i], atol=1e-6, rtol=1e-5)


def test_the_input_is_left_alone_and_streams_differ_by_round():
    data = tiny((60, 60))
    training = Training(hidden=(8,))
    learner = learner_for(data, training, SEED)
    w = repeated(learner.start, 2).copy()
    before = w.copy()
    first, second = learner.train(w, 1), learner.train(w, 2)
    assert np.array_equal(w, before) and not np.array_equal(first, second)
    assert not np.array_equal(first[0], first[1])


def test_only_the_named_columns_move():
    data = tiny((60, 200))
    training = Training(hidden=(8,))
    for plain in (False, True):
        learner = learner_for(data, training, SEED, plain=plain)
        w = repeated(learner.start, 2).copy()
        cut = learner.layout.shared(1)
        head = learner.train(w, 1, columns=slice(cut, None))
        assert np.array_equal(head[:, :cut], w[:, :cut]) and not np.array_equal(head[:, cut:], w[:, cut:])
    np.testing.assert_allclose(
        head,
        learner_for(data, training, SEED).train(w, 1, columns=slice(cut, None)),
        atol=1e-6,
        rtol=1e-5,
    )


def test_extra_terms_of_the_objective_agree_between_the_learners():
    data = tiny((60, 200, 30))
    training = Training(hidden=(8, 6), optimizer="sgd", lr=0.05)
    results = []
    for plain in (False, True):
        learner = learner_for(data, training, SEED, plain=plain)
        w = repeated(learner.start, 3).copy()
        objective = Objective(
            strength=np.array([0.1, 0.5, 2.0], dtype=np.float32),
            anchor=learner.start + 0.1,
            shift=np.linspace(-0.1, 0.1, 3 * w.shape[1]).reshape(3, -1),
        )
        results.append(learner.train(w, 1, objective))
    np.testing.assert_allclose(*results, atol=1e-6, rtol=1e-5)


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
        FlatModule(nn.Linear(3, 2), 3)


def test_a_common_start_for_a_seed_and_no_trace_on_the_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b = (initial_weights(MLP, 5, seed) for seed in (1, 2))
    assert np.array_equal(torch.get_rng_state(), before)
    assert np.array_equal(a, initial_weights(MLP, 5, 1)) and not np.array_equal(a, b)


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
    orders = draws.row_orders(1, ids, 3, np.array([17, 9, 12]), 4)
    for k, n in enumerate((17, 9, 12)):
        own = orders[:, k, :n]
        assert (np.sort(own, axis=1) == np.arange(n)).all()
        assert not (own[0] == own[1]).all()
        alone = draws.row_orders(1, ids[k : k + 1], 3, np.array([n]), 4)[:, 0]
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
    whole = learner_for(data, training, 11)
    together = repeated(whole.start, len(sizes)).copy()
    for t in (1, 2):
        together = whole.train(together, t)
    for i in range(len(sizes)):
        one = learner_for(data.only(i), training, 11)
        alone = one.start[None].copy()
        for t in (1, 2):
            alone = one.train(alone, t)
        assert np.array_equal(alone[0], together[i])


@pytest.mark.parametrize("rate", [0.003, 0.2, 0.4999, 0.5, 0.7, 0.99])
def test_a_share_of_all_bit_patterns_lies_below_the_limit_of_a_rate(rate):
    limit = np.float32(drop_limit(rate))
    every = (np.arange(2**16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    assert abs((every <= limit).mean() - rate) <= 2 / 2**16
    judged = every.copy()
    kernel = torch.ops.aten.threshold_backward(
        torch.ones(len(judged)), torch.from_numpy(judged), float(limit)
    )
    np.testing.assert_array_equal(kernel.numpy() == 0, every <= limit)  # also for what is not a number


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.6])
def test_the_compiled_round_equals_the_plain_one(optimizer, dropout):
    data = tiny((300, 140, 129, 20, 1))
    training = Training(hidden=(16, 12, 8), optimizer=optimizer, dropout=dropout, lr=0.01)
    learner = learner_for(data, training, SEED)
    w = repeated(learner.start, data.size).copy()
    objective = Objective(
        strength=np.linspace(0.0, 1.0, 5),
        anchor=learner.start + 0.1,
        shift=np.linspace(-0.1, 0.1, 5 * w.shape[1]).reshape(5, -1),
    )
    cut = learner.layout.shared(1)
    asked = [{"objective": objective}, {"columns": slice(cut, None)}, {"columns": slice(0, cut), "epochs": 3}]
    plain = learner_for(data, training, SEED, plain=True)
    fused = [learner.train(w, 2, **ask) for ask in asked]
    for got, ask in zip(fused, asked, strict=True):
        np.testing.assert_allclose(got, plain.train(w, 2, **ask), atol=2e-6, rtol=1e-5)


def test_compiled_answers_of_models_and_of_mixtures_equal_plain_ones():
    """Also for more rows than are answered at once, and for coalitions that share their first layer."""
    rng = np.random.default_rng(1)
    data = tiny((300, 140, 20, 1))
    training = Training(hidden=(16, 8))
    learners = [learner_for(data, training, SEED, plain=plain) for plain in (False, True)]
    size = learners[0].layout.size
    own = rng.normal(size=(4, size)).astype(np.float32)
    sent = rng.normal(size=(4, learners[0].layout.shared(1))).astype(np.float32)
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
    models = learners[0].settle(own, sent, parts, data.train)[0]
    for learner in learners:
        settled, again = learner.settle(own, sent, parts, data.train)
        assert np.array_equal(settled, models)
        np.testing.assert_allclose(again.values, answers[1].values, atol=1e-4, rtol=1e-4)
    shared = sent.shape[1]
    for k, inside in enumerate(members):
        weights = np.array([5, 1, 2, 3])[[int(parts.owner[k]), *inside]]
        rows = np.stack([own[parts.owner[k], :shared], *(sent[j] for j in inside)])
        want = (rows * (weights / weights.sum()).astype(np.float32)[:, None]).sum(0)
        np.testing.assert_allclose(models[k, :shared], want, atol=1e-6, rtol=1e-5)
        assert np.array_equal(models[k, shared:], own[parts.owner[k], shared:])
