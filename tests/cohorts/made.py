"""Small made sources: a handful of invented patients in the layouts of MIMIC-IV, eICU and MEDS."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import polars as pl

Row = Mapping[str, object]

#: Column -> value of a row where a test does not say otherwise.
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
