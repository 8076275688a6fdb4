"""Members that attack: what honest centers lose, with and without defences, and how often they meet them.

    python benchmarks/attacks.py --out attacks.json

Every method runs once without an attack and once under each; honest centers are the same ones throughout. A
line is written as soon as it is known, and lines that are there already are not computed again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import abps
from abps.core.streams import center_ids
from abps.methods.settings import configure
from abps.simulator.attacks import parse

#: Name in the table -> method and settings. All with the same model, so that only the rule differs.
METHODS = {
    "local-best": ("local-best", {}),
    "abps-plus": ("abps-plus", {}),
    "random-k1": ("random-k1", {"model": "gam"}),
    "fedavg": ("fedavg", {"model": "gam"}),
    "fedavg, median": ("fedavg", {"model": "gam", "aggregate": "median"}),
    "fedavg, trimmed": ("fedavg", {"model": "gam", "aggregate": "trimmed"}),
    "fedavg, krum": ("fedavg", {"model": "gam", "aggregate": "krum"}),
    "fedavg, trusted": ("fedavg", {"model": "gam", "aggregate": "trusted"}),
}

ATTACKS = (
    "", "sign-flip:share=0.2", "random:share=0.2", "scale:share=0.2", "huge:share=0.02",
    "label-flip:share=0.2", "nan:share=0.2", "free-rider:share=0.2", "copy:share=0.2", "liar:share=0.2",
    "clique:share=0.2",
    "poison:share=0.2",
)  # fmt: skip


def honest_mean(run: abps.Run, attackers: set[str]) -> float:
    """The mean AUROC of the centers that do not attack."""
    values = [v for name, v in run.auroc.per_center.items() if name not in attackers]
    return float(np.nanmean(values))


def met(run: abps.Run, attackers: set[str], after: int) -> float:
    """The share of honest centers' exchanges that were with attackers, in later rounds."""
    trail = run.decisions
    if trail.is_empty():
        return float("nan")
    there = trail.filter((trail["decision"] == "accepted") & (trail["round"] > after))
    pairs = [
        (c, p) for c, p in zip(there["center"], there["peer"]) if c not in attackers or p not in attackers
    ]
    return float(np.mean([c in attackers or p in attackers for c, p in pairs])) if pairs else 0.0


def main() -> None:
    """Compute what is missing, line by line."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", default="icu-synthetic:centers=60")
    words.add_argument("--rounds", type=int, default=50)
    words.add_argument("--seeds", default="11,22")
    words.add_argument("--methods", default=";".join(METHODS))
    words.add_argument("--attacks", default=";".join(ATTACKS))
    words.add_argument("--out", type=Path, required=True)
    given = words.parse_args()
    lines = json.loads(given.out.read_text()) if given.out.exists() else []
    done = {(line["method"], line["attack"], line["seed"]) for line in lines}
    federation = abps.load(given.data)
    for seed in (int(s) for s in given.seeds.split(",")):
        for attack in given.attacks.split(";"):
            for name in given.methods.split(";"):
                if (name, attack, seed) in done or (name == "local-best" and attack):
                    continue
                method, settings = METHODS[name]
                config = configure(method, settings, None if name == "local-best" else given.rounds)
                run = abps.simulate(federation, config, seed, name=method, attack=attack or None)
                who = {}
                ids = center_ids(federation.centers)
                for each in given.attacks.split(";"):
                    if each:
                        chosen = parse(each).attackers(seed, ids)
                        who[each] = {c for c, bad in zip(federation.centers, chosen) if bad}
                lines.append(
                    {
                        "method": name,
                        "attack": attack,
                        "seed": seed,
                        "honest": {
                            e: honest_mean(run, w) for e, w in who.items() if e == attack or not attack
                        },
                        "met": met(run, who[attack], 30) if attack else None,
                        "per_center": run.auroc.per_center,
                        "attackers": sorted(who.get(attack, ())),
                    }
                )
                given.out.write_text(json.dumps(lines))
                print(
                    seed,
                    attack or "clean",
                    name,
                    lines[-1]["honest"].get(attack),
                    lines[-1]["met"],
                    flush=True,
                )


if __name__ == "__main__":
    main()
