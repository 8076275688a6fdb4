"""MIMIC-IV's events beyond vitals: laboratory, coma scale, urine, vasopressors, ventilation.

Reads the tables that are there and fills those of :mod:`abps.cohorts.physiology`. The session must hold
``stays`` (stay, patient, intime, opens, closes, lab_opens, lab_closes): the window of every stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from abps.cohorts import physiology, vitals
from abps.cohorts.duck import CsvTable, Session, as_list, open_optional
from abps.core.errors import RequestError

#: Whether a value counts from when it was measured, or only once it was stored.
CLOCKS = ("charttime", "storetime")

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


def open_events(
    root: Path, chartevents: CsvTable, inputs: set[str], clock: str
) -> tuple[MimicEvents, list[str]]:
    """The tables that hold the inputs, and a warning for each that is absent."""
    if clock not in CLOCKS:
        raise RequestError(f"the clock is {' or '.join(CLOCKS)}, not {clock!r}")
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


def charted(duck: Session, events: MimicEvents, inputs: set[str]) -> str:
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


def fill(duck: Session, events: MimicEvents, rows: str, inputs: set[str]) -> set[str]:
    """Fill the three tables from ``rows`` (of :func:`charted`) and the optional tables; what there is."""
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


def _labs(duck: Session, events: MimicEvents, rows: str) -> None:
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


def _drugs(duck: Session, events: MimicEvents) -> None:
    """Infusions that overlap the window, in µg/kg/min."""
    table = events.tables["vasopressors"]
    drugs = physiology.bedside()["mimiciv"]["drugs"]
    items = [(item, drug) for drug, many in drugs.items() for item in many]
    duck.table(
        "drug_items", pl.DataFrame(items, schema={"itemid": pl.Int32, "drug": pl.String}, orient="row")
    )
    types = {
        "stay_id": "BIGINT",
        "starttime": "TIMESTAMP",
        "endtime": "TIMESTAMP",
        "itemid": "INTEGER",
        "rate": "DOUBLE",
        "rateuom": "VARCHAR",
        "patientweight": "DOUBLE",
    }
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


def _procedures(duck: Session, events: MimicEvents) -> None:
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


def _settings(duck: Session, rows: str) -> None:
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
