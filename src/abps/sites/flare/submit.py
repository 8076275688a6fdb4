"""Send a job with the operator's kit, and wait for what the conductor has to say about it."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api import api_spec as engine
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from abps.core.errors import RequestError
from abps.data.codebook import Codebook
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.keys import read_root, read_signer
from abps.sites.consent.proposal import Proposal, sign
from abps.sites.consent.sharing import open_letter
from abps.sites.flare.app import RESULT
from abps.sites.flare.recipe import ABPSRecipe, JobTimeouts


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended: the engine's word for it, and the conductor's report (None while it runs)."""

    job: str
    status: str
    report: dict[str, Any] | None

    @property
    def ran(self) -> bool:
        """Whether its rounds are done. The engine calls a job abnormal if a site was gone when it ended."""
        return self.report is not None and "error" not in self.report

    @property
    def ended(self) -> bool:
        """Whether the engine has ended it."""
        return self.status.startswith("FINISHED")


class Lost(RequestError):
    """The relay was there and does not answer any more."""


class JobLost(RequestError):
    """The relay was started anew, and the job that it ran is gone."""


#: Jobs in a row that may be lost with the relay before it is given up, and seconds between two tries.
MOST_LOST = 5
AGAIN_SECONDS = 10.0

#: Seconds between two questions of a site for its next task, before a job and while it runs.
TASK_SECONDS = 0.5

#: Seconds after which a job that is said to run and has no process at the relay is lost. (A relay may have
#: been killed before anybody saw the job run; a job that ends has no process for some seconds.)
GONE_SECONDS = 60.0

#: The engine's word for a job that has run.
COMPLETED = "FINISHED:COMPLETED"

#: What the engine says when the line is broken, and when it does not want to do something.
_BROKEN = (engine.NoConnection, engine.SessionClosed, engine.NoReply)
_REFUSED = (engine.AuthorizationError, engine.InvalidJobDefinition, engine.JobNotFound, engine.InternalError)


def _operator(kit: Path) -> str:
    path = Path(kit) / "startup" / "fed_admin.json"
    if not path.is_file():
        raise RequestError(f"{kit} is not an operator's startup kit; it was made by `abps site provision`")
    return str(json.loads(path.read_text(encoding="utf-8"))["admin"]["username"])


@contextlib.contextmanager
def session(kit: Path, seconds: float = 15.0) -> Iterator[Session]:
    """Log in at the relay."""
    name = _operator(kit)
    with contextlib.redirect_stdout(io.StringIO()):  # the engine's chatter is not our output
        try:
            line = new_secure_session(name, str(kit), timeout=seconds)
        except Exception as error:
            raise Lost(f"the relay does not answer {name} ({error}); is it started and reachable?") from error
        try:
            yield line
        except _BROKEN as error:
            raise Lost(
                f"the relay stopped answering ({error}); what runs there goes on, ask later"
            ) from error
        except _REFUSED as error:
            raise RequestError(f"the relay refused ({error}); see its log") from error
        finally:
            with contextlib.suppress(Exception):  # the line may be gone
                line.close()


def connected(kit: Path) -> list[str]:
    """The sites that are connected to the relay."""
    with session(kit) as line:
        return sorted(client.name for client in line.get_connected_client_list())


def submit(
    kit: Path,
    agreement: Agreement,
    rounds: int,
    min_sites: int = 2,
    timeouts: JobTimeouts | None = None,
    wait: float | None = None,
    progress: Callable[[str], None] = lambda status: None,
    members: Sequence[str] = (),
) -> JobOutcome:
    """Submit a job, signed with the kit's key; with ``wait`` seconds, wait for its end and its report."""
    proposal = Proposal(agreement.study, agreement, tuple(members))
    recipe = ABPSRecipe(agreement, rounds, min_sites, timeouts, signed=sign(proposal, read_signer(kit)))
    return _run(kit, recipe, wait, progress)


def to_the_end(once: Callable[[], JobOutcome], rounds: int, tell: Callable[[str], None]) -> JobOutcome:
    """Jobs one after the other until the study has had its rounds, also where some are lost with the relay.

    once: submits a job and waits for its end.  Returns the last job's outcome, with the rounds of all in its
    report. A job that ends in another way than by having run is the last.
    """
    before: list[dict[str, Any]] = []
    lost = 0
    while True:
        try:
            done = once()
        except (JobLost, Lost) as error:
            lost += 1
            # Who is not answered at all the first time has named a relay that is not there.
            if lost > MOST_LOST or (isinstance(error, Lost) and not before and lost == 1):
                raise
            tell(str(error))
            time.sleep(AGAIN_SECONDS)
            continue
        report = done.report
        if report and (before or lost) and report.get("finished"):
            # The last round was over when its job was lost.
            return JobOutcome(done.job, COMPLETED, _joined(before) if before else None)
        if report is None and lost < MOST_LOST:  # its process at the relay has died
            lost += 1
            tell(f"job {done.job} ended as {done.status}, without a report; submitting again")
            time.sleep(AGAIN_SECONDS)
            continue
        if report is None or not done.ran:
            return done
        lost = 0
        before.append(report)
        last = report["rounds"][-1]["round"] if report["rounds"] else rounds
        tell(f"job {done.job}: round {last} of {rounds}")
        if report["stopped_early"] or last >= rounds:
            return replace(done, report=_joined(before))


