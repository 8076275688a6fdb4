"""eICU Collaborative Research Database: unit stays of many hospitals, each hospital a center.

Hospital mortality from the first 24 hours in the unit: vitals from vitalPeriodic and vitalAperiodic, acute
physiology from apacheApsVar, comorbidities from what was written down by 24 hours (pastHistory, diagnosis,
apachePredVar). Of a stay that was over earlier, what was entered by unit discharge counts: some entries come
later, even after death, and would leak from the end of the stay.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from abps.cohorts import charlson, physiology, vitals
from abps.cohorts.duck import (
    CsvTable,
    DuckSession,
    Progress,
    as_list,
    folder_of,
    open_inputs,
    open_table,
    quoted,
    session,
    silent,
)
from abps.cohorts.stays import FirstDayOptions, chosen, combine, finish
from abps.cohorts.tidy import Cohort, Flow, Variable, race_group, shipped, variables
from abps.core.errors import RequestError
from abps.data.roles import Roles

RECIPE = "eicu/2"

DAY = 24 * 60  # minutes: times in eICU are minutes from unit admission

#: "> 89" is all that is known about the oldest.
OLDEST = 90.0

#: apacheApsVar -> our column and its unit; −1 is missing there. Worst value of the first 24 hours.
APS: dict[str, tuple[str, str]] = shipped("eicu")["aps"]

#: apachePredVar flags that state a Charlson category. (Its diedinhospital is the label: never read.)
PRED = {
    "aids": "aids", "hepaticfailure": "liver_severe", "cirrhosis": "liver_mild", "lymphoma": "malignancy",
    "leukemia": "malignancy", "metastaticcancer": "metastatic_tumor", "diabetes": "diabetes_uncomplicated",
}  # fmt: skip

PERIODIC = {
    "heartrate": "heart_rate", "systemicsystolic": "sbp", "systemicdiastolic": "dbp", "systemicmean": "mbp",
    "respiration": "resp_rate", "sao2": "spo2", "temperature": "temperature",
}  # fmt: skip
APERIODIC = {"noninvasivesystolic": "sbp", "noninvasivediastolic": "dbp", "noninvasivemean": "mbp"}

_PATIENT = (
    *("patientunitstayid", "gender", "age", "ethnicity", "hospitalid", "admissionheight", "admissionweight"),
    *("hospitaldischargeyear", "hospitaldischargestatus", "unittype", "unitadmitsource"),
    *("unitdischargeoffset", "uniquepid"),
)
_HOSPITAL = ("hospitalid", "numbedscategory", "teachingstatus", "region")


#: Input -> table, and the columns that it needs; without the table its columns are empty.
TABLES = {
    "aps": ("apacheApsVar", ("patientunitstayid", *APS)),
    "pred": ("apachePredVar", ("patientunitstayid", *PRED)),
    "result": ("apachePatientResult", ("patientunitstayid", "actualhospitalmortality")),
    "diagnosis": ("diagnosis", ("patientunitstayid", "diagnosisoffset", "icd9code")),
    "history": ("pastHistory", ("patientunitstayid", "pasthistoryenteredoffset", "pasthistorypath")),
    "periodic": ("vitalPeriodic", ("patientunitstayid", "observationoffset", *PERIODIC)),
    "aperiodic": ("vitalAperiodic", ("patientunitstayid", "observationoffset", *APERIODIC)),
}

#: What is missing without a table.
EFFECTS = {
    "periodic": "heart rate, respiration, saturation and temperature are empty",
    "aperiodic": "non-invasive blood pressures are missing",
    "aps": "the aps_ columns are empty",
    "diagnosis": "comorbidities rest on history and APACHE alone",
    "history": "comorbidities rest on diagnoses and APACHE alone",
}


@dataclass(frozen=True, kw_only=True)
class EicuOptions(FirstDayOptions):
    """Ages are unset by default: eICU's own inclusion.  min_hours, clock: as in MIMIC-IV.

    The first stay is that of the earliest year of hospital discharge, the first unit visit, then the lowest
    number.
    """

    min_hours: float = 0
    clock: str = "charttime"


@dataclass(frozen=True)
class _Tables:
    """patient, hospital: always there.  found: the others, by input.  clock: from when a value counts."""

    patient: CsvTable
    hospital: CsvTable
    found: dict[str, CsvTable]
    clock: str

    @property
    def paths(self) -> list[Path]:
        return [t.path for t in (self.patient, self.hospital, *self.found.values())]

    def scan(self, name: str, types: dict[str, str]) -> str:
        """SQL with stay, moment (seconds), ends and the columns of ``types``, cut to the first day."""
        _, _, time, entered = EVENTS[name]
        known = {entered: "BIGINT"} if entered and self.clock == "storetime" else {}
        stored = f" AND {entered} <= stays.ends" if known else ""
        columns = {"patientunitstayid": "BIGINT", time: "BIGINT", **types, **known}
        return (
            f"(SELECT stays.stay, 60 * {time} AS moment, 60 * CAST(stays.ends AS BIGINT) AS ends, "
            f"{', '.join(types)} FROM {self.found[name].scan(columns)} "
            f"JOIN stays ON patientunitstayid = stays.stay WHERE {time} BETWEEN 0 AND stays.ends{stored})"
        )


def build(root: Path, options: EicuOptions | None = None, progress: Progress = silent) -> Cohort:
    options = options or EicuOptions()
    root = Path(root)
    tables, warnings = _open(root, options)
    with session(progress) as duck:
        flow = _stays(duck, tables)
        visit = "visit" if "visit" in flow.table.columns else "stay"
        flow = chosen(flow, options, ("admission_year", visit, "stay"))
        # the last minute that counts: 24 hours, or unit discharge if that was earlier
        ends = pl.min_horizontal(pl.lit(DAY, pl.Float64), pl.col("hours") * 60)
        duck.table("stays", flow.table.select("stay", "weight", ends=ends))
        first_day = _vitals(duck, tables)
        categories = _comorbidities(duck, tables)
        comorbid = charlson.flags(categories, flow.table["stay"], options.charlson)
        disagreeing = _label_check(duck, tables, flow.table)
        parts = [_physiology(duck, tables), comorbid]
        found = combine(duck, flow, first_day, parts, options, lambda: _fill(duck, tables), "eicu")
    if disagreeing:
        warnings.append(
            f"{disagreeing} stays have another outcome in apachePatientResult than in patient; "
            "patient was used"
        )
    hospitals = flow.table["hospital"].n_unique()
    facts = {"hospitals": hospitals, "outcome_disagrees_with_apache": disagreeing}
    drop = ("stay", "careunit", "region", "beds", "teaching")
    roles = Roles("died", "hospital", "patient", "admission_year", drop=drop)
    sources = (tables.paths, root, progress)
    return finish(RECIPE, found, roles, _dictionary(options), options, sources, warnings, facts)


def _open(root: Path, options: EicuOptions) -> tuple[_Tables, list[str]]:
    """All tables that are there and needed, and what is missing without the others."""
    folder_of(root, "patient", "eICU (it contains patient.csv.gz)")
    inputs = physiology.inputs_of(options.groups)
    events = {
        name: (table, (*columns, time, *([entered] if entered and options.clock == "storetime" else [])))
        for name, (table, columns, time, entered) in EVENTS.items()
        if name in inputs
    }
    patient, hospital = open_table(root, "patient", _PATIENT), open_table(root, "hospital", _HOSPITAL)
    tables = _Tables(patient, hospital, open_inputs(root, TABLES | events), options.clock)
    absent = [name for name in (*EFFECTS, *events) if name not in tables.found]
    effects = EFFECTS | {name: f"there are no {name} columns from it" for name in events}
    warnings = [f"{(TABLES | events)[name][0]}.csv.gz is absent: {effects[name]}" for name in absent]
    if not {"diagnosis", "history", "pred"} & tables.found.keys():
        all_absent = "diagnosis, pastHistory and apachePredVar are all absent: comorbidities are missing"
        warnings.insert(sum(name in EFFECTS for name in absent), all_absent)
    return tables, warnings


def _stays(duck: DuckSession, tables: _Tables) -> Flow:
    types = dict.fromkeys(_PATIENT, "VARCHAR") | {
        "patientunitstayid": "BIGINT",
        "hospitalid": "BIGINT",
        "admissionheight": "DOUBLE",
        "admissionweight": "DOUBLE",
        "hospitaldischargeyear": "DOUBLE",
        "unitdischargeoffset": "DOUBLE",
    }
    hospital = tables.hospital.scan(dict.fromkeys(_HOSPITAL, "VARCHAR") | {"hospitalid": "BIGINT"})
    visit = ""
    if "unitvisitnumber" in tables.patient.names:
        types["unitvisitnumber"] = "BIGINT"
        visit = "p.unitvisitnumber AS visit,"
    raw = duck.frame(
        f"""
        SELECT p.patientunitstayid AS stay, p.uniquepid AS patient, CAST(p.hospitalid AS VARCHAR) AS hospital,
               p.age AS age_text, p.gender, p.ethnicity, p.unittype AS careunit,
               p.unitadmitsource AS admission_location, p.admissionheight AS height,
               p.admissionweight AS weight,
               p.hospitaldischargeyear AS admission_year, p.hospitaldischargestatus AS status,
               p.unitdischargeoffset / 60 AS hours, {visit}
               h.region, h.numbedscategory AS beds, h.teachingstatus AS teaching
        FROM {tables.patient.scan(types)} p LEFT JOIN {hospital} h ON p.hospitalid = h.hospitalid
        """,
        "reading stays and hospitals",
        (tables.patient.path, tables.hospital.path),
    )
    if raw["stay"].n_unique() != raw.height:
        raise RequestError(
            f"{tables.patient.path} has a unit stay twice, or {tables.hospital.path} a hospital; "
            "use the files as distributed"
        )
    age = pl.col("age_text").str.strip_chars()
    known = (
        *("gender", "ethnicity", "careunit", "admission_location", "region", "beds", "teaching"),
        *("status", "patient"),
    )
    table = raw.with_columns(pl.col(known).str.strip_chars().replace("", None)).with_columns(
        died=pl.col("status").replace_strict({"Expired": 1, "Alive": 0}, default=None, return_dtype=pl.Int8),
        age=pl.when(age == "> 89").then(OLDEST).otherwise(age.cast(pl.Float64, strict=False)),
        sex=pl.col("gender").replace_strict({"Female": "F", "Male": "M"}, default=None),
        race=race_group("ethnicity"),
        height=_plausible("height", 100, 230),
        weight=_plausible("weight", 20, 400),
    )
    flow = Flow.start(table, "unit stays in patient")
    flow = flow.keep(
        pl.col("hours").is_null() | (pl.col("hours") >= 0), "unit discharge before admission", always=False
    )
    return flow.keep(pl.col("died").is_not_null(), "hospital outcome unknown")


def _plausible(column: str, low: float, high: float) -> pl.Expr:
    """The value, or null where nobody can have it (a height in metres, a weight of 0)."""
    return pl.when(pl.col(column).is_between(low, high)).then(pl.col(column))


def _vitals(duck: DuckSession, tables: _Tables) -> vitals.FirstDay:
    parts = ["SELECT 0 AS stay, 0 AS moment, '' AS signal, 0.0 AS value WHERE false"]
    files = []
    for name, columns in (("periodic", PERIODIC), ("aperiodic", APERIODIC)):
        if name not in tables.found:
            continue
        offsets = dict.fromkeys(("patientunitstayid", "observationoffset"), "BIGINT")
        parts.append(
            f"SELECT patientunitstayid AS stay, observationoffset AS moment, "
            f"unnest({as_list(tuple(columns.values()))}) AS signal, unnest([{', '.join(columns)}]) AS value "
            f"FROM {tables.found[name].scan(dict.fromkeys(columns, 'DOUBLE') | offsets)} "
            f"WHERE observationoffset BETWEEN 0 AND {DAY}"
        )
        files.append(tables.found[name].path)
    events = (
        f"SELECT e.* FROM ({' UNION ALL '.join(parts)}) e JOIN stays ON e.stay = stays.stay "
        "WHERE e.moment <= stays.ends"
    )
    return vitals.summarise(duck, events, "reading vitals", tuple(files))


def _physiology(duck: DuckSession, tables: _Tables) -> pl.DataFrame:
    if "aps" not in tables.found:
        return pl.DataFrame(schema={"stay": pl.Int64} | {name: pl.Float64 for name, _ in APS.values()})
    table = tables.found["aps"]
    types = dict.fromkeys(APS, "DOUBLE") | {"patientunitstayid": "BIGINT"}
    picked = ", ".join(f"max(CASE WHEN {c} <> -1 THEN {c} END) AS {name}" for c, (name, _) in APS.items())
    return duck.frame(
        f"SELECT patientunitstayid AS stay, {picked} FROM {table.scan(types)} GROUP BY patientunitstayid",
        "reading acute physiology",
        (table.path,),
    )


def _comorbidities(duck: DuckSession, tables: _Tables) -> pl.DataFrame | None:
    """(stay, category) of the Charlson categories that were known at 24 hours; None where nobody looked."""
    found: list[pl.DataFrame] = []
    if "diagnosis" in tables.found:
        table = tables.found["diagnosis"]
        types = {"patientunitstayid": "BIGINT", "diagnosisoffset": "BIGINT", "icd9code": "VARCHAR"}
        coded = duck.frame(
            "SELECT DISTINCT stay, trim(unnest(string_split(icd9code, ','))) AS icd_code "
            f"FROM {table.scan(types)} JOIN stays ON patientunitstayid = stay "
            "WHERE diagnosisoffset <= ends AND icd9code IS NOT NULL",
            "reading diagnoses",
            (table.path,),
        ).filter(pl.col("icd_code") != "")
        version = pl.col("icd_code").map_elements(charlson.version_of, return_dtype=pl.Int64)
        found.append(charlson.present(coded.with_columns(icd_version=version)))
    if "history" in tables.found:
        table = tables.found["history"]
        types = dict.fromkeys(("patientunitstayid", "pasthistoryenteredoffset"), "BIGINT")
        written = duck.frame(
            f"SELECT DISTINCT stay, pasthistorypath AS path "
            f"FROM {table.scan(types | {'pasthistorypath': 'VARCHAR'})} "
            "JOIN stays ON patientunitstayid = stay "
            "WHERE pasthistoryenteredoffset <= ends AND pasthistorypath IS NOT NULL",
            "reading past history",
            (table.path,),
        )
        match = [(path, c) for path in written["path"].unique().to_list() for c in history_categories(path)]
        matched = pl.DataFrame(match, schema={"path": pl.String, "category": pl.String}, orient="row")
        found.append(written.join(matched, on="path").select("stay", "category"))
    if "pred" in tables.found:
        table = tables.found["pred"]
        types = dict.fromkeys(PRED, "DOUBLE") | {"patientunitstayid": "BIGINT"}
        noted = duck.frame(
            f"SELECT patientunitstayid AS stay, unnest({as_list(tuple(PRED.values()))}) AS category, "
            f"unnest([{', '.join(PRED)}]) AS flag FROM {table.scan(types)}",
            "reading APACHE comorbidities",
            (table.path,),
        )
        found.append(noted.filter(pl.col("flag") == 1).select("stay", "category"))
    return pl.concat(found).unique() if found else None


def history_categories(path: str) -> tuple[str, ...]:
    """The Charlson categories that a pastHistory path states."""
    text = " ".join(path.split()).lower()
    known: dict[str, list[str]] = shipped("eicu")["paths"]
    return tuple(name for name, parts in known.items() if any(part.lower() in text for part in parts))


def _label_check(duck: DuckSession, tables: _Tables, stays: pl.DataFrame) -> int:
    """How many stays have another hospital outcome in APACHE's results than in patient."""
    if "result" not in tables.found:
        return 0
    table = tables.found["result"]
    scan = table.scan({"patientunitstayid": "BIGINT", "actualhospitalmortality": "VARCHAR"})
    actual = duck.frame(
        f"SELECT DISTINCT patientunitstayid AS stay, upper(actualhospitalmortality) = 'EXPIRED' AS expired "
        f"FROM {scan} WHERE actualhospitalmortality IS NOT NULL",
        "checking outcomes",
        (table.path,),
    )
    both = stays.select("stay", "died").join(actual, on="stay")
    return both.filter((pl.col("died") == 1) != pl.col("expired"))["stay"].n_unique()


