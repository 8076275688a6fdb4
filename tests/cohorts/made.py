"""Small made sources: a handful of invented patients as MIMIC-IV, eICU, MEDS, OMOP and Heart."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

Row = Mapping[str, object]

#: Variable -> value of a row where a test does not say otherwise.
MIMIC_DEFAULTS: dict[str, dict[str, object]] = {
    "hosp/patients": {
        "subject_id": 1, "gender": "F", "anchor_age": 60, "anchor_year": 2150,
        "anchor_year_group": "2011 - 2013", "dod": "",
    },
    "hosp/admissions": {
        "subject_id": 1, "hadm_id": 10, "admittime": "2150-03-01 08:00:00",
        "dischtime": "2150-03-09 12:00:00",
        "deathtime": "", "admission_type": "URGENT", "admission_location": "EMERGENCY ROOM",
        "discharge_location": "HOME", "insurance": "Medicare", "race": "WHITE", "hospital_expire_flag": 0,
    },
    "icu/icustays": {
        "subject_id": 1, "hadm_id": 10, "stay_id": 100,
        "first_careunit": "Medical Intensive Care Unit (MICU)", "last_careunit": "",
        "intime": "2150-03-01 10:00:00", "outtime": "2150-03-05 10:00:00", "los": 4,
    },
    "icu/chartevents": {
        "subject_id": 1, "hadm_id": 10, "stay_id": 100, "caregiver_id": "",
        "charttime": "2150-03-01 11:00:00",
        "storetime": "2150-03-01 11:05:00", "itemid": 220045, "value": "", "valuenum": 80,
        "valueuom": "bpm",
        "warning": 0,
    },
    "hosp/diagnoses_icd": {
        "subject_id": 1, "hadm_id": 10, "seq_num": 1, "icd_code": "4280", "icd_version": 9,
    },
    "hosp/labevents": {
        "labevent_id": 1, "subject_id": 1, "hadm_id": "", "specimen_id": 1, "itemid": 50912,
        "charttime": "2150-03-01 12:00:00", "storetime": "2150-03-01 13:00:00", "value": "",
        "valuenum": 1.0,
        "valueuom": "mg/dL",
    },
    "icu/outputevents": {
        "subject_id": 1, "hadm_id": 10, "stay_id": 100, "charttime": "2150-03-01 12:00:00",
        "storetime": "2150-03-01 12:05:00", "itemid": 226559, "value": 100, "valueuom": "ml",
    },
    "icu/inputevents": {
        "subject_id": 1, "hadm_id": 10, "stay_id": 100, "starttime": "2150-03-01 12:00:00",
        "endtime": "2150-03-01 14:00:00", "storetime": "2150-03-01 12:05:00", "itemid": 221906,
        "rate": 0.05,
        "rateuom": "mcg/kg/min", "patientweight": 80, "statusdescription": "FinishedRunning",
    },
    "icu/procedureevents": {
        "subject_id": 1, "hadm_id": 10, "stay_id": 100, "starttime": "2150-03-01 12:00:00",
        "endtime": "2150-03-01 20:00:00", "storetime": "2150-03-01 12:05:00", "itemid": 225792,
        "value": 480,
    },
}  # fmt: skip

EICU_DEFAULTS: dict[str, dict[str, object]] = {
    "patient": {
        "patientunitstayid": 100, "gender": "Female", "age": 60, "ethnicity": "Caucasian", "hospitalid": 7,
        "admissionheight": 170, "admissionweight": 70, "hospitaldischargeyear": 2014,
        "hospitaldischargestatus": "Alive", "unittype": "MICU", "unitadmitsource": "Floor",
        "unitdischargeoffset": 3000, "hospitaldischargeoffset": 9000, "hospitaladmitoffset": -60,
        "uniquepid": "001-1", "unitvisitnumber": 1, "patienthealthsystemstayid": 500,
    },
    "hospital": {"hospitalid": 7, "numbedscategory": "<100", "teachingstatus": "f", "region": "Midwest"},
    "vitalAperiodic": {
        "patientunitstayid": 100, "observationoffset": 60, "noninvasivesystolic": 120,
        "noninvasivediastolic": 70, "noninvasivemean": 90,
    },
    "vitalPeriodic": {
        "patientunitstayid": 100, "observationoffset": 60, "temperature": 37, "sao2": 97, "heartrate": 80,
        "respiration": 16, "systemicsystolic": "", "systemicdiastolic": "", "systemicmean": "",
    },
    "diagnosis": {"patientunitstayid": 100, "diagnosisoffset": 60, "icd9code": "428.0, I50.9"},
    "pastHistory": {
        "patientunitstayid": 100, "pasthistoryenteredoffset": 60,
        "pasthistorypath": "notes/Past History/Organ Systems/Pulmonary/COPD/COPD  - moderate",
    },
    "lab": {
        "patientunitstayid": 100, "labresultoffset": 60, "labresultrevisedoffset": 70,
        "labname": "creatinine",
        "labresult": 1.0, "labmeasurenamesystem": "mg/dL",
    },
    "nurseCharting": {
        "patientunitstayid": 100, "nursingchartoffset": 60, "nursingchartentryoffset": 65,
        "nursingchartcelltypevallabel": "Glasgow coma score", "nursingchartcelltypevalname": "GCS Total",
        "nursingchartvalue": 15,
    },
    "intakeOutput": {
        "patientunitstayid": 100, "intakeoutputoffset": 60, "intakeoutputentryoffset": 65,
        "celllabel": "Urine", "cellpath": "flowsheet|Flowsheet Cell Labels|I&O|Output (ml)|Urine",
        "cellvaluenumeric": 100,
    },
    "infusionDrug": {
        "patientunitstayid": 100, "infusionoffset": 60, "drugname": "Norepinephrine (mcg/min)",
        "drugrate": 5,
        "patientweight": "",
    },
    "respiratoryCare": {
        "patientunitstayid": 100, "respcarestatusoffset": 60, "airwaytype": "Oral ETT",
        "ventstartoffset": 60, "ventendoffset": 300,
    },
}  # fmt: skip


def write(root: Path, name: str, rows: Sequence[Row], defaults: Mapping[str, Mapping[str, object]]) -> None:
    """One CSV table; rows say only what differs from the default row."""
    path = root / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(defaults[name]))
        writer.writeheader()
        writer.writerows({**defaults[name], **row} for row in rows)


def mimic(root: Path, **tables: Sequence[Row]) -> Path:
    """A MIMIC-IV folder. The five tables that are always there get one default row where none is given."""
    names = {name.split("/")[1]: name for name in MIMIC_DEFAULTS}
    always = ("patients", "admissions", "icustays", "chartevents", "diagnoses_icd")
    for table in {**dict.fromkeys(always, ({},)), **tables}.items():
        write(root, names[table[0]], table[1], MIMIC_DEFAULTS)
    return root


def eicu(root: Path, **tables: Sequence[Row]) -> Path:
    """An eICU folder; patient and hospital are always there."""
    for name, rows in {**dict.fromkeys(("patient", "hospital"), ({},)), **tables}.items():
        write(root, name, rows, EICU_DEFAULTS)
    return root


Event = tuple[int, str | None, str] | tuple[int, str | None, str, float]


def meds(root: Path, events: Sequence[Event]) -> Path:
    """A MEDS folder of (subject, time, code[, value])."""
    root.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(
        {
            "subject_id": [e[0] for e in events],
            "time": [None if e[1] is None else datetime.fromisoformat(e[1]) for e in events],
            "code": [e[2] for e in events],
            "numeric_value": [e[3] if len(e) == 4 else None for e in events],
        },
        schema={
            "subject_id": pl.Int64,
            "time": pl.Datetime("us"),
            "code": pl.String,
            "numeric_value": pl.Float64,
        },
    ).write_parquet(root / "events.parquet")
    return root


def small_cdm(**changes: Any) -> dict[str, pl.DataFrame]:
    """A CDM of one person, one visit, one ICU stay; measurements as given."""
    rows = changes.pop("measurements", [(3027018, 1.0, 80.0, 8541, None)])
    start = datetime(2150, 3, 1, 10)
    tables = {
        "person": pl.DataFrame(
            {"person_id": [1], "gender_concept_id": [8532], "year_of_birth": [2090], "month_of_birth": [6],
             "day_of_birth": [1], "race_concept_id": [8516], "ethnicity_concept_id": [0]}
        ),
        "visit_occurrence": pl.DataFrame(
            {"visit_occurrence_id": [10], "person_id": [1], "visit_start_datetime": [datetime(2150, 3, 1, 8)],
             "visit_end_datetime": [datetime(2150, 3, 9)], "discharged_to_concept_id": [0]}
        ),
        "visit_detail": pl.DataFrame(
            {"visit_detail_id": [100], "visit_occurrence_id": [10], "visit_detail_concept_id": [32037],
             "visit_detail_start_datetime": [start], "visit_detail_end_datetime": [datetime(2150, 3, 5)],
             "visit_detail_source_value": ["Medical (MICU)"]}
        ),
        "measurement": pl.DataFrame(
            [(1, c, start.replace(hour=10 + int(h)), v, u, d) for c, h, v, u, d in rows],
            schema={"person_id": pl.Int64, "measurement_concept_id": pl.Int64,
                    "measurement_datetime": pl.Datetime("us"), "value_as_number": pl.Float64,
                    "unit_concept_id": pl.Int64, "visit_detail_id": pl.Int64},
            orient="row",
        ),
    }  # fmt: skip
    return tables | changes


def cdm() -> dict[str, pl.DataFrame]:
    """The same with every other table that is read."""
    moment = datetime(2150, 3, 1, 11)
    return small_cdm(
        measurements=[
            (3027018, 1, 80.0, 8541, None),
            (3016723, 2, 1.5, 8840, 100),
            (3020891, 3, 98.6, 9289, 7),
        ],
        care_site=pl.DataFrame({"care_site_id": [1], "care_site_name": ["Mercy"]}),
        concept=pl.DataFrame({"concept_id": [5], "vocabulary_id": ["ICD9CM"], "concept_code": ["428.0"]}),
        condition_occurrence=pl.DataFrame(
            {
                "person_id": [1, 1],
                "visit_occurrence_id": [10, 10],
                "condition_source_value": ["428.0", "N18.6"],
                "condition_source_concept_id": [5, 0],
            }
        ),
        death=pl.DataFrame({"person_id": [1], "death_date": [moment.date()], "death_datetime": [moment]}),
        payer_plan_period=pl.DataFrame(
            {
                "person_id": [1],
                "payer_plan_period_start_date": [datetime(2150, 1, 1).date()],
                "payer_plan_period_end_date": [datetime(2150, 12, 31).date()],
                "payer_source_value": ["Medicare"],
            }
        ),
    )


def cdm_files(root: Path) -> Path:
    """The same as a folder of CSV files."""
    for name, frame in cdm().items():
        frame.write_csv(root / f"{name}.csv", datetime_format="%Y-%m-%d %H:%M:%S")
    return root


#: Stays as MEDS events: a patient who died, and one who came again.
STAYS: tuple[Event, ...] = (
    (1, "2090-06-01", "MEDS_BIRTH"),
    (1, None, "GENDER//F"),
    (1, "2150-03-01 08:00", "RACE//WHITE"),
    (1, "2150-03-01 08:00", "INSURANCE//Medicare"),
    (1, "2150-03-01 08:00", "HOSPITAL_ADMISSION//URGENT//EMERGENCY ROOM"),
    (1, "2150-03-01 10:00", "ICU_ADMISSION//Medical Intensive Care Unit (MICU)"),
    (1, "2150-03-01 11:00", "LAB//220045//bpm", 80.0),
    (1, "2150-03-01 12:00", "LAB//50912//mg/dL", 1.5),
    (1, "2150-03-01 13:00", "LAB//223900//UNK", 4.0),
    (1, "2150-03-01 14:00", "SUBJECT_FLUID_OUTPUT//226559//mL", 300.0),
    (1, "2150-03-05 10:00", "ICU_DISCHARGE//UNK"),
    (1, "2150-03-09 12:00", "HOSPITAL_DISCHARGE//DIED"),
    (1, "2150-03-09 12:00", "DIAGNOSIS//ICD//9//4280"),
    (2, "2100-06-01", "MEDS_BIRTH"),
    (2, "2150-03-01 08:00", "HOSPITAL_ADMISSION//URGENT//EMERGENCY ROOM"),
    (2, "2150-03-01 10:00", "ICU_ADMISSION//Medical Intensive Care Unit (MICU)"),
    (2, "2150-03-01 12:00", "LAB//50912//mg/dL", 1.0),
    (2, "2150-03-03 06:00", "LAB//50912//mg/dL", 2.0),
    (2, "2150-03-05 10:00", "ICU_DISCHARGE//UNK"),
    (2, "2150-03-09 12:00", "HOSPITAL_DISCHARGE//HOME"),
    (2, "2150-03-12 08:00", "HOSPITAL_ADMISSION//URGENT//EMERGENCY ROOM"),
)


def events_file(root: Path) -> Path:
    """Those stays as a MEDS folder."""
    return meds(root, STAYS)


def events() -> pl.DataFrame:
    """Those stays as a table."""
    with tempfile.TemporaryDirectory() as folder:
        return pl.read_parquet(events_file(Path(folder)) / "events.parquet")


def heart(root: Path) -> Path:
    """Two patients in each of the four files of Heart Disease."""
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        lines = [
            "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0",
            "67,1,4,0,?,0,2,108,1,-9,2,3,3,2",
        ]
        (root / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
    return root
