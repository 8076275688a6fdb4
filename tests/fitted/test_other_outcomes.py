"""Models of every outcome come out whole: what they say on disk is what the run said, with a card."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import polars as pl
import pytest

import abps
from abps.cli.main import main
from abps.core.errors import RequestError
from abps.data.outcome import parse_outcome
from abps.fitted.fit import fit
from abps.fitted.folder import load_model
from abps.fitted.handover import write_models
from abps.fitted.model import readable
from onnx_inputs import graph_values

SPECS = ("survival", "classes", "continuous")


def table(spec: str, rows: int = 420) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    eta = x[:, 0] - 0.7 * x[:, 1]
    columns = {"hospital": [f"h{k % 3}" for k in range(rows)], "a": x[:, 0], "b": x[:, 1]}
    kind = parse_outcome(spec).kind
    if kind == "survival":
        time, watched = np.ceil(9 * rng.exponential(np.exp(-eta))), np.ceil(rng.exponential(15, rows))
        columns |= {"y": np.where(time <= watched, "died", "alive"), "t": np.minimum(time, watched)}
    elif kind == "classes":
        utilities = np.stack([eta, -eta, 0 * eta], axis=1) + rng.gumbel(size=(rows, 3))
        columns |= {"y": np.array(["home", "ward", "rehab"])[utilities.argmax(axis=1)]}
    else:
        columns |= {"y": 4 + 3 * eta + rng.normal(size=rows)}
    return pl.DataFrame(columns)


def run(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


@pytest.mark.parametrize("spec", SPECS)
def test_fit_writes_models_that_predict_as_the_run_did(tmp_path, spec, capsys):
    kind, frame = parse_outcome(spec).kind, table(spec)
    frame.write_csv(tmp_path / "rows.csv")
    named = ["--duration", "t"] if kind == "survival" else []
    out = tmp_path / "models"
    run(
        ["fit", "--method", "fedavg", "--model", "gam", "--rounds", "4", "--folds", "3", "--no-alone",
         "--data", str(tmp_path / "rows.csv"),
         "--label", "y", "--center", "hospital", "--outcome", spec, *named, "--out", str(out), "--json"]
    )  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    measure = parse_outcome(spec).measure
    assert told["measures"][measure] > (0.3 if kind == "continuous" else 0.6)
    assert told["auroc"] is None
    model = load_model(out / "h1")
    assert model.outcome.kind == spec
    card = (out / "h1" / "card.md").read_text()
    assert measure.replace("²", "²") in card and "Calibration\n" not in card
    features = readable(frame, model.book, model.ranges, model.center).features
    session = onnxruntime.InferenceSession(str(out / "h1" / "model.onnx"))
    (portable,) = session.run(None, graph_values(model, features))
    said = model.foretold(features).drop("risk", strict=False).to_numpy()
    np.testing.assert_allclose(portable.reshape(said.shape), said, atol=1e-5)
    run(
        ["predict", "--model", str(out / "h1"), "--data", str(tmp_path / "rows.csv"), "--carry", "hospital",
         "--out", str(tmp_path / "p.csv")]
    )  # fmt: skip
    found = pl.read_csv(tmp_path / "p.csv")
    assert found.height == frame.height and "hospital" in found.columns
    if kind == "survival":
        alive = found.select(c for c in found.columns if c.startswith("alive after")).to_numpy()
        assert alive.shape[1] >= 1 and (np.diff(alive, axis=1) <= 1e-9).all()
        assert ((alive >= 0) & (alive <= 1)).all()
        times, chances = model.predict_survival(frame)
        assert len(times) == alive.shape[1]
        np.testing.assert_allclose(chances, alive, atol=1e-6)
        with pytest.raises(RequestError, match="has no classes"):
            model.predict_proba(frame)
    elif kind == "classes":
        p = model.predict_proba(frame)
        assert p.shape == (frame.height, 3) and p.sum(axis=1) == pytest.approx(1.0)
        assert list(model.classes_) == ["home", "rehab", "ward"]
        assert (model.predict(frame) == frame["y"].to_numpy()).mean() > 0.5
    else:
        assert np.corrcoef(model.predict(frame), frame["y"])[0, 1] > 0.8


def test_what_only_binary_outcomes_have_is_refused(tmp_path):
    table("classes").write_csv(tmp_path / "rows.csv")
    fed = abps.read_table(tmp_path / "rows.csv", "y", "hospital", outcome="classes")
    with pytest.raises(RequestError, match="leave them out"):
        fit(fed, "fedavg", rounds=1, subgroups=("a",))


def test_a_network_of_hazards_comes_out_too(tmp_path):
    table("survival").write_csv(tmp_path / "rows.csv")
    fed = abps.read_table(tmp_path / "rows.csv", "y", "hospital", duration="t")
    fitted = fit(fed, "fedavg", rounds=2, settings={"hidden": "6,4"}, folds=3)
    folders = write_models(fitted, tmp_path / "out")
    model = load_model(folders["h0"])
    assert model.network.outputs == len(model.outcome.grid) > 1
    assert set(fitted.overall.measures) >= {"C-index", "Brier (IPCW)"}
    main = fitted.overall.measures["C-index"]
    assert main.low < main.value < main.high
