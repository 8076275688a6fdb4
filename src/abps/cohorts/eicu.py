"""eICU Collaborative Research Database: unit stays of many hospitals, each hospital a center.

Hospital mortality from the first 24 hours in the unit. Vitals come from vitalPeriodic and
vitalAperiodic where they are present, the acute physiology of the first day from apacheApsVar, and
comorbidities from what was written down by 24 hours (pastHistory, diagnosis, apachePredVar). Of a stay
that was over earlier, what was entered by unit discharge counts: some entries come later, even after
death, and would leak from the end of the stay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
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
    quoted,
    session,
    silent,
)
from abps.cohorts.stays import StayTable, check_options, chosen, comorbidity_columns, finish, vital_columns
from abps.cohorts.tidy import Cohort, Flow, Variable, race_group
from abps.core.errors import RequestError
from abps.data.roles import Roles

RECIPE = "eicu/2"

DAY = 24 * 60  # minutes: times in eICU are minutes from unit admission

#: "> 89" is all that is known about the oldest.
OLDEST = 90.0

#: apacheApsVar -> our column; −1 is missing there. Worst value of the first 24 hours.
APS = {
    "temperature": ("aps_temperature", "°C"),
    "respiratoryrate": ("aps_resp_rate", "/min"),
    "heartrate": ("aps_heart_rate", "/min"),
    "meanbp": ("aps_mbp", "mmHg"),
    "wbc": ("aps_wbc", "10⁹/L"),
    "sodium": ("aps_sodium", "mmol/L"),
    "ph": ("aps_ph", ""),
    "hematocrit": ("aps_hematocrit", "%"),
    "creatinine": ("aps_creatinine", "mg/dL"),
    "albumin": ("aps_albumin", "g/dL"),
    "pao2": ("aps_pao2", "mmHg"),
    "pco2": ("aps_pco2", "mmHg"),
    "bun": ("aps_bun", "mg/dL"),
    "glucose": ("aps_glucose", "mg/dL"),
    "bilirubin": ("aps_bilirubin", "mg/dL"),
    "fio2": ("aps_fio2", "%"),
    "urine": ("aps_urine", "mL"),
    "eyes": ("aps_gcs_eyes", ""),
    "motor": ("aps_gcs_motor", ""),
    "verbal": ("aps_gcs_verbal", ""),
    "intubated": ("aps_intubated", "0/1"),
    "vent": ("aps_ventilated", "0/1"),
    "dialysis": ("aps_dialysis", "0/1"),
}

#: apachePredVar flags that state a Charlson category. (Its diedinhospital is the label: never read.)
PRED = {
    "aids": "aids",
    "hepaticfailure": "liver_severe",
    "cirrhosis": "liver_mild",
    "lymphoma": "malignancy",
    "leukemia": "malignancy",
    "metastaticcancer": "metastatic_tumor",
    "diabetes": "diabetes_uncomplicated",
}

PERIODIC = {
    "heartrate": "heart_rate",
    "systemicsystolic": "sbp",
    "systemicdiastolic": "dbp",
    "systemicmean": "mbp",
    "respiration": "resp_rate",
    "sao2": "spo2",
    "temperature": "temperature",
}
APERIODIC = {"noninvasivesystolic": "sbp", "noninvasivediastolic": "dbp", "noninvasivemean": "mbp"}

_PATIENT = (
    *("patientunitstayid", "gender", "age", "ethnicity", "hospitalid", "admissionheight", "admissionweight"),
    *("hospitaldischargeyear", "hospitaldischargestatus", "unittype", "unitadmitsource"),
    *("unitdischargeoffset", "uniquepid"),
)
_HOSPITAL = ("hospitalid", "numbedscategory", "teachingstatus", "region")


@dataclass(frozen=True)
class EicuOptions:
    """charlson: 12, 17 or none. Ages: unset by default, eICU's own inclusion.

    features, clock, first_stay: as in :class:`abps.cohorts.mimiciv.MimicOptions`. The first stay is that of
    the earliest year of hospital discharge, the first unit visit, then the lowest number: the release says
    no more.
    """

    charlson: str = "12"
    min_age: float | None = None
    max_age: float | None = None
    min_hours: float = 0
    features: tuple[str, ...] = ()
    clock: str = "charttime"
    first_stay: bool = False

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class _Tables:
    patient: CsvTable
    hospital: CsvTable
    aps: CsvTable | None
    pred: CsvTable | None
    result: CsvTable | None
    diagnosis: CsvTable | None
    history: CsvTable | None
    periodic: CsvTable | None
    aperiodic: CsvTable | None

    @property
    def present(self) -> list[CsvTable]:
        return [t for t in vars(self).values() if t is not None]


def _absent(tables: _Tables) -> list[str]:
    """What is missing because a table is."""
    found = [
        f"{name}.csv.gz is absent: {effect}"
        for name, table, effect in (
            (
                "vitalPeriodic",
                tables.periodic,
                "heart rate, respiration, saturation and temperature are empty",
            ),
            ("vitalAperiodic", tables.aperiodic, "non-invasive blood pressures are missing"),
            ("apacheApsVar", tables.aps, "the aps_ columns are empty"),
            ("diagnosis", tables.diagnosis, "comorbidities rest on history and APACHE alone"),
            ("pastHistory", tables.history, "comorbidities rest on diagnoses and APACHE alone"),
        )
        if table is None
    ]
    if tables.diagnosis is None and tables.history is None and tables.pred is None:
        found.append("diagnosis, pastHistory and apachePredVar are all absent: comorbidities are missing")
    return found


def build(root: Path, options: EicuOptions | None = None, progress: Progress = silent) -> Cohort:
    """Make the cohort from the folder with eICU's tables."""
    options = options or EicuOptions()
    root = Path(root)
    groups = physiology.parse_groups(options.features)
    inputs = physiology.inputs_of(groups)
    tables = _open(root)
    events, absent = _open_events(root, inputs, options.clock)
    warnings = [*_absent(tables), *absent]
    with session(progress) as duck:
        flow = _stays(duck, tables)
        visit = "visit" if "visit" in flow.table.columns else "stay"
        flow = chosen(flow, options, ("admission_year", visit, "stay"))
        # the last minute that counts: 24 hours, or unit discharge if that was earlier
        ends = pl.min_horizontal(pl.lit(DAY, pl.Float64), pl.col("hours") * 60)
        duck.table("stays", flow.table.select("stay", ends=ends))
        first_day = _vitals(duck, tables)
        acute = _physiology(duck, tables)
        comorbid = _comorbidities(duck, tables, flow.table, options)
        disagreeing = _label_check(duck, tables, flow.table)
        table = flow.table
        for part in (first_day.table, acute, comorbid):
            table = table.join(part, on="stay", how="left")
        more = None
        if groups:
            duck.table("weights", flow.table.select("stay", "weight"))
            present = _fill(duck, events, inputs)
            known = table.select("stay", "age", *vitals.columns())
            more = physiology.build(duck, known, groups, present, "first 24 h", "eicu")
    if disagreeing:
        warnings.append(
            f"{disagreeing} stays have another outcome in apachePatientResult than in patient; "
            "patient was used"
        )
    facts = {
        "hospitals": flow.table["hospital"].n_unique(),
        "outcome_disagrees_with_apache": disagreeing,
    }
    found = StayTable(flow, table, first_day, more, warnings, facts)
    drop = ("stay", "careunit", "region", "beds", "teaching")
    roles = Roles("died", "hospital", "patient", "admission_year", drop=drop)
    paths = [*(t.path for t in tables.present), *(t.path for t in events.tables.values())]
    return finish(RECIPE, found, roles, _dictionary(options), options, (paths, root), progress)


