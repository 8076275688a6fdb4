"""First-day vitals: seven signs, each as mean, lowest and highest of the window, as in mimic-code.

A value outside the sign's plausible range does not count, temperatures become °C, values charted at one
moment are averaged first. Sums are taken over whole billionths of a unit, so that the result does not depend
on the order in which threads meet the rows: the same files give the same bits.
"""

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import polars as pl

from abps.cohorts.duck import DuckSession
from abps.cohorts.tidy import Variable, shipped
from abps.core.errors import RequestError

#: Each vital in words.
LABELS = {
    "heart_rate": "heart rate",
    "sbp": "systolic blood pressure",
    "dbp": "diastolic blood pressure",
    "mbp": "mean blood pressure",
    "resp_rate": "respiratory rate",
    "spo2": "oxygen saturation",
    "temperature": "temperature",
}
VITALS = tuple(LABELS)
UNITS = dict(zip(VITALS, ("/min", "mmHg", "mmHg", "mmHg", "/min", "%", "°C")))

#: What a column holds of the values in the window, and the word for it.
SUMMARIES = {"mean": "mean", "min": "lowest", "max": "highest"}

#: Hours from ICU admission: [from, to], both included. ``stay`` is the whole stay (for description only).
WINDOWS: dict[str, tuple[float, float] | None] = {
    "24h": (0.0, 24.0),
    "6h": (0.0, 6.0),
    "12h": (0.0, 12.0),
    "48h": (0.0, 48.0),
    "mimic-code": (-6.0, 24.0),
    "stay": None,
}


@dataclass(frozen=True)
class Signal:
    """One way in which a vital is recorded: where (items), in which unit, and what counts as measured."""

    signal: str
    vital: str
    unit: str
    items: tuple[int, ...]
    low: float
    high: float
    high_included: bool = False


@cache
def signals() -> dict[str, Signal]:
    return {row["signal"]: Signal(**row) for row in shipped("vitals")["signals"]}


def window_of(name: str) -> tuple[float, float] | None:
    if name not in WINDOWS:
        raise RequestError(f"window={name!r}: choose one of {', '.join(WINDOWS)}")
    return WINDOWS[name]


def window_words(name: str) -> str:
    known = {"mimic-code": "6 h before to 24 h after ICU admission", "stay": "whole stay"}
    return known.get(name, f"first {name.removesuffix('h')} h")


def columns() -> list[str]:
    return [f"{vital}_{summary}" for vital in VITALS for summary in SUMMARIES]


def dictionary(when: str) -> list[Variable]:
    """Dictionary lines of the 21 columns.  when: the window in words."""
    return [
        Variable(f"{vital}_{summary}", "feature", UNITS[vital], f"{word} {LABELS[vital]}, {when}")
        for vital in VITALS
        for summary, word in SUMMARIES.items()
    ]


@dataclass(frozen=True, eq=False)
class FirstDay:
    """table: stay and the 21 columns, only stays with any value. dropped, counted: by vital, values out of
    range and used. other_unit: temperatures that look like the other unit."""

    table: pl.DataFrame
    counted: dict[str, int]
    dropped: dict[str, int]
    other_unit: int

    def warnings(self) -> list[str]:
        found = []
        if self.other_unit:
            found.append(
                f"{self.other_unit} temperatures in the window are in the wrong unit for their item (°F "
                "charted as °C or the reverse) and were left out"
            )
        for vital, dropped in self.dropped.items():
            total = dropped + self.counted[vital]
            if dropped > 0.05 * total and total:
                found.append(
                    f"{dropped} of {total} {LABELS[vital]} values in the window ({dropped / total:.0%}) are "
                    "outside the plausible range and were left out; check the unit"
                )
        return found


def summarise(session: DuckSession, events: str, what: str, files: tuple[Path, ...] = ()) -> FirstDay:
    """One streaming pass over events that are already cut to the window: SQL with columns stay, moment,
    signal (a name in :func:`signals`), value."""
    session.table("signal_table", pl.DataFrame([asdict(s) for s in signals().values()]).drop("items"))
    long = session.spool(
        f"""
        WITH judged AS (
            SELECT e.stay, e.moment, t.vital,
                   value > low AND (value < high OR (high_included AND value = high)) AS counts,
                   CAST(round(1e9 * CASE WHEN unit = '°F' THEN (value - 32) / 1.8 ELSE value END) AS HUGEINT)
                       AS nano,
                   (unit = '°C' AND value > 70 AND value < 120) OR (unit = '°F' AND value > 25 AND value < 50)
                       AS other_unit
            FROM ({events}) e JOIN signal_table t ON e.signal = t.signal
            WHERE value IS NOT NULL AND abs(value) < 1e9
        ), moments AS (
            SELECT stay, vital, moment,
                   CAST(round(CAST(sum(nano) FILTER (counts) AS DOUBLE) / count(*) FILTER (counts)) AS BIGINT)
                       AS nano,
                   count(*) FILTER (counts) AS counted,
                   count(*) FILTER (NOT counts) AS dropped,
                   count(*) FILTER (other_unit) AS other_unit
            FROM judged GROUP BY stay, vital, moment
        )
        SELECT stay, vital, CAST(sum(nano) AS DOUBLE) / count(nano) / 1e9 AS mean,
               min(nano) / 1e9 AS min, max(nano) / 1e9 AS max, sum(counted) AS counted,
               sum(dropped) AS dropped, sum(other_unit) AS other_unit
        FROM moments GROUP BY stay, vital
        """,
        "vitals",
        what,
        files,
    )
    wide = ", ".join(f"max({s}) FILTER (vital = '{v}') AS {v}_{s}" for v in VITALS for s in SUMMARIES)
    table = session.frame(
        f"SELECT stay, {wide} FROM {long} WHERE mean IS NOT NULL GROUP BY stay ORDER BY stay", what
    )
    sums = ", ".join(f"CAST(sum({n}) AS BIGINT) AS {n}" for n in ("counted", "dropped", "other_unit"))
    totals = session.frame(f"SELECT vital, {sums} FROM {long} GROUP BY vital", what)
    of = {vital: counts for vital, *counts in totals.iter_rows()}
    counted, dropped, other_unit = ({v: of.get(v, (0, 0, 0))[k] for v in VITALS} for k in range(3))
    return FirstDay(table, counted, dropped, other_unit["temperature"])
