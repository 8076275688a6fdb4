"""The memory of a federation's processes: the most that each has had resident, and for itself, in a study.

A rehearsal with real processes, sampled every 50 ms. Own: what no other process shares; the rest of what is
resident are pages of libraries' files.

    python benchmarks/site_memory.py --sites 4
    python benchmarks/site_memory.py --sites 4 --stays 5000 --set secure=yes
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time

import psutil


def kind(command: list[str]) -> str:
    """What a process of a rehearsal is, by its command line."""
    text = " ".join(command)
    who = (
        "relay"
        if "fed_server.json" in text or "server_train" in text or "runner_process" in text
        else "a site"
    )
    what = (
        "job" if "worker_process" in text or "runner_process" in text or "job_process" in text else "waiting"
    )
    return f"{who}, {what}" if "nvflare" in text or "abps.sites" in text else "the rehearsal"


def main() -> None:
    """Run the rehearsal and print a table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--sites", type=int, default=4)
    arguments.add_argument("--stays", type=int, default=300)
    arguments.add_argument("--set", action="append", default=[])
    arguments.add_argument("--method", default="abps-plus")
    given = arguments.parse_args()
    most: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "abps",
            "site",
            "rehearse",
            "--out",
            f"{folder}/rehearsal",
            "--limit",
            "600",
        ]
        command += ["--sites", str(given.sites), "--stays", str(given.stays), "--method", given.method]
        command += [word for each in given.set for word in ("--set", each)]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while run.poll() is None:
            for process in psutil.Process(run.pid).children(recursive=True):
                try:
                    seen, what = process.memory_full_info(), kind(process.cmdline())
                except psutil.Error:
                    continue
                before = most.get(what, (0, 0))
                most[what] = max(before[0], seen.rss), max(before[1], seen.uss)
            time.sleep(0.05)
    print(f"exit {run.returncode}\n| process | resident MB | own MB |\n|---|---|---|")
    for what, (resident, own) in sorted(most.items()):
        print(f"| {what} | {resident / 1e6:.0f} | {own / 1e6:.0f} |")


if __name__ == "__main__":
    main()