def _open(root: Path) -> _Tables:
    folder_of(root, "patient", "eICU (it contains patient.csv.gz)")
    return _Tables(
        patient=open_table(root, "patient", _PATIENT),
        hospital=open_table(root, "hospital", _HOSPITAL),
        aps=open_optional(root, "apacheApsVar", ("patientunitstayid", *APS)),
        pred=open_optional(root, "apachePredVar", ("patientunitstayid", *PRED)),
        result=open_optional(root, "apachePatientResult", ("patientunitstayid", "actualhospitalmortality")),
        diagnosis=open_optional(root, "diagnosis", ("patientunitstayid", "diagnosisoffset", "icd9code")),
        history=open_optional(
            root, "pastHistory", ("patientunitstayid", "pasthistoryenteredoffset", "pasthistorypath")
        ),
        periodic=open_optional(root, "vitalPeriodic", ("patientunitstayid", "observationoffset", *PERIODIC)),
        aperiodic=open_optional(
            root, "vitalAperiodic", ("patientunitstayid", "observationoffset", *APERIODIC)
        ),
    )


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
    parts, files = [], []
    for table, columns in ((tables.periodic, PERIODIC), (tables.aperiodic, APERIODIC)):
        if table is None:
            continue
        types = dict.fromkeys(columns, "DOUBLE") | {
            "patientunitstayid": "BIGINT",
            "observationoffset": "BIGINT",
        }
        parts.append(
            f"SELECT patientunitstayid AS stay, observationoffset AS moment, "
            f"unnest({as_list(tuple(columns.values()))}) AS signal, unnest([{', '.join(columns)}]) AS value "
            f"FROM {table.scan(types)} WHERE observationoffset BETWEEN 0 AND {DAY}"
        )
        files.append(table.path)
    if not parts:
        empty = pl.DataFrame(schema={"stay": pl.Int64} | dict.fromkeys(vitals.columns(), pl.Float64))
        return vitals.FirstDay(empty, dict.fromkeys(vitals.VITALS, 0), dict.fromkeys(vitals.VITALS, 0), 0)
    events = (
        f"SELECT e.* FROM ({' UNION ALL '.join(parts)}) e JOIN stays ON e.stay = stays.stay "
        "WHERE e.moment <= stays.ends"
    )
    return vitals.summarise(duck, events, "reading vitals", tuple(files))


