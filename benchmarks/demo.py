"""What ``abps demo`` prints, and what it costs.

    python benchmarks/demo.py --out benchmarks/results/demo.txt

The demo runs in a new folder; the last line has its processor seconds, workers included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Run the demo, write what it prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "abps", "demo", "--out", "abps-demo"]
        wide = {**os.environ, "COLUMNS": "120"}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=wide)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    used = os.times()
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    lines.append(f"processor seconds: {used.children_user + used.children_system:.0f}")
    asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
