"""MIMIC-IV v2.2 to v3.1 as distributed: in-hospital mortality from the first day in the ICU.

One row per ICU stay of an adult. Demographics and admission context from ``hosp``, vitals from
``icu/chartevents`` (streamed, in bounded memory), Charlson comorbidities from ``hosp/diagnoses_icd``.

The diagnoses of an admission are coded after discharge: used for a prediction at 24 hours they leak
from the future. ``diagnoses`` says which to use: ``this`` admission's (as the paper does), those of
``earlier`` admissions only (known in time), or ``none``. With the clock ``storetime`` a value counts only
if it was also stored by the end of the window, as a model at the bedside would see it.
"""

from __future__ import annotations

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
    open_optional,
    open_table,
    session,
    silent,
)
from abps.cohorts.stays import (
    StayOptions,
    StayTable,
    chosen,
    comorbidity_columns,
    finish,
    in_time,
    short_unit,
    vital_columns,
    window_bounds,
)
from abps.cohorts.tidy import Cohort, Flow, Variable, fractional_year, race_group
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
    """The options of all ICU stays, the least length of one, and the clock."""

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
    events, absent = _open_events(Path(root), tables.chartevents, inputs, options.clock)
    with session(progress) as duck:
        flow = chosen(_stays(duck, tables, options), options)
        duck.table("stays", _windows(flow.table, options))
        rows = _charted(duck, events, inputs)
        signals = f"(SELECT stay, moment, signal, value FROM {rows})"
        first_day = vitals.summarise(duck, signals, "summarising vitals", (tables.chartevents.path,))
        coded, warnings = _comorbidities(duck, tables, flow.table, options)
        table = flow.table.join(first_day.table, on="stay", how="left").join(coded, on="stay", how="left")
        more = None
        if groups:
            present = _fill(duck, events, rows, inputs)
            known = table.select("stay", "age", *vitals.columns())
            when = vitals.window_words(options.window)
            more = physiology.build(duck, known, groups, present, when, "mimiciv")
    found = StayTable(flow, table, first_day, more, [*absent, *warnings])
    drop = ("stay", "era", "era_certain", "anchor_year_group")
    roles = Roles("died", "careunit", "patient", "admission_year", drop=drop)
    paths = [*tables.paths, *(t.path for t in events.tables.values())]
    return finish(RECIPE, found, roles, _dictionary(options), options, (paths, Path(root)), progress)


def _open(root: Path, options: MimicOptions) -> _Tables:
    """Find all tables and check their columns before anything is read."""
    root = folder_of(root, "icu/icustays", "MIMIC-IV (it contains hosp and icu)")
    return _Tables(
        patients=open_table(root, "hosp/patients", _PATIENTS),
        admissions=open_table(root, "hosp/admissions", _ADMISSIONS),
        icustays=open_table(root, "icu/icustays", _ICUSTAYS),
        chartevents=open_table(root, "icu/chartevents", ("stay_id", "charttime", "itemid", "valuenum")),
        diagnoses=None
        if options.diagnoses == "none"
        else open_table(root, "hosp/diagnoses_icd", ("subject_id", "hadm_id", "icd_code", "icd_version")),
    )


def _stays(duck: DuckSession, tables: _Tables, options: MimicOptions) -> Flow:
    """All ICU stays with their patient and admission; those that cannot be used are the first exclusions."""
    numbers = dict.fromkeys(("subject_id", "hadm_id", "stay_id"), "BIGINT")
    numbers |= {"anchor_age": "DOUBLE", "anchor_year": "INTEGER", "hospital_expire_flag": "TINYINT"}
    numbers |= dict.fromkeys(("intime", "outtime", "admittime", "dischtime"), "TIMESTAMP")
    scans = {
        short: table.scan({column: numbers.get(column, "VARCHAR") for column in columns})
        for short, table, columns in (
            ("i", tables.icustays, _ICUSTAYS),
            ("p", tables.patients, _PATIENTS),
            ("a", tables.admissions, _ADMISSIONS),
        )
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
        *vital_columns(vitals.window_words(options.window)),
    ]


# --- events beyond vitals: laboratory, coma scale, urine, vasopressors, ventilation -----------------------
# They fill the tables of abps.cohorts.physiology; the session must hold ``stays`` (see _windows).

#: Input -> the table that holds it, and the columns that it needs.
TABLES = {
    "labs": ("hosp/labevents", ("subject_id", "itemid", "charttime", "valuenum")),
    "urine": ("icu/outputevents", ("stay_id", "charttime", "itemid", "value")),
    "vasopressors": (
        "icu/inputevents",
        ("stay_id", "starttime", "endtime", "itemid", "rate", "rateuom", "patientweight"),
    ),
    "ventilation": ("icu/procedureevents", ("stay_id", "starttime", "endtime", "itemid")),
}

_SECONDS = "CAST(date_diff('second', s.intime, {}) AS BIGINT)"


