"""OMOP CDM 5.3 and 5.4: the same cohort from the common data model, hospital death of ICU stays.

An ICU stay is a visit detail of an intensive-care concept, its hospital stay the visit it belongs to. By a
shipped map values in another known unit are converted; those in an unknown unit are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

from abps.cohorts import charlson, physiology, vitals
from abps.cohorts.duck import DuckSession, Progress, numbers, or_refuse, quoted, read_header, session, silent
from abps.cohorts.stays import StayOptions, chosen, combine, finish, in_time, short_unit, window_bounds
from abps.cohorts.tidy import Cohort, Flow, Variable, fractional_year, race_group, shipped, variables
from abps.core.errors import RequestError, nearest
from abps.data.roles import Roles

RECIPE = "omop/2"

TABLES = (
    *("person", "visit_occurrence", "visit_detail", "measurement", "condition_occurrence", "concept"),
    *("care_site", "death"),
)

#: What the CDM offers beyond vitals with the shipped map.
GROUPS = {"labs", "gcs"}


@dataclass(frozen=True, kw_only=True)
class OmopOptions(StayOptions):
    """features: the shipped map has labs and gcs."""


def build(place: Path, options: OmopOptions | None = None, progress: Progress = silent) -> Cohort:
    options = options or OmopOptions()
    with session(progress) as duck:
        cdm = open_cdm(duck, place, TABLES)
        every = _stays(duck, cdm)
        flow = chosen(every, options)
        opens, closes = window_bounds(options.window)
        # a stay that has not ended reaches as far as its values do
        closes = closes.fill_null(pl.lit(datetime(9999, 1, 1)))
        duck.table("stays", flow.table.select("stay", "patient", "intime", opens=opens, closes=closes))
        duck.table("all_stays", every.table.select("stay"))
        rows, warnings = _measurements(duck, cdm)
        known = ", ".join(f"'{name}'" for name in vitals.signals())
        signals = f"(SELECT * FROM {rows} WHERE signal IN ({known}))"
        first_day = vitals.summarise(duck, signals, "summarising vitals", tuple(cdm.files))
        coded, noted = _comorbidities(duck, cdm, flow.table, options)

        def fill() -> set[str]:
            insert = f"INSERT INTO measured SELECT * FROM {rows} WHERE signal NOT IN ({known})"
            duck.execute(insert, "reading laboratory values")
            return GROUPS

        found = combine(duck, flow, first_day, [coded], options, fill, "omop")
    warnings += noted
    for name in sorted(physiology.inputs_of(options.groups) - GROUPS):
        warnings.append(f"the shipped map has no {name} of the CDM: there are no columns of it")
    for name in ("sex", "race", "admission_location"):
        if found.table[name].null_count() == found.table.height:
            warnings.append(f"{name} is empty: no table of the CDM has it")
    roles = Roles("died", "careunit", "patient", "admission_year", drop=("stay", "hospital"))
    root = Path(place) if Path(place).is_dir() else Path(place).parent
    return finish(RECIPE, found, roles, _dictionary(options), options, (cdm.files, root, progress), warnings)


def _visits(duck: DuckSession, cdm: Cdm) -> pl.DataFrame:
    """ICU stays with their person, hospital visit and death, as the CDM has them."""
    words = shipped("omop")
    person = cdm.need("person", "person_id", "gender_concept_id", "year_of_birth")
    visit = cdm.need("visit_occurrence", "visit_occurrence_id", "person_id")
    detail = cdm.need("visit_detail", "visit_detail_id", "visit_occurrence_id", "visit_detail_concept_id")
    site = cdm.maybe("care_site", "care_site_id", "care_site_name")
    death = cdm.maybe("death", "person_id")
    site_sql = (
        f"(SELECT {site.number('care_site_id')} AS id, {site.word('care_site_name')} AS name FROM {site.sql})"
    )
    died = death.time("death_datetime", "death_date")
    death_sql = (
        f"(SELECT {death.number('person_id')} AS person, min({died}) AS time FROM {death.sql} GROUP BY 1)"
    )
    raw = duck.frame(
        f"""
        WITH icu AS (
            SELECT {detail.number("visit_detail_id")} AS stay, {detail.number("visit_occurrence_id")} AS hadm,
                   {detail.time("visit_detail_start_datetime", "visit_detail_start_date")} AS intime,
                   {detail.time("visit_detail_end_datetime", "visit_detail_end_date")} AS outtime,
                   {detail.number("care_site_id")} AS site,
                   {detail.word("visit_detail_source_value")} AS unit_text
            FROM {detail.sql}
            WHERE {detail.number("visit_detail_concept_id")} IN ({numbers(words["icu"])})
        ), visit AS (
            SELECT {visit.number("visit_occurrence_id")} AS hadm, {visit.number("person_id")} AS patient,
                   {visit.time("visit_start_datetime", "visit_start_date")} AS admittime,
                   {visit.time("visit_end_datetime", "visit_end_date")} AS dischtime,
                   {visit.number("care_site_id")} AS hospital_site,
                   {visit.word("admitted_from_source_value", "admitting_source_value")} AS admission_location,
                   {visit.word("discharged_to_source_value", "discharge_to_source_value")} AS left_to,
                   coalesce({visit.number("discharged_to_concept_id")},
                            {visit.number("discharge_to_concept_id")}) AS left_concept
            FROM {visit.sql}
        ), people AS (
            SELECT {person.number("person_id")} AS patient,
                   {person.number("gender_concept_id")} AS sex_concept,
                   {person.number("year_of_birth")} AS birth_year,
                   {person.number("month_of_birth")} AS birth_month,
                   {person.number("day_of_birth")} AS birth_day,
                   {person.number("race_concept_id")} AS race_concept,
                   {person.number("ethnicity_concept_id")} AS ethnicity,
                   {person.word("race_source_value")} AS race_text
            FROM {person.sql}
        )
        SELECT icu.*, v.* EXCLUDE (hadm), p.* EXCLUDE (patient), p.patient IS NOT NULL AS has_patient,
               d.time AS deathtime, u.name AS unit_name, h.name AS hospital
        FROM icu LEFT JOIN visit v ON icu.hadm = v.hadm LEFT JOIN people p ON v.patient = p.patient
        LEFT JOIN {death_sql} d ON v.patient = d.person
        LEFT JOIN {site_sql} u ON icu.site = u.id LEFT JOIN {site_sql} h ON v.hospital_site = h.id
        """,
        "reading visits and persons",
        tuple(cdm.files),
    )
    if raw.height == 0:
        raise RequestError(
            f"no visit detail in {cdm.place} has an intensive-care concept ({numbers(words['icu'])})"
        )
    if raw["stay"].n_unique() != raw.height:
        raise RequestError(
            f"a visit detail, visit, person or death occurs twice in {cdm.place}; each must occur once"
        )
    return raw


def _stays(duck: DuckSession, cdm: Cdm) -> Flow:
    words, raw = shipped("omop"), _visits(duck, cdm)
    dead_words = "|".join(words["died_words"])
    said = pl.col("left_to").str.to_uppercase().str.contains(dead_words)
    named = pl.col("left_concept").is_in(words["died"])
    # where the discharge does not say where to, a death between admission and discharge is one in hospital
    unsaid = pl.col("left_to").is_null() & (pl.col("left_concept").fill_null(0) == 0)
    day = pl.col("deathtime").dt.date()
    recorded = day.is_between(pl.col("admittime").dt.date(), pl.col("dischtime").dt.date())
    died = named.fill_null(False) | said.fill_null(False) | (unsaid & recorded).fill_null(False)
    before_birthday = pl.col("intime").dt.month().cast(pl.Int64) * 100 + pl.col("intime").dt.day() < pl.col(
        "birth_month"
    ).fill_null(1) * 100 + pl.col("birth_day").fill_null(1)
    race_of = {int(k): v for k, v in words["race"].items()}
    unit = pl.coalesce("unit_name", "unit_text")
    table = raw.with_columns(
        died=pl.when(pl.col("dischtime").is_not_null()).then(died).otherwise(None).cast(pl.Int8),
        careunit=short_unit(unit),
        age=(pl.col("intime").dt.year() - pl.col("birth_year") - before_birthday.cast(pl.Int64)).cast(
            pl.Float64
        ),
        admission_year=fractional_year("intime"),
        sex=pl.col("sex_concept")
        .cast(pl.String)
        .replace_strict(words["sex"], default=None, return_dtype=pl.String),
        race=pl.when(pl.col("race_text").is_not_null())
        .then(race_group("race_text"))
        .when(pl.col("ethnicity").is_in(words["hispanic"]))
        .then(pl.lit("HISPANIC"))
        .otherwise(pl.col("race_concept").replace_strict(race_of, default=None, return_dtype=pl.String)),
        hours=(pl.col("outtime") - pl.col("intime")).dt.total_seconds() / 3600,
    )
    flow = Flow.start(table, "intensive-care visit details")
    flow = flow.keep(pl.col("has_patient").fill_null(False), "no person or hospital visit", always=False)
    return in_time(flow).keep(pl.col("died").is_not_null(), "hospital outcome unknown", always=False)


def _measurements(duck: DuckSession, cdm: Cdm) -> tuple[str, list[str]]:
    """One pass over measurement, kept in a file: SQL with stay, moment, signal, value; and warnings. What is
    booked on an ICU stay belongs to it; other values, and all of the laboratory, go by their time."""
    table = cdm.need("measurement", "person_id", "measurement_concept_id", "value_as_number")
    words = shipped("omop")
    codes = [(c, signal, False) for signal, many in (words["vitals"] | words["gcs"]).items() for c in many]
    codes += [(c, lab.lab, True) for lab in physiology.labs().values() for c in lab.omop]
    schema = {"concept": pl.Int64, "signal": pl.String, "lab": pl.Boolean}
    duck.table("concept_table", pl.DataFrame(codes, schema=schema, orient="row"))
    units = [(s, int(u), float(f)) for s, many in words["units"].items() for u, f in many.items()]
    schema = {"signal": pl.String, "unit": pl.Int64, "factor": pl.Float64}
    duck.table("unit_table", pl.DataFrame(units, schema=schema, orient="row"))
    warm = f"c.signal = 'temperature' AND m.unit IN ({numbers(words['fahrenheit'])})"
    time = table.time("measurement_datetime", "measurement_date")
    rows = duck.spool(
        f"""
        WITH m AS (
            SELECT {table.number("person_id")} AS person, {table.number("measurement_concept_id")} AS concept,
                   {time} AS time, {table.number("value_as_number", "DOUBLE")} AS value,
                   {table.number("unit_concept_id")} AS unit, {table.number("visit_detail_id")} AS detail
            FROM {table.sql}
            WHERE {table.number("measurement_concept_id")} IN (SELECT concept FROM concept_table)
        )
        SELECT s.stay, CAST(date_diff('second', s.intime, m.time) AS BIGINT) AS moment,
               CASE WHEN {warm} THEN 'temperature_f' ELSE c.signal END AS signal,
               CASE WHEN coalesce(m.unit, 0) = 0 THEN m.value ELSE m.value * u.factor END AS value,
               coalesce(m.unit, 0) <> 0 AND u.factor IS NULL AND m.value IS NOT NULL AS strange, m.unit
        FROM m JOIN concept_table c ON m.concept = c.concept
        JOIN stays s ON m.person = s.patient AND m.time >= s.opens AND m.time <= s.closes
        LEFT JOIN unit_table u ON m.unit = u.unit
            AND u.signal = CASE WHEN {warm} THEN 'temperature_f' ELSE c.signal END
        WHERE c.lab OR m.detail IS NULL OR m.detail = s.stay OR m.detail NOT IN (SELECT stay FROM all_stays)
        """,
        "measured",
        "reading measurement",
        (table.path,),
    )
    strange = duck.frame(
        f"SELECT signal, unit, count(*) AS many FROM {rows} WHERE strange "
        "GROUP BY signal, unit ORDER BY 1, 2",
        "checking units",
    )
    warnings = [
        f"{many} values of {signal} have the unit concept {unit}, which the shipped map does not know; "
        "they are left out"
        for signal, unit, many in strange.iter_rows()
    ]
    return f"(SELECT stay, moment, signal, value FROM {rows} WHERE value IS NOT NULL)", warnings


def _comorbidities(
    duck: DuckSession, cdm: Cdm, stays: pl.DataFrame, options: OmopOptions
) -> tuple[pl.DataFrame, list[str]]:
    """Charlson flags from the source codes of conditions; their version by the concept's vocabulary."""
    if options.diagnoses == "none":
        return stays.select("stay"), []
    table = cdm.maybe("condition_occurrence", "person_id", "condition_source_value")
    if not table.columns:
        unknown = charlson.flags(None, stays["stay"], options.charlson)
        return unknown, ["condition_occurrence is absent: comorbidities are missing"]
    concept = cdm.maybe("concept", "concept_id", "vocabulary_id")
    visit = cdm.need("visit_occurrence", "visit_occurrence_id", "person_id")
    duck.table("admitted", stays.select("stay", "hadm", "patient", "admittime"))
    if options.diagnoses == "this":
        which = "JOIN admitted s ON o.hadm = s.hadm"
    else:
        ended = visit.time("visit_end_datetime", "visit_end_date")
        which = (
            f"JOIN (SELECT {visit.number('visit_occurrence_id')} AS hadm, {ended} AS ended "
            f"FROM {visit.sql}) e "
            "ON o.hadm = e.hadm JOIN admitted s ON o.person = s.patient AND e.ended <= s.admittime"
        )
    coded = duck.frame(
        f"""
        SELECT DISTINCT s.stay, o.code AS icd_code, k.vocabulary
        FROM (SELECT {table.number("person_id")} AS person, {table.number("visit_occurrence_id")} AS hadm,
                     {table.number("condition_source_concept_id")} AS source,
                     {table.word("condition_source_value")} AS code FROM {table.sql}) o
        LEFT JOIN (SELECT {concept.number("concept_id")} AS id, {concept.word("vocabulary_id")} AS vocabulary
                   FROM {concept.sql}) k ON o.source = k.id
        {which} WHERE o.code IS NOT NULL
        """,
        "reading conditions",
        (table.path, visit.path),
    )
    versions = shipped("omop")["vocabularies"]
    guess = pl.col("icd_code").map_elements(charlson.version_of, return_dtype=pl.Int64)
    known = pl.col("vocabulary").replace_strict(versions, default=None, return_dtype=pl.Int64)
    coded = coded.with_columns(icd_version=known)
    guessed = coded.filter(pl.col("icd_version").is_null()).height
    warnings = []
    if guessed:
        coded = coded.with_columns(pl.col("icd_version").fill_null(guess))
        warnings.append(
            f"{guessed} condition codes have no concept of ICD-9-CM or ICD-10; their form shows their version"
        )
    return charlson.flags(charlson.present(coded), stays["stay"], options.charlson), warnings


