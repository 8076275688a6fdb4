"""abps-plus beside its references on real federations and synthetic worlds: accuracy, bytes, exchanges.

    python benchmarks/flagship.py --tables FOLDER --seeds 11,22,33 --out flagship.csv
    python benchmarks/flagship.py --worlds 8101,8102 --centers 230 --methods fedavg,abps-plus --out worlds.csv

Every line of the CSV is one run. The table on the terminal has the mean over seeds (or worlds) of the mean
AUROC over centers, and all bytes in units of FedAvg's.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import abps

#: File, label and center column of the real federations.
TABLES = {
    "GUSTO": ("gusto.csv.gz", "died", "hospital"),
    "COVID": ("covid_mx_state_sector.csv.gz", "died", "hospital"),
    "IMPACT": ("impact_tbi.csv.gz", "died", "study"),
    "NASS": ("nass_cds.csv.gz", "died", "region"),
    "dialysis": ("dialysis_rio.csv.gz", "died", "hospital"),
    "TCGA": ("tcga_cdr.csv.gz", "died", "hospital"),
    "Zambia": ("zambia_stunting.csv.gz", "event", "region"),
    "RAND": ("rand_hie.csv.gz", "event", "site"),
}

#: Knobs of the synthetic worlds; N: the number of centers.
WORLDS = {
    "severe": "heterogeneity=4",
    "metadata uninformative": "heterogeneity=4,aligned=false",
    "medium": "heterogeneity=2",
    "mild": "heterogeneity=1",
    "none": "heterogeneity=0",
    "own risk each": "heterogeneity=2,groups={n}",
    "one odd center": "heterogeneity=4,group_sizes={n1}+1",
    "many small clusters": "heterogeneity=4,groups={tenth}",
}

COLUMNS = (
    "federation",
    "seed",
    "method",
    "auroc",
    "log_loss",
    "all_vs_fedavg",
    "exchanges",
    "rest",
    "seconds",
)


def federations(args: argparse.Namespace) -> Iterator[tuple[str, abps.Federation, int]]:
    """Names, federations and seeds."""
    if args.tables is not None:
        for name, (file, label, center) in TABLES.items():
            if args.only and name not in args.only.split(","):
                continue
            federation = abps.read_table(args.tables / file, label=label, center=center)
            for seed in map(int, args.seeds.split(",")):
                yield name, federation, seed
    for world in filter(None, args.worlds.split(",")):
        for name, knobs in WORLDS.items():
            if args.only and name not in args.only.split(","):
                continue
            n = args.centers
            text = knobs.format(n=n, n1=n - 1, tenth=max(n // 10, 2))
            yield name, abps.load(f"icu-synthetic:{text},centers={n},seed={world}"), int(world)


def main() -> None:
    """Run, write the CSV, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, help="folder of the real federations")
    parser.add_argument("--worlds", default="", help="seeds of synthetic worlds, e.g. 8101,8102")
    parser.add_argument("--centers", type=int, default=230, help="centers of a synthetic world")
    parser.add_argument("--seeds", default="11,22,33", help="splits of a real federation")
    parser.add_argument("--methods", default="local-best,pooled-best,glm-exact,fedavg,abps-plus")
    parser.add_argument("--only", default="", help="federations by name, with commas")
    parser.add_argument("--out", type=Path, default=Path("flagship.csv"))
    args = parser.parse_args()
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for name, federation, seed in federations(args):
            for method in args.methods.split(","):
                model = "gam" if method in ("fedavg", "glm-exact") else None
                run = abps.simulate(federation, method, seed=seed, model=model)
                line = (run.auroc.mean, run.brier.mean, run.bytes.all_vs_fedavg)
                found[name, method].append(line)
                writer.writerow((name, seed, method, *line, run.rounds, run.rest.share, run.seconds))
                file.flush()
                print(f"{name} {seed} {method}: {line[0]:.4f}", file=sys.stderr)
    methods = args.methods.split(",")
    print("| federation | " + " | ".join(methods) + " | bytes of the last |")
    print("|---" * (len(methods) + 2) + "|")
    for name in dict.fromkeys(key for key, _ in found):
        means = [np.mean([line[0] for line in found[name, method]]) for method in methods]
        size = np.mean([line[2] for line in found[name, methods[-1]]])
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in means) + f" | {size:.4f}× |")


if __name__ == "__main__":
    main()
