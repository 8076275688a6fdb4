"""eICU's first day beyond vitals on made rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from abps.cohorts import eicu
from abps.core.errors import RequestError

from . import made

EVERY = eicu.EicuOptions(features=("all",))


def one(tmp_path: Path, options: eicu.EicuOptions = EVERY, **tables: Any) -> dict[str, Any]:
    (row,) = eicu.build(made.eicu(tmp_path, **tables), options).table.iter_rows(named=True)
    return row


def lab(minute: int, value: float | str, **more: Any) -> dict[str, Any]:
    return {"labresultoffset": minute, "labresult": value, **more}


def test_labs(tmp_path: Path) -> None:
    row = one(
        tmp_path,
        lab=[
            lab(10, 1.1),
            lab(100, 4.0),
            lab(-1, 9.0),
            lab(1441, 9.0),
            lab(200, 0.05),  # below what counts
            lab(300, 2.0, labresultrevisedoffset=310),
            lab(300, 3.0, labresultrevisedoffset=320),  # the last revision counts
            lab(400, 7.0, labresultrevisedoffset=400),
            lab(400, 8.0, labresultrevisedoffset=400),  # two last values: neither
            lab(60, 140, labname="sodium"),
            lab(60, 80, labname="bedside glucose"),
            lab(60, 90, labname="glucose"),
            lab(60, 1.0, labname="unheard of"),
        ],
    )
    assert (row["creatinine_min"], row["creatinine_max"]) == (1.1, 4.0)
    assert (row["glucose_min"], row["glucose_max"], row["sodium_max"]) == (80, 90, 140)
    assert row["sofa_renal"] == 3 and row["saps2_sodium"] == 0


def test_labs_known_in_time_and_before_discharge(tmp_path: Path) -> None:
    rows = [lab(1400, 2.0, labresultrevisedoffset=1430), lab(1410, 5.0, labresultrevisedoffset=1500)]
    assert one(tmp_path / "a", lab=rows)["creatinine_max"] == 5
    stored = eicu.EicuOptions(features=("labs",), clock="storetime")
    assert one(tmp_path / "b", stored, lab=rows)["creatinine_max"] == 2
    short = [{"unitdischargeoffset": 1405}]
    assert one(tmp_path / "c", lab=rows, patient=short)["creatinine_max"] == 2
    with pytest.raises(RequestError, match=r"clock=.moon.: choose one of charttime"):
        one(tmp_path / "d", eicu.EicuOptions(clock="moon"))


def test_coma_scale_urine_and_breathing(tmp_path: Path) -> None:
    path = "flowsheet|Flowsheet Cell Labels|I&O|Output (ml)|"
    row = one(
        tmp_path,
        nurseCharting=[
            {"nursingchartvalue": 12},
            {"nursingchartvalue": 9, "nursingchartcelltypevallabel": "Score (Glasgow Coma Scale)",
             "nursingchartcelltypevalname": "Value"},
            {"nursingchartvalue": 2},
            {"nursingchartvalue": "-"},
            {"nursingchartvalue": 4, "nursingchartcelltypevalname": "Motor"},
            {"nursingchartvalue": 3, "nursingchartoffset": 1441},
        ],
        intakeOutput=[
            {"cellvaluenumeric": 100},
            {"cellvaluenumeric": 200, "cellpath": path + "Urine Output-Foley"},
            {"cellvaluenumeric": 50, "cellpath": path + "Straight Cath"},
            {"cellvaluenumeric": 999, "cellpath": path + "Stool"},
            {"cellvaluenumeric": 999, "cellpath": path + "Foley PACU"},
            {"cellvaluenumeric": 999, "cellpath": "flowsheet|Flowsheet Cell Labels|I&O|Intake (ml)|Urine"},
        ],
        respiratoryCare=[{}],
    )  # fmt: skip
    assert (row["gcs_min"], row["urine_total"], row["ventilated"]) == (9, 350, 1)
    assert row["sofa_cns"] == 3 and row["sofa_renal"] == 3
    mask = one(tmp_path / "b", respiratoryCare=[{"airwaytype": "Mask"}])
    assert mask["ventilated"] == 0


@pytest.mark.parametrize(
    ("drug", "column", "value", "points"),
    [
        ({"drugname": "Norepinephrine (mcg/min)", "drugrate": 14}, "norepinephrine_max", 0.2, 4),
        ({"drugname": "Levophed (mcg/kg/min)", "drugrate": 0.05}, "norepinephrine_max", 0.05, 3),
        ({"drugname": "Norepinephrine (ml/hr)", "drugrate": 5}, "norepinephrine_max", None, 3),
        ({"drugname": "EPI (mcg/min)", "drugrate": 7, "patientweight": 100}, "epinephrine_max", 0.07, 3),
        ({"drugname": "Dopamine (mcg/kg/min)", "drugrate": 3}, "dopamine_max", 3.0, 2),
        ({"drugname": "Vasopressin (units/min)", "drugrate": 0.04}, "vasopressor", 1, 0),
        ({"drugname": "Heparin (units/hr)", "drugrate": 900}, "vasopressor", 0, 0),
        ({"drugname": "Norepinephrine (mcg/min)", "drugrate": 0}, "vasopressor", 0, 0),
        ({"drugname": "Norepinephrine (mcg/min)", "drugrate": "OFF\xa0"}, "vasopressor", 0, 0),
    ],
)
def test_vasopressors(tmp_path: Path, drug: dict[str, Any], column: str, value: float, points: int) -> None:
    row = one(tmp_path, infusionDrug=[drug])
    assert row[column] == (value if value is None else pytest.approx(value))
    assert row["sofa_cardiovascular"] == points


def test_oxygen_ratio(tmp_path: Path) -> None:
    gas = [lab(120, 80, labname="paO2"), lab(120, 80, labname="FiO2")]
    assert one(tmp_path / "a", lab=gas, respiratoryCare=[{}])["sofa_respiration"] == 3
    assert one(tmp_path / "b", lab=gas, respiratoryCare=[])["sofa_respiration"] == 2


def test_absent_tables_are_named(tmp_path: Path) -> None:
    found = eicu.build(made.eicu(tmp_path), EVERY)
    for table in ("lab", "nurseCharting", "intakeOutput", "infusionDrug", "respiratoryCare"):
        assert any(w.startswith(f"{table}.csv.gz is absent") for w in found.warnings)
    assert "creatinine_max" not in found.table.columns and found.table["sofa"].to_list() == [0]


def test_first_stay_only(tmp_path: Path) -> None:
    stays = [
        {"patientunitstayid": 1, "unitvisitnumber": 2, "hospitaldischargeyear": 2014},
        {"patientunitstayid": 2, "unitvisitnumber": 1, "hospitaldischargeyear": 2015},
        {"patientunitstayid": 3, "unitvisitnumber": 1, "hospitaldischargeyear": 2014},
        {"patientunitstayid": 4, "uniquepid": "other"},
    ]
    found = eicu.build(made.eicu(tmp_path, patient=stays), eicu.EicuOptions(first_stay=True))
    assert found.table["stay"].to_list() == [3, 4]
