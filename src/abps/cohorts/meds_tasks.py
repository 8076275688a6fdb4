"""Shipped tasks on MEDS events: death in hospital, readmission, length of stay, kidney injury, sepsis-3.

A task is a small JSON file with its numbers; the shipped ones can be copied and changed. Each gives a
label file: a subject, the moment of prediction, and what came. Label files as ACES writes them are read here,
too: ``subject_id``, ``prediction_time`` and one of ``boolean_value``, ``integer_value``, ``float_value``,
``categorical_value``; one Parquet or CSV file, or a folder of Parquet files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec
import polars as pl

from abps.cohorts import physiology
from abps.cohorts.duck import Session, quoted
from abps.cohorts.meds_events import CodeMap, hospital_stays, icu_stays, measure, starting
from abps.core.errors import RequestError, nearest

_OUTCOME = {"boolean": "binary", "float": "continuous"}

#: The largest number that a task may name: a century in hours, and room.
MOST = 1_000_000


@dataclass(frozen=True)
class Task:
    """A task file as read: its name, kind, type of value and numbers."""

    task: str
    kind: str
    value: str
    about: str
    numbers: dict[str, float]

    def hours(self, name: str) -> pl.Expr:
        """One of its numbers as a duration in hours."""
        return pl.duration(seconds=round(3600 * self.number(name)))

    def whole(self, name: str) -> int:
        """One of its numbers that cannot be below nothing, rounded."""
        if self.number(name) < 0:
            raise RequestError(f"the task {self.task} has {name} below 0; give a number of 0 or more")
        return round(self.number(name))

    def number(self, name: str) -> float:
        """One of its numbers."""
        if name not in self.numbers:
            raise RequestError(f"the task {self.task} does not say {name!r}; start from a shipped task file")
        return self.numbers[name]


#: The columns of the format that hold a value, and the outcome that each is.
VALUES = {
    "boolean_value": "binary",
    "integer_value": "continuous",
    "float_value": "continuous",
    "categorical_value": "classes",
}


@dataclass(frozen=True, eq=False)
class Labels:
    """frame: patient, moment (without zone, UTC), value. outcome: binary, classes or continuous."""

    name: str
    frame: pl.DataFrame
    outcome: str
    about: str
    files: tuple[Path, ...] = ()


def shipped() -> tuple[str, ...]:
    """The names of the shipped tasks."""
    folder = resources.files("abps.cohorts").joinpath("tables")
    names = (f.name for f in folder.iterdir())
    return tuple(sorted(n[5:-5] for n in names if n.startswith("task_") and n.endswith(".json")))


def read_task(name: str) -> Task:
    """A shipped task by its name, or a task file."""
    if name.endswith(".json"):
        try:
            data = Path(name).read_bytes()
        except OSError as error:
            raise RequestError(f"cannot read the task file {name}: {error.strerror}") from None
    elif name in shipped():
        data = resources.files("abps.cohorts").joinpath(f"tables/task_{name}.json").read_bytes()
    else:
        raise RequestError(
            f"there is no task {name!r}{nearest(name, shipped())}; there are {', '.join(shipped())}, "
            "or give a JSON file"
        )
    try:
        raw = msgspec.json.decode(data, type=dict[str, str | float])
        words = {key: _word(raw, key) for key in ("task", "kind", "value", "about")}
        numbers = {key: _number(raw, key) for key in raw if key not in words}
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the task file {name} is not what it should be ({error})") from None
    if words["kind"] not in KINDS:
        raise RequestError(
            f"the task file {name} has the kind {words['kind']!r}{nearest(words['kind'], KINDS)}; "
            f"there are {', '.join(KINDS)}"
        )
    if words["value"] not in _OUTCOME:
        raise RequestError(
            f"the task file {name} has the value {words['value']!r}; it is {' or '.join(_OUTCOME)}"
        )
    return Task(**words, numbers=numbers)


def _word(raw: dict[str, str | float], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key!r} must be there, as text")
    return value


def _number(raw: dict[str, str | float], key: str) -> float:
    value = raw[key]
    if not isinstance(value, float) or not abs(value) <= MOST:
        raise ValueError(f"{key!r} must be a number, at most {MOST:,}")
    return value


def make_labels(duck: Session, events: str, codes: CodeMap, task: Task, files: tuple[Path, ...]) -> Labels:
    """The labels of a task."""
    frame = KINDS[task.kind](duck, events, codes, task, files)
    made = frame.select("patient", "moment", "value").unique().sort("patient", "moment")
    if made.height == 0:
        raise RequestError(f"no subject can be predicted in the task {task.task}: {task.about}")
    if task.value == "boolean":
        made = made.with_columns(pl.col("value").cast(pl.Int8))
    return Labels(task.task, made, _OUTCOME[task.value], task.about, files=())


def _in_the_unit(
    duck: Session, events: str, codes: CodeMap, task: Task, files: tuple[Path, ...]
) -> pl.DataFrame:
    """ICU stays with a known end that last to the moment of prediction."""
    stays = icu_stays(duck, events, codes, files).table
    return stays.with_columns(moment=pl.col("intime") + task.hours("after_hours")).filter(
        pl.col("outtime") >= pl.col("moment")
    )


def _death(duck: Session, events: str, codes: CodeMap, task: Task, files: tuple[Path, ...]) -> pl.DataFrame:
    return _in_the_unit(duck, events, codes, task, files).with_columns(value=pl.col("died"))


def _length(duck: Session, events: str, codes: CodeMap, task: Task, files: tuple[Path, ...]) -> pl.DataFrame:
    days = (pl.col("outtime") - pl.col("intime")).dt.total_seconds() / 86_400
    return _in_the_unit(duck, events, codes, task, files).with_columns(value=days)


def _readmission(
    duck: Session, events: str, codes: CodeMap, task: Task, files: tuple[Path, ...]
) -> pl.DataFrame:
    dead = [d.removeprefix(codes.hospital_discharge) for d in codes.died]
    left = hospital_stays(duck, events, codes, files).filter(
        pl.col("dischtime").is_not_null() & ~pl.col("discharge").is_in(dead)
    )
    soon = pl.duration(days=task.number("within_days"))
    again = pl.col("next_admittime") - pl.col("dischtime") <= soon
    return left.with_columns(moment=pl.col("dischtime"), value=again.fill_null(False))


def _aki(duck: Session, events: str, codes: CodeMap, task: Task, files: tuple[Path, ...]) -> pl.DataFrame:
    """KDIGO by creatinine: onset is the first value that is far enough above the lowest before it."""
    prefixes = codes.labs.get("creatinine", ())
    if not prefixes:
        raise RequestError("the code map has no 'creatinine' among its labs, which the task aki needs")
    lab = physiology.labs()["creatinine"]
    begins = " OR ".join(f"starts_with(code, {quoted(p)})" for p in prefixes)
    # values are given to 0.1 mg/dL: thousandths keep 1.3 − 1.0 from being below 0.3
    values = duck.frame(
        f"""
        WITH given AS (
            SELECT subject_id AS patient, CAST(time AS TIMESTAMP) AS time,
                   CAST(round(1000 * CAST(value AS DOUBLE)) AS BIGINT) AS level
            FROM {events} WHERE ({begins}) AND value > {lab.low} AND value <= {lab.high}
        )
        SELECT patient, time,
               level >= {round(1000 * task.number("rise"))} + min(level) OVER (
                   PARTITION BY patient ORDER BY time
                   RANGE BETWEEN INTERVAL {task.whole("rise_hours")} HOURS PRECEDING AND CURRENT ROW)
               OR level >= {task.number("ratio")} * min(level) OVER (PARTITION BY patient ORDER BY time
                   RANGE BETWEEN INTERVAL {task.whole("ratio_days")} DAYS PRECEDING AND CURRENT ROW)
               AS injured
        FROM given
        """,
        "reading creatinine",
        files,
    )
    stays = _in_the_unit(duck, events, codes, task, files)
    until = pl.col("moment") + task.hours("horizon_hours")
    seen = stays.select("stay", "patient", "admittime", "moment").join(values, on="patient")
    judged = seen.group_by("stay").agg(
        already=(
            pl.col("injured") & (pl.col("time") >= pl.col("admittime")) & (pl.col("time") <= pl.col("moment"))
        ).any(),
        measured=((pl.col("time") > pl.col("moment")) & (pl.col("time") <= until)).any(),
        value=(pl.col("injured") & (pl.col("time") > pl.col("moment")) & (pl.col("time") <= until)).any(),
    )
    return stays.join(judged, on="stay").filter(~pl.col("already") & pl.col("measured"))


def suspicions(
    cultures: pl.DataFrame, antibiotics: pl.DataFrame, culture_hours: float, antibiotic_hours: float
) -> pl.DataFrame:
    """patient, time of every suspected infection: a culture and an antibiotic close to each other.

    cultures, antibiotics: patient, time. An antibiotic up to culture_hours after a culture, or a culture up
    to antibiotic_hours after an antibiotic; the earlier of the two is the time.
    """
    pairs = cultures.rename({"time": "culture"}).join(antibiotics.rename({"time": "drug"}), on="patient")
    gap = (pl.col("drug") - pl.col("culture")).dt.total_seconds() / 3600
    close = ((gap >= 0) & (gap <= culture_hours)) | ((gap < 0) & (-gap <= antibiotic_hours))
    return (
        pairs.filter(close)
        .select("patient", time=pl.min_horizontal("culture", "drug"))
        .unique()
        .sort("patient", "time")
    )


def _sepsis(duck: Session, events: str, codes: CodeMap, task: Task, files: tuple[Path, ...]) -> pl.DataFrame:
    if not codes.culture or not codes.antibiotic:
        raise RequestError(
            "the code map names no 'culture' or no 'antibiotic', so a suspected infection cannot be found"
        )
    cultures = pl.concat([starting(duck, events, p, "culture", files) for p in codes.culture])
    like = " OR ".join(f"regexp_matches(lower(code), {quoted(p)})" for p in codes.antibiotic)
    drugs = duck.frame(
        f"SELECT subject_id AS patient, CAST(time AS TIMESTAMP) AS time FROM {events} WHERE {like}",
        "reading antibiotics",
        files,
    )
    suspected = suspicions(
        cultures.select("patient", "time").drop_nulls(),
        drugs.drop_nulls(),
        task.number("culture_before_hours"),
        task.number("antibiotic_before_hours"),
    ).with_row_index("stay").with_columns(pl.col("stay").cast(pl.Int64))  # fmt: skip
    onset = suspected.select("patient", "time").clear()
    if suspected.height:
        anchors = suspected.select(
            "stay",
            "patient",
            moment=pl.col("time"),
            opens=pl.col("time") + task.hours("sofa_from_hours"),
            closes=pl.col("time") + task.hours("sofa_to_hours"),
        )
        vital, present = measure(duck, events, codes, anchors, files)
        known = suspected.select("stay", age=pl.lit(None, pl.Float64)).join(
            vital.table, on="stay", how="left"
        )
        scored = physiology.build(duck, known, ("sofa",), present, "around the suspicion", "mimiciv").table
        ill = scored.filter(pl.col("sofa") >= task.number("points"))["stay"]
        onset = suspected.filter(pl.col("stay").is_in(ill.implode())).select("patient", "time")
    stays = _in_the_unit(duck, events, codes, task, files)
    until = pl.col("moment") + task.hours("horizon_hours")
    judged = (
        stays.select("stay", "patient", "admittime", "moment")
        .join(onset, on="patient")
        .group_by("stay")
        .agg(
            already=((pl.col("time") >= pl.col("admittime")) & (pl.col("time") <= pl.col("moment"))).any(),
            value=((pl.col("time") > pl.col("moment")) & (pl.col("time") <= until)).any(),
        )
    )
    return (
        stays.join(judged, on="stay", how="left")
        .with_columns(pl.col("already", "value").fill_null(False))
        .filter(~pl.col("already"))
    )


KINDS: dict[str, Callable[[Session, str, CodeMap, Task, tuple[Path, ...]], pl.DataFrame]] = {
    "death": _death,
    "readmission": _readmission,
    "length": _length,
    "aki": _aki,
    "sepsis": _sepsis,
}


def read_labels(path: Path) -> Labels:
    """A label file. Rows without a value or a time stay in: they are the first exclusions of the flow."""
    path = Path(path)
    paths = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
    if not paths or not all(p.is_file() for p in paths):
        raise RequestError(
            f"{path} is no label file; give a Parquet or CSV file, or a folder of Parquet files"
        )
    parts = []
    for each in paths:
        try:
            parts.append(
                pl.read_csv(each, try_parse_dates=True) if each.suffix == ".csv" else pl.read_parquet(each)
            )
        except (OSError, pl.exceptions.PolarsError):
            raise RequestError(f"{each} cannot be read as a table of labels; write it again") from None
    frames = [_label_rows(part, each) for part, each in zip(parts, paths)]
    kinds = {column for _, column in frames}
    if len(kinds) > 1:
        raise RequestError(f"{path}: some files have {' and others '.join(sorted(kinds))}; one task has one")
    frame = pl.concat([part for part, _ in frames])
    (column,) = kinds
    twice = frame.unique().group_by("patient", "moment").len().filter(pl.col("len") > 1)
    if twice.height:
        raise RequestError(
            f"{path} has {twice.height} times a subject and a prediction_time with two different values; "
            "a prediction has one"
        )
    return Labels(
        path.stem, frame.unique(maintain_order=True), VALUES[column], f"{column} of {path.name}", tuple(paths)
    )


def _label_rows(part: pl.DataFrame, path: Path) -> tuple[pl.DataFrame, str]:
    """patient, moment, value of one file, and the column that holds the value."""
    for column in ("subject_id", "prediction_time"):
        if column not in part.columns:
            raise RequestError(
                f"{path} has no column {column!r}{nearest(column, part.columns)}; a label file has "
                "subject_id, prediction_time and a value"
            )
    filled = [c for c in VALUES if c in part.columns and part[c].null_count() < part.height]
    if len(filled) != 1:
        raise RequestError(
            f"{path} has values in {', '.join(filled) or 'none'} of {', '.join(VALUES)}; "
            "it must be exactly one"
        )
    moment = part["prediction_time"]
    if moment.dtype == pl.Date:
        moment = moment.cast(pl.Datetime("us"))
    if not isinstance(moment.dtype, pl.Datetime):
        raise RequestError(f"{path}: prediction_time holds {moment.dtype}, not times")
    if moment.dtype.time_zone is not None:
        moment = moment.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if not part["subject_id"].dtype.is_integer():
        raise RequestError(f"{path}: subject_id holds {part['subject_id'].dtype}, not whole numbers")
    value = part[filled[0]]
    kinds = {
        "boolean_value": (value.dtype == pl.Boolean or set(value.drop_nulls()) <= {0, 1}, pl.Int8),
        "categorical_value": (not value.dtype.is_nested(), pl.String),
    }
    fits, kind = kinds.get(filled[0], (value.dtype.is_numeric(), pl.Float64))
    try:
        if not fits:
            raise pl.exceptions.InvalidOperationError
        frame = pl.DataFrame(
            {
                "patient": part["subject_id"].cast(pl.Int64),
                "moment": moment.cast(pl.Datetime("us")),
                "value": value.cast(kind),
            }
        )
    except pl.exceptions.PolarsError:
        raise RequestError(f"{path}: {filled[0]} or subject_id holds what is no such value") from None
    return frame, filled[0]