@dataclass(frozen=True)
class MimicEvents:
    """tables: the optional tables that were found, by input. charted: rows of chartevents, as SQL."""

    tables: dict[str, CsvTable]
    chartevents: CsvTable
    clock: str

    @property
    def has_text(self) -> bool:
        """Whether chartevents has the words that were charted, not numbers alone."""
        return "value" in self.chartevents.names

    def known(self, table: CsvTable) -> str:
        """The condition that a row of ``e`` was stored in time, where that is asked for."""
        return " AND e.storetime <= s.closes" if self.clock == "storetime" else ""

    def stored(self) -> dict[str, str]:
        """The column that says when a row was stored, where it is needed."""
        return {"storetime": "TIMESTAMP"} if self.clock == "storetime" else {}


def _open_events(
    root: Path, chartevents: CsvTable, inputs: set[str], clock: str
) -> tuple[MimicEvents, list[str]]:
    """The tables that hold the inputs, and a warning for each that is absent."""
    found, warnings = {}, []
    for name, (table, columns) in TABLES.items():
        if name not in inputs:
            continue
        opened = open_optional(root, table, columns)
        if opened is None:
            warnings.append(f"{table}.csv.gz is absent: there are no {name} columns from it")
        else:
            found[name] = opened
    for each in (chartevents, *found.values()):
        if clock == "storetime" and "storetime" not in each.names:
            raise RequestError(
                f"{each.path} has no column 'storetime', so what was stored in time is not known; "
                "use the clock charttime"
            )
    events = MimicEvents(found, chartevents, clock)
    if {"gcs", "ventilation"} & inputs and not events.has_text:
        warnings.append(
            f"{chartevents.path.name} has no column 'value': intubated patients cannot be recognised by "
            "their coma scale, nor ventilation by its settings"
        )
    return events, warnings


def _charted(duck: DuckSession, events: MimicEvents, inputs: set[str]) -> str:
    """One pass over chartevents, kept in a file: SQL with stay, moment, signal, value, text of the window."""
    items = [(item, s.signal) for s in vitals.signals().values() for item in s.items]
    names = physiology.bedside()["mimiciv"]
    wanted = {
        "gcs": ("gcs_verbal", "gcs_motor", "gcs_eyes"),
        "labs": ("fio2_charted",),
        "ventilation": ("oxygen_device", "ventilator_mode", "ventilator_mode_hamilton"),
    }
    for group, signals in wanted.items():
        if group in inputs:
            items += [(item, signal) for signal in signals for item in names[signal]]
    duck.table("items", pl.DataFrame(items, schema={"itemid": pl.Int32, "signal": pl.String}, orient="row"))
    types = {"stay_id": "BIGINT", "charttime": "TIMESTAMP", "itemid": "INTEGER", "valuenum": "DOUBLE"}
    text = "CAST(NULL AS VARCHAR)"
    if events.has_text and {"gcs", "ventilation"} & inputs:
        types["value"] = "VARCHAR"
        text = "CASE WHEN signal LIKE 'gcs%' OR signal LIKE '%device' OR signal LIKE 'vent%' THEN e.value END"
    table = events.chartevents
    return duck.spool(
        f"""
        SELECT s.stay, {_SECONDS.format("e.charttime")} AS moment, i.signal, e.valuenum AS value,
               {text} AS text
        FROM {table.scan(types | events.stored())} e JOIN items i ON e.itemid = i.itemid
        JOIN stays s ON e.stay_id = s.stay
        WHERE e.charttime >= s.opens AND e.charttime <= s.closes{events.known(table)}
        """,
        "charted",
        "reading chartevents",
        (table.path,),
    )


def _fill(duck: DuckSession, events: MimicEvents, rows: str, inputs: set[str]) -> set[str]:
    """Fill the three tables from ``rows`` (of :func:`_charted`) and the optional tables; what there is."""
    physiology.empty_tables(duck)
    names = physiology.bedside()["mimiciv"]
    present = set(events.tables)
    if "gcs" in inputs:
        present.add("gcs")
        intubated = f"signal = 'gcs_verbal' AND trim(text) = '{names['verbal_intubated']}'"
        duck.execute(
            f"INSERT INTO measured SELECT stay, moment, signal, CASE WHEN {intubated} THEN 0 ELSE value END "
            f"FROM {rows} WHERE signal LIKE 'gcs%'",
            "reading coma scales",
        )
    if "labs" in events.tables:
        _labs(duck, events, rows)
    if "urine" in events.tables:
        table = events.tables["urine"]
        types = {"stay_id": "BIGINT", "charttime": "TIMESTAMP", "itemid": "INTEGER", "value": "DOUBLE"}
        irrigant = f"e.itemid IN ({_numbers(names['irrigant_in'])}) AND e.value > 0"
        duck.execute(
            f"""
            INSERT INTO measured
            SELECT s.stay, {_SECONDS.format("e.charttime")}, 'urine',
                   CASE WHEN {irrigant} THEN -e.value ELSE e.value END
            FROM {table.scan(types | events.stored())} e JOIN stays s ON e.stay_id = s.stay
            WHERE e.itemid IN ({_numbers(names["urine"] + names["irrigant_in"])}) AND e.value IS NOT NULL
              AND e.charttime >= s.opens AND e.charttime <= s.closes{events.known(table)}
            """,
            "reading outputevents",
            (table.path,),
        )
    if "vasopressors" in events.tables:
        _drugs(duck, events)
    if "ventilation" in inputs:
        if "ventilation" in events.tables:
            _procedures(duck, events)
        if events.has_text:
            present.add("ventilation")
            _settings(duck, rows)
    return present