def _physiology(duck: DuckSession, tables: _Tables) -> pl.DataFrame:
    """The acute physiology of the first day, one row per stay."""
    if tables.aps is None:
        return pl.DataFrame(schema={"stay": pl.Int64} | {name: pl.Float64 for name, _ in APS.values()})
    types = dict.fromkeys(APS, "DOUBLE") | {"patientunitstayid": "BIGINT"}
    picked = ", ".join(f"max(CASE WHEN {c} <> -1 THEN {c} END) AS {name}" for c, (name, _) in APS.items())
    return duck.frame(
        f"SELECT patientunitstayid AS stay, {picked} FROM {tables.aps.scan(types)} "
        "GROUP BY patientunitstayid",
        "reading acute physiology",
        (tables.aps.path,),
    )


def _comorbidities(
    duck: DuckSession, tables: _Tables, stays: pl.DataFrame, options: EicuOptions
) -> pl.DataFrame:
    """Charlson flags from everything that was known at 24 hours."""
    found: list[pl.DataFrame] = []  # stay, category
    if tables.diagnosis is not None:
        scan = tables.diagnosis.scan(
            {"patientunitstayid": "BIGINT", "diagnosisoffset": "BIGINT", "icd9code": "VARCHAR"}
        )
        coded = duck.frame(
            f"SELECT DISTINCT stay, trim(unnest(string_split(icd9code, ','))) AS code FROM {scan} "
            "JOIN stays ON patientunitstayid = stay WHERE diagnosisoffset <= ends AND icd9code IS NOT NULL",
            "reading diagnoses",
            (tables.diagnosis.path,),
        ).filter(pl.col("code") != "")
        match = [
            (code, category)
            for code in coded["code"].unique().to_list()
            for category in charlson.categories_of(charlson.normal(code), charlson.version_of(code))
        ]
        matched = pl.DataFrame(match, schema={"code": pl.String, "category": pl.String}, orient="row")
        found.append(coded.join(matched, on="code").select("stay", "category"))
    if tables.history is not None:
        offsets = dict.fromkeys(("patientunitstayid", "pasthistoryenteredoffset"), "BIGINT")
        scan = tables.history.scan(offsets | {"pasthistorypath": "VARCHAR"})
        written = duck.frame(
            f"SELECT DISTINCT stay, pasthistorypath AS path FROM {scan} "
            "JOIN stays ON patientunitstayid = stay "
            "WHERE pasthistoryenteredoffset <= ends AND pasthistorypath IS NOT NULL",
            "reading past history",
            (tables.history.path,),
        )
        match = [(path, c) for path in written["path"].unique().to_list() for c in history_categories(path)]
        matched = pl.DataFrame(match, schema={"path": pl.String, "category": pl.String}, orient="row")
        found.append(written.join(matched, on="path").select("stay", "category"))
    if tables.pred is not None:
        types = dict.fromkeys(PRED, "DOUBLE") | {"patientunitstayid": "BIGINT"}
        noted = duck.frame(
            f"SELECT patientunitstayid AS stay, unnest({as_list(tuple(PRED.values()))}) AS category, "
            f"unnest([{', '.join(PRED)}]) AS flag FROM {tables.pred.scan(types)}",
            "reading APACHE comorbidities",
            (tables.pred.path,),
        )
        found.append(noted.filter(pl.col("flag") == 1).select("stay", "category"))
    result = stays.select("stay")
    columns = charlson.table().columns(options.charlson)
    if not found:  # nobody looked: unknown, which is not the same as healthy
        return result.with_columns(pl.lit(None, pl.Int8).alias(name) for name in columns)
    every = pl.concat(found).unique()
    for name, parts in columns.items():
        having = every.filter(pl.col("category").is_in(list(parts)))["stay"].unique()
        result = result.with_columns(pl.col("stay").is_in(having.implode()).cast(pl.Int8).alias(name))
    return result


