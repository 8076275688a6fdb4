"""What MEDS events tell between two moments: vitals, laboratory values, coma scale and urine.

An anchor is a subject at a moment, with the first and last instant that count; everything is measured in
seconds from the moment. The tables filled are those of :mod:`abps.cohorts.physiology`.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from abps.cohorts import physiology, vitals
from abps.cohorts.duck import Session
from abps.cohorts.meds_events import CodeMap


def measure(
    duck: Session, events: str, codes: CodeMap, anchors: pl.DataFrame, files: tuple[Path, ...]
) -> tuple[vitals.FirstDay, set[str]]:
    """The vitals of every anchor, the session's tables filled with the rest, and which inputs there are.

    anchors: stay (its number), patient, moment, opens (included) and closes (not included).
    """
    told = [(signal, prefix, 1.0) for signal, many in codes.vitals.items() for prefix in many]
    told += [(lab, prefix, 1.0) for lab, many in codes.labs.items() for prefix in many]
    told += [(part, prefix, 1.0) for part, many in codes.gcs.items() for prefix in many]
    told += [("urine", prefix, 1.0) for prefix in codes.urine]
    told += [("urine", prefix, -1.0) for prefix in codes.irrigant_in]
    duck.table("signal_prefixes", pl.DataFrame(told, schema=["signal", "prefix", "sign"], orient="row"))
    duck.table("anchors", anchors.select("stay", "patient", "moment", "opens", "closes"))
    duck.execute(
        "CREATE OR REPLACE TABLE signal_codes AS SELECT code, min(signal) AS signal, min(sign) AS sign "
        f"FROM (SELECT DISTINCT code FROM {events}) JOIN signal_prefixes ON starts_with(code, prefix) "
        "GROUP BY code",
        "finding the codes of signals",
        files,
    )
    rows = duck.spool(
        f"""
        SELECT a.stay, CAST(date_diff('second', a.moment, e.time) AS BIGINT) AS moment, e.signal,
               e.sign * CAST(e.value AS DOUBLE) AS value
        FROM (SELECT subject_id, CAST(time AS TIMESTAMP) AS time, signal, sign, value
              FROM {events} JOIN signal_codes USING (code)) e
        JOIN anchors a ON e.subject_id = a.patient AND e.time >= a.opens AND e.time < a.closes
        """,
        "measured",
        "reading the events before each moment",
        files,
    )
    known = ", ".join(f"'{name}'" for name in vitals.signals())
    first = vitals.summarise(
        duck, f"(SELECT * FROM {rows} WHERE signal IN ({known}))", "summarising vitals", files
    )
    physiology.empty_tables(duck)
    duck.execute(
        f"INSERT INTO measured SELECT stay, moment, signal, value FROM {rows} WHERE signal NOT IN ({known})",
        "reading laboratory values",
    )
    present = {"labs": codes.labs, "gcs": codes.gcs, "urine": codes.urine}
    return first, {name for name, has in present.items() if has}
