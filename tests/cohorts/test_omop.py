"""OMOP CDM: the made CDM of the demo gives its own table; units, versions and bad input on made rows."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from abps.cohorts import meds, mimiciv, omop, physiology, vitals
from abps.cohorts.tidy import shipped
from abps.core.errors import RequestError

from . import made_omop, oracles
from .made import small_cdm as small
from .made_omop import Tables

Data = Callable[[str], Path]
LABS = [f"{lab}_{s}" for lab in ("creatinine", "bun", "potassium", "sodium", "platelets", "wbc", "bilirubin",
        "lactate", "hemoglobin", "bicarbonate") for s in ("min", "max")]  # fmt: skip


@pytest.fixture(scope="module")
def labs(data: Data) -> list[dict[str, Any]]:
    return made_omop.demo_labs(data("mimic-iv-demo-meds"))


@pytest.fixture(scope="module")
def demo(data: Data, labs: list[dict[str, Any]]) -> Tables:
    return made_omop.tables(data("mimic-iv-demo-2.2"), labs)


@pytest.fixture(scope="module")
def from_csv(
    data: Data, labs: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> pl.DataFrame:
    """The demo's CSV with the same laboratory values as labevents."""
    root = tmp_path_factory.mktemp("mimic")
    source = data("mimic-iv-demo-2.2")
    for part in ("hosp", "icu"):
        (root / part).mkdir()
        for file in (source / part).iterdir():
            (root / part / file.name).symlink_to(file)
    with (root / "hosp" / "labevents.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["subject_id", "itemid", "charttime", "valuenum"])
        writer.writerows([r["subject"], r["item"], r["time"], r["value"]] for r in labs)
    options = mimiciv.MimicOptions(charlson="17", features=("labs",))
    return mimiciv.build(root, options).table.sort("stay")


@pytest.mark.parametrize(("form", "version"), [("duckdb", "5.4"), ("csv", "5.3"), ("parquet", "5.4")])
def test_the_same_table_as_the_csv_files(
    data: Data, labs: list[dict[str, Any]], from_csv: pl.DataFrame, tmp_path: Path, form: str, version: str
) -> None:
    made = made_omop.tables(data("mimic-iv-demo-2.2"), labs, version)
    place = made_omop.write(made, tmp_path / "cdm", form)
    found = omop.build(place, omop.OmopOptions(charlson="17", features=("labs",))).table.sort("stay")
    same = [c for c in from_csv.columns if c in found.columns and c != "race"]
    # what one of the two does not hold at all
    assert set(from_csv.columns) - set(found.columns) == {
        "era", "era_certain", "anchor_year_group", "admission_type", "insurance",
    }  # fmt: skip
    assert set(found.columns) - set(from_csv.columns) == {"hospital"}
    assert found.height == 140 and len([c for c in same if c in LABS]) == 20
    differing = [
        (stay, c)
        for c in same
        for stay, a, b in zip(found["stay"], found[c], from_csv[c])
        if not (a is None and b is None) and (a is None or b is None or a != b)
    ]
    assert differing == []
    # the CDM has one race per person, MIMIC-IV one per admission: they differ where admissions do
    rows = oracles.rows(data("mimic-iv-demo-2.2") / "hosp" / "admissions.csv")
    told: dict[int, set[str]] = {}
    for r in rows:
        told.setdefault(int(r["subject_id"]), set()).add(r["race"])
    for patient, a, b in zip(found["patient"], found["race"], from_csv["race"]):
        assert a == b or len(told[patient]) > 1


def test_three_forms_of_the_same_patients(
    data: Data, demo: Tables, from_csv: pl.DataFrame, tmp_path: Path
) -> None:
    """CSV, MEDS and OMOP: every cell that differs has one of the stated causes."""
    place = made_omop.write(demo, tmp_path / "cdm.duckdb", "duckdb")
    cdm = omop.build(place, omop.OmopOptions(charlson="17", features=("labs",))).table
    events = meds.build(data("mimic-iv-demo-meds"), meds.MedsOptions(charlson="17", features=("labs",))).table
    by = ["patient", "admission_year"]
    cdm, events, table = cdm.sort(by), events.sort(by), from_csv.sort(by)
    assert set(LABS) <= set(events.columns)
    causes: dict[str, int] = {}

    def count(cause: str) -> None:
        causes[cause] = causes.get(cause, 0) + 1

    for other, name in ((cdm, "omop"), (events, "meds")):
        absent = {f"{lab}_{s}" for lab in physiology.labs() for s in ("min", "max")} - set(
            LABS
        )  # not in labevents
        for column in [c for c in table.columns if c in other.columns and c not in {"stay", *absent}]:
            for stay, a, b in zip(table["stay"], table[column], other[column]):
                if a == b or (a is None and b is None):
                    continue
                if name == "omop":
                    assert column == "race", (stay, column)
                    count("one race per person")
                elif column in ("race", "insurance"):
                    assert b is None
                    count("the events carry neither race nor insurance")
                elif stay in (32895909, 39543480) and column in vitals.columns():
                    count("charted between two stays: a time does not tell which")
                else:
                    assert abs(a - b) < 1e-4, (stay, column)
                    count("single precision of the events")
    assert causes == {
        "one race per person": 1,
        "the events carry neither race nor insurance": 262,
        "charted between two stays: a time does not tell which": 13,
        "single precision of the events": 332,
    }


# --- made rows --------------------------------------------------------------------------------------


def one(tmp_path: Path, tables: Tables, **options: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    found = omop.build(made_omop.write(tables, tmp_path / "cdm", "parquet"), omop.OmopOptions(**options))
    (row,) = found.table.iter_rows(named=True)
    return row, found.warnings


def test_one_person(tmp_path: Path) -> None:
    row, warnings = one(tmp_path, small())
    assert (row["age"], row["sex"], row["race"], row["careunit"], row["died"]) == (
        59,
        "F",
        "BLACK",
        "MICU",
        0,
    )
    assert row["heart_rate_mean"] == 80 and row["cci_renal"] is None
    assert any(w.startswith("condition_occurrence is absent") for w in warnings)


def test_units_are_converted_or_left_out_and_counted(tmp_path: Path) -> None:
    rows = [
        (3016723, 1, 1.0, 8840, None),
        (3016723, 2, 176.8, 8749, None),  # µmol/L
        (3016723, 3, 50.0, 12345, None),  # nobody knows
        (3004501, 1, 5.5, 8753, None),  # mmol/L
        (3020891, 1, 98.6, 9289, None),  # °F
        (3020891, 2, 37.5, 586323, None),
        (3000963, 1, 120.0, 8636, None),  # g/L
        (3013682, 1, 20.0, None, None),  # no unit: ours
    ]
    row, warnings = one(tmp_path, small(measurements=rows), features=("labs",))
    assert (row["creatinine_min"], row["creatinine_max"]) == (1.0, pytest.approx(2.0, abs=1e-3))
    assert row["glucose_max"] == pytest.approx(99.1, abs=0.1) and row["hemoglobin_max"] == pytest.approx(12)
    assert (row["temperature_min"], row["temperature_max"], row["bun_max"]) == (37.0, 37.5, 20)
    assert any("1 values of creatinine have the unit concept 12345" in w for w in warnings)


@pytest.mark.parametrize(
    ("visit", "death", "died"),
    [
        ({"discharged_to_concept_id": [4216643]}, None, 1),
        ({"discharged_to_source_value": ["Expired"]}, None, 1),
        ({}, datetime(2150, 3, 9), 1),
        ({}, datetime(2150, 3, 10), 0),
        ({"discharged_to_source_value": ["HOSPICE"]}, datetime(2150, 3, 9), 0),
    ],
)
def test_death_in_hospital(tmp_path: Path, visit: dict[str, Any], death: datetime | None, died: int) -> None:
    tables = small()
    tables["visit_occurrence"] = tables["visit_occurrence"].with_columns(
        **{k: pl.Series(v) for k, v in visit.items()}
    )
    if death:
        tables["death"] = pl.DataFrame({"person_id": [1], "death_date": [death.date()]})
    assert one(tmp_path, tables)[0]["died"] == died


def test_what_is_booked_on_another_stay_does_not_count(tmp_path: Path) -> None:
    tables = small(measurements=[(3027018, 1, 80.0, 8541, 100), (3027018, 2, 190.0, 8541, 101)])
    second = tables["visit_detail"].with_columns(
        visit_detail_id=pl.lit(101, pl.Int64), visit_detail_start_datetime=pl.lit(datetime(2150, 3, 6)),
        visit_detail_end_datetime=pl.lit(datetime(2150, 3, 7)),
    )  # fmt: skip
    tables["visit_detail"] = pl.concat([tables["visit_detail"], second])
    found = omop.build(made_omop.write(tables, tmp_path / "cdm", "parquet")).table
    assert found["heart_rate_max"].to_list() == [80, None]


def test_codes_without_a_vocabulary(tmp_path: Path) -> None:
    condition = pl.DataFrame(
        {"person_id": [1, 1], "visit_occurrence_id": [10, 10], "condition_source_value": ["428.0", "N18.6"]}
    )
    row, warnings = one(tmp_path, small(condition_occurrence=condition))
    assert (row["cci_congestive_heart_failure"], row["cci_renal"], row["cci_dementia"]) == (1, 1, 0)
    assert any("their form shows their version" in w for w in warnings)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        omop.build(tmp_path / "none.duckdb")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="no CDM table"):
        omop.build(tmp_path / "empty")
    tables = small()
    del tables["visit_detail"]
    with pytest.raises(RequestError, match="the CDM table visit_detail is missing"):
        omop.build(made_omop.write(tables, tmp_path / "a", "csv"))
    tables = small(person=small()["person"].rename({"year_of_birth": "birth_year"}))
    with pytest.raises(RequestError, match=r"person in .* has no column 'year_of_birth'"):
        omop.build(made_omop.write(tables, tmp_path / "b", "parquet"))
    tables = small()
    tables["visit_detail"] = tables["visit_detail"].with_columns(visit_detail_concept_id=pl.lit(9201))
    with pytest.raises(RequestError, match="intensive-care concept"):
        omop.build(made_omop.write(tables, tmp_path / "c", "parquet"))
    tables = small()
    tables["person"] = pl.concat([tables["person"]] * 2)
    with pytest.raises(RequestError, match="occurs twice"):
        omop.build(made_omop.write(tables, tmp_path / "d", "parquet"))
    place = made_omop.write(small(), tmp_path / "e", "csv")
    text = (place / "MEASUREMENT.csv").read_text().replace(":00:00,", ":00:00+02:00,")
    (place / "MEASUREMENT.csv").write_text(text)
    with pytest.raises(RequestError, match=r"MEASUREMENT.csv, column 'measurement_datetime': .* not a time"):
        omop.build(place)
    place = made_omop.write(small(), tmp_path / "f", "csv")
    text = (place / "PERSON.csv").read_text().replace("2090", "nineteen")
    (place / "PERSON.csv").write_text(text)
    with pytest.raises(RequestError, match=r"PERSON.csv, column 'year_of_birth': .* not a number") as caught:
        omop.build(place)
    assert "nineteen" not in str(caught.value)  # no patient's value in a terminal or a log
    (tmp_path / "x.duckdb").write_bytes(b"not a database at all" * 100)
    with pytest.raises(RequestError):
        omop.build(tmp_path / "x.duckdb")


def test_every_signal_has_its_units() -> None:
    words = shipped("omop")
    names = {*words["vitals"], *words["gcs"], *physiology.labs(), "temperature_f"}
    assert set(words["units"]) == names
    assert set(words["vitals"]) == set(vitals.VITALS)