def _dictionary(options: EicuOptions) -> list[Variable]:
    origin = "past history, diagnoses and APACHE entries by 24 h or unit discharge"
    return [
        *variables(_COLUMNS),
        *charlson.dictionary(options.charlson, origin),
        *vitals.dictionary("first 24 h"),
        *(
            Variable(name, "feature", unit, f"APACHE {source}: worst value of the first 24 h")
            for source, (name, unit) in APS.items()
        ),
    ]


_COLUMNS = f"""
died | label | 0/1 | hospital discharge status Expired; stays with unknown status are left out
hospital | context | | hospitalid
careunit | context | | unit type
region | context | | region of the hospital; missing where unknown
beds | context | | bed-size category of the hospital; missing where unknown
teaching | context | t/f | teaching hospital
patient | identifier | | uniquepid: one person may have several stays
stay | identifier | | patientunitstayid
admission_year | context | year | year of hospital discharge (the only year that is given)
age | feature | years | age; '> 89' is {OLDEST:g}
sex | feature | F/M | gender
race | feature | | ethnicity in five groups; missing where not recorded
admission_location | feature | | where the patient came from to the unit
height | feature | cm | admission height, if between 100 and 230
weight | feature | kg | admission weight, if between 20 and 400
"""


# --- events beyond vitals: laboratory, coma scale, urine, vasopressors, ventilation of the first day -------
# They fill the tables of abps.cohorts.physiology. The session must hold ``stays`` (stay, weight in kg, ends:
# the last minute that counts). Minutes become seconds.

