"""A rehearsal: a federation of made-up hospitals on one machine, through everything that a real one does.

Certificates, kits, one table per hospital, a relay and sites as processes with mutual TLS, a job, and at the
end every site's own store and model. Nothing of it needs another machine or a container.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from abps import files
from abps.core.errors import RequestError
from abps.data.codebook import Codebook, merged
from abps.data.prepare import center_summaries, codebook
from abps.data.scales import ColumnSummary, agree
from abps.data.split import assign_splits
from abps.data.synthetic.builtin import builtin_table
from abps.methods.settings import configure
from abps.privacy.small_counts import MIN_CELL
from abps.sites.consent import sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.policy import Policy
from abps.sites.consent.sitefile import SiteFile
from abps.sites.flare import kits
from abps.sites.flare.on_one_machine import Processes, Say, free_port, own_home, running
from abps.sites.flare.recipe import JobTimeouts
from abps.sites.flare.submit import COMPLETED, JobOutcome, connected, submit

#: Names for the first hospitals; more are numbered.
NAMES = ("north", "south", "east", "west")

#: Rehearsals are small: one laptop runs all sites.
MOST_SITES = 32

#: Hospitals that do not exist need not be asked, however few their patients are.
AUTO = Policy("auto", server=True, rows=1, events=1)

#: What the hospitals agree on, in the folder of a rehearsal.
AGREEMENT = "agreement.json"

#: Called when all sites are connected, before the job: what hospitals have to do to let a study run.
Consent = Callable[[kits.Network, Agreement], None]


@dataclass(frozen=True)
class Plan:
    """What is rehearsed.  stays: rows per hospital.  seconds: the most that all of it may take."""

    sites: int = 4
    study: str = "rehearsal"
    method: str = "abps-pq-k1"
    settings: Mapping[str, str] | None = None
    rounds: int = 5
    seed: int = 11
    stays: int = 300
    seconds: float = 180.0

    def __post_init__(self) -> None:
        if not 2 <= self.sites <= MOST_SITES:
            raise RequestError(f"{self.sites} sites: choose 2 to {MOST_SITES}")
        if self.rounds < 1:
            raise RequestError(f"rounds={self.rounds}: choose at least 1")
        if self.stays < 60:
            raise RequestError(f"{self.stays} stays per hospital: choose at least 60")
        if self.seconds <= 0:
            raise RequestError(f"{self.seconds:g} seconds: choose more than 0")

    @property
    def names(self) -> tuple[str, ...]:
        """The hospitals' names."""
        if self.sites <= len(NAMES):
            return NAMES[: self.sites]
        return tuple(f"hospital-{k + 1:02d}" for k in range(self.sites))


@dataclass(frozen=True)
class Rehearsed:
    """What came of it.  took: seconds of each part, in order."""

    network: kits.Network
    agreement: Agreement
    outcome: JobOutcome
    took: dict[str, float]


def rehearse(
    out: Path, plan: Plan, say: Say = lambda line: None, consent: Consent = lambda network, agreement: None
) -> Rehearsed:
    """Provision, write tables, start, submit, wait, stop. Kits, tables and stores are left in ``out``."""
    began = time.monotonic()
    took: dict[str, float] = {}

    def done(part: str) -> None:
        took[part] = round(time.monotonic() - began - sum(took.values()), 3)

    def left(part: str) -> float:
        seconds = plan.seconds - (time.monotonic() - began)
        if seconds <= 0:
            raise RequestError(f"{part} did not begin within {plan.seconds:g} s; give it more time")
        return seconds

    port = free_port()
    network, agreement = prepare(out, plan, "localhost", port)
    done("kits and tables")
    say(f"{plan.sites} hospitals, {plan.stays} stays each on average; relay on localhost:{port}")
    with own_home(out / "home"), running(Processes(network, port)) as processes:
        processes.start_all(left("the start"), say)
        done("start")
        consent(network, agreement)
        outcome = _job(network, agreement, plan, left("the job"), say)
        done("job")
    done("stop")
    return Rehearsed(network, agreement, outcome, took)


def prepare(out: Path, plan: Plan, host: str, port: int) -> tuple[kits.Network, Agreement]:
    """Certificates and kits for a relay that is called by this name, and a table for every hospital."""
    refused = configure(plan.method, plan.settings, plan.rounds).between_sites()
    if refused:
        raise RequestError(f"{plan.method!r} does not run between sites: {refused}")
    with own_home(files.folder(out) / "home"):
        network = kits.provision(out / "kits", plan.names, host, port)
    agreement = tables(out, network, plan)
    files.write_json(out / AGREEMENT, agreement.to_json())
    return network, agreement


