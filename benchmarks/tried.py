"""What values of a setting do, on validation rows and on test rows: from finished studies with ``--vary``.

    abps compare --methods abps-plus --vary dual=0,0.1,0.3 --seeds 201,202 --no-references --out dual \\
        --data icu-synthetic:heterogeneity=4 --data icu-synthetic:heterogeneity=0
    python benchmarks/tried.py dual

A line for each value, a column for each federation: mean AUROC over centers and seeds on validation rows, by
which defaults are chosen, then on test rows; last the bytes, everything counted, of the first federation.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np


def main() -> None:
    """Print the tables."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("studies", nargs="+", type=Path)
    for folder in parser.parse_args().studies:
        told = json.loads((folder / "study.json").read_text())
        names = list(told["request"]["vary"]) or ["model"]
        print(f"\n{folder.name}\n")
        print(table(folder, names))


def table(folder: Path, names: list[str]) -> str:
    """One study in Markdown."""
    seen: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for file in sorted(folder.glob("runs/*/result.json")):
        run = json.loads(file.read_text())
        value = ", ".join(f"{name}={found(run['config'], name)}" for name in names)
        validation, cost = run["history"]["validation_auroc"][-1], run["bytes"]["all_vs_fedavg"]
        seen[value, run["data"]["name"]].append((validation, run["auroc"]["mean"], cost))
    values, worlds = (list(dict.fromkeys(key[k] for key in seen)) for k in (0, 1))
    lines = [f"| | {' | '.join(worlds)} | bytes |", "|---" * (len(worlds) + 2) + "|"]
    for value in values:
        means = [np.mean(seen[value, world], axis=0) for world in worlds]
        cells = [f"{mean[0]:.4f} / {mean[1]:.4f}" for mean in means]
        lines.append(f"| `{value}` | {' | '.join(cells)} | {means[0][2]:.4f}× |")
    return "\n".join(lines)


def found(config: object, name: str) -> object:
    """The value of a setting, wherever it stands in a method's configuration."""
    if isinstance(config, dict):
        if name in config:
            return config[name]
        return next((value for each in config.values() if (value := found(each, name)) is not None), None)
    return None


if __name__ == "__main__":
    main()
