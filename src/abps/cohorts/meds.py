"""The cohort of ICU stays from MEDS events: hospital death, as from MIMIC-IV's own tables.

MEDS has no stay identifiers, so an event belongs to the stay during which it happened; between two
stays of one subject it belongs to the nearer one. Laboratory values go by their time alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from abps.cohorts import charlson, physiology, provenance, vitals
from abps.cohorts.duck import Progress, Session, session, silent
from abps.cohorts.meds_events import (
    CodeMap,
    empty_context,
    events_sql,
    find_events,
    icu_stays,
    measure,
    read_map,
    starting,
)
from abps.cohorts.stay_options import StayOptions
from abps.cohorts.tidy import (
    Cohort,
    Flow,
    Variable,
    comorbidity_columns,
    in_order,
    keep_ages,
    keep_first,
    vital_columns,
)
from abps.core.errors import RequestError
from abps.data.synthetic.builtin import Roles

RECIPE = "meds/2"


@dataclass(frozen=True, kw_only=True)
class MedsOptions(StayOptions):
    """map_file: the code map, unset the shipped one. features: labs, gcs and urine are in that one."""

    map_file: str | None = None


def build(source: Path, options: MedsOptions | None = None, progress: Progress = silent) -> Cohort:
    """Make the cohort from MEDS events."""
    options = options or MedsOptions()
    codes = read_map(options.map_file)
    paths = find_events(source)
    events = events_sql(paths)
    groups = physiology.parse_groups(options.features)
    with session(progress) as duck:
        flow = icu_stays(duck, events, codes, tuple(paths))
        if options.first_stay:
            flow = keep_first(flow, ("intime", "stay"))
        flow = keep_ages(flow, options.min_age, options.max_age)
        first_day = _vitals(duck, events, codes, flow, options, tuple(paths))
        coded, warnings = _comorbidities(duck, events, codes, flow.table, options, tuple(paths))
        table = flow.table.join(first_day.table, on="stay", how="left").join(coded, on="stay", how="left")
        more = None
        if groups:
            opens, closes = _window(options)
            anchors = flow.table.select(
                # the last instant counts here
                *("stay", "patient"),
                moment="intime",
                opens=opens,
                closes=closes + pl.duration(microseconds=1),
            )
            present = measure(duck, events, codes, anchors, tuple(paths))[1]
            known, when = table.select("stay", "age", *vitals.columns()), vitals.window_words(options.window)
            more = physiology.build(duck, known, groups, present, when, "mimiciv")
            table = table.join(more.table, on="stay", how="left")
            for name in sorted(physiology.inputs_of(groups) - present):
                warnings.append(f"events of this map have no {name}: there are no columns of it")
    without = table.filter(pl.all_horizontal(pl.col(vitals.columns()).is_null())).height
    if without:
        warnings.append(
            f"{without} stays have no vital sign in the window; they stay in, with missing values"
        )
    warnings += empty_context(table, codes)
    dictionary = [*_dictionary(options), *(more.dictionary if more else ())]
    root = source if Path(source).is_dir() else Path(source).parent
    return Cohort(
        source="meds",
        recipe=RECIPE,
        table=in_order(table, dictionary),
        roles=Roles("died", "careunit", "patient", "admission_year", drop=("stay",)),
        steps=flow.steps,
        dictionary=tuple(dictionary),
        files=provenance.describe_files(paths, Path(root), progress),
        options={**asdict(options), "code_map": asdict(codes)},
        facts={
            "stays_without_vitals": without,
            "vital_values_used": first_day.counted,
            "vital_values_out_of_range": first_day.dropped,
            **({"lab_values_out_of_range": more.dropped} if more else {}),
        },
        warnings=(*warnings, *first_day.warnings()),
    )


def _window(options: MedsOptions) -> tuple[pl.Expr, pl.Expr]:
    """The first and last moment of a stay that count."""
    window = vitals.window_of(options.window)
    if window is None:
        return pl.col("intime"), pl.col("outtime")
    return tuple(pl.col("intime") + pl.duration(hours=hours) for hours in window)  # type: ignore[return-value]


def _vitals(
    duck: Session, events: str, codes: CodeMap, flow: Flow, options: MedsOptions, files: tuple[Path, ...]
) -> vitals.FirstDay:
    """Events of the window, each with the stay during which it happened."""
    prefixes = [(signal, prefix) for signal, many in codes.vitals.items() for prefix in many]
    duck.table("prefixes", pl.DataFrame(prefixes, schema=["signal", "prefix"], orient="row"))
    duck.execute(
        "CREATE OR REPLACE TABLE vital_codes AS SELECT code, min(signal) AS signal FROM "
        f"(SELECT DISTINCT code FROM {events}) JOIN prefixes ON starts_with(code, prefix) GROUP BY code",
        "finding the codes of vitals",
        files,
    )
    opens, closes = _window(options)
    previous_out = pl.col("outtime").shift(1).over("patient")
    # the hour between two stays goes to the nearer one: half way from the last exit to this entry
    border = (previous_out + (pl.col("intime") - previous_out) / 2).fill_null(pl.datetime(1, 1, 1))
    stays = flow.table.sort("patient", "intime").select(
        "stay", "patient", border=border, opens=opens, closes=closes
    )
    duck.table("stays", stays)
    return vitals.summarise(
        duck,
        f"""
        SELECT s.stay, e.time AS moment, e.signal, CAST(e.value AS DOUBLE) AS value
        FROM (SELECT subject_id, CAST(time AS TIMESTAMP) AS time, signal, value
              FROM {events} JOIN vital_codes USING (code)) e
        ASOF JOIN stays s ON e.subject_id = s.patient AND e.time >= s.border
        WHERE e.time >= s.opens AND e.time <= s.closes
        """,
        "reading vitals",
        files,
    )


def _comorbidities(
    duck: Session,
    events: str,
    codes: CodeMap,
    stays: pl.DataFrame,
    options: MedsOptions,
    files: tuple[Path, ...],
) -> tuple[pl.DataFrame, list[str]]:
    """Charlson flags from the diagnosis events between hospital admission and discharge (or before)."""
    if options.diagnoses == "none":
        return stays.select("stay"), []
    coded = [
        starting(duck, events, prefix, "icd_code", files).with_columns(icd_version=pl.lit(version, pl.Int16))
        for version, prefix in codes.diagnosis.items()
    ]
    if not coded:
        raise RequestError("the code map has no 'diagnosis'; use diagnoses=none")
    if options.diagnoses == "this":
        inside = pl.col("time").is_between(pl.col("admittime"), pl.col("dischtime"))
    else:
        inside = pl.col("time") < pl.col("admittime")
    matched = (
        pl.concat(coded)
        .join(stays.select("stay", "patient", "admittime", "dischtime"), on="patient")
        .filter(inside)
        .select(pl.col("stay").alias("key"), "icd_code", "icd_version")
        .unique()
    )
    warning = charlson.lost_zeros(matched)
    made = charlson.flags(matched, stays["stay"], options.charlson).rename({"key": "stay"})
    return made, [warning] if warning else []


def _dictionary(options: MedsOptions) -> list[Variable]:
    origin = {
        "this": "diagnosis events of this admission (coded at discharge)",
        "earlier": "diagnosis events before this admission",
        "none": "",
    }[options.diagnoses]
    return [
        Variable("died", "label", "0/1", "left the hospital dead (a discharge code named in the map)"),
        Variable("careunit", "context", "", "care unit of the ICU admission event, short name"),
        Variable("patient", "identifier", "", "subject_id"),
        Variable("stay", "identifier", "", "running number by patient and time of ICU admission"),
        Variable("admission_year", "context", "year", "ICU admission"),
        Variable("age", "feature", "years", "completed years from the birth event to ICU admission"),
        Variable("sex", "feature", "", "sex as in the source"),
        Variable("race", "feature", "", "race in five groups, as on record at ICU admission"),
        Variable("admission_type", "feature", "", "type of hospital admission"),
        Variable("admission_location", "feature", "", "where the patient came from"),
        Variable("insurance", "feature", "", "insurance, as on record at ICU admission"),
        *comorbidity_columns(options.comorbidities, origin),
        *vital_columns(options.window),
    ]
