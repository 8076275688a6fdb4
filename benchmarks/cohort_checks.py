"""What the recipes make of the open data: stays, hospitals, deaths.

    python benchmarks/cohort_checks.py --data FOLDER --csv benchmarks/results/cohort_checks.csv

FOLDER holds the MIMIC-IV demo, the eICU demo, PhysioNet 2012 and UCI Heart Disease as they are distributed.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from abps.cohorts.recipes import RECIPES
from abps.cohorts.tidy import Cohort

#: Recipes, and the folders of their sources.
SOURCES = {
    "mimiciv": "mimic-iv-demo-2.2",
    "eicu": "eicu-demo-2.0",
    "physionet2012": "physionet2012",
    "heart": "heart-disease",
}


def counts(name: str, cohort: Cohort) -> Iterator[tuple[str, float]]:
    """What is said of a cohort."""
    table, label, center = cohort.table, cohort.roles.label, cohort.roles.center
    yield "stays of the source", cohort.steps[0].stays
    yield "stays", table.height
    yield "events", int(table[label].sum())
    yield "centers", table[center].n_unique()
    if name in ("physionet2012", "heart"):
        by = table.group_by(center).agg(pl.len(), pl.col(label).mean().alias("rate")).sort(center)
        for each, size, rate in by.iter_rows():
            yield f"{each}: stays", size
            yield f"{each}: per cent with the event", round(100 * rate, 1)


def main() -> None:
    """Build every cohort, write the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    asked = parser.parse_args()
    with asked.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "what", "value"))
        for name, folder in SOURCES.items():
            recipe = RECIPES.find(name)
            cohort = recipe.build(asked.data / folder, recipe.options, lambda *_: None)
            writer.writerows((name, what, value) for what, value in counts(name, cohort))


if __name__ == "__main__":
    main()
