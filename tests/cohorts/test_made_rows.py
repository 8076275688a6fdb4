"""Made rows for what the open data do not show: eras, late entries, missing discharges, time zones."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abps.cohorts import charlson, eicu, meds, mimiciv
from abps.core.errors import RequestError

from . import made

# --- comorbidities ----------------------------------------------------------------------------------


def within(code: str, length: int, low: str, high: str) -> bool:
    return low <= code[:length] <= high


def cancer_by_ranges(code: str, version: int) -> bool:
    """Malignancy or metastasis by ranges of text, as the index defines them."""
    if version == 9:
        return (
            within(code, 3, "140", "172")
            or within(code, 4, "1740", "1958")
            or within(code, 3, "200", "208")
            or code[:4] == "2386"
            or within(code, 3, "196", "199")
        )
    ranges = [("C00", "C26"), ("C30", "C34"), ("C37", "C41"), ("C45", "C58"), ("C60", "C76"), ("C81", "C85")]
    ranges += [("C90", "C97"), ("C77", "C80")]
    return code[:3] in ("C43", "C88") or any(within(code, 3, low, high) for low, high in ranges)


@pytest.mark.parametrize("code", ["185", "193", "179", "181", "1749", "1958", "20280"])
def test_cancer_without_a_fourth_digit(code: str) -> None:
    assert charlson.categories_of(code, 9) == ("malignancy",)


@pytest.mark.parametrize(
    ("code", "category"),
    [("C4A0", "malignancy"), ("C7A00", "malignancy"), ("C7B00", "metastatic_tumor"), ("C61", "malignancy")],
)
def test_cancers_that_are_younger_than_the_list(code: str, category: str) -> None:
    assert charlson.categories_of(code, 10) == (category,)


@given(st.integers(0, 99_999), st.integers(3, 5))
def test_every_numeric_code_is_cancer_exactly_where_the_ranges_say(number: int, digits: int) -> None:
    code = f"{number:05d}"[:digits]
    if code not in ("174", "1959", "19590") and not code.startswith("1959"):  # no codes of ICD-9-CM
        found = charlson.categories_of(code, 9)
        assert ("malignancy" in found or "metastatic_tumor" in found) == cancer_by_ranges(code, 9)


def test_every_icd10_letter_c_code_by_ranges() -> None:
    for second in "0123456789":
        for third in "0123456789AB":
            code = f"C{second}{third}"
            if not third.isdigit() and code not in ("C4A", "C7A", "C7B"):
                continue  # no codes of ICD-10-CM
            found = charlson.categories_of(code, 10)
            assert ("malignancy" in found or "metastatic_tumor" in found) == cancer_by_ranges(code, 10), code


# --- MIMIC-IV: the era of the stay ------------------------------------------------------------------


def test_the_era_is_that_of_the_stay_not_of_the_anchor(tmp_path: Path) -> None:
    years = [2150, 2151, 2152, 2153, 2156, 2149, 2161]
    root = made.mimic(
        tmp_path,
        admissions=[{"hadm_id": i, "admittime": f"{y}-03-01 08:00:00"} for i, y in enumerate(years)],
        icustays=[
            {
                "hadm_id": i,
                "stay_id": i,
                "intime": f"{y}-03-01 10:00:00",
                "outtime": f"{y}-03-05 10:00:00",
            }
            for i, y in enumerate(years)
        ],
        diagnoses_icd=[{"hadm_id": 0}],
    )
    table = mimiciv.build(root).table.sort("stay")
    assert table["anchor_year_group"].unique().to_list() == ["2011 - 2013"]
    # the true year of 2150 is 2011, 2012 or 2013, of 2151 2012, 2013 or 2014, and so on
    for year, era, certain in zip(years, table["era"], table["era_certain"]):
        possible = {2011 + year - 2150, 2012 + year - 2150, 2013 + year - 2150}
        first = int(era[:4])
        inside = possible & {first, first + 1, first + 2}
        assert len(inside) >= 2 and (first - 2008) % 3 == 0
        assert certain == (len(inside) == 3)
    assert table["era"][:5].to_list() == [
        "2011 - 2013",
        "2011 - 2013",
        "2014 - 2016",
        "2014 - 2016",
        "2017 - 2019",
    ]


def test_a_time_with_an_offset_is_refused(tmp_path: Path) -> None:
    root = made.mimic(tmp_path, icustays=[{"intime": "2150-03-01 10:00:00+02:00"}])
    with pytest.raises(RequestError, match=r"icustays.*line 2, column 'intime'.*without an offset") as caught:
        mimiciv.build(root)
    assert "2150-03-01 10:00" not in str(caught.value)


def test_an_error_never_shows_a_row(tmp_path: Path) -> None:
    root = made.mimic(tmp_path, chartevents=[{}, {"subject_id": 987654, "valuenum": "secret"}])
    with pytest.raises(RequestError, match=r"line 3, column 'valuenum': .* type DOUBLE") as caught:
        mimiciv.build(root)
    assert "secret" not in str(caught.value) and "987654" not in str(caught.value)


# --- eICU: entries after the end, absent tables -----------------------------------------------------


def test_eicu_entries_after_unit_discharge_do_not_count(tmp_path: Path) -> None:
    root = made.eicu(
        tmp_path,
        patient=[
            {"unitdischargeoffset": 600, "hospitaldischargeoffset": 700},
            {"patientunitstayid": 101, "uniquepid": "001-2"},
        ],
        vitalAperiodic=[
            {"patientunitstayid": stay, "observationoffset": minute, "noninvasivesystolic": 100 + minute / 10}
            for stay in (100, 101)
            for minute in (60, 600, 601, 1000)
        ],
        diagnosis=[
            {"patientunitstayid": stay, "diagnosisoffset": 800, "icd9code": "585.6"} for stay in (100, 101)
        ],
        pastHistory=[{"patientunitstayid": stay, "pasthistoryenteredoffset": 601} for stay in (100, 101)],
    )
    short, long = eicu.build(root).table.sort("stay").iter_rows(named=True)
    assert (short["sbp_max"], long["sbp_max"]) == (160, 200)
    assert (short["cci_renal"], long["cci_renal"]) == (0, 1)
    assert (short["cci_chronic_pulmonary"], long["cci_chronic_pulmonary"]) == (0, 1)


def test_eicu_comorbidities_are_missing_where_no_table_tells(tmp_path: Path) -> None:
    without = eicu.build(made.eicu(tmp_path / "a"))
    columns = [c for c in without.table.columns if c.startswith("cci_")]
    assert len(columns) == 12 and all(without.table[c].null_count() == 1 for c in columns)
    assert any("comorbidities are missing" in w for w in without.warnings)
    told = eicu.build(made.eicu(tmp_path / "b", diagnosis=[{}])).table
    assert told["cci_congestive_heart_failure"].to_list() == [1] and told["cci_renal"].to_list() == [0]


# --- MEDS: whose discharge, whose past --------------------------------------------------------------

#: One subject with two admissions; the first ends alive, the second dead.
EVENTS: list[made.Event] = [
    (1, "2090-05-01", "MEDS_BIRTH"),
    (1, None, "GENDER//F"),
    (1, "2150-03-01 08:00", "HOSPITAL_ADMISSION//URGENT//CLINIC"),
    (1, "2150-03-01 08:00", "RACE//WHITE"),
    (1, "2150-03-01 08:00", "INSURANCE//Private"),
    (1, "2150-03-01 10:00", "ICU_ADMISSION//MICU"),
    (1, "2150-03-01 11:00", "LAB//220045//bpm", 80.0),
    (1, "2150-03-05 10:00", "ICU_DISCHARGE//MICU"),
    (1, "2150-03-09 12:00", "HOSPITAL_DISCHARGE//HOME"),
    (1, "2151-06-01 08:00", "HOSPITAL_ADMISSION//URGENT//CLINIC"),
    (1, "2151-06-01 08:00", "RACE//OTHER"),
    (1, "2151-06-01 08:00", "INSURANCE//Medicare"),
    (1, "2151-06-01 10:00", "ICU_ADMISSION//SICU"),
    (1, "2151-06-02 10:00", "ICU_DISCHARGE//SICU"),
    (1, "2151-06-02 10:00", "HOSPITAL_DISCHARGE//DIED"),
]
PLAIN = meds.MedsOptions(diagnoses="none")


def test_meds_a_missing_discharge_is_not_borrowed_from_the_next_admission(tmp_path: Path) -> None:
    whole = meds.build(made.meds(tmp_path / "whole", EVENTS), PLAIN)
    assert whole.table["died"].to_list() == [0, 1] and not any("is empty" in w for w in whole.warnings)
    cut = [e for e in EVENTS if e[2] != "HOSPITAL_DISCHARGE//HOME"]
    found = meds.build(made.meds(tmp_path / "cut", cut), PLAIN)
    assert found.table["careunit"].to_list() == ["SICU"] and found.table["died"].to_list() == [1]
    assert [(s.label, s.left_out) for s in found.steps[1:2]] == [("hospital outcome unknown", 1)]
    # the same for the discharge from the ICU
    cut = [e for e in EVENTS if e[2] != "ICU_DISCHARGE//MICU"]
    found = meds.build(made.meds(tmp_path / "icu", cut), PLAIN)
    assert [(s.label, s.left_out) for s in found.steps[1:2]] == [("ICU discharge missing", 1)]


def test_meds_race_and_insurance_come_from_the_past(tmp_path: Path) -> None:
    table = meds.build(made.meds(tmp_path / "a", EVENTS), PLAIN).table
    assert table["race"].to_list() == ["WHITE", "OTHER"]
    assert table["insurance"].to_list() == ["Private", "Medicare"]
    later = [e for e in EVENTS if e[2] not in ("RACE//WHITE", "INSURANCE//Private")]
    table = meds.build(made.meds(tmp_path / "b", later), PLAIN).table
    assert table["race"].to_list() == [None, "OTHER"] and table["insurance"].to_list() == [None, "Medicare"]
    none = [e for e in EVENTS if not e[2].startswith(("RACE//", "INSURANCE//"))]
    warned = meds.build(made.meds(tmp_path / "c", none), PLAIN).warnings
    assert any(w.startswith("race is empty: no event in time") for w in warned)
    assert any(w.startswith("insurance is empty") for w in warned)
    assert not any(w.startswith("sex is empty") for w in warned)


def test_meds_a_transfer_at_one_moment_ends_the_stay_before(tmp_path: Path) -> None:
    moved = [e for e in EVENTS if e[0] == 1 and (e[1] or "") < "2151"] + [
        (1, "2150-03-05 10:00", "ICU_ADMISSION//CCU"),
        (1, "2150-03-06 10:00", "ICU_DISCHARGE//CCU"),
    ]
    table = meds.build(made.meds(tmp_path, moved), PLAIN).table
    assert table["careunit"].to_list() == ["MICU", "CCU"] and table["died"].to_list() == [0, 0]


# --- one table, whatever the clock of the machine ---------------------------------------------------

BUILD = """
import sys
from abps.cohorts import meds, mimiciv
made = (meds.build(sys.argv[2], meds.MedsOptions(diagnoses="none")) if sys.argv[1] == "meds"
        else mimiciv.build(sys.argv[2]))