def _dictionary(options: OmopOptions) -> list[Variable]:
    origins = (
        "condition codes of this visit (often coded after discharge)",
        "condition codes of earlier visits only",
    )
    return [*variables(_COLUMNS), *options.columns(origins)]


_COLUMNS = """
died | label | 0/1 | left the hospital dead: discharge concept or word, or the death record
careunit | context | | care site of the intensive-care visit detail, short name
hospital | context | | care site of the hospital visit
patient | identifier | | person_id
stay | identifier | | visit_detail_id
admission_year | context | year | ICU admission
age | feature | years | completed years at ICU admission; a birth without a day is 1 January
sex | feature | F/M | gender concept
race | feature | | race in five groups, by its source value or else its concept
admission_location | feature | | where the patient came from, as in the source
"""


# --- the tables of a CDM: a DuckDB database, or a folder of Parquet or CSV files ---------------------------
# Versions 5.3 and 5.4 differ in the names of a few columns; a table is read by the first name that it has.

#: How times and dates are written in CSV exports. None of them has an offset.
FORMATS = (
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f"),
    *("%Y-%m-%d %H:%M", "%Y-%m-%d"),
)


@dataclass(frozen=True)
class CdmTable:
    """SQL that reads a table, its columns in lower case, and its file.  text: its cells are text, as in a CSV
    file.  No columns: the table is absent."""

    sql: str
    columns: tuple[str, ...]
    path: Path
    text: bool = False

    def number(self, name: str, kind: str = "BIGINT") -> str:
        if name not in self.columns:
            return f"CAST(NULL AS {kind})"
        if not self.text:
            return f'CAST("{name}" AS {kind})'
        tried = "TRY_CAST({} AS DOUBLE)"
        return self._read(
            name, f"TRY_CAST({tried} AS BIGINT)" if kind == "BIGINT" else tried, kind, "a number"
        )

    def word(self, *names: str) -> str:
        """The first of these columns that the table has, as text; null where it has none."""
        found = next((n for n in names if n in self.columns), None)
        return (
            "CAST(NULL AS VARCHAR)" if found is None else f"""nullif(trim(CAST("{found}" AS VARCHAR)), '')"""
        )

    def time(self, *names: str) -> str:
        """A moment: the column with the time, or where it is null the one with the day, at midnight."""
        parts = [self._moment(n) for n in names if n in self.columns]
        return f"coalesce({', '.join(parts)})" if parts else "CAST(NULL AS TIMESTAMP)"

    def _moment(self, name: str) -> str:
        if not self.text:
            return f'CAST("{name}" AS TIMESTAMP)'
        formats = ", ".join(quoted(f) for f in FORMATS)
        what = "a time like 2150-01-31 10:00:00 (no offset)"
        return self._read(name, f"try_strptime({{}}, [{formats}])", "TIMESTAMP", what)

    def _read(self, name: str, tried: str, kind: str, what: str) -> str:
        """A column of text by SQL that is null where a cell is not what it should be: then a sentence."""
        plain = f"""nullif(trim("{name}"), '')"""
        where = f"{self.path}, column {name!r}: a value is not {what}"
        return or_refuse(plain, tried.format(plain), kind, where)


