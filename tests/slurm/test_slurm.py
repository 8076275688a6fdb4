"""Studies on a real single-node Slurm."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

import abps
from abps.cli.main import main
from abps.core.errors import RequestError
from abps.study import slurm as slurm_module
from abps.study.plan import Request, Source, make_plan
from abps.study.progress import StudyProgress
from abps.study.records import StudyFolder
from abps.study.slurm import Slurm
from slurm.cluster import cluster, missing

DATA = "icu-synthetic:centers=8,stays=800"
SMALL = ["--data", DATA, "--rounds", "2"]


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    """The environment of a running Slurm."""
    why = missing()
    if why:
        if os.environ.get("CI"):
            pytest.fail(f"in CI Slurm must be there: {why}")
        pytest.skip(f"no Slurm: {why}")
    with cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture
def on_slurm(running, monkeypatch):
    """Slurm's commands work in this test."""
    monkeypatch.setenv("SLURM_CONF", running["SLURM_CONF"])
    package = str(Path(abps.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", package)
    return running


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


def tables(root):
    return {p.name: p.read_bytes() for p in sorted((root / "tables").iterdir())}


def jobs():
    done = subprocess.run(
        ["squeue", "--noheader", "--array", "--format=%i"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_slurm_gives_the_tables_that_local_processes_give(on_slurm, capsys, tmp_path):
    methods = ["--methods", "local,abps-pq-k1", "--seeds", "1"]
    code, out, err = call(
        capsys, "compare", "--no-references",
        *methods, *SMALL, "--out", tmp_path / "slurm", "--executor", "slurm",
        "--slurm-partition", "main", "--slurm-memory", 1, "--slurm-minutes", 5, "--slurm-deadline", 5,
        "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["runs"]["computed"] == 2
    assert (
        call(
            capsys, "compare", "--no-references", *methods, *SMALL, "--out", tmp_path / "local", "--jobs", 1
        )[0]
        == 0
    )
    assert tables(tmp_path / "slurm") == tables(tmp_path / "local")
    again = call(
        capsys,
        "compare",
        "--no-references",
        *methods,
        *SMALL,
        "--out",
        tmp_path / "slurm",
        "--executor",
        "slurm",
        "--json",
    )
    assert json.loads(again[1])["runs"] | {"reused": 2, "computed": 0} == json.loads(again[1])["runs"]


def test_a_benchmark_on_slurm_gives_the_rows_that_local_processes_give(on_slurm, capsys, tmp_path):
    (tmp_path / "made.toml").write_text(f"name = 'made'\nsynthetic = '{DATA}'\n")
    asked = ("benchmark", "--describe", tmp_path / "made.toml", "--federations", "made", "--seeds", 1)
    asked += ("--methods", "fedavg", "--model", "linear", "--folds", 3, "--rounds", 2)
    slurm = ("--executor", "slurm", "--slurm-memory", 1, "--slurm-minutes", 5, "--slurm-deadline", 5)
    for out, more in (("slurm", slurm), ("local", ())):
        code, _, err = call(capsys, *asked, "--out", tmp_path / out, *more)
        assert code == 0, err
    found = [pl.read_csv(tmp_path / out / "benchmark.csv").drop("seconds") for out in ("slurm", "local")]
    assert found[0].height == 4 and found[0].equals(found[1])
    assert list((tmp_path / "slurm").glob("studies/*/slurm*"))


def test_a_waiting_job_is_left_in_the_queue_collected_later_and_noticed_when_cancelled(
    on_slurm, capsys, tmp_path, monkeypatch
):
    asked = [
        "compare", "--no-references", "--methods", "local", "--seeds", "1", *SMALL, "--out", tmp_path / "s",
        "--executor", "slurm", "--slurm-cores", 3, "--slurm-memory", 1,
    ]  # fmt: skip
    code, _, err = call(capsys, *asked, "--slurm-deadline", 0.05)  # three cores: it waits forever
    assert code == 1 and "1 jobs are not done after 3 s" in err and "waiting" in err, err
    waiting = jobs()
    assert len(waiting) == 1
    code, _, err = call(capsys, *asked, "--slurm-deadline", 0.05)  # the same command does not submit it again
    assert code == 1 and jobs() == waiting

    study = StudyFolder(tmp_path / "s")
    known = json.loads((study.root / "slurm" / "jobs.json").read_text())
    asked_queue, rounds = slurm_module.queue, []

    def queue_then_cancel():
        found = asked_queue()
        rounds.append(found)
        if len(rounds) == 2:  # it was seen waiting twice
            subprocess.run(["scancel", waiting[0]], check=True)
        return found

    monkeypatch.setattr(slurm_module, "queue", queue_then_cancel)
    monkeypatch.setattr(slurm_module, "LATE_BY", 1.0)
    progress = StudyProgress(study.read().runs, Console(stderr=True))
    slurm_module.collect(study, study.read().runs, known, progress, deadline=5, pause=0.2)
    assert waiting[0] in rounds[0]
    assert f"Slurm job {waiting[0]} ended without a result (CANCELLED" in study.failure(study.read().runs[0])
    assert jobs() == []


def test_a_job_that_dies_without_a_result_is_noticed(on_slurm, tmp_path, monkeypatch):
    plan = make_plan(Request((Source(DATA),), ("local",), (1,), 2))
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    progress = StudyProgress(plan.runs, Console(stderr=True))
    submitted = subprocess.run(
        ["sbatch", "--parsable", "--output=/dev/null", "--wrap", "kill -9 $$"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    monkeypatch.setattr(slurm_module, "LATE_BY", 1.0)
    slurm_module.collect(study, plan.runs, {plan.runs[0].key: submitted}, progress, deadline=2, pause=0.3)
    assert f"Slurm job {submitted} ended without a result (FAILED" in study.failure(plan.runs[0])


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--slurm-memory", "999"], "Requested node configuration is not available"),
        (["--slurm-partition", "nope"], "Invalid partition name"),
    ],
)
def test_what_slurm_refuses_is_one_sentence(on_slurm, capsys, tmp_path, option, told):
    code, _, err = call(
        capsys, "compare", "--no-references",
        "--methods", "local", "--seeds", "1", *SMALL, "--out", tmp_path / "s",
        "--executor", "slurm", *option,
    )  # fmt: skip
    assert code == 2 and "Slurm refused the jobs" in err and told in err and "Traceback" not in err


# ---------------------------------------------------------------- without a Slurm


def test_no_sbatch_is_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    code, _, err = call(
        capsys,
        "compare",
        "--no-references",
        "--methods",
        "local",
        "--seeds",
        "1",
        *SMALL,
        "--out",
        tmp_path / "s",
        "--executor",
        "slurm",
    )
    assert code == 2 and "there is no sbatch here" in err


def test_a_silent_slurm_is_not_waited_for_forever(tmp_path, monkeypatch, capsys):
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "squeue").write_text("#!/bin/sh\nsleep 30\n")
    (fake / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_module, "ANSWER_WITHIN", 0.2)
    monkeypatch.setattr(slurm_module, "SILENT_FOR", 0.1)
    plan = make_plan(Request((Source(DATA),), ("local",), (1,), 2))
    study = StudyFolder(tmp_path / "s")
    study.open(plan)
    slurm_module.collect(
        study, plan.runs, {plan.runs[0].key: "1"}, StudyProgress(plan.runs, Console(stderr=True)), None, 0.05
    )
    assert "Slurm is silent" in capsys.readouterr().err


def test_a_method_from_elsewhere_runs_on_slurm_and_here_alike(on_slurm, capsys, tmp_path, monkeypatch):
    """A module that only lies in the folder from which the study is started."""
    beside = tmp_path / "beside"
    shutil.copytree(Path(__file__).parents[1] / "foreign", beside)
    monkeypatch.chdir(beside)
    words = ["compare", "--methods", "local,rotation:ROTATION", "--no-references", "--seeds", "1"]
    words += [*SMALL, "--json", "--out"]
    code, out, err = call(capsys, *words, tmp_path / "there", "--executor", "slurm", "--slurm-memory", 1)
    assert code == 0, err
    assert json.loads(out)["runs"]["computed"] == 2
    assert call(capsys, *words, tmp_path / "here")[0] == 0
    assert tables(tmp_path / "there") == tables(tmp_path / "here")
    there, here = (abps.load_study(tmp_path / name).runs[1][1] for name in ("there", "here"))
    assert there.decisions.equals(here.decisions) and there.bytes == here.bytes and there.bytes.edge > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"minutes": 0},
        {"memory_gb": -1},
        {"cores": 0},
        {"deadline": 0},
        {"account": "a b"},
        {"partition": "x;y"},
    ],
)
def test_wrong_slurm_options_are_refused(wrong):
    with pytest.raises(RequestError, match="slurm_"):
        Slurm(**wrong)
