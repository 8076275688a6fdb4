"""Beyond vitals: laboratory values, coma scale, urine, vasopressors, ventilation, SOFA and SAPS II.

The definitions are the public concepts of mimic-code and eicu-code; ranges and item numbers are shipped
tables. A source fills three tables of the session with what happened in the window, times in seconds from
ICU admission, and everything after that is the same for every source:

    measured (stay, moment, signal, value)      a laboratory value or something charted
    given (stay, starts, ends, drug, rate)      a vasopressor; rate in µg/kg/min, null where not known
    breathing (stay, starts, ends)              invasive ventilation

Nothing from outside the window is looked at, not even to carry a value forward.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import msgspec
import polars as pl

from abps.cohorts.duck import DuckSession
from abps.cohorts.tidy import Variable, shipped
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

#: The scores among them, and what their sums are called.
SCORES = {"sofa": "SOFA", "saps2": "SAPS II without chronic disease and type of admission"}

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

    def counted(self, source: str) -> tuple[float, float, bool]:
        """The lowest and the highest value that count, and whether the lowest one does itself."""
        if source != "eicu" or self.eicu_range is None:
            return self.low, self.high, False
        return *self.eicu_range, self.eicu_range[0] > 0


@cache
def labs() -> dict[str, Lab]:
    return {lab.lab: lab for lab in msgspec.convert(shipped("labs")["labs"], list[Lab])}


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
    return set(groups) - SCORES.keys() | (
        GROUPS.keys() - SCORES.keys() if SCORES.keys() & set(groups) else set()
    )


@dataclass(frozen=True, eq=False)
class Physiology:
    """table: stay and the new columns. dropped: lab -> values out of range."""

    table: pl.DataFrame
    dictionary: tuple[Variable, ...]
    dropped: dict[str, int]


def empty_tables(duck: DuckSession) -> None:
    for table in (
        "measured (stay BIGINT, moment BIGINT, signal VARCHAR, value DOUBLE)",
        "given (stay BIGINT, starts BIGINT, ends BIGINT, drug VARCHAR, rate DOUBLE)",
        "breathing (stay BIGINT, starts BIGINT, ends BIGINT)",
    ):
        duck.execute(f"CREATE OR REPLACE TABLE {table}", "preparing tables")


def build(
    duck: DuckSession, stays: pl.DataFrame, groups: tuple[str, ...], present: set[str], when: str, source: str
) -> Physiology:
    """Columns of the groups for stays (stay, age, and the vitals that are known).

    present: the inputs that the source has; a group whose input is absent gets no columns, a part of a score
    without its input is missing. when: the window in words. source: mimiciv, eicu, … for the ranges.
    """
    measured, dropped = _labs(duck, source)
    table = stays
    for part in (measured, _gcs(duck), _totals(duck), _drugs(duck), _oxygen(duck)):
        table = table.join(part, on="stay", how="left")
    # no infusion or ventilation on record is none given, where the source would have it
    given = pl.any_horizontal(pl.col(f"{d}_given") == 1 for d in DRUGS).fill_null(False).cast(pl.Int8)
    seen = "vasopressors" in present
    rates = [
        pl.when(pl.col(f"{d}_given").is_null() & seen)
        .then(0.0)
        .otherwise(pl.col(f"{d}_max"))
        .alias(f"{d}_max")
        for d in DRUGS
    ]
    table = table.with_columns(
        *rates,
        vasopressor=given if seen else pl.lit(None, pl.Int8),
        ventilated=pl.col("ventilated")
        .fill_null(pl.lit(0 if "ventilation" in present else None))
        .cast(pl.Int8),
    )
    for score in SCORES:
        table = _scored(table, score)
    dictionary = _dictionary(groups, present, when)
    return Physiology(table.select("stay", *(c.name for c in dictionary)).sort("stay"), dictionary, dropped)


def _labs(duck: DuckSession, source: str) -> tuple[pl.DataFrame, dict[str, int]]:
    """stay and lab_min, lab_max of every lab, and how many values did not count."""
    ranges = [(lab.lab, *lab.counted(source)) for lab in labs().values()]
    schema = {"lab": pl.String, "low": pl.Float64, "high": pl.Float64, "low_in": pl.Boolean}
    duck.table("lab_table", pl.DataFrame(ranges, schema=schema, orient="row"))
    judged = (
        "(SELECT stay, lab, value, (value > low OR (low_in AND value = low)) AND value <= high AS counts "
        "FROM measured JOIN lab_table ON signal = lab WHERE value IS NOT NULL)"
    )
    wide = ", ".join(
        f"{s}(value) FILTER (counts AND lab = '{name}') AS {name}_{s}"
        for name in labs()
        for s in ("min", "max")
    )
    what = "summarising laboratory values"
    table = duck.frame(f"SELECT stay, {wide} FROM {judged} GROUP BY stay", what)
    out = duck.frame(f"SELECT lab, count(*) FROM {judged} WHERE NOT counts GROUP BY lab ORDER BY lab", what)
    return table, dict(out.iter_rows())


def _totals(duck: DuckSession) -> pl.DataFrame:
    """stay, urine_total and ventilated."""
    return duck.frame(
        """
        SELECT stay, urine_total, ventilated FROM (
            SELECT stay, CAST(sum(CAST(round(1e6 * value) AS HUGEINT)) AS DOUBLE) / 1e6 AS urine_total
            FROM measured WHERE signal = 'urine' AND abs(value) < 1e6 GROUP BY stay
        ) FULL JOIN (SELECT DISTINCT stay, 1 AS ventilated FROM breathing) USING (stay)
        """,
        "adding up urine",
    )


def _gcs(duck: DuckSession) -> pl.DataFrame:
    """stay, gcs_min: the lowest sum; a part that was not charted is the last one of 6 hours, or normal. Where
    the verbal answer is impossible (intubated: 0) the scale counts as 15."""
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
    """stay, pf_ventilated, pf_other: the lowest PaO₂/FiO₂ (mmHg) with and without invasive ventilation. The
    inspired fraction is that of the blood gas, or the last one charted in the 4 hours before."""
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


def _scored(table: pl.DataFrame, score: str) -> pl.DataFrame:
    """The table with the parts of a shipped score, and their sum."""
    parts = {}
    for part, rule in shipped("scores")[score].items():
        cases = " ".join(f"WHEN {condition} THEN {points}" for condition, points in rule["points"])
        sql = f"CASE {cases} WHEN coalesce({', '.join(rule['known'])}) IS NOT NULL THEN 0 END"
        parts[f"{score}_{part}"] = pl.sql_expr(sql).cast(pl.Int8)
    table = table.with_columns(**parts)
    return table.with_columns(pl.sum_horizontal(pl.col(name).fill_null(0) for name in parts).alias(score))


def _dictionary(groups: tuple[str, ...], present: set[str], when: str) -> tuple[Variable, ...]:
    """Lines of the columns that groups have: (name, unit, meaning) by group."""
    limits = {"min": "lowest", "max": "highest"}
    lines = {
        "labs": [
            (f"{lab.lab}_{end}", lab.unit, f"{word} {lab.lab.replace('_', ' ')}, {when}")
            for lab in labs().values()
            for end, word in limits.items()
        ],
        "gcs": [("gcs_min", "", f"lowest Glasgow coma scale, {when}; intubated is 15")],
        "urine": [("urine_total", "mL", f"urine, {when}; missing where none was noted")],
        "vasopressors": [
            *(
                (f"{d}_max", "µg/kg/min", f"highest rate of {d}, {when}; 0 where none was given")
                for d in GRADED
            ),
            ("vasopressor", "0/1", f"any of {', '.join(DRUGS)}, {when}"),
        ],
        "ventilation": [("ventilated", "0/1", f"invasive ventilation, {when}")],
    }
    for score, whole in SCORES.items():
        name = whole.partition(" without")[0]
        lines[score] = [
            (
                f"{score}_{part}",
                "points",
                f"{name} {part.replace('_', ' ')}, {when}; missing without its values",
            )
            for part in shipped("scores")[score]
        ]
        lines[score].append((score, "points", f"{whole}, {when}; a missing part counts 0"))
    return tuple(
        Variable(name, "feature", unit, meaning)
        for group in groups
        if group in present or group in SCORES
        for name, unit, meaning in lines[group]
    )
