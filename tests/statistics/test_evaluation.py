"""Evaluation at every hospital against scikit-learn, and DeLong's variance against a bootstrap."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.special import expit
from sklearn.metrics import brier_score_loss, roc_auc_score

from abps.core.errors import RequestError
from abps.statistics.evaluation import evaluate_models, formula_probabilities, onnx_probabilities


def rows(seed=0, n=1500):
    rng = np.random.default_rng(seed)
    hospital = rng.choice(["a", "b", "c", "tiny"], n, p=[0.4, 0.35, 0.24, 0.01])
    x = rng.normal(size=n)
    p = expit(x - 1)
    return hospital, x, p, (rng.random(n) < p).astype(float)


def test_figures_at_a_hospital_are_scikit_learn_s():
    hospital, _, p, y = rows()
    found = evaluate_models({"m": p}, y, hospital)
    one = next(r for r in found.results if r.hospital == "a")
    mine = hospital == "a"
    assert one.auroc == pytest.approx(roc_auc_score(y[mine], p[mine]), abs=1e-12)
    assert one.brier == pytest.approx(brier_score_loss(y[mine], p[mine]), abs=1e-12)
    assert one.slope == pytest.approx(1.0, abs=0.35)
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(400):
        some = rng.integers(0, mine.sum(), mine.sum())
        drawn.append(roc_auc_score(y[mine][some], p[mine][some]))
    assert one.auroc_se == pytest.approx(np.std(drawn), rel=0.15)


def test_a_small_hospital_reports_nothing():
    hospital, _, p, y = rows()
    found = evaluate_models({"m": p}, y, hospital)
    tiny = next(r for r in found.results if r.hospital == "tiny")
    assert tiny.rows is None and tiny.auroc is None and tiny.benefit == ()
    assert found.frame().filter(pl.col("hospital") == "tiny")["auroc"].null_count() == 1


def test_the_better_model_is_better_on_average():
    hospital, x, p, y = rows()
    noise = np.random.default_rng(2).normal(size=len(y))
    found = evaluate_models({"good": p, "weak": expit(x + 2 * noise - 1)}, y, hospital)
    good, weak = found.summary("good"), found.summary("weak")
    assert good is not None and weak is not None and good["mean"] > weak["mean"] + 0.05
    assert good["next_low"] <= good["low"] <= good["mean"] <= good["high"] <= good["next_high"]


def test_a_formula_gives_its_probabilities():
    frame = pl.DataFrame({"age": [60.0, 70.0], "sex": ["m", "f"]})
    p = formula_probabilities(frame, {"intercept": -3.0, "age": 0.04, "sex[m]": 0.5})
    np.testing.assert_allclose(p, expit([-3 + 2.4 + 0.5, -3 + 2.8]))
    with pytest.raises(RequestError, match="names 'bmi'"):
        formula_probabilities(frame, {"bmi": 1.0})
    with pytest.raises(RequestError, match="between 0 and 1"):
        evaluate_models({"m": np.array([0.5, 1.5])}, np.array([0.0, 1.0]), ["a", "a"])


def test_subgroups_and_hospitals_outside_are_those_rows():
    hospital, x, p, y = rows()
    sex = np.where(x > 0, "f", "m")
    found = evaluate_models({"m": p}, y, hospital, subgroups={"sex": sex}, outside=["c"])
    one = next(r for r in found.results if (r.hospital, r.subgroup) == ("b", "sex=f"))
    here = (hospital == "b") & (sex == "f")
    assert one.rows == here.sum() and one.auroc == pytest.approx(roc_auc_score(y[here], p[here]), abs=1e-12)
    inside = hospital != "c"
    alone = evaluate_models({"m": p[inside]}, y[inside], hospital[inside])
    assert found.summary("m")["mean"] == alone.summary("m")["mean"]
    assert "m at c: AUROC" in found.transport("m")[0] or "too few" in found.transport("m")[0]
    matrix = found.matrix()
    assert matrix.columns == ["model", "a", "b", "c", "tiny"] and matrix["tiny"].null_count() == 1
    assert all(r["subgroup"] for r in found.to_json()["results"])
    with pytest.raises(RequestError, match="'z' is no hospital"):
        evaluate_models({"m": p}, y, hospital, outside=["z"])
    with pytest.raises(RequestError, match="levels; choose one"):
        evaluate_models({"m": p}, y, hospital, subgroups={"x": [str(v) for v in x]})


def test_an_onnx_file_with_an_input_per_column_gives_its_probabilities(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, 1]) for n in ("age", "bmi")]
    output = helper.make_tensor_value_info("p", TensorProto.FLOAT, [None, 1])
    nodes = [helper.make_node("Add", ["age", "bmi"], ["s"]), helper.make_node("Sigmoid", ["s"], ["p"])]
    graph = helper.make_graph(nodes, "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "other.onnx")
    frame = pl.DataFrame({"age": [0.5, -1.0], "bmi": [1, 0]})
    np.testing.assert_allclose(
        onnx_probabilities(frame, tmp_path / "other.onnx"), expit([1.5, -1.0]), rtol=1e-6
    )
    with pytest.raises(RequestError, match="needs a column 'bmi'"):
        onnx_probabilities(frame.drop("bmi"), tmp_path / "other.onnx")
