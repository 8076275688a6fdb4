"""A job survives its sites: who was away comes back inside the job, and nobody's failure ends it for all.

At the relay: a site that registers again, or whose process failed, is given its part in the running jobs once
more; the engine would give it none, or end the job. A job begins without sites that do not answer, once more
than half are there. At the site: a process that begins so late has missed the engine's first two tasks, and
does by itself what they ask for.

Known of NVIDIA FLARE 2.9, to which the package is bound.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import Counter
from typing import Any

from abps.sites.coordinator.steps import enough

log = logging.getLogger("abps")

#: The mark of a job that a site is given anew, in the engine's description of the job.
RETURNS = "abps_returns"

#: Seconds that the last sites get to begin a job, once more than half have.
START_GRACE = 60

#: Seconds without any task after which a site sets itself up.
ALONE = 90.0

#: How often a site whose process has failed is given the same job again, and seconds before it is.
TRIES = 3
BREATH = 5.0

#: Set when the engine has set the site of this process up.
is_set_up = threading.Event()

#: Seconds that a process which has just registered gets before it is asked to do something.
MOMENT = 1.0


def give_back() -> None:
    """Let the relay give a site that registers again its part in the jobs that still run."""
    from nvflare.private.defs import CellMessageHeaderKeys
    from nvflare.private.fed.server.fed_server import FederatedServer

    register = FederatedServer.register_client

    def register_client(self: Any, request: Any) -> Any:
        reply = register(self, request)
        name = request.get_header(CellMessageHeaderKeys.CLIENT_NAME)
        threading.Thread(target=_give_back, args=(self, str(name)), daemon=True).start()
        return reply

    FederatedServer.register_client = register_client


def _give_back(server: Any, name: str) -> None:
    """Start the jobs at a site that it was in under another token."""
    from nvflare.apis.fl_constant import RunProcessKey

    time.sleep(MOMENT)
    engine = server.engine
    client = server.client_manager.name_to_clients.get(name)
    for job_id, running in list(engine.run_processes.items()):
        members = running.get(RunProcessKey.PARTICIPANTS) or {}
        before = [token for token, member in members.items() if member.name == name]
        if client is None or not before or client.token in members:
            continue
        if _given_again(engine, job_id, name):
            for token in before:
                members.pop(token, None)
            members[client.token] = client


def go_on() -> None:
    """Let a job go on without a site whose process has failed, and give that site its part again."""
    from nvflare.apis.job_launcher_spec import JobReturnCode
    from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
    from nvflare.private.fed.server.fed_server import FederatedServer

    judge = FederatedServer.process_job_failure
    tries: Counter[tuple[str, str]] = Counter()

    def process_job_failure(self: Any, request: Any) -> Any:
        payload = request.payload if isinstance(request.payload, dict) else {}
        job_id, code = str(payload.get(JobFailureMsgKey.JOB_ID)), payload.get(JobFailureMsgKey.CODE)
        if code == JobReturnCode.SUCCESS:
            return judge(self, request)
        token = request.get_header(CellMessageHeaderKeys.TOKEN)
        client = self.client_manager.clients.get(token)
        if payload:
            # The engine checks who reports it, and records that this site is done; the others go on.
            request.payload = {**payload, JobFailureMsgKey.CODE: JobReturnCode.SUCCESS}
        reply = judge(self, request)
        if client is not None and job_id in self.engine.run_processes:
            log.warning(
                "the job %s goes on without %s, whose process has failed (%s)", job_id, client.name, code
            )
            tries[job_id, client.name] += 1
            if tries[job_id, client.name] <= TRIES:
                arguments = (self.engine, job_id, client.name)
                threading.Thread(target=_once_more, args=arguments, daemon=True).start()
        return reply

    FederatedServer.process_job_failure = process_job_failure


def _once_more(engine: Any, job_id: str, name: str) -> None:
    """Give a site its part in a job again, if that still runs."""
    time.sleep(BREATH)
    if job_id in engine.run_processes:
        _given_again(engine, job_id, name)


def _given_again(engine: Any, job_id: str, name: str) -> bool:
    """Let a site start a job that runs once more. Whether it does: otherwise it is back with the next job."""
    job = engine.job_runner.running_jobs.get(job_id)
    if job is None:
        return False
    try:
        _start(engine, job, name)
    except Exception as error:
        log.warning("%s could not be given the job %s again: %s", name, job_id, error)
        return False
    log.info("%s was given the job %s again", name, job_id)
    return True


def _start(engine: Any, job: Any, name: str) -> None:
    """Let one site start a job that runs."""
    from nvflare.apis.job_scheduler_spec import DispatchInfo
    from nvflare.private.defs import ERROR_MSG_PREFIX

    with engine.new_context() as fl_ctx:
        needs: dict[str, Any] = {}
        willing = engine.check_client_resources(job, {name: needs}, fl_ctx)
        able, token = willing.get(name, (False, "no answer"))
        if not able:
            raise RuntimeError(f"it cannot take it ({token})")
        again = copy.copy(job)
        again.meta = {**job.meta, RETURNS: True}
        replies = engine.start_client_job(again, {name: DispatchInfo("app", needs, token)}, fl_ctx)
        for reply in replies:
            said = None if reply.reply is None else str(reply.reply.body)
            if said is None or said.startswith(ERROR_MSG_PREFIX):
                raise RuntimeError(said or "no answer")


def begin_without() -> None:
    """Let a job begin without sites that stand still."""
    from nvflare.collab.runtime.controller import CollabController
    from nvflare.collab.runtime.defs import SYNC_TASK_NAME

    wait = CollabController.broadcast_and_wait

    def broadcast_and_wait(
        self: Any,
        task: Any,
        fl_ctx: Any,
        targets: Any = None,
        min_responses: int = 1,
        wait_time_after_min_received: int = 0,
        abort_signal: Any = None,
    ) -> Any:
        known, ready = self.client_info, self.client_setup_status
        first = task.name == SYNC_TASK_NAME
        asked = sorted(known) if first else [name for name in sorted(known) if name not in self.late]
        done = wait(self, task, fl_ctx, asked, enough(len(asked)), START_GRACE, abort_signal)
        there = [name for name in asked if (known[name] is not None if first else ready[name])]
        # Who was killed meanwhile is given the job again and sets itself up, and does not answer these tasks.
        # Whether those who are there are enough for a round is for the scheduler to say.
        if not there:
            return done  # the engine ends the job, and says why
        missing = [name for name in known if name not in there]
        if first:
            self.late = frozenset(missing)
            # All sites run the same class, so what one publishes all do.
            known.update(dict.fromkeys(missing, known[there[0]]))
        else:
            ready.update(dict.fromkeys(missing, True))
        for name in missing if first else [name for name in missing if name not in self.late]:
            log.warning("the job begins without %s, which does not answer", name)
        return done

    CollabController.broadcast_and_wait = broadcast_and_wait


def join_late() -> None:
    """Let a site's process that begins late, or gets no task for long, set itself up."""
    from nvflare.private.fed.client.client_runner import ClientRunner

    fetch = ClientRunner.fetch_and_run_one_task
    started: list[float] = []

    def fetch_and_run_one_task(self: Any, fl_ctx: Any) -> Any:
        if not started:
            started.append(time.monotonic())
            set_up_late(self)
        done = fetch(self, fl_ctx)
        if not is_set_up.is_set() and time.monotonic() > started[0] + ALONE:
            set_up_late(self, without_task=True)
        return done

    ClientRunner.fetch_and_run_one_task = fetch_and_run_one_task


