"""kill -9 at ten random moments: the final tables are the same bytes as those of an undisturbed study."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import abps

ARGUMENTS = [
    "compare", "--no-references", "--methods", "local,fedavg,abps-x", "--seeds", "1,2",
    "--data", "icu-synthetic:centers=8,stays=800", "--rounds", "3",
]  # fmt: skip


#: Everything that the report of this comparison writes.
REPORT = {
    "report.html",
    *(f"tables/{name}.{form}" for name in ("headline", "subgroups") for form in ("csv", "md", "tex")),
    *(f"tables/{name}.csv" for name in ("runs", "centers", "hospitals")),
    *(f"figures/{name}.{form}" for name in ("pareto", "rounds", "decisions") for form in ("svg", "pdf")),
}


def study(out, seed, kills, jobs):
    package = str(Path(abps.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killing.py")), str(seed), str(kills)]
        + [*ARGUMENTS, "--jobs", str(jobs), "--out", str(out)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": package}, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def written(root):
    """Every file of the report by name, as bytes."""
    found = {}
    for part in ("tables", "figures"):
        for path in sorted((root / part).rglob("*")):
            found[str(path.relative_to(root))] = path.read_bytes()
    found["report.html"] = (root / "report.html").read_bytes()
    return found


@pytest.mark.slow
def test_ten_kills_leave_the_same_tables(tmp_path):
    assert study(tmp_path / "whole", seed=0, kills=0, jobs=2)["code"] == 0
    told = study(tmp_path / "killed", seed=201, kills=10, jobs=1)
    assert told["code"] == 0 and len(told["finished"]) == 10, told
    assert told["finished"] == sorted(told["finished"]), told
    assert told["finished"][0] < 6 == told["finished"][-1], told  # some in the midst, some in the report
    whole, killed = written(tmp_path / "whole"), written(tmp_path / "killed")
    assert whole.keys() == killed.keys() == REPORT
    assert [name for name in whole if whole[name] != killed[name]] == []
    leftovers = [p for p in (tmp_path / "killed").rglob("*") if p.name.endswith(".part")]
    assert not leftovers and not (tmp_path / "killed" / "cache").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_study_leaves_no_process_behind_and_repeats_nothing_finished(tmp_path, number):
    out = tmp_path / "s"
    package = str(Path(abps.__file__).parents[1])
    command = [sys.executable, "-m", "abps.cli.main", *ARGUMENTS, "--out", str(out), "--json"]
    environment = os.environ | {"PYTHONPATH": package}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    end = time.monotonic() + 120
    while len(list(out.glob("runs/*/run.json"))) < 2 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.wait(60)
    assert workers and psutil.wait_procs(workers, 20)[1] == []
    finished = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/run.json")}
    assert 2 <= len(finished) < 6
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True)
    counted = json.loads(done.stdout)["runs"]
    assert counted["reused"] == len(finished) and counted["reused"] + counted["computed"] == 6
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
