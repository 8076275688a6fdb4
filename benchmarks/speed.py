"""Speed of local training beside a plain PyTorch loop and the machine's matrix-multiply speed.

    python benchmarks/speed.py --csv benchmarks/results/speed.csv

Runs ``abps bench`` on the default federation and on a uniform one. Do so on an idle machine: the last line
has the load that there was before.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

#: What is stored, and what ``abps bench --json`` calls it.
MEASURES = {
    "center-rounds per second": "center_rounds_per_s",
    "a plain PyTorch loop": "loop_center_rounds_per_s",
    "ratio": "ratio_to_loop",
    "fraction of the matrix-multiply roof": "fraction_of_roof",
}


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", default="9")
    parser.add_argument("--csv", type=Path, required=True)
    asked = parser.parse_args()
    load, found = os.getloadavg()[0], []
    for data in ("icu-synthetic", "uniform"):
        command = [sys.executable, "-m", "abps", "bench", "--data", data, "--turns", asked.turns, "--json"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(said.strip().splitlines()[-1]))
    with asked.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("what", "icu-synthetic", "uniform"))
        for words, name in MEASURES.items():
            writer.writerow([words, *(f"{each[name]:.3f}" for each in found)])
        writer.writerow(("load before", f"{load:.1f}", ""))


if __name__ == "__main__":
    main()
