"""MIMIC-IV v2.2 to v3.1 as distributed: in-hospital mortality from the first day in the ICU.

One row per ICU stay of an adult. Demographics and admission context from ``hosp``, vitals from
``icu/chartevents`` (streamed, in bounded memory), Charlson comorbidities from ``hosp/diagnoses_icd``.

The diagnoses of an admission are coded after discharge: used for a prediction at 24 hours they leak
from the future. ``diagnoses`` says which to use: ``this`` admission's (as the paper does), those of
``earlier`` admissions only (known in time), or ``none``. With the clock ``storetime`` a value counts only
if it was also stored by the end of the window, as a model at the bedside would see it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

from abps.cohorts import charlson, mimic_events, physiology, provenance, vitals
from abps.cohorts.duck import CsvTable, Progress, Session, folder_of, open_table, session, silent
from abps.cohorts.stay_options import StayOptions
from abps.cohorts.tidy import (
    Cohort,
    Flow,
    Variable,
    comorbidity_columns,
    fractional_year,
    in_order,
    keep_ages,
    keep_first,
    race_group,
    vital_columns,
)
from abps.core.errors import RequestError
from abps.data.synthetic.builtin import Roles

#: Rises whenever the same files and options would give another table.
RECIPE = "mimiciv/2"


@dataclass(frozen=True, kw_only=True)
class MimicOptions(StayOptions):
    """clock: one of :data:`abps.cohorts.mimic_events.CLOCKS`. min_hours: the least length of a stay."""

    min_hours: float = 0
    clock: str = "charttime"


@dataclass(frozen=True)
class _Tables:
    patients: CsvTable
    admissions: CsvTable
    icustays: CsvTable
    chartevents: CsvTable
    diagnoses: CsvTable | None

    @property
    def paths(self) -> list[Path]:
        every = (self.patients, self.admissions, self.icustays, self.diagnoses, self.chartevents)
        return [t.path for t in every if t is not None]


def build(root: Path, options: MimicOptions | None = None, progress: Progress = silent) -> Cohort:
    """Make the cohort from the folder that holds ``hosp`` and ``icu``."""
    options = options or MimicOptions()
    groups = physiology.parse_groups(options.features)
    tables = _open(Path(root), options)
    inputs = physiology.inputs_of(groups)
    events, absent = mimic_events.open_events(Path(root), tables.chartevents, inputs, options.clock)
    with session(progress) as duck:
        flow = _stays(duck, tables, options)
        if options.first_stay:
            flow = keep_first(flow, ("intime", "stay"))
        flow = keep_ages(flow, options.min_age, options.max_age)
        if options.min_hours:
            flow = flow.keep(
                pl.col("hours") >= options.min_hours, f"ICU stay shorter than {options.min_hours:g} h"
            )
        duck.table("stays", _windows(flow.table, options))
        rows = mimic_events.charted(duck, events, inputs)
        signals = f"(SELECT stay, moment, signal, value FROM {rows})"
        first_day = vitals.summarise(duck, signals, "summarising vitals", (tables.chartevents.path,))
        coded, warnings = _comorbidities(duck, tables, flow.table, options)
        table = flow.table.join(first_day.table, on="stay", how="left").join(coded, on="stay", how="left")
        more = None
        if groups:
            present = mimic_events.fill(duck, events, rows, inputs)
            known = table.select("stay", "age", *vitals.columns())
            when = vitals.window_words(options.window)
            more = physiology.build(duck, known, groups, present, when, "mimiciv")
            table = table.join(more.table, on="stay", how="left")
    warnings = [*absent, *warnings]
    without = table.filter(pl.all_horizontal(pl.col(vitals.columns()).is_null())).height
    if without:
        warnings.append(
            f"{without} stays have no vital sign in the window; they stay in, with missing values"
        )
    dictionary = [*_dictionary(options), *(more.dictionary if more else ())]
    paths = [*tables.paths, *(t.path for t in events.tables.values())]
    return Cohort(
        source="mimiciv",
        recipe=RECIPE,
        table=in_order(table, dictionary),
        roles=Roles(
            "died",
            "careunit",
            "patient",
            "admission_year",
            drop=("stay", "era", "era_certain", "anchor_year_group"),
        ),
        steps=flow.steps,
        dictionary=tuple(dictionary),
        files=provenance.describe_files(paths, Path(root), progress),
        options=asdict(options),
        facts={
            "stays_without_vitals": without,
            "vital_values_used": first_day.counted,
            "vital_values_out_of_range": first_day.dropped,
            **({"lab_values_out_of_range": more.dropped} if more else {}),
        },
        warnings=(*warnings, *first_day.warnings()),
    )


def _open(root: Path, options: MimicOptions) -> _Tables:
    """Find all tables and check their columns before anything is read."""
    root = folder_of(root, "icu/icustays", "MIMIC-IV (it contains hosp and icu)")
    return _Tables(
        patients=open_table(
            root, "hosp/patients", ("subject_id", "gender", "anchor_age", "anchor_year", "anchor_year_group")
        ),
        admissions=open_table(
            root,
            "hosp/admissions",
            (
                *("subject_id", "hadm_id", "admittime", "dischtime", "admission_type", "admission_location"),
                *("insurance", "race", "hospital_expire_flag"),
            ),
        ),
        icustays=open_table(
            root, "icu/icustays", ("subject_id", "hadm_id", "stay_id", "first_careunit", "intime", "outtime")
        ),
        chartevents=open_table(root, "icu/chartevents", ("stay_id", "charttime", "itemid", "valuenum")),
        diagnoses=None
        if options.diagnoses == "none"
        else open_table(root, "hosp/diagnoses_icd", ("subject_id", "hadm_id", "icd_code", "icd_version")),
    )


def _stays(duck: Session, tables: _Tables, options: MimicOptions) -> Flow:
    """All ICU stays with their patient and admission; those that cannot be used are the first exclusions."""
    scans = {
        "i": tables.icustays.scan(
            {
                "subject_id": "BIGINT",
                "hadm_id": "BIGINT",
                "stay_id": "BIGINT",
                "first_careunit": "VARCHAR",
                "intime": "TIMESTAMP",
                "outtime": "TIMESTAMP",
            }
        ),
        "p": tables.patients.scan(
            {
                "subject_id": "BIGINT",
                "gender": "VARCHAR",
                "anchor_age": "DOUBLE",
                "anchor_year": "INTEGER",
                "anchor_year_group": "VARCHAR",
            }
        ),
        "a": tables.admissions.scan(
            {
                "hadm_id": "BIGINT",
                "admittime": "TIMESTAMP",
                "dischtime": "TIMESTAMP",
                "admission_type": "VARCHAR",
                "admission_location": "VARCHAR",
                "insurance": "VARCHAR",
                "race": "VARCHAR",
                "hospital_expire_flag": "TINYINT",
            }
        ),
    }
    files = (tables.icustays.path, tables.patients.path, tables.admissions.path)
    raw = duck.frame(
        f"""
        SELECT i.stay_id AS stay, i.subject_id AS patient, i.hadm_id AS hadm, i.first_careunit,
               i.intime, i.outtime, p.gender, p.anchor_age, p.anchor_year, p.anchor_year_group,
               a.admittime, a.dischtime, a.admission_type, a.admission_location, a.insurance,
               a.race AS race_text, a.hospital_expire_flag AS died, p.subject_id IS NOT NULL AS has_patient,
               a.hadm_id IS NOT NULL AS has_admission
        FROM {scans["i"]} i LEFT JOIN {scans["p"]} p ON i.subject_id = p.subject_id
        LEFT JOIN {scans["a"]} a ON i.hadm_id = a.hadm_id
        """,
        "reading stays, patients and admissions",
        files,
    )
    if raw["stay"].n_unique() != raw.height:
        raise RequestError(
            f"{tables.icustays.path}, {tables.patients.path} or {tables.admissions.path} has rows twice "
            "(a stay, patient or admission must occur once); use the files as distributed"
        )
    text = ("admission_type", "admission_location", "insurance", "gender")
    table = raw.with_columns(
        *(pl.col(c).str.strip_chars().replace("", None) for c in text),
        # "Medical Intensive Care Unit (MICU)" is MICU; names without brackets stay
        careunit=pl.col("first_careunit")
        .str.extract(r"\(([^()]+)\)\s*$")
        .fill_null(pl.col("first_careunit")),
        # the release's own formula: the shift of dates keeps differences of years
        age=pl.col("anchor_age") + pl.col("intime").dt.year() - pl.col("anchor_year"),
        admission_year=fractional_year("intime"),
        **era_of_stay(),
        sex=pl.col("gender"),
        race=race_group("race_text"),
        hours=(pl.col("outtime") - pl.col("intime")).dt.total_seconds() / 3600,
    )
    flow = Flow.start(table, "ICU stays in icu/icustays")
    flow = flow.keep(
        pl.col("has_patient") & pl.col("has_admission"), "no patient or admission record", always=False
    )
    flow = flow.keep(
        pl.col("intime").is_not_null()
        & (pl.col("outtime").is_null() | (pl.col("outtime") >= pl.col("intime"))),
        "times missing or out of order (out of the ICU before into it)",
        always=False,
    )
    return flow.keep(pl.col("died").is_in([0, 1]), "hospital outcome unknown", always=False)


def era_of_stay() -> dict[str, pl.Expr]:
    """The three-year era of the ICU admission, and whether it is certain.

    The release gives the true years of a patient's anchor year only (``anchor_year_group``, three years).
    A stay so many years later lies in the three true years so much later; these lie in one era or in two.
    The era is the one with their middle year, which holds all three or two of them.
    """
    first = pl.col("anchor_year_group").str.extract(r"^\s*(\d{4})\s*-\s*\d{4}\s*$").cast(pl.Int32)
    later = pl.col("intime").dt.year() - pl.col("anchor_year")
    middle = first + 1 + later
    start = middle - (middle - first) % 3  # eras follow one another in steps of three years
    return {"era": pl.format("{} - {}", start, start + 2), "era_certain": (later % 3 == 0).cast(pl.Int8)}


def _windows(stays: pl.DataFrame, options: MimicOptions) -> pl.DataFrame:
    """stay, patient, intime and the first and last moment that count (for laboratory values: lab_ …)."""
    window = vitals.window_of(options.window)
    if window is None:  # whatever is charted with the stay's number; laboratory values have none
        opens, closes = pl.lit(datetime(1, 1, 1)), pl.lit(datetime(9999, 1, 1))
        labs = pl.col("intime"), pl.col("outtime")
    else:
        opens = pl.col("intime") + pl.duration(hours=window[0])
        closes = pl.col("intime") + pl.duration(hours=window[1])
        labs = opens, closes
    return stays.select(
        "stay", "patient", "intime", opens=opens, closes=closes, lab_opens=labs[0], lab_closes=labs[1]
    )


def _comorbidities(
    duck: Session, tables: _Tables, stays: pl.DataFrame, options: MimicOptions
) -> tuple[pl.DataFrame, list[str]]:
    """One row of Charlson flags per stay, and what to warn about."""
    if tables.diagnoses is None:
        return stays.select("stay"), []
    scan = tables.diagnoses.scan(
        {"subject_id": "BIGINT", "hadm_id": "BIGINT", "icd_code": "VARCHAR", "icd_version": "SMALLINT"}
    )
    duck.table("admitted", stays.select("stay", "hadm", "patient", "admittime"))
    if options.diagnoses == "this":
        join = "JOIN admitted s ON d.hadm_id = s.hadm"
    else:
        ended = tables.admissions.scan({"hadm_id": "BIGINT", "dischtime": "TIMESTAMP"})
        join = (
            f"JOIN {ended} e ON d.hadm_id = e.hadm_id "
            "JOIN admitted s ON d.subject_id = s.patient AND e.dischtime <= s.admittime"
        )
    files = (tables.diagnoses.path, tables.admissions.path)
    coded = duck.frame(
        f"SELECT DISTINCT s.stay AS key, trim(d.icd_code) AS icd_code, d.icd_version FROM {scan} d {join} "
        "WHERE d.icd_code IS NOT NULL",
        "reading diagnoses",
        files,
    )
    odd = coded.filter(~pl.col("icd_version").is_in([9, 10]))
    if odd.height:
        raise RequestError(
            f"{tables.diagnoses.path} has icd_version {odd['icd_version'][0]}; "
            "it must be 9 or 10 in every row"
        )
    warning = charlson.lost_zeros(coded)
    made = charlson.flags(coded, stays["stay"], options.charlson).rename({"key": "stay"})
    return made, [warning] if warning else []


def _dictionary(options: MimicOptions) -> list[Variable]:
    origin = {
        "this": "ICD codes of this admission, coded after discharge",
        "earlier": "ICD codes of earlier admissions only",
        "none": "",
    }[options.diagnoses]
    return [
        Variable("died", "label", "0/1", "died in hospital during this admission (hospital_expire_flag)"),
        Variable("careunit", "context", "", "first care unit of the ICU stay, short name"),
        Variable("era", "context", "", "likeliest true three-year era of the ICU admission"),
        Variable(
            "era_certain", "context", "0/1", "1: no other era is possible; 0: two of three years lie in it"
        ),
        Variable(
            "anchor_year_group", "context", "", "true era of the patient's anchor year, not of the stay"
        ),
        Variable("patient", "identifier", "", "subject_id"),
        Variable("stay", "identifier", "", "stay_id"),
        Variable(
            "admission_year", "context", "year", "ICU admission, shifted per patient: not calendar time"
        ),
        Variable("age", "feature", "years", "anchor_age + year of ICU admission − anchor_year"),
        Variable("sex", "feature", "F/M", "gender"),
        Variable("race", "feature", "", "race in five groups; missing where not recorded"),
        Variable("admission_type", "feature", "", "type of hospital admission"),
        Variable("admission_location", "feature", "", "where the patient came from"),
        Variable("insurance", "feature", "", "insurance"),
        *comorbidity_columns(options.comorbidities, origin),
        *vital_columns(options.window),
    ]
