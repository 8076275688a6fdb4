"""What installing takes: the wheel, a new environment, and the demo from it.

    make package
    python benchmarks/install_size.py build/dist/*.whl --csv benchmarks/results/install.csv

Makes a virtual environment in a temporary folder, installs the wheel and runs ``abps demo``. Times are
processor seconds, workers included.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path


def spent(*command: str, folder: str) -> float:
    """Processor seconds of a command, run without this checkout."""
    before = os.times()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=folder, env=clean, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main() -> None:
    """Install, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--csv", type=Path, required=True)
    asked = parser.parse_args()
    found: dict[str, object] = {"Python": platform.python_version()}
    found["wheel, MB"] = f"{asked.wheel.stat().st_size / 1e6:.2f}"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "abps"
        spent(sys.executable, "-m", "venv", str(home), folder=folder)
        install = (str(home / "bin" / "pip"), "install", "--quiet", str(asked.wheel.resolve()))
        found["installing, s"] = f"{spent(*install, folder=folder):.0f}"
        found["environment, GB"] = f"{size(home) / 1e9:.2f}"
        found["PyTorch, GB"] = f"{size(next(home.glob('lib/*/site-packages/torch'))) / 1e9:.2f}"
        demo = (str(home / "bin" / "abps"), "demo", "--out", "demo")
        found["demo, first time, s"] = f"{spent(*demo, folder=folder):.0f}"
        again = (*demo[:3], "again")
        found["demo, second time, s"] = f"{spent(*again, folder=folder):.0f}"
    with asked.csv.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("what", "value"), *found.items()])


if __name__ == "__main__":
    main()
