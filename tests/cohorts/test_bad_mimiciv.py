"""Spoiled copies of the MIMIC-IV demo: a clear sentence or the right result, never something between."""

from __future__ import annotations

import builtins
import csv
import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abps.cohorts import mimiciv
from abps.cohorts.duck import session
from abps.core.errors import RequestError

from . import oracles

Row = dict[str, str]


def rewrite(path: Path, change: Callable[[list[Row]], list[Row]]) -> None:
    """Change the rows of a CSV file in place."""
    content = change(oracles.rows(path))
    opener: Any = gzip.open if path.suffix == ".gz" else builtins.open
    with opener(path, "wt", newline="") as out:
        writer = csv.DictWriter(out, list(content[0]))
        writer.writeheader()
        writer.writerows(content)


def change_each(path: Path, **values: Callable[[Row], str]) -> None:
    """Set columns of every row."""
    rewrite(path, lambda content: [{**r, **{c: f(r) for c, f in values.items()}} for r in content])


@pytest.mark.parametrize(
    "name",
    [
        "hosp/patients.csv",
        "hosp/admissions.csv",
        "hosp/diagnoses_icd.csv",
        "icu/icustays.csv",
        "icu/chartevents.csv.gz",
    ],
)
def test_missing_table(mimic_copy: Path, name: str) -> None:
    (mimic_copy / name).unlink()
    with pytest.raises(RequestError, match=name.split(".")[0]) as caught:
        mimiciv.build(mimic_copy)
    assert "\n" not in str(caught.value)


def test_wrong_folder_names_the_right_one(mimic_copy: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"not in .* but in .*mimic; give that folder"):
        mimiciv.build(tmp_path)
    with pytest.raises(RequestError, match="does not exist"):
        mimiciv.build(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="is a file"):
        mimiciv.build(mimic_copy / "hosp" / "patients.csv")


@pytest.mark.parametrize("kept", [0.02, 0.3, 0.999])
def test_truncated_gz(mimic_copy: Path, kept: float) -> None:
    path = mimic_copy / "icu" / "chartevents.csv.gz"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(RequestError, match=r"chartevents.csv.gz is cut off or damaged.*download it again"):
        mimiciv.build(mimic_copy)


def test_not_gz_at_all(mimic_copy: Path) -> None:
    (mimic_copy / "icu" / "chartevents.csv.gz").write_text("<html>please log in</html>")
    with pytest.raises(RequestError, match=r"chartevents.csv.gz is cut off or damaged"):
        mimiciv.build(mimic_copy)


def test_empty_file(mimic_copy: Path) -> None:
    (mimic_copy / "hosp" / "patients.csv").write_text("")
    with pytest.raises(RequestError, match="is empty"):
        mimiciv.build(mimic_copy)


def test_cut_in_the_middle_of_a_line(mimic_copy: Path) -> None:
    path = mimic_copy / "hosp" / "admissions.csv"
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(RequestError, match=r"admissions.csv cannot be read"):
        mimiciv.build(mimic_copy)


def test_renamed_column(mimic_copy: Path) -> None:
    path = mimic_copy / "icu" / "icustays.csv"
    path.write_text(path.read_text().replace("first_careunit", "first_care_unit", 1))
    with pytest.raises(RequestError, match=r"no column 'first_careunit' .did you mean 'first_care_unit'\?"):
        mimiciv.build(mimic_copy)


def test_words_where_numbers_belong(mimic_copy: Path) -> None:
    path = mimic_copy / "icu" / "chartevents.csv.gz"
    change_each(path, valuenum=lambda r: "high" if r["itemid"] == "220277" else r["valuenum"])
    with pytest.raises(RequestError, match=r"cannot be read: line \d+, column 'valuenum': .* DOUBLE"):
        mimiciv.build(mimic_copy)


def test_lost_leading_zeros_are_warned_about(mimic_copy: Path) -> None:
    path = mimic_copy / "hosp" / "diagnoses_icd.csv"

    def as_number(r: Row) -> str:
        code = r["icd_code"].strip()
        return str(int(code)) if code.isdigit() else code

    change_each(path, icd_code=as_number)
    warned = mimiciv.build(mimic_copy).warnings
    assert any("leading zeros" in w for w in warned)


def test_lost_zeros_that_leave_no_short_code_are_noticed_too(mimic_copy: Path) -> None:
    path = mimic_copy / "hosp" / "diagnoses_icd.csv"
    rewrite(
        path,
        lambda content: [
            {**r, "icd_code": code}
            for r in content
            if len(code := r["icd_code"].strip().lstrip("0") if r["icd_version"] == "9" else r["icd_code"])
            >= 3
        ],
    )
    warned = mimiciv.build(mimic_copy).warnings
    assert any("probably lost" in w for w in warned)


