"""Members that attack: what honest centers lose, with and without defences, and how often they meet them.

    python benchmarks/attacks.py --out attacks.json
    python benchmarks/attacks.py --out attacks.json --table

Every method runs once without an attack and once under each; honest centers are the same ones throughout. A
line is written as soon as it is known, and lines that are there already are not computed again. ``--table``
prints what is there as Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import abps
from abps.core.streams import center_ids
from abps.engine.attacks import parse
from abps.methods.settings import configure

#: Name in the table -> method, settings, and whether what arrives is looked at. All with the same model, so
#: that only the rule differs.
METHODS: dict[str, tuple[str, dict[str, str], bool]] = {
    "local-best": ("local-best", {}, True),
    "fedavg, undefended": ("fedavg", {"model": "gam"}, False),
    "fedavg": ("fedavg", {"model": "gam"}, True),
    "fedavg, median": ("fedavg", {"model": "gam", "aggregate": "median"}, True),
    "fedavg, trimmed": ("fedavg", {"model": "gam", "aggregate": "trimmed"}, True),
    "fedavg, krum": ("fedavg", {"model": "gam", "aggregate": "krum"}, True),
    "fedavg, trusted": ("fedavg", {"model": "gam", "aggregate": "trusted"}, True),
    "random-k1, undefended": ("random-k1", {"model": "gam"}, False),
    "random-k1": ("random-k1", {"model": "gam"}, True),
    "abps-plus, undefended": ("abps-plus", {"robust": "no"}, False),
    "abps-plus": ("abps-plus", {}, True),
}

ATTACKS = (
    "", "sign-flip:share=0.2", "random:share=0.2", "scale:share=0.2", "scale:share=0.2,strength=0",
    "huge:share=0.02",
    "label-flip:share=0.2", "nan:share=0.2", "free-rider:share=0.2", "copy:share=0.2", "liar:share=0.2",
    "clique:share=0.2", "poison:share=0.2",
)  # fmt: skip


@contextlib.contextmanager
def undefended() -> Iterator[None]:
    """Every finite message is let in, however far out, and boards trust everybody. (Not a number stays out:
    with it a method without defence has no model at all.)"""

    def finite(theirs: Any, own: Any, farthest: float = 0.0) -> Any:
        return np.isfinite(theirs)

    with (
        mock.patch("abps.engine.rounds.plausible", finite),
        mock.patch("abps.methods.rollcall.ordinary", lambda weights, there: there),
    ):
        yield


def honest_mean(run: abps.Run, attackers: set[str]) -> float:
    """The mean AUROC of the centers that do not attack."""
    values = [v for name, v in run.auroc.per_center.items() if name not in attackers]
    return float(np.nanmean(values))


def met(run: abps.Run, attackers: set[str], after: int) -> float | None:
    """The share of honest centers' exchanges that were with attackers, in later rounds."""
    trail = run.decisions
    if trail.is_empty():
        return None
    there = trail.filter((trail["decision"] == "accepted") & (trail["round"] > after))
    pairs = [
        (c, p) for c, p in zip(there["center"], there["peer"]) if c not in attackers or p not in attackers
    ]
    return float(np.mean([c in attackers or p in attackers for c, p in pairs])) if pairs else 0.0


