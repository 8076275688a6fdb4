"""How fast and in how much memory ``abps cohort mimiciv`` reads a chartevents of real size.

Generates a folder laid out like MIMIC-IV (hosp and icu, .csv.gz, all columns of chartevents, about 4,600
rows per stay, 15 % of them vital signs, and labevents with a third as many rows, as in v3.1), builds the
cohort with vitals and laboratory values in a process of its own, and prints rows per second and peak
resident memory. The first stays are recomputed in plain Python from the same file.

A second measurement takes only the grouping of the vitals, at the size it has in MIMIC-IV v3.1 (20 million
moments), because that is what memory depends on; the rows of the file only pass through.

    python benchmarks/cohort_scale.py --plain --csv benchmarks/results/cohort_scale.csv
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

ROWS_PER_STAY = 4_600
V31_ROWS = 433_000_000
V31_STAYS = 94_458
#: In-window moments of vitals in v3.1: its rows × the share of vitals × the share of the first 24 hours.
V31_MOMENTS = 20_000_000

#: Rows of labevents for one of chartevents, as in v3.1.
LAB_SHARE = 0.36
LAB_ITEMS = "[50912, 51006, 50971, 50983, 51265, 51301, 50885, 50813, 51222, 50882]"
VITAL_ITEMS = "[220045, 220179, 220180, 220181, 220210, 220277, 223761, 220052]"


def generate(folder: Path, rows: int, plain: bool) -> int:
    """Write the tables, compressed unless plain; returns the number of stays."""
    import duckdb

    stays = rows // ROWS_PER_STAY
    (folder / "hosp").mkdir(parents=True, exist_ok=True)
    (folder / "icu").mkdir(exist_ok=True)
    con = duckdb.connect()
    con.execute("SET threads = 2; SET preserve_insertion_order = false; SET memory_limit = '3GB'")
    intime = "TIMESTAMP '2150-01-01' + to_hours(CAST(hash(s) % 300000 AS BIGINT))"

    def write(name: str, sql: str) -> None:
        path = folder / (name.removesuffix(".gz") if plain else name)
        con.execute(f"COPY ({sql}) TO '{path}' (HEADER, COMPRESSION {'none' if plain else 'gzip'})")

    write(
        "hosp/patients.csv.gz",
        f"SELECT 10000000 + s AS subject_id, CASE WHEN s % 2 = 0 THEN 'F' ELSE 'M' END AS gender, "
        f"CAST(20 + hash(s) % 70 AS INT) AS anchor_age, year({intime}) AS anchor_year, "
        f"'2011 - 2013' AS anchor_year_group, NULL AS dod FROM range({stays}) r(s)",
    )
    write(
        "hosp/admissions.csv.gz",
        f"SELECT 10000000 + s AS subject_id, 20000000 + s AS hadm_id, {intime} AS admittime, "
        f"{intime} + INTERVAL 9 DAY AS dischtime, 'URGENT' AS admission_type, 'EMERGENCY ROOM' AS "
        f"admission_location, 'Medicare' AS insurance, 'WHITE' AS race, CAST(hash(s + 5) % 10 = 0 AS INT) AS "
        f"hospital_expire_flag FROM range({stays}) r(s)",
    )
    write(
        "hosp/diagnoses_icd.csv.gz",
        f"SELECT 10000000 + s AS subject_id, 20000000 + s AS hadm_id, k AS seq_num, "
        f"['4280', '07070', 'I509', 'E119', '25000', 'N186'][1 + (hash(s * 31 + k) % 6)::INT] AS icd_code, "
        f"CASE WHEN hash(s * 31 + k) % 6 IN (0, 1, 4) THEN 9 ELSE 10 END AS icd_version "
        f"FROM range({stays}) r(s), range(15) q(k)",
    )
    write(
        "icu/icustays.csv.gz",
        f"SELECT 10000000 + s AS subject_id, 20000000 + s AS hadm_id, 30000000 + s AS stay_id, "
        f"'Medical Intensive Care Unit (MICU)' AS first_careunit, 'x' AS last_careunit, {intime} AS intime, "
        f"{intime} + INTERVAL 77 HOUR AS outtime, 3.2 AS los FROM range({stays}) r(s)",
    )
    write(
        "icu/chartevents.csv.gz",
        f"""
        SELECT 10000000 + s AS subject_id, 20000000 + s AS hadm_id, 30000000 + s AS stay_id,
               10000 + hash(i) % 90000 AS caregiver_id, t AS charttime, t + INTERVAL 37 MINUTE AS storetime,
               itemid, CAST(v AS VARCHAR) AS value, v AS valuenum, 'mmHg' AS valueuom, 0 AS warning
        FROM (SELECT i, i // {ROWS_PER_STAY} AS s,
                     TIMESTAMP '2150-01-01' + to_hours(CAST(hash(i // {ROWS_PER_STAY}) % 300000 AS BIGINT))
                         + to_minutes(CAST(i % {ROWS_PER_STAY} AS BIGINT)) AS t,
                     CASE WHEN hash(i + 7) % 100 < 15 THEN {VITAL_ITEMS}[1 + (hash(i + 1) % 8)::INT]
                          ELSE 226000 + (hash(i + 2) % 900)::INT END AS itemid,
                     round(10 + (hash(i + 3) % 1100) / 10.0, 1) AS v
              FROM range({rows}) r(i))
        """,
    )
    labs = round(rows * LAB_SHARE)
    per_stay = max(1, labs // stays)
    write(
        "hosp/labevents.csv.gz",
        f"""
        SELECT i AS labevent_id, 10000000 + s AS subject_id, 20000000 + s AS hadm_id, i // 8 AS specimen_id,
               itemid, t AS charttime, t + INTERVAL 2 HOUR AS storetime, CAST(v AS VARCHAR) AS value,
               v AS valuenum, 'mg/dL' AS valueuom, NULL AS flag, 'ROUTINE' AS priority
        FROM (SELECT i, i // {per_stay} AS s,
                     TIMESTAMP '2150-01-01' + to_hours(CAST(hash(i // {per_stay}) % 300000 AS BIGINT))
                         + to_minutes(CAST((i % {per_stay}) * 4 AS BIGINT)) AS t,
                     CASE WHEN hash(i + 7) % 100 < 40 THEN {LAB_ITEMS}[1 + (hash(i + 1) % 10)::INT]
                          ELSE 51400 + (hash(i + 2) % 900)::INT END AS itemid,
                     round(0.1 + (hash(i + 3) % 200) / 10.0, 1) AS v
              FROM range({labs}) r(i) WHERE i // {per_stay} < {stays})
        """,
    )
    return stays


def opened(folder: Path, name: str) -> TextIO:
    """A table's lines, compressed or not."""
    path = folder / f"{name}.csv"
    return path.open(newline="") if path.exists() else gzip.open(f"{path}.gz", "rt", newline="")  # type: ignore[return-value]


def first_stays(folder: Path, stays: int) -> dict[int, float]:
    """Mean systolic pressure of the first stays, in plain Python."""
    begin = {}
    with opened(folder, "icu/icustays") as lines:
        for row in csv.DictReader(lines):
            begin[int(row["stay_id"])] = datetime.fromisoformat(row["intime"])
    wanted = set(range(30_000_000, 30_000_000 + stays))
    moments: dict[int, dict[datetime, list[float]]] = defaultdict(lambda: defaultdict(list))
    with opened(folder, "icu/chartevents") as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            if number > 3_000_000:  # written by two threads: the first stays are near the beginning
                break
            stay = int(row["stay_id"])
            if stay not in wanted or row["itemid"] != "220179":
                continue
            at, value = datetime.fromisoformat(row["charttime"]), float(row["valuenum"])
            if begin[stay] <= at <= begin[stay] + timedelta(hours=24) and 0 < value < 400:
                moments[stay][at].append(value)
    return {s: sum(sum(v) / len(v) for v in m.values()) / len(m) for s, m in moments.items()}


def measured(command: list[str]) -> tuple[float, float, str]:
    """Seconds, peak resident megabytes and output of a process and nothing else."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds, result["peak_mb"], done.stdout


BUILD = """
import json, resource, sys, time
from pathlib import Path
from abps.cohorts import mimiciv, tidy
begin = time.perf_counter()
made = mimiciv.build(Path(sys.argv[1]), mimiciv.MimicOptions(features=("labs",)))
tidy.write_table(made.table, tidy.of_cohort(made), Path(sys.argv[2]))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"rows": made.table.height, "build_s": time.perf_counter() - begin,
                  "cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}))
"""

GROUP = """
import json, resource, sys, time
from abps.cohorts import vitals
from abps.cohorts.duck import session
moments, stays = int(sys.argv[1]), int(sys.argv[2])
begin = time.perf_counter()
with session() as duck:
    found = vitals.summarise(
        duck,
        f"SELECT hash(i) % {stays} AS stay, "
        "TIMESTAMP '2150-01-01' + to_minutes(CAST(hash(i + 3) % 1440 AS BIGINT)) AS moment, "
        "['heart_rate', 'sbp', 'dbp', 'mbp', 'resp_rate', 'spo2', 'temperature'][1 + (i % 7)::INT] "
        f"AS signal, 20.0 + hash(i + 1) % 300 / 10.0 AS value FROM range({moments}) r(i)",
        "grouping",
    )
print(json.dumps({"rows": found.table.height, "group_s": time.perf_counter() - begin,
                  "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def main() -> None:
    """Generate, measure, check, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=40_000_000)
    parser.add_argument("--folder", type=Path, help="keep the generated tables here and use them again")
    parser.add_argument("--plain", action="store_true", help="tables without gzip: quicker to generate")
    parser.add_argument("--csv", type=Path, help="where to write what was found")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "mimic"
        chart = folder / "icu" / ("chartevents.csv" if arguments.plain else "chartevents.csv.gz")
        if not chart.exists():
            begin = time.perf_counter()
            generate(folder, arguments.rows, arguments.plain)
            print(
                f"generated {arguments.rows:,} rows in {time.perf_counter() - begin:.0f} s", file=sys.stderr
            )
        out = Path(temporary) / "cohort.parquet"
        seconds, peak, text = measured([sys.executable, "-c", BUILD, str(folder), str(out)])
        build = json.loads(text.strip().splitlines()[-1])
        megabytes = round(chart.stat().st_size / 1e6)
        import polars as pl

        table = {row["stay"]: row["sbp_mean"] for row in pl.read_parquet(out).iter_rows(named=True)}
        expected = first_stays(folder, 20)
        worst = max(abs(table[stay] - value) for stay, value in expected.items())
        group_seconds, group_peak, _ = measured(
            [sys.executable, "-c", GROUP, str(V31_MOMENTS), str(V31_STAYS)]
        )
    labs = round(arguments.rows * LAB_SHARE)
    rate = (arguments.rows + labs) / build["build_s"]
    found = {
        "rows": arguments.rows,
        "lab_rows": labs,
        "plain": arguments.plain,
        "chartevents_mb": megabytes,
        "stays": build["rows"],
        "seconds": round(build["build_s"], 1),
        "process_seconds": round(seconds, 1),
        "cpu_seconds": round(build["cpu_s"], 1),
        "rows_per_s": round(rate),
        "peak_mb": round(peak),
        "v31_minutes": round((1 + LAB_SHARE) * V31_ROWS / rate / 60, 1),
        "v31_grouping_s": round(group_seconds, 1),
        "v31_grouping_peak_mb": round(group_peak),
        "checked_stays": len(expected),
        "worst_difference": worst,
        "cores": os.cpu_count(),
        "load_at_end": round(os.getloadavg()[0], 1),
        "parent_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(found))
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([("what", "value"), *found.items()])


if __name__ == "__main__":
    main()
