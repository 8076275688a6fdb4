"""PhysioNet/Computing in Cardiology Challenge 2012: 12,000 ICU stays of four ICU types.

Records are text files of (time, parameter, value), in folders set-a, set-b, set-c or in tar archives;
outcomes are in Outcomes-a.txt and so on. −1 means missing.
"""

import io
import math
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import polars as pl

from abps.cohorts import vitals
from abps.cohorts.duck import Progress, silent
from abps.cohorts.stays import keep_ages, no_vitals
from abps.cohorts.tidy import Cohort, Flow, Variable, describe_files, in_order, shipped, variables
from abps.core.errors import RequestError, nearest
from abps.data.roles import Roles

RECIPE = "physionet2012/3"

UNITS = {1: "CCU", 2: "CSRU", 3: "MICU", 4: "SICU"}

#: Parameter -> our name, unit, lowest and highest value that counts.
LABS: dict[str, tuple[str, str, float, float]] = shipped("physionet2012")["labs"]

#: The most urine that one line can be, mL; the column is the sum over the window, not a mean.
MOST_URINE = 11_000


@dataclass(frozen=True)
class PhysionetOptions:
    """hours: how much of the 48 recorded hours is used. Ages: unset, the challenge's own inclusion."""

    hours: float = 24
    min_age: float | None = None
    max_age: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.hours <= 48:
            raise RequestError(f"hours={self.hours:g} must be between 0 and 48 (what was recorded)")


def build(root: Path, options: PhysionetOptions | None = None, progress: Progress = silent) -> Cohort:
    options = options or PhysionetOptions()
    root = Path(root)
    outcome_paths, set_paths = _find(root)
    outcomes = _outcomes(outcome_paths)
    events = _events(set_paths, outcomes.height, progress)
    progress("summarising", 0.0)
    stays = _stays(events, outcomes)
    flow = Flow.start(stays, "ICU stays in the sets", patient=None)
    flow = flow.keep(pl.col("died").is_not_null(), "outcome unknown", always=False)
    flow = flow.keep(pl.col("careunit").is_not_null(), "ICU type unknown", always=False)
    flow = keep_ages(flow, options.min_age, options.max_age)
    inside = events.filter(pl.col("minute") <= options.hours * 60)
    first_day, dropped = _summaries(inside)
    table = flow.table.join(first_day, on="stay", how="left").join(_totals(inside), on="stay", how="left")
    table = table.with_columns(mech_vent=pl.col("mech_vent").fill_null(0))
    dictionary = _dictionary(options)
    without, warnings = no_vitals(table)
    unnamed = int(events["parameter"].is_null().sum())
    absent = outcomes.join(events.select("stay").unique(), on="stay", how="anti").height
    if absent:
        warnings.append(
            f"{absent} of {outcomes.height} outcomes have no record in the sets and are not in the table; "
            "put every set beside its outcomes"
        )
    if unnamed:
        warnings.append(f"{unnamed} lines have no parameter name and were left out")
    progress("summarising", 1.0)
    return Cohort(
        source="physionet2012",
        recipe=RECIPE,
        table=in_order(table, dictionary),
        roles=Roles("died", "careunit", drop=("stay", "set")),
        steps=flow.steps,
        dictionary=tuple(dictionary),
        files=describe_files([*outcome_paths, *(p for p in set_paths if p.is_file())], root, progress),
        options=asdict(options),
        facts={
            "stays_without_vitals": without,
            "values_out_of_range": dropped,
            "lines_without_name": unnamed,
            "outcomes_without_record": absent,
        },
        warnings=tuple(warnings),
    )


def _find(root: Path) -> tuple[list[Path], list[Path]]:
    """Outcome files, and what holds the records: archives, or folders whose set is in no archive."""
    if not root.is_dir():
        raise RequestError(f"{root} is not a folder; give the folder with Outcomes-a.txt and the sets")
    outcomes = sorted(root.glob("Outcomes-[abc].txt"))
    if not outcomes:
        present = [p.name for p in root.iterdir()]
        raise RequestError(
            f"no Outcomes-a.txt (or -b, -c) is in {root}{nearest('Outcomes-a.txt', present)}; "
            "download it from the challenge's page"
        )
    folders = sorted(p for p in root.glob("set-[abc]") if p.is_dir())
    archives = sorted(p for p in root.glob("set-*.tar*") if p.is_file())
    in_folders = {p.name[-1] for p in folders}
    used: list[Path] = [*folders]
    for archive in archives:
        named = set(re.findall(r"(?<=-)[abc](?=[-.])", archive.name))
        if not named <= in_folders:
            used.append(archive)
    if not used:
        raise RequestError(f"no set-a folder or set-a.tar.gz is in {root}; download the records of each set")
    return outcomes, used


