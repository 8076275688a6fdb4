"""Send a job with the operator's kit, and wait for its report. A job is data: what to start where, and the
signed proposal. A site admits it because its own ``class_allow_list`` names these classes."""

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nvflare.collab import CollabRecipe
from nvflare.fuel.flare_api import api_spec as engine
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from abps.core.errors import RequestError
from abps.sites.consent.agreement import Agreement
from abps.sites.consent.keys import read_signer
from abps.sites.consent.kit import Kit, Role, read_kit
from abps.sites.consent.proposal import Proposal, SignedProposal, sign
from abps.sites.flare.app import RESULT, FlareScheduler, FlareSite
from abps.sites.flare.kits import provisioned
from abps.sites.protocol.commands import Timeouts

MOST_LOST = 5  # jobs in a row that may be lost with the relay before the operator gives up
AGAIN_SECONDS = 10.0  # seconds between two tries
COMPLETED = "FINISHED:COMPLETED"  # the engine's status of a job that has run
#: Seconds after which a job that is said to run and has no process at the relay is lost. (A relay may have
#: been killed before anybody saw the job run; a job that ends has no process for some seconds.)
GONE_SECONDS = 60.0

#: Errors of the engine: the line is broken, or it refuses.
_BROKEN = (engine.NoConnection, engine.SessionClosed, engine.NoReply)
_REFUSED = (engine.AuthorizationError, engine.InvalidJobDefinition, engine.JobNotFound, engine.InternalError)

Progress = Callable[[str], None]


class ABPSRecipe(CollabRecipe):
    """A job for the engine: some rounds of a study."""

    def __init__(
        self, signed: SignedProposal, rounds: int = 1, min_sites: int = 2, timeouts: Timeouts | None = None
    ) -> None:
        """rounds: of this job; a site that was away can come back with the next one."""
        timeouts = timeouts or Timeouts()
        signed.proposal.agreement.config()  # what cannot be run is refused here, not at the sites
        super().__init__(
            job_name=f"abps-{signed.proposal.study}",
            server=FlareScheduler(signed.text(), rounds, asdict(timeouts)),
            client=FlareSite(signed.text(), timeouts.call),
            min_clients=min_sites,
            sync_task_timeout=max(60.0, timeouts.talk),
        )
        self._job.job.set_app_packages(["abps"])

    @staticmethod
    def _user_source_entries(objs: Any) -> list[tuple[str, str | None]]:
        """No source is shipped: the package is installed wherever the job runs."""
        return []


@dataclass(frozen=True)
class JobOutcome:
    job: str
    status: str  # the engine's
    report: dict[str, Any] | None  # the scheduler's; none while it runs

    @property
    def ran(self) -> bool:
        """Whether its rounds are done. The engine calls a job abnormal if a site was gone when it ended."""
        return self.report is not None and "error" not in self.report

    @property
    def ended(self) -> bool:
        return self.status.startswith("FINISHED")


class RelayLost(RequestError):
    """The relay does not answer."""


class JobLost(RequestError):
    """The relay was restarted, and the job that it ran is gone."""


@contextlib.contextmanager
def session(kit: Path, seconds: float = 15.0) -> Iterator[Session]:
    given = _operator(kit)
    with contextlib.redirect_stdout(io.StringIO()):  # the engine's chatter is not our output
        try:
            line = new_secure_session(given.name, str(kit), timeout=seconds)
        except Exception as error:
            raise RelayLost(f"the relay does not answer ({error}); is it started and reachable?") from error
        try:
            yield line
        except _BROKEN as error:
            raise RelayLost(f"the relay stopped answering ({error}); what runs there goes on") from error
        except _REFUSED as error:
            raise RequestError(f"the relay refused ({error}); see its log") from error
        finally:
            with contextlib.suppress(Exception):  # the line may be gone
                line.close()


def _operator(kit: Path) -> Kit:
    given = read_kit(kit)
    if given.role is not Role.OPERATOR:
        raise RequestError(f"{kit} is not an operator's startup kit; it was made by `abps site provision`")
    return given


def connected(kit: Path) -> list[str]:
    with session(kit) as line:
        return sorted(client.name for client in line.get_connected_client_list())


