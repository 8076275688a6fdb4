"""What privacy costs: mean AUROC over ε, for additive models and the paper's network.

    python benchmarks/privacy_utility.py --models mlp --csv benchmarks/results/privacy_utility.csv

Every center has one account over statistics, metadata, scores and training; the noise is chosen so that it
lasts for all rounds. ``inf`` is the run without any of it. Writes mean AUROC over seeds by model, method and
ε, and the largest ε that was spent, computed again from the ledgers.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from pathlib import Path

import numpy as np

from abps.data.table import federate
from abps.engine.simulate import simulate
from abps.lab.synthetic import builtin_table
from abps.privacy.budget import recount

CASES = (
    ("gam", "local"), ("gam", "random-k1"), ("gam", "fedavg"), ("gam", "abps-plus"),
    ("mlp", "local"), ("mlp", "random-k1"), ("mlp", "fedavg"),
)  # fmt: skip


#: Private training takes few, long steps: each costs, and cut gradients are short.
PRIVATE = {"gam": {"lr": 20.0, "epochs": 2}, "mlp": {"lr": 0.03, "epochs": 2}}


def settings(model: str, epsilon: float, secure: bool, clip: float) -> dict[str, object]:
    """Of one run; without a budget, the model's own."""
    plain: dict[str, object] = {"model": model}
    if math.isinf(epsilon):
        return plain
    private = plain | PRIVATE[model] | {"clip": clip, "dp_epsilon": epsilon}
    return private | ({"secure": True} if secure else {})


def main() -> None:
    """All cases, all budgets, all seeds."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--centers", type=int, default=40)
    words.add_argument("--stays", type=int, default=16_000)
    words.add_argument("--rounds", type=int, default=20)
    words.add_argument("--seeds", default="11,22")
    words.add_argument("--epsilons", default="inf,8,3,1")
    words.add_argument("--clip", type=float, default=1.0)
    words.add_argument("--models", default="gam,mlp", help="with commas")
    words.add_argument("--csv", type=Path, required=True)
    given = words.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    budgets = [float(epsilon) for epsilon in given.epsilons.split(",")]
    frame, roles = builtin_table(f"icu-synthetic:centers={given.centers},stays={given.stays}")
    federation = federate(frame, roles, "icu-synthetic", 5)
    with given.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "method", *(f"ε = {budget:g}" for budget in budgets), "most spent"))
        for model, method in CASES:
            if model not in given.models.split(","):
                continue
            means, most = [], 0.0
            for budget in budgets:
                scores = []
                for seed in seeds:
                    asked = settings(model, budget, method == "fedavg", given.clip)
                    run = simulate(federation, method, seed, given.rounds, asked)
                    scores.append(run.auroc.mean)
                    if run.privacy is not None:
                        most = max(most, recount(run.privacy.to_json()).most)
                means.append(f"{np.mean(scores):.4f}")
            writer.writerow((model, method, *means, f"{most:.3f}"))
            file.flush()
            print(model, method, *means, file=sys.stderr)


if __name__ == "__main__":
    main()