def _outcomes(paths: list[Path]) -> pl.DataFrame:
    parts = []
    for path in paths:
        try:
            part = pl.read_csv(path, infer_schema=False)
            for column in ("RecordID", "In-hospital_death"):
                if column not in part.columns:
                    raise RequestError(
                        f"{path} has no column {column!r}{nearest(column, part.columns)}; download it again"
                    )
            stay, died = (pl.col(c).str.strip_chars() for c in ("RecordID", "In-hospital_death"))
            parts.append(
                part.select(stay=stay.cast(pl.Int64), died=died.cast(pl.Int8), set=pl.lit(path.stem[-1]))
            )
        except pl.exceptions.PolarsError as error:
            raise RequestError(
                f"{path} cannot be read as a table of outcomes ({str(error)[:100]}); download it again"
            ) from error
    outcomes = pl.concat(parts)
    if outcomes["stay"].n_unique() != outcomes.height:
        raise RequestError(
            f"a RecordID has two outcomes in {', '.join(map(str, paths))}; download them again"
        )
    return outcomes


def _records(paths: list[Path]) -> Iterator[tuple[str, bytes]]:
    """(name, text) of every record."""
    for path in paths:
        if path.is_dir():
            for file in sorted(path.glob("*.txt")):
                yield str(file), file.read_bytes()
            continue
        try:
            with tarfile.open(path, "r|*") as archive:
                for member in archive:
                    if member.isfile() and re.search(r"(^|/)\d+\.txt$", member.name):
                        stream = archive.extractfile(member)
                        yield f"{path}:{member.name}", stream.read() if stream else b""
        except (tarfile.TarError, EOFError, zlib.error, OSError):
            raise RequestError(f"{path} is cut off or damaged; download it again") from None


def _events(paths: list[Path], expected: int, progress: Progress) -> pl.DataFrame:
    """All lines of all records: stay, minute, parameter, value."""
    header = b"Time,Parameter,Value"
    text = io.BytesIO()
    text.write(header + b"\n")
    seen: set[int] = set()
    for count, (name, content) in enumerate(_records(paths), 1):
        first, _, rest = content.partition(b"\n")
        match = re.search(rb"^00:00,RecordID,(\d+)", rest)
        if first.strip() != header or not match:
            raise RequestError(
                f"{name} is not a record of the challenge (it must begin with Time,Parameter,Value "
                "and RecordID)"
            )
        if int(match[1]) not in seen:  # a set may be there both as a folder and in an archive
            seen.add(int(match[1]))
            text.write(rest if rest.endswith(b"\n") else rest + b"\n")
        if count % 100 == 0:
            progress("reading records", min(1.0, count / expected))
    if not seen:
        raise RequestError(f"no record (like set-a/132539.txt) is in {', '.join(map(str, paths))}")
    try:
        raw = pl.read_csv(
            text.getvalue(),
            schema={"Time": pl.String, "Parameter": pl.String, "Value": pl.Float64},
            null_values=["", "NaN"],
        )
        clock = pl.col("Time").str.split_exact(":", 1)
        return raw.select(
            # a record's first line names it; the lines that follow are its
            stay=pl.when(pl.col("Parameter") == "RecordID")
            .then(pl.col("Value"))
            .forward_fill()
            .cast(pl.Int64),
            minute=clock.struct.field("field_0").cast(pl.Float64) * 60
            + clock.struct.field("field_1").cast(pl.Float64),
            parameter=pl.col("Parameter"),
            value=pl.col("Value"),
        )
    except pl.exceptions.PolarsError:
        raise RequestError(_unreadable(text.getvalue())) from None


def _unreadable(text: bytes) -> str:
    """Which record has a line that is no time, parameter, number; never what the line says."""
    record = "?"
    for line in text.decode("utf-8", errors="replace").splitlines()[1:]:
        cells = line.split(",")
        if len(cells) == 3 and cells[1] == "RecordID":
            record = cells[2]
        try:
            whole = len(cells) == 3 and (cells[2] in ("", "NaN") or math.isfinite(float(cells[2])))
            whole = whole and all(math.isfinite(float(part)) for part in cells[0].split(":"))
        except ValueError:
            whole = False
        if not whole:
            break
    return f"record {record} has a line that is not time, parameter, number; download its set again"


