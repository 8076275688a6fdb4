"""Machine code that is kept follows the source it was compiled from. Shown on a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import abps

#: Calls a compiled function that calls another of its file: who stands at a place of a keyed order.
COMPUTE = """
import json
import numpy as np
from abps.methods.proposals import _permute
found = [int(_permute(k, np.uint64(7), 16, (2, 2, 4), True)) for k in range(16)]
kept = sum(_permute.made().stats.cache_hits.values())
print(json.dumps({"order": found, "from the disk": kept}))
"""


class Copy:
    """A copy of the package that may be edited, and a user's module beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(
            Path(abps.__file__).parent, root / "abps", ignore=shutil.ignore_patterns("__pycache__", "*.nb?")
        )
        (root / "mine.py").write_text(
            "import helper\nfrom abps.methods.fedavg import FedAvg\n"
            "class Mine(FedAvg):\n    factor = helper.FACTOR\nMINE = Mine()\n"
        )
        (root / "helper.py").write_text("FACTOR = 1\n")

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / "abps" / file if (self.root / "abps" / file).exists() else self.root / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new))

    def run(self, program: str) -> dict[str, object]:
        environment = os.environ | {"PYTHONPATH": str(self.root), "NUMBA_CACHE_DIR": ""}
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return dict(json.loads(done.stdout))


@pytest.fixture
def copy(tmp_path) -> Copy:
    """A fresh one for each test: a plan looks at foreign methods, and compiles something for it."""
    return Copy(tmp_path)


def test_an_edited_helper_is_compiled_into_its_callers(copy):
    """Machine code is kept, and thrown away when a function that it calls changes."""
    before = copy.run(COMPUTE)
    assert sorted(before["order"]) == list(range(16)) and before["from the disk"] == 0
    assert copy.run(COMPUTE) == before | {"from the disk": 1}
    copy.edit("methods/proposals.py", "return x ^ (x >> np.uint64(29))", "return x ^ (x >> np.uint64(30))")
    after = copy.run(COMPUTE)
    assert after["order"] != before["order"] and after["from the disk"] == 0
