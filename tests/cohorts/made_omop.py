"""The MIMIC-IV demo as a made OMOP CDM, in plain Python. Shares no code with the package.

Vitals come from chartevents; laboratory values and coma scales from the MEDS form of the same patients,
where they are given too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from . import oracles

Tables = dict[str, pl.DataFrame]

#: MIMIC-IV item -> (concept, unit concept).
VITALS = {
    220045: (3027018, 8541), 220179: (3004249, 8876), 220050: (3004249, 8876), 225309: (3004249, 8876),
    220180: (3012888, 8876), 220051: (3012888, 8876), 225310: (3012888, 8876), 220181: (3027598, 8876),
    220052: (3027598, 8876), 225312: (3027598, 8876), 220210: (3024171, 8541), 224690: (3024171, 8541),
    220277: (40762499, 8554), 223761: (3020891, 9289), 223762: (3020891, 586323),
}  # fmt: skip
LABS = {
    50912: (3016723, 8840), 51006: (3013682, 8840), 50971: (3023103, 9557), 50983: (3019550, 9557),
    51265: (3024929, 8848), 51301: (3000905, 8848), 50885: (3024128, 8840), 50813: (3047181, 8753),
    51222: (3000963, 8713), 50882: (3016293, 9557),
}  # fmt: skip


def demo_labs(events: Path) -> list[dict[str, Any]]:
    """subject, time, item, value of the laboratory rows among the MEDS events of the demo."""
    frame = pl.read_parquet(next(events.glob("*.parquet")))
    frame = frame.with_columns(item=pl.col("code").str.extract(r"^LAB//(\d+)//").cast(pl.Int64, strict=False))
    frame = frame.filter(pl.col("item").is_in(list(LABS)) & pl.col("value").is_not_null())
    return frame.select(
        subject="subject_id", time="time", item="item", value=pl.col("value").cast(pl.Float64)
    ).to_dicts()


def tables(root: Path, labs: Iterable[dict[str, Any]] = (), version: str = "5.4") -> Tables:
    """The CDM of the demo in ``root``."""
    patients = oracles.rows(root / "hosp" / "patients.csv")
    admissions = oracles.rows(root / "hosp" / "admissions.csv")
    stays = oracles.rows(root / "icu" / "icustays.csv")
    race = {r["subject_id"]: r["race"] for r in sorted(admissions, key=lambda r: r["admittime"])}
    person = pl.DataFrame(
        {
            "person_id": [int(p["subject_id"]) for p in patients],
            "gender_concept_id": [8507 if p["gender"] == "M" else 8532 for p in patients],
            "year_of_birth": [int(p["anchor_year"]) - int(p["anchor_age"]) for p in patients],
            "race_concept_id": [0] * len(patients),
            "ethnicity_concept_id": [0] * len(patients),
            "race_source_value": [race.get(p["subject_id"]) for p in patients],
        }
    )
    names = ("admitted_from", "discharged_to") if version == "5.4" else ("admitting", "discharge_to")
    from_name = f"{names[0]}_source_value"
    visit = pl.DataFrame(
        {
            "visit_occurrence_id": [int(a["hadm_id"]) for a in admissions],
            "person_id": [int(a["subject_id"]) for a in admissions],
            "visit_concept_id": [9201] * len(admissions),
            "visit_start_datetime": [a["admittime"] for a in admissions],
            "visit_end_datetime": [a["dischtime"] for a in admissions],
            from_name: [a["admission_location"] for a in admissions],
            f"{names[1]}_concept_id": [
                4216643 if a["hospital_expire_flag"] == "1" else 0 for a in admissions
            ],
        }
    ).with_columns(pl.col("visit_start_datetime", "visit_end_datetime").str.to_datetime())
    units = sorted({s["first_careunit"] for s in stays})
    detail = pl.DataFrame(
        {
            "visit_detail_id": [int(s["stay_id"]) for s in stays],
            "person_id": [int(s["subject_id"]) for s in stays],
            "visit_occurrence_id": [int(s["hadm_id"]) for s in stays],
            "visit_detail_concept_id": [32037] * len(stays),
            "visit_detail_start_datetime": [s["intime"] for s in stays],
            "visit_detail_end_datetime": [s["outtime"] for s in stays],
            "care_site_id": [units.index(s["first_careunit"]) + 1 for s in stays],
        }
    ).with_columns(pl.col("visit_detail_start_datetime", "visit_detail_end_datetime").str.to_datetime())
    ward = detail.head(5).with_columns(
        visit_detail_id=pl.col("visit_detail_id") + 10**9, visit_detail_concept_id=pl.lit(9201, pl.Int64)
    )
    site = pl.DataFrame({"care_site_id": list(range(1, len(units) + 1)), "care_site_name": units})
    coded = oracles.rows(root / "hosp" / "diagnoses_icd.csv")
    codes = sorted({(c["icd_code"].strip(), c["icd_version"]) for c in coded})
    number = {code: 45_000_000 + i for i, code in enumerate(codes)}
    concept = pl.DataFrame(
        {
            "concept_id": list(number.values()),
            "vocabulary_id": ["ICD9CM" if v == "9" else "ICD10CM" for _, v in codes],
            "concept_code": [c for c, _ in codes],
        }
    )
    condition = pl.DataFrame(
        {
            "person_id": [int(c["subject_id"]) for c in coded],
            "visit_occurrence_id": [int(c["hadm_id"]) for c in coded],
            "condition_source_value": [c["icd_code"].strip() for c in coded],
            "condition_source_concept_id": [number[c["icd_code"].strip(), c["icd_version"]] for c in coded],
        }
    )
    rows: list[tuple[Any, ...]] = []
    for r in oracles.rows(root / "icu" / "chartevents.csv.gz"):
        if int(r["itemid"]) in VITALS and r["valuenum"]:
            ids = VITALS[int(r["itemid"])]
            rows.append(
                (
                    int(r["subject_id"]),
                    ids[0],
                    r["charttime"],
                    float(r["valuenum"]),
                    ids[1],
                    int(r["stay_id"]),
                )
            )
    for lab in labs:
        ids = LABS[lab["item"]]
        rows.append((lab["subject"], ids[0], str(lab["time"]), lab["value"], ids[1], None))
    schema = {
        "person_id": pl.Int64,
        "measurement_concept_id": pl.Int64,
        "measurement_datetime": pl.String,
        "value_as_number": pl.Float64,
        "unit_concept_id": pl.Int64,
        "visit_detail_id": pl.Int64,
    }
    measurement = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        pl.col("measurement_datetime").str.to_datetime(time_unit="us")
    )
    return {
        "person": person,
        "visit_occurrence": visit,
        "visit_detail": pl.concat([detail, ward]),
        "care_site": site,
        "concept": concept,
        "condition_occurrence": condition,
        "measurement": measurement,
    }


def write(made: Tables, place: Path, form: str) -> Path:
    """As a folder of Parquet or CSV files (upper-case names), or as a DuckDB database."""
    if form == "duckdb":
        place.parent.mkdir(parents=True, exist_ok=True)
        with duckdb.connect(str(place)) as database:
            for name, frame in made.items():
                part = place.parent / f"{name}.part"
                frame.write_parquet(part)
                database.execute(f"CREATE TABLE {name} AS FROM read_parquet('{part}')")
                part.unlink()
        return place
    place.mkdir(parents=True, exist_ok=True)
    for name, frame in made.items():
        if form == "parquet":
            frame.write_parquet(place / f"{name}.parquet")
        else:
            frame.write_csv(place / f"{name.upper()}.csv", datetime_format="%Y-%m-%d %H:%M:%S")
    return place