def _stays(events: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """One row per record with what was noted at admission."""
    admission = events.filter(pl.col("minute") == 0)

    def first(parameter: str) -> pl.Expr:
        value = pl.col("value").filter(pl.col("parameter") == parameter).first()
        return pl.when(value >= 0).then(value)

    noted = admission.group_by("stay").agg(
        age=first("Age"),
        gender=first("Gender"),
        height=first("Height"),
        weight=first("Weight"),
        kind=first("ICUType"),
    )
    return noted.join(outcomes, on="stay", how="left").with_columns(
        sex=pl.col("gender").replace_strict({0.0: "F", 1.0: "M"}, default=None, return_dtype=pl.String),
        careunit=pl.col("kind").cast(pl.Int64).replace_strict(UNITS, default=None, return_dtype=pl.String),
        height=pl.when(pl.col("height").is_between(100, 230)).then(pl.col("height")),
        weight=pl.when(pl.col("weight").is_between(20, 400)).then(pl.col("weight")),
    )


def _summaries(events: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Mean, min and max of every vital and laboratory value, and how many values did not count."""
    known = vitals.signals()
    rules = [
        (parameter, known[s].vital, known[s].low, known[s].high, known[s].high_included, False)
        for parameter, s in shipped("physionet2012")["vitals"].items()
    ]
    rules += [(parameter, name, low, high, True, True) for parameter, (name, _, low, high) in LABS.items()]
    schema: dict[str, pl.DataType] = dict.fromkeys(("parameter", "name"), pl.String())
    schema |= {"low": pl.Float64(), "high": pl.Float64(), "high_in": pl.Boolean(), "low_in": pl.Boolean()}
    value = pl.col("value")
    judged = (
        events.join(pl.DataFrame(rules, schema=schema, orient="row"), on="parameter")
        .filter(value != -1)
        .with_columns(
            counts=((value > pl.col("low")) | (pl.col("low_in") & (value == pl.col("low"))))
            & ((value < pl.col("high")) | (pl.col("high_in") & (value == pl.col("high"))))
        )
    )
    out = judged.filter(~pl.col("counts"))["name"].value_counts(sort=True)
    # whole billionths, as in the shared vitals: a sum that does not depend on the order of rows
    nano = (value * 1e9).round().cast(pl.Int64)
    of_name = {name: pl.col("nano").filter(pl.col("name") == name) for name in _names()}
    wide = (
        judged.filter("counts")
        .group_by("stay", "name", "minute")
        .agg(nano=(nano.sum() / pl.len()).round().cast(pl.Int64))
        .group_by("stay")
        .agg(
            *((v.sum() / v.len() / 1e9).fill_nan(None).alias(f"{name}_mean") for name, v in of_name.items()),
            *((v.min() / 1e9).alias(f"{name}_min") for name, v in of_name.items()),
            *((v.max() / 1e9).alias(f"{name}_max") for name, v in of_name.items()),
        )
    )
    return wide, dict(sorted(out.iter_rows()))


def _names() -> list[str]:
    return [*vitals.VITALS, *(name for name, *_ in LABS.values())]


def _totals(events: pl.DataFrame) -> pl.DataFrame:
    """stay, urine_total (mL; null where none was noted) and mech_vent (1: ventilated at some moment)."""
    urine = events.filter(
        (pl.col("parameter") == "Urine") & pl.col("value").is_between(0, MOST_URINE)  # −1 is missing
    )
    nano = (pl.col("value") * 1e9).round().cast(pl.Int64)
    totals = urine.group_by("stay").agg(urine_total=nano.sum() / 1e9)
    breathing = events.filter((pl.col("parameter") == "MechVent") & (pl.col("value") == 1))
    ventilated = breathing.select("stay", mech_vent=pl.lit(1, pl.Int8)).unique()
    return totals.join(ventilated, on="stay", how="full", coalesce=True)


def _dictionary(options: PhysionetOptions) -> list[Variable]:
    when = f"first {options.hours:g} h"
    first_day = vitals.dictionary(when)
    return [
        *variables(_COLUMNS),
        *(replace(c, meaning=c.meaning.replace("oxygen", "arterial oxygen")) for c in first_day),
        *(
            Variable(f"{name}_{s}", "feature", unit, f"{word} {name.replace('_', ' ')}, {when}")
            for name, unit, _, _ in LABS.values()
            for s, word in vitals.SUMMARIES.items()
        ),
        Variable("urine_total", "feature", "mL", f"all urine that was noted, {when}; missing where none was"),
        Variable("mech_vent", "feature", "0/1", f"mechanical ventilation was noted, {when}"),
    ]


_COLUMNS = """
died | label | 0/1 | In-hospital_death
careunit | context | | ICU type: coronary (CCU), cardiac surgery recovery (CSRU), MICU, SICU
set | context | | set of the challenge: a, b or c
stay | identifier | | RecordID
age | feature | years | age (90 for all above)
sex | feature | F/M | gender
height | feature | cm | height at admission, if between 100 and 230
weight | feature | kg | weight at admission, if between 20 and 400
"""
