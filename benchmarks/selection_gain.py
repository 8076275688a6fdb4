"""What selection is worth: the share of the way from random pairing to the oracle, from finished studies.

Paired by seed; one row per federation, with bytes, and the share of centers harmed (more than 0.02 below what
they reach alone).

    abps compare --methods local,fedavg,random-k1,group-oracle-k1,abps-plus --out study \\
        --data icu-synthetic:heterogeneity=4 --data icu-synthetic:heterogeneity=4,aligned=false
    python benchmarks/selection_gain.py study
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from abps.report.statistics import HARM

NEEDED = ("local", "fedavg", "random-k1", "group-oracle-k1")


def harmed(run: dict[str, Any], local: dict[str, Any]) -> float:
    """The share of centers that are worse off than alone."""
    mine, alone = run["auroc"]["per_center"], local["auroc"]["per_center"]
    both = [c for c in mine if mine[c] is not None and alone.get(c) is not None]
    return float(np.mean([mine[c] - alone[c] < -HARM for c in both]))


def main() -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--method", action="append", help="default: every abps-plus variant there is")
    a = parser.parse_args()
    runs: dict[str, dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for file in (file for folder in a.studies for file in sorted(folder.glob("runs/*/result.json"))):
        run = json.loads(file.read_text())
        runs[run["data"]["name"]][run["seed"]][run["method"]] = run
    print(
        "| federation | method | seeds | local | fedavg | random-k1 | oracle | AUROC "
        "| to random-k1 (each seed) | gain | bytes | rest | harmed: fedavg | random-k1 | method |"
    )
    print("|" + "---|" * 15)
    for data, seeds in runs.items():
        names = a.method or sorted(
            {m for found in seeds.values() for m in found if m.startswith("abps-plus")}
        )
        for name in names:
            have = [s for s in sorted(seeds) if {name, *NEEDED} <= set(seeds[s])]
            if not have:
                continue
            table = np.array([[seeds[s][m]["auroc"]["mean"] for m in (*NEEDED, name)] for s in have])
            local, fedavg, chance, oracle, mean = table.mean(axis=0)
            steps = table[:, 4] - table[:, 2]
            # Where even the oracle gains nothing there is no way to go part of.
            gain = f"{(mean - chance) / (oracle - chance):.0%}" if oracle - chance > 0.01 else "–"
            each = ", ".join(f"{d:+.3f}" for d in steps)
            spent, rest = (
                np.mean([seeds[s][name][part][key] for s in have])
                for part, key in (("bytes", "vs_fedavg"), ("rest", "share"))
            )
            hurt = [
                np.mean([harmed(seeds[s][m], seeds[s]["local"]) for s in have])
                for m in ("fedavg", "random-k1", name)
            ]
            print(
                f"| {data} | {name} | {len(have)} | {local:.3f} | {fedavg:.3f} | {chance:.3f} | {oracle:.3f} "
                f"| **{mean:.4f}** | {steps.mean():+.4f} ({each}) | {gain} | {spent:.3f}× | {rest:.0%} "
                f"| {hurt[0]:.0%} | {hurt[1]:.0%} | {hurt[2]:.0%} |"
            )


if __name__ == "__main__":
    main()
