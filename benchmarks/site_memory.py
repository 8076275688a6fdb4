"""What the memory of a site's job process consists of: resident and own MB after each step of a job.

One process with the engine's modules and ours that opens one hospital's table and trains alone, without lines
to anybody. Own: what no other process shares; the rest of what is resident are pages of libraries' files.

    python benchmarks/site_memory.py --model gam
    python benchmarks/site_memory.py --model mlp
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil


def steps(folder: Path, name: str) -> None:
    """Print MB after each step."""

    def show(step: str) -> None:
        told = psutil.Process().memory_full_info()
        print(f"| {step} | {told.rss / 1e6:.0f} | {told.uss / 1e6:.0f} |", flush=True)

    print("| | resident MB | own MB |\n|---|---|---|")
    show("Python")
    importlib.import_module("nvflare.private.fed.app.client.worker_process")
    show("+ the engine")
    for module in ("abps.sites.node.site", "abps.sites.flare.app", "abps.data.table"):
        importlib.import_module(module)

    show("+ our side of it: the process waits for a job")
    from abps.models.metrics import auroc, labels_of
    from abps.sites.consent import sitefile
    from abps.sites.consent.agreement import Agreement

    agreement = Agreement.from_json(json.loads((folder / "agreement.json").read_text()))
    method = agreement.config()
    own = sitefile.find(name, folder / "kits" / name / "local")
    data = agreement.prepare(own.read_table(agreement.book))
    show("+ the table, read and prepared")
    from abps.models.learners import learner_for

    learner = learner_for(data, method.training, agreement.seed)
    models = learner.start[None]
    for t in range(1, 6):
        models = learner.train(models, t)
        auroc(learner.logits(models, data.validation), labels_of(data.validation))
    show("+ five rounds of training and judging")


def main() -> None:
    """Make a table and an agreement, then measure in a process of its own."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--model", default="gam")
    arguments.add_argument("--stays", type=int, default=300)
    arguments.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.inside:
        steps(given.inside, "north")
        return
    from abps.sites.flare.kits import _LEAN
    from abps.sites.flare.rehearsal import RehearsalPlan, prepare

    with tempfile.TemporaryDirectory() as folder:
        prepare(
            Path(folder),
            RehearsalPlan(3, "memory", "abps-plus", settings={"model": given.model}, stays=given.stays),
            "localhost",
            8002,
        )
        command = [sys.executable, __file__, "--inside", folder]
        subprocess.run(command, check=True, env={**os.environ, **_LEAN})


if __name__ == "__main__":
    main()
