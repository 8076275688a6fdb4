"""Laboratory, coma scale, urine, vasopressors, ventilation and scores on made rows, against plain Python."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abps.cohorts import mimiciv, physiology
from abps.core.errors import RequestError

from . import made

INTIME = datetime(2150, 3, 1, 10)
EVERY = mimiciv.MimicOptions(features=("all",))


def at(hours: float) -> str:
    return f"{INTIME + timedelta(hours=hours):%Y-%m-%d %H:%M:%S}"


def one(tmp_path: Path, options: mimiciv.MimicOptions = EVERY, **tables: Any) -> dict[str, Any]:
    root = made.mimic(tmp_path, **tables)
    (row,) = mimiciv.build(root, options).table.iter_rows(named=True)
    return row


ALL_TABLES: dict[str, Any] = {"labevents": [], "outputevents": [], "inputevents": [], "procedureevents": []}


def test_labs_of_the_patient_in_the_window(tmp_path: Path) -> None:
    creatinine = [(-0.1, 9.0), (0, 2.0), (5, 3.6), (24, 1.1), (24.1, 9.0), (3, 151.0), (4, 0.0), (6, "")]
    row = one(
        tmp_path,
        **ALL_TABLES
        | {
            "labevents": [
                *({"charttime": at(h), "valuenum": v} for h, v in creatinine),
                {"itemid": 51006, "valuenum": 301},
                {"itemid": 50868, "valuenum": -3},
                {"subject_id": 2, "valuenum": 7},
            ]
        },
    )
    assert (row["creatinine_min"], row["creatinine_max"]) == (1.1, 3.6)
    assert row["bun_max"] is None and row["anion_gap_min"] == -3
    assert row["sofa_renal"] == 3 and row["sofa_liver"] is None and row["sofa"] == 3
    assert (row["norepinephrine_max"], row["vasopressor"], row["ventilated"]) == (0, 0, 0)


def test_storetime_takes_what_was_known_in_time(tmp_path: Path) -> None:
    tables = ALL_TABLES | {
        "labevents": [
            {"charttime": at(23), "storetime": at(23.9), "valuenum": 2},
            {"charttime": at(23.5), "storetime": at(24.5), "valuenum": 5},
            {"charttime": at(22), "storetime": "", "valuenum": 6},
        ],
        "chartevents": [
            {"charttime": at(1), "storetime": at(2), "valuenum": 80},
            {"charttime": at(23), "storetime": at(25), "valuenum": 150},
        ],
    }
    charted = one(tmp_path / "a", EVERY, **tables)
    assert (charted["creatinine_max"], charted["heart_rate_max"]) == (6, 150)
    stored = one(tmp_path / "b", mimiciv.MimicOptions(features=("all",), clock="storetime"), **tables)
    assert (stored["creatinine_max"], stored["heart_rate_max"]) == (2, 80)
    with pytest.raises(RequestError, match=r"clock=.sundial.: choose one of charttime"):
        one(tmp_path / "c", mimiciv.MimicOptions(clock="sundial"))


def test_storetime_needs_its_column(mimic_copy: Path) -> None:
    with pytest.raises(RequestError, match=r"chartevents.csv.gz has no column 'storetime'"):
        mimiciv.build(mimic_copy, mimiciv.MimicOptions(clock="storetime"))


Moment = tuple[float, int | None, int | None, int | None]


def coma(moments: list[Moment]) -> int | None:
    """The lowest scale: (hour, motor, verbal, eyes) with verbal 0 for a tube, as the concept says."""
    lowest = None
    before: Moment | None = None
    for now in sorted(moments):
        last = before if before and now[0] - before[0] < 6 else (0, None, None, None)
        before = now
        if now[2] == 0 or (now[2] is None and last[2] == 0):
            score = 15
        else:
            usual = (6, 5, 4)
            score = 0
            for k in range(3):
                value = now[k + 1]
                if value is None and last[2] != 0:
                    value = last[k + 1]
                score += usual[k] if value is None else value
        lowest = score if lowest is None else min(lowest, score)
    return lowest


def test_coma_scale_by_hand(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows: list[dict[str, object]] = []
    expected = {}
    stays = []
    for stay in range(60):
        stays.append({"stay_id": stay})
        hours = sorted(rng.choice(np.arange(1, 23), rng.integers(0, 7), replace=False))
        moments: list[Moment] = []
        for hour in hours:
            parts = [int(rng.integers(1, top)) if rng.random() < 0.7 else None for top in (7, 6, 5)]
            if rng.random() < 0.25:
                parts[1] = 0
            if parts == [None, None, None]:
                parts[0] = 3
            moments.append((float(hour), *parts))  # type: ignore[arg-type]
            for item, value in zip((223901, 223900, 220739), parts):
                if value is not None:
                    words = "No Response-ETT" if item == 223900 and value == 0 else "words"
                    rows.append(
                        {"stay_id": stay, "itemid": item, "charttime": at(float(hour)),
                         "valuenum": value or 1, "value": words}
                    )  # fmt: skip
        expected[stay] = coma(moments)
    root = made.mimic(tmp_path, icustays=stays, chartevents=rows)
    made_rows = mimiciv.build(root, mimiciv.MimicOptions(features=("gcs",))).table
    assert dict(made_rows.select("stay", "gcs_min").iter_rows()) == expected
    assert len(set(expected.values())) > 6


def test_urine_is_a_total_with_the_irrigant_taken_off(tmp_path: Path) -> None:
    row = one(
        tmp_path,
        **ALL_TABLES
        | {
            "outputevents": [
                {"charttime": at(1), "value": 300},
                {"charttime": at(2), "value": 400, "itemid": 227489},
                {"charttime": at(2), "value": 350, "itemid": 227488},
                {"charttime": at(30), "value": 999},
                {"charttime": at(3), "value": 50, "itemid": 226589},
            ]
        },
    )
    assert row["urine_total"] == 350 and row["sofa_renal"] == 3 and row["saps2_urine"] == 11


@pytest.mark.parametrize(
    ("drug", "expected", "points"),
    [
        ({"itemid": 221906, "rate": 0.05}, ("norepinephrine_max", 0.05), 3),
        ({"itemid": 221906, "rate": 0.3}, ("norepinephrine_max", 0.3), 4),
        ({"itemid": 221906, "rate": 0.0002, "rateuom": "mg/kg/min"}, ("norepinephrine_max", 0.2), 4),
        ({"itemid": 221906, "rate": 0.02, "rateuom": "mg/kg/min", "patientweight": 1},
         ("norepinephrine_max", 0.02), 3),
        ({"itemid": 221662, "rate": 4}, ("dopamine_max", 4.0), 2),
        ({"itemid": 221662, "rate": 16}, ("dopamine_max", 16.0), 4),
        ({"itemid": 221653, "rate": 3}, ("dobutamine_max", 3.0), 2),
        ({"itemid": 221289, "rate": 8, "rateuom": "mcg/min"}, ("epinephrine_max", 0.1), 3),
        ({"itemid": 221289, "rate": 8, "rateuom": "ml/hr"}, ("epinephrine_max", None), 3),
        ({"itemid": 221749, "rate": 8}, ("vasopressor", 1), 1),
        ({"itemid": 221906, "starttime": at(-9), "endtime": at(-8)}, ("vasopressor", 0), 1),
        ({"itemid": 221906, "starttime": at(-9), "endtime": at(1)}, ("vasopressor", 1), 3),
        ({"itemid": 221906, "starttime": at(25), "endtime": at(26)}, ("vasopressor", 0), 1),
    ],
)  # fmt: skip
def test_vasopressors(tmp_path: Path, drug: dict[str, Any], expected: tuple[str, float], points: int) -> None:
    row = one(
        tmp_path, **ALL_TABLES | {"inputevents": [drug], "chartevents": [{"itemid": 220181, "valuenum": 60}]}
    )
    assert row[expected[0]] == (expected[1] if expected[1] is None else pytest.approx(expected[1]))
    assert row["sofa_cardiovascular"] == points


def setting(hour: float, text: str, item: int = 223849) -> dict[str, Any]:
    return {"charttime": at(hour), "itemid": item, "value": text, "valuenum": ""}


@pytest.mark.parametrize(
    ("rows", "gas_at", "ventilated", "points"),
    [
        ([setting(1, "CMV"), setting(5, "SIMV")], 3, 1, 3),  # a ratio of 150 with a ventilator
        ([setting(1, "CMV"), setting(5, "SIMV")], 9, 1, 2),  # … and without, after it
        ([setting(1, "CMV"), setting(2, "CMV"), setting(5, "Nasal cannula", 226732)], 4, 1, 3),
        ([setting(1, "CMV")], 1, 0, 2),  # one entry alone is no spell
        ([setting(1, "Standby"), setting(2, "Standby")], 1, 0, 2),
        ([setting(1, "Endotracheal tube ", 226732), setting(2, "Endotracheal tube", 226732)], 2, 1, 3),
        ([setting(1, "CMV"), setting(16, "CMV")], 8, 0, 2),  # a gap of 15 hours: two spells of one entry
    ],
)  # fmt: skip
def test_ventilation_and_the_oxygen_ratio(
    tmp_path: Path, rows: list[dict[str, Any]], gas_at: float, ventilated: int, points: int
) -> None:
    gas = [
        {"charttime": at(gas_at), "itemid": 52033, "value": "ART.", "valuenum": "", "specimen_id": 5},
        {"charttime": at(gas_at), "itemid": 50821, "valuenum": 75, "specimen_id": 5},
        {"charttime": at(gas_at), "itemid": 50821, "valuenum": 10, "specimen_id": 6},  # venous: never counts
    ]
    fio2 = {"charttime": at(gas_at - 1), "itemid": 223835, "valuenum": 0.5}
    old = {"charttime": at(gas_at - 4.5), "itemid": 223835, "valuenum": 100}
    row = one(tmp_path, **ALL_TABLES | {"labevents": gas, "chartevents": [*rows, fio2, old]})
    assert (row["ventilated"], row["sofa_respiration"]) == (ventilated, points)
    assert row["saps2_oxygen"] == (9 if points == 3 else None)
    assert (row["pao2_min"], row["pao2_max"]) == (10, 75)


def test_ventilation_as_a_procedure(tmp_path: Path) -> None:
    assert one(tmp_path / "a", **ALL_TABLES | {"procedureevents": [{}]})["ventilated"] == 1
    late = [{"starttime": at(25), "endtime": at(30)}]
    assert one(tmp_path / "b", **ALL_TABLES | {"procedureevents": late})["ventilated"] == 0


def sofa_by_hand(v: dict[str, float]) -> int:
    """Without oxygen and drugs, part by part."""
    platelets = sum(v["platelets"] < top for top in (20, 50, 100, 150))
    liver = sum(v["bilirubin"] >= low for low in (1.2, 2, 6, 12))
    brain = sum(v["gcs"] <= top for top in (5, 9, 12, 14))
    kidney = sum(v["creatinine"] >= low for low in (1.2, 2, 3.5, 5))
    if v["urine"] < 200:
        kidney = 4
    elif v["urine"] < 500:
        kidney = max(kidney, 3)
    return platelets + liver + brain + kidney + (v["mbp"] < 70)


def saps_by_hand(v: dict[str, float]) -> int:
    """The parts that one value each tells; the table of Le Gall et al. read by hand."""
    score = 7 * (40 <= v["age"] < 60) + 12 * (60 <= v["age"] < 70) + 15 * (70 <= v["age"] < 75)
    score += 16 * (75 <= v["age"] < 80) + 18 * (v["age"] >= 80)
    h = v["heart_rate"]
    score += 11 * (h < 40) + 2 * (40 <= h < 70) + 4 * (120 <= h < 160) + 7 * (h >= 160)
    score += 13 * (v["sbp"] < 70) + 5 * (70 <= v["sbp"] < 100) + 2 * (v["sbp"] >= 200)
    score += 3 * (v["temperature"] >= 39)
    score += 11 * (v["urine"] < 500) + 4 * (500 <= v["urine"] < 1000)
    score += 6 * (28 <= v["bun"] < 84) + 10 * (v["bun"] >= 84)
    score += 12 * (v["wbc"] < 1) + 3 * (v["wbc"] >= 20)
    score += 3 * (v["potassium"] < 3 or v["potassium"] >= 5)
    score += 5 * (v["sodium"] < 125) + 1 * (v["sodium"] >= 145)
    score += 6 * (v["bicarbonate"] < 15) + 3 * (15 <= v["bicarbonate"] < 20)
    score += 4 * (4 <= v["bilirubin"] < 6) + 9 * (v["bilirubin"] >= 6)
    g = v["gcs"]
    return score + 26 * (g < 6) + 13 * (6 <= g < 9) + 7 * (9 <= g < 11) + 5 * (11 <= g < 14)


LABS = {"platelets": 51265, "bilirubin": 50885, "creatinine": 50912, "bun": 51006, "wbc": 51301,
        "potassium": 50971, "sodium": 50983, "bicarbonate": 50882}  # fmt: skip
CHART = {"mbp": 220181, "heart_rate": 220045, "sbp": 220179, "temperature": 223762}
RANGES = {"platelets": (1, 300), "bilirubin": (0.1, 20), "creatinine": (0.3, 8), "bun": (5, 120),
          "wbc": (0.2, 30), "potassium": (2, 7), "sodium": (115, 160), "bicarbonate": (8, 35),
          "mbp": (40, 110), "heart_rate": (30, 190), "sbp": (50, 230), "temperature": (35, 41),
          "urine": (50, 2500), "age": (18, 95)}  # fmt: skip


def test_scores_of_many_patients_by_hand(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    expected = {}
    for stay in range(200):
        v = {name: round(float(rng.uniform(*span)), 1) for name, span in RANGES.items()}
        v["age"] = float(int(v["age"]))
        motor, verbal, eyes = int(rng.integers(1, 7)), int(rng.integers(1, 6)), int(rng.integers(1, 5))
        v["gcs"] = motor + verbal + eyes
        ids = {"subject_id": stay, "hadm_id": stay, "stay_id": stay}
        tables["patients"].append({"subject_id": stay, "anchor_age": int(v["age"])})
        tables["admissions"].append({"subject_id": stay, "hadm_id": stay})
        tables["icustays"].append(ids)
        tables["labevents"] += [{"subject_id": stay, "itemid": i, "valuenum": v[n]} for n, i in LABS.items()]
        tables["chartevents"] += [{**ids, "itemid": i, "valuenum": v[n]} for n, i in CHART.items()]
        tables["chartevents"] += [
            {**ids, "itemid": i, "valuenum": n, "value": "x"}
            for i, n in ((223901, motor), (223900, verbal), (220739, eyes))
        ]
        tables["outputevents"].append({**ids, "value": v["urine"]})
        expected[stay] = (sofa_by_hand(v), saps_by_hand(v))
    table = mimiciv.build(made.mimic(tmp_path, **{**ALL_TABLES, **tables}), EVERY).table
    assert {s: (a, b) for s, a, b in table.select("stay", "sofa", "saps2").iter_rows()} == expected
    assert table["sofa"].n_unique() > 10 and table["saps2"].n_unique() > 40


def test_absent_tables_are_named_and_have_no_columns(tmp_path: Path) -> None:
    found = mimiciv.build(made.mimic(tmp_path), EVERY)
    for table in ("hosp/labevents", "icu/outputevents", "icu/inputevents", "icu/procedureevents"):
        assert any(w.startswith(f"{table}.csv.gz is absent") for w in found.warnings)
    columns = set(found.table.columns)
    assert "gcs_min" in columns and "ventilated" in columns  # chartevents has the words
    assert not columns & {"creatinine_max", "urine_total", "vasopressor"}
    assert found.table["sofa_renal"].null_count() == 1
    with pytest.raises(RequestError, match=r"no features 'lab' .did you mean 'labs'"):
        mimiciv.MimicOptions(features=("lab",))


def test_default_columns_are_the_papers(tmp_path: Path) -> None:
    plain = mimiciv.build(made.mimic(tmp_path)).table
    assert not set(plain.columns) & {"gcs_min", "sofa", "saps2", "creatinine_max"}


def test_first_stay_only(tmp_path: Path) -> None:
    root = made.mimic(
        tmp_path,
        icustays=[
            {"stay_id": 1, "intime": at(100), "outtime": at(120)},
            {"stay_id": 2},
            {"stay_id": 3, "intime": at(50), "outtime": at(60)},
        ],
    )
    found = mimiciv.build(root, mimiciv.MimicOptions(first_stay=True))
    assert found.table["stay"].to_list() == [2]
    assert found.steps[1].label == "not the patient's first ICU stay" and found.steps[1].left_out == 2


@pytest.mark.parametrize(("window", "last"), [("6h", 6), ("12h", 12), ("24h", 24), ("48h", 48)])
def test_windows(tmp_path: Path, window: str, last: int) -> None:
    beats = [{"charttime": at(h), "valuenum": 60 + h} for h in range(0, 60, 2)]
    row = one(tmp_path, mimiciv.MimicOptions(window=window), chartevents=beats)
    assert row["heart_rate_max"] == 60 + last


def test_every_lab_has_its_places() -> None:
    for lab in physiology.labs().values():
        assert lab.mimiciv and lab.eicu and lab.omop and lab.low < lab.high
    items = [i for lab in physiology.labs().values() for i in lab.mimiciv]
    assert len(items) == len(set(items))
