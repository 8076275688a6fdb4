"""How often abps-plus says that hospitals differ where they do not.

    python benchmarks/null_federations.py --tables FOLDER --out benchmarks/results/null_federations.csv

Null federations: real tables whose hospitals are permuted over the rows, and synthetic worlds in which all
centers are alike. Every line of the CSV is one federation: the p-value of the test of differences, and
whether structure was used.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from flagship import TABLES

import abps

#: Tables with enough hospitals to be tested, small enough to be run often; synthetic worlds; of each so many.
REAL, EACH = ("dialysis", "Zambia", "TCGA", "COVID", "IMPACT", "NASS"), 30
WORLD, WORLDS = "icu-synthetic:heterogeneity=0,centers=40,stays=8000,seed={seed}", 60


def federations(folder: Path) -> Iterator[tuple[str, int, abps.Federation]]:
    """Names, seeds and null federations."""
    for name in REAL:
        file, label, center = TABLES[name]
        table = abps.read_table(folder / file, label=label, center=center)
        for seed in range(1, EACH + 1):
            yield name, seed, replace(table, center=np.random.default_rng(seed).permutation(table.center))
    for seed in range(1, WORLDS + 1):
        yield "synthetic", seed, abps.load(WORLD.format(seed=seed))


def main() -> None:
    """Run all, write the CSV, print the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, required=True, help="folder of the real federations")
    parser.add_argument("--out", type=Path, default=Path("null_federations.csv"))
    args = parser.parse_args()
    found: list[tuple[bool, bool]] = []
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("federation", "seed", "p_value", "used"))
        for name, seed, federation in federations(args.tables):
            run = abps.simulate(federation, "abps-plus", seed=seed)
            test = run.decisions.filter(run.decisions["decision"] == "differences")
            chance = round(float(test["score"][0]), 2)  # stored in single precision
            used = test["reason"][0] != "no structure is used"
            writer.writerow((name, seed, f"{chance:.2f}", int(used)))
            file.flush()
            found.append((chance <= 0.05, used))
    alarms, uses = np.mean(found, axis=0)
    print(f"{len(found)} null federations: differences found in {alarms:.1%}, structure used in {uses:.1%}")


if __name__ == "__main__":
    main()
