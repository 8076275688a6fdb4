"""The cohort of ICU stays from MEDS events (Parquet): hospital death, as from MIMIC-IV's own tables.

A map says which codes carry what; one for MIMIC-IV is shipped. MEDS has no stay identifiers: an event belongs
to the stay during which it happened, else to the nearer one; laboratory values go by their time alone. A
discharge ends the last admission before it; an admission followed by another one before any discharge has
none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import msgspec
import polars as pl

from abps.cohorts import charlson, physiology, vitals
from abps.cohorts.duck import DuckSession, Progress, quoted, session, silent
from abps.cohorts.stays import StayOptions, chosen, combine, finish, short_unit, window_bounds
from abps.cohorts.tidy import Cohort, Flow, Variable, fractional_year, race_group, shipped, variables
from abps.core.errors import RequestError, nearest
from abps.data.roles import Roles

RECIPE = "meds/2"


@dataclass(frozen=True, kw_only=True)
class MedsOptions(StayOptions):
    """map_file: the code map, unset the shipped one. features: labs, gcs and urine are in that one."""

    map_file: str | None = None


@dataclass(frozen=True)
class _Events:
    """Event files in a session: SQL that reads them (subject_id, time, code, value)."""

    duck: DuckSession
    sql: str
    files: tuple[Path, ...]

    def starting(self, prefix: str, name: str) -> pl.DataFrame:
        """Events whose code begins with a prefix: patient, time and what follows the prefix."""
        if not prefix:
            return pl.DataFrame(schema={"patient": pl.Int64, "time": pl.Datetime("us"), name: pl.String})
        return self.duck.frame(
            "SELECT subject_id AS patient, CAST(time AS TIMESTAMP) AS time, "
            f"code[{len(prefix) + 1}:] AS {name} FROM {self.sql} WHERE starts_with(code, {quoted(prefix)})",
            f"reading {name.replace('_', ' ')}",
            self.files,
        )

    def of_signals(self, prefixes: list[tuple[str, str, float]]) -> str:
        """SQL with subject_id, time, signal and value (times sign) of codes, by (signal, prefix, sign)."""
        schema = {"signal": pl.String, "prefix": pl.String, "sign": pl.Float64}
        self.duck.table("prefixes", pl.DataFrame(prefixes, schema=schema, orient="row"))
        self.duck.execute(
            "CREATE OR REPLACE TABLE signal_codes AS SELECT code, min(signal) AS signal, min(sign) AS sign "
            f"FROM (SELECT DISTINCT code FROM {self.sql}) JOIN prefixes ON starts_with(code, prefix) "
            "GROUP BY code",
            "finding the codes of signals",
            self.files,
        )
        return (
            "(SELECT subject_id, CAST(time AS TIMESTAMP) AS time, signal, "
            f"sign * CAST(value AS DOUBLE) AS value FROM {self.sql} JOIN signal_codes USING (code))"
        )


def build(source: Path, options: MedsOptions | None = None, progress: Progress = silent) -> Cohort:
    options = options or MedsOptions()
    codes = read_map(options.map_file)
    paths = find_events(source)
    with session(progress) as duck:
        events = _Events(duck, events_sql(paths), tuple(paths))
        flow = chosen(icu_stays(events, codes), options)
        first_day = _vitals(events, codes, flow, options)
        coded, warnings = _comorbidities(events, codes, flow.table, options)
        found = combine(
            duck, flow, first_day, [coded], options, lambda: _measure(events, codes, flow, options), "mimiciv"
        )
    for name in sorted(physiology.inputs_of(options.groups) - codes.inputs):
        warnings.append(f"events of this map have no {name}: there are no columns of it")
    for name, prefix in (("sex", codes.sex), ("race", codes.race), ("insurance", codes.insurance)):
        if found.table[name].null_count() == found.table.height:
            where = f"no event in time has a code that begins with {prefix!r}"
            warnings.append(f"{name} is empty: {where if prefix else 'the code map names no code for it'}")
    roles = Roles("died", "careunit", "patient", "admission_year", drop=("stay",))
    root = Path(source) if Path(source).is_dir() else Path(source).parent
    made = finish(RECIPE, found, roles, _dictionary(options), options, (paths, root, progress), warnings)
    return replace(made, options={**made.options, "code_map": asdict(codes)})


def _vitals(events: _Events, codes: CodeMap, flow: Flow, options: MedsOptions) -> vitals.FirstDay:
    """Events of the window, each with the stay during which it happened."""
    prefixes = [(signal, prefix, 1.0) for signal, many in codes.vitals.items() for prefix in many]
    signals = events.of_signals(prefixes)
    opens, closes = window_bounds(options.window)
    previous_out = pl.col("outtime").shift(1).over("patient")
    # the hour between two stays goes to the nearer one: half way from the last exit to this entry
    border = (previous_out + (pl.col("intime") - previous_out) / 2).fill_null(pl.datetime(1, 1, 1))
    stays = flow.table.sort("patient", "intime").select(
        "stay", "patient", border=border, opens=opens, closes=closes
    )
    events.duck.table("stays", stays)
    return vitals.summarise(
        events.duck,
        f"""
        SELECT s.stay, e.time AS moment, e.signal, e.value FROM {signals} e
        ASOF JOIN stays s ON e.subject_id = s.patient AND e.time >= s.border
        WHERE e.time >= s.opens AND e.time <= s.closes
        """,
        "reading vitals",
        events.files,
    )


def _measure(events: _Events, codes: CodeMap, flow: Flow, options: MedsOptions) -> set[str]:
    """Fill the session's tables with what is beyond vitals, both ends of the window included."""
    many = codes.labs | codes.gcs | {"urine": codes.urine}
    prefixes = [(signal, prefix, 1.0) for signal, each in many.items() for prefix in each]
    signals = events.of_signals([*prefixes, *(("urine", prefix, -1.0) for prefix in codes.irrigant_in)])
    opens, closes = window_bounds(options.window)
    events.duck.table("stays", flow.table.select("stay", "patient", "intime", opens=opens, closes=closes))
    events.duck.execute(
        f"""
        INSERT INTO measured
        SELECT s.stay, CAST(date_diff('second', s.intime, e.time) AS BIGINT), e.signal, e.value
        FROM {signals} e
        JOIN stays s ON e.subject_id = s.patient AND e.time >= s.opens AND e.time <= s.closes
        """,
        "reading laboratory values",
        events.files,
    )
    return codes.inputs


