"""What abps-plus gains, world by world: the table of docs/abps-plus.md.

    python benchmarks/kinds.py --out kinds.jsonl                      # all synthetic worlds, 3 seeds
    python benchmarks/kinds.py --world p12=p12fed.parquet --out p12.jsonl
    python benchmarks/kinds.py --null 100            # how often the test finds what is not there
    python benchmarks/kinds.py --null-scores 200     # the same on made-up rows, without training

Every method shares the same model (gam) and has the same 50 rounds. Runs that are in --out already are not
repeated, and the table is printed from all of them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from abps.cli.options import complete
from abps.data.federation import Federation
from abps.data.roles import Roles
from abps.data.table import load
from abps.engine.simulate import simulate
from abps.evaluate.shrinkage import center_gains
from abps.lab import spectrum
from abps.methods.base import World
from abps.methods.kindred import Kindred, Standing
from abps.methods.peers import Notice
from abps.report.statistics import HARM

WORLDS = {
    "severe": "icu-synthetic:heterogeneity=4",
    "severe, metadata tell nothing": "icu-synthetic:heterogeneity=4,aligned=false",
    "medium": "icu-synthetic:heterogeneity=2",
    "mild": "icu-synthetic:heterogeneity=1",
    "none": "icu-synthetic:heterogeneity=0",
    "own risk each": "icu-synthetic:heterogeneity=4,aligned=false,groups=230",
    "one in forty is odd": "icu-synthetic:heterogeneity=4,alike=0.975",
}

METHODS = ("local-best", "fedavg", "feddyn", "ditto", "random-k1", "group-oracle-k1", "abps-plus")


def federation(data: str) -> Federation:
    """A built-in federation, or a table of ours that carries its roles."""
    return load(data, complete(data, Roles(label="", center=""))) if data.endswith(".parquet") else load(data)


def one(data: Federation, method: str, seed: int) -> dict[str, object]:
    """A run as a line of numbers."""
    model = None if method in ("local-best", "abps-plus") else "gam"
    run = simulate(data, method, seed=seed, model=model)
    tested = run.heterogeneity
    return {
        "method": method,
        "seed": seed,
        "auroc": run.auroc.mean,
        "edge": run.bytes.vs_fedavg,
        "all": run.bytes.all_vs_fedavg,
        "rest": run.rest.share,
        "per_center": run.auroc.per_center,
        "p": None if tested is None else tested.p,
        "dimensions": None if tested is None else tested.dimensions,
        "kinds": None if tested is None else tested.kinds,
    }


def false_positives(count: int, centers: int) -> None:
    """How often the test says at 5 % that alike centers differ: a federation and a seed each, all looks.

    The test looks before three rounds; a federation counts if any of them rejects.
    """
    told: list[float] = []

    @dataclass(frozen=True)
    class Heard(Kindred):
        """Notes the p-value of every look."""

        def informed(self, world: World, state: Standing, notice: Notice, t: int, question: int) -> Standing:
            after = super().informed(world, state, notice, t, question)
            if self.asked(t)[question] == "kin":
                told.append(float(after.test[0]))
            return after

    method = Heard(last=())
    looks = []
    for seed in range(count):
        data = load(f"icu-synthetic:centers={centers},heterogeneity=0,seed={1000 + seed}")
        told.clear()
        simulate(data, method, seed=1000 + seed, rounds=method.roll.again[-1] + 1)
        looks.append(list(told))
        p = np.array(looks)
        each = ", ".join(f"{share:.1f}" for share in 100 * (p < 0.05).mean(axis=0))
        print(
            f"{len(p)} federations: {each} % below 0.05 at each look, "
            f"{100 * (p < 0.05).any(axis=1).mean():.1f} % at any; level of each look for 5 % at any: "
            f"{np.quantile(p.min(axis=1), 0.05):.3f}; median {np.median(p[:, 0]):.2f}",
            flush=True,
        )


def false_positives_of_scores(count: int) -> None:
    """How often scores of made-up rows (unequal centers, correlated columns, no differences) are called
    different: with the null draws that so many centers tell."""
    rng = np.random.default_rng(1)
    for n, k in ((16, 69), (40, 69), (15, 100), (40, 196), (80, 69)):
        factors, spread = rng.standard_normal((5, k)) * 0.5, np.exp(0.5 * rng.standard_normal(k))
        found = []
        for _ in range(count):
            told = []
            for rows in np.maximum(30, 120 * np.exp(0.7 * rng.standard_normal(n))).astype(int).tolist():
                x = rng.standard_normal((rows, 5)) @ factors + rng.standard_normal((rows, k)) * spread
                y = (rng.random(rows) < 0.12).astype(float)
                y[:2] = 0.0, 1.0
                signs = np.where(rng.integers(0, 2, (spectrum.draws(n), rows)) > 0, 1.0, -1.0)
                told.append(spectrum.score(x, y, np.zeros(rows), signs))
            scores, nulls, information = (np.array(part) for part in zip(*told))
            found.append(spectrum.spectrum(spectrum.Scores(scores, nulls, information)).p)
        share = np.mean(np.array(found) < 0.05)
        print(
            f"{n} centers, {k} columns: {100 * share:.1f} % below 0.05, median {np.median(found):.2f}",
            flush=True,
        )


def table(lines: list[dict[str, object]]) -> None:
    """Mean AUROC of every method in every world, and the share of the oracle's gain."""
    worlds = list(dict.fromkeys(line["world"] for line in lines))
    for world in worlds:
        mine = [line for line in lines if line["world"] == world]
        seeds = sorted({line["seed"] for line in mine if line["method"] == "abps-plus"})  # type: ignore[type-var]
        print(f"\n{world} (seeds {', '.join(map(str, seeds))})")
        means = {}
        for method in dict.fromkeys(line["method"] for line in mine):
            of = [line for line in mine if line["method"] == method]
            values = [float(line["auroc"]) for line in of]  # type: ignore[arg-type]
            means[method] = float(np.mean(values))
            told = " ".join(f"{value:.3f}" for value in values)
            extra = f" all {of[0]['all']:.4f}x rest {of[0]['rest']:.2f} p {of[0]['p']} kinds {of[0]['kinds']}"
            print(f"  {method:18s} {means[method]:.4f}  [{told}]{extra}")
        if {"group-oracle-k1", "random-k1", "abps-plus"} <= set(means):
            gain = means["group-oracle-k1"] - means["random-k1"]
            if gain > 0.01:
                share = (means["abps-plus"] - means["random-k1"]) / gain
                print(f"  share of the oracle's gain: {100 * share:.0f} %")
        if found := harmed(mine):
            print(f"  {found}")


