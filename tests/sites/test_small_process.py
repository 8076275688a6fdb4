"""A site's process with linear models does not load PyTorch, and one that waits loads no compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*words: str) -> str:
    """What a fresh interpreter prints."""
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_sites_with_linear_models_never_load_pytorch(tmp_path):
    assert json.loads(python("-m", "tests.sites.small_process", str(tmp_path)).splitlines()[-1]) == []


def test_a_process_of_a_job_loads_little():
    script = (
        "import importlib, json, sys\n"
        "from abps.sites.flare import job_process as p\n"
        "for m in (p.SITE, 'abps.sites.node.site', 'abps.sites.flare.app', 'abps.data.table'):\n"
        "    importlib.import_module(m)\n"
        "heavy = 'torch', 'numba', 'sklearn', 'pandas'\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))\n"
    )
    assert json.loads(python("-c", script).splitlines()[-1]) == []
