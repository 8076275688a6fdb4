"""Comparisons in Python: in memory, in a folder, with one's own methods; and back from the disk."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

import abps
from abps.core.errors import RequestError
from abps.methods.fedavg import FedAvg
from abps.study.compare import Study
from abps.study.plan import Request, Source, expand_methods, make_plan

SEEDS = (11, 22)


@dataclass(frozen=True)
class Half(FedAvg):
    """A method that only this file knows."""

    smoothing: float = 0.5


@pytest.fixture(scope="module")
def federation():
    return abps.load("icu-synthetic:centers=8,stays=800")


@pytest.fixture(scope="module")
def study(federation):
    return abps.compare(
        federation, ["local", "fedavg", Half(), "abps-pq-k1"], SEEDS, rounds=2, references=False, folds=1
    )


def test_a_frame_has_a_row_for_every_method_seed_and_center(study, federation):
    frame = study.frame()
    scores = ["auroc", "auprc", "brier"]
    assert frame.columns == ["data", "method", "seed", "center", *scores, "rounds", "bytes", "settings"]
    assert frame.height == 4 * len(SEEDS) * federation.size
    for planned, run in study.runs:
        mine = frame.filter(method=planned.label, seed=run.seed)
        assert mine["auroc"].drop_nulls().mean() == pytest.approx(run.auroc.mean)
        assert mine["brier"].drop_nulls().mean() == pytest.approx(run.brier.mean)
    assert not frame["auroc"].is_nan().any()


def test_every_run_is_what_simulate_gives(study, federation):
    for planned, run in study.runs:
        alone = abps.simulate(federation, Half() if planned.method == "half" else planned.method, run.seed, 2)
        assert alone.auroc.per_center == pytest.approx(run.auroc.per_center, nan_ok=True, abs=0)
        assert alone.bytes == run.bytes and alone.decisions.equals(run.decisions)


def test_tables_figures_and_report(study, tmp_path):
    assert [row[0] for row in study.table().rows] == ["local", "fedavg", "half", "abps-pq-k1"]
    assert "<table>" in study._repr_html_() and "half" in str(study.table())
    assert study.plot("rounds").name == "rounds" and "<svg" in study.plot("pareto")._repr_svg_()
    with pytest.raises(RequestError, match="there is no figure 'map'"):
        study.plot("map")
    assert set(study.plots()) >= {"pareto", "rounds"}
    report = study.report(tmp_path / "r")
    assert report.page.exists() and (tmp_path / "r/tables/headline.csv").exists()
    with pytest.raises(RequestError, match="has no folder; name one"):
        study.report()


def test_a_folder_keeps_runs_and_finished_ones_are_not_computed_again(federation, tmp_path, monkeypatch):
    methods = {"mine": Half(), "plain": "fedavg"}
    first = abps.compare(federation, methods, SEEDS, rounds=1, out=tmp_path / "s", references=False, folds=3)
    monkeypatch.setattr("abps.engine.simulate.simulate", None)  # nothing is left to compute
    again = abps.compare(federation, methods, SEEDS, rounds=1, out=tmp_path / "s", references=False, folds=3)
    assert first.frame().equals(again.frame()) and again.frame().equals(
        abps.load_study(tmp_path / "s").frame()
    )
    assert [run.label for run, _ in again.runs] == ["mine", "plain"] * 2
    assert not (tmp_path / "s/cache").exists()


def test_other_processes_compute_the_same(federation, tmp_path):
    same = {"rounds": 1, "references": False, "folds": 3}
    here = abps.compare(federation, ["local", "abps-pq-k1"], [11], **same)
    there = abps.compare(federation, ["local", "abps-pq-k1"], [11], out=tmp_path / "s", jobs=2, **same)
    assert here.frame().equals(there.frame())
    with pytest.raises(RequestError, match="jobs=1: other processes need"):
        abps.compare(federation, ["local"], [11], rounds=1, jobs=1, references=False)


def test_folds_are_the_default_and_the_paper_keeps_its_split(federation):
    plan = make_plan(Request((Source("a"),), ("local",), (11,)), given=(federation,))
    assert {run.folds for run in plan.runs} == {5}
    paper = Request((Source("a"),), expand_methods(["paper"]), (11,), words=("paper",))
    assert {run.folds for run in make_plan(paper, given=(federation,)).runs} == {None}
    once = Request((Source("a"),), ("local",), (11,), folds=1)
    assert {run.folds for run in make_plan(once, given=(federation,)).runs} == {None}
    attacked = Request((Source("a"),), ("fedavg",), (11,), attack="sign-flip:share=0.2")
    assert {run.folds for run in make_plan(attacked, given=(federation,)).runs} == {None}


def test_several_federations_and_a_model(federation):
    other = abps.load("icu-synthetic:centers=8,stays=900")
    study = abps.compare(
        [federation, other], ["fedavg"], [11], rounds=1, model="linear", references=False, folds=1
    )
    assert [run.data.rows for _, run in study.runs] == [federation.rows, other.rows]
    assert all(run.config["training"]["model"] == "linear" for _, run in study.runs)


def test_predictions_are_the_rows_that_were_scored(study, federation):
    run = study.runs[0][1]
    rows = run.predictions()
    assert rows.columns == ["row", "center", "fold", "y", "probability"]
    assert rows["y"].to_list() == federation.label[rows["row"].to_numpy()].tolist()
    names = np.array(federation.centers)[federation.center[rows["row"].to_numpy()]]
    assert rows["center"].to_list() == names.tolist()
    assert rows["probability"].is_between(0, 1).all()


def test_two_methods_of_one_name_are_refused(federation):
    with pytest.raises(RequestError, match="two methods are called 'half'; give a mapping"):
        abps.compare(federation, [Half(), Half(smoothing=0.1)], [11], references=False)
    with pytest.raises(RequestError, match="no seed is named"):
        abps.compare(federation, ["local"], [], references=False)


def test_a_run_comes_back_from_the_disk_as_it_was(federation, tmp_path):
    run = abps.simulate(federation, "abps-pq-k1", rounds=2)
    from abps.engine.result import save

    save(run, tmp_path / "r")
    back = abps.load_run(tmp_path / "r")
    assert back.to_json() == run.to_json() == json.loads((tmp_path / "r/result.json").read_text())
    assert back.decisions.equals(run.decisions) and back.row_scores.equals(run.row_scores)
    assert (back.bytes, back.rest, back.data, back.config) == (run.bytes, run.rest, run.data, run.config)
    np.testing.assert_array_equal(list(back.auroc.per_center.values()), list(run.auroc.per_center.values()))
    fedavg = run.bytes.edge / run.bytes.vs_fedavg
    assert run.bytes.all_vs_fedavg == pytest.approx((run.bytes.edge + run.bytes.control) / fedavg)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "x"}, "not a result"),
        ({"bytes": {}}, "edge"),
        ({"seed": "eleven"}, "int"),
        (None, "damaged"),
    ],
)
def test_what_is_not_a_result_gets_one_sentence(federation, tmp_path, change, said):
    content = abps.simulate(federation, "local", rounds=1).to_json()
    text = "{" if change is None else json.dumps(content | change)
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RequestError, match=said):
        abps.load_run(tmp_path)


def test_undefined_numbers_are_null_on_disk_and_nan_in_memory(federation):
    run = abps.simulate(federation, "local", rounds=1)
    content = run.to_json()
    content["auroc"]["per_center"]["nobody"] = None
    assert math.isnan(abps.Run.from_json(content).auroc.per_center["nobody"])
    json.dumps(content, allow_nan=False)


def test_short_words_for_long_things(study, federation):
    for thing in (study, study.runs[0][1], federation):
        assert len(repr(thing)) < 200 and "\n" not in repr(thing)
    assert "7 centers" in repr(federation) and "AUROC" in repr(study.runs[0][1])


def test_an_empty_study_says_so(study):
    empty = Study(study.record, (), ("local, seed 11: not computed yet",))
    assert empty.frame().equals(pl.DataFrame())
    with pytest.raises(RequestError, match=r"has no finished run \(local, seed 11"):
        empty.table()