def harmed(lines: list[dict[str, object]]) -> str:
    """The share of centers that truly lie more than 0.02 below local-best, with the noise taken out, and the
    worst of them; nothing where local-best has not run on two seeds of abps-plus."""
    scores = {
        (line["method"], line["seed"]): dict(line["per_center"])  # type: ignore[call-overload]
        for line in lines
        if line["method"] in ("abps-plus", "local-best")
    }
    both = [seed for method, seed in scores if method == "abps-plus" and ("local-best", seed) in scores]
    if len(both) < 2:
        return ""
    centers = sorted(scores["abps-plus", both[0]])

    def of(method: str, seed: object) -> list[float]:
        mine = scores[method, seed]
        return [np.nan if mine.get(center) is None else mine[center] for center in centers]

    gains = center_gains(np.array([np.subtract(of("abps-plus", s), of("local-best", s)) for s in both]))
    if gains is None:
        return ""
    chance = gains.below(-HARM)
    return f"harmed against local-best: {100 * np.nanmean(chance):.1f} % (worst {np.nanmin(gains.mean):+.3f})"


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("kinds.jsonl"))
    parser.add_argument("--seeds", default="101,102,103")
    parser.add_argument("--world", action="append", help="NAME=DATA; default: the synthetic worlds")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--null", type=int, help="count false positives in this many federations instead")
    parser.add_argument("--centers", type=int, default=40, help="of each of these federations")
    parser.add_argument("--null-scores", type=int, help="the same on made-up rows, without training")
    asked = parser.parse_args()
    if asked.null:
        false_positives(asked.null, asked.centers)
        return
    if asked.null_scores:
        false_positives_of_scores(asked.null_scores)
        return
    worlds = dict(pair.split("=", 1) for pair in asked.world) if asked.world else WORLDS
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    there = {(line["world"], line["method"], line["seed"]) for line in lines}
    for seed in map(int, asked.seeds.split(",")):
        for world, spec in worlds.items():
            data = federation(spec)
            for method in asked.methods.split(","):
                if (world, method, seed) in there or (method == "group-oracle-k1" and data.groups is None):
                    continue
                line = {"world": world} | one(data, method, seed)
                lines.append(line)
                with asked.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    table(lines)


if __name__ == "__main__":
    main()
