"""The path of a clinician with one table: check, then every command that the one before it prints."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import abps as package
from dirty_tables import GERMAN_FEATURES, GERMAN_ROLES, german_table

VERDICTS = (
    "gains",
    "probably gains",
    "no difference that matters",
    "inconclusive",
    "probably loses",
    "loses",
)


def abps(folder, command, *more):
    """What a command prints, run as a user would."""
    words = shlex.split(command)
    assert words[0] == "abps"
    done = subprocess.run(
        [sys.executable, "-m", "abps", *words[1:], *map(str, more)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def next_command(printed):
    (line,) = [line for line in printed.splitlines() if line.startswith("next: ")]
    return line.removeprefix("next: ")


def warnings_of(printed):
    """The warnings of a check, by the column that each names."""
    found = printed.partition("warnings (")[2]
    lines = [line.strip() for line in found.splitlines()[1:]]
    lines = lines[: next(k for k, line in enumerate(lines) if not line.startswith("'"))]
    assert len(lines) == int(found.partition(")")[0])
    return {line.split("'")[1]: line for line in lines}


def walk(folder, table, label, center, hospitals):
    """From check to predictions; returns the output of the check."""
    checked, _ = abps(folder, f"abps check {table} --label {label} --center {center}")
    compared, said = abps(folder, next_command(checked), "--seeds", "11")
    notes = [line for line in said.splitlines() if line.startswith(("warning:", "note:", "repaired:"))]
    assert len(notes) == len(set(notes))
    # One answer, on the terminal and on the page.
    flat = " ".join(compared.split())
    title = re.search(r"(Yes|No|Inconclusive|It makes no difference)[^.]*\.[^.]*\.", flat)
    assert title, compared
    page = (folder / "results/report.html").read_text(encoding="utf-8")
    assert title[0].split(". ")[0] in page
    assert "glm-exact" in compared and "to random" not in compared  # nothing random ran: no empty column
    assert max(len(line) for line in compared.splitlines() if not line.startswith(("next", "report"))) <= 80
    counts = re.search(r"hospitals: (.*?) bytes:", flat)[1]
    assert sum(map(int, re.findall(r"(?:^|, )(\d+) ", counts))) == len(hospitals)
    # The models, with what each hospital has alone beside together.
    fitted, _ = abps(folder, next_command(compared))
    assert f"{len(hospitals)} models in models" in fitted
    for name in hospitals:
        (card,) = [
            text
            for path in folder.glob("models/*/card.md")
            if f" at {name}\n" in (text := path.read_text(encoding="utf-8").replace("\\_", "_"))
        ]
        assert "| alone (local-best) |" in card and "| together (abps-plus) |" in card
        assert any(f"This hospital {word}" in card or word in card for word in VERDICTS)
    return checked, compared


def predicted(folder, hospital, table, carry):
    """Probabilities of a CSV file by the model of a hospital, called by its own name."""
    printed, _ = abps(
        folder,
        "abps predict",
        "--model",
        f"models/{hospital}",
        "--data",
        table,
        "--carry",
        carry,
        "--out",
        "p.csv",
    )
    with (folder / "p.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert f"{len(rows)} rows" in printed and all(0 < float(row["probability"]) < 1 for row in rows)
    return rows


@pytest.mark.slow
def test_dirty_german_table(tmp_path):
    path = german_table(tmp_path / "stays.csv", rows=900)
    lines = [line.split(";") for line in path.read_bytes().decode("cp1252").split("\r\n")]
    column = {name: [row[k] for row in lines[1:]] for k, name in enumerate(lines[0])}
    hospitals = sorted(set(column["Klinik"]))
    checked, compared = walk(tmp_path, "stays.csv", GERMAN_ROLES["label"], GERMAN_ROLES["center"], hospitals)
    # Every warning is about something that is in the table, and nothing that is in it has no warning.
    warnings = warnings_of(checked)
    assert set(warnings) == {
        "Bilirubin", "Aufnahmedatum", "Liegedauer", "Patientennummer", "Gesamtcholesterin"
    }  # fmt: skip
    assert f"{column['Bilirubin'].count('n.b.')} of 900 cells" in warnings["Bilirubin"]
    patients = len(set(column["Patientennummer"]))
    assert f"{patients} patients in 900 rows" in warnings["Patientennummer"]
    assert "'Graz' seem" in warnings["Gesamtcholesterin"] and "38.67" in warnings["Gesamtcholesterin"]
    assert "--drop Gesamtcholesterin" in warnings["Gesamtcholesterin"]
    assert f"Herzfrequenz: {column['Herzfrequenz'].count('999')} cell(s), such as '999'" in checked
    assert f"Alter: {column['Alter'].count('> 89')} cell(s), such as '> 89'" in checked
    assert f"Troponin: {column['Troponin'].count('<0,5')} cell(s), such as '<0,5' → 0.5 (limit)" in checked
    assert "'Fallnummer': an identifier" in checked and checked.count("identifier") == 1
    for name in GERMAN_FEATURES:
        assert re.search(rf"\n{name} .* yes", checked), name
    assert "--patient Patientennummer" in next_command(checked) and "--patient" in next_command(compared)
    # New patients, with the hospital's name as it is written there; the columns' case does not count.
    rows = predicted(tmp_path, "Köln", "stays.csv", "fallnummer")
    assert [row["Fallnummer"] for row in rows] == column["Fallnummer"]
    died = [value == "ja" for value in column["Verstorben"]]
    risk = pl.DataFrame({"p": [float(row["probability"]) for row in rows], "died": died})
    assert risk.filter("died")["p"].mean() > 1.3 * risk.filter(~pl.col("died"))["p"].mean()


@pytest.mark.slow
def test_covid_mexico(data, tmp_path):
    table = pl.read_csv(data("hospitals") / "covid_mx_state_sector.csv.gz", infer_schema_length=None)
    largest = table.group_by("hospital").len().sort("len", "hospital", descending=True)["hospital"][:10]
    some = table.filter(pl.col("hospital").is_in(largest.implode())).sample(1800, seed=3, shuffle=True)
    few = table.filter(pl.col("hospital") == "03_IMSS").head(20)
    pl.concat([some, few]).write_csv(tmp_path / "covid.csv")
    checked, _ = walk(tmp_path, "covid.csv", "Died", "Hospital", sorted(largest))
    assert "no warnings" in checked and "03_IMSS: fewer than 50 rows (20)" in checked
    some.head(50).drop("died", "hospital").write_csv(tmp_path / "new.csv")
    rows = predicted(tmp_path, largest[0].lower(), "new.csv", "AGE")
    assert len(rows) == 50 and [float(row["age"]) for row in rows] == some["age"][:50].to_list()
