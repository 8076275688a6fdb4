"""A method's file needs little of the package: a reader of FedAvg reads a few modules, and no PyTorch."""

from __future__ import annotations

import subprocess
import sys

MOST = 20


def test_fedavg_imports_few_modules():
    code = "import sys, abps.methods.fedavg; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names = loaded.split()
    ours = [name for name in names if name.split(".")[0] == "abps"]
    assert "abps.methods.fedavg" in ours
    assert len(ours) <= MOST, ours
    assert "torch" not in names and "numba" not in names
