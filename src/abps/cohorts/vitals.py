"""First-day vitals: seven signs, each as mean, lowest and highest of the window.

The recipe is mimic-code's: a value outside the sign's plausible range does not count, temperatures
become °C, values charted at one moment are averaged first, and the summary is taken over moments.
It is one SQL pass over the events, the same for every source.

Sums are taken over whole billionths of a unit, so that the result does not depend on the order in
which two threads meet the rows: the same files give the same bits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import polars as pl

from abps.cohorts.duck import DuckSession
from abps.core.errors import RequestError

VITALS = ("heart_rate", "sbp", "dbp", "mbp", "resp_rate", "spo2", "temperature")
SUMMARIES = ("mean", "min", "max")
UNITS = dict(zip(VITALS, ("/min", "mmHg", "mmHg", "mmHg", "/min", "%", "°C")))
LABELS = dict(
    zip(
        VITALS,
        (
            "heart rate",
            "systolic blood pressure",
            "diastolic blood pressure",
            "mean blood pressure",
            "respiratory rate",
            "oxygen saturation",
            "temperature",
        ),
    )
)

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

    def counts(self, value: float) -> bool:
        """Whether a value is plausible."""
        return self.low < value < self.high or (self.high_included and value == self.high)


@cache
def signals() -> dict[str, Signal]:
    """The shipped table of signals, by name."""
    text = resources.files("abps.cohorts").joinpath("tables/vitals.json").read_text(encoding="utf-8")
    return {
        row["signal"]: Signal(**{**row, "items": tuple(row["items"])}) for row in json.loads(text)["signals"]
    }


def window_of(name: str) -> tuple[float, float] | None:
    """The hours of a named window."""
    if name not in WINDOWS:
        raise RequestError(f"window={name!r}: choose one of {', '.join(WINDOWS)}")
    return WINDOWS[name]


def window_words(name: str) -> str:
    """A window in the words of a dictionary."""
    known = {"mimic-code": "6 h before to 24 h after ICU admission", "stay": "whole stay"}
    return known.get(name, f"first {name.removesuffix('h')} h")


def columns() -> list[str]:
    """The 21 column names, in order."""
    return [f"{vital}_{summary}" for vital in VITALS for summary in SUMMARIES]


@dataclass(frozen=True, eq=False)
class FirstDay:
    """table: stay and the 21 columns, only stays with any value. dropped: vital -> values out of range.

    counted: vital -> values used. other_unit: temperatures that look like the other unit.
    """

    table: pl.DataFrame
    counted: dict[str, int]
    dropped: dict[str, int]
    other_unit: int

    def warnings(self) -> list[str]:
        """What a reader of the cohort should know about the values that did not count."""
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
    """Summarise events that are already cut to the window.

    events: SQL with columns stay, moment, signal (a name in :func:`signals`), value. One streaming pass.
    """
    rows = [
        {
            "signal": s.signal,
            "vital": s.vital,
            "low": float(s.low),
            "high": float(s.high),
            "included": s.high_included,
            "fahrenheit": s.unit == "°F",
            "celsius": s.unit == "°C",
        }
        for s in signals().values()
    ]
    session.table("signal_table", pl.DataFrame(rows))
    result = session.frame(
        f"""
        WITH judged AS (
            SELECT e.stay, e.moment, t.vital,
                   value > low AND (value < high OR (included AND value = high)) AS counts,
                   CAST(round(1e9 * CASE WHEN fahrenheit THEN (value - 32) / 1.8 ELSE value END) AS HUGEINT)
                       AS nano,
                   (celsius AND value > 70 AND value < 120) OR (fahrenheit AND value > 25 AND value < 50)
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
               min(nano) / 1e9 AS min, max(nano) / 1e9 AS max,
               CAST(sum(counted) AS BIGINT) AS counted, CAST(sum(dropped) AS BIGINT) AS dropped,
               CAST(sum(other_unit) AS BIGINT) AS other_unit
        FROM moments GROUP BY stay, vital
        """,
        what,
        files,
    )
    return _wide(result)


def _wide(long: pl.DataFrame) -> FirstDay:
    """One row per stay from one row per stay and vital."""
    totals = {
        row["vital"]: row
        for row in long.group_by("vital")
        .agg(pl.col("counted", "dropped", "other_unit").sum())
        .iter_rows(named=True)
    }
    wide = long.select("stay").unique().sort("stay")
    for vital in VITALS:
        part = long.filter((pl.col("vital") == vital) & pl.col("mean").is_not_null())
        part = part.select("stay", *(pl.col(s).alias(f"{vital}_{s}") for s in SUMMARIES))
        wide = wide.join(part, on="stay", how="left")
    wide = wide.filter(pl.any_horizontal(pl.col(columns()).is_not_null())).sort("stay")
    return FirstDay(
        table=wide.select("stay", *columns()),
        counted={v: totals.get(v, {}).get("counted", 0) for v in VITALS},
        dropped={v: totals.get(v, {}).get("dropped", 0) for v in VITALS},
        other_unit=totals.get("temperature", {}).get("other_unit", 0),
    )