def submit(
    kit: Path,
    agreement: Agreement,
    rounds: int,
    min_sites: int = 2,
    timeouts: Timeouts | None = None,
    wait: float | None = None,
    progress: Progress = lambda status: None,
    members: Sequence[str] = (),
) -> JobOutcome:
    """Submit a job, signed with the kit's key; with ``wait`` seconds, wait for its end and its report.
    members: named in the proposal, so that sites hold to them; none: all sites of the network."""
    named = tuple(members) or provisioned(_operator(kit).folder)
    signed = sign(Proposal(agreement, named), read_signer(kit))
    return _run(kit, ABPSRecipe(signed, rounds, min_sites, timeouts), wait, progress)


def to_the_end(once: Callable[[], JobOutcome], rounds: int, progress: Progress) -> JobOutcome:
    """Submit jobs until the study has had its rounds: the last job's outcome, with the rounds of all in its
    report.  once: submits a job and waits for its end. A job that was lost, or that waits for members, is
    submitted again; any other error is the end."""
    before: list[dict[str, Any]] = []
    lost = 0
    while True:
        try:
            done = once()
            report = done.report
            why = f"job {done.job} ended as {done.status}, without a report" if report is None else ""
            if report and report.get("waits"):
                why = f"job {done.job}: {report['error']}"
        except (JobLost, RelayLost) as error:
            # A relay that does not answer the first time is not there.
            if lost == MOST_LOST or (isinstance(error, RelayLost) and not before and not lost):
                raise
            done, why = None, str(error)
        if done is None or (why and lost < MOST_LOST):
            lost += 1
            progress(f"{why}; submitting again")
            time.sleep(AGAIN_SECONDS)
            continue
        if report and (before or lost) and report.get("finished"):
            # The last round was over when its job was lost.
            return JobOutcome(done.job, COMPLETED, _joined(before) if before else None)
        if report is None or not done.ran:
            return done
        lost = 0
        before.append(report)
        last = report["rounds"][-1]["round"] if report["rounds"] else rounds
        progress(f"job {done.job}: round {last} of {rounds}")
        if report["stopped_early"] or last >= rounds:
            return replace(done, report=_joined(before))


def _joined(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total = sum(each["bytes"] for each in reports)
    all_rounds = [each for report in reports for each in report["rounds"]]
    return {**reports[-1], "first": reports[0]["first"], "rounds": all_rounds, "bytes": total}


def _run(kit: Path, recipe: ABPSRecipe, wait: float | None, progress: Progress) -> JobOutcome:
    with tempfile.TemporaryDirectory() as folder, session(kit) as line:
        recipe.export(folder)
        job = str(line.submit_job(str(Path(folder) / recipe.job_name)))
    if wait is None:
        return JobOutcome(job, "SUBMITTED", None)
    until, watch = time.monotonic() + wait, _LossWatch(job)
    while time.monotonic() < until:
        try:
            with session(kit) as line:
                while time.monotonic() < until:
                    done = JobOutcome(job, str(line.get_job_status(job)), None)
                    progress(done.status)
                    if done.ended:
                        return replace(done, report=_report(line, job))
                    if done.status.startswith("RUNNING"):
                        watch.check(line.get_system_info())
                    time.sleep(1.0)
        except RelayLost:
            progress("the relay does not answer; asking again")
            time.sleep(1.0)
    raise RequestError(f"the job {job} has not ended within {wait:g} s; it goes on, ask again later")


class _LossWatch:
    """Notices that a job was lost: a relay that was restarted goes on saying that it runs."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.relay: Any = None  # when the relay that ran the job was started
        self.seen: float | None = None  # when the job last had a process

    def check(self, info: Any) -> None:
        """Raise :class:`JobLost` if the relay was restarted, or the job has had no process for long."""
        relay, now = info.server_info.start_time, time.monotonic()
        if self.seen is None or any(running.job_id == self.job for running in info.job_info):
            self.seen = now
        if self.relay not in (None, relay) or now - self.seen > GONE_SECONDS:
            raise JobLost(
                f"the relay was restarted while the job {self.job} ran, and the job is lost; what the sites "
                "had finished is not: submit it again"
            )
        self.relay = relay


def _report(line: Session, job: str) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = line.download_job_result(job, folder)
        except RuntimeError as error:  # the engine's error when the relay goes away meanwhile
            raise RelayLost(f"the relay stopped answering as it sent the report ({error})") from error
        for found in Path(result or folder).rglob(RESULT):
            report: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
            return report
    return None
