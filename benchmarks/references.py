"""References beside the paper's networks: mean test AUROC over centers, five seeds, and the time they take.

    python benchmarks/references.py icu-synthetic p12fed.parquet eicufed.parquet heart.parquet

Tables are those of docs/cohorts.md. Prints a Markdown table for docs/references.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from abps import simulate
from abps.cli.options import DataOptions

METHODS = (
    "local", "local-stopped", "local-best", "centralized", "centralized-stopped", "glm-exact", "pooled-best",
)  # fmt: skip


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--seeds", default="11,22,33,44,55")
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    methods = options.methods.split(",")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print("| | " + " | ".join(methods) + " |\n|---|" + "---|" * len(methods))
    for name in options.data:
        federation = DataOptions().federation(name)
        cells = []
        for method in methods:
            began = time.perf_counter()
            means = np.array([simulate(federation, method, seed).auroc.mean for seed in seeds])
            seconds = (time.perf_counter() - began) / len(seeds)
            spread = means.std(ddof=1) if len(means) > 1 else float("nan")
            cells.append(f"{means.mean():.3f} ± {spread:.3f} ({seconds:.1f} s)".replace("0.", ".", 2))
        print(f"| {federation.name} ({federation.size}) | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
