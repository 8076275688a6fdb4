"""Accuracy against bytes: abps-plus in every codec, number of partners and calling frequency.

Reads finished studies, also of other methods; points are means over the seeds that all of them have.

    abps compare --methods paper --seeds 11,22 --out paper
    abps compare --methods abps-plus --vary codec=fp32,bf16,int8,int4,int3 --vary every=1,2,4 \\
        --seeds 11,22 --out codecs
    abps compare --methods abps-plus --set kappa=3 --vary codec=bf16,int4,int3 --seeds 11,22 --out partners
    python benchmarks/frontier.py paper codecs partners --out frontier.svg
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

#: Bits a weight of every codec, in the order in which lines are drawn.
CODECS = {"fp32": 32, "bf16": 16, "int8": 8, "int4": 4, "int3": 3}


@dataclass(frozen=True)
class Point:
    """One configuration: its method, what varies, and its means over seeds."""

    method: str
    codec: str
    kappa: int
    every: int
    bytes: float
    auroc: float


def setting(config: Any, name: str) -> Any:
    """A setting by its name, wherever in the configuration it stands; None where there is none."""
    if isinstance(config, dict):
        if name in config:
            return config[name]
        found = (setting(value, name) for value in config.values())
        return next((value for value in found if value is not None), None)
    return None


def points(folders: list[Path], data: str) -> tuple[list[Point], list[int]]:
    """All configurations, over the seeds that they share."""
    runs: dict[tuple[str, str, int, int], dict[int, tuple[float, float]]] = defaultdict(dict)
    for file in (file for folder in folders for file in sorted(folder.glob("runs/*/result.json"))):
        run = json.loads(file.read_text())
        if run["data"]["name"] != data:
            continue
        config, varies = run["config"], run["method"].startswith("abps-plus")
        which = (
            (setting(config, "codec"), setting(config, "kappa"), setting(config, "every"))
            if varies
            else ("", 0, 0)
        )
        runs[(run["method"], *which)][run["seed"]] = (run["bytes"]["vs_fedavg"], run["auroc"]["mean"])
    seeds = sorted(set.intersection(*(set(found) for found in runs.values()))) if runs else []
    return [
        Point(*key, *np.mean([found[seed] for seed in seeds], axis=0)) for key, found in runs.items()
    ], seeds


def draw(found: list[Point], seeds: list[int], out: Path) -> None:
    """The figure."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    ours = [p for p in found if p.method == "abps-plus"]
    others = sorted((p for p in found if p.method != "abps-plus" and p.bytes > 0), key=lambda p: p.auroc)
    axes.set_xscale("log")
    axes.plot([p.bytes for p in others], [p.auroc for p in others], "o", color="#8a8f98", markersize=5)
    for kappa, every in sorted({(p.kappa, p.every) for p in ours}):
        line = sorted(
            (p for p in ours if (p.kappa, p.every) == (kappa, every)), key=lambda p: -CODECS[p.codec]
        )
        name = f"abps-plus, κ={kappa}" + (f", every {every} rounds" if every > 1 else "")
        axes.plot([p.bytes for p in line], [p.auroc for p in line], "*-", label=name, markersize=9)
        if every == 1:
            for p in line:
                axes.annotate(
                    p.codec, (p.bytes, p.auroc), (0, 6), textcoords="offset points", fontsize=7, ha="center"
                )
    axes.set_xlabel("bytes, multiples of 50 rounds of FedAvg (log scale)")
    axes.set_ylabel("mean AUROC over centers")
    axes.set_title(f"seed {', '.join(map(str, seeds))}", fontsize=9)
    axes.grid(alpha=0.25)
    if ours:
        axes.legend(fontsize=8, loc="upper left", ncols=2)
        axes.set_ylim(top=axes.get_ylim()[1] + 0.012)
    figure.draw_without_rendering()
    taken: list[tuple[float, float]] = []
    for p in others:
        x, y = axes.transData.transform((p.bytes, p.auroc))
        lift = 0.0
        while any(abs(x - left) < 80 and abs(y + lift - low) < 9 for left, low in taken):
            lift += 3.0
        taken.append((x, y + lift))
        points = 72 / figure.dpi
        axes.annotate(
            p.method, (p.bytes, p.auroc), (5, lift * points), textcoords="offset points", fontsize=6.5
        )
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--data", default="icu-synthetic")
    parser.add_argument("--out", type=Path, default=Path("frontier.svg"))
    a = parser.parse_args()
    found, seeds = points(a.studies, a.data)
    if not seeds:
        parser.error(f"no finished runs on {a.data} with a common seed in {', '.join(map(str, a.studies))}")
    print("| method | codec | κ | every | bytes | AUROC |\n|---|---|---|---|---|---|")
    for p in sorted(found, key=lambda p: p.bytes):
        which = f"{p.codec} | {p.kappa} | {p.every}" if p.codec else " | | "
        print(f"| `{p.method}` | {which} | {p.bytes:.3f}× | {p.auroc:.4f} |")
    draw(found, seeds, a.out)


if __name__ == "__main__":
    main()