def history_categories(path: str) -> tuple[str, ...]:
    """The Charlson categories that a pastHistory path states."""
    text = " ".join(path.split()).lower()
    return tuple(
        category
        for category, parts in _history_table().items()
        if any(part.lower() in text for part in parts)
    )


def _history_table() -> dict[str, list[str]]:
    text = resources.files("abps.cohorts").joinpath("tables/eicu_history.json").read_text(encoding="utf-8")
    table: dict[str, list[str]] = json.loads(text)["paths"]
    return table


def _label_check(duck: DuckSession, tables: _Tables, stays: pl.DataFrame) -> int:
    """How many stays have another hospital outcome in APACHE's results than in patient."""
    if tables.result is None:
        return 0
    scan = tables.result.scan({"patientunitstayid": "BIGINT", "actualhospitalmortality": "VARCHAR"})
    actual = duck.frame(
        f"SELECT DISTINCT patientunitstayid AS stay, upper(actualhospitalmortality) = 'EXPIRED' AS expired "
        f"FROM {scan} WHERE actualhospitalmortality IS NOT NULL",
        "checking outcomes",
        (tables.result.path,),
    )
    both = stays.select("stay", "died").join(actual, on="stay")
    return both.filter((pl.col("died") == 1) != pl.col("expired"))["stay"].n_unique()


def _dictionary(options: EicuOptions) -> list[Variable]:
    return [
        Variable(
            "died",
            "label",
            "0/1",
            "hospital discharge status Expired; stays with unknown status are left out",
        ),
        Variable("hospital", "context", "", "hospitalid"),
        Variable("careunit", "context", "", "unit type"),
        Variable("region", "context", "", "region of the hospital; missing where unknown"),
        Variable("beds", "context", "", "bed-size category of the hospital; missing where unknown"),
        Variable("teaching", "context", "t/f", "teaching hospital"),
        Variable("patient", "identifier", "", "uniquepid: one person may have several stays"),
        Variable("stay", "identifier", "", "patientunitstayid"),
        Variable(
            "admission_year", "context", "year", "year of hospital discharge (the only year that is given)"
        ),
        Variable("age", "feature", "years", f"age; '> 89' is {OLDEST:g}"),
        Variable("sex", "feature", "F/M", "gender"),
        Variable("race", "feature", "", "ethnicity in five groups; missing where not recorded"),
        Variable("admission_location", "feature", "", "where the patient came from to the unit"),
        Variable("height", "feature", "cm", "admission height, if between 100 and 230"),
        Variable("weight", "feature", "kg", "admission weight, if between 20 and 400"),
        *comorbidity_columns(
            options.charlson, "past history, diagnoses and APACHE entries by 24 h or unit discharge"
        ),
        *vital_columns("first 24 h"),
        *(
            Variable(name, "feature", unit, f"APACHE {source}: worst value of the first 24 h")
            for source, (name, unit) in APS.items()
        ),
    ]