@dataclass(frozen=True)
class Cdm:
    place: Path
    tables: dict[str, CdmTable]

    def need(self, name: str, *columns: str) -> CdmTable:
        table = self.tables.get(name)
        if table is None:
            raise RequestError(
                f"the CDM table {name} is missing in {self.place}{nearest(name, self.tables)}; "
                "it must be there as a table, .parquet, .csv or .csv.gz"
            )
        for column in columns:
            if column not in table.columns:
                raise RequestError(
                    f"the CDM table {name} in {self.place} has no column {column!r}"
                    f"{nearest(column, table.columns)}; is it of version 5.3 or 5.4?"
                )
        return table

    def maybe(self, name: str, *columns: str) -> CdmTable:
        """A table that may be absent: then it has no columns and no rows."""
        absent = CdmTable("(SELECT 0 WHERE false)", (), self.place)
        return self.need(name, *columns) if name in self.tables else absent

    @property
    def files(self) -> list[Path]:
        return sorted({t.path for t in self.tables.values()})


def open_cdm(duck: DuckSession, place: Path, wanted: tuple[str, ...]) -> Cdm:
    """The wanted tables that a database or folder holds."""
    place = Path(place)
    if place.is_dir():
        tables = {name: found for name in wanted if (found := _file(place, name)) is not None}
        if not tables:
            raise RequestError(f"no CDM table (like person.parquet or PERSON.csv) is in {place}")
        return Cdm(place, tables)
    if not place.is_file():
        raise RequestError(f"{place} does not exist; give a DuckDB file or a folder of CDM tables")
    duck.execute(f"ATTACH {quoted(str(place))} AS cdm (READ_ONLY)", "opening the database", (place,))
    listed = duck.frame(
        "SELECT schema_name, table_name, list(lower(column_name)) AS columns FROM duckdb_columns() "
        "WHERE database_name = 'cdm' GROUP BY ALL",
        "reading the list of tables",
    )
    tables = {
        table.lower(): CdmTable(f'cdm."{schema}"."{table}"', tuple(columns), place)
        for schema, table, columns in listed.iter_rows()
        if table.lower() in wanted
    }
    if not tables:
        raise RequestError(f"{place} holds no CDM table (person, visit_occurrence, …)")
    return Cdm(place, tables)


def _file(folder: Path, name: str) -> CdmTable | None:
    paths = (
        folder / f"{n}{suffix}" for suffix in (".parquet", ".csv.gz", ".csv") for n in (name, name.upper())
    )
    path = next((p for p in paths if p.is_file()), None)
    if path is None:
        return None
    if path.suffix == ".parquet":
        try:
            columns = tuple(column.lower() for column in pl.read_parquet_schema(path))
        except (OSError, pl.exceptions.PolarsError):
            raise RequestError(f"{path} is not a readable Parquet file; copy it again") from None
        return CdmTable(f"read_parquet({quoted(str(path))})", columns, path)
    columns = tuple(column.strip().lower() for column in read_header(path))
    declared = ", ".join(f"{quoted(column)}: 'VARCHAR'" for column in columns)
    sql = (
        f"read_csv({quoted(str(path))}, header=true, auto_detect=false, delim=',', quote='\"', "
        f"escape='\"', columns={{{declared}}})"
    )
    return CdmTable(sql, columns, path, text=True)
