"""Sites in one process, each method in turn: what they learned, and what the process had to load.

Run as a program (``python -m tests.sites.small_process FOLDER``) it does without PyTorch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.protocol.steps import Timeouts
from abps.tensors import use_numpy

from .network import Hospitals, close, hospitals, open_site

#: Methods and settings that a site runs without PyTorch, each with the branches that touch tensors.
RUNS = {
    "pq": ("abps-pq-k1", {"model": "gam"}),
    "abps": ("abps", {"model": "linear", "smoothing": 0.3, "adopt": "if_helpful", "codec": "int8"}),
    "codes": (
        "random-k3",
        {"model": "linear", "codec": "int4", "reference": "start", "weighting": "uniform"},
    ),
    "alarms": ("abps-x", {"model": "linear", "forget": "alarm", "watch": "utility", "private_layers": "1"}),
    "plus-v1": ("abps-plus-v1", {"model": "gam"}),
    "plus": ("abps-plus", {"first": "1", "again": "2", "private_layers": "1", "last": "1.0"}),
    "pace": ("abps-plus", {"first": "1", "dual": "0.1", "momentum": "0.3", "averaged": "0.5"}),
    "star": ("fedavg", {"model": "gam", "secure": "no"}),
    "masked": ("fedprox", {"model": "linear", "mu": "0.1", "private_layers": "1"}),
    "smoothed": ("fedavg-x", {"model": "linear", "codec": "int8"}),
    "momentum": ("fedavgm", {"model": "linear", "secure": "no"}),
    "ditto": ("ditto", {"model": "linear"}),
    "fedrep": ("fedrep", {"model": "linear"}),
    "local": ("local", {"model": "gam"}),
}
HEAVY = ("torch", "numba", "llvmlite", "sklearn", "pandas", "pyarrow", "matplotlib")


def four(folder: Path) -> Hospitals:
    return hospitals(folder / "tables", 4, 1600)


def agreement(given: Hospitals, key: str) -> Agreement:
    method, settings = RUNS[key]
    return given.agreement(method, rounds=4, **settings)


def run(given: Hospitals, agreement: Agreement, folder: Path) -> tuple[np.ndarray, dict]:
    """(sites, P) the models in the end; partners, peers believed in, and bytes of every site."""
    folder.mkdir(parents=True)
    network = LoopbackNetwork()
    for name in given.names:
        open_site(given, name, agreement, folder, network)
    Scheduler(network, agreement, agreement.rounds, Timeouts(poll=0.0)).run(given.names)
    sites = [network.sites[name] for name in given.names]
    models = np.stack([np.asarray(site.models[0].numpy()) for site in sites])
    told = {
        site.name: {
            "partners": {str(t): sorted(who) for t, who in site.store.partners().items()},
            "beliefs": {peer: [e.gain, e.loss, e.count] for peer, e in site.store.beliefs().items()},
            "sent": site.store.sent_bytes(),
            "test": site.test_auroc(),
        }
        for site in sites
    }
    close(network)
    return models, told


def main() -> None:
    folder = Path(sys.argv[1])
    assert use_numpy()
    given = four(folder)
    for key in RUNS:
        agreed = Agreement.from_json(json.loads((folder / f"{key}.agreement").read_text()))
        models, told = run(given, agreed, folder / "stores" / key)
        np.save(folder / f"{key}.npy", models)
        (folder / f"{key}.json").write_text(json.dumps(told))
    print(json.dumps([name for name in HEAVY if name in sys.modules]))


if __name__ == "__main__":
    main()