#: Input -> table, columns that it needs, the column of time, and the one that says when it was entered.
EVENTS: dict[str, tuple[str, tuple[str, ...], str, str | None]] = {
    "labs": ("lab", ("patientunitstayid", "labname", "labresult"), "labresultoffset",
             "labresultrevisedoffset"),
    "gcs": ("nurseCharting", ("patientunitstayid", "nursingchartcelltypevallabel",
            "nursingchartcelltypevalname", "nursingchartvalue"), "nursingchartoffset",
            "nursingchartentryoffset"),
    "urine": ("intakeOutput", ("patientunitstayid", "cellpath", "cellvaluenumeric"), "intakeoutputoffset",
              "intakeoutputentryoffset"),
    "vasopressors": ("infusionDrug", ("patientunitstayid", "drugname", "drugrate", "patientweight"),
                     "infusionoffset", None),
    "ventilation": ("respiratoryCare", ("patientunitstayid", "airwaytype", "ventstartoffset",
                    "ventendoffset"), "respcarestatusoffset", None),
}  # fmt: skip


def _fill(duck: DuckSession, tables: _Tables) -> set[str]:
    """Fill the three tables of the session; which inputs there are."""
    words = shipped("bedside")["eicu"]
    fillers = {"labs": _labs, "gcs": _gcs, "urine": _urine, "vasopressors": _drugs, "ventilation": _breathing}
    for name, filler in fillers.items():
        if name in tables.found:
            table = tables.found[name]
            for sql in filler(tables, words):
                duck.execute(sql, f"reading {table.name}", (table.path,))
    return fillers.keys() & tables.found.keys()


