"""What a real federation costs on one machine: startup, memory per site, time per round, bytes on the wire.

Provisions networks of several sizes on the loopback address (mutual TLS, one process per participant),
runs a job of ABPS on them, and prints a Markdown table. Bytes on the wire are the frames that reach the
relay from the sites, before TLS, counted inside the relay's process.

    python benchmarks/site_scale.py --sites 4,8,16 --rounds 5
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psutil

from abps.data.codebook import merged
from abps.data.prepare import codebook
from abps.data.synthetic.builtin import builtin_table
from abps.sites.agreement import Agreement
from abps.sites.flare import kits
from abps.sites.flare.on_one_machine import RELAY, Processes, free_port, running
from abps.sites.flare.recipe import Waits
from abps.sites.flare.submit import submit
from abps.sites.policy import Policy
from abps.sites.sitefile import SiteFile

#: Sites of a trial, which nobody has to ask.
AUTO = Policy("auto", rows=1, events=1, floor=0)

#: Loaded by the relay's processes: adds up the frames that come in, by who sent them.
COUNTER = """
import os
if os.environ.get("FRAME_COUNTS"):
    from nvflare.fuel.f3.sfm.conn_manager import ConnManager
    _log = open(os.environ["FRAME_COUNTS"] + "." + str(os.getpid()), "a", buffering=1)
    _process = ConnManager.process_frame
    def _count(self, connection, frame):
        endpoint = getattr(connection.sfm_endpoint, "endpoint", None)
        _log.write(f"{getattr(endpoint, 'name', '?')} {len(frame)}\\n")
        return _process(self, connection, frame)
    ConnManager.process_frame = _count
"""

LONG = 1800.0


@dataclass(frozen=True)
class Cost:
    """One line of the table.

    parent_mb, job_mb: resident memory of a site's two processes at their largest.  cpu: seconds of computing
    of its job process, importing PyTorch included.
    """

    sites: int
    provision: float
    startup: float
    job: float
    round: float
    parent_mb: float
    job_mb: float
    cpu: float
    payload: int
    wire: int


def measure(folder: Path, count: int, rounds: int, method: str, stays: int) -> Cost:
    """Provision, start, run one job, stop."""
    names = [f"site-{k + 1:02d}" for k in range(count)]
    port = free_port()
    began = time.monotonic()
    network = kits.provision(folder / "kits", names, "localhost", port)
    provisioned = time.monotonic() - began
    agreement = _tables(folder, names, network, method, rounds, stays)
    (folder / "counter").mkdir()
    (folder / "counter" / "sitecustomize.py").write_text(COUNTER)
    _, plain = kits.command(network.relay)
    counting = {
        "FRAME_COUNTS": str(folder / "frames"),
        "PYTHONPATH": os.pathsep.join([str(folder / "counter"), plain["PYTHONPATH"]]),
    }
    with running(Processes(network, port, {RELAY: counting})) as processes:
        began = time.monotonic()
        processes.start_all(LONG)
        startup = time.monotonic() - began
        at_first = _counted(folder)
        with _watching(processes) as peak:
            began = time.monotonic()
            # Generous, because all sites share this machine's cores.
            done = submit(network.operator, agreement, rounds, count, Waits(call=120, sign=120), LONG)
            job = time.monotonic() - began
        wire = sum(size - at_first.get(name, 0) for name, size in _counted(folder).items())
    if done.report is None or done.status != "FINISHED:COMPLETED":
        raise SystemExit(f"{count} sites: the job ended as {done.status}")
    for r in done.report["rounds"]:
        if len(r["present"]) != count or r["missing"]:
            raise SystemExit(f"{count} sites: round {r['round']} went without {r['missing']}")
    seconds = statistics.median(r["seconds"] for r in done.report["rounds"])
    payload = done.report["bytes"]["directed"] + done.report["bytes"]["control"]
    return Cost(count, provisioned, startup, job, seconds, *peak, payload, wire)


def _tables(
    folder: Path, names: list[str], network: kits.Network, method: str, rounds: int, stays: int
) -> Agreement:
    """A table for every site, from the built-in federation, and what they agree on."""
    frame, roles = builtin_table(
        f"icu-synthetic:centers={len(names)},stays={stays * len(names)},size_spread=0,groups=4"
    )
    centers = sorted(frame["center"].unique().to_list())
    books = []
    for name, center in zip(names, centers, strict=True):
        table = folder / f"{name}.parquet"
        frame.filter(pl.col("center") == center).drop("center", "careunit").write_parquet(table)
        own = SiteFile(
            name, str(table), roles.label, str(folder / name), roles.patient, roles.time, policy=AUTO
        )
        own.write(network.sites[name] / "local")
        books.append(codebook(own.read_table(), seed=0))
    return Agreement("scale", method, merged(books), 11, rounds)


def _counted(folder: Path) -> dict[str, int]:
    """Bytes that came in at the relay, by the site that sent them."""
    total: dict[str, int] = {}
    for path in folder.glob("frames.*"):
        for line in path.read_text().splitlines():
            name, _, size = line.rpartition(" ")
            if name.startswith("site-"):
                total[name] = total.get(name, 0) + int(size)
    return total


@contextlib.contextmanager
def _watching(processes: Processes) -> Iterator[list[float]]:
    """Means over the sites: largest memory of parent and job process (MB), CPU seconds of the latter."""
    largest: dict[tuple[str, str], float] = {}
    peak: list[float] = []
    stop = threading.Event()

    def note(kind: str, name: str, value: float) -> None:
        largest[kind, name] = max(largest.get((kind, name), 0.0), value)

    def look() -> None:
        while not stop.wait(0.5):
            for name in processes.network.sites:
                with contextlib.suppress(psutil.NoSuchProcess):
                    parent, *children = processes.family(name)
                    note("parent", name, parent.memory_info().rss / 1e6)
                    note("job", name, sum(child.memory_info().rss for child in children) / 1e6)
                    times = [child.cpu_times() for child in children]
                    note("cpu", name, sum(used.user + used.system for used in times))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()
        for kind in ("parent", "job", "cpu"):
            peak.append(statistics.fmean(value for (k, _), value in largest.items() if k == kind))


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--sites", default="4,8,16", help="sizes, separated by commas")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--method", default="abps-pq-k1")
    arguments.add_argument("--stays", type=int, default=300, help="rows per site")
    arguments.add_argument("--json", action="store_true", help="one JSON line per size instead of a table")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home  # the engine writes into its user's home folder
        if not given.json:
            print("| sites | provision s | startup s | job s | s per round | MB parent | MB job process "
                  "| CPU s job process | payload kB | wire kB | wire / payload |")  # fmt: skip
            print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
        for count in (int(part) for part in given.sites.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                c = measure(Path(folder), count, given.rounds, given.method, given.stays)
            if given.json:
                print(json.dumps(c.__dict__), flush=True)
                continue
            print(
                f"| {c.sites} | {c.provision:.1f} | {c.startup:.1f} | {c.job:.1f} | {c.round:.2f} "
                f"| {c.parent_mb:.0f} | {c.job_mb:.0f} | {c.cpu:.1f} "
                f"| {c.payload / 1e3:.0f} | {c.wire / 1e3:.0f} | {c.wire / c.payload:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
