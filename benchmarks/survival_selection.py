"""What selection is worth for times to an event: the share of the way from random pairs to the oracle's.

    python benchmarks/survival_selection.py --seeds 11,22

All methods have the additive model of hazards; random-k1 pairs at random, group-oracle-k1 at random inside
the true groups. Prints the table of docs/survival.md.
"""

from __future__ import annotations

import argparse

import numpy as np

from abps import load, simulate

FEDERATIONS = (
    "survival-synthetic:heterogeneity=2",
    "survival-synthetic:heterogeneity=2,crossing=true",
    "survival-synthetic:heterogeneity=0",
)
METHODS = {
    "local": {"model": "gam"},
    "fedavg": {"model": "gam"},
    "random-k1": {"model": "gam"},
    "group-oracle-k1": {"model": "gam"},
    "abps-plus": {},
}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="11,22")
    parser.add_argument("--more", default="", help="knobs for all federations, such as ,stays=300")
    options = parser.parse_args()
    print("| federation | " + " | ".join(METHODS) + " | gain of the oracle's |\n|---|" + "---|" * 6)
    for name in FEDERATIONS:
        federation = load(name + options.more)
        seeds = [int(seed) for seed in options.seeds.split(",")]
        found = {
            method: np.mean([simulate(federation, method, seed, settings=how).main.mean for seed in seeds])
            for method, how in METHODS.items()
        }
        chance, oracle = found["random-k1"], found["group-oracle-k1"]
        gain = f"{(found['abps-plus'] - chance) / (oracle - chance):.0%}" if oracle - chance > 0.01 else "–"
        cells = " | ".join(f"{value:.4f}" for value in found.values())
        print(f"| {name + options.more} | {cells} | {gain} |", flush=True)


if __name__ == "__main__":
    main()
