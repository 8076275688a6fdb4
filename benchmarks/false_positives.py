"""How often a comparison of two equal methods is called a difference, and how often a difference is found.

    python benchmarks/false_positives.py                  # the table of docs/statistics.md, a few minutes
    python benchmarks/false_positives.py --draws 500 --json

Differences of (seeds, centers) are drawn with known effects of centers and seeds and go through the same
function as a study's. The settings are what studies have shown.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from abps.core import streams
from abps.evaluate.crossed import crossed
from abps.evaluate.shrinkage import center_gains

#: Standard deviations of center effect, seed effect and rest, and the number of centers.
SETTINGS = [
    (0.0, 0.0024, 0.036, 99),
    (0.011, 0.0, 0.041, 99),
    (0.0, 0.0022, 0.036, 230),
    (0.038, 0.009, 0.033, 29),
    (0.05, 0.01, 0.09, 15),
    (0.05, 0.01, 0.05, 4),
    (0.01, 0.007, 0.05, 230),
    (0.005, 0.008, 0.03, 230),
]
SEEDS = (2, 3, 5)
GAIN = 0.005


def draw(rng, setting, seeds, absent):
    """(seeds, centers) differences without any true difference of methods; some without a score."""
    center, seed, rest, centers = setting
    values = rng.normal(0, center, centers) + rng.normal(0, seed, (seeds, 1))
    values = values + rng.normal(0, rest, (seeds, centers))
    values[rng.random(values.shape) < absent] = np.nan
    return values


def called(rng, setting, seeds, absent, gain, draws):
    """The share of draws in which the interval leaves out zero."""
    count = 0
    for _ in range(draws):
        found = crossed(draw(rng, setting, seeds, absent) + gain)
        count += abs(found.mean) > found.half_width(0.95)
    return count / draws


def harm(rng, true, noise, seeds, draws):
    """(counted raw, noise taken out, true) centers that lose more than 0.02, mean over draws."""
    raw, told = [], []
    for _ in range(draws):
        found = center_gains(true + rng.normal(0, noise, (seeds, len(true))))
        raw.append(float((found.raw < -0.02).sum()))
        told.append(float(found.below(-0.02).sum()))
    return float(np.mean(raw)), float(np.mean(told)), int((true < -0.02).sum())


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = streams.generator(options.seed, "generate", center=streams.center_id("false positives"))
    rows = []
    for setting in SETTINGS:
        row = {"center": setting[0], "seed": setting[1], "rest": setting[2], "centers": setting[3]}
        for absent in (0.0, 0.15):
            for seeds in SEEDS:
                wrong = called(rng, setting, seeds, absent, 0.0, options.draws)
                row[f"false_{seeds}_{absent:g}"] = wrong
        for seeds in SEEDS:
            row[f"found_{seeds}"] = called(rng, setting, seeds, 0.0, GAIN, options.draws // 4)
        rows.append(row)
        if not options.json:
            shown = "{center:g} / {seed:g} / {rest:g}, {centers} centers".format(**row)
            false = [f"{100 * row[f'false_{s}_{a}']:.1f}" for a in ("0", "0.15") for s in SEEDS]
            found = [f"{100 * row[f'found_{s}']:.0f}" for s in SEEDS]
            print(f"| {shown} | {' | '.join(false)} | {' | '.join(found)} |", flush=True)
    different = np.full(30, 0.05)
    different[:3] = -0.3
    truths = {
        "every center gains 0.076": (np.full(99, 0.076), 0.12),
        "nobody gains or loses": (np.zeros(99), 0.12),
        "three of thirty lose 0.3": (different, 0.05),
        "gains vary by 0.04 about 0.02": (rng.normal(0.02, 0.04, 230), 0.05),
    }
    losing = []
    for name, (true, noise) in truths.items():
        for seeds in SEEDS:
            raw, told, truth = harm(rng, true, noise, seeds, max(options.draws // 100, 5))
            losing.append(
                {"truth": name, "seeds": seeds, "centers": len(true), "raw": raw, "told": told, "true": truth}
            )
            if not options.json:
                print(f"| {name} | {seeds} | {len(true)} | {raw:.1f} | {told:.1f} | {truth} |", flush=True)
    if options.json:
        print(json.dumps({"schema": "abps.false-positives/1", "intervals": rows, "harm": losing}))


if __name__ == "__main__":
    main()
