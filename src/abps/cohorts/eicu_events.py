"""eICU's events beyond vitals: laboratory, coma scale, urine, vasopressors, ventilation of the first day.

Reads the tables that are there and fills those of :mod:`abps.cohorts.physiology`. The session must hold
``stays`` (stay, ends: the last minute that counts) and ``weights`` (stay, weight in kg). Times in eICU are
minutes from unit admission; here they become seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from abps.cohorts import physiology
from abps.cohorts.duck import CsvTable, Session, open_optional, quoted
from abps.cohorts.mimic_events import CLOCKS
from abps.core.errors import RequestError

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


def open_events(root: Path, inputs: set[str], clock: str) -> tuple[EicuEvents, list[str]]:
    """The tables that hold the inputs, and a warning for each that is absent."""
    if clock not in CLOCKS:
        raise RequestError(f"the clock is {' or '.join(CLOCKS)}, not {clock!r}")
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


def fill(duck: Session, events: EicuEvents, inputs: set[str]) -> set[str]:
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


def _labs(duck: Session, events: EicuEvents, words: dict[str, object]) -> None:
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


def _gcs(duck: Session, events: EicuEvents, words: dict[str, object]) -> None:
    pairs = ", ".join(f"({quoted(a)}, {quoted(b)})" for a, b in words["gcs_total"])  # type: ignore[attr-defined]
    label, name, value = TABLES["gcs"][1][1:]
    duck.execute(
        f"INSERT INTO measured SELECT stay, moment, 'gcs_total', try_cast(trim({value}) AS DOUBLE) "
        f"FROM {events.scan('gcs', dict.fromkeys((label, name, value), 'VARCHAR'))} "
        f"WHERE ({label}, {name}) IN ({pairs})",
        "reading nurseCharting",
        (events.tables["gcs"].path,),
    )


def _urine(duck: Session, events: EicuEvents, words: dict[str, object]) -> None:
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


def _drugs(duck: Session, events: EicuEvents, words: dict[str, object]) -> None:
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
