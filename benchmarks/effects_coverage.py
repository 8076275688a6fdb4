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

from abps.statistics.design import agree, parse_formula
from abps.statistics.families import LIKELIHOODS, HospitalRows
from abps.statistics.newton import fit
from abps.statistics.regression import RegressionResult, common_result

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


def effects_of(frame: pl.DataFrame, family: str, intercepts: str) -> RegressionResult:
    """What ``abps regress`` estimates, without how hospitals differ, which takes most of its time."""
    parts = frame.partition_by("hospital", maintain_order=True)
    schema = agree(parse_formula("age + lactate + ward"), parts, 10)
    rows = []
    for part in parts:
        x, offset = schema.build(part)
        time = part["time"].to_numpy() if family == "cox" else None
        rows.append(HospitalRows(x, part[family].cast(pl.Float64).to_numpy(), offset, time))
    fitted = fit(rows, schema.names, LIKELIHOODS[family], intercepts, min_cell=10)[0]
    return common_result(fitted, family, intercepts, False, family)


def main() -> None:
    """Count intervals that hold the truth."""
    simulations = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    inside = {case: np.zeros(len(TRUE)) for case in CASES}
    rounds = dict.fromkeys(CASES, 0)
    for seed in range(simulations):
        frame = federation(seed)
        for family, intercepts in CASES:
            found = effects_of(frame, family, intercepts)
            effects = {e.name: e for e in found.effects}
            inside[family, intercepts] += [effects[k].low <= v <= effects[k].high for k, v in TRUE.items()]
            rounds[family, intercepts] = max(rounds[family, intercepts], found.rounds)
    print("family,intercepts,simulations," + ",".join(TRUE) + ",most rounds")
    for (family, intercepts), count in inside.items():
        shares = ",".join(f"{c / simulations:.3f}" for c in count)
        print(f"{family},{intercepts},{simulations},{shares},{rounds[family, intercepts]}")


if __name__ == "__main__":
    main()
