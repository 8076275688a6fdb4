"""A real network under harm, for as long as it takes: sites killed, relay killed, sites paused, disks full.

Provisions a network on the loopback address (mutual TLS, one process per participant), runs one study of the
flagship after the other under masked sums, each in as many jobs as it takes, and harms it at random
meanwhile. After every job all stores are looked through: no result of an exchange is lost or different at two
sites, every log verifies. After every study it adds what happened to a CSV file; at the end it prints one
JSON object, with the growth of memory and logs.

    python benchmarks/soak.py --exchanges 200 --sites 4 --seed 7 --csv benchmarks/results/soak.csv
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from abps.core.errors import RequestError
from abps.lab.rehearsal import RELAY, Processes, RehearsalPlan, free_port, own_home, prepare, running
from abps.sites.consent import sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.keys import read_signer
from abps.sites.flare.submit import submit
from abps.sites.protocol.commands import Timeouts
from abps.sites.store import audit
from abps.sites.store.store import Store

#: The harms.
HARMS = ("kill site", "pause site", "full disk", "kill relay", "kill one process")

LONG = 900.0


@dataclass(frozen=True)
class Harm:
    """How the network is harmed.  every: seconds between two harms, at most.  pause, full: seconds that a
    site is stopped, and that it can write nothing.  away: seconds before what was killed is started again.
    """

    kinds: tuple[str, ...] = HARMS
    every: float = 20.0
    pause: float = 120.0
    full: float = 10.0
    away: float = 5.0


@dataclass
class Story:
    """What happened."""

    studies: int = 0
    jobs: int = 0
    lost: int = 0
    rounds: int = 0
    harms: Counter[str] = field(default_factory=Counter)
    absences: int = 0
    verified: int = 0  # stores that were looked through and found in order, over all jobs
    memory: list[float] = field(default_factory=list)  # MB of the largest job process, by job
    logs: list[float] = field(default_factory=list)  # MB of all logs, by job
    stores: list[float] = field(default_factory=list)  # MB of all stores, by job

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**self.__dict__, "harms": dict(self.harms)}


class Saboteur(threading.Thread):
    """Harms the network at random until it is told to stop, one harm at a time, and mends each."""

    def __init__(
        self, processes: Processes, harm: Harm, kinds: Iterator[str], rng: random.Random, story: Story
    ) -> None:
        super().__init__(daemon=True)
        self.processes, self.harm, self.kinds, self.rng, self.story = processes, harm, kinds, rng, story
        self.done = threading.Event()

    def run(self) -> None:
        """One harm after the other."""
        while not self.done.wait(self.rng.uniform(0.1, 1.0) * self.harm.every):
            kind = next(self.kinds)
            print(f"{time.strftime('%H:%M:%S')} {kind}", file=sys.stderr, flush=True)
            self._do(kind)
            self.story.harms[kind] += 1

    def _do(self, kind: str) -> None:
        name = self.rng.choice(list(self.processes.network.sites))
        if kind == "kill relay":
            self._restart(RELAY)
        elif kind == "kill site":
            self._restart(name)
        elif kind == "kill one process":
            # As a machine does that is short of memory: a process is left without those that it needs.
            name = self.rng.choice([name, RELAY])
            victim = self.rng.choice(self.processes.family(name))
            _signal([victim], "kill")
            self.done.wait(self.harm.away)
            if self.processes.running[name].poll() is not None:
                self.processes.start(name)
        elif kind == "pause site":
            family = self.processes.family(name)
            try:
                _signal(family, "suspend")
                time.sleep(self.harm.pause)  # whether the job is over or not
            finally:
                _signal(family, "resume")
        elif kind == "full disk":
            # No file of these processes can grow any more, as on a disk without room.
            family = self.processes.family(name)
            before = [(p, p.rlimit(psutil.RLIMIT_FSIZE)) for p in family if p.is_running()]
            try:
                for process, (_, most) in before:
                    with contextlib.suppress(psutil.Error, OSError):
                        process.rlimit(psutil.RLIMIT_FSIZE, (0, most))
                self.done.wait(self.harm.full)
            finally:
                for process, limits in before:
                    with contextlib.suppress(psutil.Error, OSError):
                        process.rlimit(psutil.RLIMIT_FSIZE, limits)

    def _restart(self, name: str) -> None:
        self.processes.kill(name)
        self.done.wait(self.rng.uniform(0.2, 1.0) * self.harm.away)
        self.processes.start(name)


def _turns(kinds: tuple[str, ...], rng: random.Random) -> Iterator[str]:
    """The kinds without end, each once per turn, in an order drawn anew every turn. One sequence for the
    whole soak: jobs are short, and none of the kinds may be left out because others came first."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def _signal(family: list[psutil.Process], what: str) -> None:
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            getattr(process, what)()