def _breathing(tables: _Tables, words: dict[str, Any]) -> list[str]:
    """Ventilation; 0 stands for "unknown" in both offsets."""
    types = {"airwaytype": "VARCHAR", "ventstartoffset": "BIGINT", "ventendoffset": "BIGINT"}
    return [
        f"""
        INSERT INTO breathing
        SELECT stay,
               CASE WHEN ventstartoffset > 0 THEN least(60 * ventstartoffset, moment) ELSE moment END,
               CASE WHEN ventendoffset > 0 THEN least(greatest(60 * ventendoffset, moment), ends)
                    ELSE moment END
        FROM {tables.scan("ventilation", types)}
        WHERE regexp_matches(lower(airwaytype), {quoted(words["airway"])})
        """
    ]


def _labs(tables: _Tables, words: dict[str, Any]) -> list[str]:
    """The last revision of every value; a moment with two different last values is left out."""
    names = ", ".join(
        f"({quoted(name)}, {quoted(lab.lab)})" for lab in physiology.labs().values() for name in lab.eicu
    )
    revised = "labresultrevisedoffset"
    types = {"labname": "VARCHAR", "labresult": "DOUBLE"}
    has = revised in tables.found["labs"].names
    order = f"coalesce({revised}, 0)" if has else "0"
    return [
        f"""
        INSERT INTO measured
        WITH given AS (
            SELECT stay, moment, lab, labname, labresult AS value, {order} AS revised
            FROM {tables.scan("labs", types | ({revised: "BIGINT"} if has else {}))}
            JOIN (VALUES {names}) AS n (name, lab) ON labname = name
            WHERE labresult IS NOT NULL
        ), last AS (
            SELECT stay, moment, lab, labname, min(value) AS low, max(value) AS high FROM given t
            WHERE revised = (SELECT max(revised) FROM given u
                WHERE u.stay = t.stay AND u.labname = t.labname AND u.moment = t.moment)
            GROUP BY stay, moment, lab, labname
        )
        SELECT stay, moment, lab, low FROM last WHERE low = high
        UNION ALL SELECT stay, moment, 'pao2_arterial', low FROM last WHERE low = high AND lab = 'pao2'
        """,
        "INSERT INTO measured SELECT stay, moment, 'fio2_measured', labresult "
        f"FROM {tables.scan('labs', types)} WHERE labname = 'FiO2'",
    ]


