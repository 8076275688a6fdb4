"""What a real federation costs on one machine: startup, a whole study, a round, memory and processor time.

Provisions networks of several sizes on the loopback address (mutual TLS, one process per participant), runs a
whole study of the flagship under masked sums on each, and writes a row per network to a CSV file. Wall-clock
seconds depend on what else the machine does (``load``: processes that wanted a core), processor seconds
less: those of a round are of all processes together.

    python benchmarks/site_scale.py --csv benchmarks/results/sites.csv
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from abps.lab.rehearsal import Processes, RehearsalPlan, free_port, own_home, prepare, running
from abps.sites.flare.submit import submit
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.rows import LogEntry
from abps.sites.store.store import Store

LONG = 1800.0


def measure(folder: Path, plan: RehearsalPlan) -> dict[str, float]:
    """Provision, start, run a whole study, stop: a row of the table."""
    port = free_port()
    network, agreement = prepare(folder, plan, "localhost", port)
    with own_home(folder / "home"), running(Processes(network, port)) as processes:
        began = time.monotonic()
        processes.start_all(LONG)
        startup = time.monotonic() - began
        with _watching(processes) as (memory, samples):
            began = time.monotonic()
            # Generous, because all sites share this machine's cores.
            waits = Timeouts(call=120, sign=120)
            done = submit(network.operator, agreement, plan.rounds, plan.sites, waits, LONG)
            study = time.monotonic() - began
    if done.report is None or done.status != "FINISHED:COMPLETED":
        raise SystemExit(f"{plan.sites} sites: the job ended as {done.status}")
    for r in done.report["rounds"]:
        if len(r["present"]) != plan.sites or r["missing"]:
            raise SystemExit(f"{plan.sites} sites: round {r['round']} went without {r['missing']}")
    seconds = [r["seconds"] for r in done.report["rounds"]]
    logs = [_log(folder / "stores" / name / "scale.sqlite") for name in network.sites]
    over = max(datetime.datetime.fromisoformat(log[-1].at).timestamp() for log in logs)
    first, last = np.interp([over - sum(seconds), over], *zip(*samples, strict=True))
    return {
        "sites": plan.sites, "rounds": len(seconds), "startup s": startup, "study s": study,
        "median round s": statistics.median(seconds), "fastest round s": min(seconds), **memory,
        "CPU s of a study": samples[-1][1], "CPU s of a round": float(last - first) / len(seconds),
        "kB of a site": statistics.mean(sum(entry.bytes for entry in log) for log in logs) / 1e3,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def _log(path: Path) -> list[LogEntry]:
    """What left a site and what came, as it wrote it down."""
    with contextlib.closing(Store.look(path)) as store:
        return store.traffic()


@contextlib.contextmanager
def _watching(processes: Processes) -> Iterator[tuple[dict[str, float], list[tuple[float, float]]]]:
    """The largest resident memory (MB) of a site's two processes, and samples (time, processor seconds until
    then) of all sites and the relay together, with what job processes import."""
    memory = {"MB site": 0.0, "MB job": 0.0}
    used: dict[int, float] = {}
    before: dict[int, float] = {}
    samples: list[tuple[float, float]] = []
    stop = threading.Event()

    def look() -> None:
        for name in list(processes.running):
            for child, process in enumerate(processes.family(name)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    spent = process.cpu_times()
                    used[process.pid] = spent.user + spent.system - before.get(process.pid, 0.0)
                    if name in processes.network.sites:
                        what = "MB job" if child else "MB site"
                        memory[what] = max(memory[what], process.memory_info().rss / 1e6)
        samples.append((time.time(), sum(used.values())))

    def watch() -> None:
        while not stop.wait(0.5):
            look()

    look()
    before.update(used)  # who was there before
    used.clear()
    samples.clear()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield memory, samples
    finally:
        stop.set()
        watcher.join()


def main() -> None:
    """Write a row per size, and print it."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--sites", default="8,16", help="sizes, separated by commas")
    arguments.add_argument(
        "--rounds", type=int, default=20, help="at most; the flagship stops when it is done"
    )
    arguments.add_argument("--stays", type=int, default=300, help="rows per site")
    arguments.add_argument("--csv", type=Path, help="write the rows into this file")
    given = arguments.parse_args()
    rows = []
    for count in (int(part) for part in given.sites.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"secure": "yes"}
            plan = RehearsalPlan(count, "scale", "abps-plus", settings, given.rounds, stays=given.stays)
            row = {name: round(value, 3) for name, value in measure(Path(folder), plan).items()}
        rows.append(row)
        print(", ".join(f"{name} {value:g}" for name, value in row.items()), flush=True)
        if given.csv is not None:
            with given.csv.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, row)
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
