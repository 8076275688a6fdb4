"""Choosing on validation rows: the penalty that wins, what it costs, and the last fit on more rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.table import load
from abps.engine.simulate import simulate
from abps.methods.settings import configure
from abps.models.batched import StackedLearner
from abps.models.joint import without_network
from abps.models.metrics import labels_of, log_loss, mean_over_centers

PENALTIES = (1.0, 0.03, 0.001)
GRID = {"penalties": "1,0.03,0.001", "trial_rounds": "3"}


@pytest.fixture(scope="module")
def few():
    return load("icu-synthetic:centers=8,stays=1600")


def losses(federation, method, rounds):
    """The mean validation loss of every penalty, from runs of their own."""
    found = []
    for penalty in PENALTIES:
        run = simulate(federation, method, 11, rounds, {"weight_decay": penalty}, model="linear")
        data = prepare(federation, 11, standardise="common")
        training = configure(method, {"model": "linear"}).training
        learner = StackedLearner(data, training, training.factory, 11)
        answers = learner.logits(run.models, data.validation)
        found.append(mean_over_centers(log_loss(answers, labels_of(data.validation)))[0])
    return found


@pytest.mark.parametrize("method", ["fedavg", "random-k1"])
def test_the_penalty_with_the_lowest_validation_loss_is_taken_and_paid_for(few, method) -> None:
    chosen = simulate(few, method, 11, 6, GRID, model="linear")
    # A trial of a longer run is the beginning of that run: neither method looks at the horizon.
    best = PENALTIES[int(np.argmin(losses(few, method, 3)))]
    assert chosen.config["training"]["weight_decay"] == best and best != 1.0
    plain = simulate(few, method, 11, 6, {"weight_decay": best}, model="linear")
    assert torch.equal(chosen.models, plain.models)
    assert chosen.auroc.mean == plain.auroc.mean and chosen.history.edge_bytes == plain.history.edge_bytes
    short = simulate(few, method, 11, 3, {"weight_decay": best}, model="linear")
    extra = chosen.bytes.edge - plain.bytes.edge
    assert extra == 2 * short.bytes.edge  # the trials that were not taken
    assert chosen.bytes.control > plain.bytes.control + 4 * 8 * 3 - 1


def test_test_rows_have_no_say(few) -> None:
    """With every test outcome turned round, the same is chosen and fitted."""
    data = prepare(few, 11, standardise="common")
    turned = replace(data, test=replace(data.test, y=1 - data.test.y))
    settings = GRID | {"refit": "yes", "restore_best": "yes", "metric": "loss"}
    one, other = (simulate(rows, "fedavg", 11, 5, settings, model="linear") for rows in (data, turned))
    assert torch.equal(one.models, other.models)
    assert one.auroc.mean != other.auroc.mean


def test_a_refit_is_a_run_on_training_and_validation_rows(few) -> None:
    data = prepare(few, 11, standardise="common")
    refit = simulate(data, "fedavg", 11, 4, {"refit": "yes"}, model="linear")
    both = simulate(replace(data, train=data.own), "fedavg", 11, 4, model="linear")
    once = simulate(data, "fedavg", 11, 4, model="linear")
    assert torch.equal(refit.models, both.models) and not torch.equal(refit.models, once.models)
    assert refit.history.validation_auroc == once.history.validation_auroc
    assert refit.bytes.edge == 2 * once.bytes.edge
    assert refit.bytes.control == once.bytes.control  # statistics are agreed on once


def test_a_network_that_earned_no_place_stays_away_after_a_refit(few) -> None:
    training = configure("fedavg", {"model": "gam+mlp"}).training
    data = prepare(few, 11, standardise="common", splines=True)
    layout = StackedLearner(data, training, training.factory, 11).layout
    once, refit = (simulate(data, "fedavg", 11, 3, {"refit": r}, model="gam+mlp") for r in ("no", "yes"))
    alone = [torch.equal(run.models, without_network(layout, run.models)) for run in (once, refit)]
    assert alone[0] == alone[1]
    assert not torch.equal(once.models, refit.models)


def test_bad_choices_are_refused(few) -> None:
    for bad in ({"penalties": "-1,0.1"}, {"trial_rounds": "0"}):
        with pytest.raises(RequestError):
            simulate(few, "fedavg", 11, 2, bad, model="linear")
