"""Tuning: the same number of tries for all, on validation rows of other seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

import abps
from abps.core.errors import RequestError
from abps.methods.catalog import CATALOG, REFERENCES
from abps.methods.fedavg import FedAvg
from abps.methods.settings import configure
from abps.study.execute import MOST, combinations, words_of
from abps.study.plan import Choice, Trial, tuning_seeds

SMALL = {"batch": 64, "hidden": (8,)}


@dataclass(frozen=True)
class Two(FedAvg):
    """FedAvg with a grid of its own: no learning to speak of, or some."""

    @property
    def grid(self) -> Mapping[str, tuple[Any, ...]]:
        return {"lr": (1e-9, 0.03)}


@pytest.mark.parametrize("name", [n for n in CATALOG if not n.startswith("abps-plus-")])
def test_every_method_has_a_grid_of_settings_that_it_has(name) -> None:
    for model in ("gam", None):
        config = configure(name, {} if model is None else {"model": model})
        found = combinations(config, {})
        if getattr(config, "fitted", False):
            assert found == []
            continue
        if config.training.optimizer == "newton":  # an optimum, with its penalty, has nothing to tune
            assert not any({"lr", "weight_decay", "epochs"} & set(settings) for settings in found)
        else:
            assert len(found) >= 3
        assert len(found) <= MOST
        for settings in found:
            configure(config, settings)
        assert all(set(settings) != {"lr"} for settings in combinations(config, {"lr": 0.1}))


def test_what_is_fixed_by_hand_is_not_tuned() -> None:
    config = configure("pfedgraph")
    free = combinations(config, {"training.lr": 0.5})
    assert free and all("lr" not in settings for settings in free)
    assert {settings["centre"] for settings in free} == {False, True}
    held = combinations(config, {"training.lr": 0.5, "centre": False})
    assert all("centre" not in settings for settings in held)


def test_the_seeds() -> None:
    assert tuning_seeds(False, (1, 2)) == ()
    assert tuning_seeds(True, (11, 1002)) == (1001, 1003)
    assert tuning_seeds([7], (11,)) == (7,)
    with pytest.raises(RequestError, match="seed 11 is one to tune on and one to compare on"):
        tuning_seeds([7, 11], (11,))
    with pytest.raises(RequestError, match="no seed to tune on"):
        tuning_seeds([], (11,))


def test_the_choice_is_made_on_validation_rows_of_other_seeds(tiny, tmp_path) -> None:
    methods = {"two": Two(), "fedavg": "fedavg"}
    settings = SMALL | {"epochs": 1}
    asked = {"seeds": [11], "rounds": 3, "settings": settings, "references": False, "tune": [5, 6]}
    study = abps.compare(tiny, methods, **asked, out=tmp_path / "study")
    chosen = {choice.method: choice for choice in study.record.choices}
    # What was chosen is what a user would find by hand on the validation rows of the same seeds.
    for name, config in (("two", Two()), ("fedavg", "fedavg")):
        by_hand = {}
        for lr in [trial.settings["lr"] for trial in chosen[name].tried]:
            runs = [abps.simulate(tiny, config, s, 3, settings | {"lr": lr}) for s in (5, 6)]
            by_hand[lr] = sum(run.history.validation_auroc[-1] for run in runs) / 2
        assert [t.validation for t in chosen[name].tried] == pytest.approx(list(by_hand.values()), abs=1e-6)
        assert chosen[name].settings == {"lr": max(by_hand, key=by_hand.get)}
    assert [trial.settings["lr"] for trial in chosen["fedavg"].tried] == [0.000333, 0.001, 0.003]
    # The comparison runs with it, on its own seed, and says so.
    (run,) = [run for planned, run in study.runs if planned.method == "two"]
    assert run.seed == 11 and run.config["training"]["lr"] == chosen["two"].settings["lr"]
    assert {planned.label for planned, _ in study.runs} == {"two", "fedavg"}
    told = json.loads((tmp_path / "study" / "study.json").read_text())
    assert told["request"]["tune"] == [5, 6] and len(told["choices"]) == 2
    report = study.report()
    assert report.tuned[0].startswith("two tuned on seeds 5, 6: lr=")
    assert report.tuned[0] in report.page.read_text()
    # Asked for again, nothing is computed twice; in memory it is the same.
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "study").rglob("run.json")}
    assert len(stamps) == 2 * (2 + 3) + 2
    again = abps.compare(tiny, methods, **asked, out=tmp_path / "study")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "study").rglob("run.json")} == stamps
    assert again.record.choices == study.record.choices
    with pytest.raises(RequestError, match="other seeds to tune on"):
        abps.compare(tiny, methods, **asked | {"tune": [5]}, out=tmp_path / "study")


def test_in_memory_and_what_has_nothing_to_tune(tiny) -> None:
    study = abps.compare(
        tiny, ["local-best", "fedavg"], seeds=[11], rounds=1, references=False, tune=[5],
        settings=SMALL | {"epochs": 1},
    )  # fmt: skip
    alone, fedavg = study.record.choices
    assert alone.tried == () and len(fedavg.tried) == 3
    assert words_of(study.record.choices, (5,))[0] == "local-best: nothing to tune, it runs as it is"
    assert len(study.runs) == 2


def test_bad_requests(tiny) -> None:
    few = {"seeds": [11], "rounds": 1, "references": False, "tune": True}
    with pytest.raises(RequestError, match="anything to tune"):
        abps.compare(tiny, list(REFERENCES[:1]), **few)


def test_grids_that_are_none() -> None:
    class Wide(FedAvg):
        @property
        def grid(self) -> Mapping[str, tuple[Any, ...]]:
            return {"lr": (0.1, 0.2, 0.3), "epochs": (1, 2, 3)}

    class Wrong(FedAvg):
        @property
        def grid(self) -> Mapping[str, tuple[Any, ...]]:
            return {"tau": (1,)}

    with pytest.raises(RequestError, match="9 combinations"):
        combinations(Wide(), {})
    with pytest.raises(RequestError, match="names 'tau'"):
        combinations(Wrong(), {})


def test_ties_and_failures_in_words() -> None:
    tried = (Trial({"lr": 0.1}, 0.7), Trial({"lr": 0.2}, None))
    line = words_of([Choice("m", "d" * 16, {"lr": 0.1}, tried)], (5, 6))[0]
    assert line == "m tuned on seeds 5, 6: lr=0.1 (validation AUROC 0.700, best of 2 settings)"
