"""The layer contract fails when it is broken: shown on a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import abps

PACKAGE = Path(abps.__file__).parent
SETTINGS = Path(__file__).parents[1] / "pyproject.toml"


def broken(root: Path) -> str:
    """The contracts that a copy of the package breaks, as import-linter reports them."""
    run = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", run]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert ("BROKEN" in done.stdout) == (done.returncode != 0), done.stdout + done.stderr
    return "\n".join(line for line in done.stdout.splitlines() if "BROKEN" in line and "kept" not in line)


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("simulator/simulate.py", "", ""),
        ("simulator/simulate.py", "import nvflare", "only sites.flare imports nvflare"),
        ("sites/store.py", "from nvflare.apis import fl_context", "only sites.flare imports nvflare"),
        ("core/ledger.py", "import torch", "core is NumPy only"),
        ("methods/base.py", "from abps.study import plan", "layers: imports point down only"),
        ("data/table.py", "def late():\n    import abps.models.models", "layers: imports point down only"),
    ],
)
def test_an_import_that_points_up_is_seen(tmp_path, module, line, contract):
    shutil.copytree(PACKAGE, tmp_path / "abps", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(SETTINGS, tmp_path / "pyproject.toml")
    path = tmp_path / "abps" / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    found = broken(tmp_path)
    assert (contract in found) if contract else not found
