"""The paper's table beside our runs of it.

    abps compare --methods paper --no-references --seeds 11,22,33,44,55 --out paper
    python benchmarks/paper_table.py paper --csv benchmarks/results/paper.csv

A line per row of the table: AUROC and edge bytes as the paper prints them, then ours (means over seeds), the
difference to FedAvg with its 95 % interval (patients and training runs), the standard deviation over seeds,
partners and rest per center and round, rounds, and how many times fewer edge bytes than FedAvg's it took
until the mean AUROC over seeds was first .750.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from abps.engine.result import Run
from abps.evaluate.inference import average_gain
from abps.evaluate.measured import Measured, measured
from abps.report.analysis import inflation_of
from abps.study.compare import load_study

#: Rows of the table: what the paper calls them, ours, and the paper's AUROC and edge bytes over FedAvg's.
ROWS = (
    ("Local", "local", 0.587, 0.0), ("FedAvg", "fedavg", 0.755, 1.0), ("FedProx", "fedprox", 0.753, 1.0),
    ("FedDyn", "feddyn", 0.758, 1.0), ("MOON", "moon", 0.750, 1.0), ("DeceFL", "decefl", 0.696, 1.0),
    ("DeFTA", "defta", 0.725, 1.0), ("WPFed", "wpfed", 0.694, 1.0), ("BNN", "bnn", 0.749, 2.0),
    ("ABPS", "abps", 0.753, 1.5), ("ABPS+P", "abps-p", 0.757, 1.49), ("ABPS+Q", "abps-q", 0.753, 0.75),
    ("ABPS+P+Q, κ=1", "abps-pq-k1", 0.748, 0.25), ("FedAvg+P+Q", "fedavg-pq", 0.758, 0.5),
    ("… homogeneity", "abps-pq-k1-hom", 0.742, 0.25), ("… diversity", "abps-pq-k1-div", 0.694, 0.16),
    ("… alignment", "abps-pq-k1-align", 0.739, 0.25), ("ABPS-X", "abps-x", 0.758, 0.09),
    ("FedAvg-X", "fedavg-x", 0.691, 0.31), ("Centralized", "centralized", 0.827, math.nan),
    ("random partner, κ=1", "random-k1", math.nan, math.nan),
    ("random partners, κ=3", "random-k3", math.nan, math.nan),
)  # fmt: skip

#: Selection against partners drawn at random, at the same bytes.
PAIRS = (("κ=1, minus random", "abps-pq-k1", "random-k1"), ("κ=3, minus random", "abps", "random-k3"))

HEAD = (
    "row", "method", "paper AUROC", "paper edge", "AUROC", "edge", "difference", "low", "high", "SD",
    "partners", "rest", "declined", "rounds", "fewer bytes to .750",
)  # fmt: skip

TARGET = 0.750


def bytes_to(runs: Sequence[Run], target: float = TARGET) -> float:
    """Mean edge bytes until the mean AUROC over seeds first reaches a target."""
    length = min(len(run.history.auroc) for run in runs)
    course = np.mean([run.history.auroc[:length] for run in runs], axis=0)
    reached = np.flatnonzero(course >= target)
    if not len(reached):
        return math.nan
    return float(np.mean([run.history.edge_bytes[reached[0]] for run in runs]))


def difference(scores: Measured, first: str, second: str, inflation: float) -> tuple[float, float, float]:
    """First minus second in AUROC, with its interval."""
    gain = average_gain(scores.cells(first, second), inflation)
    return gain.estimate, *gain.interval()


def written(values: Sequence[float]) -> list[str]:
    """Numbers for the file; nothing for those that are none."""
    return ["" if math.isnan(value) else f"{value:.6f}" for value in values]


def main() -> None:
    """Read the study, write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="the --out of abps compare")
    parser.add_argument("--csv", type=Path, required=True)
    asked = parser.parse_args()
    runs: dict[str, list[Run]] = {}
    for planned, run in sorted(load_study(asked.study).runs, key=lambda each: each[1].seed):
        runs.setdefault(planned.label, []).append(run)
    one = runs["fedavg"][0]
    inflation = inflation_of(one)
    scores = measured({name: [r.row_scores for r in own] for name, own in runs.items()}, one.data.centers)
    base = bytes_to(runs["fedavg"])
    with asked.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for row, method, auroc, edge in ROWS:
            own = runs[method]
            level = np.array([run.auroc.mean for run in own])
            minus = difference(scores, method, "fedavg", inflation) if method != "fedavg" else [math.nan] * 3
            facts = [(r.partners_mean, r.rest.share, r.rest.declined, r.rounds) for r in own]
            ours = [level.mean(), np.mean([run.bytes.vs_fedavg for run in own]), *minus, level.std(ddof=1)]
            found = [auroc, edge, *ours, *np.mean(facts, axis=0), base / (bytes_to(own) or math.nan)]
            writer.writerow([row, method, *written(found)])
        for words, first, second in PAIRS:
            found = [math.nan] * 4 + list(difference(scores, first, second, inflation)) + [math.nan] * 6
            writer.writerow([words, first, *written(found)])


if __name__ == "__main__":
    main()
