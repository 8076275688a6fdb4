"""The command line as a user meets it."""

import json
import subprocess
import sys

import polars as pl
import pytest

from abps.cli.main import as_flags, flags_of, main

SMALL = ["--data", "icu-synthetic:centers=12,stays=1500", "--rounds", "2"]


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


def test_a_run_writes_its_result_and_its_trail(capsys, tmp_path):
    code, out, _ = call(capsys, "run", "--method", "abps-pq-k1", *SMALL, "--out", tmp_path / "r", "--json")
    assert code == 0
    summary = json.loads(out)
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert summary["auroc"] == result["auroc"]["mean"] and result["method"] == "abps-pq-k1"
    assert pl.read_parquet(tmp_path / "r" / "decisions.parquet").height > 0
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [
        "decisions.parquet", "result.json", "scores.parquet",
    ]  # fmt: skip


def test_the_same_run_may_be_redone_another_is_refused(capsys, tmp_path):
    arguments = ["run", "--method", "local", *SMALL, "--out", tmp_path]
    assert call(capsys, *arguments)[0] == 0
    before = json.loads((tmp_path / "result.json").read_text())
    assert call(capsys, *arguments)[0] == 0
    again = json.loads((tmp_path / "result.json").read_text())
    assert {k: v for k, v in before.items() if k != "seconds"} == {
        k: v for k, v in again.items() if k != "seconds"
    }
    code, _, err = call(capsys, *arguments, "--seed", 12)
    assert code == 2 and "differs in seed" in err
    assert json.loads((tmp_path / "result.json").read_text()) == again


def test_own_table_from_the_command_line(capsys, tmp_path):
    rows = "\n".join(
        f"{'yes' if k % 3 == 0 else 'no'},{'AB'[k % 2]},{k % 17},{'u' if k % 5 else ''}" for k in range(200)
    )
    (tmp_path / "t.csv").write_text("died,hospital,x,ward\n" + rows)
    code, out, err = call(
        capsys,
        "run",
        "--method",
        "fedavg",
        "--rounds",
        2,
        "--data",
        tmp_path / "t.csv",
        "--label",
        "died",
        "--center",
        "hospital",
        "--out",
        tmp_path / "o",
    )
    assert code == 0, err
    assert "AUROC" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "Missing option '--method'"),
        (["run", "--method", "abps"], "Missing option '--out'"),
        (["frobnicate"], "No such command"),
        (["run", "--method", "abpss", "--out", "o"], "did you mean 'abps'"),
        (["run", "--method", "abps", "--set", "gamma", "--out", "o"], "write key=value"),
        (["run", "--method", "abps", "--seed", "-1", "--out", "o"], "'--seed': Input should be"),
        (["run", "--method", "abps", "--rounds", "0", "--out", "o"], "--rounds 0"),
        (
            ["run", "--method", "local", "--data", "icu-synthetic:centres=5", "--out", "o"],
            "did you mean 'centers'",
        ),
        (
            ["run", "--method", "local", "--data", "no.csv", "--label", "y", "--center", "h", "--out", "o"],
            "no such file",
        ),
        (["run", "--method", "local", *SMALL, "--out", "/proc/nowhere"], "cannot make the folder"),
    ],
)
def test_a_wrong_request_gets_one_line_and_exit_2(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *arguments)
    assert code == 2 and says in err and out == ""
    assert err.count("\n") == 1 and "Traceback" not in err
    assert list(tmp_path.rglob("*.json")) == []


def test_a_message_names_the_flags_of_the_command_that_was_called(capsys, tmp_path):
    arguments = ["run", "--method", "local", *SMALL, "--out", tmp_path / "o", "--min-stays", 0]
    assert "abps: --min-stays 0: choose at least 1" in call(capsys, *arguments)[2]
    assert as_flags("min_stays=0: no", flags_of(["methods"])) == "min_stays=0: no"


def test_a_file_as_out_and_a_damaged_result_are_refused(capsys, tmp_path):
    (tmp_path / "f").write_text("x")
    assert "is a file" in call(capsys, "run", "--method", "local", *SMALL, "--out", tmp_path / "f")[2]
    (tmp_path / "result.json").write_text('{"schema": "abps.run/1", "meth')
    code, _, err = call(capsys, "run", "--method", "local", *SMALL, "--out", tmp_path)
    assert code == 2 and "damaged" in err


def test_methods_are_listed(capsys):
    code, out, _ = call(capsys, "methods", "--json")
    listed = json.loads(out)
    assert code == 0 and {"abps-x", "fedavg", "random-k1"} <= {m["name"] for m in listed}
    assert all(m["summary"] and m["source"] and m["config"]["stop"]["rounds"] for m in listed)
    assert "abps-pq-k1" in call(capsys, "methods")[1]


def test_progress_stays_quiet_away_from_a_terminal(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "abps", "run", "--method", "local", *SMALL, "--out", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == "" and len(done.stdout.splitlines()) == 1


def test_version_and_help(capsys):
    assert call(capsys, "--version")[1].startswith("abps 0.")
    code, out, _ = call(capsys, "--help")
    assert code == 0 and "abps demo" in out


def test_a_device_that_is_not_there_ends_before_any_work(capsys, tmp_path):
    arguments = ["run", "--method", "local", *SMALL, "--out", tmp_path / "r"]
    code, _, err = call(capsys, *arguments, "--device", "xla:77")
    assert (
        code == 2
        and "PyTorch cannot use it here" in err
        and "--device" in err
        and len(err.strip().splitlines()) == 1
    )
    assert not (tmp_path / "r").exists()
    assert call(capsys, *arguments, "--device", "auto")[0] == 0
    assert json.loads((tmp_path / "r" / "result.json").read_text())["device"] == "cpu"


def test_a_result_from_another_device_is_not_overwritten(capsys, tmp_path):
    arguments = ["run", "--method", "local", *SMALL, "--out", tmp_path]
    assert call(capsys, *arguments)[0] == 0
    path = tmp_path / "result.json"
    there = json.loads(path.read_text())
    path.write_text(json.dumps(there | {"device": "cuda (a GPU)"}))
    code, _, err = call(capsys, *arguments)
    assert code == 2 and "differs in device" in err
    del there["device"]  # as results were before they said
    path.write_text(json.dumps(there))
    assert call(capsys, *arguments)[0] == 0