# --- events beyond vitals: laboratory, coma scale, urine, vasopressors, ventilation of the first day -------
# They fill the tables of abps.cohorts.physiology. The session must hold ``stays`` (stay, ends: the last
# minute that counts) and ``weights`` (stay, weight in kg). Minutes become seconds.

#: Input -> table, columns that it needs, the column of time, and the one that says when it was entered.
TABLES: dict[str, tuple[str, tuple[str, ...], str, str | None]] = {
    "labs": (
        "lab",
        ("patientunitstayid", "labname", "labresult"),
        "labresultoffset",
        "labresultrevisedoffset",
    ),
    "gcs": (
        "nurseCharting",
        (
            "patientunitstayid",
            "nursingchartcelltypevallabel",
            "nursingchartcelltypevalname",
            "nursingchartvalue",
        ),
        "nursingchartoffset",
        "nursingchartentryoffset",
    ),
    "urine": (
        "intakeOutput",
        ("patientunitstayid", "cellpath", "cellvaluenumeric"),
        "intakeoutputoffset",
        "intakeoutputentryoffset",
    ),
    "vasopressors": (
        "infusionDrug",
        ("patientunitstayid", "drugname", "drugrate", "patientweight"),
        "infusionoffset",
        None,
    ),
    "ventilation": (
        "respiratoryCare",
        ("patientunitstayid", "airwaytype", "ventstartoffset", "ventendoffset"),
        "respcarestatusoffset",
        None,
    ),
}


@dataclass(frozen=True)
class EicuEvents:
    """The optional tables that were found, by input."""

    tables: dict[str, CsvTable]
    clock: str

    def scan(self, name: str, types: dict[str, str]) -> str:
        """SQL with stay, moment (seconds), ends and the columns of ``types``, cut to the first day."""
        _, _, time, entered = TABLES[name]
        known = {entered: "BIGINT"} if entered and self.clock == "storetime" else {}
        stored = f" AND {entered} <= stays.ends" if known else ""
        columns = {"patientunitstayid": "BIGINT", time: "BIGINT", **types, **known}
        return (
            f"(SELECT stays.stay, 60 * {time} AS moment, 60 * CAST(stays.ends AS BIGINT) AS ends, "
            f"{', '.join(types)} FROM {self.tables[name].scan(columns)} "
            f"JOIN stays ON patientunitstayid = stays.stay WHERE {time} BETWEEN 0 AND stays.ends{stored})"
        )


def _open_events(root: Path, inputs: set[str], clock: str) -> tuple[EicuEvents, list[str]]:
    """The tables that hold the inputs, and a warning for each that is absent."""
    found, warnings = {}, []
    for name, (table, columns, time, entered) in TABLES.items():
        if name not in inputs:
            continue
        wanted = (*columns, time, *([entered] if entered and clock == "storetime" else []))
        opened = open_optional(root, table, wanted)
        if opened is None:
            warnings.append(f"{table}.csv.gz is absent: there are no {name} columns from it")
        else:
            found[name] = opened
    return EicuEvents(found, clock), warnings


def _fill(duck: DuckSession, events: EicuEvents, inputs: set[str]) -> set[str]:
    """Fill the three tables of the session; which inputs there are."""
    physiology.empty_tables(duck)
    words = physiology.bedside()["eicu"]
    for name, work in (("labs", _labs), ("gcs", _gcs), ("urine", _urine), ("vasopressors", _drugs)):
        if name in events.tables:
            work(duck, events, words)
    if "ventilation" in events.tables:
        types = {"airwaytype": "VARCHAR", "ventstartoffset": "BIGINT", "ventendoffset": "BIGINT"}
        # 0 stands for "unknown" in both offsets
        duck.execute(
            f"""
            INSERT INTO breathing
            SELECT stay,
                   CASE WHEN ventstartoffset > 0 THEN least(60 * ventstartoffset, moment) ELSE moment END,
                   CASE WHEN ventendoffset > 0 THEN least(greatest(60 * ventendoffset, moment), ends)
                        ELSE moment END
            FROM {events.scan("ventilation", types)}
            WHERE regexp_matches(lower(airwaytype), {quoted(words["airway"])})
            """,
            "reading respiratoryCare",
            (events.tables["ventilation"].path,),
        )
    return set(events.tables)


