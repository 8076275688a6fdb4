"""Coverage of the 95 % intervals of ``abps regress``: simulated federations with known effects.

    python benchmarks/effects_coverage.py [SIMULATIONS]

Twelve hospitals of 40 to 120 patients whose intercepts differ (deviation 0.4); effects 0.5 and -0.3 and a
category. Prints the share of intervals that hold the true effect, by family and intercepts, and the most
rounds that a fit took.
"""

from __future__ import annotations

import sys

import numpy as np
import polars as pl

from abps.statistics.regression import regress

TRUE = {"age": 0.5, "lactate": -0.3, "ward[b]": 0.4}
CASES = (
    ("logistic", "fixed"),
    ("logistic", "random"),
    ("poisson", "random"),
    ("linear", "random"),
    ("cox", "common"),
)


def federation(seed: int) -> pl.DataFrame:
    """One simulated table with an outcome for every family."""
    rng = np.random.default_rng([20, seed])
    sizes = rng.integers(40, 121, 12)
    hospital = np.repeat(np.arange(12), sizes)
    n = len(hospital)
    age, lactate, ward = rng.normal(size=n), rng.normal(size=n), rng.choice(["a", "b"], n)
    eta = -1.0 + 0.4 * rng.normal(size=12)[hospital]
    eta = eta + TRUE["age"] * age + TRUE["lactate"] * lactate + TRUE["ward[b]"] * (ward == "b")
    time = rng.exponential(np.exp(-eta))
    end = rng.uniform(0.5, 4.0, n)
    return pl.DataFrame(
        {
            "hospital": hospital, "age": age, "lactate": lactate, "ward": ward,
            "logistic": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
            "poisson": rng.poisson(np.exp(eta)), "linear": eta + rng.normal(size=n),
            "cox": (time <= end).astype(int), "time": np.minimum(time, end),
        }
    )  # fmt: skip


def main() -> None:
    """Count intervals that hold the truth."""
    simulations = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    inside = {case: np.zeros(len(TRUE)) for case in CASES}
    rounds = dict.fromkeys(CASES, 0)
    for seed in range(simulations):
        frame = federation(seed)
        for family, intercepts in CASES:
            duration = "time" if family == "cox" else None
            found = regress(frame, family, "hospital", "age + lactate + ward", family, intercepts, duration)
            effects = {e.name: e for e in found.effects}
            inside[family, intercepts] += [effects[k].low <= v <= effects[k].high for k, v in TRUE.items()]
            rounds[family, intercepts] = max(rounds[family, intercepts], found.rounds)
    print("family,intercepts,simulations," + ",".join(TRUE) + ",most rounds")
    for (family, intercepts), count in inside.items():
        shares = ",".join(f"{c / simulations:.3f}" for c in count)
        print(f"{family},{intercepts},{simulations},{shares},{rounds[family, intercepts]}")


if __name__ == "__main__":
    main()