def compute(given: argparse.Namespace, lines: list[dict[str, Any]]) -> None:
    """What is missing, line by line."""
    done = {(line["method"], line["attack"], line["seed"]) for line in lines}
    federation = abps.load(given.data)
    ids = center_ids(federation.centers)
    for seed in (int(s) for s in given.seeds.split(",")):
        who: dict[str, set[str]] = {}
        for each in filter(None, given.attacks.split(";")):
            chosen = parse(each).attackers(seed, ids)
            who[each] = {c for c, bad in zip(federation.centers, chosen) if bad}
        for attack in given.attacks.split(";"):
            for name in given.methods.split(";"):
                if (name, attack, seed) in done or (name == "local-best" and attack):
                    continue
                method, settings, looks = METHODS[name]
                config = configure(method, settings, None if name == "local-best" else given.rounds)
                try:
                    with contextlib.nullcontext() if looks else undefended():
                        run = abps.simulate(federation, config, seed, name=method, attack=attack or None)
                except (ValueError, RuntimeError, ArithmeticError) as error:
                    if looks:
                        raise
                    # Numbers beyond all bounds: without a defence there is no model any more.
                    print(seed, attack, name, f"no model: {error}", flush=True)
                    lines.append({"method": name, "attack": attack, "seed": seed, "honest": None})
                    continue
                mine = {each: members for each, members in who.items() if each == attack or not attack}
                lines.append(
                    {
                        "method": name,
                        "attack": attack,
                        "seed": seed,
                        "honest": {each: honest_mean(run, members) for each, members in mine.items()},
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


def table(lines: list[dict[str, Any]]) -> str:
    """Honest centers' mean AUROC by method and attack, over the seeds that are there; below, who was met."""
    attacks = [a for a in ATTACKS if any(line["attack"] == a for line in lines)]
    seeds = sorted({line["seed"] for line in lines})
    found = {(line["method"], line["attack"], line["seed"]): line for line in lines}

    def mean(method: str, attack: str) -> str:
        values = []
        for seed in seeds:
            line = found.get((method, attack, seed)) or (
                found.get((method, "", seed)) if method == "local-best" else None
            )
            if line is None:
                return "–"
            if line["honest"] is None:
                return "no model"
            values.append(line["honest"][attack] if attack else np.nanmean(_known(line["per_center"])))
        return f"{np.mean(values):.3f}".lstrip("0")

    names = ["scale to 0" if "strength=0" in a else a.partition(":")[0] or "clean" for a in attacks]
    rows = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for method in METHODS:
        rows.append(f"| `{method}` | {' | '.join(mean(method, a) for a in attacks)} |")
    rows += ["", f"| pairs with attackers after round 30 | {' | '.join(names[1:])} |"]
    rows.append("|---" * len(names) + "|")
    for method in ("random-k1, undefended", "random-k1", "abps-plus, undefended", "abps-plus"):
        shares = [
            [
                found[method, a, s]["met"]
                for s in seeds
                if found.get((method, a, s), {}).get("met") is not None
            ]
            for a in attacks
            if a
        ]
        rows.append(
            f"| `{method}` | {' | '.join(f'{np.mean(each):.0%}' if each else '–' for each in shares)} |"
        )
    losses = ["", "| largest loss of an honest center to the clean run | " + " | ".join(names[1:]) + " |"]
    losses.append("|---" * len(names) + "|")
    for method in METHODS:
        cells = []
        for attack in attacks[1:]:
            worst = []
            for seed in seeds:
                clean, hurt = found.get((method, "", seed)), found.get((method, attack, seed))
                if clean is not None and hurt is not None and hurt["honest"] is not None:
                    worst += [
                        clean["per_center"][c] - v
                        for c, v in hurt["per_center"].items()
                        if c not in hurt["attackers"] and v is not None and clean["per_center"][c] is not None
                    ]
            cells.append(f"{np.nanmax(worst):.3f}".lstrip("0") if worst else "–")
        if method != "local-best":
            losses.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join([*rows, *losses])


def _known(per_center: dict[str, float | None]) -> list[float]:
    return [v for v in per_center.values() if v is not None]


def main() -> None:
    """Compute what is missing, or print what is there."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", default="icu-synthetic:centers=60")
    words.add_argument("--rounds", type=int, default=50)
    words.add_argument("--seeds", default="11,22")
    words.add_argument("--methods", default=";".join(METHODS))
    words.add_argument("--attacks", default=";".join(ATTACKS))
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--table", action="store_true", help="Print what is there.")
    given = words.parse_args()
    lines = json.loads(given.out.read_text()) if given.out.exists() else []
    if given.table:
        print(table(lines))
    else:
        compute(given, lines)


if __name__ == "__main__":
    main()
