"""eICU Collaborative Research Database: unit stays of many hospitals, each hospital a center.

Hospital mortality from the first 24 hours in the unit. Vitals come from vitalPeriodic and
vitalAperiodic where they are present, the acute physiology of the first day from apacheApsVar, and
comorbidities from what was written down by 24 hours (pastHistory, diagnosis, apachePredVar). Of a stay
that was over earlier, what was entered by unit discharge counts: some entries come later, even after
death, and would leak from the end of the stay.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import polars as pl

from abps.cohorts import charlson, eicu_events, physiology, provenance, vitals
from abps.cohorts.duck import (
    CsvTable,
    Progress,
    Session,
    as_list,
    folder_of,
    open_optional,
    open_table,
    session,
    silent,
)
from abps.cohorts.tidy import (
    Cohort,
    Flow,
    Variable,
    comorbidity_columns,
    in_order,
    keep_ages,
    keep_first,
    race_group,
    vital_columns,
)
from abps.core.errors import RequestError
from abps.data.synthetic.builtin import Roles

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
    *(
        "hospitaldischargeyear",
        "hospitaldischargestatus",
        "unittype",
        "unitadmitsource",
        "unitdischargeoffset",
    ),
    "uniquepid",
)


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
        physiology.parse_groups(self.features)
        charlson.table().columns(self.charlson)


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
    events, absent = eicu_events.open_events(root, inputs, options.clock)
    warnings = [*_absent(tables), *absent]
    with session(progress) as duck:
        flow = _stays(duck, tables)
        if options.first_stay:
            visit = "visit" if "visit" in flow.table.columns else "stay"
            flow = keep_first(flow, ("admission_year", visit, "stay"))
        flow = keep_ages(flow, options.min_age, options.max_age)
        if options.min_hours:
            flow = flow.keep(
                pl.col("hours") >= options.min_hours, f"unit stay shorter than {options.min_hours:g} h"
            )
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
            present = eicu_events.fill(duck, events, inputs)
            known = table.select("stay", "age", *vitals.columns())
            more = physiology.build(duck, known, groups, present, "first 24 h", "eicu")
            table = table.join(more.table, on="stay", how="left")
    without = table.filter(pl.all_horizontal(pl.col(vitals.columns()).is_null())).height
    if without:
        warnings.append(
            f"{without} stays have no vital sign in the first 24 h; they stay in, with missing values"
        )
    if disagreeing:
        warnings.append(
            f"{disagreeing} stays have another outcome in apachePatientResult than in patient; "
            "patient was used"
        )
    dictionary = [*_dictionary(options), *(more.dictionary if more else ())]
    paths = [*(t.path for t in tables.present), *(t.path for t in events.tables.values())]
    return Cohort(
        source="eicu",
        recipe=RECIPE,
        table=in_order(table, dictionary),
        roles=Roles(
            "died",
            "hospital",
            "patient",
            "admission_year",
            drop=("stay", "careunit", "region", "beds", "teaching"),
        ),
        steps=flow.steps,
        dictionary=tuple(dictionary),
        files=provenance.describe_files(paths, root, progress),
        options=asdict(options),
        facts={
            "hospitals": flow.table["hospital"].n_unique(),
            "stays_without_vitals": without,
            "vital_values_used": first_day.counted,
            "vital_values_out_of_range": first_day.dropped,
            "outcome_disagrees_with_apache": disagreeing,
            **({"lab_values_out_of_range": more.dropped} if more else {}),
        },
        warnings=(*warnings, *first_day.warnings()),
    )


def _open(root: Path) -> _Tables:
    folder_of(root, "patient", "eICU (it contains patient.csv.gz)")
    return _Tables(
        patient=open_table(root, "patient", _PATIENT),
        hospital=open_table(root, "hospital", ("hospitalid", "numbedscategory", "teachingstatus", "region")),
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


def _stays(duck: Session, tables: _Tables) -> Flow:
    types = dict.fromkeys(_PATIENT, "VARCHAR") | {
        "patientunitstayid": "BIGINT",
        "hospitalid": "BIGINT",
        "admissionheight": "DOUBLE",
        "admissionweight": "DOUBLE",
        "hospitaldischargeyear": "DOUBLE",
        "unitdischargeoffset": "DOUBLE",
    }
    hospital = tables.hospital.scan(
        {
            "hospitalid": "BIGINT",
            "numbedscategory": "VARCHAR",
            "teachingstatus": "VARCHAR",
            "region": "VARCHAR",
        }
    )
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
        "gender",
        "ethnicity",
        "careunit",
        "admission_location",
        "region",
        "beds",
        "teaching",
        "status",
        "patient",
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


def _vitals(duck: Session, tables: _Tables) -> vitals.FirstDay:
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


def _physiology(duck: Session, tables: _Tables) -> pl.DataFrame:
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


def _comorbidities(duck: Session, tables: _Tables, stays: pl.DataFrame, options: EicuOptions) -> pl.DataFrame:
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
        scan = tables.history.scan(
            {
                "patientunitstayid": "BIGINT",
                "pasthistoryenteredoffset": "BIGINT",
                "pasthistorypath": "VARCHAR",
            }
        )
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


def _label_check(duck: Session, tables: _Tables, stays: pl.DataFrame) -> int:
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
        *vital_columns("24h"),
        *(
            Variable(name, "feature", unit, f"APACHE {source}: worst value of the first 24 h")
            for source, (name, unit) in APS.items()
        ),
    ]
