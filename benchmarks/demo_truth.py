"""Whether the demo's interval holds the truth: the same hospitals with other patients, analysed again.

python benchmarks/demo_truth.py --draws 8 --csv benchmarks/results/demo_truth.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

import abps
from abps.cli.study_commands import DIFFER
from abps.lab import icu_synthetic as icu


def gain(draw: int) -> float:
    """The mean gain of abps-plus over local-best, with patients of a further draw (0: those of the demo)."""
    original = icu.draw_with_risk
    icu.draw_with_risk = lambda population, seed: original(population, seed + 1000 * draw)
    try:
        federation = abps.load(DIFFER)
    finally:
        icu.draw_with_risk = original
    study = abps.compare(federation, ["abps-plus"], seeds=[11], references=["local-best"])
    means = study.frame().group_by("method").agg(pl.col("auroc").mean())
    by_method = dict(means.iter_rows())
    return by_method["abps-plus"] - by_method["local-best"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    rows = [{"draw": draw, "gain": round(gain(draw), 4)} for draw in range(asked.draws + 1)]
    table = pl.DataFrame(rows)
    further = table.filter(pl.col("draw") > 0)["gain"]
    print(table)
    print(f"further draws: {further.mean():+.4f}, from {further.min():+.4f} to {further.max():+.4f}")
    if asked.csv:
        mean = pl.DataFrame({"draw": ["mean of further draws"], "gain": [round(float(further.mean()), 4)]})
        pl.concat([table.with_columns(pl.col("draw").cast(pl.String)), mean]).write_csv(asked.csv)


if __name__ == "__main__":
    main()
