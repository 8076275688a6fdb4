"""``abps compare``, ``abps report`` and ``abps demo`` as a user meets them."""

import json

import polars as pl
import pytest

from abps.cli.main import main
from abps.cli.options import read_seeds
from abps.cli.study_commands import DEMO_SEEDS

SMALL = ["--data", "icu-synthetic:centers=8,stays=800", "--rounds", "2"]


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    out = capsys.readouterr()
    return stop.value.code or 0, out.out, out.err


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of a small demo."""
    out = tmp_path_factory.mktemp("demo") / "abps-demo"
    with pytest.raises(SystemExit) as stop:
        main(["demo", *SMALL, "--out", str(out), "--json"])
    assert not stop.value.code
    return out


def test_the_demo_compares_six_methods_out_of_fold(demo, capsys):
    code, out, err = call(capsys, "demo", *SMALL, "--out", demo, "--json")
    content = json.loads(out)
    assert code == 0 and err == ""  # nothing is left to compute
    names = ["local-best", "glm-exact", "fedavg", "random-k1", "abps-plus", "group-oracle-k1"]
    runs = content["runs"]
    assert (
        runs["reused"] == runs["planned"] == len(names) * len(read_seeds(DEMO_SEEDS)) and not runs["computed"]
    )
    (data,) = content["data"]
    assert [line["method"] for line in data["methods"]] == names and data["folds"] == 5
    lines = {line["method"]: line for line in data["methods"]}
    assert lines["abps-plus"]["to_alone"]["verdict"] == data["verdict"]
    assert lines["group-oracle-k1"]["to_alone"]["verdict"] == "reference"
    assert any("glm-exact" in sentence for sentence in data["summary"])
    assert data["hospitals"]["all"] == 7
    for folder in (demo / "runs").iterdir():
        scores = pl.read_parquet(folder / "scores.parquet")
        rows = json.loads((folder / "result.json").read_text())["data"]["rows"]
        assert scores["row"].n_unique() == scores.height == rows and scores["fold"].n_unique() == 5


def test_the_report_is_written_again_from_the_runs(demo, capsys, tmp_path):
    before = (demo / "report.html").read_bytes()
    (demo / "report.html").unlink()
    code, out, _ = call(capsys, "report", demo)
    assert code == 0 and (demo / "report.html").read_bytes() == before
    lines = out.splitlines()
    head = next(line for line in lines if line.startswith("method"))
    assert head.split()[:3] == ["method", "to", "alone"]  # what a hospital asks first
    assert max(len(line) for line in lines if not line.startswith("report:")) <= 80
    assert "abps-plus" in out and "report.html" in out
    code, out, _ = call(capsys, "report", demo, "--out", tmp_path, "--json")
    assert code == 0 and json.loads(out)["report"] == str(tmp_path / "report.html")


def test_a_study_that_grows_after_a_look_is_held_to_a_stricter_level(capsys, tmp_path):
    few = ["compare", "--no-references", "--methods", "local,fedavg", *SMALL, "--folds", "3", "--json"]
    few += ["--out", tmp_path / "s", "--jobs", "1"]
    looks = []
    for seeds in ("1", "1", "1,2"):
        code, out, err = call(capsys, *few, "--seeds", seeds)
        assert code == 0, err
        looks.append(json.loads(out)["data"][0]["look"])
    assert looks == [1, 1, 2]  # the same repeats again are the same look
    assert "look number 2" in (tmp_path / "s" / "report.html").read_text()


def test_a_study_grows_by_methods_and_varied_settings(capsys, tmp_path):
    first = [
        "compare",
        "--no-references",
        "--seeds",
        "1",
        *SMALL,
        "--out",
        tmp_path / "s",
        "--jobs",
        "1",
        "--json",
    ]
    assert call(capsys, *first, "--methods", "local")[0] == 0
    code, out, _ = call(capsys, *first, "--methods", "local,fedavg")
    assert code == 0 and json.loads(out)["runs"]["reused"] == 1
    code, _, err = call(capsys, *first, "--methods", "local", "--set", "lr=0.5")
    assert code == 2 and "holds a study with other settings" in err


def test_several_federations_stand_in_one_report(capsys, tmp_path):
    code, out, _ = call(
        capsys, "compare", "--no-references",
        "--methods", "local", "--seeds", "1", "--rounds", "1", "--out", tmp_path / "s",
        "--data", "icu-synthetic:centers=8,stays=800", "--data", "fedprox-synthetic:centers=6", "--json",
    )  # fmt: skip
    assert code == 0 and [d["name"] for d in json.loads(out)["data"]] == [
        "icu-synthetic:centers=8,stays=800",
        "fedprox-synthetic:centers=6",
    ]
    assert len(list((tmp_path / "s" / "tables").glob("*/headline.md"))) == 2
    page = (tmp_path / "s" / "report.html").read_text()
    assert page.count("<h1>") == 2


def test_one_failing_run_is_reported_and_the_report_is_written(capsys, tmp_path):
    code, out, err = call(
        capsys, "compare", "--no-references",
        "--methods", "local,group-oracle-k1", "--seeds", "1", "--rounds", "1",
        "--data", "fedprox-synthetic:centers=6", "--out", tmp_path / "s", "--json",
    )  # fmt: skip
    assert code == 1 and "failed: group-oracle-k1, seed 1" in err
    told = json.loads(out)
    assert told["runs"]["computed"] == 1 and len(told["runs"]["failed"]) == 1
    assert "group-oracle-k1, seed 1" in (tmp_path / "s" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--methods", "fedavgg"], "did you mean 'fedavg'"),
        (["--methods", ","], "no method is named"),
        (["--methods", "local", "--seeds", "a"], "--seeds a"),
        (["--methods", "local", "--seeds", "1,1"], "1 is named twice"),
        (["--methods", "local", "--set", "nothing=1"], "none of the methods has a setting 'nothing'"),
        (["--methods", "local", "--executor", "cloud"], "choose local or slurm"),
        (["--methods", "local", "--jobs", "0"], "--jobs 0"),
        (["--methods", "local", "--data", "nowhere.csv"], "nowhere.csv"),
        (["--methods", "local", "--slurm-cores", "0"], "--slurm-cores 0"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_two(capsys, tmp_path, arguments, told):
    data = [] if "--data" in arguments else SMALL
    code, out, err = call(capsys, "compare", "--no-references", *arguments, *data, "--out", tmp_path / "s")
    assert code == 2 and told in err and out == "" and len(err.strip().splitlines()) == 1
    assert not list((tmp_path / "s").glob("runs/*/run.json"))


def test_a_report_of_nothing_is_refused(capsys, tmp_path):
    assert call(capsys, "report", tmp_path / "nowhere")[0] == 2
    code, _, err = call(capsys, "report", tmp_path)
    assert code == 2 and "holds no study" in err


def test_folds_and_references_on_the_command_line(capsys, tmp_path):
    code, out, err = call(
        capsys, "compare", "--methods", "local", "--seeds", "1", "--rounds", "1", "--folds", "3", "--json",
        "--data", "icu-synthetic:centers=6,stays=900", "--out", tmp_path / "s", "--jobs", "1",
    )  # fmt: skip
    assert code == 0, err
    content = json.loads(out)
    assert content["runs"]["computed"] == 4
    assert {"local", "local-best", "pooled-best", "glm-exact"} <= {
        line["method"] for line in content["data"][0]["methods"]
    }
    results = [json.loads(path.read_text()) for path in (tmp_path / "s" / "runs").glob("*/result.json")]
    assert {sum(r["scored"]["per_center_rows"].values()) for r in results} == {900}


def test_tuning_first(capsys, tmp_path):
    few = ["--methods", "fedavg", "--seeds", "11", "--no-references", "--set", "epochs=1", "--jobs", "1"]
    out = tmp_path / "study"
    code, told, err = call(capsys, "compare", *SMALL, *few, "--tune", "--json", "--out", out)
    assert code == 0, err
    (line,) = json.loads(told)["tuned"]
    assert line.startswith("fedavg tuned on seeds 1001, 1002: lr=") and "best of 3 settings" in line
    assert line in (out / "report.html").read_text()
    assert len(list((out / "tuning" / "runs").iterdir())) == 6
    code, _, err = call(capsys, "compare", *SMALL, *few, "--tune-seeds", "11", "--out", tmp_path / "c")
    assert code == 2 and "seed 11 is one to tune on and one to compare on" in err