def _comorbidities(
    events: _Events, codes: CodeMap, stays: pl.DataFrame, options: MedsOptions
) -> tuple[pl.DataFrame, list[str]]:
    """Charlson flags from the diagnosis events between hospital admission and discharge (or before)."""
    if options.diagnoses == "none":
        return stays.select("stay"), []
    coded = [
        events.starting(prefix, "icd_code").with_columns(icd_version=pl.lit(version, pl.Int16))
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
        .select("stay", "icd_code", "icd_version")
        .unique()
    )
    made = charlson.flags(charlson.present(matched), stays["stay"], options.charlson)
    return made, charlson.lost_zeros(matched)


def _dictionary(options: MedsOptions) -> list[Variable]:
    origins = (
        "diagnosis events of this admission (coded at discharge)",
        "diagnosis events before this admission",
    )
    return [*variables(_COLUMNS), *options.columns(origins)]


_COLUMNS = """
died | label | 0/1 | left the hospital dead (a discharge code named in the map)
careunit | context | | care unit of the ICU admission event, short name
patient | identifier | | subject_id
stay | identifier | | running number by patient and time of ICU admission
admission_year | context | year | ICU admission
age | feature | years | completed years from the birth event to ICU admission
sex | feature | | sex as in the source
race | feature | | race in five groups, as on record at ICU admission
admission_type | feature | | type of hospital admission
admission_location | feature | | where the patient came from
insurance | feature | | insurance, as on record at ICU admission
"""


@dataclass(frozen=True)
class CodeMap:
    """Beginnings of codes, by what they carry. Optional ones are empty where the source has none."""

    source: str
    birth: str
    sex: str
    icu_admission: str
    icu_discharge: str
    hospital_admission: str
    hospital_discharge: str
    died: tuple[str, ...]
    vitals: dict[str, tuple[str, ...]]
    diagnosis: dict[int, str]
    race: str = ""
    insurance: str = ""
    labs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gcs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    urine: tuple[str, ...] = ()
    irrigant_in: tuple[str, ...] = ()

    @property
    def inputs(self) -> set[str]:
        return {name for name in ("labs", "gcs", "urine") if getattr(self, name)}