def is_prepared(out: Path) -> bool:
    """Whether everything is there that hospitals need to start."""
    return (out / AGREEMENT).is_file()  # it is written last


def perform(out: Path, plan: Plan, say: Say = lambda line: None) -> Rehearsed:
    """The job alone, for hospitals that were prepared in ``out`` and are started by somebody else."""
    if not is_prepared(out):
        raise RequestError(f"{out} was not prepared; do that first")
    began = time.monotonic()
    agreement = Agreement.from_json(json.loads((out / AGREEMENT).read_text(encoding="utf-8")))
    sites = {path.stem: out / "kits" / path.stem for path in sorted((out / "tables").glob("*.parquet"))}
    (operator,) = [path for path in (out / "kits").iterdir() if "@" in path.name]
    network = kits.Network(out / "kits" / "relay", sites, operator, out / "kits" / "authority")
    with own_home(out / "home"):
        seen: list[str] = []
        while not set(sites) <= set(seen):
            left = plan.seconds - (time.monotonic() - began)
            if left <= 0:
                missing = ", ".join(sorted(set(sites) - set(seen)))
                raise RequestError(f"after {plan.seconds:g} s these are not connected: {missing}")
            with contextlib.suppress(RequestError):
                seen = connected(operator)
            time.sleep(1.0)
        say(f"connected: {', '.join(sorted(sites))}")
        outcome = _job(network, agreement, plan, left, say)
    return Rehearsed(network, agreement, outcome, {"job": round(time.monotonic() - began, 3)})


def _job(network: kits.Network, agreement: Agreement, plan: Plan, seconds: float, say: Say) -> JobOutcome:
    # Generous, because all sites share this machine's cores.
    timeouts = JobTimeouts(call=30.0, sign=30.0)
    least = len(network.sites)
    outcome = submit(network.operator, agreement, agreement.rounds, least, timeouts, seconds, changes(say))
    if outcome.status != COMPLETED or outcome.report is None:
        raise RequestError(f"the job ended as {outcome.status}; see the logs in {network.relay.parent}")
    if "error" in outcome.report:
        raise RequestError(f"the job did not run: {outcome.report['error']}")
    return outcome


def changes(say: Say) -> Say:
    """Say a line only if it is another than the last."""
    last = [""]

    def tell(line: str) -> None:
        if line != last[0]:
            last[0] = line
            say(line)

    return tell


def tables(out: Path, network: kits.Network, plan: Plan) -> Agreement:
    """A table and a file of its own for every hospital, and what they agree on.

    Each tells what it would tell in a real federation: its codebook, and the summaries of its numeric columns
    for a common scale. Nobody's rows are looked at by another.
    """
    frame, roles = builtin_table(
        f"icu-synthetic:centers={plan.sites},stays={plan.stays * plan.sites},groups={min(plan.sites, 4)}"
    )
    centers = sorted(frame["center"].unique().to_list())
    own: dict[str, SiteFile] = {}
    books: list[Codebook] = []
    for name, center in zip(plan.names, centers, strict=True):
        path = out / "tables" / f"{name}.parquet"
        rows = frame.filter(pl.col("center") == center).drop("center", "careunit")
        files.write_with(path, rows.write_parquet)
        store = str((out / "stores" / name).absolute())
        own[name] = SiteFile(
            name, str(path.absolute()), roles.label, store, roles.patient, roles.time, policy=AUTO
        )
        own[name].write(network.sites[name] / "local")
        book = codebook(own[name].read_table(), seed=0, min_cell=MIN_CELL)
        files.write_json(network.sites[name] / "local" / sitefile.CODEBOOK, book.to_json())
        books.append(book)
    book = merged(books)
    told: dict[str, ColumnSummary] = {}
    for file in own.values():
        table = file.read_table(book)
        split = assign_splits(table, plan.seed, book.shared_patients)
        told |= center_summaries(table, split, book.numbers, MIN_CELL)
    book = replace(book, statistics=agree(told))
    return Agreement(plan.study, plan.method, book, plan.seed, plan.rounds, dict(plan.settings or {}))
