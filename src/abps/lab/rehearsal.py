"""A rehearsal: a federation of synthetic hospitals on one machine, through everything that a real one does:
certificates, kits, tables, a relay and sites as processes with mutual TLS, a job, stores and models."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psutil

from abps import files
from abps.core.errors import RequestError
from abps.data.codebook import Codebook, merged
from abps.data.federation import builtin_table
from abps.data.prepare import codebook
from abps.privacy.small_counts import MIN_CELL
from abps.sites.consent import sitefile
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.sitefile import Policy, SiteFile
from abps.sites.flare import kits
from abps.sites.flare.submit import COMPLETED, JobOutcome, connected, submit
from abps.sites.protocol.commands import Timeouts

#: Where a process of a network writes what it says, in its kit.
OUTPUT = "out.log"

#: Sites that are started together: on a few cores, too many processes would wait for each other too long.
AT_ONCE = 4

#: Seconds that processes get to end by themselves.
GRACE = 3.0

RELAY = "relay"

Say = Callable[[str], None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """The processes of a provisioned network whose relay is this machine.  environment: more variables, by
    name."""

    def __init__(
        self, network: kits.Network, port: int, environment: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.network = network
        self.port = port
        self.environment = environment or {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def kit(self, name: str) -> Path:
        return self.network.relay if name == RELAY else self.network.sites[name]

    def start(self, name: str, kit: Path | None = None) -> None:
        """Start one participant; what it says goes into its kit."""
        kit = kit or self.kit(name)
        command, environment = kits.command(kit)
        with (kit / OUTPUT).open("ab") as out:
            self.running[name] = subprocess.Popen(
                command,
                env={**environment, **self.environment.get(name, {})},
                cwd=kit,
                stdout=out,
                stderr=out,
                start_new_session=True,  # the terminal's interrupt reaches us alone, and we end them
            )

    def start_all(self, seconds: float, say: Say = lambda line: None) -> None:
        """Start the relay and then the sites, a few at a time, until all are connected."""
        until = time.monotonic() + seconds
        self.start(RELAY)
        while not self._listens():
            late = f"the relay does not listen on port {self.port} after {seconds:.0f} s"
            self._alive(RELAY, until, late)
            time.sleep(0.2)
        say("the relay listens")
        names = list(self.network.sites)
        for first in range(0, len(names), AT_ONCE):
            some = names[first : first + AT_ONCE]
            for name in some:
                self.start(name)
            self.wait_for(some, until - time.monotonic())
            say(f"connected: {', '.join(some)}")

    def wait_for(self, names: Sequence[str], seconds: float) -> None:
        """Until all these sites are connected; a site that gave up in between is started again."""
        until = time.monotonic() + seconds
        while True:
            seen: list[str] = []
            with contextlib.suppress(RequestError):
                seen = connected(self.network.operator)
            waiting = [name for name in names if name not in seen]
            if not waiting:
                return
            late = f"not connected: {', '.join(waiting)} after {seconds:.0f} s"
            self._alive(waiting[0], until, late)
            for name in waiting:
                # The engine's process gives up if its machine is too busy to connect in time.
                if name in self.running and self.running[name].poll() is not None:
                    self.start(name)
            time.sleep(0.5)

    def family(self, name: str) -> list[psutil.Process]:
        """A participant's process and the processes that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.running[name].pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self, name: str) -> None:
        """End one participant at once, with what it started, as a loss of power would."""
        family = self.family(name)
        _signal(family, signal.SIGKILL)
        self.running.pop(name).wait()

    def stop(self, grace: float = GRACE) -> None:
        """End everything that was started here: asked first, then at once; also a process that an interrupt
        came upon before we knew of it."""
        families = [process for name in self.running for process in self.family(name)]
        ours = str(self.network.relay.parent.absolute())
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child not in families and any(word.startswith(ours) for word in child.cmdline()):
                    families.append(child)
        if grace:
            _signal(families, signal.SIGTERM)
            _, families = psutil.wait_procs(families, timeout=grace)
        _signal(families, signal.SIGKILL)
        psutil.wait_procs(families, timeout=GRACE)
        for process in self.running.values():
            process.wait()
        self.running.clear()

    def log(self, name: str) -> str:
        path = self.kit(name) / OUTPUT
        return path.read_text(errors="replace") if path.is_file() else ""

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(2.0)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _alive(self, name: str, until: float, what: str) -> None:
        """Raise if the relay has ended, or if it is too late for somebody."""
        code = self.running[RELAY].poll()
        if code is not None:
            name, what = RELAY, f"the relay has ended with code {code}"
        if code is not None or time.monotonic() > until:
            lines = [line for line in self.log(name).splitlines() if line.strip()]
            last = f"; its last words: {lines[-1].strip()[:200]}" if lines else ""
            raise RequestError(f"{what}{last} (see {self.kit(name) / OUTPUT})")


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextlib.contextmanager
def running(processes: Processes) -> Iterator[Processes]:
    """Processes that are all ended when the block is left, also by an interrupt or a request to end."""

    def ended(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread: nobody can send us a signal there
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, ended)
        before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield processes
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # a second request must not leave half of them running
        processes.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def own_home(folder: Path) -> Iterator[None]:
    """The engine writes into its user's home folder: give it another one meanwhile."""
    before = os.environ.get("HOME")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = before


