"""Other outcomes end to end: both learners agree, methods run, reports speak of the right score."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import abps
from abps import RequestError
from abps.core.arrays import repeated
from abps.data.prepare import prepare
from abps.engine.crossvalidation import cross_validate
from abps.methods.catalog import CATALOG
from abps.models.learners import learner_for
from abps.models.training import Objective, Training
from federations import outcome_of as made

SPECS = ("survival", "classes", "continuous")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("model", ["gam", "mlp"])
def test_the_fast_learner_does_what_the_plain_loop_does(spec: str, model: str) -> None:
    training = Training.of(model, epochs=3, batch=32, **({"hidden": (6,)} if model == "mlp" else {}))
    data = prepare(made(spec), 11, standardise=training.standardise, splines=training.splines)
    fast, plain = (learner_for(data, training, 11, plain=plain) for plain in (False, True))
    w = repeated(fast.start, data.size) + 0.01 * np.random.default_rng(1).normal(
        size=(data.size, fast.layout.size)
    ).astype(np.float32)
    objective = Objective(strength=0.3, anchor=fast.start)
    after, told = fast.train(w, 1, objective), plain.train(w, 1, objective)
    assert not np.array_equal(after, w)
    np.testing.assert_allclose(after, told, atol=2e-4, rtol=1e-3)
    np.testing.assert_allclose(
        (fast.logits(after, data.test).values),
        (plain.logits(after, data.test).values),
        atol=1e-4,
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        fast.gradient(w, data.train), plain.gradient(w, data.train), atol=1e-5, rtol=1e-3
    )


@pytest.mark.parametrize("spec", SPECS)
def test_learning_together_finds_what_is_there(spec: str) -> None:
    fed = made(spec)
    for method in ("abps-plus", "local-best", "pooled-best"):
        run = abps.simulate(fed, method)
        assert run.main.mean > {"continuous": 0.3}.get(fed.outcome.kind, 0.68), method
        assert run.outcome == fed.outcome.kind and run.measures[run.measure].mean == run.main.mean


@pytest.mark.parametrize(
    "name", [name for name in CATALOG if "v1-" not in name and name != "group-oracle-k1"]
)
def test_every_method_runs_or_says_why_not(name: str) -> None:
    fed = made("classes", centers=4, rows=240)
    if CATALOG[name].config.only_binary:
        with pytest.raises(RequestError, match="an outcome of classes"):
            abps.simulate(fed, name, rounds=2)
        return
    fitted = getattr(CATALOG[name].config, "fitted", False)
    run = abps.simulate(
        fed,
        name,
        rounds=None if fitted else 2,
        settings={} if fitted or "plus" in name else {"hidden": (5, 4)},
    )
    assert run.main.scored_centers == 4 and 0 < run.main.mean < 1
    assert run.auroc.mean == run.main.mean  # macro


def test_a_run_comes_back_from_its_file(tmp_path: Path) -> None:
    run = abps.simulate(made("survival"), "fedavg", rounds=2, model="gam")
    content = json.loads(json.dumps(run.to_json()))
    assert content["score"]["name"] == "C-index" and content["auroc"]["mean"] is None
    back = abps.Run.from_json(content)
    assert back.main.per_center == run.main.per_center and list(back.measures) == list(run.measures)


def test_a_binary_result_has_nothing_new() -> None:
    run = abps.simulate(abps.load("icu-synthetic:centers=6"), "local", rounds=1)
    assert not {"outcome", "score", "measures"} & set(run.to_json())


def test_comparison_and_report_speak_of_the_main_score(tmp_path: Path) -> None:
    study = abps.compare(made("survival"), ["local", "fedavg"], seeds=[1], rounds=2, folds=3)
    assert "glm-exact" not in set(study.frame()["method"]) and "C-index" in study.frame().columns
    assert "C-index" in study.table().columns
    report = study.report(tmp_path / "report")
    text = report.page.read_text(encoding="utf-8")
    assert "mean C-index" in text and "mean AUROC" not in text


def test_cross_validation_stands_on_one_grid() -> None:
    fed = made("survival", centers=3, rows=300)
    run = cross_validate(fed, "pooled-best", 11, 3)
    assert run.measure == "C-index" and run.main.mean > 0.65
    assert sum(run.scored.per_center_rows.values()) == fed.rows


def test_attacks_on_labels_need_two_of_them() -> None:
    with pytest.raises(RequestError, match="binary outcome"):
        abps.simulate(made("continuous"), "fedavg", rounds=1, attack="label-flip:share=0.3")
    run = abps.simulate(made("continuous"), "fedavg", rounds=1, model="linear", attack="sign-flip:share=0.3")
    assert np.isfinite(run.score.honest_mean)


def test_a_model_of_ones_own_says_how_many_answers_it_gives() -> None:
    def small(width: int, outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.ReLU(), torch.nn.Linear(4, outputs))

    run = abps.simulate(made("classes"), "fedavg", rounds=5, model=small, settings={"lr": 0.05})
    assert run.main.mean > 0.5
    with pytest.raises(RequestError, match="3 answers per row"):
        abps.simulate(made("classes"), "fedavg", rounds=1, model=lambda width: torch.nn.Linear(width, 1))