def _gcs(tables: _Tables, words: dict[str, Any]) -> list[str]:
    pairs = ", ".join(f"({quoted(a)}, {quoted(b)})" for a, b in words["gcs_total"])
    label, name, value = EVENTS["gcs"][1][1:]
    return [
        f"INSERT INTO measured SELECT stay, moment, 'gcs_total', try_cast(trim({value}) AS DOUBLE) "
        f"FROM {tables.scan('gcs', dict.fromkeys((label, name, value), 'VARCHAR'))} "
        f"WHERE ({label}, {name}) IN ({pairs})"
    ]


def _urine(tables: _Tables, words: dict[str, Any]) -> list[str]:
    scan = tables.scan("urine", {"cellpath": "VARCHAR", "cellvaluenumeric": "DOUBLE"})
    return [
        f"INSERT INTO measured SELECT stay, moment, 'urine', cellvaluenumeric FROM {scan} "
        f"WHERE regexp_matches(lower(cellpath), {quoted(words['urine_path'])}) "
        f"AND NOT regexp_matches(string_split(lower(cellpath), '|')[-1], {quoted(words['not_urine'])}) "
        "AND cellvaluenumeric IS NOT NULL"
    ]


def _drugs(tables: _Tables, words: dict[str, Any]) -> list[str]:
    """Rates by the unit in the drug's name; other units than µg/kg/min and µg/min have no rate."""
    name = "lower(trim(drugname))"
    # norepinephrine first: its name contains epinephrine's
    which = " ".join(
        f"WHEN regexp_matches({name}, {quoted(p)}) THEN {quoted(d)}" for d, p in words["drugs"].items()
    )
    rate = "try_cast(trim(drugrate) AS DOUBLE)"
    types = {"drugname": "VARCHAR", "drugrate": "VARCHAR", "patientweight": "VARCHAR"}
    return [
        f"""
        INSERT INTO given
        SELECT stay, moment, moment, drug, CASE
            WHEN {name} LIKE '%(mcg/kg/min)%' THEN {rate}
            WHEN {name} LIKE '%(mcg/min)%' THEN {rate} / nullif(coalesce(
                try_cast(trim(patientweight) AS DOUBLE), weight), 0) END
        FROM (SELECT *, CASE {which} END AS drug
              FROM {tables.scan("vasopressors", types)} JOIN (SELECT stay, weight FROM stays) USING (stay))
        WHERE drug IS NOT NULL AND ({rate} IS NULL OR {rate} > 0) AND lower(drugrate) NOT LIKE 'off%'
        """
    ]
