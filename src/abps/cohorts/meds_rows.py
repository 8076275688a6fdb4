"""Any task on MEDS events: one row per prediction, made of what was known before its moment.

Features come from the window that ends at ``prediction_time``, which itself is not in it: an event of the
very moment may be the outcome. Comorbidities, sex, race and insurance are what was on record before it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from abps.cohorts import charlson, meds_events, physiology, provenance, vitals
from abps.cohorts.duck import Progress, Session, session, silent
from abps.cohorts.meds_events import measure
from abps.cohorts.meds_tasks import Labels, make_labels, read_labels, read_task
from abps.cohorts.tidy import (
    Cohort,
    Flow,
    Variable,
    comorbidity_columns,
    fractional_year,
    in_order,
    keep_ages,
    race_group,
    vital_columns,
)
from abps.core.errors import RequestError
from abps.data.synthetic.builtin import Roles

RECIPE = "meds-task/1"

#: Hours before the prediction that count.
HOURS = (6, 12, 24, 48)

#: What happens to predictions outside a hospital stay.
OUTSIDE = ("leave-out", "keep")

#: The care unit of a prediction that is not in an ICU.
ELSEWHERE = "not in an ICU"


@dataclass(frozen=True)
class RowOptions:
    """task: a shipped name or a task file; labels: a label file. One of the two.

    hours: one of :data:`HOURS`. features: groups of :data:`abps.cohorts.physiology.GROUPS`. outside: one of
    :data:`OUTSIDE`. Ages are those at the prediction.
    """

    task: str | None = None
    labels: str | None = None
    map_file: str | None = None
    hours: int = 24
    charlson: str = "12"
    features: tuple[str, ...] = ("labs",)
    outside: str = "leave-out"
    min_age: float | None = 18
    max_age: float | None = None

    def __post_init__(self) -> None:
        if (self.task is None) == (self.labels is None):
            raise RequestError("give a task or a label file, one of the two")
        if self.hours not in HOURS:
            raise RequestError(
                f"the hours before the prediction are {', '.join(map(str, HOURS))}, not {self.hours}"
            )
        if self.outside not in OUTSIDE:
            raise RequestError(f"outside is {' or '.join(OUTSIDE)}, not {self.outside!r}")
        physiology.parse_groups(self.features)
        charlson.table().columns(self.charlson)


def build(source: Path, options: RowOptions, progress: Progress = silent) -> Cohort:
    """One row per prediction."""
    codes = meds_events.read_map(options.map_file)
    paths = meds_events.find_events(source)
    given = None if options.labels is None else read_labels(Path(options.labels))
    task = None if options.task is None else read_task(options.task)
    events = meds_events.events_sql(paths)
    files = tuple(paths)
    groups = physiology.parse_groups(options.features)
    with session(progress) as duck:
        labels = given or make_labels(duck, events, codes, task, files)  # type: ignore[arg-type]
        flow = _predictions(duck, events, codes, labels, options, files)
        flow = keep_ages(flow, options.min_age, options.max_age)
        anchors = flow.table.with_columns(
            opens=pl.col("moment") - pl.duration(hours=options.hours), closes=pl.col("moment")
        )
        vital, present = measure(duck, events, codes, anchors, files)
        table = flow.table.join(vital.table, on="stay", how="left")
        when = f"{options.hours} h before the prediction"
        known = table.select("stay", "age", *vitals.columns())
        more = physiology.build(duck, known, groups, present, when, "mimiciv")
        table = table.join(more.table, on="stay", how="left")
        coded = _comorbidities(duck, events, codes, flow.table, options, files)
        table = table.join(coded, on="stay", how="left")
    empty = table.filter(pl.all_horizontal(pl.col(vitals.columns()).is_null())).height
    warnings = meds_events.empty_context(table, codes)
    if empty:
        warnings.append(
            f"{empty} predictions have no vital sign in the {options.hours} h before; they stay in"
        )
    for name in sorted(physiology.inputs_of(groups) - present):
        warnings.append(f"events of this map have no {name}: there are no columns of it")
    dictionary = [*_dictionary(labels, options, when), *more.dictionary]
    root = Path(source) if Path(source).is_dir() else Path(source).parent
    return Cohort(
        source="meds",
        recipe=RECIPE,
        table=in_order(table, dictionary),
        roles=Roles("outcome", "careunit", "patient", "prediction_year", drop=("stay",)),
        steps=flow.steps,
        dictionary=tuple(dictionary),
        files=provenance.describe_files([*paths, *labels.files], root, progress),
        options={**asdict(options), "code_map": asdict(codes), "task": labels.name},
        facts={"predictions_without_vitals": empty, "lab_values_out_of_range": more.dropped},
        warnings=(*warnings, *vital.warnings()),
        outcome=labels.outcome,
    )


def _predictions(
    duck: Session,
    events: str,
    codes: meds_events.CodeMap,
    labels: Labels,
    options: RowOptions,
    files: tuple[Path, ...],
) -> Flow:
    """The predictions with their patient and stay; those that cannot be used are the first exclusions."""
    subjects = duck.frame(f"SELECT DISTINCT subject_id AS patient FROM {events}", "reading subjects", files)
    table = (
        labels.frame.rename({"value": "outcome"})
        .sort("patient", "moment")
        .with_row_index("stay", offset=1)
        .with_columns(pl.col("stay").cast(pl.Int64))
        .join(subjects.with_columns(has_events=pl.lit(True)), on="patient", how="left")
    )
    table = _located(duck, events, codes, table, files)
    birth = (
        meds_events.starting(duck, events, codes.birth, "birth", files)
        .group_by("patient")
        .agg(birth=pl.col("time").min())
    )
    table = table.join(birth, on="patient", how="left")
    asked = table.select(
        "stay", "patient", intime=pl.col("moment") - pl.duration(microseconds=1)
    ).drop_nulls()
    for name, prefix in (("sex", codes.sex), ("race_text", codes.race), ("insurance", codes.insurance)):
        known = meds_events.starting(duck, events, prefix, name, files)
        table = table.join(meds_events.on_record(known, asked, name), on="stay", how="left")

    def day(column: str) -> pl.Expr:
        return pl.col(column).dt.month().cast(pl.Int32) * 100 + pl.col(column).dt.day()

    earlier = (day("moment") < day("birth")).cast(pl.Int32)
    table = table.with_columns(
        age=(pl.col("moment").dt.year() - pl.col("birth").dt.year() - earlier).cast(pl.Float64),
        prediction_year=fractional_year("moment"),
        race=race_group("race_text"),
    )
    binary = labels.outcome == "binary"
    flow = Flow.start(table, "predictions asked for", label="outcome" if binary else "", patient="patient")
    flow = flow.keep(pl.col("outcome").is_not_null(), "no value", always=False)
    flow = flow.keep(pl.col("moment").is_not_null(), "no prediction time", always=False)
    flow = flow.keep(pl.col("has_events"), "the subject has no events", always=False)
    flow = flow.keep(
        pl.col("birth").is_null() | (pl.col("moment") >= pl.col("birth")),
        "predicted before birth",
        always=False,
    )
    if options.outside == "leave-out":
        flow = flow.keep(
            pl.col("admittime").is_not_null(), "prediction time outside a hospital stay", always=False
        )
    return flow


def _located(
    duck: Session, events: str, codes: meds_events.CodeMap, table: pl.DataFrame, files: tuple[Path, ...]
) -> pl.DataFrame:
    """Adds the hospital stay (admittime, type, location) and the care unit that hold the prediction."""
    hospital = meds_events.hospital_stays(duck, events, codes, files)
    admitted = hospital.select(
        "patient", "admittime", "dischtime", "next_admittime", "admission_type", "admission_location"
    )
    unit = meds_events.ended(
        meds_events.starting(duck, events, codes.icu_admission, "unit", files).rename({"time": "intime"}),
        meds_events.starting(duck, events, codes.icu_discharge, "left_to", files).rename({"time": "outtime"}),
    )
    for stays, start, end in ((admitted, "admittime", "dischtime"), (unit, "intime", "outtime")):
        inside = (
            table.select("stay", "patient", "moment")
            .join(stays, on="patient")
            .filter(pl.col("moment") >= pl.col(start))
            # without an end a stay reaches to the next one
            .filter((pl.col("moment") <= pl.coalesce(end, f"next_{start}")).fill_null(True))
            .sort("stay", start)
            .unique("stay", keep="last", maintain_order=True)
            .drop("patient", "moment", end, f"next_{start}")
        )
        table = table.join(inside, on="stay", how="left")
    name = pl.col("unit").str.extract(r"\(([^()]+)\)\s*$").fill_null(pl.col("unit"))
    return table.with_columns(
        careunit=name.fill_null(ELSEWHERE),
        hours_in_hospital=(pl.col("moment") - pl.col("admittime")).dt.total_seconds() / 3600,
    )


def _comorbidities(
    duck: Session,
    events: str,
    codes: meds_events.CodeMap,
    table: pl.DataFrame,
    options: RowOptions,
    files: tuple[Path, ...],
) -> pl.DataFrame:
    """Charlson flags from diagnosis events before the prediction."""
    if not codes.diagnosis or options.charlson == "none":
        return table.select("stay")
    coded = pl.concat(
        [
            meds_events.starting(duck, events, prefix, "icd_code", files).with_columns(
                icd_version=pl.lit(v, pl.Int16)
            )
            for v, prefix in codes.diagnosis.items()
        ]
    )
    before = coded.join(table.select("stay", "patient", "moment"), on="patient").filter(
        pl.col("time") < pl.col("moment")
    )
    matched = before.select(pl.col("stay").alias("key"), "icd_code", "icd_version").unique()
    return charlson.flags(matched, table["stay"], options.charlson).rename({"key": "stay"})


def _dictionary(labels: Labels, options: RowOptions, when: str) -> list[Variable]:
    unit = {"binary": "0/1"}.get(labels.outcome, "")
    has_codes = bool(meds_events.read_map(options.map_file).diagnosis)
    return [
        Variable("outcome", "label", unit, f"{labels.name}: {labels.about}"),
        Variable("careunit", "context", "", "care unit at the prediction, short name"),
        Variable("patient", "identifier", "", "subject_id"),
        Variable("stay", "identifier", "", "running number by patient and time of prediction"),
        Variable("prediction_year", "context", "year", "moment of the prediction"),
        Variable("age", "feature", "years", "completed years at the prediction"),
        Variable("sex", "feature", "", "sex as in the source"),
        Variable("race", "feature", "", "race in five groups, as on record before the prediction"),
        Variable("insurance", "feature", "", "insurance, as on record before the prediction"),
        Variable("admission_type", "feature", "", "type of hospital admission"),
        Variable("admission_location", "feature", "", "where the patient came from"),
        Variable("hours_in_hospital", "feature", "h", "from hospital admission to the prediction"),
        *comorbidity_columns(
            options.charlson if has_codes else "none", "diagnosis events before the prediction"
        ),
        *(
            Variable(c.name, c.role, c.unit, c.meaning.replace("first 24 h", when))
            for c in vital_columns("24h")
        ),
    ]
