"""Beyond vitals: laboratory values, coma scale, urine, vasopressors, ventilation, SOFA and SAPS II.

The definitions are the public concepts of mimic-code and eicu-code; ranges and item numbers are shipped
tables. A source fills three tables of the session with what happened in the window, times in seconds from
ICU admission, and everything after that is the same for every source:

    measured (stay, moment, signal, value)      a laboratory value or something charted
    given (stay, starts, ends, drug, rate)      a vasopressor; rate in µg/kg/min, null where not known
    breathing (stay, starts, ends)              invasive ventilation

Nothing from outside the window is looked at, not even to carry a value forward.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import polars as pl

from abps.cohorts.duck import DuckSession
from abps.cohorts.tidy import Variable
from abps.core.errors import RequestError, nearest

#: What can be added to the vitals, and what each is made from.
GROUPS = {
    "labs": "laboratory values, lowest and highest",
    "gcs": "lowest Glasgow coma scale",
    "urine": "urine of the window",
    "vasopressors": "highest rates of vasopressors",
    "ventilation": "invasive ventilation",
    "sofa": "SOFA, six parts and sum",
    "saps2": "SAPS II, thirteen parts and sum",
}

DRUGS = ("norepinephrine", "epinephrine", "dopamine", "dobutamine", "vasopressin", "phenylephrine")

#: The drugs that SOFA grades by rate.
GRADED = DRUGS[:4]

HOUR = 3600


@dataclass(frozen=True)
class Lab:
    """One laboratory value: unit, what counts (above low, at most high), and where sources keep it."""

    lab: str
    unit: str
    low: float
    high: float
    mimiciv: tuple[int, ...]
    eicu: tuple[str, ...]
    omop: tuple[int, ...]
    eicu_range: tuple[float, float] | None = None


def _shipped(name: str) -> Any:
    text = resources.files("abps.cohorts").joinpath(f"tables/{name}.json").read_text(encoding="utf-8")
    return json.loads(text)


@cache
def labs() -> dict[str, Lab]:
    """The shipped table of laboratory values, by name."""
    made = {}
    for row in _shipped("labs")["labs"]:
        lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
        made[row["lab"]] = Lab(**{**row, **lists})
    return made


@cache
def bedside() -> dict[str, Any]:
    """The shipped table of what is charted beyond vitals."""
    table: dict[str, Any] = _shipped("bedside")
    return table


def parse_groups(names: Iterable[str]) -> tuple[str, ...]:
    """Groups by name, in the order of :data:`GROUPS`; ``all`` is every one."""
    wanted = set(names)
    if "all" in wanted:
        return tuple(GROUPS)
    for name in wanted:
        if name not in GROUPS:
            raise RequestError(
                f"there are no features {name!r}{nearest(name, GROUPS)}; there are {', '.join(GROUPS)}, all"
            )
    return tuple(name for name in GROUPS if name in wanted)


def inputs_of(groups: Iterable[str]) -> set[str]:
    """What must be read for some groups: labs, gcs, urine, vasopressors, ventilation."""
    scores = {"sofa", "saps2"} & set(groups)
    return set(groups) - scores | (
        {"labs", "gcs", "urine", "vasopressors", "ventilation"} if scores else set()
    )


@dataclass(frozen=True, eq=False)
class Physiology:
    """table: stay and the new columns. dropped: lab -> values out of range."""

    table: pl.DataFrame
    dictionary: tuple[Variable, ...]
    dropped: dict[str, int]


def empty_tables(duck: DuckSession) -> None:
    """The three tables, without rows."""
    duck.table(
        "measured",
        pl.DataFrame(schema={"stay": pl.Int64, "moment": pl.Int64, "signal": pl.String, "value": pl.Float64}),
    )
    schema = {"stay": pl.Int64, "starts": pl.Int64, "ends": pl.Int64}
    duck.table("given", pl.DataFrame(schema={**schema, "drug": pl.String, "rate": pl.Float64}))
    duck.table("breathing", pl.DataFrame(schema=schema))


def build(
    duck: DuckSession, stays: pl.DataFrame, groups: tuple[str, ...], present: set[str], when: str, source: str
) -> Physiology:
    """Columns of the groups for stays (stay, age, and the vitals that are known).

    present: the inputs that the source has; a group whose input is absent gets no columns, a part of a score
    without its input is missing. when: the window in words. source: mimiciv, eicu, … for the ranges.
    """
    table = stays.select("stay")
    measured, dropped = _labs(duck, source)
    parts = {
        "labs": measured,
        "gcs": _gcs(duck),
        "urine": duck.frame(
            "SELECT stay, CAST(sum(CAST(round(1e6 * value) AS HUGEINT)) AS DOUBLE) / 1e6 AS urine_total "
            "FROM measured WHERE signal = 'urine' AND abs(value) < 1e6 GROUP BY stay",
            "adding up urine",
        ),
        "vasopressors": _drugs(duck),
        "ventilation": duck.frame(
            "SELECT DISTINCT stay, 1 AS ventilated FROM breathing", "reading ventilation"
        ),
    }
    for part in parts.values():
        table = table.join(part, on="stay", how="left")
    if "vasopressors" in present:  # no infusion on record is none given
        rates = [
            pl.when(pl.col(f"{d}_given").is_null()).then(0.0).otherwise(pl.col(f"{d}_max")) for d in DRUGS
        ]
        table = table.with_columns(*(rate.alias(f"{d}_max") for d, rate in zip(DRUGS, rates)))
        given = pl.any_horizontal(pl.col(f"{d}_given") == 1 for d in DRUGS).fill_null(False)
        table = table.with_columns(vasopressor=given.cast(pl.Int8))
    else:
        table = table.with_columns(vasopressor=pl.lit(None, pl.Int8))
    if "ventilation" in present:
        table = table.with_columns(pl.col("ventilated").fill_null(0))
    table = table.with_columns(pl.col("ventilated").cast(pl.Int8))
    table = table.join(_oxygen(duck), on="stay", how="left").join(stays, on="stay", how="left")
    table = table.with_columns(**_sofa(), **_saps2())
    table = table.with_columns(
        sofa=pl.sum_horizontal(pl.col(c).fill_null(0) for c in _sofa()),
        saps2=pl.sum_horizontal(pl.col(c).fill_null(0) for c in _saps2()),
    )
    dictionary = _dictionary(groups, present, when)
    return Physiology(table.select("stay", *(c.name for c in dictionary)).sort("stay"), dictionary, dropped)


def _labs(duck: DuckSession, source: str) -> tuple[pl.DataFrame, dict[str, int]]:
    """stay and lab_min, lab_max of every lab, and how many values did not count."""
    rows = [
        {
            "lab": lab.lab,
            "low": float(lab.eicu_range[0] if lab.eicu_range and source == "eicu" else lab.low),
            "high": float(lab.eicu_range[1] if lab.eicu_range and source == "eicu" else lab.high),
            "low_in": lab.eicu_range is not None and source == "eicu" and lab.eicu_range[0] > 0,
        }
        for lab in labs().values()
    ]
    duck.table("lab_table", pl.DataFrame(rows))
    counts = "(value > low OR (low_in AND value = low)) AND value <= high"
    long = duck.frame(
        f"""
        SELECT stay, lab, min(value) FILTER ({counts}) AS min, max(value) FILTER ({counts}) AS max,
               count(*) FILTER (NOT ({counts})) AS dropped
        FROM measured JOIN lab_table ON signal = lab WHERE value IS NOT NULL GROUP BY stay, lab
        """,
        "summarising laboratory values",
    )
    wide = long.select("stay").unique()
    for name in labs():
        part = long.filter((pl.col("lab") == name) & pl.col("min").is_not_null())
        wide = wide.join(
            part.select("stay", pl.col("min").alias(f"{name}_min"), pl.col("max").alias(f"{name}_max")),
            on="stay",
            how="left",
        )
    dropped = long.group_by("lab").agg(pl.col("dropped").sum()).filter(pl.col("dropped") > 0).sort("lab")
    return wide, dict(dropped.iter_rows())


def _gcs(duck: DuckSession) -> pl.DataFrame:
    """stay, gcs_min: the lowest sum; a part that was not charted is the last one of 6 hours, or normal.

    Where the verbal answer is impossible (intubated: 0) the scale counts as 15: sedated patients are scored
    as they were before sedation.
    """
    return duck.frame(
        f"""
        WITH base AS (
            SELECT stay, moment,
                   max(value) FILTER (signal = 'gcs_motor' AND value BETWEEN 1 AND 6) AS m,
                   max(value) FILTER (signal = 'gcs_verbal' AND value BETWEEN 0 AND 5) AS v,
                   max(value) FILTER (signal = 'gcs_eyes' AND value BETWEEN 1 AND 4) AS e
            FROM measured WHERE signal IN ('gcs_motor', 'gcs_verbal', 'gcs_eyes') GROUP BY stay, moment
        ), paired AS (
            SELECT *, lag(moment) OVER w > moment - 6 * {HOUR} AS recent,
                   lag(m) OVER w AS m0, lag(v) OVER w AS v0, lag(e) OVER w AS e0
            FROM base WINDOW w AS (PARTITION BY stay ORDER BY moment)
        ), last AS (
            SELECT stay, m, v, e, CASE WHEN recent THEN m0 END AS m0, CASE WHEN recent THEN v0 END AS v0,
                   CASE WHEN recent THEN e0 END AS e0
            FROM paired WHERE coalesce(m, v, e) IS NOT NULL
        ), scored AS (
            SELECT stay, CASE
                WHEN v = 0 OR (v IS NULL AND v0 = 0) THEN 15
                WHEN v0 = 0 THEN coalesce(m, 6) + coalesce(v, 5) + coalesce(e, 4)
                ELSE coalesce(m, m0, 6) + coalesce(v, v0, 5) + coalesce(e, e0, 4)
            END AS gcs FROM last
            UNION ALL
            SELECT stay, value FROM measured WHERE signal = 'gcs_total' AND value BETWEEN 3 AND 15
        )
        SELECT stay, CAST(min(gcs) AS DOUBLE) AS gcs_min FROM scored GROUP BY stay
        """,
        "scoring coma scales",
    )


def _drugs(duck: DuckSession) -> pl.DataFrame:
    """stay, and for every drug whether it was given and its highest rate (null where no rate is known)."""
    picked = ", ".join(
        f"max(rate) FILTER (drug = '{d}') AS {d}_max, max(1) FILTER (drug = '{d}') AS {d}_given"
        for d in DRUGS
    )
    return duck.frame(f"SELECT stay, {picked} FROM given GROUP BY stay", "reading vasopressors")


def _oxygen(duck: DuckSession) -> pl.DataFrame:
    """stay, pf_ventilated, pf_other: the lowest PaO₂/FiO₂ (mmHg) with and without invasive ventilation.

    The inspired fraction is the one given with the blood gas, or the last one charted in the 4 hours before.
    """
    return duck.frame(
        f"""
        WITH gas AS (
            SELECT stay, moment, value AS po2 FROM measured
            WHERE signal = 'pao2_arterial' AND value > 0 AND value <= 800
        ), given AS (
            SELECT stay, moment, max(CASE WHEN value > 20 AND value <= 100 THEN value
                                          WHEN value > 0.2 AND value <= 1 THEN 100 * value END) AS fio2
            FROM measured WHERE signal = 'fio2_measured' GROUP BY stay, moment
        ), charted AS (
            SELECT * FROM (
                SELECT stay, moment, max(CASE WHEN value >= 20 AND value <= 100 THEN value
                                              WHEN value > 0.2 AND value <= 1 THEN 100 * value END) AS fio2
                FROM measured WHERE signal = 'fio2_charted' GROUP BY stay, moment
            ) WHERE fio2 IS NOT NULL
        ), joined AS (
            SELECT g.stay, g.moment, g.po2, coalesce(t.fio2,
                CASE WHEN g.moment - c.moment <= 4 * {HOUR} THEN c.fio2 END) AS fio2
            FROM gas g LEFT JOIN given t ON g.stay = t.stay AND g.moment = t.moment
            ASOF LEFT JOIN charted c ON g.stay = c.stay AND g.moment >= c.moment
        ), ratio AS (
            SELECT stay, 100 * po2 / fio2 AS pf, EXISTS (
                SELECT 1 FROM breathing b
                WHERE b.stay = j.stay AND j.moment >= b.starts AND j.moment <= b.ends) AS ventilated
            FROM joined j WHERE fio2 IS NOT NULL
        )
        SELECT stay, min(pf) FILTER (ventilated) AS pf_ventilated, min(pf) FILTER (NOT ventilated) AS pf_other
        FROM ratio GROUP BY stay
        """,
        "reading blood gases",
    )


# --- scores -----------------------------------------------------------------------------------------


def _points(known: pl.Expr, *cases: tuple[pl.Expr, int]) -> pl.Expr:
    """The points of the first case that holds; 0 where none does and something is known; else missing."""
    result = pl.when(known).then(0).otherwise(None)
    for condition, points in reversed(cases):
        result = pl.when(condition).then(points).otherwise(result)
    return result.cast(pl.Int8)


def _known(*columns: str) -> pl.Expr:
    return pl.any_horizontal(pl.col(c).is_not_null() for c in columns)


def _sofa() -> dict[str, pl.Expr]:
    """The six parts (Vincent et al. 1996) on the worst values of the window."""
    c = pl.col
    strong = [pl.col("norepinephrine_max"), pl.col("epinephrine_max")]
    given = {d: c(f"{d}_given") == 1 for d in GRADED}
    return {
        "sofa_respiration": _points(
            _known("pf_ventilated", "pf_other"),
            (c("pf_ventilated") < 100, 4),
            (c("pf_ventilated") < 200, 3),
            ((c("pf_other") < 300) | (c("pf_ventilated") < 300), 2),
            ((c("pf_other") < 400) | (c("pf_ventilated") < 400), 1),
        ),
        "sofa_coagulation": _points(
            _known("platelets_min"),
            *((c("platelets_min") < top, 4 - i) for i, top in enumerate((20, 50, 100, 150))),
        ),
        "sofa_liver": _points(
            _known("bilirubin_max"),
            *((c("bilirubin_max") >= low, 4 - i) for i, low in enumerate((12, 6, 2, 1.2))),
        ),
        # a drug whose rate is not known counts as its lowest grade
        "sofa_cardiovascular": _points(
            _known("mbp_min", "vasopressor"),
            ((c("dopamine_max") > 15) | (strong[0] > 0.1) | (strong[1] > 0.1), 4),
            ((c("dopamine_max") > 5) | given["norepinephrine"] | given["epinephrine"], 3),
            (given["dopamine"] | given["dobutamine"], 2),
            (c("mbp_min") < 70, 1),
        ),
        "sofa_cns": _points(
            _known("gcs_min"), *((c("gcs_min") < top, 4 - i) for i, top in enumerate((6, 10, 13, 15)))
        ),
        "sofa_renal": _points(
            _known("creatinine_max", "urine_total"),
            ((c("creatinine_max") >= 5) | (c("urine_total") < 200), 4),
            ((c("creatinine_max") >= 3.5) | (c("urine_total") < 500), 3),
            (c("creatinine_max") >= 2, 2),
            (c("creatinine_max") >= 1.2, 1),
        ),
    }


def _saps2() -> dict[str, pl.Expr]:
    """The parts (Le Gall et al. 1993) that the first day shows; not chronic disease and type of admission."""
    c = pl.col
    return {
        "saps2_age": _points(
            _known("age"),
            *((c("age") >= low, p) for low, p in ((80, 18), (75, 16), (70, 15), (60, 12), (40, 7))),
        ),
        "saps2_heart_rate": _points(
            _known("heart_rate_max"),
            (c("heart_rate_min") < 40, 11),
            (c("heart_rate_max") >= 160, 7),
            (c("heart_rate_max") >= 120, 4),
            (c("heart_rate_min") < 70, 2),
        ),
        "saps2_sbp": _points(
            _known("sbp_min"), (c("sbp_min") < 70, 13), (c("sbp_min") < 100, 5), (c("sbp_max") >= 200, 2)
        ),
        "saps2_temperature": _points(_known("temperature_max"), (c("temperature_max") >= 39, 3)),
        "saps2_oxygen": pl.when(c("pf_ventilated") < 100)
        .then(11)
        .when(c("pf_ventilated") < 200)
        .then(9)
        .when(c("pf_ventilated").is_not_null())
        .then(6)
        .otherwise(None)
        .cast(pl.Int8),
        "saps2_urine": _points(
            _known("urine_total"), (c("urine_total") < 500, 11), (c("urine_total") < 1000, 4)
        ),
        "saps2_bun": _points(_known("bun_max"), (c("bun_max") >= 84, 10), (c("bun_max") >= 28, 6)),
        "saps2_wbc": _points(_known("wbc_max"), (c("wbc_min") < 1, 12), (c("wbc_max") >= 20, 3)),
        "saps2_potassium": _points(
            _known("potassium_max"), ((c("potassium_min") < 3) | (c("potassium_max") >= 5), 3)
        ),
        "saps2_sodium": _points(
            _known("sodium_max"), (c("sodium_min") < 125, 5), (c("sodium_max") >= 145, 1)
        ),
        "saps2_bicarbonate": _points(
            _known("bicarbonate_min"), (c("bicarbonate_min") < 15, 6), (c("bicarbonate_min") < 20, 3)
        ),
        "saps2_bilirubin": _points(
            _known("bilirubin_max"), (c("bilirubin_max") >= 6, 9), (c("bilirubin_max") >= 4, 4)
        ),
        "saps2_gcs": _points(
            _known("gcs_min"), *((c("gcs_min") < top, p) for top, p in ((6, 26), (9, 13), (11, 7), (14, 5)))
        ),
    }


def _dictionary(groups: tuple[str, ...], present: set[str], when: str) -> tuple[Variable, ...]:
    columns: list[Variable] = []
    if "labs" in groups and "labs" in present:
        for lab in labs().values():
            name = lab.lab.replace("_", " ")
            columns += [
                Variable(f"{lab.lab}_min", "feature", lab.unit, f"lowest {name}, {when}"),
                Variable(f"{lab.lab}_max", "feature", lab.unit, f"highest {name}, {when}"),
            ]
    if "gcs" in groups and "gcs" in present:
        columns.append(
            Variable("gcs_min", "feature", "", f"lowest Glasgow coma scale, {when}; intubated is 15")
        )
    if "urine" in groups and "urine" in present:
        columns.append(
            Variable("urine_total", "feature", "mL", f"urine, {when}; missing where none was noted")
        )
    if "vasopressors" in groups and "vasopressors" in present:
        columns += [
            Variable(
                f"{d}_max", "feature", "µg/kg/min", f"highest rate of {d}, {when}; 0 where none was given"
            )
            for d in GRADED
        ]
        columns.append(Variable("vasopressor", "feature", "0/1", f"any of {', '.join(DRUGS)}, {when}"))
    if "ventilation" in groups and "ventilation" in present:
        columns.append(Variable("ventilated", "feature", "0/1", f"invasive ventilation, {when}"))
    if "sofa" in groups:
        columns += [
            Variable(
                name, "feature", "points", f"SOFA {name.split('_')[1]}, {when}; missing without its values"
            )
            for name in _sofa()
        ]
        columns.append(Variable("sofa", "feature", "points", f"SOFA, {when}; a missing part counts 0"))
    if "saps2" in groups:
        columns += [
            Variable(
                name,
                "feature",
                "points",
                f"SAPS II {name.split('_', 1)[1].replace('_', ' ')}, {when}; missing without its values",
            )
            for name in _saps2()
        ]
        columns.append(
            Variable(
                "saps2",
                "feature",
                "points",
                f"SAPS II without chronic disease and type of admission, {when}; a missing part counts 0",
            )
        )
    return tuple(columns)
