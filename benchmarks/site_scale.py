"""What a real federation costs on one machine: startup, a whole study, a round, memory and processor time.

Provisions networks of several sizes on the loopback address (mutual TLS, one process per participant), runs a
whole study of the flagship under masked sums on each, and adds a row per network to a CSV file. Wall-clock
seconds depend on what else the machine does (``load``: processes that wanted a core), processor seconds less.

    python benchmarks/site_scale.py --sites 8,16 --csv benchmarks/results/sites.csv
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from abps.sites.flare.rehearsal import Processes, RehearsalPlan, free_port, own_home, prepare, running
from abps.sites.flare.submit import submit
from abps.sites.protocol.commands import Timeouts

LONG = 1800.0


def measure(folder: Path, plan: RehearsalPlan) -> dict[str, float]:
    """Provision, start, run a whole study, stop: a row of the table."""
    port = free_port()
    network, agreement = prepare(folder, plan, "localhost", port)
    with own_home(folder / "home"), running(Processes(network, port)) as processes:
        began = time.monotonic()
        processes.start_all(LONG)
        startup = time.monotonic() - began
        with _watching(processes) as peak:
            began = time.monotonic()
            # Generous, because all sites share this machine's cores.
            waits = Timeouts(call=120, sign=120)
            done = submit(network.operator, agreement, plan.rounds, plan.sites, waits, LONG)
            study = time.monotonic() - began
    if done.report is None or done.status != "FINISHED:COMPLETED":
        raise SystemExit(f"{plan.sites} sites: the job ended as {done.status}")
    rounds = done.report["rounds"]
    for r in rounds:
        if len(r["present"]) != plan.sites or r["missing"]:
            raise SystemExit(f"{plan.sites} sites: round {r['round']} went without {r['missing']}")
    seconds = [r["seconds"] for r in rounds]
    return {
        "sites": plan.sites, "rounds": len(rounds), "startup s": startup, "study s": study,
        "median round s": statistics.median(seconds), "fastest round s": min(seconds), **peak,
        "kB per site": done.report["bytes"] / plan.sites / 1e3, "load": os.getloadavg()[0],
    }  # fmt: skip


@contextlib.contextmanager
def _watching(processes: Processes) -> Iterator[dict[str, float]]:
    """The largest resident memory (MB) of a site's two processes, and processor seconds: of all job processes
    at the sites, which includes their imports, and of the relay's."""
    memory = {"MB site": 0.0, "MB job": 0.0}
    used: dict[tuple[str, int], float] = {}
    peak: dict[str, float] = {}
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.5):
            for name in processes.running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    for child, process in enumerate(processes.family(name)):
                        spent = process.cpu_times()
                        used[name, process.pid] = spent.user + spent.system
                        if name in processes.network.sites:
                            what = "MB job" if child else "MB site"
                            memory[what] = max(memory[what], process.memory_info().rss / 1e6)

    watcher = threading.Thread(target=look)
    watcher.start()
    before = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for name, process in processes.running.items():
            spent = psutil.Process(process.pid).cpu_times()
            before[name, process.pid] = spent.user + spent.system
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()
        sites = processes.network.sites
        cost = {key: seconds - before.get(key, 0.0) for key, seconds in used.items()}
        total = sum(seconds for (name, _), seconds in cost.items() if name in sites)
        relay = sum(seconds for (name, _), seconds in cost.items() if name not in sites)
        peak.update(memory | {"CPU s per site": total / len(sites), "CPU s relay": relay})


def main() -> None:
    """Add a row per size to the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--sites", default="8,16", help="sizes, separated by commas")
    arguments.add_argument(
        "--rounds", type=int, default=20, help="at most; the flagship stops when it is done"
    )
    arguments.add_argument("--stays", type=int, default=300, help="rows per site")
    arguments.add_argument("--csv", type=Path, help="add the rows to this file")
    given = arguments.parse_args()
    for count in (int(part) for part in given.sites.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"secure": "yes"}
            plan = RehearsalPlan(count, "scale", "abps-plus", settings, given.rounds, stays=given.stays)
            row = {name: round(value, 3) for name, value in measure(Path(folder), plan).items()}
        print(row, flush=True)
        if given.csv is not None:
            new = not given.csv.is_file()
            with given.csv.open("a", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, row)
                if new:
                    writer.writeheader()
                writer.writerow(row)


if __name__ == "__main__":
    main()