def _joined(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The report of several jobs as if they were one."""
    last = reports[-1]
    total = {name: sum(each["bytes"][name] for each in reports) for name in last["bytes"]}
    all_rounds = [each for report in reports for each in report["rounds"]]
    return {**last, "first": reports[0]["first"], "rounds": all_rounds, "bytes": total}


@dataclass(frozen=True)
class Gathered:
    """What came of asking for codebooks: whose, and why there is none of the others."""

    job: str
    books: dict[str, Codebook]
    left_out: dict[str, str]


def gather(
    kit: Path,
    study: str,
    members: Sequence[str] = (),
    patience: float = 0.0,
    wait: float = 600.0,
    progress: Callable[[str], None] = lambda status: None,
) -> Gathered:
    """Ask the connected sites for their codebooks; patience: seconds for people there to share them."""
    key, authority = read_signer(kit), read_root(kit)
    signed = sign(Proposal(study, None, tuple(members)), key)
    recipe = ABPSRecipe(None, 1, 1, JobTimeouts(patience=patience), f"abps-{study}-codebooks", signed)
    done = _run(kit, recipe, wait + patience, progress)
    report = done.report or {"error": f"the job ended as {done.status}; look into the relay's log"}
    if "error" in report:
        raise RequestError(f"no codebooks: {report['error']}")
    books, left_out = {}, {str(name): str(why) for name, why in report["left_out"].items()}
    for name, told in sorted(report["codebooks"].items()):
        try:
            books[name] = open_letter(name, told, signed, key, authority)
        except RequestError as error:
            left_out[name] = str(error)
    if not books:
        raise RequestError("no codebooks: " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
    return Gathered(done.job, books, left_out)


def _run(kit: Path, recipe: ABPSRecipe, wait: float | None, progress: Callable[[str], None]) -> JobOutcome:
    with tempfile.TemporaryDirectory() as folder, session(kit) as line:
        recipe.export(folder)
        _ask_often(Path(folder))
        job = line.submit_job(str(Path(folder) / recipe.job_name))
    if wait is None:
        return JobOutcome(job, "SUBMITTED", None)
    until = time.monotonic() + wait
    ran_under: Any = None
    seen: float | None = None  # when the job was last among those that have a process
    while time.monotonic() < until:
        try:
            with session(kit) as line:
                while time.monotonic() < until:
                    status = str(line.get_job_status(job))
                    progress(status)
                    if status.startswith("FINISHED"):
                        return JobOutcome(job, status, _report(line, job))
                    if status.startswith("RUNNING"):
                        # A relay that was started anew goes on saying so of a job that it has lost.
                        told = line.get_system_info()
                        relay, now = told.server_info.start_time, time.monotonic()
                        runs = any(running.job_id == job for running in told.job_info)
                        seen = now if runs or seen is None else seen
                        if ran_under not in (None, relay) or now - seen > GONE_SECONDS:
                            raise JobLost(
                                f"the relay was started anew while the job {job} ran, and the job is lost; "
                                "what the sites had finished is not: submit it again"
                            )
                        ran_under = relay
                    time.sleep(1.0)
        except Lost:
            progress("the relay does not answer; asking again")
            time.sleep(1.0)
    raise RequestError(f"the job {job} has not ended within {wait:g} s; it goes on, ask again later")


def _ask_often(job: Path) -> None:
    """Let sites ask for their tasks more often than every two seconds: there are two, before a job begins."""
    for path in job.rglob("config_fed_server.json"):
        config = json.loads(path.read_text(encoding="utf-8"))
        config["server"] = {**config.get("server", {}), "task_request_interval": TASK_SECONDS}
        path.write_text(json.dumps(config), encoding="utf-8")


def _report(line: Session, job: str) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = line.download_job_result(job, folder)
        except RuntimeError as error:  # what the engine says when the relay goes away meanwhile
            said = f"the relay stopped answering while it sent the report ({error}); ask later"
            raise Lost(said) from error
        for found in Path(result or folder).rglob(RESULT):
            report: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
            return report
    return None
