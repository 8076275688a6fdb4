"""Tasks on MEDS events: labels by plain Python, features that know nothing of the future, bad label files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from abps.cli.main import main
from abps.cohorts import meds_events, meds_tasks, provenance
from abps.cohorts.duck import session
from abps.cohorts.meds_rows import RowOptions, build
from abps.core.errors import RequestError

from . import made

Data = Callable[[str], Path]
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def source(data: Data) -> Path:
    return data("mimic-iv-demo-meds")


@pytest.fixture(scope="module")
def events(source: Path) -> dict[int, list[tuple[datetime, str, float | None]]]:
    """Subject -> (time, code, value), in time."""
    frame = pl.read_parquet(next(source.glob("*.parquet"))).drop_nulls("time")
    found = defaultdict(list)
    for subject, time, code, value in frame.select("subject_id", "time", "code", "value").iter_rows():
        found[subject].append((time, code, value))
    return {s: sorted(rows, key=lambda r: r[0]) for s, rows in found.items()}


def spans(
    rows: list[tuple[datetime, str, Any]], begin: str, end: str
) -> list[tuple[datetime, datetime, str]]:
    """(start, end, the end's code) of all stays: each begin with the next end."""
    found = []
    ends = [(t, c) for t, c, _ in rows if c.startswith(end)]
    for time, code, _ in rows:
        if code.startswith(begin):
            later = [(t, c) for t, c in ends if t > time]
            if later:
                found.append((time, *min(later)))
    return found


def still_in(rows: list[tuple[datetime, str, Any]]) -> list[tuple[datetime, datetime, datetime, str]]:
    """(prediction, ICU in, ICU out, hospital discharge code) of stays of 24 hours and more."""
    found = []
    hospital = spans(rows, "HOSPITAL_ADMISSION//", "HOSPITAL_DISCHARGE//")
    for begin, end, _ in spans(rows, "ICU_ADMISSION//", "ICU_DISCHARGE//"):
        if end - begin >= 24 * HOUR:
            holds = max(hospital, key=lambda h: min(h[1], end) - max(h[0], begin))
            found.append((begin + 24 * HOUR, begin, end, holds[2]))
    return found


Labelled = dict[tuple[int, datetime], float]


def labels_of(source: Path, name: str) -> Labelled:
    paths = meds_events.find_events(source)
    codes, task = meds_events.read_map(None), meds_tasks.read_task(name)
    with session() as duck:
        labels = meds_tasks.make_labels(duck, meds_events.events_sql(paths), codes, task, tuple(paths))
    return {(p, t): v for p, t, v in labels.frame.iter_rows()}


def test_death_and_length_of_stay(source: Path, events: dict[int, Any]) -> None:
    death, length = {}, {}
    for subject, rows in events.items():
        for moment, begin, end, code in still_in(rows):
            death[subject, moment] = int(code == "HOSPITAL_DISCHARGE//DIED")
            length[subject, moment] = (end - begin).total_seconds() / 86_400
    assert labels_of(source, "in-hospital-death") == death and sum(death.values()) > 10
    assert labels_of(source, "length-of-stay") == pytest.approx(length)


def test_readmission(source: Path, events: dict[int, Any]) -> None:
    expected = {}
    for subject, rows in events.items():
        admitted = [t for t, c, _ in rows if c.startswith("HOSPITAL_ADMISSION//")]
        for begin, end, code in spans(rows, "HOSPITAL_ADMISSION//", "HOSPITAL_DISCHARGE//"):
            if code != "HOSPITAL_DISCHARGE//DIED":
                later = [t for t in admitted if t > begin]
                expected[subject, end] = int(bool(later) and min(later) - end <= timedelta(days=30))
    assert labels_of(source, "readmission-30d") == expected and 40 < sum(expected.values()) < 100


def test_kidney_injury(source: Path, events: dict[int, Any]) -> None:
    expected = {}
    for subject, rows in events.items():
        values = [(t, round(v, 3)) for t, c, v in rows if c.startswith("LAB//50912//") and v]
        hurt = []
        for time, value in values:
            two = [v for t, v in values if time - 48 * HOUR <= t <= time]
            week = [v for t, v in values if time - timedelta(days=7) <= t <= time]
            hurt.append((time, value - min(two) >= 0.3 - 1e-9 or value >= 1.5 * min(week) - 1e-9))
        hospital = spans(rows, "HOSPITAL_ADMISSION//", "HOSPITAL_DISCHARGE//")
        for moment, begin, end, _ in still_in(rows):
            admitted = max(hospital, key=lambda h: min(h[1], end) - max(h[0], begin))[0]
            after = [ill for t, ill in hurt if moment < t <= moment + 48 * HOUR]
            if after and not any(ill and admitted <= t <= moment for t, ill in hurt):
                expected[subject, moment] = int(any(after))
    assert labels_of(source, "aki") == expected and sum(expected.values()) > 5


def test_suspected_infection_by_hand() -> None:
    def at(*hours: float) -> pl.DataFrame:
        times = [datetime(2150, 1, 1) + h * HOUR for h in hours]
        schema = {"patient": pl.Int64, "time": pl.Datetime("us")}
        return pl.DataFrame({"patient": [1] * len(times), "time": times}, schema=schema)

    def found(cultures: pl.DataFrame, drugs: pl.DataFrame) -> list[float]:
        made_ = meds_tasks.suspicions(cultures, drugs, 72, 24)
        return [(t - datetime(2150, 1, 1)) / HOUR for t in made_["time"]]

    assert found(at(0), at(72)) == [0] and found(at(0), at(72.1)) == []
    assert found(at(24), at(0)) == [0] and found(at(24.1), at(0)) == []
    assert found(at(0, 10), at(5)) == [0, 5]
    assert found(at(), at(5)) == []


BEFORE: list[made.Event] = [
    (1, "2090-05-01", "MEDS_BIRTH"),
    (1, None, "GENDER//F"),
    (1, "2150-03-01 08:00", "HOSPITAL_ADMISSION//URGENT//CLINIC"),
    (1, "2150-03-01 10:00", "ICU_ADMISSION//Medical (MICU)"),
    (1, "2150-03-01 11:00", "LAB//220045//bpm", 80.0),
    (1, "2150-03-01 12:00", "LAB//50912//mg/dL", 1.0),
    (1, "2150-03-02 09:00", "LAB//220045//bpm", 90.0),
    (1, "2150-03-02 09:30", "SUBJECT_FLUID_OUTPUT//226559//ml", 600.0),
    (1, "2150-03-02 09:40", "SUBJECT_FLUID_OUTPUT//227488//ml", 100.0),
    (1, "2149-03-02 09:40", "DIAGNOSIS//ICD//9//4280"),
]
AFTER: list[made.Event] = [
    (1, "2150-03-02 10:00", "LAB//220045//bpm", 150.0),
    (1, "2150-03-02 10:00", "DIAGNOSIS//ICD//9//5856"),
    (1, "2150-03-02 10:00", "RACE//WHITE"),
    (1, "2150-03-02 11:00", "LAB//50912//mg/dL", 9.0),
    (1, "2150-03-05 10:00", "ICU_DISCHARGE//Medical (MICU)"),
    (1, "2150-03-09 12:00", "HOSPITAL_DISCHARGE//HOME"),
]
MOMENT = datetime(2150, 3, 2, 10)


def label_file(
    path: Path, rows: list[tuple[int, datetime | None, Any]], column: str = "boolean_value"
) -> Path:
    pl.DataFrame(
        {
            "subject_id": [r[0] for r in rows],
            "prediction_time": [r[1] for r in rows],
            column: [r[2] for r in rows],
        },
        schema_overrides={"prediction_time": pl.Datetime("us")},
    ).write_parquet(path)
    return path


def rows_of(tmp_path: Path, rows: list[tuple[int, datetime | None, Any]], **options: Any) -> Any:
    root = tmp_path / "events"
    if not root.exists():
        made.meds(root, [*BEFORE, *AFTER])
    column = options.pop("column", "boolean_value")
    path = label_file(tmp_path / "labels.parquet", rows, column)
    return build(root, RowOptions(labels=str(path), **options))


def test_only_what_was_before_the_moment(tmp_path: Path) -> None:
    found = rows_of(tmp_path, [(1, MOMENT, True)], features=("labs", "urine"))
    (row,) = found.table.iter_rows(named=True)
    assert (row["heart_rate_min"], row["heart_rate_max"]) == (
        80,
        90,
    )  # the beat of the very moment is not in it
    assert (row["creatinine_max"], row["urine_total"], row["race"]) == (1.0, 500, None)
    assert (row["cci_congestive_heart_failure"], row["cci_renal"]) == (1, 0)
    assert (row["careunit"], row["hours_in_hospital"], row["age"], row["outcome"]) == ("MICU", 26, 59, 1)
    # another future, the same row
    other = [e if len(e) == 3 else (*e[:3], 7.0) for e in AFTER]
    made.meds(tmp_path / "events", [*BEFORE, *other[:4], (1, "2150-03-02 10:00", "INSURANCE//X"), *other[4:]])
    again = rows_of(tmp_path, [(1, MOMENT, True)], features=("labs", "urine"))
    assert again.table.equals(found.table)


@pytest.mark.parametrize(("hours", "lowest"), [(6, 90), (12, 90), (24, 80), (48, 80)])
def test_windows_before_the_moment(tmp_path: Path, hours: int, lowest: float) -> None:
    assert rows_of(tmp_path, [(1, MOMENT, True)], hours=hours).table["heart_rate_min"].to_list() == [lowest]


def test_predictions_that_cannot_be_made_are_counted(tmp_path: Path) -> None:
    rows: list[tuple[int, datetime | None, Any]] = [
        (1, MOMENT, True),
        (2, MOMENT, False),
        (1, None, True),
        (1, MOMENT + HOUR, None),
        (1, datetime(2160, 1, 1), True),
        (1, datetime(2080, 1, 1), False),
    ]
    found = rows_of(tmp_path, rows)
    assert [(s.label, s.left_out) for s in found.steps[1:6]] == [
        ("no value", 1),
        ("no prediction time", 1),
        ("the subject has no events", 1),
        ("predicted before birth", 1),
        ("prediction time outside a hospital stay", 1),
    ]
    kept = rows_of(tmp_path, rows, outside="keep").table
    assert kept["careunit"].to_list() == ["MICU", "not in an ICU"]
    with pytest.raises(RequestError, match=r"no stay is left.*the subject has no events: 1 out"):
        rows_of(tmp_path, [(9, MOMENT, True)])


@pytest.mark.parametrize(
    ("column", "value", "outcome", "dtype"),
    [
        ("integer_value", 4, "continuous", pl.Float64),
        ("float_value", 2.5, "continuous", pl.Float64),
        ("categorical_value", "home", "classes", pl.String),
    ],
)
def test_other_values(tmp_path: Path, column: str, value: Any, outcome: str, dtype: Any) -> None:
    found = rows_of(tmp_path, [(1, MOMENT, value)], column=column)
    assert found.outcome == outcome and found.table["outcome"].to_list() == [value]
    assert found.table["outcome"].dtype == dtype and found.steps[0].positives is None
    assert provenance.of_cohort(found)["outcome"] == outcome


def test_bad_label_files(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="two different values"):
        rows_of(tmp_path, [(1, MOMENT, True), (1, MOMENT, False)])
    same = rows_of(tmp_path, [(1, MOMENT, True), (1, MOMENT, True)])
    assert same.table.height == 1
    path = tmp_path / "x.parquet"
    frame = pl.read_parquet(tmp_path / "labels.parquet")
    for change, message in (
        (frame.rename({"subject_id": "subject"}), "no column 'subject_id'"),
        (frame.drop("boolean_value"), "values in none of"),
        (frame.with_columns(float_value=1.0), "boolean_value, float_value of"),
        (frame.with_columns(prediction_time=pl.lit("soon")), "holds String, not times"),
        (frame.with_columns(subject_id=pl.lit("a")), "not whole numbers"),
    ):
        change.write_parquet(path)
        with pytest.raises(RequestError, match=message):
            meds_tasks.read_labels(path)
    path.write_bytes(b"nothing")
    with pytest.raises(RequestError, match="cannot be read as a table of labels"):
        meds_tasks.read_labels(path)
    with pytest.raises(RequestError, match="is no label file"):
        meds_tasks.read_labels(tmp_path / "none")


def test_zones_and_csv(tmp_path: Path) -> None:
    zoned = pl.DataFrame({"subject_id": [1], "prediction_time": [MOMENT], "boolean_value": [True]})
    zoned = zoned.with_columns(pl.col("prediction_time").dt.replace_time_zone("Europe/Berlin"))
    zoned.write_parquet(tmp_path / "z.parquet")
    assert meds_tasks.read_labels(tmp_path / "z.parquet").frame["moment"].to_list() == [MOMENT - HOUR]
    (tmp_path / "c.csv").write_text("subject_id,prediction_time,boolean_value\n1,2150-03-02 10:00:00,true\n")
    read = meds_tasks.read_labels(tmp_path / "c.csv").frame
    assert read.rows() == [(1, MOMENT, 1)]


def test_wrong_requests(tmp_path: Path) -> None:
    for wrong, message in (
        ({}, "a task or a label file"),
        ({"task": "aki", "labels": "x"}, "one of the two"),
        ({"task": "aki", "hours": 7}, "6, 12, 24, 48"),
        ({"task": "aki", "outside": "maybe"}, "leave-out or keep"),
    ):
        with pytest.raises(RequestError, match=message):
            RowOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"no task 'akii' .did you mean 'aki'"):
        meds_tasks.read_task("akii")
    (tmp_path / "t.json").write_text('{"task": "x", "kind": "cure", "value": "boolean", "about": ""}')
    with pytest.raises(RequestError, match="has the kind 'cure'"):
        meds_tasks.read_task(str(tmp_path / "t.json"))
    (tmp_path / "t.json").write_text('{"task": "x"}')
    with pytest.raises(RequestError, match="not what it should be"):
        meds_tasks.read_task(str(tmp_path / "t.json"))
    assert meds_tasks.shipped() == (
        "aki",
        "in-hospital-death",
        "length-of-stay",
        "readmission-30d",
        "sepsis-3",
    )


@pytest.mark.parametrize("task", ["sepsis-3", "length-of-stay"])
def test_from_the_command_line(
    source: Path, tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.parquet"
    with pytest.raises(SystemExit) as stop:
        main(
            ["cohort", "task", str(source), "--task", task, "--features", "all", "--out", str(out), "--json"]
        )
    assert not stop.value.code
    assert '"recipe": "meds-task/1"' in capsys.readouterr().out
    table = pl.read_parquet(out)
    assert table.height > 50 and table["sofa"].n_unique() > 4 and table["creatinine_max"].null_count() < 20
    assert "outcome" in out.with_suffix(".html").read_text()
