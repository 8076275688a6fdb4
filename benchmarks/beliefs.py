"""Belief against truth: is what abps-plus believes of its peers so?

    python benchmarks/beliefs.py --method abps-plus --data icu-synthetic:centers=60,heterogeneity=4 --seed 311

prints what every run of ``abps-plus`` notes of itself: how often 95 % intervals of what a mix does to a
center's own loss hold the truth, and how often mixes help that are believed to help with a probability of 0
to 20 % and so on (:mod:`abps.engine.belief_check`). The rest is about its first form, abps-plus-v1.

On a synthetic federation the truth can be looked up. A peer's true utility to a center is the AUROC of the
peer's model under the center's head, here on the test rows of all centers with the same risk function, many
more than any center has. Printed for peers that a center had measured and for those it had not: how often the
truth lies in the belief's intervals, and how often peers help that are believed to help with a probability of
0 to 20 %, 20 to 40 % and so on, where helping means a utility above half of the way from chance to what the
center's own model reaches.

    python benchmarks/beliefs.py --data icu-synthetic:heterogeneity=4 --data icu-synthetic:heterogeneity=2
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
import torch

from abps import simulate
from abps.core.usefulness import Usefulness, normal_cdf
from abps.data.federation import Federation
from abps.data.prepare import Prepared, Rows, prepare
from abps.data.table import load
from abps.models.batched import StackedLearner
from abps.models.metrics import auroc, labels_of
from abps.models.training import Training

#: Normal quantiles of central intervals.
INTERVALS = {0.5: 0.674, 0.8: 1.282, 0.95: 1.960}


def pooled(data: Prepared, most: int = 3000) -> Rows:
    """For every center the test rows of all centers of its group, at most so many."""
    groups = np.array(data.groups)
    rng = np.random.default_rng(0)
    index = []
    for i in range(data.size):
        members = np.flatnonzero(groups == groups[i])
        rows = np.concatenate([np.arange(data.test.start[m], data.test.start[m + 1]) for m in members])
        index.append(rows if len(rows) <= most else rng.choice(rows, most, replace=False))
    whole = np.concatenate(index)
    start = np.concatenate([[0], np.cumsum([len(rows) for rows in index])])
    return Rows(data.test.x[whole], data.test.y[whole], start)


def measure(federation: Federation, seed: int, peers: int) -> tuple[np.ndarray, ...]:
    """(pairs,) belief mean, its deviation, truth, the center's own level, and was the peer measured?"""
    data, training = prepare(federation, seed), Training()
    run = simulate(data, "abps-plus-v1", seed=seed)
    belief, models = run.beliefs, run.models
    assert isinstance(belief, Usefulness) and models is not None
    learner = StackedLearner(data, training, training.factory, seed)
    rows, shared = pooled(data), learner.layout.shared(1)
    own = auroc(learner.logits(models, rows), labels_of(rows))
    rng = np.random.default_rng(seed)
    center = np.repeat(np.arange(data.size), peers)
    peer = (center + rng.integers(1, data.size, len(center))) % data.size
    truth = np.empty(len(center))
    for at in range(0, len(center), 256):
        i, j = center[at : at + 256], peer[at : at + 256]
        mixed = models[torch.from_numpy(i)]
        mixed[:, :shared] = models[torch.from_numpy(j), :shared]
        truth[at : at + 256] = auroc(learner.logits(mixed, rows, i), labels_of(rows, i))
    met = belief.count[center, peer] > 0
    return belief.mean[center, peer], belief.sd[center, peer], truth, own[center], met


def noted(name: str, seed: int) -> None:
    """What a run of abps-plus notes of its beliefs, as a line of a table."""
    check = simulate(load(name), "abps-plus", seed=seed).belief_check
    fifths = [
        f"{told:.2f} → {helped:.2f} ({count})" if count else "–"
        for told, helped, count in zip(check.told, check.helped, check.counts)
    ]
    print(f"| {name} | {check.pairs} | {100 * check.cover:.1f} % | " + " | ".join(fifths) + " |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", action="append", help="a built-in federation with groups; may be repeated")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--method", default="abps-plus-v1", choices=("abps-plus-v1", "abps-plus"))
    parser.add_argument("--peers", type=int, default=30, help="peers looked at per center")
    options = parser.parse_args()
    if options.method == "abps-plus":
        for name in options.data or ["icu-synthetic:heterogeneity=4"]:
            noted(name, options.seed)
        return
    for name in options.data or ["icu-synthetic:heterogeneity=4"]:
        mean, sd, truth, own, met = measure(load(name), options.seed, options.peers)
        print(f"\n{name}, seed {options.seed}")
        print(
            "| peers | pairs | mean error | spread of the truth | "
            + " | ".join(f"in the {share:.0%} interval" for share in INTERVALS)
            + " |"
        )
        print("|---|---|---|---|" + "---|" * len(INTERVALS))
        for what, chosen in (("measured", met), ("not measured", ~met)):
            off = np.abs(truth - mean)[chosen]
            inside = [f"{np.mean(off <= z * sd[chosen]):.0%}" for z in INTERVALS.values()]
            print(
                f"| {what} | {chosen.sum()} | {off.mean():.3f} | {truth[chosen].std():.3f} | "
                + " | ".join(inside)
                + " |"
            )
        even = 0.5 + 0.5 * (own - 0.5)
        chance = normal_cdf((mean - even) / sd)
        print("| P(helps) | pairs | helped |\n|---|---|---|")
        edges = np.linspace(0, 1, 6)
        for low, high in itertools.pairwise(edges):
            here = (chance >= low) & (chance < high + (high == 1))
            if here.any():
                print(f"| {low:.1f}–{high:.1f} | {here.sum()} | {np.mean(truth[here] > even[here]):.0%} |")


if __name__ == "__main__":
    main()