def read_map(path: str | None) -> CodeMap:
    """A code map from a JSON file, or the one shipped for MIMIC-IV."""
    try:
        data = shipped("meds_mimiciv") if path is None else msgspec.json.decode(Path(path).read_bytes())
        made = msgspec.convert(data, CodeMap, str_keys=True)
        entries = {f.name for f in fields(CodeMap)} | {"about"}
        odd = next((name for name in data if name not in entries), None)
        if odd is not None:
            raise ValueError(f"unknown entry {odd!r}{nearest(odd, entries)}")
    except OSError as error:
        raise RequestError(f"cannot read the code map {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the code map {path} is not what it should be ({error}); "
            "start from the shipped meds_mimiciv.json"
        ) from None
    known: dict[str, Iterable[str]] = {
        "vital": vitals.signals(),
        "lab": physiology.labs(),
        "part of the coma scale": ("gcs_motor", "gcs_verbal", "gcs_eyes", "gcs_total"),
    }
    for (kind, names), mapped in zip(known.items(), (made.vitals, made.labs, made.gcs)):
        for name in mapped:
            if name not in names:
                raise RequestError(
                    f"the code map {path} names an unknown {kind} {name!r}{nearest(name, names)}; "
                    f"known are {', '.join(names)}"
                )
    return made


def find_events(source: Path) -> list[Path]:
    """The event files of a MEDS folder (``data/**/*.parquet``, or Parquet files in it), or one file."""
    source = Path(source)
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise RequestError(f"{source} does not exist; give a MEDS folder or a Parquet file of MEDS events")
    found = sorted((source / "data").glob("**/*.parquet")) or sorted(source.glob("*.parquet"))
    if not found:
        raise RequestError(
            f"no Parquet file is in {source} or {source / 'data'}; give a folder of MEDS events"
        )
    return found


def events_sql(paths: list[Path]) -> str:
    value = check_columns(paths)
    listed = "[" + ", ".join(quoted(str(p)) for p in paths) + "]"
    # identifiers without a sign are joined with those that have one
    return (
        f"(SELECT CAST(subject_id AS BIGINT) AS subject_id, time, code, {value} AS value "
        f"FROM read_parquet({listed}))"
    )


