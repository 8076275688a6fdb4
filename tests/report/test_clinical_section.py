"""The clinical section of a report: its numbers, what is hidden, and hospitals that stayed away."""

import json
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

import abps
from abps.core.errors import RequestError
from abps.data.federation import groups_of
from abps.engine.clinical import Clinical
from abps.engine.crossvalidation import cross_validate
from abps.engine.result import Run
from abps.evaluate.calibration import expit
from abps.evaluate.verdicts import HospitalVerdict
from abps.report.build import parts_of
from abps.report.clinical_part import clinical_part
from abps.report.hospitals import hospitals_of


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Six hospitals: in one the risk is turned over, one has few deaths; a ward is rare."""
    rng = np.random.default_rng(5)
    per, n = 260, 6
    hospital = np.repeat(np.arange(n), per)
    age, lactate = rng.normal(64, 14, n * per), rng.gamma(2.0, 1.2, n * per)
    risk = 0.05 * (age - 64) + 0.9 * (lactate - 2.4)
    risk = np.where(hospital == 5, -risk, risk) - 0.9 - 2.6 * (hospital == 4)
    rows = pl.DataFrame(
        {
            "hospital": [f"H{k}" for k in hospital],
            "age": age.clip(18, 95).round(),
            "lactate": lactate.round(2),
            "sex": rng.choice(["F", "M"], n * per),
            "ward": np.where(rng.random(n * per) < 0.02, "rare", rng.choice(["east", "west"], n * per)),
            "died": (rng.random(n * per) < 1 / (1 + np.exp(-risk))).astype(int),
        }
    )
    path = tmp_path_factory.mktemp("clinic") / "stays.csv"
    rows.write_csv(path)
    return abps.read_table(path, "died", "hospital", drop=["ward"])


@pytest.fixture(scope="module")
def study(federation, tmp_path_factory):
    found = abps.compare(
        federation,
        ["local", "fedavg"],
        seeds=[11, 22],
        rounds=5,
        settings={"model": "gam"},
        references=False,
        subgroups=["ward"],
        folds=1,
        out=tmp_path_factory.mktemp("study") / "s",
    )
    return found, found.report()


def run_of(study, label, seed=11):
    return next(run for planned, run in study.runs if (planned.label, run.seed) == (label, seed))


def test_subgroups_and_decisions_are_those_of_the_rows(federation):
    run = abps.simulate(federation, "fedavg", 11, rounds=3, subgroups=["ward"])
    told, clinic = run.artifacts.probabilities, run.clinical
    y, p = told.labels.values.astype(float), told.after.values
    assert np.array_equal(federation.label[told.place], y)  # rows are known by where they stand
    assert np.allclose(told.before.values, expit(run.artifacts.answers.values.astype(float)))
    sex = federation.features["sex"].to_numpy()[told.place]
    for part in clinic.subgroups["sex"]:
        mine = sex == part.name
        assert (part.rows, part.events) == (mine.sum(), y[mine].sum())
        assert part.auroc.value == pytest.approx(roc_auc_score(y[mine], p[mine]), abs=1e-4)
        assert part.auroc.low < part.auroc.value < part.auroc.high
        assert part.ratio == pytest.approx(y[mine].sum() / p[mine].sum(), rel=1e-3)
    at = clinic.thresholds.index(0.2)
    called = p >= 0.2
    worth = (y[called].sum() - 0.25 * (1 - y[called]).sum()) / len(y)
    assert clinic.net_benefit[at] == pytest.approx(worth, abs=1e-5)


def test_small_parts_are_hidden_and_what_would_betray_them(federation):
    clinic = abps.simulate(federation, "fedavg", 11, rounds=1, subgroups=["ward"]).clinical
    ward = {part.name: part for part in clinic.subgroups["ward"]}
    assert ward["rare"].hidden and ward["rare"].rows == 0 and math.isnan(ward["rare"].auroc.value)
    assert sum(bool(part.hidden) for part in ward.values()) == 2  # and the next smallest
    assert set(groups_of(federation, ())) == {"age", "sex"}


def test_a_run_keeps_it_on_disk_and_old_results_are_read_without_it(federation):
    run = abps.simulate(federation, "fedavg", 11, rounds=1)
    content = json.loads(json.dumps(run.to_json()))
    assert "told" not in content and "NaN" not in json.dumps(content)
    assert Run.from_json(content).to_json() == content
    assert Run.from_json(content).clinical.per_center.keys() == run.clinical.per_center.keys()
    del content["clinical"]
    old = Run.from_json(content)
    assert old.clinical == Clinical() and "clinical" not in old.to_json()


def test_folds_score_every_row_once_here_too(federation):
    run = cross_validate(federation, "fedavg", 11, 3, name="fedavg")
    assert sum(part.rows for part in run.clinical.subgroups["sex"]) == federation.rows
    assert np.array_equal(np.sort(run.artifacts.probabilities.place), np.arange(federation.rows))


def test_what_the_report_says(study):
    found, report = study
    page = report.page.read_text()
    (part,) = parts_of(found)
    assert [line.label for line in part.lines] == ["local", "fedavg"]
    clinic = clinical_part(part, hospitals_of(part))
    assert part.page == "fedavg" and clinic.decisions.name == "decisions" and clinic.judged > 0
    for words in ("Clinical evaluation", "Decision curves"):
        assert words in page
    ward = [row for row in clinic.subgroups.rows if row[0] == "ward"]
    assert {row[1]: row[2] for row in ward}["rare"] == "hidden"
    folder = report.page.parent / "tables"
    assert {"hospitals.csv", "subgroups.csv"} <= {path.name for path in folder.iterdir()}
    events = pl.read_csv(folder / "centers.csv")["scored_events"]
    assert (events > 0).all()


def test_few_events_are_no_verdict(study):
    (part,) = parts_of(study[0])
    few = [h for h in hospitals_of(part) if h.events < 5]
    assert all(h.evidence.verdict is HospitalVerdict.TOO_FEW and not h.evidence.shown for h in few)
    assert all("cannot judge any model by itself" in h.advice for h in few)


def test_results_of_before_say_so(study):
    found, _ = study
    old = replace(
        found, runs=tuple((planned, replace(run, clinical=Clinical())) for planned, run in found.runs)
    )
    (part,) = parts_of(old)
    assert "asked for again" in clinical_part(part, ()).absent


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subgroups": ["wards"]}, "did you mean 'ward'"),
    ],
)
def test_what_cannot_be_asked_for(federation, options, words):
    with pytest.raises(RequestError, match=words):
        abps.compare(federation, ["fedavg"], seeds=[11], rounds=1, references=False, **options)
