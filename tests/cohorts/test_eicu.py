"""eICU demo: counts, vitals, comorbidities and splits, against plain Python over the CSV files."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from abps.cohorts import eicu
from abps.core.errors import RequestError
from abps.data.federation import Federation
from abps.data.split import assign_splits

from . import oracles

Data = Callable[[str], Path]


@pytest.fixture(scope="module")
def root(data: Data) -> Path:
    return data("eicu-demo-2.0")


@pytest.fixture(scope="module")
def cohort(root: Path) -> eicu.Cohort:
    return eicu.build(root, eicu.EicuOptions(charlson="17"))


def unit_discharges(root: Path) -> dict[int, int]:
    """Stay -> the minute of unit discharge."""
    rows = oracles.rows(root / "patient.csv.gz")
    return {int(r["patientunitstayid"]): int(r["unitdischargeoffset"]) for r in rows}


def test_counts_of_the_demo(cohort: eicu.Cohort) -> None:
    first, known = cohort.steps[0], cohort.steps[1]
    assert first.stays == 2_520 and cohort.facts["hospitals"] == 186
    assert (known.stays, known.positives, known.left_out) == (2_492, 212, 28)
    assert (cohort.table.height, cohort.table["died"].sum(), cohort.table["hospital"].n_unique()) == (
        2_492,
        212,
        186,
    )
    assert cohort.facts["outcome_disagrees_with_apache"] == 0
    assert any("vitalPeriodic.csv.gz is absent" in w for w in cohort.warnings)


def test_ages(root: Path, cohort: eicu.Cohort) -> None:
    text = {int(r["patientunitstayid"]): r["age"] for r in oracles.rows(root / "patient.csv.gz")}
    for stay, age in cohort.table.select("stay", "age").iter_rows():
        expected = 90.0 if text[stay] == "> 89" else float(text[stay]) if text[stay] else None
        assert age == expected
    adults = eicu.build(root, eicu.EicuOptions(min_age=18, max_age=95))
    assert [s.label for s in adults.steps[2:]] == ["age unknown", "age outside 18–95 years"]
    assert [s.left_out for s in adults.steps[2:]] == [4, 4]


def test_pressures_of_every_stay(root: Path, cohort: eicu.Cohort) -> None:
    ends = unit_discharges(root)
    kinds = {"noninvasivesystolic": "sbp", "noninvasivediastolic": "dbp", "noninvasivemean": "mbp"}
    events = [
        (int(r["patientunitstayid"]), int(r["observationoffset"]), kind, float(r[column]))
        for r in oracles.rows(root / "vitalAperiodic.csv.gz")
        if 0 <= int(r["observationoffset"]) <= min(1440, ends[int(r["patientunitstayid"])])
        for column, kind in kinds.items()
        if r[column]
    ]
    expected = oracles.summarise([(s, t, k, v) for s, t, k, v in events])
    for row in cohort.table.iter_rows(named=True):
        for vital in ("sbp", "dbp", "mbp"):
            have = tuple(row[f"{vital}_{s}"] for s in ("mean", "min", "max"))
            want = expected.get((row["stay"], vital))
            assert have == ((None, None, None) if want is None else pytest.approx(want, abs=1e-6))


def test_comorbidities_by_brute_force(root: Path, data: Data, cohort: eicu.Cohort) -> None:
    prefixes = json.loads(data("charlson_prefixes.json").read_text())["categories"]
    prefixes["malignant_cancer"]["9"] += ["179", "181", "185", "193"]
    ends = unit_discharges(root)
    codes = defaultdict(set)
    for r in oracles.rows(root / "diagnosis.csv.gz"):
        if int(r["diagnosisoffset"]) <= min(1440, ends[int(r["patientunitstayid"])]):
            for code in filter(None, (c.strip() for c in r["icd9code"].split(","))):
                nine = (
                    code[0].isdigit() or code[0] == "V" or (code[0] == "E" and len(code.split(".")[0]) == 4)
                )
                codes[int(r["patientunitstayid"])].add((code.replace(".", ""), "9" if nine else "10"))
    history = defaultdict(str)
    for r in oracles.rows(root / "pastHistory.csv.gz"):
        if int(r["pasthistoryenteredoffset"]) <= min(1440, ends[int(r["patientunitstayid"])]):
            history[int(r["patientunitstayid"])] += r["pasthistorypath"] + "\n"
    pred = {int(r["patientunitstayid"]): r for r in oracles.rows(root / "apachePredVar.csv.gz")}
    from_codes = 0
    for row in cohort.table.iter_rows(named=True):
        stay = row["stay"]
        has = {
            name: any(code.startswith(p) for code, version in codes[stay] for p in by[version])
            for name, by in prefixes.items()
        }
        from_codes += sum(has.values())
        apache = pred.get(stay, {})
        heart = "Congestive Heart Failure" in history[stay] or has["congestive_heart_failure"]
        assert row["cci_congestive_heart_failure"] == heart
        lung = any(w in history[stay] for w in ("/COPD/", "/Asthma/", "/Restrictive Disease/"))
        assert row["cci_chronic_pulmonary"] == (lung or has["chronic_pulmonary_disease"])
        spread = "/Metastases/" in history[stay] or apache.get("metastaticcancer") == "1"
        assert row["cci_metastatic_tumor"] == (spread or has["metastatic_solid_tumor"])
        sugar = "Dependent Diabetes" in history[stay] or apache.get("diabetes") == "1"
        assert row["cci_diabetes_uncomplicated"] == (sugar or has["diabetes_without_cc"])
        assert row["cci_paraplegia"] == has["paraplegia"]
    assert from_codes > 500


def test_minus_one_is_missing_and_the_outcome_is_no_feature(root: Path, cohort: eicu.Cohort) -> None:
    aps = {int(r["patientunitstayid"]): r for r in oracles.rows(root / "apacheApsVar.csv.gz")}
    for row in cohort.table.iter_rows(named=True):
        source = aps.get(row["stay"])
        want = float(source["creatinine"]) if source and float(source["creatinine"]) != -1 else None
        assert row["aps_creatinine"] == want
    features = [c.name for c in cohort.dictionary if c.role == "feature"]
    for name in features:  # nothing in the table is the outcome under another name
        column = cohort.table[name]
        if column.dtype.is_numeric() and column.n_unique() == 2:
            agree = (column.cast(pl.Int64) == cohort.table["died"]).mean()
            assert agree < 0.97  # type: ignore[operator]


def test_no_patient_in_two_splits(cohort: eicu.Cohort) -> None:
    table = cohort.table
    centers = tuple(sorted(table["hospital"].unique().to_list()))
    federation = Federation(
        name="eicu",
        features=table.select("age"),
        label=table["died"].to_numpy(),
        center=table["hospital"].replace_strict(centers, range(len(centers))).cast(pl.Int32).to_numpy(),
        centers=centers,
        patient=table["patient"].rank("dense").cast(pl.Int64).to_numpy(),
    )
    split = assign_splits(federation, 11)
    assert set(split.tolist()) == {0, 1, 2}
    pairs = np.unique(np.stack([federation.patient, federation.center, split]), axis=1)  # type: ignore[list-item]
    assert pairs.shape[1] == np.unique(pairs[:2], axis=1).shape[1]
    several = table.group_by("patient").len().filter(pl.col("len") > 1).height
    assert several > 300  # the rule has something to do


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    target = tmp_path / "eicu"
    target.mkdir()
    for file in root.glob("*.csv.gz"):
        shutil.copyfile(file, target / file.name)
    return target


def test_with_vital_periodic(root: Path, copy: Path) -> None:
    ends = unit_discharges(root)
    stays = list(ends)[:200]
    lines = [
        "vitalperiodicid,patientunitstayid,observationoffset,temperature,sao2,heartrate,respiration,cvp,"
        "systemicsystolic,systemicdiastolic,systemicmean"
    ]
    events = []
    rng = np.random.default_rng(2)
    for stay in stays:
        for minute in (-5, 0, 5, 700, 1440, 1445):
            rate, fever, cuff = (
                rng.integers(40, 400),
                round(float(rng.uniform(5, 60)), 1),
                rng.integers(60, 200),
            )
            lines.append(f"1,{stay},{minute},{fever},,{rate},,,{cuff},,")
            if 0 <= minute <= min(1440, ends[stay]):
                events += [(stay, minute, "heart_rate", float(rate)), (stay, minute, "celsius", fever)]
                events += [(stay, minute, "sbp", float(cuff))]
    (copy / "vitalPeriodic.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    made = eicu.build(copy)
    assert not any("vitalPeriodic" in w for w in made.warnings)
    for r in oracles.rows(root / "vitalAperiodic.csv.gz"):
        minute = int(r["observationoffset"])
        if 0 <= minute <= min(1440, ends[int(r["patientunitstayid"])]) and r["noninvasivesystolic"]:
            events.append(
                (
                    int(r["patientunitstayid"]),
                    int(r["observationoffset"]),
                    "sbp",
                    float(r["noninvasivesystolic"]),
                )
            )
    expected = oracles.summarise([(s, t, k, v) for s, t, k, v in events])
    for row in made.table.iter_rows(named=True):
        for vital in ("heart_rate", "temperature", "sbp"):
            have = tuple(row[f"{vital}_{s}"] for s in ("mean", "min", "max"))
            want = expected.get((row["stay"], vital))
            assert have == ((None, None, None) if want is None else pytest.approx(want, abs=1e-6))


def test_patient_and_hospital_are_enough(copy: Path) -> None:
    for file in copy.glob("*.csv.gz"):
        if file.name not in ("patient.csv.gz", "hospital.csv.gz"):
            file.unlink()
    made = eicu.build(copy)
    assert made.table.height == 2_492 and len(made.files) == 2
    assert sum("is absent" in w for w in made.warnings) == 5
    assert made.table["cci_renal"].null_count() == 2_492


def test_bad_input(copy: Path) -> None:
    content = (copy / "vitalAperiodic.csv.gz").read_bytes()
    (copy / "vitalAperiodic.csv.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(RequestError, match=r"vitalAperiodic.csv.gz is cut off or damaged"):
        eicu.build(copy)
    (copy / "vitalAperiodic.csv.gz").unlink()
    renamed = gzip.decompress((copy / "hospital.csv.gz").read_bytes()).replace(b"region", b"regions", 1)
    (copy / "hospital.csv.gz").write_bytes(gzip.compress(renamed))
    with pytest.raises(RequestError, match=r"no column 'region' .did you mean 'regions'"):
        eicu.build(copy)
    (copy / "hospital.csv.gz").unlink()
    with pytest.raises(RequestError, match=r"hospital.csv.gz \(or .csv\) is missing"):
        eicu.build(copy)
