"""The same patients as MEDS events: the same cohort."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from abps.cohorts import meds, mimiciv, vitals
from abps.core.errors import RequestError

from . import oracles

Data = Callable[[str], Path]
BY = ["patient", "admission_year"]


@pytest.fixture(scope="module")
def both(data: Data) -> tuple[pl.DataFrame, pl.DataFrame]:
    csv = mimiciv.build(data("mimic-iv-demo-2.2"), mimiciv.MimicOptions(charlson="17"))
    events = meds.build(data("mimic-iv-demo-meds"), meds.MedsOptions(charlson="17"))
    return csv.table.sort(BY), events.table.sort(BY)


def test_everything_but_vitals_is_equal(both: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    csv, events = both
    same = [c for c in events.columns if c not in ("stay", "race", "insurance", *vitals.columns())]
    assert len(same) == 8 + 17
    assert csv.select(same).equals(events.select(same))
    assert events["race"].null_count() == 140  # the demo's events carry neither race nor insurance


def different(csv: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    return csv.filter(
        pl.any_horizontal(
            ((csv[c] - events[c]).abs() > 1e-4) | (csv[c].is_null() != events[c].is_null())
            for c in vitals.columns()
        )
    )


def test_vitals_are_equal_where_the_stay_of_an_event_is_certain(
    both: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    csv, events = both
    # Two stays end less than two hours before the patient's next one. What was charted in between has a
    # stay_id in the CSV but only a time in MEDS, and the time does not tell.
    assert different(csv, events)["stay"].sort().to_list() == [32895909, 39543480]


def test_vitals_of_every_stay_with_events_given_to_the_nearest_stay(
    both: tuple[pl.DataFrame, pl.DataFrame], data: Data
) -> None:
    csv, events = both
    expected = oracles.nearest_stay_vitals(data("mimic-iv-demo-2.2"))
    compared = 0
    for stay, row in zip(csv["stay"], events.iter_rows(named=True)):
        for vital in vitals.VITALS:
            want = expected.get((stay, vital))
            have = tuple(row[f"{vital}_{s}"] for s in ("mean", "min", "max"))
            if want is None:
                assert have == (None, None, None)
            else:
                assert have == pytest.approx(want, abs=1e-4)
                compared += 1
    assert compared > 900


def test_sharded_standard_layout(data: Data, tmp_path: Path, both: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    events = pl.read_parquet(next(data("mimic-iv-demo-meds").glob("*.parquet")))
    events = events.rename({"value": "numeric_value"}).sample(fraction=1, shuffle=True, seed=4)
    for split, part in (("train", events[: events.height // 2]), ("held_out", events[events.height // 2 :])):
        (tmp_path / "data" / split).mkdir(parents=True)
        part.write_parquet(tmp_path / "data" / split / "0.parquet")
    table = meds.build(tmp_path, meds.MedsOptions(charlson="17")).table.sort(BY)
    assert table.equals(both[1])


def test_own_code_map(data: Data, tmp_path: Path) -> None:
    events = pl.read_parquet(next(data("mimic-iv-demo-meds").glob("*.parquet")))
    renamed = events.with_columns(pl.col("code").str.replace("^ICU_ADMISSION//", "UNIT_IN//"))
    renamed.write_parquet(tmp_path / "events.parquet")
    with pytest.raises(RequestError, match=r"begins with 'ICU_ADMISSION//'.*map="):
        meds.build(tmp_path)
    shipped = Path(meds.__file__).parent / "tables" / "meds_mimiciv.json"
    own = json.loads(shipped.read_text()) | {"icu_admission": "UNIT_IN//"}
    (tmp_path / "map.json").write_text(json.dumps(own))
    made = meds.build(tmp_path, meds.MedsOptions(map_file=str(tmp_path / "map.json"), diagnoses="none"))
    assert made.table.height == 140 and made.table["died"].sum() == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "not what it should be"),
        ("{}", "not what it should be"),
        ("missing", "cannot read the code map"),
    ],
)
def test_bad_code_map(data: Data, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "map.json"
    if content != "missing":
        path.write_text(content)
    with pytest.raises(RequestError, match=message):
        meds.build(data("mimic-iv-demo-meds"), meds.MedsOptions(map_file=str(path)))


def test_unknown_vital_in_the_map(data: Data, tmp_path: Path) -> None:
    shipped = Path(meds.__file__).parent / "tables" / "meds_mimiciv.json"
    own = json.loads(shipped.read_text())
    own["vitals"]["hart_rate"] = ["X//"]
    (tmp_path / "map.json").write_text(json.dumps(own))
    with pytest.raises(RequestError, match=r"unknown vital 'hart_rate' .did you mean 'heart_rate'"):
        meds.build(data("mimic-iv-demo-meds"), meds.MedsOptions(map_file=str(tmp_path / "map.json")))


def test_wrong_columns_and_folders(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        meds.build(tmp_path / "none")
    with pytest.raises(RequestError, match="no Parquet file"):
        meds.build(tmp_path)
    pl.DataFrame({"subject_id": [1], "time": [None], "kode": ["x"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(RequestError, match=r"no column 'code' .did you mean 'kode'"):
        meds.build(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(RequestError, match="not a readable Parquet file"):
        meds.build(tmp_path)