def _numbers(values: list[int]) -> str:
    return ", ".join(str(v) for v in values)


def _labs(duck: DuckSession, events: MimicEvents, rows: str) -> None:
    """Laboratory values of the patient in the window, whichever admission they are booked on."""
    table = events.tables["labs"]
    names = physiology.bedside()["mimiciv"]
    items = [(item, lab.lab) for lab in physiology.labs().values() for item in lab.mimiciv]
    items += [(item, "fio2_measured") for item in names["fio2_measured"]]
    items += [(item, "specimen") for item in names["specimen"]]
    duck.table(
        "lab_items", pl.DataFrame(items, schema={"itemid": pl.Int32, "signal": pl.String}, orient="row")
    )
    types = {"subject_id": "BIGINT", "itemid": "INTEGER", "charttime": "TIMESTAMP", "valuenum": "DOUBLE"}
    kinds = (
        {"specimen_id": "BIGINT", "value": "VARCHAR"} if {"specimen_id", "value"} <= set(table.names) else {}
    )
    stored = (
        "e.specimen_id, CASE WHEN i.signal = 'specimen' THEN trim(e.value) END"
        if kinds
        else "CAST(NULL AS BIGINT), CAST(NULL AS VARCHAR)"
    )
    found = duck.spool(
        f"""
        SELECT stay, moment, signal, value, specimen, text FROM (
            SELECT s.stay, {_SECONDS.format("e.charttime")} AS moment, i.signal, e.valuenum AS value, {stored}
            FROM {table.scan(types | kinds | events.stored())} e JOIN lab_items i ON e.itemid = i.itemid
            JOIN stays s ON e.subject_id = s.patient
            WHERE e.charttime >= s.lab_opens AND e.charttime <= s.lab_closes{events.known(table)}
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


def _drugs(duck: DuckSession, events: MimicEvents) -> None:
    """Infusions that overlap the window, in µg/kg/min."""
    table = events.tables["vasopressors"]
    drugs = physiology.bedside()["mimiciv"]["drugs"]
    items = [(item, drug) for drug, many in drugs.items() for item in many]
    duck.table(
        "drug_items", pl.DataFrame(items, schema={"itemid": pl.Int32, "drug": pl.String}, orient="row")
    )
    types = {"stay_id": "BIGINT", "starttime": "TIMESTAMP", "endtime": "TIMESTAMP", "itemid": "INTEGER"}
    types |= {"rate": "DOUBLE", "rateuom": "VARCHAR", "patientweight": "DOUBLE"}
    duck.execute(
        f"""
        INSERT INTO given
        SELECT s.stay, {_SECONDS.format("greatest(e.starttime, s.opens)")},
               {_SECONDS.format("least(coalesce(e.endtime, e.starttime), s.closes)")}, i.drug,
               CASE lower(trim(e.rateuom)) WHEN 'mcg/kg/min' THEN e.rate
                    WHEN 'mg/kg/min' THEN CASE WHEN e.patientweight = 1 THEN e.rate ELSE 1000 * e.rate END
                    WHEN 'mcg/min' THEN CASE WHEN e.patientweight > 1 THEN e.rate / e.patientweight END END
        FROM {table.scan(types | events.stored())} e JOIN drug_items i ON e.itemid = i.itemid
        JOIN stays s ON e.stay_id = s.stay
        WHERE e.starttime <= s.closes AND coalesce(e.endtime, e.starttime) >= s.opens
          AND (e.rate IS NULL OR e.rate > 0){events.known(table)}
        """,
        "reading inputevents",
        (table.path,),
    )


def _procedures(duck: DuckSession, events: MimicEvents) -> None:
    """Invasive ventilation as a procedure with begin and end."""
    table = events.tables["ventilation"]
    types = {"stay_id": "BIGINT", "starttime": "TIMESTAMP", "endtime": "TIMESTAMP", "itemid": "INTEGER"}
    items = _numbers(physiology.bedside()["mimiciv"]["invasive_ventilation"])
    duck.execute(
        f"""
        INSERT INTO breathing
        SELECT s.stay, {_SECONDS.format("greatest(e.starttime, s.opens)")},
               {_SECONDS.format("least(e.endtime, s.closes)")}
        FROM {table.scan(types | events.stored())} e JOIN stays s ON e.stay_id = s.stay
        WHERE e.itemid IN ({items}) AND e.starttime <= s.closes AND e.endtime >= s.opens{events.known(table)}
        """,
        "reading procedureevents",
        (table.path,),
    )


def _settings(duck: DuckSession, rows: str) -> None:
    """Spells of invasive ventilation from devices and modes, to the next other status or a long gap."""
    words = physiology.bedside()["ventilation"]
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
