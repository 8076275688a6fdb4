"""The scripts whose results the pages quote still run against the package: all of them can be imported."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))


def test_every_script_can_be_imported():
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    place = os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, *(path.stem for path in SCRIPTS)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": place},
    )
    assert len(SCRIPTS) > 10
    assert done.returncode == 0, done.stderr[-1500:]