def set_up_late(runner: Any, without_task: bool = False) -> None:
    """Do what the engine's first tasks ask for, if this process was started after them, or no task comes."""
    from nvflare.apis.fl_constant import FLContextKey, ReturnCode
    from nvflare.apis.shareable import Shareable
    from nvflare.collab.api.app import ServerApp
    from nvflare.collab.runtime.defs import SETUP_TASK_NAME, SyncKey
    from nvflare.fuel.f3.cellnet.fqcn import FQCN

    from abps.sites.flare.app import FlareScheduler

    with runner.engine.new_context() as fl_ctx:
        meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
        if not (meta.get(RETURNS) or without_task):
            return
        executor = runner.task_router.route(SETUP_TASK_NAME)
        mine = executor.client_app.get_collab_interface()
        # All sites run the same class, so what it publishes here it publishes everywhere.
        task = Shareable(
            {
                SyncKey.COLLAB_INTERFACE: ServerApp(FlareScheduler("", 1)).get_collab_interface(),
                SyncKey.CLIENT_INTERFACES: {client["name"]: mine for client in meta["job_clients"]},
                SyncKey.SERVER_FQCN: FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()]),
            }
        )
        done = executor.execute(SETUP_TASK_NAME, task, fl_ctx, runner.run_abort_signal)
        if done.get_return_code() != ReturnCode.OK:
            raise RuntimeError(f"the job could not be taken up again ({done.get_return_code()})")
        log.info("back in the job %s", fl_ctx.get_job_id())
