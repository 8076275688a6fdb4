"""MIMIC-IV v2.2 to v3.1 as distributed: in-hospital mortality from the first day in the ICU, one row per ICU
stay of an adult.

The diagnoses of an admission are coded after discharge: for a prediction at 24 hours they leak from the
future. ``diagnoses``: ``this`` admission's (as the paper does), those of ``earlier`` ones only, or ``none``.
With the clock ``storetime`` a value counts only if it was also stored by the end of the window.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

from abps.cohorts import charlson, physiology, vitals
from abps.cohorts.duck import (
    CsvTable,
    DuckSession,
    Progress,
    as_list,
    folder_of,
    numbers,
    open_inputs,
    open_table,
    session,
    silent,
)
from abps.cohorts.stays import StayOptions, chosen, combine, finish, in_time, short_unit, window_bounds
from abps.cohorts.tidy import Cohort, Flow, Variable, fractional_year, race_group, shipped, variables
from abps.core.errors import RequestError
from abps.data.roles import Roles

#: Rises whenever the same files and options would give another table.
RECIPE = "mimiciv/2"

_PATIENTS = ("subject_id", "gender", "anchor_age", "anchor_year", "anchor_year_group")
_ADMISSIONS = (
    *("subject_id", "hadm_id", "admittime", "dischtime", "admission_type", "admission_location"),
    *("insurance", "race", "hospital_expire_flag"),
)
_ICUSTAYS = ("subject_id", "hadm_id", "stay_id", "first_careunit", "intime", "outtime")


@dataclass(frozen=True, kw_only=True)
class MimicOptions(StayOptions):
    min_hours: float = 0
    clock: str = "charttime"


@dataclass(frozen=True)
class _Tables:
    """found: tables of events beyond vitals that are there, by input.  clock: from when a value counts."""

    patients: CsvTable
    admissions: CsvTable
    icustays: CsvTable
    diagnoses: CsvTable | None
    chartevents: CsvTable
    found: dict[str, CsvTable]
    clock: str

    @property
    def paths(self) -> list[Path]:
        every = (self.patients, self.admissions, self.icustays, self.diagnoses, self.chartevents)
        return [t.path for t in (*every, *self.found.values()) if t is not None]

    @property
    def has_text(self) -> bool:
        """Whether chartevents has the words that were charted, not numbers alone."""
        return "value" in self.chartevents.names

    def events(self, table: CsvTable, types: dict[str, str]) -> str:
        return f"{table.scan(types | ({'storetime': 'TIMESTAMP'} if self.stored else {}))} e"

    @property
    def stored(self) -> str:
        """The condition that a row of ``e`` was stored in time, where that is asked for."""
        return " AND e.storetime <= s.closes" if self.clock == "storetime" else ""


def build(root: Path, options: MimicOptions | None = None, progress: Progress = silent) -> Cohort:
    options = options or MimicOptions()
    tables, absent = _open(Path(root), options)
    inputs = physiology.inputs_of(options.groups)
    with session(progress) as duck:
        flow = chosen(_stays(duck, tables), options)
        duck.table("stays", _windows(flow.table, options))
        rows = _charted(duck, tables, inputs)
        signals = f"(SELECT stay, moment, signal, value FROM {rows})"
        first_day = vitals.summarise(duck, signals, "summarising vitals", (tables.chartevents.path,))
        coded, warnings = _comorbidities(duck, tables, flow.table, options)
        found = combine(
            duck, flow, first_day, [coded], options, lambda: _fill(duck, tables, rows, inputs), "mimiciv"
        )
    drop = ("stay", "era", "era_certain", "anchor_year_group")
    roles = Roles("died", "careunit", "patient", "admission_year", drop=drop)
    sources = (tables.paths, Path(root), progress)
    return finish(RECIPE, found, roles, _dictionary(options), options, sources, [*absent, *warnings])


def _open(root: Path, options: MimicOptions) -> tuple[_Tables, list[str]]:
    """Find all tables and check their columns before anything is read; what is missing without the others."""
    root = folder_of(root, "icu/icustays", "MIMIC-IV (it contains hosp and icu)")
    inputs = physiology.inputs_of(options.groups)
    wanted = {name: table for name, table in EVENTS.items() if name in inputs}
    diagnoses = ("subject_id", "hadm_id", "icd_code", "icd_version")
    tables = _Tables(
        open_table(root, "hosp/patients", _PATIENTS),
        open_table(root, "hosp/admissions", _ADMISSIONS),
        open_table(root, "icu/icustays", _ICUSTAYS),
        None if options.diagnoses == "none" else open_table(root, "hosp/diagnoses_icd", diagnoses),
        open_table(root, "icu/chartevents", ("stay_id", "charttime", "itemid", "valuenum")),
        open_inputs(root, wanted),
        options.clock,
    )
    warnings = [
        f"{table}.csv.gz is absent: there are no {name} columns from it"
        for name, (table, _) in wanted.items()
        if name not in tables.found
    ]
    for each in (tables.chartevents, *tables.found.values()):
        if options.clock == "storetime" and "storetime" not in each.names:
            raise RequestError(
                f"{each.path} has no column 'storetime', so what was stored in time is not known; "
                "use the clock charttime"
            )
    if {"gcs", "ventilation"} & inputs and not tables.has_text:
        warnings.append(
            f"{tables.chartevents.path.name} has no column 'value': intubated patients cannot be recognised "
            "by their coma scale, nor ventilation by its settings"
        )
    return tables, warnings


def _stays(duck: DuckSession, tables: _Tables) -> Flow:
    """All ICU stays with their patient and admission; those that cannot be used are the first exclusions."""
    types = dict.fromkeys(("subject_id", "hadm_id", "stay_id"), "BIGINT")
    types |= {"anchor_age": "DOUBLE", "anchor_year": "INTEGER", "hospital_expire_flag": "TINYINT"}
    types |= dict.fromkeys(("intime", "outtime", "admittime", "dischtime"), "TIMESTAMP")
    icustays, patients, admissions = (
        table.scan({column: types.get(column, "VARCHAR") for column in columns})
        for table, columns in (
            (tables.icustays, _ICUSTAYS),
            (tables.patients, _PATIENTS),
            (tables.admissions, _ADMISSIONS),
        )
    )
    raw = duck.frame(
        f"""
        SELECT i.stay_id AS stay, i.subject_id AS patient, i.hadm_id AS hadm, i.first_careunit,
               i.intime, i.outtime, p.gender, p.anchor_age, p.anchor_year, p.anchor_year_group,
               a.admittime, a.dischtime, a.admission_type, a.admission_location, a.insurance,
               a.race AS race_text, a.hospital_expire_flag AS died, p.subject_id IS NOT NULL AS has_patient,
               a.hadm_id IS NOT NULL AS has_admission
        FROM {icustays} i LEFT JOIN {patients} p ON i.subject_id = p.subject_id
        LEFT JOIN {admissions} a ON i.hadm_id = a.hadm_id
        """,
        "reading stays, patients and admissions",
        (tables.icustays.path, tables.patients.path, tables.admissions.path),
    )
    if raw["stay"].n_unique() != raw.height:
        raise RequestError(
            f"{tables.icustays.path}, {tables.patients.path} or {tables.admissions.path} has rows twice "
            "(a stay, patient or admission must occur once); use the files as distributed"
        )
    text = ("admission_type", "admission_location", "insurance", "gender")
    table = raw.with_columns(
        *(pl.col(c).str.strip_chars().replace("", None) for c in text),
        careunit=short_unit(pl.col("first_careunit")),
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
    return in_time(flow).keep(pl.col("died").is_in([0, 1]), "hospital outcome unknown", always=False)


def era_of_stay() -> dict[str, pl.Expr]:
    """The three-year era of the ICU admission, and whether it is certain.

    The release gives the true years of a patient's anchor year only (``anchor_year_group``, three years). A
    stay so many years later lies in the three true years so much later; its era is the one with their middle
    year.
    """
    first = pl.col("anchor_year_group").str.extract(r"^\s*(\d{4})\s*-\s*\d{4}\s*$").cast(pl.Int32)
    later = pl.col("intime").dt.year() - pl.col("anchor_year")
    middle = first + 1 + later
    start = middle - (middle - first) % 3  # eras follow one another in steps of three years
    return {"era": pl.format("{} - {}", start, start + 2), "era_certain": (later % 3 == 0).cast(pl.Int8)}


def _windows(stays: pl.DataFrame, options: MimicOptions) -> pl.DataFrame:
    """stay, patient, intime and the first and last moment that count (for laboratory values: lab_ …)."""
    labs = opens, closes = window_bounds(options.window)
    if vitals.window_of(options.window) is None:  # whatever is charted with the stay's number
        opens, closes = pl.lit(datetime(1, 1, 1)), pl.lit(datetime(9999, 1, 1))
    return stays.select(
        "stay", "patient", "intime", opens=opens, closes=closes, lab_opens=labs[0], lab_closes=labs[1]
    )


def _comorbidities(
    duck: DuckSession, tables: _Tables, stays: pl.DataFrame, options: MimicOptions
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
    coded = duck.frame(
        f"SELECT DISTINCT s.stay, trim(d.icd_code) AS icd_code, d.icd_version FROM {scan} d {join} "
        "WHERE d.icd_code IS NOT NULL",
        "reading diagnoses",
        (tables.diagnoses.path, tables.admissions.path),
    )
    odd = coded.filter(~pl.col("icd_version").is_in([9, 10]))
    if odd.height:
        raise RequestError(
            f"{tables.diagnoses.path} has icd_version {odd['icd_version'][0]}; "
            "it must be 9 or 10 in every row"
        )
    made = charlson.flags(charlson.present(coded), stays["stay"], options.charlson)
    return made, charlson.lost_zeros(coded)


def _dictionary(options: MimicOptions) -> list[Variable]:
    origins = ("ICD codes of this admission, coded after discharge", "ICD codes of earlier admissions only")
    return [*variables(_COLUMNS), *options.columns(origins)]


_COLUMNS = """
died | label | 0/1 | died in hospital during this admission (hospital_expire_flag)
careunit | context | | first care unit of the ICU stay, short name
era | context | | likeliest true three-year era of the ICU admission
era_certain | context | 0/1 | 1: no other era is possible; 0: two of three years lie in it
anchor_year_group | context | | true era of the patient's anchor year, not of the stay
patient | identifier | | subject_id
stay | identifier | | stay_id
admission_year | context | year | ICU admission, shifted per patient: not calendar time
age | feature | years | anchor_age + year of ICU admission − anchor_year
sex | feature | F/M | gender
race | feature | | race in five groups; missing where not recorded
admission_type | feature | | type of hospital admission
admission_location | feature | | where the patient came from
insurance | feature | | insurance
"""


# --- events beyond vitals: laboratory, coma scale, urine, vasopressors, ventilation -----------------------
# They fill the tables of abps.cohorts.physiology; the session must hold ``stays`` (see _windows).

_SPELL = ("stay_id", "starttime", "endtime", "itemid")

#: Input -> the table that holds it, and the columns that it needs.
EVENTS = {
    "labs": ("hosp/labevents", ("subject_id", "itemid", "charttime", "valuenum")),
    "urine": ("icu/outputevents", ("stay_id", "charttime", "itemid", "value")),
    "vasopressors": ("icu/inputevents", (*_SPELL, "rate", "rateuom", "patientweight")),
    "ventilation": ("icu/procedureevents", _SPELL),
}

_TYPES = dict.fromkeys(("stay_id", "subject_id"), "BIGINT") | {"itemid": "INTEGER", "valuenum": "DOUBLE"}
_TYPES |= dict.fromkeys(("charttime", "starttime", "endtime"), "TIMESTAMP")
_TYPES |= {"rate": "DOUBLE", "rateuom": "VARCHAR", "patientweight": "DOUBLE", "value": "DOUBLE"}

_SECONDS = "CAST(date_diff('second', s.intime, {}) AS BIGINT)"


def _items(duck: DuckSession, name: str, items: list[tuple[int, str]]) -> None:
    schema = {"itemid": pl.Int32, "signal": pl.String}
    duck.table(name, pl.DataFrame(items, schema=schema, orient="row"))


def _charted(duck: DuckSession, tables: _Tables, inputs: set[str]) -> str:
    """One pass over chartevents, kept in a file: SQL with stay, moment, signal, value, text of the window."""
    items = [(item, s.signal) for s in vitals.signals().values() for item in s.items]
    names = shipped("bedside")["mimiciv"]
    wanted = {
        "gcs": ("gcs_verbal", "gcs_motor", "gcs_eyes"),
        "labs": ("fio2_charted",),
        "ventilation": ("oxygen_device", "ventilator_mode", "ventilator_mode_hamilton"),
    }
    for group in wanted.keys() & inputs:
        items += [(item, signal) for signal in wanted[group] for item in names[signal]]
    _items(duck, "items", items)
    types = {name: _TYPES[name] for name in ("stay_id", "charttime", "itemid", "valuenum")}
    text = "CAST(NULL AS VARCHAR)"
    if tables.has_text and {"gcs", "ventilation"} & inputs:
        types["value"] = "VARCHAR"
        text = "CASE WHEN signal LIKE 'gcs%' OR signal LIKE '%device' OR signal LIKE 'vent%' THEN e.value END"
    return duck.spool(
        f"""
        SELECT s.stay, {_SECONDS.format("e.charttime")} AS moment, i.signal, e.valuenum AS value,
               {text} AS text
        FROM {tables.events(tables.chartevents, types)} JOIN items i ON e.itemid = i.itemid
        JOIN stays s ON e.stay_id = s.stay
        WHERE e.charttime >= s.opens AND e.charttime <= s.closes{tables.stored}
        """,
        "charted",
        "reading chartevents",
        (tables.chartevents.path,),
    )


def _fill(duck: DuckSession, tables: _Tables, rows: str, inputs: set[str]) -> set[str]:
    """Fill the three tables from ``rows`` (of :func:`_charted`) and the optional tables; what there is."""
    names = shipped("bedside")["mimiciv"]
    present = set(tables.found)
    if "gcs" in inputs:
        present.add("gcs")
        intubated = f"signal = 'gcs_verbal' AND trim(text) = '{names['verbal_intubated']}'"
        duck.execute(
            f"INSERT INTO measured SELECT stay, moment, signal, CASE WHEN {intubated} THEN 0 ELSE value END "
            f"FROM {rows} WHERE signal LIKE 'gcs%'",
            "reading coma scales",
        )
    if "labs" in tables.found:
        _labs(duck, tables, rows)
    drugs = [(item, drug) for drug, many in names["drugs"].items() for item in many]
    _items(duck, "drug_items", drugs)
    for name, statement in _INSERTS.items():
        if name in tables.found:
            table = tables.found[name]
            scan = tables.events(table, {column: _TYPES[column] for column in EVENTS[name][1]})
            sql = statement.format(
                scan=scan,
                stored=tables.stored,
                irrigant=numbers(names["irrigant_in"]),
                urine=numbers(names["urine"] + names["irrigant_in"]),
                ventilation=numbers(names["invasive_ventilation"]),
            )
            duck.execute(sql, f"reading {Path(table.name).name}", (table.path,))
    if "ventilation" in inputs and tables.has_text:
        present.add("ventilation")
        _settings(duck, rows)
    return present


#: By input, what fills the tables: urine (irrigant taken off), infusions that overlap the window (µg/kg/min),
#: and invasive ventilation as a procedure with begin and end.
_INSERTS = {
    "urine": f"""
        INSERT INTO measured
        SELECT s.stay, {_SECONDS.format("e.charttime")}, 'urine',
               CASE WHEN e.itemid IN ({{irrigant}}) AND e.value > 0 THEN -e.value ELSE e.value END
        FROM {{scan}} JOIN stays s ON e.stay_id = s.stay
        WHERE e.itemid IN ({{urine}}) AND e.value IS NOT NULL
          AND e.charttime >= s.opens AND e.charttime <= s.closes{{stored}}
    """,
    "vasopressors": f"""
        INSERT INTO given
        SELECT s.stay, {_SECONDS.format("greatest(e.starttime, s.opens)")},
               {_SECONDS.format("least(coalesce(e.endtime, e.starttime), s.closes)")}, i.signal,
               CASE lower(trim(e.rateuom)) WHEN 'mcg/kg/min' THEN e.rate
                    WHEN 'mg/kg/min' THEN CASE WHEN e.patientweight = 1 THEN e.rate ELSE 1000 * e.rate END
                    WHEN 'mcg/min' THEN CASE WHEN e.patientweight > 1 THEN e.rate / e.patientweight END END
        FROM {{scan}} JOIN drug_items i ON e.itemid = i.itemid JOIN stays s ON e.stay_id = s.stay
        WHERE e.starttime <= s.closes AND coalesce(e.endtime, e.starttime) >= s.opens
          AND (e.rate IS NULL OR e.rate > 0){{stored}}
    """,
    "ventilation": f"""
        INSERT INTO breathing
        SELECT s.stay, {_SECONDS.format("greatest(e.starttime, s.opens)")},
               {_SECONDS.format("least(e.endtime, s.closes)")}
        FROM {{scan}} JOIN stays s ON e.stay_id = s.stay
        WHERE e.itemid IN ({{ventilation}}) AND e.starttime <= s.closes AND e.endtime >= s.opens{{stored}}
    """,
}


def _labs(duck: DuckSession, tables: _Tables, rows: str) -> None:
    """Laboratory values of the patient in the window, whichever admission they are booked on."""
    table, names = tables.found["labs"], shipped("bedside")["mimiciv"]
    items = [(item, lab.lab) for lab in physiology.labs().values() for item in lab.mimiciv]
    items += [(item, signal) for signal in ("fio2_measured", "specimen") for item in names[signal]]
    _items(duck, "lab_items", items)
    types = {name: _TYPES[name] for name in EVENTS["labs"][1]}
    kinds = "CAST(NULL AS BIGINT), CAST(NULL AS VARCHAR)"
    if {"specimen_id", "value"} <= set(table.names):
        types |= {"specimen_id": "BIGINT", "value": "VARCHAR"}
        kinds = "e.specimen_id, CASE WHEN i.signal = 'specimen' THEN trim(e.value) END"
    found = duck.spool(
        f"""
        SELECT stay, moment, signal, value, specimen, text FROM (
            SELECT s.stay, {_SECONDS.format("e.charttime")} AS moment, i.signal, e.valuenum AS value, {kinds}
            FROM {tables.events(table, types)} JOIN lab_items i ON e.itemid = i.itemid
            JOIN stays s ON e.subject_id = s.patient
            WHERE e.charttime >= s.lab_opens AND e.charttime <= s.lab_closes{tables.stored}
        ) AS t (stay, moment, signal, value, specimen, text)
        """,
        "labs",
        "reading labevents",
        (table.path,),
    )
    duck.execute(
        f"""
        INSERT INTO measured SELECT stay, moment, signal, value FROM {found} WHERE signal <> 'specimen'
        UNION ALL
        SELECT DISTINCT p.stay, p.moment, 'pao2_arterial', p.value FROM {found} p JOIN {found} k
        ON p.stay = k.stay AND p.specimen = k.specimen
        WHERE p.signal = 'pao2' AND k.signal = 'specimen' AND k.text = '{names["arterial"]}'
        UNION ALL
        SELECT stay, moment, signal, value FROM {rows} WHERE signal = 'fio2_charted'
        """,
        "reading blood gases",
    )


def _settings(duck: DuckSession, rows: str) -> None:
    """Spells of invasive ventilation from devices and modes, to the next other status or a long gap."""
    words = shipped("bedside")["ventilation"]
    lists = {key: as_list(tuple(value)) for key, value in words.items() if isinstance(value, list)}
    gap = int(words["gap_hours"]) * physiology.HOUR
    duck.execute(
        f"""
        INSERT INTO breathing
        WITH given AS (
            SELECT stay, moment, signal, trim(text) AS text FROM {rows}
            WHERE signal LIKE '%device' OR signal LIKE 'vent%'
        ), status AS (
            SELECT stay, moment, CASE
                WHEN bool_or(signal = 'oxygen_device' AND text IN ('Tracheostomy tube', 'Trach mask'))
                    THEN 'trach'
                WHEN bool_or(CASE signal
                    WHEN 'oxygen_device' THEN list_contains({lists["invasive_devices"]}, text)
                    WHEN 'ventilator_mode' THEN list_contains({lists["invasive_modes"]}, text)
                    ELSE list_contains({lists["invasive_modes_hamilton"]}, text) END) THEN 'invasive'
                WHEN bool_or(CASE signal
                    WHEN 'oxygen_device' THEN list_contains({lists["other_devices"]}, text)
                    WHEN 'ventilator_mode_hamilton' THEN list_contains({lists["other_modes_hamilton"]}, text)
                    END) THEN 'other' END AS status
            FROM given GROUP BY stay, moment
        ), lined AS (
            SELECT stay, moment, status, lag(status) OVER w AS before, lag(moment) OVER w AS last,
                   lead(moment) OVER w AS next
            FROM status WHERE status IS NOT NULL WINDOW w AS (PARTITION BY stay ORDER BY moment)
        ), spells AS (
            SELECT *, sum(CASE WHEN before = status AND moment - last < {gap} THEN 0 ELSE 1 END)
                OVER (PARTITION BY stay ORDER BY moment) AS spell
            FROM lined
        )
        SELECT stay, min(moment), max(CASE WHEN next - moment < {gap} THEN next ELSE moment END)
        FROM spells WHERE status = 'invasive' GROUP BY stay, spell HAVING min(moment) <> max(moment)
        """,
        "reading ventilation",
    )
