"""A study of the flagship needs no PyTorch or scipy.stats at a site: its process stays small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, tempfile
from pathlib import Path
sys.path.insert(0, {tests!r})
{engine}
assert "abps.lab" not in sys.modules
from sites.loopback import LoopbackNetwork
from sites.network import close, hospitals, open_site
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.commands import Timeouts
folder = Path(tempfile.mkdtemp())
given = hospitals(folder / "tables", 4, stays=400)
before = set(sys.modules)  # made tables are the laboratory's
agreement = given.agreement("abps-plus", rounds=9, secure="yes", model="gam")
network = LoopbackNetwork()
agreement.admitted(())
for name in given.names:
    open_site(given, name, agreement, folder, network)
report = Scheduler(network, agreement, 9, Timeouts(poll=0.0)).run(given.names)
assert report.rounds and all(abs(site.models).max() > 0 for site in network.sites.values())
large = ("torch", "scipy.stats", "scipy.optimize", "sklearn", "duckdb", "matplotlib", "pandas", "numba")
assert not [name for name in large if name in sys.modules]
assert not [name for name in sys.modules if name.startswith("abps.lab") and name not in before]
close(network)
print("done", len(report.rounds))
"""


def test_a_study_runs_without_pytorch():
    tests = str(Path(__file__).parents[1])
    engine = "from abps.sites.flare import opening  # what a real process loads"
    script = SCRIPT.format(tests=tests, engine=engine)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.startswith("done"), done.stderr[-2000:]
