"""Those who choose, side by side: the tuned table and the frontier of docs/rivals.md, from finished studies.

    abps compare --data icu-synthetic:heterogeneity=4 --model gam --methods fedavg,pfedgraph,ifca,abps-plus \\
        --seeds 701,702,703,704,705 --tune --tune-seeds 801 --no-references --out severe
    python benchmarks/choosing.py severe=severe medium=medium --out frontier-choosing.svg

A world may lie in several folders (``severe=rivals+ours``). Differences to abps-plus are paired by seed, with
a 95 % interval over seeds (t). Bytes: everything counted, control and common statistics too, in multiples of
fifty rounds of FedAvg with the paper's network.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter
from scipy.stats import t

#: The method that others are compared with.
OURS = "abps-plus"

#: It knows the true kinds, which nobody does.
ORACLE = "group-oracle-k1"


@dataclass(frozen=True)
class Row:
    """A method in one world. auroc, bytes: by seed."""

    method: str
    auroc: dict[int, float]
    bytes: dict[int, float]
    chosen: str

    @property
    def mean(self) -> float:
        """AUROC over seeds."""
        return float(np.mean(list(self.auroc.values())))

    @property
    def cost(self) -> float:
        """Bytes over seeds."""
        return float(np.mean(list(self.bytes.values())))


def read(folders: list[Path]) -> list[Row]:
    """Every method of the finished runs, the best first."""
    auroc: dict[str, dict[int, float]] = defaultdict(dict)
    cost: dict[str, dict[int, float]] = defaultdict(dict)
    chosen: dict[str, str] = {}
    for folder in folders:
        for file in sorted(folder.glob("runs/*/result.json")):
            run = json.loads(file.read_text())
            auroc[run["method"]][run["seed"]] = run["auroc"]["mean"]
            cost[run["method"]][run["seed"]] = run["bytes"]["all_vs_fedavg"]
        for choice in json.loads((folder / "study.json").read_text()).get("choices", []):
            chosen[choice["method"]] = ", ".join(f"{k}={v}" for k, v in choice["settings"].items())
    rows = [Row(name, auroc[name], cost[name], chosen.get(name, "")) for name in auroc]
    return sorted(rows, key=lambda row: -row.mean)


def against(row: Row, ours: Row) -> tuple[float, float, float]:
    """Ours minus the other's AUROC: the mean over the seeds that both have, and its 95 % interval."""
    seeds = sorted(set(row.auroc) & set(ours.auroc))
    gaps = np.array([ours.auroc[s] - row.auroc[s] for s in seeds])
    if len(gaps) < 2:
        return float(gaps.mean()), float("-inf"), float("inf")
    half = t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    return float(gaps.mean()), float(gaps.mean() - half), float(gaps.mean() + half)


def table(context: str, rows: list[Row]) -> str:
    """One world in Markdown."""
    ours = next((row for row in rows if row.method == OURS), None)
    head = ("method", "AUROC", "seeds", "abps-plus minus it", "bytes, all", "chosen")
    lines = [f"**{context}**", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        gap = "–"
        if ours is not None and row is not ours:
            mean, low, high = against(row, ours)
            gap = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
        cells = (f"`{row.method}`", f"{row.mean:.3f}", len(row.auroc), gap, f"{row.cost:.2g}×", row.chosen)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def draw(worlds: dict[str, list[Row]], out: Path) -> None:
    """AUROC against all bytes, a panel a world."""
    across = min(3, len(worlds))
    down = -(-len(worlds) // across)
    figure, panels = plt.subplots(
        down, across, figsize=(4.2 * across, 3.4 * down), layout="constrained", squeeze=False
    )
    for panel in panels.flat[len(worlds) :]:
        panel.axis("off")
    for panel, (context, rows) in zip(panels.flat, worlds.items()):
        panel.set_xscale("log")
        panel.set_title(context, fontsize=10)
        panel.xaxis.set_minor_formatter(NullFormatter())
        for row in (row for row in rows if row.cost > 0):
            ours, oracle = row.method == OURS, row.method == ORACLE
            colour = "#c2410c" if ours else "#1d4ed8" if oracle else "#6b7280"
            panel.plot(row.cost, row.mean, "D" if oracle else "o", color=colour, markersize=7 if ours else 5)
            panel.annotate(
                row.method,
                (row.cost, row.mean),
                xytext=(5, 2),
                textcoords="offset points",
                fontsize=7,
                color=colour,
            )
        panel.set_xlabel("bytes, everything counted (× FedAvg with the paper's network)", fontsize=7)
        panel.set_ylabel("AUROC, mean over centers", fontsize=7)
        panel.tick_params(labelsize=7)
        panel.margins(x=0.2)
    figure.savefig(out)


def main() -> None:
    """Tables to standard output, the figure to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("worlds", nargs="+", metavar="NAME=FOLDER[+FOLDER]")
    parser.add_argument("--out", type=Path, help="the figure (SVG or PNG)")
    options = parser.parse_args()
    worlds = {}
    for word in options.worlds:
        name, _, folders = word.partition("=")
        worlds[name] = read([Path(folder) for folder in folders.split("+")])
        print(table(name, worlds[name]))
    if options.out is not None:
        draw(worlds, options.out)


if __name__ == "__main__":
    main()