#: Names of the first hospitals; more are numbered.
NAMES = ("north", "south", "east", "west")

#: Rehearsals are small: one laptop runs all sites.
MOST_SITES = 32

#: Synthetic hospitals need not be asked, however few their patients are.
AUTO = Policy("auto", rows=1, events=1)

#: What the hospitals agree on, in the folder of a rehearsal.
AGREEMENT = "agreement.json"


@dataclass(frozen=True)
class RehearsalPlan:
    """stays: rows per hospital.  seconds: the most that the rehearsal may take."""

    sites: int
    study: str
    method: str
    settings: Mapping[str, str] | None = None
    rounds: int = 5
    seed: int = 11
    stays: int = 300
    seconds: float = 180.0

    def __post_init__(self) -> None:
        if not 3 <= self.sites <= MOST_SITES:
            raise RequestError(f"{self.sites} sites: choose 3 to {MOST_SITES}; a sum of two shows a summand")
        for value, least, what in (
            (self.rounds, 1, "rounds"), (self.stays, 60, "stays per hospital"), (self.seconds, 1, "seconds"),
        ):  # fmt: skip
            if value < least:
                raise RequestError(f"{value:g} {what}: choose at least {least}")

    @property
    def names(self) -> tuple[str, ...]:
        if self.sites <= len(NAMES):
            return NAMES[: self.sites]
        return tuple(f"hospital-{k + 1:02d}" for k in range(self.sites))


@dataclass(frozen=True)
class RehearsalResult:
    """took: seconds of each part, in order."""

    network: kits.Network
    agreement: Agreement
    outcome: JobOutcome
    took: dict[str, float]


def rehearse(out: Path, plan: RehearsalPlan, say: Say = lambda line: None) -> RehearsalResult:
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
        outcome = _job(network, agreement, left("the job"), say)
        done("job")
    done("stop")
    return RehearsalResult(network, agreement, outcome, took)


def prepare(out: Path, plan: RehearsalPlan, host: str, port: int) -> tuple[kits.Network, Agreement]:
    """Certificates and kits for a relay of this name, and a table for every hospital."""
    settings = dict(plan.settings or {})
    Agreement(plan.study, plan.method, Codebook(()), plan.seed, plan.rounds, settings).config()
    with own_home(files.folder(out) / "home"):
        network = kits.provision(out / "kits", plan.names, host, port)
    agreement = _tables(out, network, plan)
    files.write_json(out / AGREEMENT, agreement.to_json())
    return network, agreement


def is_prepared(out: Path) -> bool:
    return (out / AGREEMENT).is_file()  # it is written last


def _job(network: kits.Network, agreement: Agreement, seconds: float, say: Say) -> JobOutcome:
    last = ""

    def progress(status: str) -> None:
        nonlocal last
        if status != last:
            last = status
            say(status)

    # Generous, because all sites share this machine's cores.
    timeouts = Timeouts(call=30.0, sign=30.0)
    least = len(network.sites)
    outcome = submit(network.operator, agreement, agreement.rounds, least, timeouts, seconds, progress)
    if outcome.status != COMPLETED or outcome.report is None:
        raise RequestError(f"the job ended as {outcome.status}; see the logs in {network.relay.parent}")
    if "error" in outcome.report:
        raise RequestError(f"the job did not run: {outcome.report['error']}")
    return outcome


def _tables(out: Path, network: kits.Network, plan: RehearsalPlan) -> Agreement:
    frame, roles = builtin_table(
        f"icu-synthetic:centers={plan.sites},stays={plan.stays * plan.sites},groups={min(plan.sites, 4)}"
    )
    books: list[Codebook] = []
    for name, center in zip(plan.names, sorted(frame["center"].unique().to_list()), strict=True):
        path, local = out / "tables" / f"{name}.parquet", network.sites[name] / "local"
        files.write_with(
            path, frame.filter(pl.col("center") == center).drop("center", "careunit").write_parquet
        )
        store = str((out / "stores" / name).absolute())
        table = str(path.absolute())
        own = SiteFile(name, table, roles.label, store, roles.patient, roles.time, policy=AUTO)
        own.write(local)
        books.append(codebook(own.read_table(), seed=0, min_cell=MIN_CELL))
        files.write_json(local / sitefile.CODEBOOK, books[-1].to_json())
    settings = dict(plan.settings or {})
    return Agreement(plan.study, plan.method, merged(books), plan.seed, plan.rounds, settings)
