"""MIMIC-IV demo: the cohort against plain Python over the CSV files."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abps.cohorts import charlson, mimiciv, vitals
from abps.cohorts.duck import session

from . import oracles

Data = Callable[[str], Path]


@pytest.fixture(scope="module")
def root(data: Data) -> Path:
    return data("mimic-iv-demo-2.2")


@pytest.fixture(scope="module")
def cohort(root: Path) -> mimiciv.Cohort:
    return mimiciv.build(root)


def test_counts_of_the_demo(cohort: mimiciv.Cohort) -> None:
    first = cohort.steps[0]
    assert (first.stays, first.patients, first.positives) == (140, 100, 20)
    assert cohort.table.height == 140 and cohort.table["died"].sum() == 20
    assert cohort.table["careunit"].n_unique() == 9
    assert set(cohort.table["careunit"]) >= {
        "CVICU",
        "CCU",
        "MICU",
        "MICU/SICU",
        "SICU",
        "TSICU",
        "Neuro Stepdown",
    }
    assert cohort.warnings == ()


@pytest.mark.parametrize(("window", "before"), [("24h", 0), ("mimic-code", 6)])
def test_vitals_of_every_stay(root: Path, window: str, before: int) -> None:
    table = mimiciv.build(root, mimiciv.MimicOptions(window=window)).table
    expected = oracles.mimic_vitals(root, before)
    compared = 0
    for row in table.iter_rows(named=True):
        for vital in vitals.VITALS:
            want = expected.get((row["stay"], vital), (None, None, None))
            have = tuple(row[f"{vital}_{s}"] for s in ("mean", "min", "max"))
            if want[0] is None:
                assert have == (None, None, None)
            else:
                assert have == pytest.approx(want, abs=1e-6)
                compared += 3
    assert compared > 2_800


def test_window_before_admission_adds_measurements(root: Path, cohort: mimiciv.Cohort) -> None:
    wide = mimiciv.build(root, mimiciv.MimicOptions(window="mimic-code"))
    more = sum(wide.facts["vital_values_used"].values()) - sum(cohort.facts["vital_values_used"].values())
    assert more > 0


#: Whole codes that the ranges of the index hold and the list of four-digit prefixes lost.
LOST = {"9": ("179", "181", "185", "193"), "10": ("C4A", "C7A")}


def brute_force(prefixes: dict[str, dict[str, list[str]]], codes: list[tuple[str, str]]) -> dict[str, int]:
    found = {
        name: int(any(code[: len(p)] == p for code, version in codes for p in by_version[version]))
        for name, by_version in prefixes.items()
    }
    if any(code in LOST["9"] if version == "9" else code[:3] in LOST["10"] for code, version in codes):
        found["malignant_cancer"] = 1
    if any(code[:3] == "C7B" and version == "10" for code, version in codes):
        found["metastatic_solid_tumor"] = 1
    return found


NAMES = {
    "peripheral_vascular_disease": "peripheral_vascular",
    "cerebrovascular_disease": "cerebrovascular",
    "chronic_pulmonary_disease": "chronic_pulmonary",
    "rheumatic_disease": "rheumatic",
    "peptic_ulcer_disease": "peptic_ulcer",
    "mild_liver_disease": "liver_mild",
    "severe_liver_disease": "liver_severe",
    "diabetes_without_cc": "diabetes_uncomplicated",
    "diabetes_with_cc": "diabetes_complicated",
    "renal_disease": "renal",
    "malignant_cancer": "malignancy",
    "metastatic_solid_tumor": "metastatic_tumor",
}


def test_charlson_of_all_admissions_by_brute_force(root: Path, data: Data) -> None:
    prefixes = json.loads(data("charlson_prefixes.json").read_text())["categories"]
    admissions = [int(r["hadm_id"]) for r in oracles.rows(root / "hosp" / "admissions.csv")]
    assert len(admissions) == 275
    coded = oracles.rows(root / "hosp" / "diagnoses_icd.csv")
    of = defaultdict(list)
    for r in coded:
        of[int(r["hadm_id"])].append((r["icd_code"].strip(), r["icd_version"]))
    frame = pl.DataFrame(
        {
            "stay": [int(r["hadm_id"]) for r in coded],
            "icd_code": [r["icd_code"] for r in coded],
            "icd_version": [int(r["icd_version"]) for r in coded],
        }
    )
    keys = pl.Series(admissions)
    all_17 = {
        row["stay"]: row for row in charlson.flags(charlson.present(frame), keys, "17").iter_rows(named=True)
    }
    the_12 = {
        row["stay"]: row for row in charlson.flags(charlson.present(frame), keys, "12").iter_rows(named=True)
    }
    positive = 0
    for admission in admissions:
        expected = brute_force(prefixes, of[admission])
        positive += sum(expected.values())
        for name, value in expected.items():
            assert all_17[admission][f"cci_{NAMES.get(name, name)}"] == value
        assert the_12[admission]["cci_liver"] == max(
            expected["mild_liver_disease"], expected["severe_liver_disease"]
        )
        assert the_12[admission]["cci_diabetes"] == max(
            expected["diabetes_without_cc"], expected["diabetes_with_cc"]
        )
        assert the_12[admission]["cci_cancer"] == max(
            expected["malignant_cancer"], expected["metastatic_solid_tumor"]
        )
        assert the_12[admission]["cci_renal"] == expected["renal_disease"]
    assert positive > 300
    assert len(next(iter(all_17.values()))) == 18 and len(next(iter(the_12.values()))) == 13


def test_charlson_of_stays_this_admission_earlier_or_none(
    root: Path, data: Data, cohort: mimiciv.Cohort
) -> None:
    prefixes = json.loads(data("charlson_prefixes.json").read_text())["categories"]
    admissions = {int(r["hadm_id"]): r for r in oracles.rows(root / "hosp" / "admissions.csv")}
    of = defaultdict(list)
    for r in oracles.rows(root / "hosp" / "diagnoses_icd.csv"):
        of[int(r["hadm_id"])].append((r["icd_code"].strip(), r["icd_version"]))
    hadm = {int(r["stay_id"]): int(r["hadm_id"]) for r in oracles.rows(root / "icu" / "icustays.csv")}
    earlier = mimiciv.build(root, mimiciv.MimicOptions(diagnoses="earlier", charlson="17")).table
    for row in cohort.table.iter_rows(named=True):
        expected = brute_force(prefixes, of[hadm[row["stay"]]])
        assert row["cci_renal"] == expected["renal_disease"]
        assert row["cci_dementia"] == expected["dementia"]
    some = 0
    for row in earlier.iter_rows(named=True):
        this = admissions[hadm[row["stay"]]]
        before = [
            code
            for h, a in admissions.items()
            if a["subject_id"] == this["subject_id"]
            and datetime.fromisoformat(a["dischtime"]) <= datetime.fromisoformat(this["admittime"])
            for code in of[h]
        ]
        for name, value in brute_force(prefixes, before).items():
            assert row[f"cci_{NAMES.get(name, name)}"] == value
            some += value
    assert some > 0
    none = mimiciv.build(root, mimiciv.MimicOptions(diagnoses="none"))
    assert not [c for c in none.table.columns if c.startswith("cci_")]
    assert "hosp/diagnoses_icd.csv" not in [f.name for f in none.files]


def test_demographics_by_hand(root: Path, cohort: mimiciv.Cohort) -> None:
    patients = {int(r["subject_id"]): r for r in oracles.rows(root / "hosp" / "patients.csv")}
    admissions = {int(r["hadm_id"]): r for r in oracles.rows(root / "hosp" / "admissions.csv")}
    stays = {int(r["stay_id"]): r for r in oracles.rows(root / "icu" / "icustays.csv")}
    for row in cohort.table.iter_rows(named=True):
        stay = stays[row["stay"]]
        patient, admission = patients[row["patient"]], admissions[int(stay["hadm_id"])]
        into = datetime.fromisoformat(stay["intime"])
        assert row["age"] == int(patient["anchor_age"]) + into.year - int(patient["anchor_year"])
        assert row["anchor_year_group"] == patient["anchor_year_group"]
        years = [
            int(patient["anchor_year_group"][:4]) + k + into.year - int(patient["anchor_year"])
            for k in range(3)
        ]
        assert sum(int(row["era"][:4]) <= y <= int(row["era"][-4:]) for y in years) == (
            3 if row["era_certain"] else 2
        )
        assert row["died"] == int(admission["hospital_expire_flag"])
        assert row["sex"] == patient["gender"] and row["insurance"] == (admission["insurance"] or None)
        year = (into - datetime(into.year, 1, 1)) / (
            datetime(into.year + 1, 1, 1) - datetime(into.year, 1, 1)
        )
        assert row["admission_year"] == pytest.approx(into.year + year, abs=1e-9)
        race = admission["race"]
        if race.startswith("BLACK"):
            assert row["race"] == "BLACK"
        if race in ("UNKNOWN", "UNABLE TO OBTAIN", "PATIENT DECLINED TO ANSWER"):
            assert row["race"] is None
        if race in ("PORTUGUESE", "OTHER"):
            assert row["race"] == "OTHER"


def test_the_era_of_a_stay_is_often_another_than_the_anchors(cohort: mimiciv.Cohort) -> None:
    other = cohort.table.filter(pl.col("era") != pl.col("anchor_year_group"))
    assert other.filter(pl.col("era_certain") == 1).height > 5 and other.height > 20


def test_every_column_is_explained_and_files_are_fingerprinted(root: Path, cohort: mimiciv.Cohort) -> None:
    assert [c.name for c in cohort.dictionary] == cohort.table.columns
    assert all(
        c.meaning and c.role in ("label", "identifier", "context", "feature") for c in cohort.dictionary
    )
    assert [f.name for f in cohort.files][-1] == "icu/chartevents.csv.gz"
    import hashlib

    for file in cohort.files:
        content = (root / file.name).read_bytes()
        assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_filters_are_counted(root: Path) -> None:
    made = mimiciv.build(root, mimiciv.MimicOptions(min_age=40, max_age=80, min_hours=48))
    stays = oracles.rows(root / "icu" / "icustays.csv")
    patients = {r["subject_id"]: r for r in oracles.rows(root / "hosp" / "patients.csv")}
    kept_by_age = []
    for r in stays:
        p = patients[r["subject_id"]]
        age = int(p["anchor_age"]) + int(r["intime"][:4]) - int(p["anchor_year"])
        if 40 <= age <= 80:
            kept_by_age.append(r)
    long = [r for r in kept_by_age if float(r["los"]) >= 2]
    assert [s.stays for s in made.steps] == [140, len(kept_by_age), len(long)]
    assert [s.left_out for s in made.steps] == [0, 140 - len(kept_by_age), len(kept_by_age) - len(long)]
    assert made.table.height == len(long) < 140


def test_same_files_give_the_same_bits(root: Path, cohort: mimiciv.Cohort) -> None:
    assert mimiciv.build(root).table.equals(cohort.table)


moment = st.integers(0, 5)
value = st.one_of(
    st.floats(-50, 450, allow_nan=False),
    st.sampled_from([0.0, 10.0, 50.0, 70.0, 100.0, 120.0, 300.0, 400.0]),
)
kinds = {
    **{k: k for k in ("heart_rate", "sbp", "dbp", "mbp", "resp_rate", "spo2")},
    "fahrenheit": "temperature_f",
    "celsius": "temperature",
}


@given(
    st.lists(
        st.tuples(st.integers(1, 3), moment, st.sampled_from(sorted(kinds)), value), min_size=1, max_size=40
    )
)
@settings(max_examples=40, deadline=None)
def test_summaries_of_any_events(events: list[tuple[int, int, str, float]]) -> None:
    frame = pl.DataFrame(
        [(stay, at, kinds[kind], v) for stay, at, kind, v in events],
        schema={"stay": pl.Int64, "moment": pl.Int64, "signal": pl.String, "value": pl.Float64},
        orient="row",
    )
    with session() as duck:
        duck.table("events", frame)
        found = vitals.summarise(duck, "FROM events", "test")
    expected = oracles.summarise([(stay, at, kind, v) for stay, at, kind, v in events])
    got = {
        (row["stay"], vital): tuple(row[f"{vital}_{s}"] for s in ("mean", "min", "max"))
        for row in found.table.iter_rows(named=True)
        for vital in vitals.VITALS
        if row[f"{vital}_mean"] is not None
    }
    assert got.keys() == expected.keys()
    for key, want in expected.items():
        assert got[key] == pytest.approx(want, abs=1e-6)
    counted = sum(oracles.measured(kind, v) is not None for _, _, kind, v in events)
    assert sum(found.counted.values()) == counted
    assert sum(found.counted.values()) + sum(found.dropped.values()) == len(events)


@given(st.text("0123456789EVICKG", min_size=1, max_size=5), st.sampled_from([9, 10]))
def test_categories_of_any_code(code: str, version: int) -> None:
    table = charlson.table()
    expected = [n for n, by in table.categories.items() if any(code[: len(p)] == p for p in by[version])]
    assert list(charlson.categories_of(code, version)) == expected


def test_a_csv_table_reads_the_same_as_its_gz(root: Path, mimic_copy: Path, cohort: mimiciv.Cohort) -> None:
    import gzip

    packed = mimic_copy / "icu" / "chartevents.csv.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    plain = mimic_copy / "hosp" / "patients.csv"
    (mimic_copy / "hosp" / "patients.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert mimiciv.build(mimic_copy).table.equals(cohort.table)


def test_header_order_and_quotes_do_not_matter(mimic_copy: Path, cohort: mimiciv.Cohort) -> None:
    path = mimic_copy / "icu" / "icustays.csv"
    content = oracles.rows(path)
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, sorted(content[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(content)
    assert mimiciv.build(mimic_copy).table.equals(cohort.table)