def _labs(duck: DuckSession, events: EicuEvents, words: dict[str, object]) -> None:
    """The last revision of every value; a moment with two different last values is left out."""
    names = ", ".join(
        f"({quoted(name)}, {quoted(lab.lab)})" for lab in physiology.labs().values() for name in lab.eicu
    )
    revised = "labresultrevisedoffset"
    types = {"labname": "VARCHAR", "labresult": "DOUBLE"}
    has = revised in events.tables["labs"].names
    if has:
        types[revised] = "BIGINT"
    order = f"coalesce({revised}, 0)" if has else "0"
    duck.execute(
        f"""
        INSERT INTO measured
        WITH given AS (
            SELECT stay, moment, lab, labname, labresult AS value, {order} AS revised
            FROM {events.scan("labs", types)} JOIN (VALUES {names}) AS n (name, lab) ON labname = name
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
        "reading lab",
        (events.tables["labs"].path,),
    )
    duck.execute(
        f"INSERT INTO measured SELECT stay, moment, 'fio2_measured', labresult "
        f"FROM {events.scan('labs', {'labname': 'VARCHAR', 'labresult': 'DOUBLE'})} WHERE labname = 'FiO2'",
        "reading lab",
        (events.tables["labs"].path,),
    )


def _gcs(duck: DuckSession, events: EicuEvents, words: dict[str, object]) -> None:
    pairs = ", ".join(f"({quoted(a)}, {quoted(b)})" for a, b in words["gcs_total"])  # type: ignore[attr-defined]
    label, name, value = TABLES["gcs"][1][1:]
    duck.execute(
        f"INSERT INTO measured SELECT stay, moment, 'gcs_total', try_cast(trim({value}) AS DOUBLE) "
        f"FROM {events.scan('gcs', dict.fromkeys((label, name, value), 'VARCHAR'))} "
        f"WHERE ({label}, {name}) IN ({pairs})",
        "reading nurseCharting",
        (events.tables["gcs"].path,),
    )


def _urine(duck: DuckSession, events: EicuEvents, words: dict[str, object]) -> None:
    path, no = quoted(str(words["urine_path"])), quoted(str(words["not_urine"]))
    scan = events.scan("urine", {"cellpath": "VARCHAR", "cellvaluenumeric": "DOUBLE"})
    duck.execute(
        f"INSERT INTO measured SELECT stay, moment, 'urine', cellvaluenumeric FROM {scan} "
        f"WHERE regexp_matches(lower(cellpath), {path}) "
        f"AND NOT regexp_matches(string_split(lower(cellpath), '|')[-1], {no}) "
        "AND cellvaluenumeric IS NOT NULL",
        "reading intakeOutput",
        (events.tables["urine"].path,),
    )


def _drugs(duck: DuckSession, events: EicuEvents, words: dict[str, object]) -> None:
    """Rates by the unit in the drug's name; other units than µg/kg/min and µg/min have no rate."""
    drugs: dict[str, str] = words["drugs"]  # type: ignore[assignment]
    name = "lower(trim(drugname))"
    # norepinephrine first: its name contains epinephrine's
    which = " ".join(f"WHEN regexp_matches({name}, {quoted(p)}) THEN {quoted(d)}" for d, p in drugs.items())
    rate = "try_cast(trim(drugrate) AS DOUBLE)"
    types = {"drugname": "VARCHAR", "drugrate": "VARCHAR", "patientweight": "VARCHAR"}
    duck.execute(
        f"""
        INSERT INTO given
        SELECT stay, moment, moment, drug, CASE
            WHEN {name} LIKE '%(mcg/kg/min)%' THEN {rate}
            WHEN {name} LIKE '%(mcg/min)%' THEN {rate} / nullif(coalesce(
                try_cast(trim(patientweight) AS DOUBLE), weight), 0) END
        FROM (SELECT *, CASE {which} END AS drug
              FROM {events.scan("vasopressors", types)} JOIN weights USING (stay))
        WHERE drug IS NOT NULL AND ({rate} IS NULL OR {rate} > 0) AND lower(drugrate) NOT LIKE 'off%'
        """,
        "reading infusionDrug",
        (events.tables["vasopressors"].path,),
    )
