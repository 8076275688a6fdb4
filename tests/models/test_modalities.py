"""Encoders of several modalities: what they read, what an absent one does, and training end to end."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

import abps
from abps import RequestError
from abps.core.arrays import repeated
from abps.data.outcome import Outcome
from abps.data.prepare import prepare
from abps.data.roles import Roles
from abps.data.table import federate
from abps.models.learners import learner_for
from abps.models.modalities import Encoders, modalities
from abps.models.training import Training

HOURS = 8


def hourly(rows: int = 360, centers: int = 4, seed: int = 0) -> abps.Federation:
    """A risk that is in the trend over hours, not in any single hour; the last center has no sequences."""
    rng = np.random.default_rng(seed)
    center = rng.integers(0, centers, rows)
    trend, age = rng.normal(size=rows), rng.normal(size=rows)
    hour = np.linspace(-1, 1, HOURS)
    pulse = trend[:, None] * hour + 0.3 * rng.normal(size=(rows, HOURS)) + rng.normal(size=(rows, 1))
    y = (1.5 * trend + 0.5 * age + 0.5 * rng.normal(size=rows)) > 0
    pulse[center == centers - 1] = np.nan
    columns = {f"pulse@{h}": pl.Series(pulse[:, h]).fill_nan(None) for h in range(HOURS)}
    frame = pl.DataFrame({"y": y, "center": [f"h{k}" for k in center], "age": age} | columns)
    return federate(frame, Roles("y", "center"), "hourly", 20)


def digits(rows: int = 500, centers: int = 4) -> abps.Federation:
    """Which of three digits; the last center has no image, only a column that tells a little."""
    data = pytest.importorskip("sklearn.datasets").load_digits(n_class=3)
    rng = np.random.default_rng(0)
    some = rng.permutation(len(data.target))[:rows]
    center, image = rng.integers(0, centers, len(some)), data.images[some].copy()
    image[center == centers - 1] = np.nan
    told = data.target[some] + rng.normal(size=len(some))
    columns = {f"scan@{i}@{j}": pl.Series(image[:, i, j]).fill_nan(None) for i in range(8) for j in range(8)}
    frame = pl.DataFrame(
        {"y": data.target[some], "center": [f"h{k}" for k in center], "told": told} | columns
    )
    return federate(frame, Roles("y", "center", outcome="classes"), "digits", 20)


def test_names_say_what_columns_belong_to() -> None:
    names = ("age", "hr@0", "hr@1", "hr@2", "bp@0", "bp@2", "bp@0 missing", "scan@0@0", "scan@1@1")
    found = modalities(names)
    assert found["table"] == ([0], (1,))
    assert found["sequences"] == ([1, 2, 3, 4, len(names), 5], (2, 3))  # bp@1 never varies
    assert found["image scan"] == ([7, len(names), len(names), 8], (2, 2))


def test_an_absent_modality_adds_nothing_and_learns_nothing() -> None:
    names = ("age", *(f"hr@{k}" for k in range(4)))
    model = Encoders(names, (6,), 0.0, Outcome())
    x = torch.randn(5, 5)
    x[:, 1:] = 0.0
    before = model(x)
    with torch.no_grad():
        for parameter in model.parts["sequences"].parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(model(x), before)
    model(x).sum().backward()
    assert all(not p.grad.any() for p in model.parts["sequences"].parameters())
    assert model.parts["table"].weight.grad.any() and model.trunk.weight.grad.any()


@pytest.mark.parametrize("make", [hourly, digits])
def test_both_learners_agree_and_learning_together_helps(make) -> None:  # type: ignore[no-untyped-def]
    federation = make()
    training = Training.of("encoders", epochs=1, batch=64, hidden=(8,), dropout=0.0)
    data = prepare(federation, 11, standardise=training.standardise)
    fast, plain = (learner_for(data, training, 11, plain=plain) for plain in (False, True))
    w = repeated(fast.start, data.size).copy()
    np.testing.assert_allclose(fast.train(w, 1), plain.train(w, 1), atol=1e-4, rtol=1e-3)
    how = {"epochs": 4, "lr": 0.01, "batch": 32, "hidden": (12,)}
    run = abps.simulate(federation, "fedavg", rounds=6, model="encoders", settings=how)
    assert run.main.mean > 0.75


@pytest.mark.parametrize("make", [hourly, digits])
def test_a_whole_comparison_is_trained_and_reported(make, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The worked examples of docs/own-model.md: from rows to a report; a center lacks a modality."""
    how = {"model": "encoders", "epochs": 4, "lr": 0.01, "batch": 32, "hidden": (12,)}
    study = abps.compare(
        make(), ["local", "fedavg", "random-k1"], [11, 22], rounds=6, settings=how, references=False
    )
    assert np.mean([run.main.mean for _, run in study.runs if run.method == "fedavg"]) > 0.7
    assert all(run.main.scored_centers == 4 for _, run in study.runs)
    text = study.report(tmp_path / "report").page.read_text(encoding="utf-8")
    assert "fedavg" in text and study.runs[0][1].measure in text


def test_it_says_where_it_does_not_run() -> None:
    with pytest.raises(RequestError, match="runs in simulations"):
        Training.of("encoders").factory(5)
