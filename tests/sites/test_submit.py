"""Submitting over a line that breaks; the relay is played by the test."""

from __future__ import annotations

import json

import pytest
from nvflare.fuel.flare_api import api_spec as engine

from abps.core.errors import RequestError
from abps.sites.flare import submit as jobs


class Relay:
    """Plays one session after the other: each is a list of statuses or exceptions."""

    has_process = True

    def __init__(self, *sessions, started=()):
        self.sessions = [iter(s) for s in sessions]
        self.started = list(started) or [7.0] * len(sessions)
        self.closed = 0

    def __call__(self, name, kit, timeout):
        self.now, self.start = self.sessions.pop(0), self.started.pop(0)
        return self

    def get_system_info(self):
        jobs_here = [engine.JobInfo("job-1", "app")] if self.has_process else []
        return engine.SystemInfo(engine.ServerInfo("started", self.start), [], jobs_here)

    def _next(self):
        told = next(self.now)
        if isinstance(told, Exception):
            raise told
        return told

    def submit_job(self, folder):
        return self._next()

    def get_job_status(self, job):
        return self._next()

    def download_job_result(self, job, folder):
        from pathlib import Path

        (Path(folder) / "abps-job.json").write_text(json.dumps({"schema": "abps.job/1", "rounds": []}))
        return folder

    def close(self):
        self.closed += 1


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_admin.json").write_text(
        json.dumps({"admin": {"username": "me@here.org", "host": "localhost", "port": 8002}})
    )
    return tmp_path


def submitted(monkeypatch, six, kit, relay, wait=60.0):
    monkeypatch.setattr(jobs, "new_secure_session", relay)
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    return jobs.submit(kit, six.agreement("abps-plus"), 1, wait=wait, members=six.names)


def test_a_relay_that_is_killed_while_it_sends_the_report_is_asked_again(monkeypatch, six, kit):
    class Killed(Relay):
        def download_job_result(self, job, folder):
            if self.sessions:  # the first time
                raise RuntimeError("runtime error encountered: error receiving file")
            return super().download_job_result(job, folder)

    relay = Killed(["job-1"], ["FINISHED:COMPLETED"], ["FINISHED:COMPLETED"])
    outcome = submitted(monkeypatch, six, kit, relay)
    assert outcome.status == "FINISHED:COMPLETED" and outcome.report is not None
    assert not relay.sessions


def test_a_line_that_breaks_is_made_anew(monkeypatch, six, kit):
    relay = Relay(
        ["job-1"], ["RUNNING", engine.NoConnection("gone")], [engine.SessionClosed("old")],
        ["RUNNING", "FINISHED:COMPLETED"],
    )  # fmt: skip
    outcome = submitted(monkeypatch, six, kit, relay)
    assert (outcome.job, outcome.status) == ("job-1", "FINISHED:COMPLETED") and outcome.report is not None
    assert relay.closed == 4 and not relay.sessions


def test_a_job_that_went_with_its_relay(monkeypatch, six, kit):
    """The relay's record of jobs outlives it, and says forever that the job runs."""
    relay = Relay(["job-1"], ["RUNNING", engine.NoConnection("gone")], ["RUNNING"], started=[7.0, 7.0, 8.0])
    with pytest.raises(RequestError, match="job-1 ran, and the job is lost"):
        submitted(monkeypatch, six, kit, relay)
    waited = Relay(
        ["job-1"], ["SUBMITTED", engine.NoConnection("gone")], ["RUNNING", "FINISHED:COMPLETED"],
        started=[7.0, 7.0, 8.0],
    )  # fmt: skip
    assert submitted(monkeypatch, six, kit, waited).status == "FINISHED:COMPLETED"


def test_a_job_that_was_lost_before_anybody_saw_it_run(monkeypatch, six, kit):
    """The relay was killed right after it began the job: the new one says RUNNING, and has no process."""
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(jobs.time, "monotonic", lambda: float(next(clock)))
    relay = Relay(
        ["job-1"], ["SUBMITTED", engine.NoConnection("gone")], ["RUNNING"] * 9, started=[7.0, 8.0, 8.0]
    )
    relay.has_process = False
    with pytest.raises(RequestError, match="job-1 ran, and the job is lost"):
        submitted(monkeypatch, six, kit, relay, wait=5000.0)
    there = Relay(["job-1"], ["RUNNING"] * 9 + ["FINISHED:COMPLETED"])
    assert submitted(monkeypatch, six, kit, there, wait=5000.0).status == "FINISHED:COMPLETED"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (engine.NoConnection("gone"), "stopped answering"),
        (engine.AuthorizationError("not you"), "refused"),
        (engine.InvalidJobDefinition("no"), "refused"),
    ],
)
def test_a_job_that_the_relay_does_not_take(monkeypatch, six, kit, error, words):
    with pytest.raises(RequestError, match=words):
        submitted(monkeypatch, six, kit, Relay([error]))