def test_unknown_icd_version(mimic_copy: Path) -> None:
    change_each(mimic_copy / "hosp" / "diagnoses_icd.csv", icd_version=lambda r: "11")
    with pytest.raises(RequestError, match="icd_version 11"):
        mimiciv.build(mimic_copy)


def test_temperatures_in_the_wrong_unit(mimic_copy: Path) -> None:
    path = mimic_copy / "icu" / "chartevents.csv.gz"

    def celsius_in_the_fahrenheit_item(r: Row) -> str:
        return f"{(float(r['valuenum']) - 32) / 1.8:.1f}" if r["itemid"] == "223761" else r["valuenum"]

    change_each(path, valuenum=celsius_in_the_fahrenheit_item)
    made = mimiciv.build(mimic_copy)
    assert any("wrong unit" in w for w in made.warnings)
    assert any("temperature values in the window" in w and "check the unit" in w for w in made.warnings)
    kept = made.table["temperature_mean"].drop_nulls()
    assert kept.min() > 30 and kept.max() < 42  # type: ignore[operator]
    expected = oracles.mimic_vitals(mimic_copy, 0)
    for row in made.table.iter_rows(named=True):
        want = expected.get((row["stay"], "temperature"))
        assert (row["temperature_mean"] is None) == (want is None)


def test_stays_without_vitals_stay_in(mimic_copy: Path) -> None:
    stays = sorted(oracles.mimic_stays(mimic_copy))[:3]
    gone = {str(s) for s in stays}
    rewrite(
        mimic_copy / "icu" / "chartevents.csv.gz",
        lambda content: [r for r in content if r["stay_id"] not in gone],
    )
    made = mimiciv.build(mimic_copy)
    assert made.table.height == 140 and made.facts["stays_without_vitals"] == 3
    assert any(w.startswith("3 stays have no vital sign") for w in made.warnings)
    empty = made.table.filter(made.table["stay"].is_in(stays))
    assert empty["heart_rate_mean"].null_count() == 3


def test_rows_in_any_order(mimic_copy: Path) -> None:
    before = mimiciv.build(mimic_copy).table

    def shuffled(content: list[Row]) -> list[Row]:
        random.Random(1).shuffle(content)
        return content

    for name in ("icu/chartevents.csv.gz", "icu/icustays.csv", "hosp/diagnoses_icd.csv", "hosp/patients.csv"):
        rewrite(mimic_copy / name, shuffled)
    assert mimiciv.build(mimic_copy).table.equals(before)


def test_out_before_in_is_left_out_and_counted(mimic_copy: Path) -> None:
    first = str(min(oracles.mimic_stays(mimic_copy)))

    def swap(content: list[Row]) -> list[Row]:
        return [
            {**r, "intime": r["outtime"], "outtime": r["intime"]} if r["stay_id"] == first else r
            for r in content
        ]

    rewrite(mimic_copy / "icu" / "icustays.csv", swap)
    made = mimiciv.build(mimic_copy)
    step = next(s for s in made.steps if "out of order" in s.label)
    assert (step.left_out, made.table.height) == (1, 139)


def test_next_release_with_an_extra_column(mimic_copy: Path) -> None:
    before = mimiciv.build(mimic_copy).table
    for name in ("hosp/patients.csv", "hosp/admissions.csv", "icu/icustays.csv", "icu/chartevents.csv.gz"):
        rewrite(
            mimic_copy / name, lambda content: [{"new_in_v4": 'x,"y', **r, "also_new": ""} for r in content]
        )
    assert mimiciv.build(mimic_copy).table.equals(before)


def test_duplicate_rows(mimic_copy: Path) -> None:
    rewrite(mimic_copy / "hosp" / "patients.csv", lambda content: content + content[:1])
    with pytest.raises(RequestError, match="rows twice"):
        mimiciv.build(mimic_copy)


def test_nobody_is_left(mimic_copy: Path) -> None:
    with pytest.raises(RequestError, match=r"no stay is left.*relax the filters"):
        mimiciv.build(mimic_copy, mimiciv.MimicOptions(min_age=94.5, max_age=95))
    with pytest.raises(RequestError, match="swap them"):
        mimiciv.build(mimic_copy, mimiciv.MimicOptions(min_age=80, max_age=20))


def test_wrong_options() -> None:
    for wrong in ({"window": "36h"}, {"charlson": "19"}, {"diagnoses": "later"}):
        with pytest.raises(RequestError, match=next(iter(wrong))):
            mimiciv.MimicOptions(**wrong)  # type: ignore[arg-type]


def test_a_full_folder_for_temporary_files_is_not_the_fault_of_the_source() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is full")
    with session() as duck, pytest.raises(RequestError, match="is full or not writable; set TMPDIR"):
        duck.execute("COPY (FROM range(100000)) TO '/dev/full' (FORMAT csv)", "x", (Path("patients.csv"),))