def soak(
    folder: Path, plan: RehearsalPlan, exchanges: int, harm: Harm, seed: int, out: Path | None = None
) -> Story:
    """Run studies on a network that is harmed, and look through all stores after every job.

    plan.seconds: no study begins later than that.
    """
    story, rng, port = Story(), random.Random(seed), free_port()
    until = time.monotonic() + plan.seconds
    network, first = prepare(folder, plan, "localhost", port)
    with own_home(folder / "home"), running(Processes(network, port)) as processes:
        processes.start_all(LONG)
        kinds = _turns(harm.kinds, rng)
        while story.rounds < exchanges and time.monotonic() < until:
            story.studies += 1
            agreement = replace(first, study=f"soak-{story.studies}", seed=seed + story.studies)
            before: dict[str, dict] = {}
            over = False
            while not over:
                saboteur = Saboteur(processes, harm, kinds, rng, story)
                saboteur.start()
                try:
                    with _largest(processes) as largest:
                        over = _job(processes, agreement, story)
                finally:
                    saboteur.done.set()
                    saboteur.join(LONG)
                processes.wait_for(list(network.sites), LONG)
                _released(network)
                before = inspect(network, agreement.study, before)
                story.verified += len(before)
                story.memory.append(round(max(largest or [0.0]), 1))
                story.logs.append(_size(folder / "kits", "log*"))
                story.stores.append(_size(folder / "stores", "*"))
                print(json.dumps(story.to_json()), file=sys.stderr, flush=True)
            story.rounds += _furthest(network, agreement.study)
            _record(out, seed, story)
    return story


def _record(out: Path | None, seed: int, story: Story) -> None:
    """Add a row with everything since the soak began: a soak that is stopped leaves what it has seen."""
    if out is None:
        return
    row = {
        "seed": seed, "studies": story.studies, "exchanges": story.rounds, "jobs": story.jobs,
        "jobs lost": story.lost, "absences": story.absences, "stores verified": story.verified,
        **{kind: story.harms[kind] for kind in HARMS},
        "MB at first": story.memory[0], "MB at last": story.memory[-1], "MB at most": max(story.memory),
    }  # fmt: skip
    new = not out.is_file()
    with out.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, row)
        if new:
            writer.writeheader()
        writer.writerow(row)


def _job(processes: Processes, agreement: Agreement, story: Story) -> bool:
    """One job, which may be lost with the relay. Returns whether its study is over."""
    story.jobs += 1
    waits = Timeouts(call=8.0, sign=8.0, grace=15.0)
    try:
        done = submit(processes.network.operator, agreement, agreement.rounds, 2, waits, LONG)
    except RequestError as error:
        story.lost += 1
        print(f"lost: {error}", file=sys.stderr, flush=True)
        processes.wait_for([], LONG)
        return False
    report = done.report or {}
    if not done.ran:
        story.lost += not report.get("finished")
        print(f"ended: {done.status} {report.get('error', '')}", file=sys.stderr, flush=True)
        return bool(report.get("finished"))
    story.absences += sum(len(r["missing"]) for r in report["rounds"])
    return bool(report["stopped_early"]) or report["rounds"][-1]["round"] >= agreement.rounds


