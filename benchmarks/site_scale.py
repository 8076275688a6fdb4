"""What a real federation costs on one machine: startup, memory per site, time per round, bytes on the wire.

Provisions networks of several sizes on the loopback address (mutual TLS, one process per participant),
runs a job of ABPS on them, and prints a Markdown table. Bytes on the wire are the frames that reach the
relay from the sites, before TLS, counted inside the relay's process.

    python benchmarks/site_scale.py --sites 4,8,16,32 --rounds 5

Startup includes the processes that are loaded for the next job (``ABPS_SPARE=0``: without them).
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

import psutil

from abps.sites.flare import kits
from abps.sites.flare.rehearsal import RELAY, Processes, RehearsalPlan, free_port, prepare, running
from abps.sites.flare.submit import submit
from abps.sites.protocol.commands import Timeouts

#: Loaded by the relay's processes: adds up the frames that come in, by who sent them.
COUNTER = """
import os
if os.environ.get("FRAME_COUNTS"):
    from nvflare.fuel.f3.sfm.conn_manager import SfmFrameReceiver
    _log = open(os.environ["FRAME_COUNTS"] + "." + str(os.getpid()), "a", buffering=1)
    _process = SfmFrameReceiver.process_frame
    def _count(self, frame):
        endpoint = getattr(self.conn.sfm_endpoint, "endpoint", None)
        _log.write(f"{getattr(endpoint, 'name', '?')} {len(frame)}\\n")
        return _process(self, frame)
    SfmFrameReceiver.process_frame = _count
"""

LONG = 1800.0


@dataclass(frozen=True)
class Cost:
    """One line of the table.

    parent_mb, job_mb: resident memory of a site's two processes at their largest.  cpu: seconds of computing
    of its job process, importing PyTorch included.
    """

    sites: int
    rounds: int
    provision: float
    startup: float
    job: float
    round: float
    parent_mb: float
    job_mb: float
    cpu: float
    payload: int
    wire: int
    frames: int

    @property
    def overhead(self) -> float:
        """Bytes that the engine adds, per site and round; the start of the job included."""
        return (self.wire - self.payload) / self.sites / self.rounds


def measure(folder: Path, plan: RehearsalPlan) -> Cost:
    """Provision, start, run one job, stop."""
    count, port = plan.sites, free_port()
    began = time.monotonic()
    network, agreement = prepare(folder, plan, "localhost", port)
    provisioned = time.monotonic() - began
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
        _loaded(processes)
        startup = time.monotonic() - began
        bytes_first, frames_first = _counted(folder, plan.names)
        with _watching(processes) as peak:
            began = time.monotonic()
            # Generous, because all sites share this machine's cores.
            done = submit(network.operator, agreement, plan.rounds, count, Timeouts(call=120, sign=120), LONG)
            job = time.monotonic() - began
        bytes_last, frames_last = _counted(folder, plan.names)
    if done.report is None or done.status != "FINISHED:COMPLETED":
        raise SystemExit(f"{count} sites: the job ended as {done.status}")
    for r in done.report["rounds"]:
        if len(r["present"]) != count or r["missing"]:
            raise SystemExit(f"{count} sites: round {r['round']} went without {r['missing']}")
    seconds = statistics.median(r["seconds"] for r in done.report["rounds"])
    payload = done.report["bytes"]["directed"] + done.report["bytes"]["control"]
    wire, frames = bytes_last - bytes_first, frames_last - frames_first
    return Cost(count, plan.rounds, provisioned, startup, job, seconds, *peak, payload, wire, frames)


def _loaded(processes: Processes, rest: float = 2.0) -> None:
    """Wait until the processes that wait for the next job have loaded: they compute no more."""
    until = time.monotonic() + LONG
    last: dict[int, float] = {}
    while time.monotonic() < until:
        now: dict[int, float] = {}
        for name in processes.running:
            for child in processes.family(name)[1:]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    used = child.cpu_times()
                    now[child.pid] = used.user + used.system
        if set(now) == set(last) and all(now[pid] - last[pid] < 0.05 for pid in now):
            return
        last = now
        time.sleep(rest)


def _counted(folder: Path, names: tuple[str, ...]) -> tuple[int, int]:
    """Bytes and frames that came in at the relay from the sites."""
    sizes = []
    for path in folder.glob("frames.*"):
        for line in path.read_text().splitlines():
            name, _, size = line.rpartition(" ")
            if name.split(".")[0] in names:
                sizes.append(int(size))
    return sum(sizes), len(sizes)


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
    arguments.add_argument("--sites", default="4,8,16,32", help="sizes, separated by commas")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--method", default="abps-plus")
    arguments.add_argument("--model", default="gam")
    arguments.add_argument("--stays", type=int, default=300, help="rows per site")
    arguments.add_argument("--json", action="store_true", help="one JSON line per size instead of a table")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home  # the engine writes into its user's home folder
        if not given.json:
            head = (
                "sites | provision s | startup s | job s | s per round | MB parent | MB job process "
                "| CPU s job process | payload kB | wire kB | overhead kB per site, round | frames per site"
            )
            print(f"| {head} |\n{'|---' * 12}|", flush=True)
        for count in (int(part) for part in given.sites.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                settings = {"model": given.model}
                plan = RehearsalPlan(count, "scale", given.method, settings, given.rounds, stays=given.stays)
                c = measure(Path(folder), plan)
            if given.json:
                print(json.dumps({**c.__dict__, "overhead": c.overhead}), flush=True)
                continue
            print(
                f"| {c.sites} | {c.provision:.1f} | {c.startup:.1f} | {c.job:.1f} | {c.round:.2f} "
                f"| {c.parent_mb:.0f} | {c.job_mb:.0f} | {c.cpu:.1f} "
                f"| {c.payload / 1e3:.0f} | {c.wire / 1e3:.0f} | {c.overhead / 1e3:.1f} "
                f"| {c.frames / c.sites:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
