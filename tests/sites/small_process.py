"""Sites that fit linear models, in one process; prints what the process had to load.

Run as a program: ``python -m tests.sites.small_process FOLDER``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.steps import Timeouts

from .network import close, hospitals, open_site

RUNS = (
    ("abps-pq-k1", {"model": "gam"}),
    ("abps", {"model": "linear", "smoothing": 0.3, "adopt": "if_helpful", "codec": "int8"}),
    ("fedprox", {"model": "linear", "mu": "0.1", "private_layers": "1"}),
    ("local", {"model": "gam"}),
)
HEAVY = ("torch", "sklearn", "pandas", "pyarrow", "matplotlib")


def main() -> None:
    folder = Path(sys.argv[1])
    given = hospitals(folder / "tables", 4, 1600)
    for k, (method, settings) in enumerate(RUNS):
        agreement = given.agreement(method, rounds=2, **settings)
        network, stores = LoopbackNetwork(), folder / f"stores {k}"
        stores.mkdir()
        for name in given.names:
            open_site(given, name, agreement, stores, network)
        Scheduler(network, agreement, agreement.rounds, Timeouts(poll=0.0)).run(given.names)
        assert all(network.sites[name].models.any() for name in given.names)
        close(network)
    print(json.dumps([name for name in HEAVY if name in sys.modules]))


if __name__ == "__main__":
    main()