def _released(network) -> None:  # type: ignore[no-untyped-def]
    """Wait until no job's process has a store open any more."""
    until = time.monotonic() + LONG
    for path in network.relay.parent.parent.glob("stores/*/*.sqlite"):
        while time.monotonic() < until:
            name = path.parent.name
            try:
                facts = Store.look(path).facts()
                Store.open(path, name, facts["agreement"]).close()
                break
            except RequestError as error:
                if "in use by another process" not in str(error):
                    raise
            time.sleep(0.5)


def _furthest(network, study: str) -> int:  # type: ignore[no-untyped-def]
    found = []
    for store in _stores(network, study).values():
        found.append(store.round)
        store.close()
    return max(found, default=0)


def _stores(network, study: str) -> dict[str, Store]:  # type: ignore[no-untyped-def]
    own = {name: sitefile.find(name, kit / "local") for name, kit in network.sites.items()}
    return {name: Store.look(o.store_of(study)) for name, o in own.items() if o.store_of(study).exists()}


def inspect(network, study: str, before: dict[str, dict]) -> dict[str, dict]:  # type: ignore[no-untyped-def]
    """Look through all stores; what was observed before must still be there. Raises SystemExit if not."""
    stores = _stores(network, study)
    seen: dict[str, dict] = {}
    for name, store in stores.items():
        found = audit.verify(store, read_signer(network.sites[name]))
        _must(not found.faults, f"{name}: {found.faults}")
        seen[name] = store.broadcasts()
        _must(before.get(name, {}).items() <= seen[name].items(), f"{name} has lost results of exchanges")
        for other, held in seen.items():
            differ = [t for t in held.keys() & seen[name].keys() if held[t] != seen[name][t]]
            _must(not differ, f"{name} and {other} have different results of exchanges {differ}")
    for store in stores.values():
        store.close()
    return seen


def _must(fine: bool, sentence: str) -> None:
    if not fine:
        raise SystemExit(f"the soak has found a fault: {sentence}")


def _size(folder: Path, pattern: str) -> float:
    return round(sum(p.stat().st_size for p in folder.rglob(pattern) if p.is_file()) / 1e6, 3)


@contextlib.contextmanager
def _largest(processes: Processes) -> Iterator[list[float]]:
    """MB of the job processes at the sites, sampled while a job runs."""
    found: list[float] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(1.0):
            for name in list(processes.network.sites):
                with contextlib.suppress(psutil.Error, KeyError):
                    for child in processes.family(name)[1:]:
                        found.append(child.memory_info().rss / 1e6)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        stop.set()
        watcher.join()


def main() -> None:
    """Run it, and print the story."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--exchanges", type=int, default=200)
    arguments.add_argument("--sites", type=int, default=4)
    arguments.add_argument("--seed", type=int, default=7)
    arguments.add_argument("--every", type=float, default=20.0, help="seconds between two harms, at most")
    arguments.add_argument("--harms", default=",".join(HARMS), help="which harms, with commas between")
    arguments.add_argument("--keep", type=Path, help="work in this folder, and leave it")
    arguments.add_argument("--pause", type=float, default=120.0, help="seconds of a pause")
    arguments.add_argument("--minutes", type=float, default=1e4, help="begin no study later than that")
    arguments.add_argument("--csv", type=Path, help="add a row after every study to this file")
    given = arguments.parse_args()
    settings = {"model": "gam", "secure": "yes"}
    plan = RehearsalPlan(
        given.sites, "soak", "abps-plus", settings, 20, stays=200, seconds=60 * given.minutes
    )
    harm = Harm(tuple(given.harms.split(",")), given.every, given.pause)
    with (
        tempfile.TemporaryDirectory() if given.keep is None else contextlib.nullcontext(given.keep) as folder
    ):
        story = soak(Path(folder), plan, given.exchanges, harm, given.seed, given.csv)
    print(json.dumps(story.to_json()))


if __name__ == "__main__":
    main()
