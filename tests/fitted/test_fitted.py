"""The models that come out say what the run said, wherever they are used."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import abps
from abps.cli.main import main
from abps.core.errors import RequestError
from abps.data.prepare import prepare
from abps.data.split import assign_splits
from abps.engine.simulate import simulate
from abps.fitted.card import card, markdown
from abps.fitted.fit import fit
from abps.fitted.folder import folder_names, load_model
from abps.fitted.handover import write_models
from abps.methods.settings import configure
from onnx_inputs import graph_values


def hospitals(rows: int = 900) -> pl.DataFrame:
    """Three hospitals with gaps, a category, a flag, a constant, and a name that no folder may have."""
    rng = np.random.default_rng(7)
    lactate = np.round(rng.gamma(2.0, 1.2, rows) + 0.2, 2)
    age = np.round(rng.normal(65, 14, rows)).clip(18, 95)
    sex = rng.choice(["male", "female"], rows)
    ventilated = rng.random(rows) < 0.3
    risk = -3.4 + 0.9 * lactate + 0.04 * (age - 65) + 0.7 * ventilated
    names = np.array(["north", "../south <b>", "Žilina"])[np.arange(rows) % 3]
    return pl.DataFrame(
        {
            "hospital": names,
            "died": np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "yes", "no"),
            "lactate": pl.Series(np.where(rng.random(rows) < 0.1, np.nan, lactate)).fill_nan(None),
            "age": age,
            "sex": sex,
            "unit": rng.choice(["MICU", "SICU", "CCU", None], rows).tolist(),
            "ventilated": ventilated.astype(int),
        }
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "stays.csv"
    hospitals().write_csv(path)
    return path


SETTINGS = [{"standardise": "own"}, {"standardise": "common"}, {"model": "linear"}, {"model": "gam"}]


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda s: ",".join(map(str, s.values())))
def made(request, table, tmp_path_factory):
    """A fit, and its folders."""
    federation = abps.read_table(table, "died", "hospital")
    alone = request.param == SETTINGS[-1]  # once is enough: it is the same for all
    fitted = fit(federation, "fedavg", rounds=8, settings=request.param, subgroups=("unit",), alone=alone)
    out = tmp_path_factory.mktemp("fit") / "models"
    return fitted, write_models(fitted, out), request.param


def predictions_of_the_run(federation, settings, method="fedavg", rounds=8):
    """Row and probability of the rows learned from, as the engine predicts them: not recalibrated."""
    config = configure(method, settings, rounds)
    split = assign_splits(federation, 11)
    split = np.where(split == 2, 0, split).astype(np.int8)
    training = config.training
    data = prepare(federation, 11, split=split, standardise=training.standardise, splines=training.splines)
    run = simulate(replace(data, test=data.train), config, 11)
    return run.row_scores.sort("row").select("row", (1 / (1 + (-pl.col("logit").cast(pl.Float64)).exp())))


def test_fit_and_predict_say_what_the_run_said(made, table):
    fitted, folders, settings = made
    frame = pl.read_csv(table)
    run = predictions_of_the_run(fitted.federation, settings)
    for center, folder in folders.items():
        model = load_model(folder)
        mine = frame.with_row_index().filter(pl.col("hospital") == center)
        p = model.predict_proba(frame)[:, 1]
        theirs = run.filter(pl.col("row").is_in(mine["index"].implode()))
        own = model.recalibration.apply(theirs["literal"].to_numpy())
        assert np.abs(p[theirs["row"].to_numpy()] - own).max() < 1e-6


def test_every_patient_is_evaluated_out_of_fold_and_against_the_hospital_alone(made):
    fitted, folders, settings = made
    assert fitted.overall.rows == 900 == sum(e.rows for e in fitted.evaluations.values())
    frame = fitted.evaluated.row_scores
    assert sorted(frame["row"].to_list()) == list(range(900)) and set(frame["fold"]) == set(range(5))
    for i, center in enumerate(fitted.federation.centers):
        own = fitted.evaluations[center].area
        each = [
            (len(y) - y.sum()) * y.sum() * np.array([roc_auc_score(y, part["logit"]), 1.0])
            for _, part in frame.filter(pl.col("center") == i).group_by("fold")
            if 0 < (y := part["y"].to_numpy()).sum() < len(y)
        ]
        hits, pairs = np.sum(each, axis=0)
        # Recalibration within a fold keeps the order of its rows, so the areas agree.
        assert own.value == pytest.approx(hits / pairs, abs=2e-3)
    if settings == SETTINGS[-1]:
        for center, found in fitted.alone.items():
            assert found.together == pytest.approx(fitted.evaluations[center].area.value, abs=2e-3)
            assert found.evidence.own.value == pytest.approx(found.together - found.alone, abs=1e-9)
            assert found.evidence.gain.low < found.evidence.gain.value < found.evidence.gain.high
            card = (folders[center] / "card.md").read_text()
            assert "## Alone or together" in card and f"{found.alone:.3f}" in card


def test_no_row_is_idle_and_validation_rows_are_not_learned_from(made):
    fitted, _, _ = made
    learned, validation = (
        sum(m.about["rows"][each] for m in fitted.models) for each in ("learned", "validation")
    )
    assert learned + validation == 900 and 0.8 < learned / 900 < 0.9
    assert fitted.overall.area.value > 0.7 and fitted.overall.area.events == fitted.overall.events


def log_odds(model, features):
    """(rows,) what the network says, before recalibration."""
    return model.network.answers(model.encode(features))[:, 0]


def test_onnx_gives_the_same_numbers(made, table):
    onnxruntime = pytest.importorskip("onnxruntime")
    from abps.fitted.model import readable

    _, folders, _ = made
    frame = pl.read_csv(table)
    for folder in folders.values():
        model = load_model(folder)
        features = readable(frame, model.book, model.ranges, model.center).features
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
        (p,) = session.run(None, graph_values(model, features))
        assert np.abs(p - model.predict_proba(frame)[:, 1]).max() < 1e-5


def test_a_model_is_a_classifier(made, table):
    _, folders, _ = made
    model = abps.load_model(folders["north"])
    frame = pl.read_csv(table)
    p = model.predict_proba(frame)
    assert p.shape == (900, 2) and np.allclose(p.sum(axis=1), 1) and list(model.classes_) == [0, 1]
    assert (model.predict(frame, 0.3) == (p[:, 1] >= 0.3)).all()
    assert set(model.feature_names_in_) == {"lactate", "age", "sex", "unit", "ventilated"}
    by_name = model.predict_proba({name: frame[name].to_list() for name in frame.columns})
    np.testing.assert_array_equal(by_name, p)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.drop("lactate"), "needs the column 'lactate'"),
        (lambda f: f.rename({"lactate": "lactat"}), "did you mean 'lactat'"),
        (lambda f: f.with_columns(pl.lit("high").alias("lactate")), "holds text ('high')"),
        (lambda f: f.with_columns(pl.col("age") * 12), "of 'age' lie outside"),
        (lambda f: f.with_columns(pl.int_range(pl.len()).mul(0.37).alias("unit")), "holds numbers where"),
        (lambda f: f.head(0), "no rows"),
    ],
)
def test_tables_that_a_model_cannot_read(made, table, change, says):
    _, folders, _ = made
    model = load_model(folders["north"])
    with pytest.raises(RequestError) as raised:
        model.predict_proba(change(pl.read_csv(table)))
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_cells_are_mended_as_they_were_for_learning(made, table):
    _, folders, _ = made
    model = load_model(folders["north"])
    frame = pl.read_csv(table)
    spoiled = frame.with_columns(
        pl.col("age").cast(pl.String).str.replace(r"\.0", " years"),
        pl.col("sex").str.to_uppercase().str.head(1),
    )
    np.testing.assert_array_equal(model.predict_proba(spoiled), model.predict_proba(frame))


def test_folders_have_names_that_can_be_typed_and_are_found_by_the_hospitals_own(made):
    _, folders, _ = made
    parent = folders["north"].parent
    assert {path.relative_to(parent).as_posix() for path in folders.values()} == {
        "north", "south-b", "Zilina",
    }  # fmt: skip
    odd = ["..", "/", "a/b", "", "x" * 300, "ä\n", "a b", "A-B", "../south <b>", "../south <i>"]
    names = folder_names(odd)
    assert len({name.lower() for name in names.values()}) == len(odd)
    assert all(re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,70}", name, re.ASCII) for name in names.values())
    for written in ("NORTH", "../south <b>", "žilina", "Zilina"):
        assert load_model(f"{parent}/{written}").center.lower() in (written.lower(), "žilina")
    with pytest.raises(RequestError, match="did you mean 'north'"):
        load_model(parent / "nort")


def test_the_card_knows_the_years_of_the_stays(table, tmp_path):
    frame = pl.read_csv(table).with_columns(year=2011 + pl.int_range(pl.len()) % 7)
    frame.write_csv(tmp_path / "years.csv")
    federation = abps.read_table(tmp_path / "years.csv", "died", "hospital", time="year")
    fitted = fit(federation, "fedavg", rounds=1, alone=False, folds=3)
    said = markdown("card", card(fitted, fitted.models[0]))
    assert "2011 to 2017" in said and "which years" not in said


def test_the_card_is_complete_and_its_names_are_text(made):
    _, folders, _ = made
    for folder in folders.values():
        html, md = (folder / "card.html").read_text(), (folder / "card.md").read_text()
        for title in (
            "Intended use", "Cohort and flow", "Predictors and missing values", "How it was made",
            "Performance on patients the model had not seen", "Calibration", "Decisions and thresholds",
            "Subgroups", "Limits and versions",
        ):  # fmt: skip
            assert f"<h2>{title}</h2>" in html and f"## {title}" in md
        assert "<b>" not in html and "http-equiv" in html and "<script" not in html
        assert "nan" not in html.replace("finance", "") and "None" not in html
        assert "female" in html and "MICU" in html
        for name in ("calibration.svg", "decisions.svg"):
            assert (folder / name).read_text().startswith("<svg")


def test_the_checklist_has_every_item_and_leaves_to_people_what_only_they_know(made):
    _, folders, _ = made
    for folder in folders.values():
        part = (folder / "card.md").read_text().partition("## Checklist of TRIPOD+AI")[2]
        rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| ")][1:]
        assert [row[0].removeprefix("| ") for row in rows] == [str(item) for item in range(1, 28)]
        state = {int(row[0][2:]): row[3].removesuffix(" |") for row in rows}
        still = [item for item, words in state.items() if words.startswith("open")]
        assert still == [2, 10, 17, 19]
        assert state[23] == "answered" and state[18] == "complete it"


def test_the_front_matter_of_a_card_is_what_hugging_face_reads(made):
    fitted, folders, _ = made
    for center, folder in folders.items():
        head, _, body = (folder / "card.md").read_text().removeprefix("---\n").partition("\n---\n")
        said = yaml.safe_load(head)
        assert said["library_name"] == "abps" and said["pipeline_tag"] == "tabular-classification"
        area = fitted.evaluations[center].area
        if area.enough:
            (entry,) = said["model-index"]
            found = {each["type"]: each["value"] for each in entry["results"][0]["metrics"]}
            assert found["roc_auc"] == pytest.approx(area.value, abs=1e-4)
            assert center in entry["name"]
        else:
            assert "model-index" not in said
        assert body.lstrip().startswith("# Model card")


def test_a_damaged_model_is_refused(made, tmp_path):
    import shutil

    _, folders, _ = made
    copy = tmp_path / "copy"
    shutil.copytree(folders["north"], copy)
    (copy / "weights.safetensors").write_bytes((copy / "weights.safetensors").read_bytes()[:-4] + b"abcd")
    with pytest.raises(RequestError, match="not the file"):
        load_model(copy)
    (copy / "model.json").write_text("{")
    with pytest.raises(RequestError, match="damaged"):
        load_model(copy)
    with pytest.raises(RequestError, match="such as "):
        load_model(folders["north"].parent)
    with pytest.raises(RequestError, match="abps fit"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize("method", ["local", "abps-pq-k1", "centralized", "ditto"])
def test_other_methods_come_out_too(method, table):
    fitted = fit(abps.read_table(table, "died", "hospital"), method, rounds=2, folds=3, alone=False)
    run = predictions_of_the_run(fitted.federation, {}, method, 2)
    for i, model in enumerate(fitted.models):
        theirs = run.filter(pl.Series(fitted.federation.center[run["row"].to_numpy()] == i))
        p = model.foretold(fitted.federation.features[theirs["row"].to_numpy()])["probability"]
        own = model.recalibration.apply(theirs["literal"].to_numpy())
        assert np.abs(p.to_numpy() - own).max() < 1e-5


def test_the_model_alone_comes_out_too(table, tmp_path):
    """Every hospital's own penalised regression: scikit-learn's with its own penalty predicts alike."""
    federation = abps.read_table(table, "died", "hospital")
    fitted = fit(federation, "local-best")
    folders = write_models(fitted, tmp_path / "alone")
    assert not fitted.alone and fitted.overall.area.value > 0.75
    assert "on this hospital's rows alone" in (folders["north"] / "card.md").read_text()
    model = load_model(tmp_path / "alone" / "north")
    frame = pl.read_csv(table).filter(pl.col("hospital") == "north")
    x = np.column_stack(
        [frame["lactate"].fill_null(frame["lactate"].mean()), frame["age"], frame["ventilated"]]
    )
    theirs = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, frame["died"] == "yes")
    ours = log_odds(model, frame.select(model.needs))
    assert np.corrcoef(ours, theirs.decision_function(x))[0, 1] > 0.9


def test_thresholds_hold_on_rows_that_they_were_not_chosen_on(made):
    fitted, _, _ = made
    for name, at in fitted.overall.thresholds.items():
        if name.startswith("sensitivity"):
            assert at.sensitivity.low < 0.9 < at.sensitivity.high + 0.02
    assert fitted.overall.calibration.slope.low < 1 < fitted.overall.calibration.slope.high


def test_a_method_that_is_no_one_network_says_so(table):
    with pytest.raises(RequestError, match="fit another method"):
        fit(abps.read_table(table, "died", "hospital"), "bnn", rounds=2, folds=3, alone=False)


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


def test_the_command_line(capsys, table, tmp_path):
    roles = ["--label", "died", "--center", "hospital"]
    models = tmp_path / "models"
    code, out, err = call(
        capsys, "fit", "--method", "fedavg", "--rounds", 3, "--folds", 3, "--data", table, *roles, "--out",
        models, "--json",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    assert set(told["folders"]) == {"north", "../south <b>", "Žilina"} and told["events"] > 10
    p = tmp_path / "p.parquet"
    code, out, err = call(
        capsys, "predict", "--model", models / "north", "--data", table, "--carry", "hospital", "--out", p
    )
    assert code == 0 and "900 rows" in out, err
    result = pl.read_parquet(p)
    assert result.columns == ["row", "hospital", "probability"]
    own = load_model(models / "north").predict_proba(pl.read_csv(table))[:, 1]
    assert np.abs(result["probability"].to_numpy() - own).max() < 1e-12
    code, _, err = call(capsys, "fit", "--method", "fedavg", "--data", table, *roles, "--out", models)
    assert code == 2 and "is there already" in err
    pl.read_csv(table).with_columns(pl.col("age") * 12).write_csv(tmp_path / "months.csv")
    wrong = [
        "predict",
        "--model",
        models / "north",
        "--data",
        tmp_path / "months.csv",
        "--out",
        tmp_path / "q.csv",
    ]
    code, _, err = call(capsys, *wrong)
    assert code == 2 and "another unit" in err and not (tmp_path / "q.csv").exists()
    code, _, err = call(capsys, *wrong, "--anyway")
    assert code == 0 and "warning: " in err and (tmp_path / "q.csv").exists()


def test_curves_of_an_additive_model_are_what_it_computes(table):
    from abps.fitted.curves import effects

    federation = abps.read_table(table, "died", "hospital")
    model = fit(federation, "fedavg", rounds=8, settings={"model": "gam"}, folds=3, alone=False).models[0]
    frame = federation.features.head(1)
    base = log_odds(model, frame.with_columns(pl.lit(None, dtype=pl.Float64).alias("age")))[0]
    curve = next(e for e in effects(model) if e.name == "age")
    values, adds = curve.curve
    for value, added in list(zip(values, adds))[::17]:
        now = log_odds(model, frame.with_columns(pl.lit(float(value)).alias("age")))[0]
        assert now - base == pytest.approx(added, abs=1e-5)
    assert curve.knots and np.ptp(adds) == pytest.approx(curve.amount)
    assert adds[-1] > adds[0]  # older is riskier, as the table was made
    flag = next(e for e in effects(model) if e.name == "ventilated")
    one, none = (log_odds(model, frame.with_columns(pl.lit(v).alias("ventilated")))[0] for v in (1.0, 0.0))
    assert flag.curve is None and one - none == pytest.approx(flag.amount, abs=1e-5)