def check_columns(paths: list[Path]) -> str:
    """The name of the column with numbers; every file must have the columns of the format."""
    value = "numeric_value"
    for path in paths:
        try:
            columns = pl.read_parquet_schema(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            why = str(error).partition("\n")[0]
            raise RequestError(f"{path} is not a readable Parquet file ({why}); copy it again") from None
        for column in ("subject_id", "time", "code"):
            if column not in columns:
                raise RequestError(
                    f"{path} has no column {column!r}{nearest(column, columns)}; MEDS events have "
                    "subject_id, time, code and numeric_value"
                )
        value = next((name for name in ("numeric_value", "value") if name in columns), "")
        if not value:
            raise RequestError(
                f"{path} has no column 'numeric_value' (or 'value'); it has {', '.join(columns)}"
            )
        forms = {
            "subject_id": (columns["subject_id"].is_integer(), "whole numbers"),
            "time": (columns["time"] in (pl.Date, pl.Datetime, pl.Null), "times"),
            "code": (columns["code"] in (pl.String, pl.Categorical, pl.Enum), "text"),
            value: (columns[value].is_numeric() or columns[value] == pl.Null, "numbers"),
        }
        for column, (fits, what) in forms.items():
            if not fits:
                raise RequestError(f"{path}: {column} holds {columns[column]}, not {what}; write it again")
    return value


def icu_stays(events: _Events, codes: CodeMap) -> Flow:
    """ICU stays: each admission with the next discharge, in the hospital stay that overlaps it most."""
    enter = events.starting(codes.icu_admission, "careunit_name")
    leave = events.starting(codes.icu_discharge, "left_to")
    if enter.height == 0:
        raise RequestError(
            f"no event code begins with {codes.icu_admission!r} (icu_admission of the code map) in "
            f"{events.files[0]}; give the code map of this source (map=FILE)"
        )
    stays = (
        ended(enter.rename({"time": "intime"}), leave.rename({"time": "outtime"}))
        .with_row_index("stay", offset=1)
        .with_columns(pl.col("stay").cast(pl.Int64))
    )
    hospital = hospital_stays(events, codes)
    overlap = (
        # an admission without a discharge reaches to the next one (min_horizontal leaves nulls out)
        pl.min_horizontal(pl.col("outtime").fill_null(pl.col("intime")), "dischtime", "next_admittime")
        - pl.max_horizontal("intime", "admittime")
    ).dt.total_seconds()
    best = (
        stays.join(hospital, on="patient")
        .with_columns(overlap=overlap)
        .filter(pl.col("overlap") >= 0)
        .sort("stay", "overlap", "admittime", descending=[False, True, False])
        .unique("stay", keep="first", maintain_order=True)
    )
    extra = ["admittime", "dischtime", "admission_type", "admission_location", "discharge"]
    table = stays.join(best.select("stay", *extra), on="stay", how="left")
    birth = events.starting(codes.birth, "birth").group_by("patient").agg(birth=pl.col("time").min())
    table = table.join(birth, on="patient", how="left")
    for name, prefix in (("sex", codes.sex), ("race_text", codes.race), ("insurance", codes.insurance)):
        known = events.starting(prefix, name)
        table = table.join(on_record(known, stays, name), on="stay", how="left")

    def day(column: str) -> pl.Expr:  # of the year, such that 1 March is the same day in every year
        return pl.col(column).dt.month().cast(pl.Int32) * 100 + pl.col(column).dt.day()

    before_birthday = day("intime") < day("birth")
    table = table.with_columns(
        died=pl.when(pl.col("discharge").is_null())
        .then(None)
        .otherwise(pl.col("discharge").is_in([d.removeprefix(codes.hospital_discharge) for d in codes.died]))
        .cast(pl.Int8),
        careunit=short_unit(pl.col("careunit_name")),
        age=(pl.col("intime").dt.year() - pl.col("birth").dt.year() - before_birthday.cast(pl.Int32)).cast(
            pl.Float64
        ),
        admission_year=fractional_year("intime"),
        race=race_group("race_text"),
    )
    flow = Flow.start(table, "ICU admissions among the events")
    flow = flow.keep(pl.col("outtime").is_not_null(), "ICU discharge missing", always=False)
    return flow.keep(pl.col("died").is_not_null(), "hospital outcome unknown", always=False)


def hospital_stays(events: _Events, codes: CodeMap) -> pl.DataFrame:
    """Hospital admissions with the next discharge; the admission's code holds its type and location."""
    admitted = events.starting(codes.hospital_admission, "admission")
    left = events.starting(codes.hospital_discharge, "discharge")
    parts = pl.col("admission").str.split("//")

    def known(part: pl.Expr) -> pl.Expr:
        return pl.when(part.is_in(["", "UNK"])).then(None).otherwise(part)

    return ended(admitted.rename({"time": "admittime"}), left.rename({"time": "dischtime"})).with_columns(
        admission_type=known(parts.list.get(0, null_on_oob=True)),
        admission_location=known(parts.list.get(1, null_on_oob=True)),
    )


def ended(starts: pl.DataFrame, ends: pl.DataFrame) -> pl.DataFrame:
    """Every start with the first end after it, unless another start of the patient comes before that end.

    starts and ends: patient, a time (the second column), and one more. An end at the very moment of a start
    is that of the one before (a transfer). Adds the next start (``next_`` and the name of the start's time).
    """
    begun, over = starts.columns[1], ends.columns[1]
    paired = (
        starts.drop_nulls(begun)
        .sort("patient", begun, starts.columns[2])
        .with_columns(pl.col(begun).shift(-1).over("patient").alias(f"next_{begun}"))
        .join_asof(
            ends.drop_nulls(over).sort("patient", over, ends.columns[2]),
            left_on=begun,
            right_on=over,
            by="patient",
            strategy="forward",
            allow_exact_matches=False,
            check_sortedness=False,
            coalesce=False,
        )
    )
    following = pl.col(f"next_{begun}")
    own = following.is_null() | (pl.col(over) <= following)
    return paired.with_columns(
        pl.when(own).then(pl.col(name)).alias(name) for name in ends.columns if name != "patient"
    )


def on_record(known: pl.DataFrame, stays: pl.DataFrame, name: str) -> pl.DataFrame:
    """stay, name: the last value known by ICU admission (one without a time always was); later ones never."""
    known = known.with_columns(pl.col("time").fill_null(pl.datetime(1, 1, 1))).sort("patient", "time", name)
    return (
        stays.select("stay", "patient", "intime")
        .sort("patient", "intime")
        .join_asof(
            known,
            left_on="intime",
            right_on="time",
            by="patient",
            strategy="backward",
            check_sortedness=False,
        )
        .select("stay", name)
    )
