"""The import contracts fail when they are broken: shown on a copy of the package."""

from __future__ import annotations

import ast
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


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "abps", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(SETTINGS, tmp_path / "pyproject.toml")
    return tmp_path


def test_the_package_keeps_all_contracts(copy):
    assert broken(copy) == ""


def test_forbidden_imports_are_seen(copy):
    """One wrong import for every contract, all at once."""
    wrong = {
        "engine/simulate.py": "import nvflare",
        "core/ledger.py": "import torch",
        "methods/base.py": "from abps.lab import rivals",
        "data/table.py": "def late():\n    import abps.models.training",
    }
    for module, line in wrong.items():
        path = copy / "abps" / module
        path.write_text(f"{path.read_text()}\n{line}\n")
    found = broken(copy)
    for contract in (
        "only sites.flare imports nvflare",
        "core is NumPy only",
        "the product never imports the laboratory",
        "layers: imports point down only",
    ):
        assert contract in found


def test_every_import_of_ours_leads_somewhere():
    """Also those inside functions: a checker that ignores missing packages sees no module that moved."""
    root = Path(__file__).parent.parent / "src"
    lost = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("abps."):
                place = root / Path(*node.module.split("."))
                if not place.with_suffix(".py").exists() and not place.is_dir():
                    lost.append(f"{path.name}:{node.lineno} {node.module}")
    assert not lost