def test_not_waiting(monkeypatch, six, kit):
    assert submitted(monkeypatch, six, kit, Relay(["job-1"]), wait=None).status == "SUBMITTED"


def test_a_job_that_does_not_end(monkeypatch, six, kit):
    with pytest.raises(RequestError, match="job-1 has not ended within 0 s"):
        submitted(monkeypatch, six, kit, Relay(["job-1"]), wait=0.0)


def report(first, last, **more):
    rounds = [{"round": t} for t in range(first, last + 1)]
    return {"first": first, "rounds": rounds, "stopped_early": False, "bytes": last, **more}


def played(*parts):
    """Submits by a script: outcomes, reports of jobs that ran, and errors."""
    left = iter(parts)

    def once():
        told = next(left)
        if isinstance(told, Exception):
            raise told
        return jobs.JobOutcome("job", jobs.COMPLETED, told) if isinstance(told, dict) else told

    return once


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    return []


def test_jobs_follow_each_other_to_the_end_of_a_study(told):
    """Also after some are lost with the relay; the report is that of all jobs."""
    gone = jobs.JobLost("the job is lost")
    once = played(report(1, 4), gone, jobs.RelayLost("away"), gone, report(7, 10), report(11, 12))
    done = jobs.to_the_end(once, 12, told.append)
    assert [r["round"] for r in done.report["rounds"]] == [1, 2, 3, 4, 7, 8, 9, 10, 11, 12]
    assert done.report["first"] == 1 and done.report["bytes"] == 4 + 10 + 12
    assert told == [
        "job job: round 4 of 12", "the job is lost; submitting again", "away; submitting again",
        "the job is lost; submitting again", "job job: round 10 of 12", "job job: round 12 of 12",
    ]  # fmt: skip


def test_a_study_that_waits_for_a_member_is_submitted_again(told):
    waits = {"error": "there is no masked sum; without a summand were: south", "waits": True}
    done = jobs.to_the_end(played(report(1, 2), waits, waits, report(3, 12)), 12, told.append)
    assert len(done.report["rounds"]) == 12 and "south; submitting again" in told[1]
    assert jobs.to_the_end(played(*[waits] * 9), 12, told.append).report == waits  # not for ever


def test_a_study_that_stops_early_is_over(told):
    done = jobs.to_the_end(played(report(1, 4, stopped_early=True)), 12, told.append)
    assert len(done.report["rounds"]) == 4


def test_a_study_whose_last_job_was_lost_after_its_last_round(told):
    over = {"error": "the study 'icu' has had its 4 rounds; nothing is left to do", "finished": True}
    done = jobs.to_the_end(played(report(1, 2), jobs.JobLost("gone"), over), 4, told.append)
    assert done.status == jobs.COMPLETED and len(done.report["rounds"]) == 2
    assert jobs.to_the_end(played(over), 4, told.append).report == over  # as without --to-the-end


def test_what_does_not_run_is_not_submitted_forever(told):
    with pytest.raises(jobs.RelayLost, match="away"):  # no relay at all
        jobs.to_the_end(played(jobs.RelayLost("away")), 12, told.append)
    refused = {"error": "1 of 4 sites can take part"}
    assert jobs.to_the_end(played(report(1, 4), refused), 12, told.append).report == refused
    gone_at_the_end = jobs.JobOutcome("job", "FINISHED:ABNORMAL", report(1, 4))
    done = jobs.to_the_end(played(gone_at_the_end, report(5, 12)), 12, told.append)
    assert len(done.report["rounds"]) == 12
    ended = jobs.JobOutcome("job", "FINISHED:EXECUTION_EXCEPTION", None)
    done = jobs.to_the_end(played(ended, report(1, 12)), 12, told.append)
    assert len(done.report["rounds"]) == 12 and "without a report" in told[-2]
    assert jobs.to_the_end(played(*[ended] * 9), 12, told.append) is ended
    with pytest.raises(jobs.JobLost):
        jobs.to_the_end(played(*[jobs.JobLost("gone")] * 9), 12, told.append)
