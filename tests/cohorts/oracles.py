"""Slow and plain: the same cohorts in pure Python over the CSV files. Shares no code with the package."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

MIMIC_ITEMS = {
    220045: "heart_rate",
    220179: "sbp", 220050: "sbp", 225309: "sbp",
    220180: "dbp", 220051: "dbp", 225310: "dbp",
    220181: "mbp", 220052: "mbp", 225312: "mbp",
    220210: "resp_rate", 224690: "resp_rate",
    220277: "spo2",
    223761: "fahrenheit", 223762: "celsius",
}  # fmt: skip


def measured(kind: str, value: float) -> tuple[str, float] | None:
    """(vital, value in its unit), or None if the value does not count."""
    if kind == "heart_rate" and 0 < value < 300:
        return kind, value
    if kind == "sbp" and 0 < value < 400:
        return kind, value
    if kind in ("dbp", "mbp") and 0 < value < 300:
        return kind, value
    if kind == "resp_rate" and 0 < value < 70:
        return kind, value
    if kind == "spo2" and 0 < value <= 100:
        return kind, value
    if kind == "fahrenheit" and 70 < value < 120:
        return "temperature", (value - 32) / 1.8
    if kind == "celsius" and 10 < value < 50:
        return "temperature", value
    return None


def rows(path: Path) -> list[dict[str, str]]:
    """A CSV file, compressed or not."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def summary(moments: dict[object, list[float]]) -> tuple[float, float, float]:
    """Mean, lowest and highest of the means per moment."""
    means = [sum(v) / len(v) for v in moments.values()]
    return sum(means) / len(means), min(means), max(means)


Values = dict[tuple[int, str], tuple[float, float, float]]


def summarise(events: list[tuple[int, object, str, float]]) -> Values:
    """(stay, vital) -> (mean, min, max) from (stay, moment, kind, value)."""
    by: dict[tuple[int, str], dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
    for stay, moment, kind, value in events:
        found = measured(kind, value)
        if found:
            by[stay, found[0]][moment].append(found[1])
    return {key: summary(moments) for key, moments in by.items()}


def mimic_stays(root: Path) -> dict[int, tuple[int, datetime, datetime]]:
    """stay -> (patient, intime, outtime)."""
    return {
        int(r["stay_id"]): (
            int(r["subject_id"]),
            datetime.fromisoformat(r["intime"]),
            datetime.fromisoformat(r["outtime"]),
        )
        for r in rows(root / "icu" / "icustays.csv")
    }


def mimic_events(root: Path) -> list[tuple[int, int, datetime, str, float]]:
    """(patient, stay, moment, kind, value) of every vital in chartevents."""
    return [
        (
            int(r["subject_id"]),
            int(r["stay_id"]),
            datetime.fromisoformat(r["charttime"]),
            kind,
            float(r["valuenum"]),
        )
        for r in rows(root / "icu" / "chartevents.csv.gz")
        if (kind := MIMIC_ITEMS.get(int(r["itemid"]))) and r["valuenum"]
    ]


def mimic_vitals(root: Path, before_hours: int) -> Values:
    """First-day vitals of every stay."""
    stays = mimic_stays(root)
    inside = []
    for _, stay, moment, kind, value in mimic_events(root):
        intime = stays[stay][1]
        if intime - timedelta(hours=before_hours) <= moment <= intime + timedelta(hours=24):
            inside.append((stay, moment, kind, value))
    return summarise(inside)


def nearest_stay_vitals(root: Path) -> Values:
    """The same, but every event goes to the patient's nearest stay in time, whatever its stay_id says."""
    stays = mimic_stays(root)
    of_patient = defaultdict(list)
    for stay, (patient, intime, outtime) in stays.items():
        of_patient[patient].append((stay, intime, outtime))
    inside = []
    for patient, _, moment, kind, value in mimic_events(root):
        distances = []
        for stay, intime, outtime in of_patient[patient]:
            away = max(intime - moment, moment - outtime, timedelta(0))
            distances.append((away, stay, intime))
        _, stay, intime = min(distances)
        if intime <= moment <= intime + timedelta(hours=24):
            inside.append((stay, moment, kind, value))
    return summarise(inside)
