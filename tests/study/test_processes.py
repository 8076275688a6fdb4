"""Worker processes: cores, failures, death, and the same results whatever the number of jobs."""

import io
import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from abps.core.errors import RequestError
from abps.study.execute import conduct
from abps.study.plan import Request, Source, make_plan
from abps.study.progress import StudyProgress
from abps.study.records import StudyFolder
from abps.study.slurm import own_cores
from abps.study.workers import LocalExecutor, share_cores

SMALL = Source("icu-synthetic:centers=8,stays=800")


@given(st.integers(1, 64), st.none() | st.integers(1, 100), st.integers(1, 50))
def test_no_core_is_used_twice_and_none_is_left_over(cores, jobs, runs):
    shares = share_cores(range(cores), jobs, runs)
    assert sorted(core for share in shares for core in share) == list(range(cores))
    assert len(shares) <= min(jobs or cores, runs) and all(shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_job_at_all_is_refused():
    with pytest.raises(RequestError, match="jobs=0"):
        share_cores([0, 1], 0, 3)


def test_a_slurm_task_keeps_to_what_it_asked_for():
    seen = sorted(os.sched_getaffinity(0))
    assert own_cores({}) == [] == own_cores({"SLURM_CPUS_PER_TASK": str(len(seen))})
    if len(seen) > 1:
        first = own_cores({"SLURM_CPUS_PER_TASK": "1", "SLURM_ARRAY_TASK_ID": "0"})
        second = own_cores({"SLURM_CPUS_PER_TASK": "1", "SLURM_ARRAY_TASK_ID": "1"})
        assert len(first) == len(second) == 1 and first != second and set(first + second) <= set(seen)


def results(root, plan):
    study = StudyFolder(root)
    return {(run.label, run.seed): study.look(run).result.to_json() | {"seconds": 0} for run in plan.runs}


def test_results_do_not_depend_on_the_number_of_jobs(tmp_path):
    plan = make_plan(Request((SMALL,), ("fedavg", "abps-pq-k1"), (1,), 2))
    for jobs in (1, 2):
        outcome = conduct(plan, tmp_path / str(jobs), LocalExecutor(jobs))
        assert (outcome.planned, outcome.computed, outcome.failed, outcome.missing) == (2, 2, (), ())
        assert not (tmp_path / str(jobs) / "cache").exists()
    assert results(tmp_path / "1", plan) == results(tmp_path / "2", plan)


def test_a_failing_run_is_reported_and_the_others_go_on(tmp_path, capsys):
    methods = ("group-oracle-k1", "local")
    plan = make_plan(Request((Source("fedprox-synthetic:centers=6"),), methods, (1,), 1, words=methods))
    outcome = conduct(plan, tmp_path, LocalExecutor(1))
    assert outcome.computed == 1 and [run.method for run, _ in outcome.failed] == ["group-oracle-k1"]
    assert "failed: group-oracle-k1, seed 1" in capsys.readouterr().err
    note = json.loads((StudyFolder(tmp_path).folder(plan.runs[0]) / "failed.json").read_text())
    assert "group" in note["error"] and "Traceback" in note["details"]
    again = conduct(plan, tmp_path, LocalExecutor(1))
    assert again.reused == 1 and len(again.failed) == 1


def test_workers_that_got_ready_are_used_and_others_are_ended(tmp_path):
    plan = make_plan(Request((SMALL,), ("fedavg",), (1,), 1))
    with LocalExecutor(jobs=2) as local:
        local.get_ready(2)
        ready = list(local._workers)
        outcome = conduct(plan, tmp_path, local)
        assert outcome.computed == 1
    assert len(ready) == min(2, len(os.sched_getaffinity(0)))
    assert all(worker.process.poll() is not None for worker in ready)


class Assassin(StudyProgress):
    """Kills the worker that computes ``victim``, once."""

    victim = "local"
    done_it = False

    def round(self, run, t, rounds):
        super().round(run, t, rounds)
        if run.label == self.victim and t >= 1 and not self.done_it:
            self.done_it = True
            for process in Path("/proc").iterdir():
                if process.name.isdigit():
                    try:
                        words = (process / "cmdline").read_bytes().split(b"\0")
                        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                    except OSError:
                        continue
                    if b"abps.study.workers" in words and int(parent) == os.getpid():
                        os.kill(int(process.name), signal.SIGKILL)


def test_a_worker_that_dies_is_reported_and_replaced(tmp_path):
    plan = make_plan(Request((SMALL,), ("local", "fedavg"), (1,), 30))
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    for federation in plan.federations.values():
        study.keep(federation)
    progress = Assassin(plan.runs, Console(file=io.StringIO()))
    LocalExecutor(1)(study, plan.runs, progress)
    assert progress.done_it
    assert "signal 9" in study.failure(plan.runs[0]) and study.look(plan.runs[0]).result is None
    assert study.look(plan.runs[1]).result is not None


def test_a_damaged_run_is_named_and_computed_again(tmp_path, capsys):
    plan = make_plan(Request((SMALL,), ("local", "fedavg"), (1,), 1))
    run = LocalExecutor(1)
    conduct(plan, tmp_path, run)
    before = results(tmp_path, plan)
    path = StudyFolder(tmp_path).folder(plan.runs[0]) / "result.json"
    path.write_text(path.read_text()[:200])
    outcome = conduct(plan, tmp_path, run)
    told = capsys.readouterr().err.replace("\n", "")
    assert str(path) in told and "computed again" in told
    assert (outcome.reused, outcome.computed) == (1, 1) and results(tmp_path, plan) == before


def test_time_left_is_estimated_from_what_was_seen():
    plan = make_plan(Request((SMALL,), ("local", "fedavg"), (1, 2), 1))
    progress = StudyProgress(plan.runs, Console(file=io.StringIO()))
    for run in plan.runs:
        progress.waiting(run)
    assert progress.seconds_left() is None
    progress.done(plan.runs[0], 0.7, 10.0)
    progress.done(plan.runs[1], 0.7, 30.0)
    assert progress.seconds_left() == pytest.approx(10.0 + 30.0)
    progress.lanes(2)
    assert progress.seconds_left() == pytest.approx(20.0)


def test_the_live_table_shows_where_things_stand():
    plan = make_plan(Request((SMALL,), ("local", "fedavg"), (1,), 1))
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with StudyProgress(plan.runs, console) as progress:
        progress.done(plan.runs[0], 0.7123, 1.0)
        progress.round(plan.runs[1], 1, 4)
    assert "0.7123" in screen.getvalue() and "1 of 2 runs" in screen.getvalue()