made.table.write_parquet(sys.argv[3])
"""


@pytest.mark.parametrize("source", ["mimiciv", "meds"])
def test_the_time_zone_of_the_machine_changes_nothing(tmp_path: Path, source: str) -> None:
    if source == "meds":
        root = made.meds(tmp_path / "source", EVENTS)
        # times that know their zone: the format allows it, and a naive reading would shift them
        events = pl.read_parquet(root / "events.parquet")
        events.with_columns(pl.col("time").dt.replace_time_zone("UTC")).write_parquet(root / "events.parquet")
    else:
        # 02:30 does not exist on this day in New York
        root = made.mimic(tmp_path / "source", chartevents=[{"charttime": "2150-03-02 02:30:00"}, {}])
    tables = []
    for zone in ("UTC", "America/New_York", "Asia/Tokyo"):
        out = tmp_path / f"{zone.replace('/', '-')}.parquet"
        environment = {**os.environ, "TZ": zone}
        subprocess.run([sys.executable, "-c", BUILD, source, root, out], check=True, env=environment)
        tables.append(pl.read_parquet(out))
    assert tables[0].equals(tables[1]) and tables[0].equals(tables[2])
    moment = datetime(2150, 3, 1, 10, tzinfo=UTC)
    share = (moment - datetime(2150, 1, 1, tzinfo=UTC)).total_seconds() / (365 * 86_400)
    assert tables[0]["admission_year"][0] == pytest.approx(2150 + share)
