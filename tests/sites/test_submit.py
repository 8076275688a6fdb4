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
    (tmp_path / "startup" / "fed_admin.json").write_text(json.dumps({"admin": {"username": "me@here.org"}}))
    return tmp_path


def submitted(monkeypatch, six, kit, relay, wait=60.0):
    monkeypatch.setattr(jobs, "new_secure_session", relay)
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    return jobs.submit(kit, six.agreement("abps"), 1, wait=wait)


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
