"""What members that push one coefficient do to the others, with and without masks.

    python benchmarks/masked_attacks.py --csv benchmarks/results/masked_attacks.csv

Runs the tests that bound it, with eight sites, and stores what they print, a line per attack: whether sums
are masked, how many lie, which entry of every upload they change and by how much, the mean AUROC of the six
others, and how far their coefficient is from that of a run without liars, at least and at most.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "test_under_masks_liars_can_do_no_more_than_leave_the_others_alone",
    "test_two_of_eight_aim_at_one_coefficient",
)
HEAD = ("masks", "liars", "entry", "push", "AUROC", "least moved", "most moved")


def main() -> None:
    """Run the tests, write what they print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, required=True)
    asked = parser.parse_args()
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-n", "0", "tests/sites/test_attacks.py"]
    done = subprocess.run([*command, "-k", " or ".join(TESTS)], cwd=ROOT, capture_output=True, text=True)
    lines = [line.split(",")[1:] for line in done.stdout.splitlines() if line.startswith("attack,")]
    if done.returncode or not lines:
        raise SystemExit(done.stdout[-2000:])
    honest = next(
        line for line in lines if line[:2] == ["yes", "0"]
    )  # under masks the tests print coefficients
    middle = (float(honest[5]) + float(honest[6])) / 2
    with asked.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for line in lines:
            if line[0] == "yes":
                ends = sorted(abs(float(value) - middle) for value in line[5:])
                line = [*line[:5], *(f"{value:.4f}" for value in ends)]
            writer.writerow(line)


if __name__ == "__main__":
    main()
