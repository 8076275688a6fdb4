"""Members that attack: what the honest centers lose, with and without abps-plus's defence.

    python benchmarks/attacks.py --out benchmarks/results/attacks.csv
    python benchmarks/attacks.py --data gusto.csv.gz --label died --center hospital --out gusto.csv

A fifth of the centers attacks, the same ones throughout. Every line of the CSV is one run: the mean AUROC of
the honest centers, and by how much it lies above that of the same centers without attackers.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

import abps
from abps.core.streams import center_ids
from abps.lab.attacks import NAMES, attackers_of


def honest_mean(run: abps.Run, honest: set[str]) -> float:
    """The mean AUROC of the centers that do not attack."""
    known = [v for name, v in run.auroc.per_center.items() if name in honest and v is not None]
    return float(np.mean(known))


def main() -> None:
    """Run, write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="icu-synthetic:centers=60")
    parser.add_argument("--label", help="of a table")
    parser.add_argument("--center", help="of a table")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--attacks", default=",".join(NAMES))
    parser.add_argument("--settings", default="robust=yes,robust=no")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    federation = (
        abps.read_table(args.data, label=args.label, center=args.center)
        if args.label
        else abps.load(args.data)
    )
    attackers = attackers_of(f"nan:share={args.share}", args.seed, center_ids(federation.centers)).who
    honest = {name for name, bad in zip(federation.centers, attackers, strict=True) if not bad}
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("data", "settings", "attack", "honest", "gain"))
        for setting in args.settings.split(","):
            clean = np.nan
            for attack in ("", *args.attacks.split(",")):
                given = f"{attack}:share={args.share}" if attack else None
                words = dict([setting.split("=")])
                run = abps.simulate(federation, "abps-plus", seed=args.seed, settings=words, attack=given)
                found = honest_mean(run, honest)
                clean = clean if attack else found
                line = (
                    Path(args.data).name,
                    setting,
                    attack or "none",
                    f"{found:.4f}",
                    f"{found - clean:.4f}",
                )
                writer.writerow(line)
                file.flush()
                print(*line, file=sys.stderr)


if __name__ == "__main__":
    main()
