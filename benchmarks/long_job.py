"""A long study between sites in one process: memory and the size of stores and logs, every hundred rounds.

    python benchmarks/long_job.py --rounds 1000 --sites 4

The same sites, stores and conductor as in a real federation; no network.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path

import psutil

from abps.data.prepare import codebook
from abps.data.site_table import own_table
from abps.data.synthetic.builtin import builtin_table
from abps.data.table import MIN_CLASS, federate
from abps.sites.consent.agreement import Agreement
from abps.sites.coordinator.loopback import LoopbackNetwork
from abps.sites.coordinator.scheduler import Scheduler
from abps.sites.node.site import Site
from abps.sites.protocol.commands import Timeouts
from abps.sites.store.store import Store


def main() -> None:
    """Run, and print a line for every hundred rounds."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rounds", type=int, default=1000)
    words.add_argument("--sites", type=int, default=4)
    words.add_argument("--method", default="abps-pq-k1")
    given = words.parse_args()
    frame, roles = builtin_table(f"icu-synthetic:centers={given.sites},stays={100 * given.sites},groups=2")
    together = federate(frame, roles, "icu", MIN_CLASS)
    settings = {"model": "linear", "standardise": "own", "epochs": 1}
    agreement = Agreement("long", given.method, codebook(together, 11), 11, given.rounds, settings)
    process = psutil.Process()
    print("| rounds | MB resident | kB of a store | log rows in it | files put aside |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        done = 0
        while done < given.rounds:
            # A job of a hundred rounds: stores are opened anew, as in a real study.
            network = LoopbackNetwork()
            for name in together.centers:
                path = Path(folder) / f"{name.replace('/', '-')}.sqlite"
                table = Path(folder) / f"{name.replace('/', '-')}.parquet"
                if not table.exists():
                    mine = frame.filter(frame["center"] == name).drop("center", "careunit")
                    mine.write_parquet(table)
                own = own_table(table, name, roles.label, roles.patient, roles.time, (), agreement.book)
                store = Store.open(path, name, agreement.digest(), agreement.notes())
                store.put_aside(20_000)
                network.sites[name] = Site(
                    name, agreement, agreement.prepare(own), store, network.sender(name)
                )
            Scheduler(network, agreement, 100, Timeouts(poll=0.0)).run(together.centers)
            done += 100
            gc.collect()
            first = network.sites[together.centers[0]].store
            ((rows,),) = first._rows("SELECT COUNT(*) FROM traffic")
            aside = len(list(Path(folder).glob(f"{first.path.stem}.audit-*.jsonl")))
            size = first.path.stat().st_size // 1000
            print(
                f"| {done} | {process.memory_info().rss / 1e6:.0f} | {size} | {rows} | {aside} |", flush=True
            )
            for site in network.sites.values():
                site.store.close()


if __name__ == "__main__":
    main()
